"""The dashboard for a URL configuration: `path("jobs/", include("stoker.contrib.django.urls"))`.

Options of the dashboard are given there, too: `path("jobs/", include(…), {"login_url": "admin:login", "env": "prod"})`.
"""

from __future__ import annotations

from django.urls import re_path

from stoker.contrib.django.dashboard import view

app_name = "stoker"
urlpatterns = [re_path(r"^(?P<path>.*)$", view, name="dashboard")]

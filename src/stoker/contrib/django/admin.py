"""The link to the dashboard in Django's admin, for those who may look at it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse

from stoker.contrib.django.models import Dashboard


@admin.register(Dashboard)
class DashboardAdmin(admin.ModelAdmin):
    """Leads to the dashboard."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Is the dashboard part of this site, and may the user look at it?"""
        return _address() is not None and super().has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's interface
        """There is one dashboard, and none can be added."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002 - Django's
        """Go to the dashboard, which asks for the permission itself."""
        return HttpResponseRedirect(_address() or reverse("admin:index", current_app=self.admin_site.name))


def _address() -> str | None:
    try:
        return str(reverse("stoker:dashboard", kwargs={"path": ""}))
    except NoReverseMatch:
        return None

from django.contrib import admin
from django.urls import include, path

from shop.views import order

urlpatterns = [
    path("admin/", admin.site.urls),
    path("order", order),
    path("jobs/", include("stoker.contrib.django.urls"), {"login_url": "admin:login", "env": "shop"}),
]

"""No table: what permissions of the dashboard are attached to, and what Django's admin shows a link for."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    """The dashboard, for permissions: `stoker.view_dashboard`, `operate_dashboard`, `administer_dashboard`."""

    class Meta:
        """It has no table and no rows."""

        managed = False
        default_permissions = ("view",)
        permissions = (
            ("operate_dashboard", "Can change jobs, queues and schedules"),
            ("administer_dashboard", "Can see masked values"),
        )
        verbose_name = verbose_name_plural = "dashboard"

    def __str__(self) -> str:
        return "dashboard"

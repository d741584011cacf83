"""The Django app: discovers `tasks.py` of every installed app, keeps the schema, registers the checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core import checks as django_checks
from django.core.signals import request_started
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


class StokerConfig(AppConfig):
    """`"stoker.contrib.django"` in `INSTALLED_APPS`."""

    name = "stoker.contrib.django"
    label = "stoker"
    verbose_name = "Stoker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Find the tasks. Models are there; a `ready()` of another app may have imported its tasks before."""
        from stoker.contrib.django import checks, schema, settings
        from stoker.contrib.django.app import open_once
        from stoker.contrib.django.transactions import watch_connections

        settings.note_databases()
        watch_connections()
        django_checks.register(checks.check_stoker)
        request_started.connect(open_once, dispatch_uid="stoker.contrib.django")
        post_migrate.connect(schema.migrated, sender=self, dispatch_uid="stoker.contrib.django")
        if getattr(django_settings, "TASKS", None):
            from stoker.contrib.django import backend

            backend.prepare()
        autodiscover_modules("tasks")

"""System checks: what `manage.py check` says about `settings.STOKER`."""

from __future__ import annotations

from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from stoker.contrib.django import settings
from stoker.contrib.django.settings import testing
from stoker.model.errors import StokerError


def check_stoker(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:  # noqa: ARG001 - Django's interface
    """Report what is wrong with the setting, the app it makes, and the database it names."""
    from stoker.contrib.django.app import the_app

    try:
        given = settings.read()
        the_app()
    except (ImproperlyConfigured, StokerError) as error:
        return [checks.Error(str(error), id="stoker.E001")]
    if given.alias is None:
        return []
    connection = connections[given.alias]
    if connection.vendor == "postgresql" and not _is_psycopg_3(connection):
        hint = "Install psycopg and take psycopg2 away: jobs join atomic() through psycopg 3 only."
        return [checks.Error(f"the database {given.alias!r} is used through psycopg2.", hint=hint, id="stoker.E002")]
    if settings.is_in_memory(given.alias):
        if testing():
            return []
        hint = 'Name a file in DATABASES, or a database of another kind, or give STOKER["URL"].'
        text = f"the database {given.alias!r} is in memory, where no worker of another process finds a job."
        return [checks.Warning(text, hint=hint, id="stoker.W001")]
    if connection.vendor == "sqlite" and _mode(connection) != "IMMEDIATE":
        hint = f'Set "OPTIONS": {{"transaction_mode": "IMMEDIATE"}} in DATABASES[{given.alias!r}].'
        text = (
            f"the database {given.alias!r} is SQLite, which refuses to write in a transaction that has read what a "
            'worker has changed since: "database is locked".'
        )
        return [checks.Warning(text, hint=hint, id="stoker.W002")]
    return []


def _mode(connection: Any) -> str:
    return str(connection.settings_dict["OPTIONS"].get("transaction_mode") or "").upper()


def _is_psycopg_3(connection: Any) -> bool:
    return str(connection.Database.__name__) == "psycopg"

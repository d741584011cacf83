"""The schema comes with `manage.py migrate` of the database that holds the jobs, and with Django's test databases.

It is brought up to date after the migrations and not by one of them: so a new version of Stoker needs no migration in
any project, and `--run-syncdb`, `MIGRATE: False` and routers make no difference.
"""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from stoker.contrib.django import settings
from stoker.contrib.django.app import the_app
from stoker.sync import shared


def migrated(using: str, verbosity: int = 1, **signal: Any) -> None:
    """After `migrate`: bring the schema up to date. After `flush`: make it anew, empty."""
    try:
        alias = settings.read().alias
    except ImproperlyConfigured:  # `check` says what is wrong
        return
    if using != alias:
        return
    app = the_app()
    if "plan" not in signal:  # flush
        tests = app._tests  # noqa: SLF001 - one of us
        used = tests is None or tests.used
        if tests is not None:
            tests.emptied()
        if not used or settings.is_in_memory(using):
            return
        shared.run(app.close(), "`await jobs.close()`")
        _drop(using)
    url = settings.url_of(using)
    if url is None:
        return
    engine = app.pool_at(url).root()
    ran = asyncio.run(engine.migrate())
    if ran and verbosity >= 1 and "stdout" in signal:
        signal["stdout"].write(f"  Applying Stoker's schema... {len(ran)} statements\n")


def _drop(alias: str) -> None:
    """Drop all that is Stoker's in the database of an alias."""
    connection = connections[alias]
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            schema = connection.ops.quote_name(the_app().root()._options.schema)  # type: ignore[attr-defined]  # noqa: SLF001 - its own word
            cursor.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            return
        cursor.execute(
            r"SELECT type, name FROM sqlite_master WHERE name LIKE 'stoker\_%' ESCAPE '\' AND type IN ('table', 'view')"
        )
        for kind, name in cursor.fetchall():
            cursor.execute(f"DROP {kind} {connection.ops.quote_name(name)}")

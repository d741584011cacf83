"""Django without a project: settings for one test, and none afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from django import setup
from django.conf import settings
from django.db import connections
from django.utils.functional import empty


def on_file(path: Path, **options: Any) -> dict[str, Any]:
    """An entry of `DATABASES` for a SQLite file."""
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}


def on_server(url: str, **options: Any) -> dict[str, Any]:
    """An entry of `DATABASES` for the database of a Postgres URL."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }


@contextmanager
def unconfigured() -> Iterator[None]:
    """Django as it is before it is configured; afterwards as it was found.

    Connections that other threads opened are theirs to close.
    """
    before, handler = settings._wrapped, connections.__dict__.copy()
    settings._wrapped = empty
    connections.__init__()
    connections.__dict__.pop("settings", None)
    try:
        yield
    finally:
        if settings.configured:
            connections.close_all()
        settings._wrapped = before
        connections.__dict__.clear()
        connections.__dict__.update(handler)


@contextmanager
def django(default: dict[str, Any], **others: Any) -> Iterator[None]:
    """Django with these settings; `databases=` names further databases."""
    with unconfigured():
        databases = {"default": default, **others.pop("databases", {})}
        settings.configure(DATABASES=databases, LOGGING_CONFIG=None, **others)
        setup()
        yield

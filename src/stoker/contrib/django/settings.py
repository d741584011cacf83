"""What `settings.STOKER` says: where the jobs are, and what becomes of a job that cannot join a transaction.

    STOKER = {"DATABASE": "default"}                 # in the database of this alias, SQLite or Postgres
    STOKER = {"URL": "redis://…", "OUTSIDE": "now"}  # somewhere else

`OPTIONS` are keywords of `Stoker(...)`. What is wrong raises `ImproperlyConfigured` in one sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from stoker.model.errors import shown
from stoker.settings import check_known

Outside: TypeAlias = Literal["on_commit", "now", "refuse"]

KEYS: Final = ("URL", "DATABASE", "OUTSIDE", "OPTIONS")
WHERE: Final = 'STOKER must say where the jobs are: {"DATABASE": "default"}, or {"URL": "postgresql://…"}'

FORBIDDEN: Final = {"_DatabaseFailure", "_blocking_wrapper"}
"""What `SimpleTestCase` and pytest-django put in the place of a connection's methods."""

FOR_THE_SERVER: Final = ("application_name", "options", "passfile", "service", "servicefile", "target_session_attrs")
"""Options of libpq that asyncpg knows as well, besides those that begin with ssl."""


@dataclass(frozen=True)
class Given:
    """The setting, read and checked. Either `url` or `alias` says where the jobs are."""

    url: str | None = None
    alias: str | None = None
    outside: Outside = "on_commit"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str | None:
        """The store's URL; None: it is in a SQLite database in memory, which no other connection reaches."""
        return self.url if self.alias is None else url_of(self.alias)


def read() -> Given:
    """Read `settings.STOKER`."""
    given = getattr(settings, "STOKER", None)
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{WHERE}. It is {'not set' if given is None else shown(given)}.")
    try:
        check_known(given, KEYS, "the key of STOKER")
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None
    url, alias = given.get("URL"), given.get("DATABASE")
    if (url is None) == (alias is None):
        raise ImproperlyConfigured(f"{WHERE}. It has {'neither' if url is None else 'both'}.")
    outside, options = given.get("OUTSIDE", "on_commit"), given.get("OPTIONS", {})
    if outside not in get_args(Outside):
        names = ", ".join(f'"{name}"' for name in get_args(Outside))
        raise ImproperlyConfigured(f'STOKER["OUTSIDE"] must be one of {names}, not {shown(outside)}.')
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f'STOKER["OPTIONS"] must be keywords of Stoker(...), not {shown(options)}.')
    if alias is not None:
        _check_alias(alias)
    elif not isinstance(url, str):
        raise ImproperlyConfigured('STOKER["URL"] must be text, such as "redis://localhost".')
    return Given(url, alias, outside, options)


def _check_alias(alias: object) -> None:
    known = ", ".join(f'"{name}"' for name in connections.settings)
    if not isinstance(alias, str) or alias not in connections.settings:
        raise ImproperlyConfigured(f'STOKER["DATABASE"] is {shown(alias)}, but DATABASES has {known}.')
    vendor = connections[alias].vendor
    if vendor not in ("sqlite", "postgresql"):
        raise ImproperlyConfigured(
            f'STOKER["DATABASE"] is "{alias}", which is on {vendor}: jobs are kept on SQLite and Postgres. Name '
            'another alias, or give STOKER["URL"].'
        )


def is_in_memory(alias: str) -> bool:
    """Is this a SQLite database in memory, as Django's tests make one?"""
    name = connections.settings[alias]["NAME"]
    return connections[alias].vendor == "sqlite" and bool(
        connections[alias].creation.is_in_memory_db(name or ":memory:")
    )


def url_of(alias: str) -> str | None:
    """The URL of an alias's database with its own connection settings; None for one in memory."""
    entry, vendor = connections.settings[alias], connections[alias].vendor
    if vendor == "sqlite":
        if is_in_memory(alias):
            return None
        timeout = entry.get("OPTIONS", {}).get("timeout")
        query = "" if timeout is None else f"?busy_timeout={float(timeout)}"
        return f"sqlite:///{quote(str(entry['NAME']))}{query}"
    options = {
        name: value
        for name, value in entry.get("OPTIONS", {}).items()
        if name in FOR_THE_SERVER or name.startswith("ssl")
    }
    host, port = str(entry.get("HOST") or ""), str(entry.get("PORT") or "")
    if host.startswith("/") or "," in host:
        options |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    user, password = quote(str(entry.get("USER") or ""), safe=""), quote(str(entry.get("PASSWORD") or ""), safe="")
    who = f"{user}:{password}@" if password else f"{user}@" if user else ""
    place = f"[{host}]" if ":" in host else host
    at = f"{who}{place}{f':{port}' if port else ''}"
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql://{at}/{quote(str(entry['NAME'] or ''), safe='')}{query}"


def is_out_of_reach(alias: str) -> bool:
    """Is there no store for a test in this database?"""
    return is_in_memory(alias) or is_real(alias) or is_forbidden(alias)


_names: dict[str, Any] = {}
_connections: dict[str, Any] = {}


def note_databases() -> None:
    """Remember the databases as they are before tests put theirs in their place, and this thread's connections."""
    for alias, entry in connections.settings.items():
        _names[alias] = entry["NAME"]
        _connections[alias] = connections[alias]


def is_real(alias: str) -> bool:
    """Do tests run while this is not a test database?"""
    return testing() and bool(connections.settings[alias]["NAME"] == _names.get(alias))


def is_forbidden(alias: str = DEFAULT_DB_ALIAS) -> bool:
    """Does a test run that must not use this database: a `SimpleTestCase`, one without a mark of pytest-django?"""
    connect = getattr(_connections.get(alias), "connect", None)
    names = {type(connect).__name__, BaseDatabaseWrapper.ensure_connection.__name__}
    return testing() and not names.isdisjoint(FORBIDDEN)


def testing() -> bool:
    """Has Django's `setup_test_environment()` been called?"""
    state: Any = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return hasattr(state, "saved_data")

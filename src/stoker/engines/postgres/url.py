"""Parsing a Postgres URL into options, and showing it without its password."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from stoker.engines.base import Clock
from stoker.engines.postgres.connection import Pooler
from stoker.engines.postgres.statements import DEFAULT_SCHEMA, check_schema
from stoker.engines.postgres.store import Options
from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.query import history_of

DEFAULTS: dict[str, Any] = {
    "schema": DEFAULT_SCHEMA,
    "migrate": "manual",
    "pooler": "auto",
    "direct": None,
    "timeout": 5.0,
    "history": None,
}
CHOICES = {"migrate": ("auto", "manual"), "pooler": typing.get_args(Pooler)}


def read_url(url: str, *, clock: Clock | None, given: Mapping[str, Any]) -> Options:
    """Return options: by keyword (None: not given), else from the URL's query, else the default."""
    bare, found = split(url)
    wanted = {**DEFAULTS, **found, **{name: value for name, value in given.items() if value is not None}}
    for name, choices in CHOICES.items():
        if wanted[name] not in choices:
            raise InvalidOption(name, wanted[name], f"must be one of {', '.join(choices)}")
    try:
        patience = float(wanted["timeout"])
    except (TypeError, ValueError):
        patience = 0.0
    if not 0 < patience < 3_600:
        raise InvalidOption("timeout", wanted["timeout"], "must be a number of seconds above 0 and below 3,600")
    direct = wanted["direct"]
    return Options(
        bare,
        shown(bare),
        check_schema(wanted["schema"]),
        clock,
        wanted["migrate"],
        wanted["pooler"],
        patience,
        None if direct is None else split(direct)[0],
        history_of(wanted["history"]),
    )


def split(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL into the driver's URL and Stoker's options of its query."""
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        # The parser quotes the URL in its message, so its message must not be shown.
        raise InvalidInput("url", "postgresql://…", "cannot be read as a URL") from None
    ours = {name: value for name, value in query if name in DEFAULTS}
    rest = urlencode([(name, value) for name, value in query if name not in DEFAULTS])
    return urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")), ours


def shown(url: str) -> str:
    """Return the database's name for messages: host, port and path, never user or password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2] or "the local socket"
    return f"postgres {host}{parts.path}"


def public_url(options: Options) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(options.url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}?schema={options.schema}"

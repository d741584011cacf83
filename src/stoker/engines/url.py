"""From a URL to an engine: `memory://`, `sqlite:///jobs.db`, `postgresql://…`, `redis://…`.

An engine's module, and with it its driver, is imported only when its scheme is used. A URL may hold a password, so
no error ever shows more of it than the scheme.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from stoker.engines.base import Engine
from stoker.model.errors import EngineRefused, InvalidInput, InvalidOption, UnknownOption

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,31}", re.IGNORECASE)


class Maker(msgspec.Struct, frozen=True):
    """Where an engine lives and what makes it available."""

    module: str
    cls: str
    extra: str | None = None


MEMORY = Maker("stoker.engines.memory", "MemoryEngine")
SQLITE = Maker("stoker.engines.sqlite", "SqliteEngine")
POSTGRES = Maker("stoker.engines.postgres", "PostgresEngine", "postgres")
REDIS = Maker("stoker.engines.redis", "RedisEngine", "redis")
REDIS_CLUSTER = Maker("stoker.engines.redis", "RedisClusterEngine", "redis")

SCHEMES: dict[str, Maker] = {
    "memory": MEMORY,
    "sqlite": SQLITE,
    "postgresql": POSTGRES,
    "postgres": POSTGRES,
    "redis": REDIS,
    "rediss": REDIS,
    "redis+cluster": REDIS_CLUSTER,
}
KNOWN = "memory://, sqlite:///relative.db, sqlite:////absolute.db, postgresql:// (also postgres:// and "
KNOWN += "postgresql+driver://), redis://, rediss://, redis+cluster://"


def engine_from_url(url: str, **options: Any) -> Engine:
    """The engine a URL means, not opened yet.

    Options given here win over those in the URL's query, and these over the environment's `STOKER_<NAME>`.
    """
    scheme, parts = _split(url)
    maker = SCHEMES["postgresql" if scheme.startswith("postgresql+") else scheme]
    make = _load(maker, scheme)
    if maker is MEMORY:
        if parts.netloc or parts.path.strip("/"):
            raise InvalidInput(
                "url", f"{scheme}://...", "memory:// takes no name or path; each engine made has its own store"
            )
        return typing.cast("Engine", make(**_merged(make, parts.query, options)))
    if maker is SQLITE:
        return typing.cast("Engine", make(_path(parts), **_merged(make, parts.query, options)))
    # The query of a server's URL is the driver's as much as ours: the engine sorts it out.
    return typing.cast("Engine", make(url, **_merged(make, "", options, named=dict(parse_qsl(parts.query)))))


def engine_options(url: str) -> list[str]:
    """The options the engine of this URL takes by keyword. Raises for a URL that means no engine."""
    scheme, _ = _split(url)
    known, _ = _known(_load(SCHEMES["postgresql" if scheme.startswith("postgresql+") else scheme], scheme))
    return known


def _split(url: str) -> tuple[str, SplitResult]:
    """The scheme, known to be one of ours, and the rest."""
    scheme, colon, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    scheme = scheme.lower()
    if not colon or not _SCHEME.fullmatch(scheme):
        raise InvalidInput("url", "text without a scheme" if url else url, f"must start with one of {KNOWN}")
    if any(character in url for character in "\0\r\n\t"):
        raise InvalidInput("url", f"{scheme}://...", "contains a line break, a tab or NUL; write it on one line")
    if scheme not in SCHEMES and not re.fullmatch(r"postgresql\+[a-z0-9_]+", scheme):
        raise InvalidInput("url", f"{scheme}://...", f"unknown scheme; known are {KNOWN}")
    try:
        return scheme, urlsplit(url)
    except ValueError:
        # The parser quotes the URL in its message, so that one must not be shown.
        raise InvalidInput("url", f"{scheme}://...", "cannot be read as a URL") from None


def _load(maker: Maker, scheme: str) -> Callable[..., object]:
    """Import the engine's class."""
    try:
        found = getattr(importlib.import_module(maker.module), maker.cls, None)
        missing = f"{maker.module} has no {maker.cls}"
    except ModuleNotFoundError as error:
        found, missing = None, f"there is no module {error.name}"
    if found is None:
        remedy = f"pip install 'stoker[{maker.extra}]'" if maker.extra else "Reinstall stoker and this Python's sqlite3"
        raise EngineRefused(f"{scheme}:// cannot be used here: {missing}. Nothing was opened. {remedy}.")
    return typing.cast("Callable[..., object]", found)


def _path(parts: SplitResult) -> str:
    """The file of a SQLite URL: three slashes before a relative path, four before an absolute one."""
    path = unquote(parts.path)[1:]
    if parts.netloc or not path:
        why = "needs a file: sqlite:///relative.db with three slashes, sqlite:////absolute.db with four"
        raise InvalidInput("url", "sqlite://...", why)
    if path == ":memory:":
        raise InvalidInput("url", "sqlite:///:memory:", "is lost with its connection; use memory:// or a file")
    return path


def _merged(
    make: Callable[..., object], query: str, options: Mapping[str, Any], *, named: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Options by keyword, else from the query, else from the environment, all of them known to the engine.

    `named` are options that the engine reads from the query itself: the environment does not set those.
    """
    given = dict(parse_qsl(query, keep_blank_values=True))
    known, is_closed = _known(make)
    if is_closed:
        for name in (*given, *options):
            if name not in known:
                raise UnknownOption("the option", name, f"there is no such option; known are {', '.join(known)}")
    hints = typing.get_type_hints(make.__init__) if inspect.isclass(make) else {}
    found = dict(options)
    for name in {*known, *given} - options.keys():
        hint, variable = hints.get(name, str), f"STOKER_{name.upper()}"
        if name in given:
            found[name] = _read(f"the URL query option {name}", given[name], hint)
        elif name not in (named or {}) and name != "clock" and os.environ.get(variable):
            found[name] = _read(f"the environment variable {variable}", os.environ[variable], hint)
    return found


def _known(make: Callable[..., object]) -> tuple[list[str], bool]:
    """The options an engine takes, and whether it takes no others."""
    parameters = inspect.signature(make).parameters.values()
    named = (one.name for one in parameters if one.kind is not one.VAR_KEYWORD)
    is_closed = not any(one.kind is one.VAR_KEYWORD for one in parameters)
    return sorted(name for name in named if name not in ("path", "url")), is_closed


def _read(where: str, text: str, hint: Any) -> object:
    """A text as the engine's signature wants it."""
    try:
        return msgspec.convert(text, hint, strict=False)
    except (msgspec.ValidationError, TypeError):
        wanted = getattr(hint, "__name__", str(hint))
        raise InvalidOption(where, text, f"must be {wanted}") from None

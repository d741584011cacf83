"""Who is there: tokens, one key, the host app's own sign-in, or every user of this machine.

`Tokens()` asks for a token that `stoker tokens create` made, in a cookie after signing in or in the header
`Authorization: Bearer`. `Key()` asks for one key, which is known to this process alone. A function
`fn(request) -> Identity | None` uses the sign-in of the app around the dashboard. `Open()` lets everybody in, and only
from this machine.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from starlette.requests import HTTPConnection, Request

from stoker.model.access import Identity, Role, is_loopback
from stoker.model.errors import InvalidInput
from stoker.model.humanize import count

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

PROXY_HEADERS = frozenset({"forwarded", "x-real-ip", "via"})
"""Headers that proxies add, besides those that begin with X-Forwarded."""

SHORTEST_KEY, LONGEST_KEY = 16, 200

SignIn: TypeAlias = Callable[[Request], Identity | Awaitable[Identity | None] | None]


@dataclass(frozen=True)
class Open:
    """Everybody who connects from this machine, under one name. Other machines and proxies are refused."""

    name: str = "local"
    role: Role = "admin"


@dataclass(frozen=True)
class Key:
    """Everybody who has the key, under one name; without a key of yours it makes one of 256 random bits."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    name: str = "local"
    role: Role = "admin"

    def __post_init__(self) -> None:
        given = self.secret
        if not isinstance(given, str) or not SHORTEST_KEY <= len(given) <= LONGEST_KEY or not _plain(given):
            why = f"must be {SHORTEST_KEY} to {LONGEST_KEY} letters, digits, - or _, so that it cannot be guessed"
            raise _WeakKey("key", given, why)


class _WeakKey(InvalidInput):
    """A key that is refused; the message does not show it."""

    aftermath = "Nothing was started."

    def got(self, value: object) -> str:
        """Return how long it is."""
        return count(len(value), "character") if isinstance(value, str) else type(value).__name__


@dataclass(frozen=True)
class Tokens:
    """Tokens that are stored as hashes beside the jobs; `stoker tokens create NAME` makes one."""


Auth: TypeAlias = Open | Key | Tokens | SignIn


def _plain(text: str) -> bool:
    """Is it made of letters and signs that stay themselves in an address?"""
    return text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def came_through_a_proxy(request: HTTPConnection) -> bool:
    """Does it carry a header that proxies add?"""
    return any(name in PROXY_HEADERS or name.startswith("x-forwarded") for name in request.headers)


def travels_open(request: HTTPConnection) -> bool:
    """Do requests and answers travel between machines without TLS?"""
    client = request.client
    return request.url.scheme not in {"https", "wss"} and (client is None or not is_loopback(client.host))


async def ask(sign_in: SignIn, request: Request) -> Identity | None:
    """Ask the host app who this is; what it answers must be an `Identity` or None."""
    found = sign_in(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, Identity):
        raise TypeError(f"auth= must return an Identity or None, not {type(found).__name__}")
    return found

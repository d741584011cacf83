"""Who is there: tokens, the host app's own sign-in, or every user of this machine.

`Tokens()` asks for a token that `stoker tokens create` made, in a cookie after signing in or in the header
`Authorization: Bearer`. A function `fn(request) -> Identity | None` uses the sign-in of the app around the dashboard.
`Open()` lets everybody in, and only from this machine.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import HTTPConnection

from stoker.model.access import Identity, Role, is_loopback

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

SignIn: TypeAlias = Callable[[HTTPConnection], Identity | Awaitable[Identity | None] | None]


@dataclass(frozen=True)
class Open:
    """Everybody who connects from this machine, under one name. Other machines are refused."""

    name: str = "local"
    role: Role = "admin"


@dataclass(frozen=True)
class Tokens:
    """Tokens that are stored as hashes beside the jobs; `stoker tokens create NAME` makes one."""


Auth: TypeAlias = Open | Tokens | SignIn


def travels_open(request: HTTPConnection) -> bool:
    """Do requests and answers travel between machines without TLS?"""
    client = request.client
    return request.url.scheme not in {"https", "wss"} and (client is None or not is_loopback(client.host))


async def ask(sign_in: SignIn, request: HTTPConnection) -> Identity | None:
    """Ask the host app who this is; what it answers must be an `Identity` or None."""
    found = sign_in(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, Identity):
        raise TypeError(f"auth= must return an Identity or None, not {type(found).__name__}")
    return found

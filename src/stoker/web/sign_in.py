"""Signing in and out: whom a request stands for, the page that asks, and the address that brings a key."""

from __future__ import annotations

import secrets
from typing import Protocol
from urllib.parse import quote, unquote, urlencode

from starlette.responses import Response

from stoker.model.access import Identity
from stoker.web import view
from stoker.web.auth import Auth, Key, Tokens
from stoker.web.key import KeyHolder
from stoker.web.request import CSRF_COOKIE, SESSION_COOKIE, Entry, RequestContext
from stoker.web.tokens import KnownTokens

KEY = "key"
"""The parameter that brings the key."""


class Door(Protocol):
    """What lets people in by a secret: in a header, or once, for a session that a cookie names."""

    async def bearer(self, visit: RequestContext, secret: str) -> Identity | None:
        """Whom a secret in the header stands for."""
        ...

    async def session(self, visit: RequestContext, cookie: str) -> Identity | None:
        """Whom a cookie stands for."""
        ...

    async def enter(self, visit: RequestContext, secret: str) -> Entry | None:
        """Begin a session; None: the secret opens nothing."""
        ...

    async def leave(self, visit: RequestContext, cookie: str) -> None:
        """End the session of a cookie."""
        ...


def door(auth: Auth) -> Door | None:
    """The door that people sign in at; None: they do so elsewhere, or not at all."""
    if isinstance(auth, Key):
        return KeyHolder(auth)
    return KnownTokens() if isinstance(auth, Tokens) else None


async def identify(visit: RequestContext, door: Door) -> Identity | None:
    """Whom the secret of a request stands for, or its session."""
    header = visit.request.headers.get("authorization", "")
    if header:
        scheme, _, value = header.partition(" ")
        return await door.bearer(visit, value.strip()) if scheme.lower() == "bearer" else None
    cookie = _cookie(visit)
    return await door.session(visit, cookie) if cookie else None


async def bring_key(visit: RequestContext) -> Response | None:
    """Begin a session with the key in the address, and clean the address; None: there is no key in it."""
    given = visit.request.query_params.multi_items()
    if not isinstance(visit.board.auth, Key) or KEY not in dict(given):
        return None
    rest = urlencode([(name, value) for name, value in given if name != KEY])
    clean = local(visit, visit.request.url.path + (f"?{rest}" if rest else ""))
    door = visit.board.door
    assert door is not None
    entry = await door.enter(visit, dict(given)[KEY])
    if entry is not None:
        return _enter(visit, clean, entry)
    return view.redirect(visit, clean) if visit.identity is not None else page(visit, clean, wrong=True)


async def ask(visit: RequestContext) -> Response:
    """The page to sign in on."""
    if visit.identity is not None:
        return view.redirect(visit, visit.url(""))
    return page(visit, visit.parameter("next"))


async def sign_in(visit: RequestContext) -> Response:
    """Begin a session if the secret opens anything."""
    form = await visit.board.form(visit)
    door = visit.board.door
    entry = None if door is None else await door.enter(visit, form.get("token").strip())
    if entry is None:
        return page(visit, form.get("next"), wrong=True)
    return _enter(visit, local(visit, form.get("next")), entry)


async def sign_out(visit: RequestContext) -> Response:
    """End the session of this browser."""
    await visit.board.form(visit)
    if visit.board.door is not None:
        await visit.board.door.leave(visit, _cookie(visit))
    response = view.redirect(visit, visit.url("sign-in"))
    response.headers.append("set-cookie", visit.board.cookie(visit, SESSION_COOKIE, "", age=0))
    return response


def local(visit: RequestContext, path: str) -> str:
    """A path to go on to: only below this dashboard, never to another site."""
    inside = path.startswith(f"{visit.root}/") and not path.startswith("//") and "\\" not in path
    plain = not any(ord(letter) < 33 for letter in path)
    return quote(path, safe="/%#?=@[]!$&'()*+,;:", errors="replace") if inside and plain else visit.url("")


def page(visit: RequestContext, path: str, *, wrong: bool = False, status: int | None = None) -> Response:
    """The page that asks for a secret."""
    context = view.common(visit, "", "Sign in") | {
        "wrong": wrong,
        "next": local(visit, path),
        "by_key": isinstance(visit.board.auth, Key),
    }
    return view.page(visit, "sign-in.html", context, status or (401 if wrong else 200))


def _enter(visit: RequestContext, path: str, entry: Entry) -> Response:
    response = view.redirect(visit, path)
    response.headers.append("set-cookie", visit.board.cookie(visit, SESSION_COOKIE, entry.cookie, age=entry.age))
    response.headers.append("set-cookie", visit.board.cookie(visit, CSRF_COOKIE, secrets.token_urlsafe(32)))
    return response


def _cookie(visit: RequestContext) -> str:
    return unquote(visit.cookie(SESSION_COOKIE))

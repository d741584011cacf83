"""Tokens at the door: who a token in the header or in the cookie stands for, and the page to sign in on.

The hashes are read from the store at most every few seconds, so that revoking one takes effect on every process soon,
and a flood of guesses does not reach the store.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from starlette.responses import Response

from stoker.admin.tokens import PREFIX
from stoker.model.access import Identity
from stoker.model.time import SECOND
from stoker.model.tokens import AccessToken
from stoker.web import view
from stoker.web.visit import CSRF_COOKIE, SESSION_COOKIE, Visit

FRESH = 5.0
"""Seconds for which the stored tokens are taken as they were read."""

LONGEST = 200
DAYS_SIGNED_IN = 30


class KnownTokens:
    """The stored tokens, as they were read last."""

    def __init__(self) -> None:
        self._read_at = -1e9
        self._now = 0
        self._tokens: Sequence[AccessToken] = ()

    async def find(self, visit: Visit, secret: str) -> AccessToken | None:
        """The token that this secret opens; every stored one is compared, in constant time."""
        if not secret.startswith(PREFIX) or len(secret) > LONGEST:
            return None
        engine = await visit.board.store.engine()
        if time.monotonic() - self._read_at > FRESH:
            self._tokens, self._now = await engine.tokens(), await engine.now()
            self._read_at = time.monotonic()
        now = self._now + round((time.monotonic() - self._read_at) * SECOND)
        opened = [token for token in self._tokens if token.opens(secret, now)]
        return opened[0] if opened else None


async def identify(visit: Visit) -> Identity | None:
    """Who the token of a request stands for."""
    secret = _given(visit)
    if not secret:
        return None
    token = await visit.board.known_tokens.find(visit, secret)
    return None if token is None else token.identity


def _given(visit: Visit) -> str:
    header = visit.request.headers.get("authorization", "")
    if header:
        scheme, _, value = header.partition(" ")
        return value.strip() if scheme.lower() == "bearer" else ""
    return unquote(visit.request.cookies.get(SESSION_COOKIE, ""))


async def ask(visit: Visit) -> Response:
    """The page to sign in on."""
    if visit.identity is not None:
        return view.redirect(visit, visit.url(""))
    return _page(visit, visit.parameter("next"), wrong=False)


async def sign_in(visit: Visit) -> Response:
    """Keep the token in a cookie if it opens anything."""
    form = await visit.board.form(visit)
    secret = form.get("token").strip()
    token = await visit.board.known_tokens.find(visit, secret)
    if token is None:
        return _page(visit, form.get("next"), wrong=True)
    response = view.redirect(visit, local(visit, form.get("next")))
    age = DAYS_SIGNED_IN * 86_400
    if token.expires is not None:
        now = await (await visit.board.store.engine()).now()
        age = max(min(age, (token.expires - now) // SECOND), 1)
    response.headers.append("set-cookie", visit.board.cookie(visit, SESSION_COOKIE, secret, age=age))
    response.headers.append("set-cookie", visit.board.cookie(visit, CSRF_COOKIE, secrets.token_urlsafe(32)))
    return response


async def sign_out(visit: Visit) -> Response:
    """Forget the token in this browser."""
    await visit.board.form(visit)
    response = view.redirect(visit, visit.url("sign-in"))
    response.headers.append("set-cookie", visit.board.cookie(visit, SESSION_COOKIE, "", age=0))
    return response


def local(visit: Visit, path: str) -> str:
    """A path to go on to: only below this dashboard, never to another site."""
    parts = urlsplit(path)
    inside = path.startswith(f"{visit.root}/") and not path.startswith("//") and "\\" not in path
    plain = not parts.scheme and not parts.netloc and not any(ord(letter) < 33 for letter in path)
    return path if inside and plain else visit.url("")


def _page(visit: Visit, path: str, *, wrong: bool) -> Response:
    context = view.common(visit, "", "Sign in") | {"wrong": wrong, "next": local(visit, path)}
    return view.page(visit, "sign-in.html", context, 401 if wrong else 200)

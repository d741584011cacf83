"""The key at the door: it opens a session for a browser, and programs send it as their token.

A session is a random name that is signed with the key: every process that has the key knows it, no store keeps it, and
it ends with the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from stoker.model.access import Identity
from stoker.web.auth import Key
from stoker.web.request import Entry, RequestContext

MOST_ENDED = 10_000
"""Sessions whose end is remembered."""


class KeyHolder:
    """Knows the key, and which of its sessions were ended in this process."""

    def __init__(self, key: Key) -> None:
        self._secret = key.secret.encode()
        self._identity = Identity(key.name, key.role)
        self._ended: dict[str, None] = {}

    async def bearer(self, visit: RequestContext, secret: str) -> Identity | None:  # noqa: ARG002 - every door is asked alike
        """Who sends the key; compared in constant time."""
        return self._identity if hmac.compare_digest(self._secret, _bytes(secret)) else None

    async def session(self, visit: RequestContext, cookie: str) -> Identity | None:  # noqa: ARG002 - every door is asked alike
        """Whose session this is, if it was begun with this key and not ended."""
        name, _, signature = cookie.partition(".")
        genuine = hmac.compare_digest(self._sign(name).encode(), _bytes(signature))
        return self._identity if genuine and name not in self._ended else None

    async def enter(self, visit: RequestContext, secret: str) -> Entry | None:
        """Begin a session, if this is the key."""
        if await self.bearer(visit, secret) is None:
            return None
        name = secrets.token_urlsafe(16)
        return Entry(f"{name}.{self._sign(name)}")

    async def leave(self, visit: RequestContext, cookie: str) -> None:
        """End a session."""
        if await self.session(visit, cookie) is not None:
            self._ended[cookie.partition(".")[0]] = None
            for oldest in list(self._ended)[:-MOST_ENDED]:
                del self._ended[oldest]

    def _sign(self, name: str) -> str:
        return hmac.new(self._secret, b"session " + _bytes(name), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")

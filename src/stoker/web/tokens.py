"""Tokens at the door: whom a token in the header or in the cookie stands for.

The hashes are read from the store at most every few seconds, so that revoking one takes effect on every process soon,
and a flood of guesses does not reach the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from stoker.admin.tokens import PREFIX
from stoker.model.access import Identity
from stoker.model.time import SECOND
from stoker.model.tokens import AccessToken
from stoker.web.visit import Entry, Visit

FRESH = 2.5
"""Seconds for which the stored tokens are taken as they were read."""

LONGEST = 200
DAYS_SIGNED_IN = 30


class KnownTokens:
    """The stored tokens, as they were read last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at = -1e9
        self._now = 0
        self._tokens: Sequence[AccessToken] = ()

    async def bearer(self, visit: Visit, secret: str) -> Identity | None:
        """Whom the token stands for."""
        token = await self._find(visit, secret)
        return None if token is None else token.identity

    async def session(self, visit: Visit, cookie: str) -> Identity | None:
        """Whom the token in the cookie stands for."""
        return await self.bearer(visit, cookie)

    async def enter(self, visit: Visit, secret: str) -> Entry | None:
        """Let the cookie hold the token, if it opens anything."""
        token = await self._find(visit, secret)
        if token is None:
            return None
        age = DAYS_SIGNED_IN * 86_400
        if token.expires is not None:
            now = await (await visit.board.store.engine()).now()
            age = max(min(age, (token.expires - now) // SECOND), 1)
        return Entry(secret, age)

    async def leave(self, visit: Visit, cookie: str) -> None:
        """Nothing to end: the browser forgets the token."""

    async def _find(self, visit: Visit, secret: str) -> AccessToken | None:
        """The token that this secret opens; every stored one is compared, in constant time."""
        if not secret.startswith(PREFIX) or len(secret) > LONGEST:
            return None
        engine = await visit.board.store.engine()
        if self._clock() - self._read_at > FRESH:
            self._tokens, self._now = await engine.tokens(), await engine.now()
            self._read_at = self._clock()
        now = self._now + round((self._clock() - self._read_at) * SECOND)
        opened = [token for token in self._tokens if token.opens(secret, now)]
        return opened[0] if opened else None

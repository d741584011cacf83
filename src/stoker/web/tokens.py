"""Tokens at the door: whom a token in the header stands for, or the session in a cookie that was begun with one.

Hashes are read from the store at most every few seconds, so that revoking a token or ending a session takes effect on
every process soon, and a flood of guesses does not reach the store.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from stoker.admin import documents
from stoker.admin.tokens import ENTROPY, PREFIX
from stoker.engines.base import Engine
from stoker.model.access import Identity
from stoker.model.errors import EngineReadOnly, EngineRefused
from stoker.model.time import DAY, SECOND, Instant
from stoker.model.tokens import AccessToken, Session, digest
from stoker.web.request import Entry, RequestContext

logger = logging.getLogger("stoker.web")

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", AccessToken, Session)

FRESH = 2.5
"""Seconds for which what is stored is taken as it was read."""

SOUGHT = 0.2
"""Seconds between two looks for what is not known: a token may have been made, or a session begun, just now."""

SESSION_PREFIX: Final = "sts_"
LONGEST = 200
SIGNED_IN: Final = 30 * DAY
MOST_SESSIONS = 100
"""Sessions of one token; when there are more, the oldest ends."""


class Recent(Generic[T]):
    """What was read from the store, for as long as it is fresh."""

    def __init__(self, clock: Callable[[], float], read: Callable[[Engine], Awaitable[T]]) -> None:
        self._clock = clock
        self._read = read
        self._read_at = self._sought_at = -1e9
        self._value: T | None = None

    async def get(self, engine: Engine) -> T:
        """Return it, read again if it is too old."""
        if self._value is None or self.age > FRESH:
            began = self._clock()
            self._value = await self._read(engine)
            self._read_at = began
        return self._value

    async def seek(self, engine: Engine, pick: Callable[[T], R | None]) -> R | None:
        """Pick a token from the cache; an unknown one makes it read the store again, but not too often."""
        found = pick(await self.get(engine))
        if found is None and self._clock() - self._sought_at > SOUGHT:
            self._sought_at = self._clock()
            self.forget()
            found = pick(await self.get(engine))
        return found

    @property
    def age(self) -> float:
        """Seconds since it was read."""
        return self._clock() - self._read_at

    def forget(self) -> None:
        """Read it anew the next time."""
        self._read_at = -1e9


class KnownTokens:
    """The stored tokens and sessions, as they were read last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = Recent(clock, documents.tokens)
        self._sessions = Recent(clock, documents.sessions)
        self._time = Recent(clock, lambda engine: engine.now())
        self.refused_writes = False
        """The store refused to keep a session, so cookies hold tokens."""

    async def bearer(self, visit: RequestContext, secret: str) -> Identity | None:
        """Whom the token stands for."""
        token = await self._find(visit, secret)
        return None if token is None else token.identity

    async def session(self, visit: RequestContext, cookie: str) -> Identity | None:
        """Whom the token stands for with which the session was begun."""
        if cookie.startswith(PREFIX):
            return await self.bearer(visit, cookie)
        found = await self._begun(visit, cookie)
        if found is None:
            return None
        engine = await visit.board.store.engine()
        now, tokens = await self._now(engine), await self._tokens.get(engine)
        token = next((one for one in tokens if one.name == found.token and one.state(now) == "valid"), None)
        return None if token is None else token.identity

    async def enter(self, visit: RequestContext, secret: str) -> Entry | None:
        """Begin a session with a token; where none can be stored, the cookie holds the token itself."""
        token = await self._find(visit, secret)
        if token is None:
            return None
        engine = await visit.board.store.engine()
        now = await engine.now()
        expires = now + SIGNED_IN if token.expires is None else min(now + SIGNED_IN, token.expires)
        age = max((expires - now) // SECOND, 1)
        if visit.board.read_only:
            return Entry(secret, age)
        cookie = SESSION_PREFIX + secrets.token_urlsafe(ENTROPY)
        try:
            await documents.put_session(
                engine, Session(sha256=digest(cookie), token=token.name, created=now, expires=expires)
            )
            await self._tidy(engine, now)
        except (EngineReadOnly, EngineRefused) as error:
            if not self.refused_writes:
                logger.warning(
                    "the store keeps no sessions of the dashboard (%s): cookies hold tokens instead, and signing out "
                    "ends them in their browser only. Let the dashboard write, or serve it read-only",
                    type(error).__name__,
                )
            self.refused_writes = True
            return Entry(secret, age)
        self._sessions.forget()
        return Entry(cookie, age)

    async def leave(self, visit: RequestContext, cookie: str) -> None:
        """End a session for every process; a cookie that holds a token is only forgotten by its browser."""
        found = await self._begun(visit, cookie)
        if found is not None:
            await documents.drop_session((await visit.board.store.engine()), found)
            self._sessions.forget()

    async def _find(self, visit: RequestContext, secret: str) -> AccessToken | None:
        """The token of a secret."""
        if not secret.startswith(PREFIX) or len(secret) > LONGEST:
            return None
        return await self._opened(await visit.board.store.engine(), self._tokens, secret)

    async def _begun(self, visit: RequestContext, cookie: str) -> Session | None:
        """The session of a cookie."""
        if not cookie.startswith(SESSION_PREFIX) or len(cookie) > LONGEST:
            return None
        return await self._opened(await visit.board.store.engine(), self._sessions, cookie)

    async def _opened(self, engine: Engine, stored: Recent[list[K]], secret: str) -> K | None:
        """What this secret opens; every stored one is compared, in constant time."""
        now = await self._now(engine)

        def pick(stored: list[K]) -> K | None:
            opened = [one for one in stored if one.opens(secret, now)]
            return opened[0] if opened else None

        return await stored.seek(engine, pick)

    async def _now(self, engine: Engine) -> Instant:
        """The store's time, by the last reading of its clock."""
        return await self._time.get(engine) + round(self._time.age * SECOND)

    async def _tidy(self, engine: Engine, now: Instant) -> None:
        """Remove sessions that have expired, whose token has, or that are too many of one token."""
        valid = {one.name for one in await documents.tokens(engine) if one.state(now) == "valid"}
        kept: dict[str, int] = {}
        for one in await documents.sessions(engine):  # the latest first
            kept[one.token] = kept.get(one.token, 0) + 1
            if now >= one.expires or one.token not in valid or kept[one.token] > MOST_SESSIONS:
                await documents.drop_session(engine, one)

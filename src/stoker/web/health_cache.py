"""The latest check-up of the store, which all viewers share: checks read as a writer does, so they are made rarely."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from stoker.engines.base import Description
from stoker.model.health.check import Check
from stoker.model.time import Instant

EVERY: Final = 60.0
"""Seconds between two check-ups, at least."""


class CheckUp(NamedTuple):
    """What was found, and when by the store's clock."""

    at: Instant
    checks: list[Check]
    description: Description


class CheckUps:
    """Makes check-ups, at most one a minute for all viewers together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made_at = -EVERY
        self._lock = asyncio.Lock()
        self.latest: CheckUp | None = None

    @property
    def age(self) -> float:
        """Seconds since the latest one."""
        return self._clock() - self._made_at

    @property
    def again_in(self) -> float:
        """Seconds after which another one is made; zero: it would be made now."""
        return 0.0 if self.latest is None else max(EVERY - self.age, 0.0)

    async def look(self, examine: Callable[[], Awaitable[CheckUp]]) -> tuple[CheckUp, bool]:
        """A check-up that is less than a minute old, and whether it was made for this. One that fails is not kept."""
        async with self._lock:
            if self.latest is not None and self.again_in:
                return self.latest, False
            self.latest = await examine()
            self._made_at = self._clock()
            return self.latest, True

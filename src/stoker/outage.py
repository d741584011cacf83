"""A store that is away: what is logged about it, and how a start or a run waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from math import inf
from random import random
from typing import TypeVar

from stoker.engines.base import Engine, Feature
from stoker.model.errors import PASSING, StokerError, sentence

logger = logging.getLogger("stoker.worker")

QUIET = 10.0
"""Seconds between two lines about outages."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries."""

T = TypeVar("T")


class Outage:
    """One line when an outage begins, one when it is over; a store that comes and goes gets one per `QUIET`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at = -inf
        self._known = False
        self._logged = False

    def report(self, text: str, *details: object) -> None:
        """Log that the store is away, unless that was said."""
        now = self._clock()
        if self._known or now - self._logged_at < QUIET:
            logger.debug(text, *details)
        else:
            self._logged, self._logged_at = True, now
            logger.error(text, *details)
        self._known = True

    def over(self, text: str) -> None:
        """Log that the store is back, if its absence was logged."""
        if self._logged:
            logger.info(text)
        self._known = self._logged = False


async def wait_for_store(
    call: Callable[[], Awaitable[object]], engine: Engine, outage: Outage, stopping: Callable[[], bool]
) -> None:
    """Repeat `call` until the server is there. Raises at once what waiting would not mend, or when asked to stop."""

    def away(error: StokerError) -> None:
        if stopping() or Feature.SERVER not in engine.features:
            raise error
        outage.report(
            "the store does not answer: %s: %s The start waits for it; readiness is red.",
            engine.where,
            sentence(error),
        )

    await until_answered(call, PASSING, away)
    outage.over("the store answers; the start goes on")


async def until_answered(
    call: Callable[[], Awaitable[T]], errors: tuple[type[StokerError], ...], away: Callable[[StokerError], None]
) -> T:
    """Repeat `call` with growing pauses while it raises one of `errors`. `away` is told of each, and may raise it."""
    pause = SHORTEST_PAUSE
    while True:
        try:
            return await call()
        except errors as error:
            away(error)
        await asyncio.sleep(pause * (0.5 + random()))
        pause = min(pause * 2, LONGEST_PAUSE)

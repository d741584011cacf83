"""The janitor: a service that removes what is past its retention.

Jobs, events, points, presences, locks and received ids are swept one after the other, each for itself; groups have a
sweeper of their own (`group_sweeper.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import random

import msgspec

from stoker.engines.base import Engine
from stoker.model.errors import AWAY, StokerError
from stoker.model.query import Retention, Sweep
from stoker.model.time import MINUTE, SECOND
from stoker.services import ServiceContext
from stoker.settings import RetentionSettings

logger = logging.getLogger("stoker.worker")

Batch = Callable[[], Awaitable[int]]
"""Removes at most one batch of something; returns how much."""

REST = 2.0
"""The janitor pauses for so many times as long as its last batch took: jobs need the store more."""


class Janitor:
    """Cleans every `clean_every` seconds at most; a random pause keeps workers from cleaning in step."""

    name = "janitor"

    def __init__(self, settings: RetentionSettings) -> None:
        self._pause = settings.clean_every / SECOND
        self._retention = Retention(events=settings.keep_events, points=settings.keep_points, presences=MINUTE)

    async def run(self, context: ServiceContext) -> None:
        """Clean again and again."""
        while True:
            await asyncio.sleep(self._pause * (0.5 + 0.5 * random()))
            await clean(context.engine, self._retention)


async def clean(engine: Engine, retention: Retention) -> int:
    """Remove what is past its retention, sweep by sweep; returns how many jobs were removed.

    A sweep that fails hinders no other: it is logged, and tried again at the next cleaning.
    """
    sweeps: dict[str, Batch] = {sweep: partial(_expire, engine, retention, sweep) for sweep in Sweep}
    removed: dict[str, int] = {}
    failed: dict[str, Exception] = {}
    for what, batch in sweeps.items():
        try:
            removed[what] = await _in_batches(batch, retention.limit)
        except Exception as error:  # noqa: BLE001 - the other sweeps must run
            failed[what] = error
    _log_failures(failed, away=not removed and all(isinstance(error, AWAY) for error in failed.values()))
    jobs = removed.get(Sweep.JOBS, 0)
    if jobs:
        logger.info("removed %d finished jobs whose retention has passed", jobs)
    return jobs


async def _expire(engine: Engine, retention: Retention, sweep: Sweep) -> int:
    expired = await engine.expire(msgspec.structs.replace(retention, sweeps=frozenset({sweep})))
    return int(getattr(expired, sweep))


async def _in_batches(batch: Batch, limit: int) -> int:
    """Repeat a sweep until a batch is not full, with pauses; returns how much it removed."""
    removed = 0
    while True:
        began = time.monotonic()
        n = await batch()
        removed += n
        if n < limit:
            return removed
        await asyncio.sleep((time.monotonic() - began) * REST)


def _log_failures(failed: dict[str, Exception], *, away: bool) -> None:
    """Log each sweep that failed; at debug level when the store is away, because the store loop logs that once."""
    for what, error in failed.items():
        logger.log(
            logging.DEBUG if away else logging.WARNING,
            "could not remove old %s: %s The other sweeps go on; this one is tried again at the next cleaning.",
            what,
            error,
            exc_info=None if isinstance(error, StokerError) else error,
        )

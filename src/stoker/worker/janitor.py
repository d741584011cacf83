"""The janitor and the group sweeper: services that remove and close what would stay for ever.

The janitor sweeps jobs, events, points, presences, locks, received ids, audit entries, limits and operations that are
past their retention, one after the other, each for itself, and counts the slots of full keys again. The group sweeper
closes groups whose last member was ended by a process that died right after, abandons those that their maker left
unsealed, and removes those past their retention.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import random

import msgspec

from stoker.engines.base import Engine
from stoker.event_buffer import wall
from stoker.model.control import REMEMBERED
from stoker.model.errors import AWAY, StokerError, sentence
from stoker.model.events import of_repair
from stoker.model.humanize import count
from stoker.model.query import Expired, Retention, Sweep
from stoker.model.time import SECOND
from stoker.registry import mint
from stoker.services import ServiceContext
from stoker.settings import RetentionSettings

logger = logging.getLogger("stoker.worker")

REST = 2.0
"""The janitor pauses for so many times as long as its last batch took: jobs need the store more."""


class Janitor:
    """Cleans every `clean_every` seconds at most; a random pause keeps workers from cleaning in step."""

    name = "janitor"

    def __init__(self, settings: RetentionSettings) -> None:
        self._pause = settings.clean_every / SECOND
        self._retention = Retention(
            events=settings.keep_events, points=settings.keep_points, presences=REMEMBERED, audit=settings.keep_audit
        )

    async def run(self, context: ServiceContext) -> None:
        """Clean again and again."""
        while True:
            await asyncio.sleep(self._pause * (0.5 + 0.5 * random()))
            await self.clean(context)

    async def clean(self, context: ServiceContext) -> None:
        """Clean once; each repair is an event of the timeline."""
        expired = await clean(context.engine, self._retention)
        await context.app.emit_events([of_repair(repair, mint(), wall()) for repair in expired.repairs])


async def clean(engine: Engine, retention: Retention) -> Expired:
    """Remove what is past its retention, sweep by sweep; returns what was removed.

    A sweep that fails hinders no other: it is logged, and tried again at the next cleaning.
    """
    swept: dict[Sweep, Expired] = {}
    failed: dict[Sweep, Exception] = {}
    for sweep in Sweep:
        try:
            swept[sweep] = await _in_batches(engine, retention, sweep)
        except Exception as error:  # noqa: BLE001 - the other sweeps must run
            failed[sweep] = error
    _log_failures(failed, away=not swept and all(isinstance(error, AWAY) for error in failed.values()))
    expired = sum(swept.values(), Expired())
    if expired.jobs:
        logger.info("removed %s whose retention has passed", count(expired.jobs, "finished job"))
    for repair in expired.repairs:
        logger.warning(
            "queue %s: the number of running jobs under the limit %s was %d, but %d is right. It is repaired, and "
            "waiting jobs start. This is a bug in Stoker: please report it.",
            *(repair.queue, repair.name, repair.counted, repair.holders),
        )
    return expired


async def _in_batches(engine: Engine, retention: Retention, sweep: Sweep) -> Expired:
    """Repeat a sweep until a batch is not full, with pauses; returns what it removed."""
    one = msgspec.structs.replace(retention, sweeps=frozenset({sweep}))
    expired = Expired()
    while True:
        began = time.monotonic()
        batch = await engine.operator.expire(one)
        expired += batch
        if getattr(batch, sweep) < retention.limit:
            return expired
        await asyncio.sleep((time.monotonic() - began) * REST)


def _log_failures(failed: dict[Sweep, Exception], *, away: bool) -> None:
    """Log each sweep that failed; at debug level when the store is away, because the store loop logs that once."""
    for sweep, error in failed.items():
        logger.log(
            logging.DEBUG if away else logging.WARNING,
            "could not %s: %s The other sweeps go on; this one is tried again at the next cleaning.",
            "count the running jobs of full limits again" if sweep is Sweep.LIMITS else f"remove old {sweep}",
            sentence(error),
            exc_info=None if isinstance(error, StokerError) else error,
        )


GROUPS_EVERY = 1.0
"""Seconds between two sweeps of groups, on average: as long may a closing be late that a dead process did not do."""

MOST_GROUPS = 1_000
"""Groups of each sort in one sweep."""


class GroupSweeper:
    """Sweeps every second; a random pause keeps workers from sweeping in step."""

    name = "groups"

    async def run(self, context: ServiceContext) -> None:
        """Sweep again and again."""
        while True:
            await asyncio.sleep(GROUPS_EVERY * (0.5 + random()))
            try:
                swept = await context.engine.groups.sweep(MOST_GROUPS)
            except AWAY:  # the store loop logs that once; the next sweep comes in a second
                continue
            if swept.abandoned:
                logger.warning(
                    "abandoned %s not sealed within an hour, because the maker raised or died. A job of on_failure is "
                    "stored when all members are finished",
                    count(swept.abandoned, "group"),
                )

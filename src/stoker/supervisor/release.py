"""Releases the jobs of a dead worker process without waiting for its lease."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.hand_back import BATCH, hand_back, publish
from stoker.model.errors import StokerError, sentence
from stoker.model.humanize import count
from stoker.model.job import LEASE
from stoker.model.lifecycle import Rules
from stoker.worker.failures import FailureLog
from stoker.worker.maintenance import Death, reap

if TYPE_CHECKING:
    from stoker.app import Stoker

logger = logging.getLogger("stoker.supervisor")

TRIES = 5


async def release_patiently(app: Stoker, dead: Sequence[str], crash: str | None) -> None:
    """Settle the jobs of dead workers: as crash-ends if `crash` says how they died, else handed back.

    Tries a few times; if the store stays away, the leases of the dead workers lapse. A try that failed half-way has
    taken over some claims already; the next try, under another id, takes them over from the first.
    """
    mine: list[str] = []
    failures = FailureLog(app.errors)
    death = None if crash is None else Death(crash, list(dead))
    for attempt in range(TRIES):
        mine.append(uuid.uuid4().hex)
        try:
            released = await _release(app, mine[-1], [*dead, *mine[:-1]], death, failures)
            logger.info("released %s of a dead worker process", count(released, "job"))
            break
        except StokerError as error:
            logger.warning("jobs of a dead worker process could not be released: %s Trying again.", sentence(error))
            await asyncio.sleep(0.1 * 2**attempt)
    else:
        logger.error("jobs of a dead worker process run again when its lease has lapsed")
    failures.flush(everything=True)
    with suppress(StokerError):
        for me in mine:
            await (await app.engine()).jobs.renew(me, [], lease=0)


async def _release(app: Stoker, me: str, dead: list[str], death: Death | None, failures: FailureLog) -> int:
    """Try once; returns how many jobs were released. Raises what the store raises."""
    engine = await app.engine()
    await engine.jobs.renew(me, [], lease=LEASE, first=True)
    released = 0
    while True:
        if death is None:
            handed_on = await hand_back(engine, me, dead)
        else:
            death.workers = dead
            handed_on = await reap(engine, me, lambda kind: rules_of(app, kind), limit=BATCH, death=death)
        publish(app, handed_on)
        failures.applied(*handed_on)
        released += len(handed_on[0])
        if len(handed_on[0]) < BATCH:
            return released


def rules_of(app: Stoker, kind: str) -> Rules:
    """Return the rules for jobs of this kind; the app's defaults for an unknown kind."""
    task = app.find_task(kind)
    if task is None:
        return Rules(default=app.backoff)
    return Rules(backoff=task.options.backoff, default=app.backoff, crash_limit=task.crashes)

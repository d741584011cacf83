"""The ticker: a service that fires due schedules, by the store's clock.

Every worker has one, and no leader is needed: a tick and its jobs are stored in one step that only one ticker wins. The
named lock only saves the others the work: it lapses soon, and whichever worker reaps a dead one releases it and wakes
the other tickers. A ticker that dies, hangs or is late does no harm: the next one fires what was missed, as the
schedule's misfire policy says.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.engines.base import CONTROL, Engine
from stoker.event_buffer import wall
from stoker.model.errors import EngineError, EngineRefused, InvalidInput, StokerError, sentence
from stoker.model.events import of_missed
from stoker.model.ids import occurrence
from stoker.model.job import Draft
from stoker.model.schedule import (
    LONGEST_SLEEP,
    SHORTEST_SLEEP,
    Action,
    Fired,
    Schedule,
    Tick,
    disabled,
    draft_of,
    ensure,
    failed,
    nap,
    tick,
)
from stoker.model.seal import check_open
from stoker.model.time import SECOND, Instant, Span
from stoker.services import ServiceContext

if TYPE_CHECKING:
    from stoker.app import Stoker

logger = logging.getLogger("stoker.worker")

LOCK = "schedules"
LOCK_LEASE: Span = 10 * SECOND
AT_ONCE = 250
"""Schedules that are fired at the same time."""


class Ticker:
    """Stores the schedules that code declares, then fires what is due again and again."""

    name = "schedules"

    def __init__(self) -> None:
        self._unused = False

    async def run(self, context: ServiceContext) -> None:
        """Tick until canceled; sleep in between, and wake when a schedule changes."""
        await declare(context.app, context.engine)
        try:
            while True:
                pause = await self.turn(context)
                await asyncio.sleep(SHORTEST_SLEEP / SECOND)
                if pause > SHORTEST_SLEEP:
                    await context.engine.jobs.wait([CONTROL], (pause - SHORTEST_SLEEP) / SECOND)
        finally:
            with suppress(StokerError):
                await context.engine.control.unlock(LOCK, context.worker_id())

    async def turn(self, context: ServiceContext) -> Span:
        """Fire what is due, unless another worker's ticker does; returns how long to sleep."""
        engine = context.engine
        if not self._unused and not await engine.control.lock(LOCK, context.worker_id(), LOCK_LEASE):
            return LONGEST_SLEEP
        stored = await engine.schedules.read()
        # A store without schedules costs one read now and then, and no lock.
        self._unused = not any(one.enabled for one in stored)
        return LONGEST_SLEEP if self._unused else await fire_due(context.app, engine, stored)


async def declare(app: Stoker, engine: Engine) -> None:
    """Store the schedules that code declares, where they are new or have changed; edited ones are kept."""
    declared = app.declared_schedules
    if not declared:
        return
    stored = {one.name: one for one in await engine.schedules.read()}
    now = await engine.now()
    for name, declaration in declared.items():
        try:
            schedule = declaration.schedule()  # the app's router and hooks have a part in it
            if ensure(stored.get(name), schedule, now) is not stored.get(name):
                await engine.schedules.put(schedule, keep_edited=True)
        except Exception as error:
            if isinstance(error, EngineError) and not isinstance(error, EngineRefused):
                raise
            text = "schedule %s, declared at %s, was not stored. If an older form of it is stored, that goes on firing."
            logger.exception(text, name, declaration.place)


async def fire_due(app: Stoker, engine: Engine, stored: list[Schedule]) -> Span:
    """Fire every schedule that is due; returns how long to sleep until the next one is.

    One that the store cannot fire now is tried again at the next tick. Raises if none could be fired.
    """
    now = await engine.now()
    turns = asyncio.Semaphore(AT_ONCE)

    async def fire(schedule: Schedule) -> Fired:
        async with turns:
            return await fire_one(app, engine, schedule, now)

    due = [one for one in stored if one.is_due(now)]
    ahead = [one for one in stored if not one.is_due(now)]
    errors: dict[str, BaseException] = {}
    for one, fired in zip(due, await asyncio.gather(*map(fire, due), return_exceptions=True), strict=True):
        if isinstance(fired, BaseException):
            errors[one.name] = fired
        elif fired.schedule is not None:
            ahead.append(fired.schedule)
    for name, error in errors.items():
        if len(errors) == len(due):
            raise error
        logger.warning("schedule %s could not be fired and is tried again: %s", name, error)
    return nap(ahead, now)


async def fire_one(app: Stoker, engine: Engine, schedule: Schedule, now: Instant) -> Fired:
    """Decide about one schedule, store the decision with its jobs, and report what came of it.

    One whose arguments this worker cannot open is left to others. Raises `SealedValue`.
    """
    check_open(schedule.template.payload, f"the arguments of schedule {schedule.name}")
    fired = await _decide_and_store(app, engine, schedule, now)
    if not fired.applied and fired.schedule == schedule:
        # Nothing has changed but the time: this part of the store has another clock (a Redis Cluster has several).
        fired = await _decide_and_store(app, engine, schedule, fired.now)
    return fired


async def _decide_and_store(app: Stoker, engine: Engine, schedule: Schedule, now: Instant) -> Fired:
    decision, drafts = _decide(schedule, now)
    fired = await engine.schedules.fire(decision, drafts)
    if fired.applied and fired.schedule is not None:
        if fired.receipts:
            await app.emit_inserted(drafts, fired.receipts)
        if decision.action is not Action.SEED:
            _log(fired.schedule)
        if decision.seen is not None and decision.action is not Action.SEED:
            first, template = occurrence(schedule.name, decision.seen), schedule.template
            await app.emit_events(of_missed(first, template.queue, template.kind, fired.schedule.last_missed, wall()))
    return fired


def _decide(schedule: Schedule, now: Instant) -> tuple[Tick, list[Draft]]:
    try:
        decision = tick(schedule, now)
        try:
            return decision, [draft_of(schedule, at) for at in decision.fires]
        except InvalidInput as error:
            return failed(decision, str(error)), []
    except Exception as error:  # one schedule must not stop the others
        logger.exception("schedule %s cannot be evaluated and is disabled", schedule.name)
        return disabled(schedule, now, f"it cannot be evaluated: {error!r}"), []


def _log(schedule: Schedule) -> None:
    """Report the last due tick of a schedule that was stored."""
    name, missed = schedule.name, schedule.last_missed
    match schedule.last_status:
        case Action.FAIL:
            logger.error("schedule %s fired nothing: its job could not be stored: %s", name, schedule.last_error)
        case Action.SKIP:
            logger.info("schedule %s skipped an occurrence, because its last job is still active", name)
        case Action.MISS:
            logger.warning("schedule %s fired nothing; due occurrences that were too old: %d", name, missed)
        case Action.FIRE if missed:
            logger.warning("schedule %s fired; other due occurrences, which made no job: %d", name, missed)
        case _:
            logger.debug("schedule %s %s", name, schedule.last_status)
    if not schedule.enabled:
        logger.error("schedule %s is disabled: %s Edit or reset it to go on.", name, sentence(schedule.last_error))

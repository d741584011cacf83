"""Queues for operators: what waits in each, how they are set, and how to pause, resume and tune them."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from stoker.app import Stoker
from stoker.model.control import Presence, Queue, Tuning, live
from stoker.model.errors import NotFound
from stoker.model.job import Status
from stoker.model.query import Census
from stoker.model.throttle import Rate
from stoker.model.time import moment


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one instant: counts, how long its oldest due job waits, its slots, and why it hands out nothing."""

    name: str
    ready: int
    scheduled: int
    running: int
    retrying: int
    dead: int
    lag: timedelta
    workers: int
    slots: int
    limit: int | None = None
    rate: Rate | None = None
    paused: bool = False
    paused_until: datetime | None = None
    paused_by: str | None = None
    paused_why: str | None = None
    cooling_until: datetime | None = None
    keep_done: timedelta
    keep_dead: timedelta


class QueuesAdmin:
    """Questions about queues, and their settings."""

    def __init__(self, app: Stoker) -> None:
        self._app = app

    async def list(self) -> list[QueueView]:
        """Every queue that was used or tuned, by name."""
        engine = await self._app.engine()
        return views(await engine.census(), await engine.queues(), await engine.workers())

    async def get(self, name: str) -> QueueView:
        """One queue. Raises `NotFound` when it was neither used nor tuned."""
        found = next((view for view in await self.list() if view.name == name), None)
        if found is None:
            raise NotFound(f"queue {name!r} was neither used nor tuned, and no worker serves it")
        return found

    async def tune(self, name: str, tuning: Tuning) -> None:
        """Change settings, pause or resume; what the tuning does not name stays as it is."""
        engine = await self._app.engine()
        await engine.tune(name, tuning)


def views(census: Census, queues: list[Queue], presences: list[Presence]) -> list[QueueView]:
    """All queues with their counts, settings and workers."""
    settings = {queue.name: queue for queue in queues}
    present = live(presences, census.at)
    names = {*settings, *(count.queue for count in census.counts), *(name for one in present for name in one.queues)}
    return [_view(name, census, settings.get(name, Queue(name=name)), present) for name in sorted(names)]


def _view(name: str, census: Census, queue: Queue, present: list[Presence]) -> QueueView:
    counts = census.by_status(name)
    serving = [one.queues[name] for one in present if name in one.queues]
    paused = queue.pause if queue.pause is not None and queue.is_paused(census.at) else None
    cooling = queue.cooldown.until if queue.cooldown.shut(census.at) else None
    return QueueView(
        name=name,
        ready=census.ready(name),
        scheduled=census.scheduled.get(name, 0),
        running=counts[Status.RUNNING],
        retrying=counts[Status.RETRYING],
        dead=counts[Status.DEAD],
        lag=timedelta(microseconds=census.lag(name)),
        workers=len(serving),
        slots=sum(serving),
        limit=queue.workers,
        rate=queue.rate,
        paused=paused is not None,
        paused_until=None if paused is None or paused.until is None else moment(paused.until),
        paused_by=None if paused is None else paused.by,
        paused_why=None if paused is None else paused.reason,
        cooling_until=None if cooling is None else moment(cooling),
        keep_done=timedelta(microseconds=queue.keep_done),
        keep_dead=timedelta(microseconds=queue.keep_dead),
    )

"""Jobs for operators: find them, read them, ask why one does not run, and change one or many.

An action takes one id, several ids or a `Filter`. For a single id a refusal is an error that names the reason; for
several the tally counts what was changed and what was not. A filter is walked in pages: each page is one atomic step,
so no lock is held for long, and jobs that are enqueued after the walk began are never touched.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from stoker import records
from stoker.admin.asking import Asking
from stoker.admin.details import EventView, JobDetail, detail, event_view
from stoker.admin.history import RECENT, closed, flows
from stoker.engines.base import CORRUPT, Engine
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.control import Queue
from stoker.model.errors import CorruptRecord, KeyHeld, NotFound, WrongStatus
from stoker.model.events import Event, EventType, Window
from stoker.model.explain import Explanation, explain
from stoker.model.filter import Filter, InvalidFilter
from stoker.model.job import LARGEST_BATCH, Status
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Prioritize,
    Query,
    Requeue,
    RunNow,
    Selection,
    Tally,
)
from stoker.model.time import SECOND, Seconds, span

PAGE = 500
"""How many jobs of a filter one step of an action looks at."""

PREVIEW = 10_000
"""A preview counts up to here."""

TAIL = 10_000
"""Events that one look of a tail reads."""

LATEST_EVENT = 15 * SECOND
"""An event that is stored longer after it happened is not seen by a tail."""

Target: TypeAlias = str | Sequence[str] | Filter


class JobPage(msgspec.Struct, frozen=True):
    """Jobs in the requested order. `cursor` goes on behind them, None at the end; `scanned` records were read."""

    jobs: list[records.Job]
    cursor: str | None
    scanned: int


@dataclass
class Bulk:
    """What an action did, summed up over its pages. `stopped`: the caller ended it before the last page."""

    changed: int = 0
    cancel_requested: int = 0
    missing: int = 0
    blocked: int = 0
    refused: Counter[Status] = field(default_factory=Counter)
    created: list[str] = field(default_factory=list)
    stopped: bool = False

    def add(self, tally: Tally) -> None:
        """Count one more step."""
        self.changed += tally.changed
        self.cancel_requested += tally.cancel_requested
        self.missing += tally.missing
        self.blocked += tally.blocked
        self.refused.update(tally.refused)
        self.created += [ids.text(job) for job in tally.created]

    @property
    def seen(self) -> int:
        """How many jobs the action looked at."""
        return self.changed + self.cancel_requested + self.missing + self.blocked + self.refused.total()


Progress: TypeAlias = Callable[[Bulk], bool | None]
"""Called after each page; returning False stops the action there."""


class JobsAdmin:
    """Questions about jobs, and changes to them."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._app = asking.app

    # --- questions ----------------------------------------------------------------------------------------------

    async def get(self, job: str) -> JobDetail:
        """Everything about one job: record, arguments, events, group, worker. Raises `NotFound`."""
        return await detail(self._asking, job)

    async def find(self, filter_: Filter | str = "", *, limit: int = 25, cursor: str | None = None) -> JobPage:
        """One page of the jobs that a filter means, newest first unless it says `order:oldest`."""
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        engine = await self._app.engine()
        if filter_.id is not None:
            found = await engine.get([ids.parse(filter_.id)])
            return JobPage([self._asking.job(one) for one in found if one is not None], None, len(found))
        page = await engine.find(await self._query(engine, filter_, limit, cursor))
        after = None if page.cursor is None else ids.text(page.cursor)
        return JobPage([self._asking.job(one) for one in page.jobs], after, page.scanned)

    async def explain(self, job: str) -> Explanation:
        """Why a job does not run, and what to do about it. Raises `NotFound`."""
        found = await self._asking.stored(job)
        engine = await self._app.engine()
        queues = {queue.name: queue for queue in await engine.queues()}
        queue = queues.get(found.queue, Queue(name=found.queue))
        presences = await engine.workers()
        census = await engine.census()
        group = None
        if found.options.group is not None:
            [group] = await engine.groups([found.options.group])
        since, until = closed(census.at)
        points = await engine.points(since, until, [EventType.COMPLETED.value], found.queue)
        flow = flows(points, since, RECENT).get(found.queue)
        unreadable = found.metadata.get(CORRUPT)
        seen = self._asking.redact.job(found)
        return explain(seen, queue, presences, census, unreadable=unreadable, group=group, flow=flow)

    async def preview(self, filter_: Filter | str) -> tuple[int, bool]:
        """How many jobs a filter means now: counted up to 10,000, and whether that is all of them."""
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        engine = await self._app.engine()
        query = await self._query(engine, filter_, PAGE, None)
        count = 0
        while count < PREVIEW:
            page = await engine.find(query)
            count += len(page.jobs)
            if page.cursor is None:
                return count, True
            query = msgspec.structs.replace(query, cursor=page.cursor)
        return count, False

    async def tail(self, filter_: Filter | str = "", *, every: Seconds = 1.0) -> AsyncGenerator[EventView, None]:
        """Events as they are stored, of the jobs whose queue and kind a filter names; ends when its caller stops.

        Processes store their events every two seconds, so that one comes a little after it happened; each comes once.
        """
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        if filter_ != Filter(**{name: getattr(filter_, name) for name in _OF_EVENTS}):
            raise InvalidFilter("filter", str(filter_), "an event knows only its queue and kind; use queue: and kind:")
        engine = await self._app.engine()
        query = await self._query(engine, filter_, 1, None)
        pause = span(every, "every") / SECOND
        seen: dict[Event, None] = {}
        begin = since = await engine.now()
        while True:
            until = await engine.now()
            found = await engine.events(Window(since, until + 1, limit=TAIL))
            fresh = [one for one in found if one not in seen]
            seen |= dict.fromkeys(found)
            for one in fresh:
                if _wanted(one, query):
                    yield event_view(one)
            # An event is stored up to some seconds after it happened; what was seen in that time is not told again.
            full = len(found) == TAIL
            since = found[-1].at if full else max(begin, until - LATEST_EVENT)
            seen = {one: None for one in seen if one.at >= since}
            await asyncio.sleep(0 if full else pause)

    # --- actions ------------------------------------------------------------------------------------------------

    async def requeue(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Put jobs back, due now, under their own ids: attempts go on counting, with a fresh budget."""
        return await self._act("requeue", target, lambda _: Requeue(), progress)

    async def retry(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Enqueue copies of dead jobs under new ids; the originals stay as `retried`."""
        mint = self._app.mint
        return await self._act("retry", target, lambda n: Clone(tuple(mint() for _ in range(n))), progress)

    async def cancel(
        self, target: Target, *, reason: str | None = None, force: bool = False, progress: Progress | None = None
    ) -> Bulk:
        """Cancel waiting jobs and ask running ones to stop; `force` takes a running job's claim away."""
        cancel = Cancel(force=force) if reason is None else Cancel(reason, force)
        return await self._act("cancel", target, lambda _: cancel, progress)

    async def discard(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Take dead jobs off the dead list without running them again."""
        return await self._act("discard", target, lambda _: Discard(), progress)

    async def delete(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Remove records and their events. A running job that is named is asked to stop; a filter leaves it alone."""
        return await self._act("delete", target, lambda _: Delete(), progress)

    async def run_now(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Make scheduled jobs due now."""
        return await self._act("run now", target, lambda _: RunNow(), progress)

    async def move(self, target: Target, queue: str, progress: Progress | None = None) -> Bulk:
        """Put waiting jobs into another queue."""
        return await self._act("move", target, lambda _: Move(queue), progress)

    async def prioritize(self, target: Target, priority: int, progress: Progress | None = None) -> Bulk:
        """Give waiting jobs another priority; lower runs first."""
        return await self._act("prioritize", target, lambda _: Prioritize(priority), progress)

    # --- how ----------------------------------------------------------------------------------------------------

    async def _act(
        self, action: str, target: Target, change: Callable[[int], Change], progress: Progress | None
    ) -> Bulk:
        engine = await self._app.engine()
        if isinstance(target, str):
            return await self._one(engine, action, await self._asking.stored(target), change(1))
        if isinstance(target, Filter):
            return await self._walk(engine, target, change, progress)
        bulk = Bulk()
        wanted = [ids.parse(job) for job in target]
        for start in range(0, len(wanted), LARGEST_BATCH):
            portion = tuple(wanted[start : start + LARGEST_BATCH])
            before = [job for job in await engine.get(portion) if job is not None]
            bulk.add(await self._alter(engine, Selection(portion), change(len(portion)), before))
            if _stops(progress, bulk):
                break
        return bulk

    async def _one(self, engine: Engine, action: str, before: stored.Job, change: Change) -> Bulk:
        """Change one job, or raise what hinders it."""
        tally = await self._alter(engine, Selection((before.id,)), change, [before])
        job = ids.text(before.id)
        if tally.missing:
            raise NotFound.job(job)
        for status in tally.refused:
            if (why := before.metadata.get(CORRUPT)) is not None:
                raise CorruptRecord(f"job {job} cannot be read: {why}. It is unchanged; delete removes it.")
            raise WrongStatus(job, status, action)
        if tally.blocked:
            raise KeyHeld(job, action, None if before.unique is None else before.unique.key)
        bulk = Bulk()
        bulk.add(tally)
        return bulk

    async def _walk(
        self, engine: Engine, filter_: Filter, change: Callable[[int], Change], progress: Progress | None
    ) -> Bulk:
        """Page by page over the jobs that were enqueued before now, each page one step."""
        if filter_.id is not None:
            return await self._act("change", [filter_.id], change, progress)
        bulk = Bulk()
        query = await self._query(engine, filter_, PAGE, None)
        bound = await engine.now() + 1  # `until` is exclusive, and what was enqueued at this instant counts
        query = msgspec.structs.replace(query, until=bound if query.until is None else min(query.until, bound))
        while True:
            page = await engine.find(query)
            chosen = [job for job in page.jobs if not isinstance(change(0), Delete) or job.status is not Status.RUNNING]
            if chosen:
                # A job whose status changed since the page was read is left alone.
                selection = Selection(tuple(job.id for job in chosen), frozenset(job.status for job in chosen))
                bulk.add(await self._alter(engine, selection, change(len(chosen)), chosen))
            if page.cursor is None:
                return bulk
            if _stops(progress, bulk):
                return bulk
            query = msgspec.structs.replace(query, cursor=page.cursor)

    async def _alter(self, engine: Engine, selection: Selection, change: Change, before: Sequence[stored.Job]) -> Tally:
        tally = await engine.alter(selection, change)
        if isinstance(change, Cancel):
            former = {job.id: job for job in before}
            for job in tally.changed_ids:
                if job in former:
                    self._app.emit_canceled(former[job], change.reason)
        return tally

    async def _query(self, engine: Engine, filter_: Filter, limit: int, cursor: str | None) -> Query:
        census = await engine.census()
        queues = sorted({count.queue for count in census.counts})
        after = None if cursor is None else ids.parse(cursor)
        return filter_.query(census.at, queues=queues, kinds=census.kinds(), limit=limit, cursor=after)


_OF_EVENTS = ("queues", "but_queues", "kinds", "but_kinds")


def _wanted(event: Event, query: Query) -> bool:
    """Does a filter mean an event? Its queue and kind are known, the rest of its job is not."""
    return (not query.queues or event.queue in query.queues) and (not query.kinds or event.kind in query.kinds)


def _stops(progress: Progress | None, bulk: Bulk) -> bool:
    if progress is not None and progress(bulk) is False:
        bulk.stopped = True
    return bulk.stopped

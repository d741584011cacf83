"""Queues for operators: what waits in each, how fast it goes, how they are set, and how to pause and tune them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from stoker.admin.bulk import Bulk, Walk, bound_at, query_to_change
from stoker.admin.context import UNCHANGED, Noun
from stoker.admin.history import RECENT, closed
from stoker.admin.preview import Lasts
from stoker.admin.scale import ScaleView, chunk_sizes, read_scale, read_store
from stoker.model.control import Presence, Queue, Tuning, live
from stoker.model.errors import InvalidArgument, InvalidInput, NotFound
from stoker.model.events import Point
from stoker.model.explain import notes
from stoker.model.filter import Filter
from stoker.model.job import FINISHED, Status, check_name
from stoker.model.operator_metrics import Flow
from stoker.model.query import Census, Delete
from stoker.model.scale import LONGEST_TARGET, TARGET_WAIT
from stoker.model.stats import COUNTED, COUNTS, TIMES, counted_minutes
from stoker.model.throttle import Rate
from stoker.model.time import MINUTE, SECOND, Instant, Seconds, Span, instant, moment, span
from stoker.settings import MOST_SLOTS
from stoker.views import Curve, curve_of

MEASURED = (*sorted(COUNTS), *TIMES, COUNTED)
"""The metrics behind the figures of a queue."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs took, in seconds: the median by count, and the worst p95 and p99 of any minute."""

    p50: float
    p95: float
    p99: float


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one instant: counts, how long its oldest due job waits, its slots, and why it hands out nothing.

    `flow` is what went in and out in the closed minutes that were asked for and counted; at that rate its due jobs are
    done after `clear_in` (None: nothing ran, or it is paused). `processing` and `total` are times of completed jobs.
    `curve` has the waits before retries and after throttles (None: those of jobs and of the app).
    """

    name: str
    ready: int
    scheduled: int
    waiting: int
    running: int
    retrying: int
    dead: int
    done: int
    lag: timedelta
    oldest_running: timedelta
    workers: int
    slots: int
    limit: int | None = None
    rate: Rate | None = None
    curve: Curve | None = None
    paused: bool = False
    paused_until: datetime | None = None
    paused_by: str | None = None
    paused_why: str | None = None
    cooling_until: datetime | None = None
    keep_done: timedelta
    keep_dead: timedelta
    flow: Flow
    clear_in: timedelta | None = None
    processing: Times | None = None
    total: Times | None = None


class QueuesAdmin(Noun):
    """Questions about queues, and their settings."""

    async def list(self) -> list[QueueView]:
        """Every queue that was used, tuned or served, by name, with what went through in the last 15 closed minutes."""
        engine = await self._context.engine()
        census = await engine.operator.census()
        since, until = closed(census.at)
        points = await engine.timeline.points(since, until, MEASURED, width=RECENT * MINUTE)
        return views(census, await engine.control.queues(), await engine.control.workers(), points)

    async def get(self, name: str) -> QueueView:
        """One queue, with zeros where only a schedule or a task of the app names it. Raises `NotFound`."""
        found = next((view for view in await self.list() if view.name == name), None)
        if found is not None:
            return found
        engine = await self._context.engine()
        census = await engine.operator.census()
        await self._context.known_queue(name, census, "")
        return _view(census, Queue(name=name, keep_done=engine.keep_done), [], _Sums(), 0)

    async def scale(
        self, *names: str, slots: int | None = None, target_wait: Seconds = TARGET_WAIT / SECOND
    ) -> ScaleView:
        """How many worker processes these queues need, or all of them, and when the next job is due.

        `slots` is how many jobs of a queue one process runs at once; None: as many as live workers have, else ten. All
        queues together also need a process while a message of a stream waits. A queue that is not known needs none.
        """
        wait = span(target_wait, "target_wait", InvalidArgument)
        if wait > LONGEST_TARGET:
            raise InvalidArgument("target_wait", target_wait, "must be at most an hour")
        if slots is not None and not 1 <= slots <= MOST_SLOTS:
            raise InvalidArgument("slots", slots, f"must be between 1 and {MOST_SLOTS:,}")
        engine = await self._context.engine()
        store = await read_store(engine, messages=not names)
        hints: list[str] = []
        for name in names:
            try:
                await self._context.known_queue(name, store.census, "")
            except NotFound as error:
                hints.append(str(error))
        found = await read_scale(
            engine, store, names or None, wait=wait, slots=slots, chunks=chunk_sizes(self._context.app)
        )
        return found.view(wait, " ".join(hints))

    async def notes(self, names: Collection[str]) -> Sequence[str]:
        """What keeps the jobs of these queues from running once an action has made them ready, in sentences."""
        engine = await self._context.engine()
        return [text for _, text in notes(await engine.control.queues(), names, await engine.operator.census())]

    async def lasts(self, more: Mapping[str, int]) -> Lasts | None:
        """How long the slowest of these queues takes for what waits in it and for so many more jobs.

        None where that is not known: none of them completed a job in the last 15 closed minutes, or all are paused.
        """
        return slowest(await self.list(), more)

    async def pause(
        self,
        name: str,
        *,
        for_: Seconds | None = None,
        until: datetime | None = None,
        reason: str | None = None,
        create: bool = False,
    ) -> None:
        """Stop every worker from claiming jobs of a queue, for a time or until it is resumed; running jobs go on.

        A queue that is not known is refused, unless `create` makes its settings ahead of its first job.
        """
        if until is not None and for_ is not None:
            raise InvalidInput("until", until, "cannot go with for_; give one of them")
        lasts = None if for_ is None else span(for_, "for_")
        if until is not None:
            lasts = instant(until, "until") - await (await self._context.engine()).now()
            if lasts <= 0:
                raise InvalidInput("until", until.isoformat(), "must be in the future")
        await self.tune(name, Tuning(paused=True, pause_for=lasts, reason=reason, by=self._context.by), create=create)

    async def resume(self, name: str) -> None:
        """Let workers claim jobs of a queue again."""
        await self._end(name, Tuning(paused=False))

    async def reopen(self, name: str) -> None:
        """End the cool-down of a queue: its workers claim again at once."""
        await self._end(name, Tuning(reopen=True))

    async def _end(self, name: str, tuning: Tuning) -> None:
        await self._context.known_queue(name, more=UNCHANGED)
        await self.tune(name, tuning, create=True)

    async def tune(self, name: str, tuning: Tuning, *, create: bool = False) -> None:
        """Change settings, pause or resume; what the tuning does not name stays as it is.

        A queue that is not known is refused, unless `create` makes its settings ahead of its first job.
        """
        if not create:
            await self._context.known_queue(name)
        engine = await self._context.engine()
        await engine.control.tune(name, tuning, by=self._context.signed(tuning.reason))

    async def purge(
        self, name: str | None, *, status: str = "done", older_than: Seconds, counted_at: datetime | None = None
    ) -> Bulk:
        """Remove the jobs of one status, of a queue or of all, that ended strictly before so long ago.

        `counted_at` is the moment from which that is counted: that of a preview, now without one.
        """
        bound = await bound_at(await self._context.engine(), counted_at)
        filter_ = purged(name, status, span(older_than, "older_than"), bound)
        await query_to_change(self._context, filter_, 1)
        walk = Walk(self._context, filter_, lambda _: Delete(), bound, None)
        while not walk.ended:
            await walk.step()
        return walk.bulk


def purged(name: str | None, status: str, older_than: Span, now: Instant) -> Filter:
    """The jobs that a purge removes."""
    if status not in set(FINISHED):
        raise InvalidInput("status", status, f"must be one of {', '.join(sorted(FINISHED))}")
    if name is not None:
        check_name("queue", name)
    ended = f"{moment(0).isoformat()}..{moment(max(now - older_than, 1)).isoformat()}"
    return Filter(views=(status,), queues=() if name is None else (name,), finished=ended)


def slowest(listed: Iterable[QueueView], more: Mapping[str, int]) -> Lasts | None:
    """Which of the listed queues takes longest for what waits in it and for so many more jobs; None: not known."""
    found = [
        Lasts(one.name, timedelta(microseconds=time))
        for one in listed
        if one.name in more and not one.paused and (time := one.flow.clear_in(one.ready + more[one.name]))
    ]
    return max(found, key=lambda one: one.time, default=None)


def views(
    census: Census, queues: Sequence[Queue], presences: Sequence[Presence], points: Sequence[Point]
) -> list[QueueView]:
    """All queues with their counts, settings and workers, and what the points of some minutes say about them."""
    minutes = counted_minutes(points)
    settings = {queue.name: queue for queue in queues}
    present = live(presences, census.at)
    served: dict[str, list[int]] = {}
    for one in present:
        for name, slots in one.queues.items():
            served.setdefault(name, []).append(slots)
    moved = _sums(points)
    names = {*settings, *served, *(count.queue for count in census.counts)}
    return [
        _view(census, settings.get(name, Queue(name=name)), served.get(name, []), moved.get(name, _Sums()), minutes)
        for name in sorted(names)
    ]


def _view(census: Census, queue: Queue, serving: list[int], sums: _Sums, minutes: int) -> QueueView:
    name = queue.name
    counts = census.by_status(name)
    paused = queue.pause if queue.pause is not None and queue.is_paused(census.at) else None
    cooling = queue.cooldown.until if queue.cooldown.shut(census.at) else None
    ready = census.ready(name)
    flow = Flow(minutes=minutes, **sums.counts)
    clear = None if paused is not None else flow.clear_in(ready)
    return QueueView(
        name=name,
        ready=ready,
        scheduled=census.scheduled(name),
        waiting=census.suspended(name),
        running=counts[Status.RUNNING],
        retrying=counts[Status.RETRYING],
        dead=counts[Status.DEAD],
        done=counts[Status.DONE],
        lag=_duration(census.lag(name)),
        oldest_running=_duration(census.at - census.oldest_running.get(name, census.at)),
        workers=len(serving),
        slots=sum(serving),
        limit=queue.workers,
        rate=queue.rate,
        curve=curve_of(queue),
        paused=paused is not None,
        paused_until=None if paused is None or paused.until is None else moment(paused.until),
        paused_by=None if paused is None else paused.by,
        paused_why=None if paused is None else paused.reason,
        cooling_until=None if cooling is None else moment(cooling),
        keep_done=_duration(queue.keep_done),
        keep_dead=_duration(queue.keep_dead),
        flow=flow,
        clear_in=None if clear is None else _duration(clear),
        processing=sums.of("processing"),
        total=sums.of("total"),
    )


class _Sums:
    """What the points of a queue add up to. One pass over all points fills it: of an hour there are many."""

    __slots__ = ("counts", "times")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.times: dict[str, list[float]] = {}

    def of(self, metric: str) -> Times | None:
        """Times: the median weighted by count, of the others the worst."""
        found = self.times.get(metric)
        if found is None:
            return None
        votes, weighted, p95, p99 = found
        return Times(p50=weighted / votes / 1e6, p95=p95 / 1e6, p99=p99 / 1e6)


def _sums(points: Sequence[Point]) -> dict[str, _Sums]:
    found: dict[str, _Sums] = {}
    times = frozenset(TIMES)
    for one in points:
        sums = found.get(one.queue)
        if sums is None:
            sums = found[one.queue] = _Sums()
        metric, count = one.metric, one.count
        if metric not in times:
            sums.counts[metric] = sums.counts.get(metric, 0) + count
        elif count:
            before = sums.times.get(metric)
            if before is None:
                sums.times[metric] = [count, one.p50 * count, one.p95, one.p99]
            else:
                before[0] += count
                before[1] += one.p50 * count
                before[2] = max(before[2], one.p95)
                before[3] = max(before[3], one.p99)
    return found


def _duration(value: Span) -> timedelta:
    return timedelta(microseconds=value)


def minutes_of(window: Span) -> int:
    """How many whole minutes a window has; at least one."""
    return max(window // MINUTE, 1)

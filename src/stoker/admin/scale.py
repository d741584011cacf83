"""Reads what the need for worker processes is made from, once, for every skin: REST, command, metrics, supervisor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from stoker.admin.history import closed
from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.model.control import Presence, Queue, live
from stoker.model.findings import Delivery
from stoker.model.job import Status
from stoker.model.kind_stats import PROCESSING
from stoker.model.operator_metrics import deliveries
from stoker.model.query import LARGEST_PAGE, LAST_ID, WAITING, Census, Query, cursor_at
from stoker.model.scale import TARGET_WAIT, Measured, Need, Work, expected_run, need, processes, run_times
from stoker.model.schedule import Schedule
from stoker.model.steps import NEVER
from stoker.model.subqueues import SubqueueView
from stoker.model.time import HOUR, MINUTE, Instant, Span, moment
from stoker.settings import WorkerSettings

KEYS, MOST_KEYS = 200, 10_000
"""Subqueues of a queue that are counted at once, and in all; the jobs of further ones count as if nothing held them."""

RETRIES, MOST_RETRIES = 100, LARGEST_PAGE
"""Retrying jobs that are read at once to count those that are due, and how many are counted at most."""

RECENT, FURTHER = 60, 24 * 60
"""Closed minutes of which run times are read; more of them where a kind that waits did not run in the first ones."""


class QueueScale(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue needs: so many processes, each of which runs `slots` of its jobs at once.

    `claimable` are due jobs that nothing holds, `held` those that `held_by` holds: a pause, a cooldown, the number of
    workers, a rate, or a limit. `run_time` is how long their runs take on average, as far as it was measured.
    """

    name: str
    processes: int
    slots_needed: int
    slots: int
    claimable: int
    held: int
    held_by: tuple[str, ...]
    running: int
    run_time: timedelta


class ScaleView(msgspec.Struct, frozen=True, kw_only=True):
    """How many worker processes some queues need, so that due jobs start within the target wait.

    `next_due` is when the next job or schedule becomes due that is not yet, in `next_due_in` seconds; null: not known.
    `hint` is about queues that are not known.
    """

    processes: int
    claimable: int
    held: int
    running: int
    target_wait: timedelta
    next_due: datetime | None
    next_due_in: timedelta | None
    queues: list[QueueScale]
    hint: str = ""


class Scale(NamedTuple):
    """The needs of some queues at one instant. `awaited`: beside jobs, a schedule or a message waits for a process.

    `hosts` is on how many hosts live workers serve these queues.
    """

    at: Instant
    needs: Sequence[Need]
    awaited: bool = False
    next_due: Instant | None = None
    hosts: int = 0

    def view(self, wait: Span, hint: str = "") -> ScaleView:
        """What people and scalers read."""
        due = self.next_due
        return ScaleView(
            processes=processes(self.needs, awaited=self.awaited),
            claimable=sum(one.claimable for one in self.needs),
            held=sum(one.held for one in self.needs),
            running=sum(one.running for one in self.needs),
            target_wait=timedelta(microseconds=wait),
            next_due=None if due is None else moment(due),
            next_due_in=None if due is None else timedelta(microseconds=due - self.at),
            queues=[_view(one) for one in self.needs],
            hint=hint,
        )


def _view(one: Need) -> QueueScale:
    return QueueScale(
        name=one.queue,
        processes=one.processes,
        slots_needed=one.slots_needed,
        slots=one.slots,
        claimable=one.claimable,
        held=one.held,
        held_by=one.held_by,
        running=one.running,
        run_time=timedelta(microseconds=one.run_time),
    )


class RunTimes:
    """The mean run times of kinds, read again when a minute has closed."""

    def __init__(self) -> None:
        self._known: dict[str, Measured] = {}
        self._asked: set[str] = set()
        self._good_until: Instant = 0

    async def read(self, engine: Engine, now: Instant, kinds: set[str]) -> Mapping[str, Measured]:
        """The mean run times of these kinds, as far as they ran lately."""
        if kinds and (now >= self._good_until or not kinds <= self._asked):
            for minutes in (RECENT, FURTHER):
                since, until = closed(now, minutes)
                points = await engine.timeline.points(since, until, [PROCESSING], frozenset(kinds), width=HOUR)
                self._known = run_times(points)
                if kinds <= self._known.keys():
                    break
            self._asked, self._good_until = kinds, (now // MINUTE + 1) * MINUTE
        return self._known


def chunk_sizes(app: Stoker) -> dict[str, int]:
    """How many jobs one slot of a queue runs, for the queues whose jobs run in chunks, as far as the app knows them."""
    tasks = [task for task in app.tasks.values() if task.chunk is not None]
    return {app.resolve(task.name, task.options)[0]: task.chunk.size for task in tasks if task.chunk is not None}


class Store(NamedTuple):
    """What every skin has read of the store already; without `deliveries` messages are not looked at."""

    census: Census
    queues: Sequence[Queue]
    presences: Sequence[Presence]
    schedules: Sequence[Schedule]
    deliveries: Sequence[Delivery] = ()


async def read_store(engine: Engine, *, messages: bool) -> Store:
    """Read it for one who has not; `messages`: with those of streams."""
    census = await engine.operator.census()
    queues, presences, schedules = (
        await engine.control.queues(),
        await engine.control.workers(),
        await engine.schedules.read(),
    )
    streams = await engine.outbox.streams() if messages and engine.outbox is not None else []
    return Store(census, queues, presences, schedules, deliveries(streams, census.at))


async def read_scale(
    engine: Engine,
    store: Store,
    names: Collection[str] | None = None,
    *,
    wait: Span = TARGET_WAIT,
    slots: Mapping[str, int] | int | None = None,
    chunks: Mapping[str, int] = MappingProxyType({}),
    known: RunTimes | None = None,
) -> Scale:
    """What these queues need, or every queue.

    `slots` is how many slots of a queue one process has; None: as many as live workers have on average. `chunks` is how
    many jobs of a queue run in one slot, where that is more than one (`chunk_sizes`).
    """
    census, at = store.census, store.census.at
    settings = {one.name: one for one in store.queues}
    present = live(store.presences, at)
    waiting: dict[str, Counter[str]] = {}
    for one in census.counts:
        if one.status in (Status.PENDING, Status.RUNNING, Status.RETRYING):
            waiting.setdefault(one.queue, Counter())[one.kind] += one.n
    everything = {*settings, *waiting, *(name for one in present for name in one.queues)}
    chosen = sorted(everything if names is None else set(names))
    kinds = {kind for name in chosen for kind in waiting.get(name, ())}
    times = await (known or RunTimes()).read(engine, at, kinds)
    retries = await _due_retries(engine, census, chosen)
    needs: list[Need] = []
    for name in chosen:
        due = census.ready(name) + retries[name]
        expected = expected_run(waiting.get(name, {}), times)
        work = Work(
            queue=settings.get(name) or Queue(name=name),
            due=due,
            running=census.by_status(name)[Status.RUNNING],
            run_time=None if expected is None else expected.mean,
            measured=0 if expected is None else expected.runs,
            oldest=at - census.oldest_running.get(name, at),
            subqueues=await _subqueues(engine, name) if due else (),
            slots=_slots(name, slots, present) * chunks.get(name, 1),
        )
        needs.append(need(work, at, wait))
    ticks = [one for one in store.schedules if names is None or one.template.queue in chosen]
    awaited = any(one.is_due(at) for one in ticks) or any(one.waits for one in store.deliveries)
    hosts = len({one.host for one in present if set(chosen) & one.queues.keys()})
    return Scale(at, needs, awaited, await _next_due(engine, census, chosen, ticks), hosts)


def _slots(name: str, given: Mapping[str, int] | int | None, present: Sequence[Presence]) -> int:
    if given is not None:
        return given if isinstance(given, int) else given[name]
    serving = [one.queues[name] for one in present if name in one.queues]
    return max(sum(serving) // len(serving), 1) if serving else WorkerSettings().slots


async def _due_retries(engine: Engine, census: Census, names: Sequence[str]) -> Counter[str]:
    """How many retrying jobs of each queue are due; no call where none retries."""
    found: Counter[str] = Counter()
    retrying = frozenset(one.queue for one in census.counts if one.status is Status.RETRYING and one.n) & set(names)
    if not retrying:
        return found
    query = Query(statuses=frozenset({Status.RETRYING}), queues=retrying, order="due", limit=RETRIES)
    while True:
        page = await engine.operator.find(query)
        due = [job.queue for job in page.jobs if job.scheduled_at <= census.at]
        found.update(due)
        if page.cursor is None or len(due) < len(page.jobs) or found.total() >= MOST_RETRIES:
            return found
        query = msgspec.structs.replace(query, cursor=page.cursor)


async def _subqueues(engine: Engine, name: str) -> list[SubqueueView]:
    found: list[SubqueueView] = []
    while len(found) < MOST_KEYS:
        after = found[-1].name if found else None
        page = await engine.control.subqueues(name, after=after, limit=KEYS, counted=True)
        found += page
        if len(page) < KEYS:
            break
    return found


async def _next_due(
    engine: Engine, census: Census, names: Sequence[str], schedules: Sequence[Schedule]
) -> Instant | None:
    """When the first job or schedule becomes due that is not due yet, as far as that is known."""
    at = census.at
    found = [one.next_fire for one in schedules if one.enabled and one.next_fire is not None and one.next_fire > at]
    ahead = await engine.jobs.ahead(names)
    found += [at + one for one in (ahead.wait, ahead.later) if one]
    later = {*census.later, *(one.queue for one in census.counts if one.status is Status.RETRYING)} & ahead.open
    if later and not ahead.wait:  # what is due in a queue hides the jobs behind it
        behind = cursor_at(at, LAST_ID[:16])
        query = Query(statuses=WAITING, queues=frozenset(later), order="due", limit=1, cursor=behind)
        found += [job.scheduled_at for job in (await engine.operator.find(query)).jobs if job.scheduled_at != NEVER]
    return min(found, default=None)

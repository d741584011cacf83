"""Reads: pages of jobs, the census, and how long a worker may sleep.

Every one of them goes through all jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

from stoker.engines.base import Transaction
from stoker.engines.memory.access import Facet
from stoker.engines.memory.store import Store
from stoker.engines.memory.streams import StreamUnit
from stoker.model.ids import JobId
from stoker.model.job import FINISHED, Job, Status
from stoker.model.next_due import Gate, NextDue, next_due_of
from stoker.model.query import LONGEST_WALK, Census, Count, Page, Place, Query, Totals, cursor_at, matches, place_of
from stoker.model.record import WAITING, Record, Total
from stoker.model.time import Instant


class Finder(Facet):
    """Reads of jobs."""

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        with self._read as store:
            found = [store.jobs.get(job) for job in ids]
            return [None if record is None else record.as_job() for record in found]

    async def find(self, query: Query, *, tx: Transaction | None = None) -> Page:
        if tx is not None:
            return self._access.look(tx, lambda store, unit: _page(_seen(store, unit), query, unit.now))
        with self._read as store:
            return _page(store.jobs, query, store.now())

    async def census(self) -> Census:
        with self._read as store:
            return _census(store, store.now())

    async def ahead(self, queues: Sequence[str]) -> NextDue:
        with self._read as store:
            now = store.now()
            return next_due_of([_gate(store, name, now) for name in queues], now)


def _seen(store: Store, unit: StreamUnit) -> dict[JobId, Record]:
    """What a transaction sees: the stored jobs, as far as it has not changed them."""
    found = dict(store.jobs)
    for before, after in unit.written():
        if after is not None:
            found[after.id] = after
        elif before is not None:
            del found[before.id]
    return found


def _page(records: Mapping[JobId, Record], query: Query, now: Instant) -> Page:
    return (_by_time if query.timed else _by_id)(records, query, now)


def _by_id(records: Mapping[JobId, Record], query: Query, now: Instant) -> Page:
    """One page; it ends when it is full, after `LONGEST_WALK` records, or with the last record."""
    jobs: list[Job] = []
    scanned = 0
    last: JobId | None = None
    for job in _walk(records, query):
        record = records[job]
        if scanned == LONGEST_WALK or len(jobs) == query.limit:
            return Page(jobs, last, scanned)
        scanned += 1
        last = job
        # A record has every field that `matches` looks at, and most records do not match.
        if matches(record, query, now):
            jobs.append(record.as_job())
    return Page(jobs, None, scanned)


def _by_time(records: Mapping[JobId, Record], query: Query, now: Instant) -> Page:
    """One page in the order of a time; the jobs in question are sorted."""
    latest = query.order == "finished"
    wanted = FINISHED if latest else WAITING
    placed = [(place_of(record, query), record) for record in records.values() if record.status in wanted]
    start = query.start(now)
    behind = sorted(
        (one for one in placed if (one[0] < start if latest else one[0] > start)), reverse=latest, key=_place
    )
    jobs: list[Job] = []
    for scanned, (place, record) in enumerate(behind):
        if query.is_over(place[0], now):
            return Page(jobs, None, scanned)
        if scanned == LONGEST_WALK or len(jobs) == query.limit:
            return Page(jobs, cursor_at(*place_of(behind[scanned - 1][1], query)), scanned)
        if matches(record, query, now):
            jobs.append(record.as_job())
    return Page(jobs, None, len(behind))


def _place(one: tuple[Place, Record]) -> Place:
    return one[0]


def _walk(records: Mapping[JobId, Record], query: Query) -> list[JobId]:
    """All ids strictly behind the cursor, in the order asked."""
    cursor, oldest = query.cursor, query.order == "oldest"
    behind = (job for job in records if cursor is None or (job > cursor if oldest else job < cursor))
    return sorted(behind, reverse=not oldest)


def _census(store: Store, now: Instant) -> Census:
    """Every count at this instant."""
    counts: Counter[tuple[str, str, Status]] = Counter()
    later: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    ready: dict[str, Instant] = {}
    running: dict[str, Instant] = {}
    for record in store.jobs.values():
        queue = record.queue
        counts[queue, record.kind, record.status] += 1
        if record.status is Status.RUNNING:
            assert record.started_at is not None
            running[queue] = min(running.get(queue, record.started_at), record.started_at)
        elif record.status is Status.PENDING and record.scheduled_at > now:
            later[queue] += 1
            waiting[queue] += record.suspended
        elif record.status is Status.PENDING:
            ready[queue] = min(ready.get(queue, record.scheduled_at), record.scheduled_at)
    order = list(Status)
    counted = sorted(counts.items(), key=lambda one: (one[0][:2], order.index(one[0][2])))
    return Census(
        at=now,
        counts=tuple(Count(*key, n) for key, n in counted),
        later=dict(sorted(later.items())),
        waiting={queue: n for queue, n in sorted(waiting.items()) if n},
        oldest_ready=dict(sorted(ready.items())),
        oldest_running=running,
        totals={kind: _totals(store, kind) for kind in sorted({kind for kind, _ in store.totals})},
    )


def _totals(store: Store, kind: str) -> Totals:
    counted = {total: store.totals[kind, total] for total in get_args(Total)}
    return Totals(last_error=store.last_errors.get(kind), **counted)


def _gate(store: Store, name: str, now: Instant) -> Gate:
    """What keeps a queue's next job from starting."""
    waiting, queue = store.waiting.get(name), store.queue(name)
    dues = [None if waiting is None else waiting.first_due(now)]
    if name in store.subqueues:
        dues += store.subqueues[name].dues()
    due = min((when for when in dues if when is not None), default=None)
    return Gate(name, queue.pause, queue.cooldown.until, due, queue.bucket)

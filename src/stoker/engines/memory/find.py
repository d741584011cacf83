"""Reads: pages of jobs, the census, and how long a worker may sleep.

`find` walks along the sorted ids from the cursor; `census` reads counters.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import cast, get_args

from stoker.engines.memory.store import Store
from stoker.model.ahead import Ahead, Gate, look_ahead
from stoker.model.ids import JobId
from stoker.model.job import Job, Status
from stoker.model.query import LONGEST_WALK, Census, Count, Page, Place, Query, Totals, cursor_at, matches, place_of
from stoker.model.record import WAITING, Record, Total
from stoker.model.time import Instant


def find(store: Store, query: Query, now: Instant) -> Page:
    """One page; it ends when it is full, after `LONGEST_WALK` records, or with the last record."""
    if query.timed:
        return _by_time(store, query, now)
    jobs: list[Job] = []
    scanned = 0
    last: JobId | None = None
    for job in _walk(store, query):
        entry = store.jobs.get(job)
        if entry is None:
            continue
        if scanned == LONGEST_WALK or len(jobs) == query.limit:
            return Page(jobs, last, scanned)
        scanned += 1
        last = job
        # A record has every field that `matches` looks at, and most records do not match.
        if matches(cast("Job", entry.record), query, now):
            jobs.append(entry.record.as_job())
    return Page(jobs, None, scanned)


def _by_time(store: Store, query: Query, now: Instant) -> Page:
    """One page in the order of a time; the jobs in question are sorted."""
    latest = query.order == "finished"
    entries = (
        store.finished.values()
        if latest
        else (entry for entry in store.jobs.values() if entry.record.status in WAITING)
    )
    placed = [(place_of(entry.record, query), entry.record) for entry in entries]
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
        if matches(cast("Job", record), query, now):
            jobs.append(record.as_job())
    return Page(jobs, None, len(behind))


def _place(one: tuple[Place, Record]) -> Place:
    return one[0]


def _walk(store: Store, query: Query) -> Iterator[JobId]:
    """All ids strictly behind the cursor, in the order asked."""
    ids, cursor = store.ordered(), query.cursor
    if query.order == "oldest":
        start = 0 if cursor is None else bisect.bisect_right(ids, cursor)
        return (ids[position] for position in range(start, len(ids)))
    end = len(ids) if cursor is None else bisect.bisect_left(ids, cursor)
    return (ids[position] for position in range(end - 1, -1, -1))


def census(store: Store, now: Instant) -> Census:
    """Every count at this instant. Only running jobs are read one by one; there are no more of them than slots."""
    counts = [
        Count(queue, kind, status, store.counts[queue, kind, status])
        for queue, kind in sorted({(queue, kind) for queue, kind, _ in store.counts})
        for status in Status
        if store.counts[queue, kind, status] > 0
    ]
    scheduled: dict[str, int] = {}
    ready: dict[str, Instant] = {}
    for name, waiting in sorted(store.waiting.items()):
        subqueues = store.subqueues.get(name)
        lines = [waiting] if subqueues is None else [waiting, *subqueues.lines.values()]
        oldest = [found for line in lines if (found := line.oldest(now)) is not None]
        if oldest:
            ready[name] = min(oldest)
        if later := sum(line.scheduled for line in lines):
            scheduled[name] = later
    return Census(
        at=now,
        counts=tuple(counts),
        scheduled=scheduled,
        oldest_ready=ready,
        oldest_running=_oldest_running(store),
        totals={kind: _totals(store, kind) for kind in sorted({kind for kind, _ in store.totals})},
    )


def _totals(store: Store, kind: str) -> Totals:
    counted = {total: store.totals[kind, total] for total in get_args(Total)}
    return Totals(last_error=store.last_errors.get(kind), **counted)


def _oldest_running(store: Store) -> dict[str, Instant]:
    found: dict[str, Instant] = {}
    for entries in store.held.values():
        for entry in entries.values():
            record = entry.record
            assert record.started_at is not None
            found[record.queue] = min(found.get(record.queue, record.started_at), record.started_at)
    return found


def ahead(store: Store, queues: Sequence[str], now: Instant) -> Ahead:
    """How long a worker of these queues may sleep."""
    gates: list[Gate] = []
    for name in queues:
        waiting, queue = store.waiting.get(name), store.queue(name)
        dues = [None if waiting is None else waiting.first_due(now)]
        if name in store.subqueues:
            dues += store.subqueues[name].dues()
        due = min((when for when in dues if when is not None), default=None)
        gates.append(Gate(name, queue.pause, queue.cooldown.until, due, queue.bucket))
    return look_ahead(gates, now)

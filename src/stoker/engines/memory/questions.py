"""What people ask: pages of jobs, and all counts at one instant.

A page is a walk along the sorted ids from the cursor; the census is read from counters.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import cast

from stoker.engines.memory.record import as_job
from stoker.engines.memory.store import Store
from stoker.model.ids import JobId
from stoker.model.job import Job
from stoker.model.query import COUNT_LIMIT, LONGEST_WALK, Census, Count, Page, Query, Totals, matches
from stoker.model.time import Instant


def find(store: Store, query: Query, now: Instant) -> Page:
    """One page; it ends when it is full, when the walk grew too long, or with the last record."""
    jobs: list[Job] = []
    scanned = 0
    last: JobId | None = None
    for job in _walk(store, query):
        record = store.jobs.get(job)
        if record is None:
            continue
        if scanned == LONGEST_WALK or len(jobs) == query.limit:
            return Page(jobs, last, scanned)
        scanned += 1
        last = job
        # A record has every field that `matches` looks at, and most records do not match.
        if matches(cast("Job", record), query, now):
            jobs.append(as_job(record))
    return Page(jobs, None, scanned)


def _walk(store: Store, query: Query) -> Iterator[JobId]:
    """All ids strictly behind the cursor, in the order asked."""
    ids, cursor = store.ordered(), query.cursor
    if query.order == "oldest":
        start = 0 if cursor is None else bisect.bisect_right(ids, cursor)
        return (ids[place] for place in range(start, len(ids)))
    end = len(ids) if cursor is None else bisect.bisect_left(ids, cursor)
    return (ids[place] for place in range(end - 1, -1, -1))


def census(store: Store, now: Instant) -> Census:
    """Every count at this instant. Only running jobs are looked at one by one; there are as many as slots."""
    counts = [
        Count(queue, kind, status, n)
        for (queue, kind), cell in sorted(store.cells.items())
        for status, n in cell.items()
        if n > 0
    ]
    scheduled: dict[str, int] = {}
    ready: dict[str, Instant] = {}
    for name, line in sorted(store.lines.items()):
        oldest = line.oldest(now)
        if oldest is not None:
            ready[name] = oldest
        if line.scheduled:
            scheduled[name] = min(line.scheduled, COUNT_LIMIT)
    return Census(
        at=now,
        counts=tuple(counts),
        scheduled=scheduled,
        oldest_ready=ready,
        oldest_running=_oldest_running(store),
        totals={
            kind: Totals(
                enqueued=sums.enqueued,
                completed=sums.completed,
                retried=sums.retried,
                failed=sums.failed,
                canceled=sums.canceled,
                last_error=sums.last_error,
            )
            for kind, sums in sorted(store.totals.items())
        },
    )


def _oldest_running(store: Store) -> dict[str, Instant]:
    found: dict[str, Instant] = {}
    for records in store.held.values():
        for record in records.values():
            assert record.started_at is not None
            found[record.queue] = min(found.get(record.queue, record.started_at), record.started_at)
    return found

"""The census: every count of the store at one instant."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from stoker.engines.call_times import timed
from stoker.engines.postgres.census_bounds import CensusBounds
from stoker.engines.postgres.columns import PENDING, STATUSES, listed
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import ENQUEUED
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import totals
from stoker.model.query import COUNT_FURTHER, COUNT_LIMIT, Census, Count, scheduled_count
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_COUNTS = sql("census_counts")
_TROUBLES = sql("census_troubles")
_LINES = sql("census_lines")
_SIDES = sql("census_sides")
_SUBQUEUES = sql("census_subqueues")
_RUNNING = sql("census_running")
_WAITING = sql("census_waiting")
_ENTRIES = sql("census_entries")


class CensusReader(Facet):
    """Counts jobs, from where its last census began to read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._bounds = CensusBounds()

    @timed(write=False)
    async def census(self) -> Census:
        return await self._store.read(lambda now: _counted(now, self._bounds))


def _counted(now: Instant, bounds: CensusBounds) -> Exchange[Census]:
    """Every count at this instant, from counters, leases and the oldest jobs of each queue."""
    look = bounds.begin(now)
    rows: list[Row] = yield _COUNTS, ()
    troubles: dict[str, str] = dict((yield _TROUBLES, ()))
    [(before, newest_lease, _)] = yield _ENTRIES, ()
    leases: list[Row] = yield _RUNNING, (look.first_lease,)
    pending: Counter[str] = Counter()
    for queue, _, *numbers in rows:
        if numbers[PENDING]:
            pending[queue] += numbers[PENDING]
    found: list[Row] = []
    if ranges := bounds.ranges(look, pending):
        queues, low, high, since, few = zip(*ranges, strict=True)
        found = yield _LINES, (list(queues), *map(listed, (low, high, since)), list(few), now, COUNT_LIMIT)
    [(after, *_)] = yield _ENTRIES, ()
    alive = sum(lease[3] for lease in leases) + sum(later + read for _, _, later, _, read in found)
    first_lease = min((lease[2] for lease in leases), default=newest_lease)
    bounds.finish(look, found, first_lease=first_lease, dead=after - before - alive)
    bounds.forget_others(row[0] for row in rows)
    lines = _lines(found)
    aside = {queue: tuple(more) for queue, *more in (yield _SUBQUEUES, (now,))}
    for queue, (_, _, n) in aside.items():
        pending[queue] -= n
    not_due = yield from _not_due(pending, lines, now)
    waiting: dict[str, int] = dict((yield _WAITING, (now,)))
    oldest = {queue: due for queue, _, due in lines if due is not None}
    for queue, (later, due, _) in aside.items():
        not_due[queue] = not_due.get(queue, 0) + later
        if due is not None:
            oldest[queue] = min(due, oldest.get(queue, due))
    return Census(
        at=now,
        counts=tuple(
            Count(queue, kind, status, n)
            for queue, kind, *numbers in rows
            for status, n in zip(STATUSES, numbers, strict=False)
            if n
        ),
        later={queue: n for queue, n in sorted(not_due.items()) if n},
        waiting=dict(sorted(waiting.items())),
        oldest_ready=dict(sorted(oldest.items())),
        oldest_running={lease[0]: lease[1] for lease in leases},
        totals=totals(_sums(rows), troubles),
    )


def _lines(found: list[Row]) -> list[tuple[str, int, Instant | None]]:
    """Per queue: how many pending jobs are not due, and since when the oldest due one is."""
    later: Counter[str] = Counter()
    oldest: dict[str, Instant] = {}
    for queue, _, n, due, _ in found:
        later[queue] += n
        if due is not None:
            oldest[queue] = min(due, oldest.get(queue, due))
    return [(queue, later[queue], oldest.get(queue)) for queue in sorted(later)]


def _not_due(pending: Counter[str], lines: list[Row], now: Instant) -> Exchange[dict[str, int]]:
    """How many pending jobs are not due, by queue: those of long lines from the smaller of both sides of now."""
    found: dict[str, int] = {queue: later for queue, later, _ in lines if later < COUNT_LIMIT}
    limit = COUNT_LIMIT
    while left := [queue for queue, _, _ in lines if queue not in found]:
        for queue, later, due in (yield _SIDES, (left, now, limit)):
            if (n := scheduled_count(pending[queue], later, due, limit)) is not None:
                found[queue] = n
        limit *= COUNT_FURTHER
    return found


def _sums(rows: list[Row]) -> dict[str, list[int]]:
    sums: dict[str, list[int]] = {}
    for _, kind, *numbers in rows:
        kinds = sums.setdefault(kind, [0] * (len(numbers) - ENQUEUED))
        for place, n in enumerate(numbers[ENQUEUED:]):
            kinds[place] += n or 0
    return sums

"""The census: every count of the store at one instant."""

from __future__ import annotations

from collections import Counter

from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import totals
from stoker.engines.sqlite.columns import CODES, PENDING, STATUSES
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.subqueues import BEFORE_ALL
from stoker.engines.sqlite.unit_of_work import ENQUEUED
from stoker.model.query import COUNT_FURTHER, COUNT_LIMIT, Census, Count, scheduled_count
from stoker.model.time import Instant

_NAMES = sql("queue_names")
_PRIORITY = sql("claim_priority")
_COUNTS = sql("census_counts")
_TROUBLES = sql("census_troubles")
_SCHEDULED = sql("census_scheduled")
_DUE = sql("census_due")
_OLDEST = sql("census_oldest")
_SUBQUEUES = sql("census_subqueues")
_WAITING = sql("census_waiting")
_OLDEST_RUNNING = sql("census_running")


def census(now: Instant) -> Exchange[Census]:
    """Return every count at this instant, from counters and the first jobs of each queue."""
    names: dict[int, str] = dict((yield _NAMES, ()))
    rows: list[Row] = yield _COUNTS, ()
    troubles: dict[str, str] = dict((yield _TROUBLES, ()))
    counts = sorted(
        (Count(names[qid], kind, STATUSES[what], n) for qid, kind, what, n in rows if what < ENQUEUED),
        key=lambda count: (count.queue, count.kind, CODES[count.status]),
    )
    pending: Counter[int] = Counter()
    for qid, _, what, n in rows:
        if what == PENDING:
            pending[qid] += n
    not_due: dict[str, int] = {}
    oldest: dict[str, Instant] = {}
    aside = {qid: more for qid, *more in (yield _SUBQUEUES, (now,))}
    for qid in sorted(pending, key=names.__getitem__):
        more, first, n = aside.get(qid, (0, None, 0))
        later, due = yield from _backlog(qid, pending[qid] - n, now)
        later += more
        due = min((at for at in (due, first) if at is not None), default=None)
        if later:
            not_due[names[qid]] = later
        if due is not None:
            oldest[names[qid]] = due
    running: list[Row] = yield _OLDEST_RUNNING, ()
    return Census(
        at=now,
        counts=tuple(counts),
        later=not_due,
        waiting=(yield from _waiting(names, now)),
        oldest_ready=oldest,
        oldest_running={names[qid]: claimed for qid, claimed in running},
        totals=totals(_sums(rows), troubles),
    )


def _waiting(names: dict[int, str], now: Instant) -> Exchange[dict[str, int]]:
    """Return how many jobs of each queue are suspended and not due."""
    found: Counter[str] = Counter()
    rows: list[Row] = yield _WAITING, (now,)
    for qid, n in rows:
        if qid in names:  # else its subqueue is lost, and the next look finds its line again
            found[names[qid]] += n
    return dict(sorted(found.items()))


def _backlog(qid: int, pending: int, now: Instant) -> Exchange[tuple[int, Instant | None]]:
    """Return how many pending jobs of a queue are not due, and when its oldest due job became due."""
    oldest: Instant | None = None
    priorities: list[int] = []
    while found := (yield _PRIORITY, (qid, priorities[-1] if priorities else BEFORE_ALL)):
        priorities.append(found[0][0])
        heads = yield _OLDEST, (qid, priorities[-1], now)
        if heads and (oldest is None or heads[0][0] < oldest):
            oldest = heads[0][0]
    limit = COUNT_LIMIT
    while True:
        later = yield from _counted(_SCHEDULED, qid, priorities, now, limit)
        due = 0 if later < limit else (yield from _counted(_DUE, qid, priorities, now, limit))
        if (scheduled := scheduled_count(pending, later, due, limit)) is not None:
            return scheduled, oldest
        limit *= COUNT_FURTHER


def _counted(statement: str, qid: int, priorities: list[int], now: Instant, limit: int) -> Exchange[int]:
    """Count pending jobs of a queue on one side of now, up to a limit."""
    n = 0
    for priority in priorities:
        n += (yield statement, (qid, priority, now, limit - n))[0][0]
        if n >= limit:
            break
    return n


def _sums(rows: list[Row]) -> dict[str, list[int]]:
    sums: dict[str, list[int]] = {}
    for _, kind, what, n in rows:
        if what >= ENQUEUED:
            sums.setdefault(kind, [0] * 5)[what - ENQUEUED] += n
    return sums

"""Retention: delete expired jobs, events, points, presences, locks and received ids."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.events import REMEMBERED
from stoker.model.ids import JobId
from stoker.model.query import Expired, Retention, Sweep

_EXPIRED = sql("expire_jobs")
_SURPLUS = sql("expire_surplus")
_FINISHED = sql("expire_finished")
_EVENTS, _REMEMBERED = sql("expire_events"), sql("expire_remembered")
_POINTS = sql("expire_points")
_PRESENCES, _TOMBSTONES = sql("expire_presences"), sql("expire_workers")
_LOCKS = sql("expire_locks")
_RECEIVED = sql("expire_received")

OLD_NAMES = 1_000
"""Names of reaped workers that are remembered, at most: those of the last ones."""


def expire(unit: Unit, sweep: Sweep, retention: Retention) -> Steps[Expired]:
    """Delete what has expired, of one sweep.

    Names of workers that were reaped long ago are deleted with old presences: a worker that comes back under such a
    name is unknown, as if it were remembered as reaped.
    """
    now = unit.now
    match sweep:
        case Sweep.JOBS:
            return (yield from _expire_jobs(unit, retention))
        case Sweep.EVENTS:
            yield _REMEMBERED, (now - REMEMBERED,)
            return Expired(events=len((yield _EVENTS, (now - retention.events,))))
        case Sweep.POINTS:
            return Expired(points=len((yield _POINTS, (now - retention.points,))))
        case Sweep.PRESENCES:
            yield _TOMBSTONES, (OLD_NAMES,)
            return Expired(presences=len((yield _PRESENCES, (now - retention.presences,))))
        case Sweep.LOCKS:
            return Expired(locks=len((yield _LOCKS, (now,))))
        case Sweep.RECEIPTS:
            return Expired(receipts=len((yield _RECEIVED, (now, max(retention.limit, 0)))))


def _expire_jobs(unit: Unit, retention: Retention) -> Steps[Expired]:
    """Delete expired jobs; of finished jobs beyond a count those nearest to their expiry go first."""
    now, limit = unit.now, max(retention.limit, 0)
    old = yield _EXPIRED, (now, limit)
    events = yield from _remove(unit, [job for job, _ in old])
    jobs = len(old)
    if retention.finished is not None and jobs < limit:
        [(kept,)] = yield _FINISHED, ()
        surplus = kept - jobs - max(retention.finished, 0)
        if surplus > 0:
            more = yield _SURPLUS, (min(surplus, limit - jobs),)
            events += yield from _remove(unit, [job for job, _ in more])
            jobs += len(more)
    return Expired(jobs=jobs, events=events)


def _remove(unit: Unit, ids: Sequence[JobId]) -> Steps[int]:
    """Delete jobs with their events; returns how many events those were."""
    before = unit.events_removed
    yield from unit.load(Wanted(frozenset(ids)))
    for job in ids:
        record = unit.get(job)
        assert record is not None
        unit.remove(record, events=True)
    yield from unit.write()
    return unit.events_removed - before

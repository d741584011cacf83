"""Retention: delete expired jobs, events, points, presences, locks and received ids."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.call_times import timed
from stoker.engines.shared.sweeps import in_steps
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.control import forget_full
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sqlite import damage, subqueues
from stoker.engines.sqlite.control import Control
from stoker.engines.sqlite.describe import warn_of_log
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.events import REMEMBERED
from stoker.model.ids import JobId
from stoker.model.query import LATEST, Expired, Retention, Sweep, bounded, kind_points_between
from stoker.model.time import Instant, Span

_EXPIRED = sql("expire_jobs")
_DONE = sql("expire_done")
_KEEPS = sql("done_keeps")
_FINISHED = sql("expire_finished")
_EVENTS, _REMEMBERED, _REMOVED = sql("expire_events"), sql("expire_remembered"), sql("expire_removed")
_POINTS = sql("expire_points")
_KIND_POINTS = sql("expire_kind_points")
_PRESENCES, _TOMBSTONES = sql("expire_presences"), sql("expire_workers")
_LOCKS, _KEYS = sql("expire_locks"), sql("expire_keys")
_RECEIVED = sql("expire_received")
_AUDIT = sql("expire_audit")
_OPERATIONS = sql("expire_operations")

REMOVALS = 100_000
"""How many jobs without events one call forgets."""

OLD_NAMES = 1_000
"""The most reaped workers that are remembered."""


class Sweeper(Facet):
    """Deletes what has expired, one sweep after the other."""

    @timed(write=True)
    async def expire(self, retention: Retention) -> Expired:
        warn_of_log(self._store.path)
        kept = bounded(retention, self._store.history)
        return await in_steps(kept, lambda sweep: self._expire(sweep, kept))

    async def _expire(self, sweep: Sweep, kept: Retention) -> Expired:
        # Numbers are counted without the write lock first: they are nearly always right.
        if sweep is Sweep.LIMITS and not await self._store.read(damage.to_repair):
            return Expired()
        return await self._store.write(lambda unit: expire(unit, sweep, kept))


def expire(unit: Unit, sweep: Sweep, retention: Retention) -> Exchange[Expired]:
    """Delete what has expired, of one sweep.

    Names of workers that were reaped long ago are deleted with old presences: a worker that comes back under such a
    name is unknown, as if it were remembered as reaped.
    """
    now = unit.now
    match sweep:
        case Sweep.JOBS:
            return (yield from _expire_jobs(unit, retention))
        case Sweep.EVENTS:
            counts = yield _EVENTS, (now - retention.events,)
            yield _REMEMBERED, (now - REMEMBERED,)
            yield _REMOVED, (now - REMEMBERED, REMOVALS)
            return Expired(events=sum(n for (n,) in counts))
        case Sweep.POINTS:
            gone = yield _POINTS, (now - retention.points,)
            return Expired(points=len(gone) + len((yield _KIND_POINTS, kind_points_between(retention, now))))
        case Sweep.PRESENCES:
            yield _TOMBSTONES, (OLD_NAMES,)
            return Expired(presences=len((yield _PRESENCES, (now - retention.presences,))))
        case Sweep.LOCKS:
            return Expired(locks=len((yield _LOCKS, (now,))))
        case Sweep.KEYS:
            return Expired(keys=len((yield _KEYS, (now,))))
        case Sweep.RECEIPTS:
            return Expired(receipts=len((yield _RECEIVED, (now, max(retention.limit, 0)))))
        case Sweep.AUDIT:
            return Expired(audit=len((yield _AUDIT, (now - retention.audit,))))
        case Sweep.LIMITS:
            yield from damage.repair(unit)
            return Expired(repairs=tuple((yield from subqueues.recount(unit, retention.limit))))
        case Sweep.OPERATIONS:
            return Expired(operations=len((yield _OPERATIONS, (now - retention.operations,))))
        case Sweep.BUCKETS:
            return Expired(buckets=(yield from forget_full(Control.sql, retention.limit, now)))


def _expire_jobs(unit: Unit, retention: Retention) -> Exchange[Expired]:
    """Delete expired jobs; of finished jobs beyond a count those nearest to their expiry go first."""
    now, limit = unit.now, max(retention.limit, 0)
    old = yield from _nearest(now, limit)
    yield from _remove(unit, old)
    jobs = len(old)
    if retention.finished is not None and jobs < limit:
        [(kept,)] = yield _FINISHED, ()
        surplus = kept - jobs - max(retention.finished, 0)
        if surplus > 0:
            more = yield from _nearest(LATEST, min(surplus, limit - jobs))
            yield from _remove(unit, more)
            jobs += len(more)
    return Expired(jobs=jobs)


def _nearest(before: Instant, limit: int) -> Exchange[list[JobId]]:
    """Return the finished jobs that expire before an instant, those that expire first first."""
    found: list[tuple[Instant, JobId]] = [*(yield _EXPIRED, (before, limit))]
    for keep in (yield from keeps()):
        found += yield _DONE, (before, limit, keep)
    return [job for _, job in sorted(found)[:limit]]


def keeps() -> Exchange[list[Span]]:
    """Return how long done jobs are kept, each value once."""
    found: list[Span] = []
    while rows := (yield _KEEPS, (found[-1] if found else -1,)):
        found.append(rows[0][0])
    return found


def _remove(unit: Unit, ids: Sequence[JobId]) -> Exchange[None]:
    """Delete jobs with their events."""
    yield from unit.load(Wanted(frozenset(ids)))
    for job in ids:
        record = unit.get(job)
        assert record is not None
        unit.remove(record, events=True)
    yield from unit.write()

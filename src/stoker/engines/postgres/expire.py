"""Removing finished jobs and other records when their retention ends.

The hot path pays for no index by expiry. Finished jobs are looked through in the order of their ids instead, stretch by
stretch, from where the last call stopped. Ids are times: a job that is kept for a week cannot expire before its id is
a week old. So most of the looking goes to ids that are older than what the youngest finished jobs are kept for, where
nearly every job met is one to remove; the rest goes slowly round all of them, for jobs that are kept more briefly.
In a store of some ten thousand finished jobs every call sees all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from stoker.engines.call_times import timed
from stoker.engines.postgres import claim, counters, damage
from stoker.engines.postgres.control import Control
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit, erasure
from stoker.engines.shared.sweeps import in_steps
from stoker.engines.sql.control import forget_full
from stoker.engines.sql.exchanges import Exchange, Row, Together
from stoker.model.event_blocks import NEVER
from stoker.model.events import REMEMBERED
from stoker.model.ids import JobId, floor, minted_at
from stoker.model.query import Expired, Retention, Sweep, bounded, kind_points_between
from stoker.model.time import Instant

OLD_STRETCH = 50_000
WHOLE_STRETCH = 20_000
"""Finished jobs looked at in one call: among the old ones, and among all."""

STEP = 4_000
SAMPLE = 500
OLD_NAMES = 1_000
"""The most reaped workers that are remembered."""

LEAST_EVENTS = 1_000

REMOVALS = 100_000
"""How many jobs without events one call forgets."""

FIRST, LAST = bytes(16), b"\xff" * 16

_MARK = sql("mark")
_MARK_WRITE = sql("mark_write")
_SAMPLE = sql("expire_sample")
_SWEEP = sql("expire_sweep")
_TAKE = sql("expire_take")
_FINISHED = sql("expire_finished")
_NEAREST = sql("expire_nearest")
_REMOVE_EVENTS = sql("remove_events")
_EVENTS, _POINTS, _KIND_POINTS = sql("expire_events"), sql("expire_points"), sql("expire_kind_points")
_REMEMBERED, _REMOVED = sql("expire_remembered"), sql("expire_removed")
_RECEIVED, _KEYS = sql("expire_received"), sql("expire_keys")
_AUDIT = sql("expire_audit")
_OPERATIONS = sql("expire_operations")
_PRESENCES, _LOCKS, _WORKERS = sql("expire_presences"), sql("expire_locks"), sql("expire_workers")


@dataclass
class Swept:
    """What one call has removed so far."""

    jobs: int = 0


class Sweeper(Facet):
    """Removes what has expired."""

    @timed(write=True)
    async def expire(self, retention: Retention) -> Expired:
        wanted = bounded(retention, self._store.history)
        return await in_steps(wanted, partial(self._expire, wanted))

    async def _expire(self, retention: Retention, sweep: Sweep) -> Expired:
        """Remove what one sweep is about; that of jobs also adds up the counts."""
        store = self._store
        if sweep is Sweep.LIMITS:
            await damage.repair(store)
            return Expired(repairs=tuple(await claim.recount(store, retention.limit)))
        expired = await store.write(lambda unit: _sweep(unit, sweep, retention), lane="admin", lax=True)
        if sweep is Sweep.JOBS:
            while await store.write(lambda _: counters.fold(), lane="admin", lax=True) >= counters.MOST:
                pass
        return expired


def _sweep(unit: Unit, sweep: Sweep, retention: Retention) -> Exchange[Expired]:
    now, limit = unit.now, max(retention.limit, LEAST_EVENTS)
    match sweep:
        case Sweep.JOBS:
            return (yield from _expire_jobs(unit, retention))
        case Sweep.EVENTS:
            counts = yield _EVENTS, (now - retention.events, limit)
            yield _REMEMBERED, (now - REMEMBERED, limit)
            yield _REMOVED, (now - REMEMBERED, REMOVALS)
            return Expired(events=sum(n for (n,) in counts))
        case Sweep.POINTS:
            gone = yield _POINTS, (now - retention.points,)
            return Expired(points=len(gone) + len((yield _KIND_POINTS, kind_points_between(retention, now))))
        case Sweep.PRESENCES:
            yield _WORKERS, (OLD_NAMES,)
            return Expired(presences=len((yield _PRESENCES, (now - retention.presences,))))
        case Sweep.LOCKS:
            return Expired(locks=len((yield _LOCKS, (now,))))
        case Sweep.KEYS:
            return Expired(keys=len((yield _KEYS, (now, limit))))
        case Sweep.RECEIPTS:
            return Expired(receipts=len((yield _RECEIVED, (now, max(retention.limit, 0)))))
        case Sweep.AUDIT:
            return Expired(audit=len((yield _AUDIT, (now - retention.audit,))))
        case Sweep.LIMITS:
            raise AssertionError("limits need the locks of their queues: `claim.recount`")
        case Sweep.OPERATIONS:
            return Expired(operations=len((yield _OPERATIONS, (now - retention.operations,))))
        case Sweep.BUCKETS:
            return Expired(buckets=(yield from forget_full(Control.sql, retention.limit, now)))


def _expire_jobs(unit: Unit, retention: Retention) -> Exchange[Expired]:
    limit = max(retention.limit, 0)
    swept = Swept()
    if (bound := (yield from _old(unit.now))) is not None:
        yield from _walk(swept, "expire.old", bound, OLD_STRETCH, unit.now, limit)
    yield from _walk(swept, "expire.all", LAST, WHOLE_STRETCH, unit.now, limit - swept.jobs)
    if retention.finished is not None:
        yield from _surplus(unit, swept, max(retention.finished, 0), limit - swept.jobs)
    return Expired(jobs=swept.jobs)


def _old(now: Instant) -> Exchange[JobId | None]:
    """The id up to which jobs may well have expired: as old as the youngest finished ones are going to be."""
    rows: list[Row] = yield _SAMPLE, (SAMPLE,)
    if not rows:
        return None
    return floor(now - min(max(0, expires - minted_at(job)) for job, expires in rows))


def _walk(swept: Swept, mark: str, bound: JobId, stretch: int, now: Instant, limit: int) -> Exchange[None]:
    """Go on from a mark, round the end if need be, until enough were looked at or had expired."""
    if limit <= 0:
        return
    rows: list[Row] = yield _MARK, (mark,)
    start: JobId = rows[0][0] if rows and rows[0][0] < bound else FIRST
    place, end, round_ = start, bound, start == FIRST
    while stretch > 0 and limit > 0:
        step = min(STEP, stretch)
        [(jobs, looked, last, expired, last_expired)] = yield _SWEEP, (place, end, step, now, limit)
        swept.jobs += jobs
        stretch -= looked
        limit -= expired
        if limit == 0:
            place = last_expired
        elif looked == step:
            place = last
        elif round_:
            place = FIRST
            break
        else:
            round_, place, end = True, FIRST, start
    yield _MARK_WRITE, (mark, place)


def _surplus(unit: Unit, swept: Swept, kept: int, limit: int) -> Exchange[None]:
    """Remove the finished jobs nearest to their expiry until only so many are left."""
    [(finished,)] = yield _FINISHED, ()
    surplus = min(finished - kept, limit)
    if surplus <= 0:
        return
    nearest = [job for (job,) in (yield _NEAREST, (surplus,))]
    rows: list[Row] = yield _TAKE, (nearest,)
    for _, queue, kind, status in rows:
        unit.count(queue, kind, status, -1)
    swept.jobs += len(rows)
    gone = [job for job, *_ in rows]
    yield Together(tuple(erasure(gone)))
    yield _REMOVE_EVENTS, (gone, NEVER)

"""Operators' changes of jobs, and the removal of what is past its time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stoker.engines.base import OPERATIONS
from stoker.engines.memory.access import Facet
from stoker.engines.memory.control import forget_full, recount
from stoker.engines.memory.insert import room
from stoker.engines.memory.store import Store
from stoker.engines.shared import one_by_one
from stoker.engines.shared.sweeps import in_steps
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.archive import Archived, Put
from stoker.model.audit import By, of_alter
from stoker.model.job import FINISHED
from stoker.model.operations import written_before
from stoker.model.query import Change, Expired, Retention, Selection, Sweep, Tally, bounded, kind_points_between
from stoker.model.time import Instant
from stoker.model.unique import Kept


class Alterer(Facet):
    """Changes by operators and by age."""

    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        with self._write as store:
            tally = store.run(_alter, selection, change)
            store.enter(by, of_alter(selection, change, tally))
        self._access.ends.altered(selection, change, tally)
        return tally

    async def put(self, jobs: Sequence[Archived]) -> list[Put]:
        with self._write as store:
            return store.run(_put, jobs)

    async def expire(self, retention: Retention) -> Expired:
        return await in_steps(retention, partial(self._expire, retention))

    async def _expire(self, retention: Retention, sweep: Sweep) -> Expired:
        with self._write as store:
            return _expire(store, sweep, bounded(retention, store.history), store.now())


def _alter(store: Store, unit: UnitOfWork, selection: Selection, change: Change) -> Tally:
    """Apply a change to the selected jobs."""
    one_by_one.check(selection, change)
    store.load(unit, one_by_one.wanted_by_change(selection, change))
    alteration = one_by_one.Alteration(unit, selection, change)
    alteration.run(range(len(selection.ids)))
    return one_by_one.tally(selection, [alteration])


def _put(store: Store, unit: UnitOfWork, jobs: Sequence[Archived]) -> list[Put]:
    """Store jobs of another store."""
    store.load(unit, one_by_one.wanted_by_archived(jobs))
    with room(store, unit):
        return one_by_one.put(unit, jobs)


def _expire(store: Store, sweep: Sweep, retention: Retention, now: Instant) -> Expired:
    """Remove what is past its time, of one sweep."""
    match sweep:
        case Sweep.JOBS:
            return _expire_jobs(store, retention, now)
        case Sweep.EVENTS:
            return Expired(events=store.event_log.expire_events(now - retention.events))
        case Sweep.POINTS:
            log, kinds = store.event_log, kind_points_between(retention, now)
            return Expired(points=log.expire_points(now - retention.points) + log.expire_kind_points(*kinds))
        case Sweep.PRESENCES:
            silent = [name for name, one in store.presences.items() if one.seen_at < now - retention.presences]
            for name in silent:
                del store.presences[name]
            return Expired(presences=len(silent))
        case Sweep.LOCKS:
            lapsed = [name for name, lock in store.locks.items() if lock.until <= now]
            for name in lapsed:
                del store.locks[name]
            return Expired(locks=len(lapsed))
        case Sweep.KEYS:
            kept = [slot for slot, held in store.holders.items() if isinstance(held, Kept) and held.until <= now]
            for slot in kept:
                del store.holders[slot]
            return Expired(keys=len(kept))
        case Sweep.RECEIPTS:
            return Expired(receipts=store.tables.forget(retention.limit, now))
        case Sweep.AUDIT:
            left = [entry for entry in store.audit if entry.at >= now - retention.audit]
            removed, store.audit = len(store.audit) - len(left), left
            return Expired(audit=removed)
        case Sweep.LIMITS:
            return Expired(repairs=tuple(recount(store, retention.limit, now)))
        case Sweep.OPERATIONS:
            found = store.documents.get(OPERATIONS, {})
            old = written_before(found.values(), now - retention.operations)
            for name, _ in old:
                del found[name]
            return Expired(operations=len(old))
        case Sweep.BUCKETS:
            return Expired(buckets=forget_full(store, retention.limit, now))


def _expire_jobs(store: Store, retention: Retention, now: Instant) -> Expired:
    """Remove expired jobs; beyond `retention.finished` those nearest to their expiry go first."""
    finished = (record for record in store.jobs.values() if record.status in FINISHED)
    nearest = sorted(finished, key=lambda record: (record.expires_at or 0, record.id))
    old = [record for record in nearest if record.expires_at is not None and record.expires_at < now]
    gone = old[: max(retention.limit, 0)]
    if retention.finished is not None:
        surplus = len(nearest) - len(gone) - max(retention.finished, 0)
        more = min(surplus, retention.limit - len(gone))
        gone = nearest[: len(gone) + max(more, 0)]
    unit = UnitOfWork(now)
    store.load(unit, Wanted(frozenset(record.id for record in gone)))
    for record in gone:
        unit.remove(record, events=True)
    store.apply(unit)
    return Expired(jobs=len(gone))

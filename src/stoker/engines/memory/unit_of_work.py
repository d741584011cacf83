"""The calls that change jobs through a unit of work: insert, settle, note, alter, expire.

Each loads what it needs from the store, lets the shared careful path decide, and leaves the writing to `Store.apply`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stoker.engines.memory import control
from stoker.engines.memory.store import Store
from stoker.engines.shared import careful
from stoker.engines.shared.documents import OPERATIONS, old_operations
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.errors import EngineFull
from stoker.model.groups import Group
from stoker.model.job import ACTIVE, FINISHED, Draft, Note, Receipt, Settlement, Verdict
from stoker.model.lifecycle import check_settlements
from stoker.model.query import Change, Expired, Retention, Selection, Sweep, Tally
from stoker.model.time import Instant


def insert(store: Store, unit: UnitOfWork, drafts: Sequence[Draft], group: Group | None = None) -> list[Receipt]:
    """Store drafts, all or none, and a new group with them."""
    store.load(unit, careful.wanted_by_drafts(drafts, group))
    with room(store, unit):
        return careful.insert(unit, drafts, group)


@contextmanager
def room(store: Store, unit: UnitOfWork) -> Iterator[None]:
    """Raise if the store is too full for the jobs that the block adds to the unit."""
    if store.capacity is None:
        yield
        return
    before = store.active + _growth(unit)
    yield
    if store.active + _growth(unit) > max(before, store.capacity):
        raise EngineFull(
            f"memory:// has room for {store.capacity} active jobs (capacity={store.capacity}) and {before} are "
            f"stored. Nothing of this call was stored. Try again when workers have caught up, raise capacity=, "
            f'or let callers wait with when_full="wait".'
        )


def _growth(unit: UnitOfWork) -> int:
    """How many active jobs the unit adds."""
    return sum(n for (_, _, status), n in unit.counts().items() if status in ACTIVE)


def settle(store: Store, unit: UnitOfWork, settlements: Sequence[Settlement]) -> list[Verdict]:
    """End claims, each independently of the others."""
    check_settlements(settlements)
    store.load(unit, careful.wanted_by_settlements(settlements))
    return careful.settle(unit, settlements)


def note(store: Store, unit: UnitOfWork, notes: Sequence[Note]) -> list[Verdict]:
    """Write progress, metadata and log lines on running jobs."""
    store.load(unit, Wanted(frozenset(one.id for one in notes)))
    return [careful.note_one(unit, one) for one in notes]


def alter(store: Store, unit: UnitOfWork, selection: Selection, change: Change) -> Tally:
    """Apply a change to the selected jobs."""
    careful.check(selection, change)
    store.load(unit, careful.wanted_by_change(selection, change))
    alteration = careful.Alteration(unit, selection, change)
    alteration.run(range(len(selection.ids)))
    return careful.tally(selection, [alteration])


def expire(store: Store, sweep: Sweep, retention: Retention, now: Instant) -> Expired:
    """Remove what is past its time, of one sweep."""
    match sweep:
        case Sweep.JOBS:
            return _expire_jobs(store, retention, now)
        case Sweep.EVENTS:
            return Expired(events=store.event_log.expire_events(now - retention.events))
        case Sweep.POINTS:
            return Expired(points=store.event_log.expire_points(now - retention.points))
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
        case Sweep.RECEIPTS:
            return Expired(receipts=store.tables.forget(retention.limit, now))
        case Sweep.AUDIT:
            kept = [entry for entry in store.audit if entry.at >= now - retention.audit]
            removed, store.audit = len(store.audit) - len(kept), kept
            return Expired(audit=removed)
        case Sweep.LIMITS:
            return Expired(repairs=tuple(control.recount(store, retention.limit, now)))
        case Sweep.OPERATIONS:
            found = store.documents.get(OPERATIONS, {})
            old = old_operations(list(found.values()), now - retention.operations)
            for name, _ in old:
                del found[name]
            return Expired(operations=len(old))


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

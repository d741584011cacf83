"""Cleaning: removing what is past its time."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.engines.memory.ready_queue import Entry
from stoker.engines.memory.store import Store
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.query import Expired, Retention
from stoker.model.time import Instant


def expire(store: Store, retention: Retention, now: Instant) -> Expired:
    """Remove what is out of date; of finished jobs beyond a count those nearest to their expiry go first."""
    nearest = sorted(store.finished.values(), key=lambda entry: (entry.record.expires_at or 0, entry.record.id))
    old = [entry for entry in nearest if entry.record.expires_at is not None and entry.record.expires_at < now]
    gone = old[: max(retention.limit, 0)]
    if retention.finished is not None:
        surplus = len(nearest) - len(gone) - max(retention.finished, 0)
        more = min(surplus, retention.limit - len(gone))
        gone = nearest[: len(gone) + max(more, 0)]
    events = _remove(store, gone, now)
    old_events, points = store.ledger.expire(now - retention.events, now - retention.points)
    unseen = [name for name, one in store.presences.items() if one.seen_at < now - retention.presences]
    lapsed = [name for name, lock in store.locks.items() if lock.until <= now]
    for name in unseen:
        del store.presences[name]
    for name in lapsed:
        del store.locks[name]
    return Expired(jobs=len(gone), events=events + old_events, points=points, presences=len(unseen), locks=len(lapsed))


def _remove(store: Store, gone: Iterable[Entry], now: Instant) -> int:
    """Delete jobs with their events; returns how many events those were."""
    unit = UnitOfWork(now)
    records = [entry.record for entry in gone]
    store.load(unit, Wanted(frozenset(record.id for record in records)))
    for record in records:
        unit.remove(record, events=True)
    return store.apply(unit)

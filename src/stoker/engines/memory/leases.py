"""Who is alive: leases of workers, and what happens to the claims of those that fell silent.

A lease belongs to a worker, not to a job, so renewing costs the same with one job and with a hundred. A worker that was
reaped is remembered by name for ever: should it wake up, it must learn that it is not itself any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import ORPHANED_AFTER
from stoker.engines.memory.store import Store
from stoker.model.ids import JobId
from stoker.model.job import Claim, Renewal
from stoker.model.time import Instant, Span


def renew(
    store: Store, worker: str, held: Sequence[tuple[JobId, int]], lease: Span, now: Instant, *, first: bool
) -> Renewal:
    """Extend a lease and compare what the worker holds with what is stored under it."""
    if worker not in store.leases and (not first or worker in store.retired):
        return Renewal(known=False)
    # A lease lapses strictly after its end, and a farewell at once.
    store.leases[worker] = now + lease if lease > 0 else now - 1
    mine = store.held.get(worker, {})
    pairs = set(held)
    lost: list[tuple[JobId, int]] = []
    canceling: list[tuple[JobId, int]] = []
    for job, token in held:
        entry = mine.get(job)
        if entry is None or entry.record.token != token:
            lost.append((job, token))
        elif entry.record.cancel_requested:
            canceling.append((job, token))
    records = [entry.record for entry in mine.values()]
    orphaned = [
        record.as_claim(store.queue(record.queue))
        for record in records
        if (record.id, record.token) not in pairs and now - (record.started_at or now) > ORPHANED_AFTER
    ]
    return Renewal(True, lost, canceling, orphaned)


def reap(store: Store, by: str, limit: int, dead: Sequence[str], now: Instant) -> list[Claim]:
    """Pass claims of lapsed and dead workers to a living one, oldest first."""
    if store.leases.get(by, -1) < now:
        return []
    owners = {worker for worker, until in store.leases.items() if until < now}.union(dead) - {by}
    found = [entry for owner in owners for entry in store.held.get(owner, {}).values()]
    found.sort(key=lambda entry: (entry.record.started_at, entry.record.id))
    claims = []
    for entry in found[: max(limit, 0)]:
        store.hand_over(entry, entry.record.reaped(by, now))
        claims.append(entry.record.as_claim(store.queue(entry.record.queue)))
    for owner in owners:
        if not store.held.get(owner):
            store.leases.pop(owner, None)
            store.held.pop(owner, None)
            store.retired.add(owner)
    return claims

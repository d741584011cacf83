"""Which worker holds which job: claims, leases, and claims of workers that stopped renewing.

A lease belongs to a worker, not to a job, so renewing costs the same with one job and with a hundred. The store keeps
the name of a worker that was reaped: a later renewal by that worker fails, and it has to take a new id.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.engines.base import CONTROL, LEASE, ORDERS, ORPHANED_AFTER
from stoker.engines.memory.access import Facet
from stoker.engines.memory.ready_queue import ReadyQueue
from stoker.engines.memory.store import Store
from stoker.engines.memory.subqueues import QueueLines
from stoker.engines.shared import subqueue_claim
from stoker.engines.shared.subqueue_claim import run
from stoker.model.control import Queue, Starts
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Renewal, check_lease
from stoker.model.steps import brought
from stoker.model.throttle import take
from stoker.model.time import Instant, Span


class Leases(Facet):
    """Claims and leases."""

    async def claim(self, demand: Demand) -> list[Claim]:
        with self._write as store:
            return claim(store, demand, store.now())

    async def renew(
        self,
        worker: str,
        held: Sequence[tuple[JobId, int]],
        *,
        lease: Span = LEASE,
        first: bool = False,
    ) -> Renewal:
        check_lease(lease)
        with self._write as store:
            now = store.now()
            if worker not in store.leases and (not first or worker in store.retired):
                return Renewal(known=False)
            # A lease lapses strictly after its end; a lease of 0 lapses at once.
            store.leases[worker] = now + lease if lease > 0 else now - 1
            return _compare(store, worker, held, now)

    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        with self._write as store:
            now = store.now()
            if store.leases.get(by, -1) < now:
                return []
            owners = {worker for worker, until in store.leases.items() if until < now}.union(dead) - {by}
            return _reap(store, by, owners, limit, now)


def claim(store: Store, demand: Demand, now: Instant) -> list[Claim]:
    """Hand due jobs to a worker with a live lease."""
    if store.leases.get(demand.worker, -1) < now:
        return []
    claims: list[Claim] = []
    left = sum(n for _, n in demand.queues if n > 0) if demand.total is None else demand.total
    for name, wanted in demand.queues:
        waiting, queue = store.waiting.get(name), store.queue(name)
        starts = queue.starts(min(wanted, left - len(claims)), now)
        if waiting is None or starts.n <= 0:
            continue
        taken = _taken(store, queue, waiting, starts, now)
        if taken and queue.bucket is not None:
            store.set_queue(msgspec.structs.replace(queue, bucket=take(queue.bucket, len(taken), now)))
        for job in taken:
            before = store.jobs[job]
            record = store.jobs[job] = before.claimed(demand.worker, now)
            store.placed.pop(job, None)
            rows = brought(store.steps.get(job, {}).values()) if before.suspended else None
            claims.append(record.as_claim(queue, before.status, fresh=before.token == 0, rows=rows))
    return claims


def _taken(store: Store, queue: Queue, waiting: ReadyQueue, starts: Starts, now: Instant) -> list[JobId]:
    """The jobs that start; the main line alone where the queue has no subqueue."""
    subqueues = store.subqueues.get(queue.name)
    if subqueues is None or not subqueues.states:
        due = waiting.due(starts.n, now, first_only=starts.first_only)
        waiting.take(due)
        return [job for _, _, job in due]
    lines = QueueLines(waiting, subqueues, now)
    run(subqueue_claim.claim(lines, starts, now, fair=queue.fair))
    return lines.taken


def _compare(store: Store, worker: str, held: Sequence[tuple[JobId, int]], now: Instant) -> Renewal:
    """Compare what a worker holds with what is stored under it."""
    mine = {record.id: record for record in store.held(worker)}
    pairs = set(held)
    lost: list[tuple[JobId, int]] = []
    canceling: list[tuple[JobId, int]] = []
    for job, token in held:
        record = mine.get(job)
        if record is None or record.token != token:
            lost.append((job, token))
        elif record.cancel_requested:
            canceling.append((job, token))
    orphaned = [
        record.as_claim(store.queue(record.queue))
        for record in mine.values()
        if (record.id, record.token) not in pairs and now - (record.started_at or now) > ORPHANED_AFTER
    ]
    return Renewal(True, lost, canceling, orphaned, store.documents.get(ORDERS, {}).get(worker))


def _reap(store: Store, by: str, owners: set[str], limit: int, now: Instant) -> list[Claim]:
    """Pass claims of some workers to another one, oldest first."""
    found = [record for record in store.jobs.values() if record.worker in owners]
    found.sort(key=lambda record: (record.started_at, record.id))
    claims = []
    for before in found[: max(limit, 0)]:
        record = store.jobs[before.id] = before.reaped(by, now)
        claims.append(record.as_claim(store.queue(record.queue)))
    if locks := [name for name, lock in store.locks.items() if lock.owner in owners]:
        for name in locks:
            del store.locks[name]
        store.wake(CONTROL)
    for owner in owners - {record.worker for record in found[max(limit, 0) :]}:
        store.leases.pop(owner, None)
        store.retired.add(owner)
    return claims

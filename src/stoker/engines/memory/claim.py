"""Claims: due jobs become a worker's."""

from __future__ import annotations

from stoker.engines.memory.store import Store
from stoker.model.job import Claim, Demand
from stoker.model.time import Instant


def claim(store: Store, demand: Demand, now: Instant) -> list[Claim]:
    """Hand due jobs to a worker with a live lease."""
    if store.leases.get(demand.worker, -1) < now:
        return []
    claims: list[Claim] = []
    left = sum(n for _, n in demand.queues if n > 0) if demand.total is None else demand.total
    for name, wanted in demand.queues:
        waiting, queue = store.waiting.get(name), store.queue(name)
        if waiting is None or queue.paused or queue.cooldown.shut(now):
            continue
        for entry in waiting.take(min(wanted, left - len(claims)), now):
            before = entry.record.status
            store.hand_over(entry, entry.record.claimed(demand.worker, now))
            claims.append(entry.record.as_claim(queue, before))
    return claims

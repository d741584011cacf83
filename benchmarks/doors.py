"""The same work through an engine's interface: fill it, drain it. Only the awaits are measured.

What a caller must have in hand anyway (drafts, settlements) is made outside the measured stretches: making it is the
app's and the worker's work, and counted there.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.app import NOOP, PAYLOAD, QUEUE
from benchmarks.stats import Meter
from stoker.engines.base import Engine
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Settlement, Status

WORKER = "bench"


def drafts(ids: Sequence[JobId]) -> list[Draft]:
    """No-op jobs under these ids."""
    return [Draft(id_, NOOP, PAYLOAD, QUEUE) for id_ in ids]


def successes(claims: Sequence[Claim]) -> list[Settlement]:
    """All of them went well."""
    return [
        Settlement(claim.id, claim.worker, claim.token, Status.DONE, ref=claim.ref)
        for claim in claims
    ]  # fmt: skip


async def fill(engine: Engine, batches: Sequence[Sequence[JobId]]) -> Meter:
    """Store batch after batch, each awaited."""
    meter = Meter()
    for ids in batches:
        batch = drafts(ids)
        meter.jobs += len(batch)
        with meter:
            await engine.insert(batch)
    return meter


async def drain(engine: Engine, batch: int) -> Meter:
    """Settle each batch and take the next in one call, until nothing is left."""
    meter = Meter()
    await engine.renew(WORKER, [], first=True)
    demand = Demand(WORKER, ((QUEUE, batch),), batch)
    claims = await engine.claim(demand)
    while claims:
        meter.jobs += len(claims)
        settlements = successes(claims)
        with meter:
            settled = await engine.settle(settlements, demand=demand)
        claims = settled.claims
    return meter

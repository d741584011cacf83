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
from stoker.model.time import HOUR

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
            await engine.jobs.insert(batch)
    return meter


class Drain:
    """Settles each batch and takes the next in one call."""

    def __init__(self, engine: Engine, batch: int) -> None:
        self.engine = engine
        self._demand = Demand(WORKER, ((QUEUE, batch),), batch)
        self._claims: list[Claim] = []

    async def begin(self) -> None:
        """Take a lease and the first batch."""
        await self.engine.jobs.renew(WORKER, [], first=True, lease=HOUR)
        self._claims = await self.engine.jobs.claim(self._demand)

    async def run(self, jobs: int | None = None) -> Meter:
        """Everything there is, or so many jobs and the rest at another call."""
        meter = Meter()
        if not self._claims:
            await self.begin()
        while self._claims and (jobs is None or meter.jobs < jobs):
            meter.jobs += len(self._claims)
            settlements = successes(self._claims)
            with meter:
                settled = await self.engine.jobs.settle(settlements, demand=self._demand)
            self._claims = settled.claims
        return meter

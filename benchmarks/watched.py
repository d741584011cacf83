"""Engines that tell more, or cost less, than real ones."""

# ruff: noqa: ARG002 - a store that does nothing looks at nothing it is given

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Self

from benchmarks.app import NOOP, PAYLOAD, QUEUE
from stoker.engines.base import LEASE, Transaction
from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Renewal, Settled, Settlement, Verdict
from stoker.model.time import Span

POOL = 8192
"""More claims than a worker ever holds at once: no id is in its hands twice."""


class Watched(SqliteEngine):
    """A SQLite engine that notes when renewals were stored. The keeper's is a twin, so the list is everybody's."""

    renewals: ClassVar[list[float]] = []

    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        renewal = await super().renew(worker, held, lease=lease, first=first)
        self.renewals.append(time.monotonic())
        return renewal


class Nothing(MemoryEngine):
    """A store that costs nothing: its claims were made before and its verdicts are always the same."""

    def __init__(self, jobs: int) -> None:
        super().__init__()
        self._left = jobs
        self._at = 0
        claims = [
            Claim(number.to_bytes(16, "big"), NOOP, QUEUE, PAYLOAD, 1, 0, 5, "bench", number + 1, 0, 0, 0)
            for number in range(POOL)
        ]
        self._claims = claims + claims[:1000]
        self._applied = [Verdict.APPLIED] * 1000

    async def claim(self, demand: Demand) -> list[Claim]:
        n = min(demand.total or 0, self._left)
        self._left -= n
        start, self._at = self._at, (self._at + n) % POOL
        return self._claims[start : start + n]

    async def settle(
        self, settlements: Sequence[Settlement], *, tx: Transaction | None = None, demand: Demand | None = None
    ) -> Settled:
        return Settled(self._applied[: len(settlements)], await self.claim(demand) if demand is not None else [])

    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        return Renewal(known=True)

    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        return []

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        await asyncio.sleep(timeout)
        return frozenset()

    def twin(self) -> Self:
        return self

"""Engines that tell more, or cost less, than real ones."""

# ruff: noqa: ARG002 - a store that does nothing looks at nothing it is given

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from benchmarks.app import NOOP, PAYLOAD, QUEUE
from stoker.engines.base import LEASE, Transaction
from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Claim, Demand, Renewal, Settled, Settlement, Verdict
from stoker.model.time import Span

POOL = 8192
"""More claims than a worker ever holds at once: no id is in its hands twice."""


class Watched(SqliteEngine):
    """A SQLite engine that notes when renewals were stored. The keeper's is a twin, so both share the list."""

    renewals: ClassVar[list[float]] = []

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, **options)
        renew = self.jobs.renew

        async def noted(*args: Any, **options: Any) -> Renewal:
            renewal = await renew(*args, **options)
            self.renewals.append(time.monotonic())
            return renewal

        self.jobs.renew = noted  # type: ignore[method-assign]


class Nothing(MemoryEngine):
    """A store that costs nothing: its claims are made beforehand and its verdicts are always the same."""

    def __init__(self, jobs: int) -> None:
        super().__init__()
        self._left = jobs
        self._at = 0
        self._claims: list[Claim] = []
        self._applied = [Verdict.APPLIED] * LARGEST_BATCH
        free: Any = self.jobs
        free.renew, free.claim, free.settle, free.reap = self._renew, self._claim, self._settle, self._reap
        free.wait = self._wait

    async def _renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        if first:
            claims = [
                Claim(number.to_bytes(16, "big"), NOOP, QUEUE, PAYLOAD, 1, 0, 5, worker, number + 1, 0, 0, 0)
                for number in range(POOL)
            ]
            self._claims = claims + claims[:LARGEST_BATCH]
        return Renewal(known=True)

    async def _claim(self, demand: Demand) -> list[Claim]:
        n = min(demand.total or 0, self._left)
        self._left -= n
        start, self._at = self._at, (self._at + n) % POOL
        return self._claims[start : start + n]

    async def _settle(
        self, settlements: Sequence[Settlement], *, tx: Transaction | None = None, demand: Demand | None = None
    ) -> Settled:
        return Settled(self._applied[: len(settlements)], await self._claim(demand) if demand is not None else [])

    async def _reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        return []

    async def _wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        await asyncio.sleep(timeout)
        return frozenset()

    def for_loop(self, *, read_limit: float | None = None) -> Self:
        return self

    async def close(self) -> None:
        """The keeper closes its twin, which is this very engine: it stays open."""

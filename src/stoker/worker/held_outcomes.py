"""Outcomes that wait for a lock of another transaction, apart from all others.

A user's open transaction may hold the unique key of a follow-up. The store answers `held` for such a settlement: it is
set aside and sent again until the transaction ends, while every other outcome goes its usual way. The job stays claimed
by this worker meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import random
from typing import TYPE_CHECKING, TypeAlias

from stoker.model import ids
from stoker.model.job import LARGEST_BATCH, Claim, Settlement, Verdict

if TYPE_CHECKING:
    from stoker.worker.worker import Worker

logger = logging.getLogger("stoker.worker")

Settled: TypeAlias = Callable[[list[Claim], list[Settlement], list[Verdict]], Awaitable[None]]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries of what waits for a lock."""

SAY_AFTER = 5.0
"""Seconds an outcome waits before a warning names its job: most locks are gone by then."""


class HeldOutcomes:
    """`settled` receives what was written after all; what is held again comes back here."""

    def __init__(self, worker: Worker, settled: Settled) -> None:
        self._worker = worker
        self._settled = settled
        self._waiting: list[tuple[Claim, Settlement]] = []
        self._filled = asyncio.Event()
        self._since = 0.0
        self._named = False

    def __len__(self) -> int:
        """How many outcomes wait."""
        return len(self._waiting)

    def put(self, claim: Claim, settlement: Settlement) -> None:
        """Keep an outcome that the store answered with `held`."""
        self._waiting.append((claim, settlement))
        self._filled.set()

    def sift(self, claims: list[Claim], settlements: list[Settlement]) -> tuple[list[Claim], list[Settlement]]:
        """Take out of a batch what needs a key that others wait for; returns the rest."""
        if not self._waiting:
            return claims, settlements
        held = frozenset[str]().union(*(settlement.slots for _, settlement in self._waiting))
        rest: tuple[list[Claim], list[Settlement]] = [], []
        for claim, settlement in zip(claims, settlements, strict=True):
            if settlement.followups and not held.isdisjoint(settlement.slots):
                self.put(claim, settlement)
            else:
                rest[0].append(claim)
                rest[1].append(settlement)
        return rest

    async def serve(self) -> None:
        """Send again what waits, more and more seldom, for as long as the worker is at work."""
        while True:
            await self._filled.wait()
            self._since, self._named = time.monotonic(), False
            await self._until_empty()
            self._filled.clear()

    async def finish(self, end: float) -> int:
        """Try until a moment of the monotonic clock; returns how many outcomes are left."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                await self._until_empty()
        return len(self._waiting)

    async def _until_empty(self) -> None:
        pause = SHORTEST_PAUSE
        while self._waiting:
            await asyncio.sleep(pause * (0.75 + random() / 2))
            before = len(self._waiting)
            await self._once()
            pause = SHORTEST_PAUSE if len(self._waiting) < before else min(2 * pause, LONGEST_PAUSE)
            self._name_one()

    async def _once(self) -> None:
        """One call with what waits. What fails for another reason than a lock goes the usual way."""
        batch = self._waiting[:LARGEST_BATCH]
        claims, settlements = [claim for claim, _ in batch], [settlement for _, settlement in batch]
        outcomes = self._worker.outcomes
        outcomes.flying.append(claims)
        verdicts: list[Verdict] | None = None
        try:
            verdicts = (await self._worker.engine.settle(settlements)).verdicts
        except Exception:  # noqa: BLE001 - the exchange meets it again, and knows what to do about it
            outcomes.put_back(claims, settlements)
        finally:
            outcomes.flying[:] = [others for others in outcomes.flying if others is not claims]
        del self._waiting[: len(batch)]
        if verdicts is not None:
            await self._settled(claims, settlements, verdicts)
        self._worker.store_loop.wakeup.set()

    def _name_one(self) -> None:
        if not self._waiting or self._named or time.monotonic() - self._since < SAY_AFTER:
            return
        self._named = True
        claim, settlement = self._waiting[0]
        logger.warning(
            "the outcome (%s) of job %s (%s) waits for another transaction, which has held the unique key of a "
            "follow-up (%s) for more than %g s; it is tried again until that transaction ends; %d outcomes wait, all "
            "others are written",
            settlement.status,
            ids.text(claim.id),
            claim.kind,
            ", ".join(sorted(settlement.slots)),
            SAY_AFTER,
            len(self._waiting),
        )

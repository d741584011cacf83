"""Outcomes that wait for a lock of another transaction, apart from all others.

A user's open transaction may hold the unique key of a follow-up. The engine returns `held` for such a settlement. The
worker sends it again until the transaction ends and writes every other outcome as usual. The job stays claimed by this
worker meanwhile.
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
    from stoker.engines.base import Engine
    from stoker.worker.store_loop import OutcomeBuffer

logger = logging.getLogger("stoker.worker")

Settled: TypeAlias = Callable[[list[Claim], list[Settlement], list[Verdict]], Awaitable[None]]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries of what waits for a lock."""

WARN_AFTER = 5.0
"""Seconds an outcome waits before a warning names its job: most locks are released by then."""


class HeldOutcomes:
    """Calls `settled` with outcomes that were written, and `wake` after each call to the store."""

    def __init__(self, engine: Engine, outcomes: OutcomeBuffer, settled: Settled, wake: Callable[[], object]) -> None:
        self._engine = engine
        self._outcomes = outcomes
        self._wake = wake
        self._settled = settled
        self._waiting: list[tuple[Claim, Settlement]] = []
        self._filled = asyncio.Event()
        self._since = 0.0
        self._named = False

    def __len__(self) -> int:
        """How many outcomes wait."""
        return len(self._waiting)

    def put(self, claim: Claim, settlement: Settlement) -> None:
        """Keep an outcome for which the engine returned `held`."""
        self._waiting.append((claim, settlement))
        self._filled.set()

    def sift(self, claims: list[Claim], settlements: list[Settlement]) -> tuple[list[Claim], list[Settlement]]:
        """Take outcomes that need a held key out of a batch; returns the rest."""
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
        """Send waiting outcomes again, with growing pauses, until canceled."""
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
        """Send them in one call. After an error the store loop sends them."""
        batch = self._waiting[:LARGEST_BATCH]
        claims, settlements = [claim for claim, _ in batch], [settlement for _, settlement in batch]
        outcomes = self._outcomes
        outcomes.flying.append(claims)
        verdicts: list[Verdict] | None = None
        try:
            verdicts = (await self._engine.settle(settlements)).verdicts
        except Exception:  # noqa: BLE001 - the store loop meets the error again and handles it
            outcomes.put_back(claims, settlements)
        finally:
            outcomes.flying[:] = [others for others in outcomes.flying if others is not claims]
        del self._waiting[: len(batch)]
        if verdicts is not None:
            await self._settled(claims, settlements, verdicts)
        self._wake()

    def _name_one(self) -> None:
        if not self._waiting or self._named or time.monotonic() - self._since < WARN_AFTER:
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
            WARN_AFTER,
            len(self._waiting),
        )

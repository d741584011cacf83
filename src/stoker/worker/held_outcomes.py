"""Outcomes that wait for a lock of another transaction, apart from all others.

A user's open transaction may hold the unique key of a follow-up. The engine returns `held` for such a settlement. The
worker sends it again until the transaction ends and writes every other outcome as usual. The job stays claimed by this
worker meanwhile. While as many outcomes of a queue wait as the worker keeps of a store that is away, it claims nothing
more from that queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import random
from typing import TYPE_CHECKING, TypeAlias

from stoker.model import ids
from stoker.model.job import LARGEST_BATCH, Claim, Settlement, Verdict

if TYPE_CHECKING:
    from stoker.engines.base import Engine
    from stoker.worker.fetcher import Fetcher
    from stoker.worker.store_loop import OutcomeBuffer

logger = logging.getLogger("stoker.worker")

Settled: TypeAlias = Callable[[list[Claim], list[Settlement], list[Verdict]], Awaitable[None]]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries of what waits for a lock."""

WARN_AFTER = 5.0
"""Seconds an outcome waits before a warning names its job: most locks are released by then."""


class HeldOutcomes:
    """Keeps the outcomes that wait. Calls `settled` with those that were written, and `wake` after each call."""

    def __init__(
        self,
        engine: Engine,
        fetcher: Fetcher,
        outcomes: OutcomeBuffer,
        settled: Settled,
        wake: Callable[[], object],
    ) -> None:
        self._engine = engine
        self._fetcher = fetcher
        self._outcomes = outcomes
        self._queues: Counter[str] = Counter()
        self._closed: set[str] = set()
        self._wake = wake
        self._settled = settled
        self.waiting: list[tuple[Claim, Settlement]] = []
        self._filled = asyncio.Event()
        self._since = 0.0
        self._named = False

    def put(self, claim: Claim, settlement: Settlement) -> None:
        """Keep an outcome for which the engine returned `held`."""
        self.waiting.append((claim, settlement))
        self._filled.set()
        self._queues[claim.queue] += 1
        if self._queues[claim.queue] >= self._outcomes.most and claim.queue not in self._closed:
            self._close(claim, settlement)

    def sift(self, claims: list[Claim], settlements: list[Settlement]) -> tuple[list[Claim], list[Settlement]]:
        """Take outcomes that need a held key out of a batch; returns the rest."""
        held = frozenset[str]().union(*(settlement.slots for _, settlement in self.waiting))
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
        for queue in self._closed:  # for the next start of this worker
            self._fetcher.reopen(queue)
        return len(self.waiting)

    async def _until_empty(self) -> None:
        pause = SHORTEST_PAUSE
        while self.waiting:
            await asyncio.sleep(pause * (0.75 + random() / 2))
            before = len(self.waiting)
            await self._once()
            pause = SHORTEST_PAUSE if len(self.waiting) < before else min(2 * pause, LONGEST_PAUSE)
            self._name_one()

    async def _once(self) -> None:
        """Send them in one call. After an error the store loop sends them."""
        batch = self.waiting[:LARGEST_BATCH]
        claims, settlements = [claim for claim, _ in batch], [settlement for _, settlement in batch]
        outcomes = self._outcomes
        outcomes.flying.append(claims)
        verdicts: list[Verdict] | None = None
        try:
            verdicts = (await self._engine.jobs.settle(settlements)).verdicts
        except Exception:  # noqa: BLE001 - the store loop meets the error again and handles it
            outcomes.put_back(claims, settlements)
        finally:
            outcomes.flying[:] = [others for others in outcomes.flying if others is not claims]
        del self.waiting[: len(batch)]
        self._queues.subtract(claim.queue for claim in claims)
        if verdicts is not None:
            await self._settled(claims, settlements, verdicts)
        self._reopen()
        self._wake()

    def _close(self, claim: Claim, settlement: Settlement) -> None:
        """Stop claiming from a queue: what waits must not grow for as long as a transaction is open."""
        self._closed.add(claim.queue)
        self._fetcher.close(claim.queue)
        logger.warning(
            "this worker claims no more jobs from queue %s: %d outcomes of its jobs, the last of job %s (%s), wait for "
            "other transactions, which hold unique keys of follow-ups (%s). They are tried again until those "
            "transactions end, and claiming goes on when half of them are written. Other queues are served.",
            claim.queue,
            self._queues[claim.queue],
            ids.text(claim.id),
            claim.kind,
            ", ".join(sorted(settlement.slots)),
        )

    def _reopen(self) -> None:
        for queue in [queue for queue in self._closed if self._queues[queue] <= self._outcomes.most // 2]:
            self._closed.discard(queue)
            self._fetcher.reopen(queue)
            logger.info("this worker claims jobs from queue %s again; %d outcomes wait", queue, self._queues[queue])

    def _name_one(self) -> None:
        if not self.waiting or self._named or time.monotonic() - self._since < WARN_AFTER:
            return
        self._named = True
        claim, settlement = self.waiting[0]
        logger.warning(
            "the outcome (%s) of job %s (%s) waits for another transaction, which has held the unique key of a "
            "follow-up (%s) for more than %g s; it is tried again until that transaction ends; %d outcomes wait, all "
            "others are written",
            settlement.status,
            ids.text(claim.id),
            claim.kind,
            ", ".join(sorted(settlement.slots)),
            WARN_AFTER,
            len(self.waiting),
        )

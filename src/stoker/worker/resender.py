"""Sends again the outcomes that the store holds up or rejects: they must not keep the others from being written.

*Held*: a user's open transaction may hold the unique key of a follow-up. The engine returns `held` for such a
settlement. The worker sends it again until the transaction ends and writes every other outcome as usual. The job stays
claimed by this worker meanwhile. While as many outcomes of a queue wait as the worker keeps of a store that is away, it
claims nothing more from that queue.

*Rejected*: after an error about the outcomes themselves, not about a store that is away, the worker settles each one
alone. It replaces an outcome that the store rejects by a plain "dead" that says why. If the store rejects that too, the
worker still holds the job and sends its outcome again every `AGAIN_EVERY` seconds.
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
from stoker.model.errors import AWAY, StokerError, sentence
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Claim, Settlement, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Rejected
from stoker.worker.state import Reason

if TYPE_CHECKING:
    from stoker.worker.state import WorkerContext

logger = logging.getLogger("stoker.worker")

Settled: TypeAlias = Callable[[list[Claim], list[Settlement], list[Verdict]], Awaitable[None]]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries of what waits for a lock."""

WARN_AFTER = 5.0
"""Seconds an outcome waits before a warning names its job: most locks are released by then."""

TRIES = 3
"""Rejections after which an outcome is set aside; one is enough when the store accepts others meanwhile."""

AGAIN_EVERY = 30.0
"""Seconds between two tries of a rejected outcome."""


class Resender:
    """Calls `settled` with outcomes that were written, and `wake` after each call about held ones."""

    def __init__(self, context: WorkerContext, settled: Settled, wake: Callable[[], object]) -> None:
        self._engine = context.engine
        self._fetcher = context.fetcher
        self._outcomes = context.outcomes
        self._settled = settled
        self._wake = wake
        self._queues: Counter[str] = Counter()  # of held outcomes
        self._closed: set[str] = set()
        self._filled = asyncio.Event()
        self._since = 0.0
        self._named = False
        self._refusals: Counter[JobId] = Counter()
        self._again_at = 0.0

    # --- held ---------------------------------------------------------------------------------------------------

    def hold(self, claim: Claim, settlement: Settlement) -> None:
        """Set an outcome aside for which the engine returned `held`."""
        self._outcomes.set_aside(claim, settlement, Reason.HELD)
        self._filled.set()
        self._queues[claim.queue] += 1
        if self._queues[claim.queue] >= self._outcomes.most and claim.queue not in self._closed:
            self._close(claim, settlement)

    def sift(self, claims: list[Claim], settlements: list[Settlement]) -> tuple[list[Claim], list[Settlement]]:
        """Take outcomes that need a held key out of a batch; returns the rest."""
        held = frozenset[str]().union(*(one.settlement.slots for one in self._outcomes.held))
        rest: tuple[list[Claim], list[Settlement]] = [], []
        for claim, settlement in zip(claims, settlements, strict=True):
            if settlement.followups and not held.isdisjoint(settlement.slots):
                self.hold(claim, settlement)
            else:
                rest[0].append(claim)
                rest[1].append(settlement)
        return rest

    async def serve(self) -> None:
        """Send held outcomes again, with growing pauses, until canceled."""
        while True:
            await self._filled.wait()
            self._since, self._named = time.monotonic(), False
            await self._until_none_is_held()
            self._filled.clear()

    async def finish(self, end: float) -> int:
        """Try until a moment of the monotonic clock; returns how many held outcomes are left."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                await self._until_none_is_held()
        for queue in self._closed:  # for the next start of this worker
            self._fetcher.reopen(queue)
        return len(self._outcomes.held)

    async def _until_none_is_held(self) -> None:
        pause = SHORTEST_PAUSE
        while before := len(self._outcomes.held):
            await asyncio.sleep(pause * (0.75 + random() / 2))
            await self._send_held()
            pause = SHORTEST_PAUSE if len(self._outcomes.held) < before else min(2 * pause, LONGEST_PAUSE)
            self._name_one()

    async def _send_held(self) -> None:
        """Send them in one call. After an error the store loop sends them."""
        outcomes = self._outcomes
        batch = outcomes.held[:LARGEST_BATCH]
        claims, settlements = [one.claim for one in batch], [one.settlement for one in batch]
        verdicts: list[Verdict] | None = None
        outcomes.flying.append(claims)
        try:
            verdicts = (await self._engine.jobs.settle(settlements)).verdicts
        except Exception:  # noqa: BLE001 - the store loop meets the error again and handles it
            outcomes.put_back(claims, settlements)
        finally:
            outcomes.landed(claims)
        outcomes.take_up(batch)
        self._queues.subtract(claim.queue for claim in claims)
        if verdicts is not None:
            await self._settled(claims, settlements, verdicts)
        for queue in [queue for queue in self._closed if self._queues[queue] <= outcomes.most // 2]:
            self._closed.discard(queue)
            self._fetcher.reopen(queue)
            logger.info(
                "this worker claims jobs from queue %s again; outcomes that wait: %d", queue, self._queues[queue]
            )
        self._wake()

    def _close(self, claim: Claim, settlement: Settlement) -> None:
        """Stop claiming from a queue: what waits must not grow for as long as a transaction is open."""
        self._closed.add(claim.queue)
        self._fetcher.close(claim.queue)
        logger.warning(
            "this worker claims no more jobs from queue %s: %s of its jobs, the last of job %s (%s), must wait for "
            "other transactions, which hold unique keys of follow-ups (%s). They are tried again until those "
            "transactions end, and claiming goes on when half of them are written. Other queues are served.",
            claim.queue,
            count(self._queues[claim.queue], "outcome"),
            ids.text(claim.id),
            claim.kind,
            ", ".join(sorted(settlement.slots)),
        )

    def _name_one(self) -> None:
        held = self._outcomes.held
        if not held or self._named or time.monotonic() - self._since < WARN_AFTER:
            return
        self._named = True
        claim, settlement, _ = held[0]
        logger.warning(
            "the outcome (%s) of job %s (%s) waits for another transaction, which has held the unique key of a "
            "follow-up (%s) for more than %g s; it is tried again until that transaction ends. Outcomes that wait: %d; "
            "all others are written",
            settlement.status,
            ids.text(claim.id),
            claim.kind,
            ", ".join(sorted(settlement.slots)),
            WARN_AFTER,
            len(held),
        )

    # --- rejected -----------------------------------------------------------------------------------------------

    async def sort_out(self, claims: list[Claim], settlements: list[Settlement], error: Exception) -> bool:
        """Settle one by one what a failed call has put back.

        Returns False when the store is or may be away; outcomes that were not written are put back then.
        """
        if not settlements or isinstance(error, AWAY):
            return False
        outcomes, waiting = self._outcomes, list(zip(claims, settlements, strict=True))
        del outcomes.claims[: len(claims)], outcomes.settlements[: len(claims)]
        outcomes.flying.append(claims)
        refused: list[tuple[Claim, Settlement, Exception]] = []
        accepted = 0
        try:
            while waiting and (accepted or len(refused) < TRIES):
                claim, settlement = waiting[0]
                trouble = await self._settle(claim, settlement)
                if trouble is None:
                    accepted += 1
                else:
                    refused.append((claim, settlement, trouble))
                del waiting[0]
        except AWAY:
            return False
        finally:
            outcomes.landed(claims)
            waiting += self._set_aside(refused, others=accepted > 0)
            outcomes.put_back([claim for claim, _ in waiting], [settlement for _, settlement in waiting])
        return not waiting or accepted > 0

    async def _settle(self, claim: Claim, settlement: Settlement) -> Exception | None:
        """Settle one outcome, else its substitute; returns why neither was accepted. Raises if the store is away."""
        trouble: Exception | None = None
        for substitute in (False, True):
            one = settlement
            if substitute:
                one = conclude(claim, Rejected(f"its outcome ({settlement.status}) could not be stored: {trouble}"))
            try:
                [verdict] = (await self._engine.jobs.settle([one])).verdicts
            except AWAY:
                raise
            except Exception as refusal:  # noqa: BLE001 - no error of one outcome may stop the others
                trouble = trouble or refusal
                continue
            self._refusals.pop(claim.id, None)
            await self._settled([claim], [one], [verdict])
            return None
        return trouble

    def _set_aside(
        self, refused: list[tuple[Claim, Settlement, Exception]], *, others: bool
    ) -> list[tuple[Claim, Settlement]]:
        """Set outcomes aside that are certainly rejected for their own sake; returns the rest."""
        again = []
        for claim, settlement, trouble in refused:
            self._refusals[claim.id] += 1
            if not others and isinstance(trouble, StokerError) and self._refusals[claim.id] < TRIES:
                again.append((claim, settlement))
                continue
            self._outcomes.set_aside(claim, settlement, Reason.REJECTED)
            self._again_at = time.monotonic() + AGAIN_EVERY
            logger.error(
                "the store rejects every outcome of job %s (%s): %s It stays running here and is tried again every "
                "%g s; when this worker stops, the job runs again elsewhere.",
                ids.text(claim.id),
                claim.kind,
                sentence(trouble),
                AGAIN_EVERY,
            )
        return again

    async def send_rejected(self) -> None:
        """Send rejected outcomes again, if it is time."""
        rejected = self._outcomes.rejected
        if not rejected or time.monotonic() < self._again_at:
            return
        self._again_at = time.monotonic() + AGAIN_EVERY
        for one in rejected:
            try:
                trouble = await self._settle(one.claim, one.settlement)
            except AWAY:
                return
            if trouble is None:
                self._outcomes.take_up([one])

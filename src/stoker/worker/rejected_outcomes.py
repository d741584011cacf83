"""Outcomes that the store rejects: one of them must not keep the others from being written.

After an error about the outcomes themselves, not about a store that is away, the worker settles each outcome alone. It
replaces a rejected outcome by a plain "dead" that says why. If the store rejects that too, the outcome is parked: the
worker still holds the job and sends its outcome again every `AGAIN_EVERY` seconds.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from stoker.model import ids
from stoker.model.errors import AWAY, StokerError
from stoker.model.ids import JobId
from stoker.model.job import Claim, Settlement, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Rejected

if TYPE_CHECKING:
    from stoker.engines.base import Engine
    from stoker.worker.store_loop import OutcomeBuffer

logger = logging.getLogger("stoker.worker")

Settled: TypeAlias = Callable[[list[Claim], list[Settlement], list[Verdict]], Awaitable[None]]

TRIES = 3
"""Rejections after which an outcome is parked; one is enough when the store accepts others meanwhile."""

AGAIN_EVERY = 30.0
"""Seconds between two tries of a parked outcome."""


class RejectedOutcomes:
    """Calls `settled` with outcomes that were written."""

    def __init__(self, engine: Engine, outcomes: OutcomeBuffer, settled: Settled) -> None:
        self._engine = engine
        self._outcomes = outcomes
        self._settled = settled
        self._refusals: Counter[JobId] = Counter()
        self._again_at = 0.0
        self.parked: list[tuple[Claim, Settlement]] = []

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
            outcomes.flying[:] = [others for others in outcomes.flying if others is not claims]
            waiting += self._park(refused, others=accepted > 0)
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

    def _park(
        self, refused: list[tuple[Claim, Settlement, Exception]], *, others: bool
    ) -> list[tuple[Claim, Settlement]]:
        """Park outcomes that are certainly rejected for their own sake; returns the rest."""
        again = []
        for claim, settlement, trouble in refused:
            self._refusals[claim.id] += 1
            if not others and isinstance(trouble, StokerError) and self._refusals[claim.id] < TRIES:
                again.append((claim, settlement))
                continue
            self.parked.append((claim, settlement))
            self._again_at = time.monotonic() + AGAIN_EVERY
            logger.error(
                "the store rejects every outcome of job %s (%s): %s It stays running here and is tried again every "
                "%g s; when this worker stops, the job runs again elsewhere.",
                ids.text(claim.id),
                claim.kind,
                trouble,
                AGAIN_EVERY,
            )
        return again

    async def try_again(self) -> None:
        """Send parked outcomes again, if it is time."""
        if not self.parked or time.monotonic() < self._again_at:
            return
        self._again_at = time.monotonic() + AGAIN_EVERY
        parked, self.parked = self.parked, []
        for place, (claim, settlement) in enumerate(parked):
            try:
                trouble = await self._settle(claim, settlement)
            except AWAY:
                self.parked += parked[place:]
                return
            if trouble is not None:
                self.parked.append((claim, settlement))

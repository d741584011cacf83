"""Gathers settlements until they are worth a write: by size, or a few milliseconds after the first."""

from __future__ import annotations

from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Claim, Settlement
from stoker.worker.fetcher import SMALLEST


class Settler:
    """Outcomes that are decided and not written yet. `most`: with so many the slots should stop making more.

    The two lists stay the same objects for ever: the slots hold on to them. `flying` are the claims of each write that
    is under way.
    """

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch or SMALLEST
        self.most = 20 * self.batch
        self._adapts = batch is None
        self.claims: list[Claim] = []
        self.settlements: list[Settlement] = []
        self.flying: list[list[Claim]] = []

    def follow(self, batch: int) -> None:
        """So many are worth a write from now on, unless the size was set."""
        if self._adapts:
            self.batch = batch

    def __len__(self) -> int:
        return len(self.settlements)

    @property
    def full(self) -> bool:
        """Is there a whole batch?"""
        return len(self.settlements) >= self.batch

    @property
    def in_flight(self) -> frozenset[JobId]:
        """The jobs whose settlement is under way."""
        return frozenset([claim.id for claims in self.flying for claim in claims])

    def put(self, claim: Claim, settlement: Settlement) -> None:
        """One more."""
        self.claims.append(claim)
        self.settlements.append(settlement)

    def take(self) -> tuple[list[Claim], list[Settlement]]:
        """Everything, up to what one atomic write may hold."""
        taken = self.claims[:LARGEST_BATCH], self.settlements[:LARGEST_BATCH]
        del self.claims[:LARGEST_BATCH]
        del self.settlements[:LARGEST_BATCH]
        return taken

    def put_back(self, claims: list[Claim], settlements: list[Settlement]) -> None:
        """The store could not be reached: they go first next time."""
        self.claims[:0] = claims
        self.settlements[:0] = settlements

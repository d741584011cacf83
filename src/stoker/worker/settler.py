"""Gathers settlements until they are worth a write: by size, or a few milliseconds after the first."""

from __future__ import annotations

from stoker.model.ids import JobId
from stoker.model.job import Claim, Settlement


class Settler:
    """Outcomes that are decided and not written yet. `in_flight` are those whose write is under way."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.claims: list[Claim] = []
        self.settlements: list[Settlement] = []
        self.in_flight: frozenset[JobId] = frozenset()

    def __len__(self) -> int:
        return len(self.settlements)

    @property
    def full(self) -> bool:
        """Is there a whole batch?"""
        return len(self.settlements) >= self.batch

    @property
    def swamped(self) -> bool:
        """So much waits for the store that slots should stop making more."""
        return len(self.settlements) >= 20 * self.batch

    def put(self, claim: Claim, settlement: Settlement) -> None:
        """One more."""
        self.claims.append(claim)
        self.settlements.append(settlement)

    def take(self) -> tuple[list[Claim], list[Settlement]]:
        """Everything, up to what one atomic write may hold."""
        if len(self.settlements) <= 1_000:
            taken = self.claims, self.settlements
            self.claims, self.settlements = [], []
        else:
            taken = self.claims[:1_000], self.settlements[:1_000]
            del self.claims[:1_000]
            del self.settlements[:1_000]
        return taken

    def put_back(self, claims: list[Claim], settlements: list[Settlement]) -> None:
        """The store could not be reached: they go first next time."""
        self.claims[:0] = claims
        self.settlements[:0] = settlements

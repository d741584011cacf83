"""Ends claims and writes notes on running jobs."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import Transaction
from stoker.engines.memory.access import Facet
from stoker.engines.memory.leases import claim
from stoker.engines.memory.store import Store
from stoker.engines.shared import one_by_one
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.errors import InvalidInput
from stoker.model.job import Demand, Note, Settled, Settlement, Verdict
from stoker.model.lifecycle import check_settlements


class Settler(Facet):
    """Settlements and notes."""

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        if tx is not None:
            if demand is not None:
                raise InvalidInput("demand", demand, "cannot go with tx=: a claim must not depend on a later commit")
            return Settled(self._access.join(tx, settle, tuple(settlements)), [])
        with self._write as store:
            now = store.now()
            verdicts = store.run(settle, settlements)
            settled = Settled(verdicts, claim(store, demand, now) if demand is not None else [])
        self._access.ends.settled(settlements, verdicts)
        return settled

    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        return self._run(tx, _note, tuple(notes))


def settle(store: Store, unit: UnitOfWork, settlements: Sequence[Settlement]) -> list[Verdict]:
    """End claims, each independently of the others."""
    check_settlements(settlements)
    store.load(unit, one_by_one.wanted_by_settlements(settlements))
    return one_by_one.settle(unit, settlements)


def _note(store: Store, unit: UnitOfWork, notes: Sequence[Note]) -> list[Verdict]:
    """Write progress, metadata and log lines on running jobs."""
    store.load(unit, Wanted(frozenset(one.id for one in notes)))
    return [one_by_one.note_one(unit, one) for one in notes]

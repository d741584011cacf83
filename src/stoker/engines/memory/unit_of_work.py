"""Inserting, settling, noting and altering: loaded into a unit of work and decided by the shared careful path."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.memory.store import Store
from stoker.engines.shared import careful
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.errors import EngineFull
from stoker.model.job import ACTIVE, Draft, Note, Receipt, Settlement, Verdict
from stoker.model.lifecycle import check_settlements
from stoker.model.query import Change, Selection, Tally


def insert(store: Store, unit: UnitOfWork, drafts: Sequence[Draft]) -> list[Receipt]:
    """Store drafts, all or none."""
    store.load(unit, careful.wanted_by_drafts(drafts))
    before = store.active + _growth(unit)
    receipts = careful.insert(unit, drafts)
    if store.capacity is not None and store.active + _growth(unit) > max(before, store.capacity):
        raise EngineFull(
            f"memory:// has room for {store.capacity} active jobs (capacity={store.capacity}) and {before} are "
            f"stored. Nothing of this call was stored. Try again when workers have caught up, raise capacity=, "
            f'or let callers wait with when_full="wait".'
        )
    return receipts


def _growth(unit: UnitOfWork) -> int:
    """How many active jobs more there will be."""
    return sum(n for (_, _, status), n in unit.counts().items() if status in ACTIVE)


def settle(store: Store, unit: UnitOfWork, settlements: Sequence[Settlement]) -> list[Verdict]:
    """End claims, each for itself."""
    check_settlements(settlements)
    store.load(unit, careful.wanted_by_settlements(settlements))
    return careful.settle(unit, settlements)


def note(store: Store, unit: UnitOfWork, notes: Sequence[Note]) -> list[Verdict]:
    """Write on running jobs what their handlers noted."""
    store.load(unit, Wanted(frozenset(one.id for one in notes)))
    return [careful.note_one(unit, one) for one in notes]


def alter(store: Store, unit: UnitOfWork, selection: Selection, change: Change) -> Tally:
    """Apply a change to the selected jobs."""
    careful.check(selection, change)
    store.load(unit, careful.wanted_by_change(selection, change))
    alteration = careful.Alteration(unit, selection, change)
    alteration.run(range(len(selection.ids)))
    return careful.tally(selection, [alteration])

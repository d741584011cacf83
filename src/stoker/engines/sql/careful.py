"""The careful path as statements: load what an operation needs, decide, write the difference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from stoker.engines.shared import careful
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.engines.sql.steps import Steps
from stoker.model.groups import Group
from stoker.model.job import Draft, Note, Receipt, Verdict
from stoker.model.query import Change, Selection, Tally


class SqlUnit(UnitOfWork, ABC):
    """A unit of work that reads and writes by statements."""

    @abstractmethod
    def load(self, wanted: Wanted) -> Steps[None]:
        """Read what is not read yet."""

    @abstractmethod
    def write(self) -> Steps[None]:
        """Write the difference, and begin anew."""


def insert(unit: SqlUnit, drafts: Sequence[Draft], group: Group | None = None) -> Steps[list[Receipt]]:
    """Store drafts; receipts in their order. After an error the transaction must be rolled back."""
    yield from unit.load(careful.wanted_by_drafts(drafts, group))
    receipts = careful.insert(unit, drafts, group)
    yield from unit.write()
    return receipts


def note(unit: SqlUnit, notes: Sequence[Note]) -> Steps[list[Verdict]]:
    """Write progress, metadata and log lines on running jobs."""
    yield from unit.load(Wanted(frozenset(one.id for one in notes)))
    verdicts = [careful.note_one(unit, one) for one in notes]
    yield from unit.write()
    return verdicts


def alter(unit: SqlUnit, selection: Selection, change: Change) -> Steps[Tally]:
    """Apply a change to the selected jobs."""
    yield from unit.load(careful.wanted_by_change(selection, change))
    alteration = careful.Alteration(unit, selection, change)
    alteration.run(range(len(selection.ids)))
    yield from unit.write()
    return careful.tally(selection, [alteration])

"""Changes one by one as statements: load what an operation needs, decide, write the difference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from stoker.engines.shared import one_by_one
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.engines.sql.exchanges import Exchange
from stoker.model.archive import Archived, Put
from stoker.model.errors import StokerError
from stoker.model.groups import Group
from stoker.model.job import Draft, Note, Receipt, Verdict
from stoker.model.query import Change, Selection, Tally

T = TypeVar("T")


class SqlUnit(UnitOfWork, ABC):
    """A unit of work that reads and writes by statements."""

    @abstractmethod
    def load(self, wanted: Wanted) -> Exchange[None]:
        """Read what is not read yet."""

    def load_drafts(self, drafts: Sequence[Draft], group: Group | None = None) -> Exchange[None]:
        """Read what inserting these drafts needs, and perhaps a new group for them."""
        yield from self.load(one_by_one.wanted_by_drafts(drafts, group))

    def load_archived(self, jobs: Sequence[Archived]) -> Exchange[None]:
        """Read what storing these jobs of another store needs."""
        yield from self.load(one_by_one.wanted_by_archived(jobs))

    @abstractmethod
    def write(self) -> Exchange[bool]:
        """Write the difference, and begin anew.

        False, with nothing written: another transaction has just stored a job that was not there when it was loaded.
        """

    def undo(self) -> Exchange[None]:
        """Take back what loading wrote."""
        yield from ()


def decided(unit: SqlUnit, load: Callable[[], Exchange[None]], decide: Callable[[], T]) -> Exchange[T]:
    """Load, decide and write; again if another transaction came between."""
    while True:
        yield from load()
        try:
            answer = decide()
        except StokerError:
            yield from unit.undo()
            raise
        if (yield from unit.write()):
            return answer


def insert(unit: SqlUnit, drafts: Sequence[Draft], group: Group | None = None) -> Exchange[list[Receipt]]:
    """Store drafts; receipts in their order. After an error nothing of the call is written."""
    return (
        yield from decided(
            unit, lambda: unit.load_drafts(drafts, group), lambda: one_by_one.insert(unit, drafts, group)
        )
    )


def put(unit: SqlUnit, jobs: Sequence[Archived]) -> Exchange[list[Put]]:
    """Store jobs of another store."""
    return (yield from decided(unit, lambda: unit.load_archived(jobs), lambda: one_by_one.put(unit, jobs)))


def note(unit: SqlUnit, notes: Sequence[Note]) -> Exchange[list[Verdict]]:
    """Write progress, metadata and log lines on running jobs."""
    yield from unit.load(Wanted(frozenset(one.id for one in notes)))
    verdicts = [one_by_one.note_one(unit, one) for one in notes]
    yield from unit.write()
    return verdicts


def alter(unit: SqlUnit, selection: Selection, change: Change) -> Exchange[Tally]:
    """Apply a change to the selected jobs."""
    wanted = one_by_one.wanted_by_change(selection, change)

    def decide() -> Tally:
        alteration = one_by_one.Alteration(unit, selection, change)
        alteration.run(range(len(selection.ids)))
        return one_by_one.tally(selection, [alteration])

    return (yield from decided(unit, lambda: unit.load(wanted), decide))

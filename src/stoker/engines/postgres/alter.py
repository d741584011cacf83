"""Operators' changes to jobs, in one transaction: each is decided about by itself, in the order of the selection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stoker.engines.call_times import timed
from stoker.engines.postgres import audit
from stoker.engines.postgres.facet import Facet
from stoker.engines.shared.one_by_one import check
from stoker.engines.sql import one_by_one
from stoker.engines.sql.packing import legible
from stoker.model.audit import By, of_alter
from stoker.model.query import Cancel, Change, Selection, Tally

if TYPE_CHECKING:
    from stoker.engines.postgres.claim import Claimer
    from stoker.engines.postgres.store import Store


class Alterer(Facet):
    """Applies operators' changes."""

    def __init__(self, store: Store, claimer: Claimer) -> None:
        super().__init__(store)
        self._claimer = claimer

    @timed(write=True)
    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        check(selection, change)
        self._store.inside()
        if not selection.ids:
            return Tally()
        wanted = Cancel(legible(change.reason), change.force) if isinstance(change, Cancel) else change
        tell = partial(of_alter, selection, wanted)
        try:
            tally = await self._store.write(
                lambda unit: audit.audited(unit, one_by_one.alter(unit, selection, wanted), by, tell), lane="admin"
            )
            await self._store.group_closer.run_now()
        finally:
            # Also when only the answer to its commit was lost.
            self._claimer.forget()
        self._store.notifier.ends.altered(selection, change, tally)
        return tally

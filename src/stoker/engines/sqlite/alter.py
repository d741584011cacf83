"""Change jobs for operators, with the audit entry in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stoker.engines.call_times import timed
from stoker.engines.shared.one_by_one import check
from stoker.engines.sql import one_by_one
from stoker.engines.sqlite import audit
from stoker.engines.sqlite.facet import Facet
from stoker.model.archive import Archived, Put
from stoker.model.audit import By, of_alter
from stoker.model.query import Change, Selection, Tally


class Alterer(Facet):
    """Changes jobs for operators."""

    @timed(write=True)
    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        check(selection, change)
        tell = partial(of_alter, selection, change)
        tally = await self._store.write(
            lambda unit: audit.audited(unit, one_by_one.alter(unit, selection, change), by, tell), strict=True
        )
        self._store.ends.altered(selection, change, tally)
        return tally

    @timed(write=True)
    async def put(self, jobs: Sequence[Archived]) -> list[Put]:
        return await self._store.write(lambda unit: one_by_one.put(unit, jobs), strict=True) if jobs else []

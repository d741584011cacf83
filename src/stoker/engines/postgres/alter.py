"""Operators' changes to jobs, in one transaction: each is decided about by itself, in the order of the selection.

A user's open transaction may have locked one of the jobs, by a signal, and ask for another one next that the change has
locked. So a change waits only for a moment with its own locks held; then it lets go of them and begins anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stoker.engines.call_times import timed
from stoker.engines.postgres import audit
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.facet import Facet
from stoker.engines.shared.one_by_one import check
from stoker.engines.sql import one_by_one
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.packing import legible
from stoker.model.archive import Archived, Put
from stoker.model.audit import By, of_alter
from stoker.model.query import Cancel, Change, Selection, Tally

if TYPE_CHECKING:
    from stoker.engines.postgres.claim import Claimer
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.unit_of_work import Unit


LOCK_WAIT = 0.2
"""Seconds that a change waits for a lock; the server takes a deadlock for one after a second."""

PAUSE = 0.05


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
            tally = await self._write(
                lambda unit: audit.audited(unit, one_by_one.alter(unit, selection, wanted), by, tell)
            )
            await self._store.group_closer.run_now()
        finally:
            # Also when only the answer to its commit was lost.
            self._claimer.forget()
        self._store.notifier.ends.altered(selection, change, tally)
        return tally

    @timed(write=True)
    async def put(self, jobs: Sequence[Archived]) -> list[Put]:
        self._store.inside()
        try:
            return await self._store.write(lambda unit: one_by_one.put(unit, jobs), lane="admin") if jobs else []
        finally:
            self._claimer.forget()

    async def _write(self, make: Callable[[Unit], Exchange[Tally]]) -> Tally:
        end = time.monotonic() + self._store.options.patience
        while True:
            try:
                return await self._store.write(make, lane="admin", lock_wait=LOCK_WAIT)
            except Locked:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(PAUSE)

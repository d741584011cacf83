"""Batches the concurrent inserts of one engine into shared statements, with keys and without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from stoker.engines.postgres.connection import Conflict
from stoker.engines.postgres.insert import carefully, together
from stoker.engines.shared.insert_batcher import InsertBatcher, Put
from stoker.model.errors import InvalidInput
from stoker.model.job import LARGEST_BATCH, Draft, Receipt

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

PARALLEL = 2
"""Concurrent statements of a batcher: one waits for the fsync while the next is built."""

SMALL = 100
"""A call with more drafts waits for one turn of the loop: several such calls share a statement."""

MOST = 5 * LARGEST_BATCH
"""Drafts without keys in one statement: concurrent calls of an import share it."""


class InsertBatchers:
    """The two batchers of an engine: one for drafts without unique keys, one for those with keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._carefully = partial(carefully, store)
        self._plain = self._batcher(partial(together, store), MOST)
        self._keyed = self._batcher(self._carefully, LARGEST_BATCH)

    def _batcher(self, put: Put, most: int) -> InsertBatcher:
        refusals = (Conflict, InvalidInput)
        return InsertBatcher(put, parallel=PARALLEL, most=most, small=SMALL, alone=self._carefully, refusals=refusals)

    async def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store drafts; receipts in their order."""
        self._store.inside()
        if not drafts:
            return []
        modes = {draft.unique.mode for draft in drafts if draft.unique is not None}
        if "raise" in modes:
            return await self._carefully(drafts)
        return await (self._keyed if modes else self._plain).put(drafts)

    async def close(self) -> None:
        """Store what is still waiting."""
        await self._plain.close()
        await self._keyed.close()

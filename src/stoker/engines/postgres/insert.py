"""Inserting: drafts become pending jobs.

Fresh drafts without keys are inserted by one statement; drafts with keys go one by one. Concurrent calls of one
engine share statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.engines.call_times import timed
from stoker.engines.postgres.columns import draft_columns
from stoker.engines.postgres.connection import Conflict
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.shared.insert_batcher import InsertBatcher, Put
from stoker.engines.sql import one_by_one
from stoker.engines.sql.exchanges import Exchange
from stoker.model.errors import InvalidInput
from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Draft, Receipt, Stored
from stoker.model.next_due import wakes
from stoker.model.record import due_at

if TYPE_CHECKING:
    from stoker.engines.base import Transaction
    from stoker.engines.postgres.claim import Claimer
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.user_transaction import Transactions

_INSERT = sql("insert")
_CREATE = sql("create")
_INSERTED, _EXISTING = Stored.INSERTED, Stored.EXISTING

SLOWEST = 2_000_000
"""Bytes of payload that even a slow server stores in a second."""

PARALLEL = 2
"""Concurrent statements of a batcher: one waits for the fsync while the next is built."""

SMALL = 100
"""A call with more drafts waits for one turn of the loop: several such calls share a statement."""

MOST = 5 * LARGEST_BATCH
"""Drafts without keys in one statement: concurrent calls of an import share it."""


class Inserter(Facet):
    """Stores drafts. Those without unique keys and those with keys have a batcher each."""

    def __init__(self, store: Store, claimer: Claimer, transactions: Transactions) -> None:
        super().__init__(store)
        self._claimer = claimer
        self._transactions = transactions
        self._plain = self._batcher(self._together, MOST)
        self._keyed = self._batcher(self._one_by_one, LARGEST_BATCH)

    def _batcher(self, put: Put[Draft, Receipt], most: int) -> InsertBatcher[Draft, Receipt]:
        refusals = (Conflict, InvalidInput)
        return InsertBatcher(put, parallel=PARALLEL, most=most, small=SMALL, alone=self._one_by_one, refusals=refusals)

    @timed(write=True)
    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        if tx is not None:
            return await self._transactions.join(tx, lambda unit: insert(unit, drafts, group), moves_jobs=True)
        if are_grouped(drafts, group):
            receipts = await self._one_by_one(drafts, group)
        else:
            receipts = await self._batched(drafts)
        self._claimer.inserted(drafts)
        return receipts

    async def close(self) -> None:
        """Store what is still waiting."""
        await self._plain.close()
        await self._keyed.close()

    async def _batched(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store drafts that neither make a group nor join one, with those of concurrent calls."""
        self._store.inside()
        if not drafts:
            return []
        modes = {draft.unique.mode for draft in drafts if draft.unique is not None}
        if "raise" in modes:
            return await self._one_by_one(drafts)
        return await (self._keyed if modes else self._plain).put(drafts)

    async def _together(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store drafts in one statement; raise `Conflict` if one of the ids is stored already."""
        store, extra = self._store, sum(len(draft.payload) for draft in drafts) / SLOWEST
        [(now,)] = await store.once("write", _INSERT, (store.now(), *draft_columns(drafts)), extra=extra)
        woken = {draft.queue for draft in drafts if wakes(due_at(draft, now), now)}
        if woken:
            store.notify(woken)
        return [Receipt(draft.job_id, _INSERTED) for draft in drafts]

    async def _one_by_one(self, drafts: Sequence[Draft], group: Group | None = None) -> list[Receipt]:
        """Store drafts of which some may have keys, join groups or be stored already."""
        return await self._store.write(lambda unit: insert(unit, drafts, group), lane="keyed")


def are_grouped(drafts: Sequence[Draft], group: Group | None) -> bool:
    """Whether a call makes a group or adds to one."""
    return group is not None or any(draft.options.group is not None for draft in drafts)


def insert(unit: Unit, drafts: Sequence[Draft], group: Group | None = None) -> Exchange[list[Receipt]]:
    """Store drafts, and a new group; receipts in their order. After an error nothing of the call is stored."""
    if any(draft.unique is not None for draft in drafts) or are_grouped(drafts, group):
        return (yield from one_by_one.insert(unit, drafts, group))
    if not drafts:
        return []
    firsts: dict[JobId, Draft] = {}
    for draft in drafts:
        firsts.setdefault(draft.job_id, draft)
    stored = {job for (job,) in (yield _CREATE, (unit.now, *draft_columns([*firsts.values()])))}
    receipts: list[Receipt] = []
    for draft in drafts:
        receipts.append(Receipt(draft.job_id, _INSERTED if draft.job_id in stored else _EXISTING))
        if draft.job_id in stored and wakes(due_at(draft, unit.now), unit.now):
            unit.wake(draft.queue)
        stored.discard(draft.job_id)
    return receipts

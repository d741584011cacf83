"""Stores jobs, at once or when there is room for them.

Inserts that wait for room form one queue per store, over all its engines, first come, first served. Only the first in
the queue tries, so an insert of few jobs does not overtake one of many. A caller that leaves the queue, served or
canceled, lets the next one try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from stoker.engines.base import Transaction
from stoker.engines.memory.access import Access, Facet
from stoker.engines.memory.store import Store
from stoker.engines.memory.waiters import Waiter
from stoker.engines.shared import one_by_one
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model.errors import EngineFull
from stoker.model.groups import Group
from stoker.model.job import ACTIVE, Draft, Receipt

WhenFull = Literal["raise", "wait"]


class Inserter(Facet):
    """Inserts, and their wait for room."""

    def __init__(self, access: Access, when_full: WhenFull) -> None:
        super().__init__(access)
        self._when_full = when_full

    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        if tx is not None:
            return self._access.join(tx, insert, tuple(drafts), group)
        try:
            with self._write as store:
                if not store.waiting_for_room:
                    return store.run(insert, drafts, group)
        except EngineFull:
            if self._when_full == "raise":
                raise
        return await self._when_room(drafts, group)

    async def _when_room(self, drafts: Sequence[Draft], group: Group | None) -> list[Receipt]:
        """Insert when this caller is first in the queue and there is room; refuse at once what can never fit."""
        waiter, waiting = Waiter(), self._access.waiting_for_room
        with self._write as store:
            store.waiting_for_room.append(waiter)
        waiting.add(waiter)
        try:
            while True:
                with self._write:
                    waiter.rearm()
                    if store.waiting_for_room[0] is waiter:
                        try:
                            return store.run(insert, drafts, group)
                        except EngineFull:
                            if store.capacity is None or len(drafts) > store.capacity:
                                raise
                await waiter.future
        finally:
            waiting.discard(waiter)
            with store.lock:
                if waiter in store.waiting_for_room:
                    store.waiting_for_room.remove(waiter)
                store.admit()


def insert(store: Store, unit: UnitOfWork, drafts: Sequence[Draft], group: Group | None = None) -> list[Receipt]:
    """Store drafts, all or none, and a new group with them."""
    store.load(unit, one_by_one.wanted_by_drafts(drafts, group))
    with room(store, unit):
        return one_by_one.insert(unit, drafts, group)


@contextmanager
def room(store: Store, unit: UnitOfWork) -> Iterator[None]:
    """Raise if the store is too full for the jobs that the block adds to the unit."""
    if store.capacity is None:
        yield
        return
    before = store.active + _growth(unit)
    yield
    if store.active + _growth(unit) > max(before, store.capacity):
        raise EngineFull(
            f"memory:// has room for {store.capacity} active jobs (capacity={store.capacity}) and {before} are "
            f"stored. Nothing of this call was stored. Try again when workers have caught up, raise capacity=, "
            f'or let callers wait with when_full="wait".'
        )


def _growth(unit: UnitOfWork) -> int:
    """How many active jobs the unit adds."""
    return sum(n for (_, _, status), n in unit.counts().items() if status in ACTIVE)

"""The engine's own transaction: steps are rehearsed when they are called and performed when the block ends.

A rehearsal runs all steps so far in a unit of work that is thrown away. So each step returns its true
result, other callers see nothing, and no lock is held between two steps. At the end the steps run once more and are
written. If a result now differs from the returned one (the key was taken, the claim was lost), nothing is written and
`EngineBusy` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from stoker.engines.memory import unit_of_work
from stoker.engines.memory.store import Store
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model.errors import EngineBusy, EngineRefused
from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.job import Draft, Receipt, Settlement, Stored, Verdict
from stoker.model.time import Instant

Answer = TypeVar("Answer")
Step: TypeAlias = Callable[[Store, UnitOfWork], Any]


class MemoryTransaction:
    """The handle of one `transaction()` block. Its methods are called with the store's lock held."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._steps: list[tuple[Step, object]] = []
        self._plain: set[JobId] | None = set()
        self._ended = False

    def insert(self, drafts: Sequence[Draft], group: Group | None, now: Instant) -> list[Receipt]:
        """Return what the insert will return, and perform it at the end."""
        step = partial(unit_of_work.insert, drafts=tuple(drafts), group=group)
        if group is None and self._plain is not None and self._is_plain(drafts, self._plain):
            self._plain.update(draft.id for draft in drafts)
            receipts = [Receipt(draft.id, Stored.INSERTED) for draft in drafts]
            self._steps.append((step, receipts))
            return receipts
        return self._rehearse(step, now)

    def settle(self, settlements: Sequence[Settlement], now: Instant) -> list[Verdict]:
        """Return what the settlements will return, and perform them at the end."""
        return self._rehearse(partial(unit_of_work.settle, settlements=tuple(settlements)), now)

    def perform(self, now: Instant) -> None:
        """Write everything at once, or nothing."""
        self._ended = True
        unit = UnitOfWork(now)
        answers = [step(self._store, unit) for step, _ in self._steps]
        if answers != [promised for _, promised in self._steps]:
            raise EngineBusy(
                "another call changed the same jobs or keys while this transaction was open. Nothing of it was "
                "stored. Run the whole block again."
            )
        self._store.apply(unit)

    def forget(self) -> None:
        """Roll back: nothing was written, so there is nothing to undo."""
        self._ended = True

    def check(self, store: Store) -> None:
        """Refuse a handle that cannot be used here."""
        if self._store is not store:
            raise EngineRefused(
                "tx= is a transaction of another memory store. Nothing was stored. Use this engine's own."
            )
        if self._ended:
            raise EngineRefused("tx= is a transaction that has ended. Nothing was stored. Use it inside its block.")

    def _rehearse(self, step: Callable[[Store, UnitOfWork], Answer], now: Instant) -> Answer:
        unit = UnitOfWork(now)
        for earlier, _ in self._steps:
            earlier(self._store, unit)
        answer = step(self._store, unit)
        self._steps.append((step, answer))
        self._plain = None
        return answer

    def _is_plain(self, drafts: Sequence[Draft], before: set[JobId]) -> bool:
        """Whether the result is known without a rehearsal, which keeps many single inserts linear.

        `before` are the ids of the steps so far, as long as all of them were plain.
        """
        ids = {draft.id for draft in drafts}
        return (
            self._store.capacity is None
            and len(ids) == len(drafts)
            and not any(draft.unique is not None or draft.options.group is not None for draft in drafts)
            and ids.isdisjoint(self._store.jobs)
            and before.isdisjoint(ids)
        )


def own(tx: object, store: Store) -> MemoryTransaction:
    """The handle, if it is one of this store's."""
    if not isinstance(tx, MemoryTransaction):
        name = f"{type(tx).__module__}.{type(tx).__qualname__}"
        raise EngineRefused(
            f"memory:// takes only its own transaction() as tx=, not {name}: it cannot join another database's "
            f"transaction. Nothing was stored."
        )
    tx.check(store)
    return tx

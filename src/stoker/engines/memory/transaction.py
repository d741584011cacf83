"""The engine's own transaction: steps are rehearsed when they are called and performed when the block ends.

A rehearsal runs all steps so far in a unit of work that is thrown away. So each step returns its true
result, other callers see nothing, and no lock is held between two steps. At the end the steps run once more and are
written. If a result now differs from the returned one (the key was taken, the claim was lost), nothing is written and
`EngineBusy` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

from stoker.engines.memory import outbox, unit_of_work
from stoker.engines.memory.store import Store
from stoker.engines.memory.streams import StreamUnit
from stoker.model.errors import EngineBusy, EngineRefused
from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Note, Receipt, Settlement, Stored, Verdict
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.delivery import Advance
from stoker.model.outbox.stream import Entry, Stream, check_entries
from stoker.model.time import Instant, Span

Answer = TypeVar("Answer")
Step: TypeAlias = Callable[[Store, StreamUnit], Any]


class MemoryTransaction:
    """The handle of one `transaction()` block. Its methods are called with the store's lock held."""

    def __init__(self, store: Store) -> None:
        self.rolled_back = False
        self._store = store
        self._steps: list[tuple[Step, object]] = []
        self._plain: set[JobId] | None = set()
        self._ended = False

    async def begin(self) -> None:
        """Do nothing: what it does is done at its end."""

    def insert(self, drafts: Sequence[Draft], group: Group | None, now: Instant) -> list[Receipt]:
        """Return what the insert will return, and perform it at the end."""
        step = partial(unit_of_work.insert, drafts=tuple(drafts), group=group)
        if group is None and self._plain is not None and self._is_plain(drafts, self._plain):
            self._plain.update(draft.job_id for draft in drafts)
            receipts = [Receipt(draft.job_id, Stored.INSERTED) for draft in drafts]
            self._steps.append((step, receipts))
            return receipts
        return self._rehearse(step, now)

    def settle(self, settlements: Sequence[Settlement], now: Instant) -> list[Verdict]:
        """Return what the settlements will return, and perform them at the end."""
        return self._rehearse(partial(unit_of_work.settle, settlements=tuple(settlements)), now)

    def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        """Return what the notes will return, and store them at the end."""
        return self._rehearse(partial(unit_of_work.note, notes=tuple(notes)), now)

    def register(self, stream: Stream, consumers: Sequence[Consumer], now: Instant) -> None:
        """Register at the end."""
        self._rehearse(partial(outbox.register, stream=stream, consumers=tuple(consumers)), now)

    def append(self, stream: Stream, entries: Sequence[Entry], now: Instant) -> None:
        """Append at the end; what is known to be registered needs no rehearsal, which keeps many appends linear."""
        step = partial(outbox.append, stream=stream, entries=tuple(entries))
        if self._store.tables.streams.get(stream.name) == stream:
            check_entries(stream, entries)
            self._steps.append((step, None))
        else:
            self._rehearse(step, now)

    def advance(self, change: Advance, now: Instant) -> bool:
        """Return whether the advance will apply, and store it at the end."""
        return self._rehearse(partial(outbox.advance, change=change), now) is not None

    def receive(self, source: str, ids: Sequence[str], keep: Span, now: Instant) -> list[bool]:
        """Return which ids will be new, and remember them at the end."""
        return self._rehearse(partial(outbox.receive, source=source, ids=tuple(ids), keep=keep), now)

    def hold(self, claim: Claim, now: Instant) -> Claim | None:
        """Return the claim if it holds; it must hold at the end as well."""
        return self._rehearse(partial(outbox.hold, claim=claim), now)

    @property
    def raw(self) -> NoReturn:
        """Refuse: there is no connection."""
        raise _without_sql()

    async def execute(self, statement: str, values: Sequence[Any]) -> NoReturn:  # noqa: ARG002 - as the others have it
        """Refuse: there is no SQL."""
        raise _without_sql()

    def perform(self, now: Instant) -> None:
        """Write everything at once, or nothing."""
        self._ended = True
        unit = StreamUnit(now, self._store.tables)
        answers = [step(self._store, unit) for step, _ in self._steps]
        if answers != [promised for _, promised in self._steps]:
            raise EngineBusy(
                "another call changed the same jobs or keys while this transaction was open. Nothing of it was "
                "stored. Run the whole block again."
            )
        self._store.apply(unit)
        self._store.write_streams(unit.tables, now)

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

    def _rehearse(self, step: Callable[[Store, StreamUnit], Answer], now: Instant) -> Answer:
        unit = StreamUnit(now, self._store.tables)
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
        ids = {draft.job_id for draft in drafts}
        return (
            self._store.capacity is None
            and len(ids) == len(drafts)
            and not any(draft.unique is not None or draft.options.group is not None for draft in drafts)
            and ids.isdisjoint(self._store.jobs)
            and before.isdisjoint(ids)
        )


def _without_sql() -> EngineRefused:
    return EngineRefused("memory:// has no connection and no SQL. Its transaction holds jobs and messages only")


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

"""The engine's own transaction: its calls are made on a copy, and made again on the store when the block ends.

The copy is a unit of work that is thrown away. So each call returns its true result, other callers see nothing, and no
lock is held between two calls. If another call has written meanwhile, a new copy is made, with all calls so far. At the
end all calls are made once more and written. If a result now differs from the returned one (the key was taken, the
claim was lost), nothing is written and `EngineBusy` is raised.
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
from stoker.model.job import Claim, Draft, Note, Receipt, Settlement, Verdict
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.delivery import Advance
from stoker.model.outbox.stream import Entry, Stream
from stoker.model.time import Instant, Span

Answer = TypeVar("Answer")
Call: TypeAlias = Callable[[Store, StreamUnit], Answer]


class MemoryTransaction:
    """The handle of one `transaction()` block. Its methods are called with the store's lock held."""

    def __init__(self, store: Store) -> None:
        self.rolled_back = False
        self._store = store
        self._calls: list[tuple[Call[Any], object]] = []
        self._copy: StreamUnit | None = None
        self._copied_at = 0
        self._ended = False

    async def begin(self) -> None:
        """Do nothing: what it does is done at its end."""

    def insert(self, drafts: Sequence[Draft], group: Group | None, now: Instant) -> list[Receipt]:
        """Return what the insert will return, and perform it at the end."""
        return self._make(partial(unit_of_work.insert, drafts=tuple(drafts), group=group), now)

    def settle(self, settlements: Sequence[Settlement], now: Instant) -> list[Verdict]:
        """Return what the settlements will return, and perform them at the end."""
        return self._make(partial(unit_of_work.settle, settlements=tuple(settlements)), now)

    def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        """Return what the notes will return, and store them at the end."""
        return self._make(partial(unit_of_work.note, notes=tuple(notes)), now)

    def register(self, stream: Stream, consumers: Sequence[Consumer], now: Instant) -> None:
        """Register at the end."""
        self._make(partial(outbox.register, stream=stream, consumers=tuple(consumers)), now)

    def append(self, stream: Stream, entries: Sequence[Entry], now: Instant) -> None:
        """Append at the end."""
        self._make(partial(outbox.append, stream=stream, entries=tuple(entries)), now)

    def advance(self, change: Advance, now: Instant) -> bool:
        """Return whether the advance will apply, and store it at the end."""
        return self._make(partial(outbox.advance, change=change), now) is not None

    def receive(self, source: str, ids: Sequence[str], keep: Span, now: Instant) -> list[bool]:
        """Return which ids will be new, and remember them at the end."""
        return self._make(partial(outbox.receive, source=source, ids=tuple(ids), keep=keep), now)

    def hold(self, claim: Claim, now: Instant) -> Claim | None:
        """Return the claim if it holds; it must hold at the end as well."""
        return self._make(partial(outbox.hold, claim=claim), now)

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
        answers = [call(self._store, unit) for call, _ in self._calls]
        if answers != [promised for _, promised in self._calls]:
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

    def _make(self, call: Call[Answer], now: Instant) -> Answer:
        """Make a call on a copy of the store in which all calls so far were made."""
        if (copy := self._copy) is None or self._copied_at != self._store.writes:
            copy, self._copied_at = StreamUnit(now, self._store.tables), self._store.writes
            for earlier, _ in self._calls:
                earlier(self._store, copy)
        self._copy = None  # a call that raises may leave half of itself in it
        copy.now = now
        answer = call(self._store, copy)
        self._calls.append((call, answer))
        self._copy = copy
        return answer


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

"""The engine's own transaction: its calls are made on a copy, and made again on the store when the block ends.

The copy is a unit of work that is thrown away. So each call returns its true result, other callers see nothing, and no
lock is held between two calls. If another call has written meanwhile, a new copy is made, with all calls so far. At the
end all calls are made once more and written. If a result now differs from the returned one (the key was taken, the
claim was lost), nothing is written and `EngineBusy` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeVar

from stoker.engines.memory.streams import StreamUnit
from stoker.model.errors import EngineBusy, EngineRefused
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.memory.store import Store

Answer = TypeVar("Answer")
Call: TypeAlias = Callable[["Store", StreamUnit], Answer]


class MemoryTransaction:
    """The handle of one `transaction()` block. Its methods are called with the store's lock held."""

    def __init__(self, store: Store) -> None:
        self.rolled_back = False
        self._store = store
        self.inside: Any = None
        """Where in a transaction of the user's the next call is made: in which savepoint."""
        self._calls: list[tuple[Call[Any], object, Any]] = []
        self._copy: StreamUnit | None = None
        self._copied_at = 0
        self._ended = False

    async def begin(self) -> None:
        """Do nothing: what it does is done at its end."""

    def make(self, call: Call[Answer], now: Instant) -> Answer:
        """Return what a call will return, from a copy in which all calls so far were made; perform it at the end."""
        copy = self._up_to_date(now)
        self._copy = None  # a call that raises may leave half of itself in it
        answer = call(self._store, copy)
        self._calls.append((call, answer, self.inside))
        self._copy = copy
        return answer

    def look(self, read: Call[Answer], now: Instant) -> Answer:
        """Return what can be read in the copy, which is not changed."""
        self._copy = copy = self._up_to_date(now)
        return read(self._store, copy)

    def _up_to_date(self, now: Instant) -> StreamUnit:
        """The copy, with all calls so far; a new one if others have written since it was made."""
        if (copy := self._copy) is None or self._copied_at != self._store.writes:
            copy, self._copied_at = StreamUnit(now, self._store.tables), self._store.writes
            for earlier, *_ in self._calls:
                earlier(self._store, copy)
        copy.now = now
        return copy

    def undo(self, is_undone: Callable[[Any], bool]) -> None:
        """Forget the calls that were made inside something that is rolled back."""
        self._calls = [one for one in self._calls if not is_undone(one[2])]
        self._copy = None

    def split(self, is_meant: Callable[[Any], bool]) -> MemoryTransaction:
        """Take the calls that were made inside something out of this transaction, into one of their own."""
        part = MemoryTransaction(self._store)
        part._calls = [one for one in self._calls if is_meant(one[2])]
        self.undo(is_meant)
        return part

    @property
    def is_empty(self) -> bool:
        """Is nothing left that a commit would write?"""
        return not self._calls

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
        answers = [call(self._store, unit) for call, *_ in self._calls]
        if answers != [promised for _, promised, _ in self._calls]:
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


def _without_sql() -> EngineRefused:
    return EngineRefused("memory:// has no connection and no SQL. Its transaction holds jobs and messages only")


class Adopt(Protocol):
    """Returns the transaction for a call with a handle that is none of the store's own, or refuses the handle."""

    def __call__(self, handle: Any, /, *, writes: bool) -> MemoryTransaction: ...


def refuse(handle: Any, /, *, writes: bool) -> NoReturn:  # noqa: ARG001 - one that adopts needs to know
    """Refuse every other handle."""
    name = f"{type(handle).__module__}.{type(handle).__qualname__}"
    raise EngineRefused(
        f"memory:// takes only its own transaction() as tx=, not {name}: it cannot join another database's "
        f"transaction. Nothing was stored."
    )

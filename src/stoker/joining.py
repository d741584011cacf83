"""Which transaction does a call join? One answer for everything that takes `tx=`.

Enqueues, groups, appends, receipts and signals ask `joined(app, tx)` and make their call in what it returns:

1. with `tx=` in that handle; `tx=False` is the answer "in none": the call is stored at once;
2. else in the innermost scope of this Task or thread: the block of a handler (`transaction_block`), or a `Joining`,
   which is what `jobs.joining(handle)` makes;
3. else in the handle that the app's `ambient` returns. An integration sets it: a function that takes nothing and is
   asked in the thread of the call, such as one that returns Django's connection inside of `atomic()`. It returns a
   handle as `tx=` takes it, or a `Given` of its own, or None; what it raises ends the call, and nothing is stored;
4. else in none.

A scope is a contextvar: Tasks started inside inherit it, and so does what `asyncio.to_thread` runs; `threading.Thread`
does not. A worker that is started inside a scope leaves it (`outside`): its jobs have nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from stoker.engines.base import Engine, Transaction
from stoker.engines.sql.user_handles import handles
from stoker.model.errors import EngineRefused, InvalidInput

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.model.job import Draft, Receipt

T = TypeVar("T")
H = TypeVar("H")


class Joined(Protocol):
    """A transaction that calls are made in. `deferred`: they are made after its commit, and answer nothing now."""

    deferred: bool

    async def join(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:
        """Make an engine's call inside the transaction. `wakes`: topics to wake after the commit."""
        ...

    def join_sync(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:
        """`join` in a thread, which needs no loop."""
        ...

    def as_stored(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Drafts as they are stored in it."""
        ...

    def inserted(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """Note jobs that exist when it commits."""
        ...


class Scope(Protocol):
    """What surrounds calls: a handler's block or a `Joining`. `outer`: what surrounds it."""

    app: Stoker
    outer: Scope | None

    def joined_by_this_call(self) -> Joined | None:
        """The transaction that a call here joins; None when the scope is over and means nothing any more."""
        ...


class BlockHandle:
    """A handle that stands for a block: what `current().transaction()` yields for the engine's own transaction."""

    block: Any


inside: ContextVar[Scope | None] = ContextVar("stoker.joining", default=None)


def joined(app: Stoker, tx: Transaction | None) -> Joined | None:
    """The transaction that a call of this app joins; None: it is stored at once. Raises where that is unclear."""
    if tx is False:
        return None
    if tx is not None:
        return _given(app, tx)
    scope = inside.get()
    while scope is not None:
        found = scope.joined_by_this_call() if scope.app is app else None
        if found is not None:
            return found
        scope = scope.outer
    handle = None if app.ambient is None else app.ambient()
    return None if handle is None else _given(app, handle)


def outside() -> Context:
    """A copy of this context in which no scope is open, for work that only begins here."""
    context = copy_context()
    context.run(inside.set, None)
    return context


def _given(app: Stoker, tx: Transaction) -> Joined:
    if isinstance(tx, Given):
        return tx
    if isinstance(tx, BlockHandle) and tx.block.app is app:
        block: Scope = tx.block
        found = block.joined_by_this_call()
        if found is None:
            raise EngineRefused(f"tx= is the transaction of {tx.block.name}, which is over. Nothing was stored.")
        return found
    return Given(app, tx)


class Given:
    """A transaction of the user's, who commits it: Stoker sees neither the commit nor the rollback."""

    __slots__ = ("_app", "_handle")
    deferred = False

    def __init__(self, app: Stoker, handle: Transaction) -> None:
        self._app = app
        self._handle = handle

    async def join(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:  # noqa: ARG002 - the engine wakes
        """Make an engine's call in it."""
        return await call(await self._app.engine() if handles.running_loop() else self._app.any_open(), self._handle)

    def join_sync(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:  # noqa: ARG002 - the engine wakes
        """`join` to its end, here and without a loop; the handle must be a synchronous one."""
        return handles.drive(_awaited(call(self._app.any_open(), self._handle)))

    def as_stored(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Drafts that the first claim tells the timeline about."""
        return self._app.untold(drafts)

    def inserted(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """Tell nothing: whether they exist is decided later, by the user's commit."""


class Joining(Generic[H]):
    """What `jobs.joining(handle)` returns. Inside, this Task's or thread's calls join the handle's transaction.

    It neither begins, commits nor rolls back: the code that opened the transaction does. Used once, with `with` or
    `async with`, whatever the handle is.
    """

    def __init__(self, app: Stoker, handle: H) -> None:
        if handle is None or isinstance(handle, bool):
            why = "must be the handle of a transaction, as tx= takes it: a Session, a connection"
            raise InvalidInput("joining", handle, why)
        self.app = app
        self.outer: Scope | None = None
        self._handle = handle
        self._state = "new"

    def __enter__(self) -> H:
        if self._state != "new":
            raise EngineRefused(f"{self!r} was used before. Nothing was stored. Call jobs.joining(...) for each block.")
        self._state, self.outer = "open", inside.get()
        inside.set(self)
        return self._handle

    def __exit__(self, *exc: object) -> None:
        self._state = "over"
        inside.set(self.outer)

    async def __aenter__(self) -> H:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()

    def __repr__(self) -> str:
        return f"jobs.joining({handles.describe_handle(self._handle)})"

    def joined_by_this_call(self) -> Joined:
        """The handle's transaction; raises in a Task that was started inside and goes on after the end."""
        if self._state == "over":
            raise EngineRefused(
                f"this call comes from a Task that was started inside {self!r}, and that block is over. Nothing was "
                "stored. Let the block wait for the Task, or give the call tx=False, which stores at once."
            )
        return _given(self.app, self._handle)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable

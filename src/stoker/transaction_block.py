"""Blocks: the user's writes and what Stoker stores for them, in one commit.

A block is one transaction of the user's or of the engine. A `Participant` says what belongs to it beside the user's
writes: `begin` is the fence and comes first, `end` comes last, then the transaction commits. So the writes and the end
of the work exist together or not at all. `current().transaction()` makes a block with the run's job (`JobParticipant`),
a delivery of the outbox one with its turn (`TurnParticipant`):

    async with Block(app, part, factory) as handle:   # a sync handler in its thread: `with Block(..., loop=loop)`
        await handler(batch, handle)

Whatever the same Task or thread enqueues or appends inside the block joins it (see `joining`). A Task or thread that
was started inside is refused, because nothing says when it is done.

If the commit raises, it is unknown whether it happened: the part is told so (`in_doubt`) and must never report success.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from stoker.block_host import Host
from stoker.engines.base import Engine, Feature, Transaction
from stoker.engines.sql.user_handles import handles
from stoker.joining import BlockHandle, Joined, Scope, inside
from stoker.model.errors import EngineBusy, EngineRefused, LostClaim, StokerError

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.model.job import Draft, Receipt

logger = logging.getLogger("stoker.block")

T = TypeVar("T")
H = TypeVar("H")
AsyncT = TypeVar("AsyncT")
SyncT = TypeVar("SyncT")

Factory: TypeAlias = Callable[[], AbstractAsyncContextManager[H] | AbstractContextManager[H]]
"""Opens a transaction: a context manager, sync or async, that yields a handle which `tx=` accepts, commits at its end
and rolls back if it raises. `Session.begin` is one."""

LONG = 5.0
"""Seconds after which an open block is named in the log where it keeps all other writers waiting."""

MARK = "SAVEPOINT stoker_block"
UNMARK = "RELEASE SAVEPOINT stoker_block"
"""A handle that the user committed inside the block does not know the savepoint any more."""


class Participant(Protocol):
    """What Stoker does in a block beside the user's writes.

    The block calls `begin` and `end` inside the transaction, `committing` before the commit, and at last one of
    `committed`, `rolled_back` and `in_doubt`.
    """

    @property
    def name(self) -> str:
        """Names the work in messages: "job 0190… (charge)"."""
        ...

    async def begin(self, engine: Engine, tx: Transaction) -> bool:
        """Fence the work: return whether it is still this process's."""
        ...

    async def end(self, engine: Engine, tx: Transaction) -> bool:
        """Store the end of the work: return whether that applied."""
        ...

    def committing(self) -> None:
        """Note that everything is written and the commit begins."""
        ...

    def committed(self) -> None:
        """Note that the transaction is committed."""
        ...

    def rolled_back(self) -> None:
        """Note that nothing was stored."""
        ...

    def in_doubt(self, why: str) -> None:
        """Note that it is unknown whether the transaction is committed."""
        ...

    async def is_stored(self, engine: Engine) -> bool:
        """Ask the store whether `end` is committed; called after a transaction that the user's factory ended."""
        ...


# --- what users hold ----------------------------------------------------------------------------------------------


class OwnTransaction(BlockHandle):
    """The engine's own transaction, in an async handler."""

    def __init__(self, block: Block[Any, Any], tx: Any) -> None:
        self.block = block
        self._tx = tx

    @property
    def connection(self) -> Any:
        """The driver's connection: asyncpg's or sqlite3's. Do not commit on it."""
        return self._tx.raw

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement with the driver's placeholders (`$1` on Postgres, `?` on SQLite); returns its rows."""
        rows: list[tuple[Any, ...]] = await self._tx.execute(statement, values)
        return rows

    def result(self, value: Any) -> None:
        """Store this value as the job's result, with the commit."""
        self.block.result(value)


class OwnSyncTransaction(BlockHandle):
    """The engine's own transaction, in a plain handler. Its statements run on the worker's loop."""

    def __init__(self, block: Block[Any, Any], tx: Any) -> None:
        self.block = block
        self._tx = tx

    @property
    def connection(self) -> Any:
        """The driver's connection: asyncpg's, which belongs to the worker's loop, or sqlite3's."""
        return self._tx.raw

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement with the driver's placeholders (`$1` on Postgres, `?` on SQLite); returns its rows."""
        rows: list[tuple[Any, ...]] = self.block.on_loop(self._tx.execute(statement, values))
        return rows

    def result(self, value: Any) -> None:
        """Store this value as the job's result, with the commit."""
        self.block.result(value)


def _me() -> object:
    """This Task, or this thread where no loop runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()


class Block(Generic[AsyncT, SyncT]):
    """One transaction with its part. Used once, as an async context manager or, in a thread, as a sync one.

    `factory` opens the transaction; None: the engine's own. `loop` is where the app's engine lives, for threads.
    """

    deferred = False

    def __init__(
        self,
        app: Stoker,
        part: Participant,
        factory: Factory[Any] | None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.app = app
        self.owner: object = None
        self.is_open = False
        self._part = part
        self._factory = factory
        self._loop = loop
        self._used = False
        self._threaded = False
        self.outer: Scope | None = None
        self._own: Any = None
        """The engine's transaction, as a context manager. Any Task of the loop may enter and leave it."""
        self._host: Host | None = None
        """Around an asynchronous one of the user's."""
        self._manager: Any = None
        """A synchronous one of the user's."""
        self._handle: Any = None
        self._turn: asyncio.Lock | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._topics: set[str] = set()
        self._inserted: list[tuple[Sequence[Draft], Sequence[Receipt]]] = []
        self._engine: Engine

    @property
    def name(self) -> str:
        """Names the block's work in messages."""
        return self._part.name

    @property
    def _is_theirs(self) -> bool:
        """Is the handle one of a driver or library, which the user could commit?"""
        return self._factory is not None and handles.known(self._handle) is not None

    def result(self, value: Any) -> None:
        """Store this value as the job's result, with the commit."""
        store = getattr(self._part, "result", None)
        if store is None:
            raise StokerError(f"{self.name} has no result that could be stored; return it from the handler")
        store(value)

    # --- as a context manager -----------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncT:
        self._loop = asyncio.get_running_loop()
        handle: AsyncT = await self._enter()
        return handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    def __enter__(self) -> SyncT:
        if handles.running_loop() is not None:
            raise EngineRefused(
                f"{self.name} opens a transaction with `with` in a thread that runs an event loop, which it would "
                "block. Nothing was stored. Write `async with current().transaction(...)` in an async handler."
            )
        if self._loop is None or not self._loop.is_running():
            raise EngineRefused(f"{self.name} opens a transaction outside of a running worker. Nothing was stored.")
        self._threaded = True
        handle: SyncT = handles.drive(self._enter())
        return handle

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handles.drive(self._leave(error))

    # --- for calls that join ------------------------------------------------------------------------------------

    def joined_by_this_call(self) -> Joined | None:
        """The block itself while it is open. Raises in a Task or thread that was started inside."""
        if not self.is_open:
            return None
        if self.owner != _me():
            raise EngineRefused(
                f"this call comes from another Task or thread than the open transaction of {self.name}, which it was "
                "started in. Nothing was stored: it would be unclear whether the commit waits for it. Make the call "
                "where the block is, or after it."
            )
        return self

    async def join(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:
        """Make an engine's call inside the transaction. `wakes`: topics to wake after the commit."""
        answer = await self._on_handle(_awaited(call(self._engine, self._handle)))
        self._topics.update(wakes)
        return answer

    def join_sync(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:
        """`join` in the thread of a sync block."""
        return handles.drive(self.join(call, wakes=wakes))

    def as_stored(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Drafts as they are: the block hears of its own commit."""
        return drafts

    def inserted(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """Note jobs that exist when the block commits: timeline and listeners hear of them then."""
        self._inserted.append((drafts, receipts))

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's loop, from this thread, and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- the steps ----------------------------------------------------------------------------------------------

    async def _enter(self) -> Any:
        """Open the transaction and fence the work."""
        if self._used:
            raise EngineRefused(f"this block of {self.name} was used before; make another with transaction()")
        outer = around = inside.get()
        while around is not None:
            if isinstance(around, Block) and around.is_open and around.app is self.app:
                raise EngineRefused(
                    f"{around.name} has an open transaction already; a block inside a block would be committed before "
                    "it. Nothing was stored. Use the outer one."
                )
            around = around.outer
        self._used = True
        self._engine = engine = await self._elsewhere(self.app.engine())
        if Feature.OUTBOX not in engine.features:
            raise EngineRefused(
                f"{engine.name} cannot join a transaction of your data, so {self.name} cannot be part of one. "
                "Nothing was stored. Keep the jobs in the database that holds your data."
            )
        try:
            handle = await self._open(engine)
        except BaseException:
            self._release_turn()
            raise
        try:
            lost = not await self._on_handle(self._part.begin(engine, self._handle))
            if lost:
                raise LostClaim(self.name)
            if self._factory is None:
                await self._on_handle(self._handle.begin())
            if self._is_theirs:
                await handles.run(self._handle, MARK)
        except BaseException as error:
            await self._roll_back(error)
            raise
        self.owner, self.is_open, self.outer = _me(), True, outer
        inside.set(self)
        return handle

    async def _open(self, engine: Engine) -> Any:
        """Begin the transaction; returns what the user gets."""
        if Feature.BESIDE_TRANSACTIONS not in engine.features:
            await self._take_turn()
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._watch)
        manager: Any = engine.transaction() if self._factory is None else self._factory()
        suspends = self._factory is None or hasattr(manager, "__aenter__")
        if self._turn is None and not suspends and not self._threaded:
            await self._take_turn()
        if self._factory is None:
            self._own = manager
            self._handle = await self._elsewhere(manager.__aenter__())
        elif suspends and not self._threaded:
            self._host = Host(manager)
            self._handle = await self._host.enter()
        elif hasattr(manager, "__enter__"):
            self._manager = manager
            self._handle = manager.__enter__()
        else:
            what = handles.describe_handle(manager)
            hint = "an async context manager, which a plain handler cannot use" if self._threaded else what
            raise EngineRefused(
                f"the transaction factory of {self.name} returned {hint}. Nothing was stored. It must return a context "
                "manager that yields a transaction's handle and commits at its end, as Session.begin does."
            )
        if self._factory is not None:
            return self._handle
        return OwnSyncTransaction(self, self._handle) if self._threaded else OwnTransaction(self, self._handle)

    async def _leave(self, error: BaseException | None) -> None:
        """Store the end of the work and commit, or roll back."""
        self.is_open = False
        inside.set(self.outer)
        if error is not None:
            await self._roll_back(error)
            return
        try:
            await self._check_uncommitted()
            if not await self._on_handle(self._part.end(self._engine, self._handle)):
                raise LostClaim(self.name)
        except BaseException as raised:
            await self._roll_back(raised)
            raise
        await self._commit()

    async def _check_uncommitted(self) -> None:
        """Refuse to go on in a transaction that is not the one the work was fenced in."""
        if not self._is_theirs:
            return
        try:
            await handles.run(self._handle, UNMARK)
        except Exception as error:
            if not handles.is_over(error):
                raise
            raise EngineRefused(
                f"the transaction of {self.name} was committed or rolled back inside its block. What was committed "
                "there stays, and the work is not done: it will be tried again. Leave the commit to the block."
            ) from error

    async def _roll_back(self, error: BaseException) -> None:
        canceled: asyncio.CancelledError | None = None
        try:
            if self._manager is not None:
                self._manager.__exit__(type(error), error, error.__traceback__)
            else:
                canceled = await self._to_the_end(self._left(error))
        except BaseException as raised:  # noqa: BLE001 - the first error is the one to tell
            if raised is not error:
                logger.debug("rolling back the transaction of %s raised %r", self.name, raised)
        finally:
            self._part.rolled_back()
            self._release_turn()
        if canceled is not None:
            raise canceled

    async def _commit(self) -> None:
        """Commit, whatever cancels this Task meanwhile; the cancel is raised afterwards."""
        self._part.committing()
        canceled: asyncio.CancelledError | None = None
        try:
            if self._manager is not None:
                self._manager.__exit__(None, None, None)
            canceled = await self._to_the_end(self._finish())
        except EngineRefused as error:
            self._part.in_doubt(str(error))
            raise
        except BaseException as error:
            certain = self._factory is None and self._handle.rolled_back
            if certain or handles.is_rolled_back(error) or isinstance(error, EngineBusy | LostClaim):
                self._part.rolled_back()
            else:
                self._part.in_doubt(f"the outcome of its commit is not known: {type(error).__name__}: {error}")
            raise
        finally:
            self._release_turn()
        self._part.committed()
        with suppress(StokerError):  # a hint, and the timeline: neither changes what is committed
            await self._elsewhere(self._tell())
        if canceled is not None:
            raise canceled

    async def _finish(self) -> None:
        """Commit what lives on the loop. Then ask the store, where a factory of the user's was to commit."""
        await self._left(None)
        if self._factory is not None and not await self._part.is_stored(self._engine):
            raise EngineRefused(
                f"the transaction factory of {self.name} ({_described(self._factory)}) did not commit when its block "
                "ended. Nothing was stored, and the job is not done. Give a factory that commits, such as "
                "Session.begin."
            )

    async def _left(self, error: BaseException | None) -> None:
        """Leave what lives on the loop: commit, or roll back after an error."""
        if self._host is not None:
            await self._host.leave(error)
        elif self._own is not None:
            details = (None, None, None) if error is None else (type(error), error, error.__traceback__)
            await self._own.__aexit__(*details)

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> asyncio.CancelledError | None:
        """Run to the end in a Task of its own; returns a cancel that came meanwhile."""
        if self._threaded:
            self.on_loop(work)
            return None
        task = asyncio.ensure_future(work)
        canceled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                canceled = error
        task.result()
        return canceled

    async def _tell(self) -> None:
        """After the commit: wake waiters and publish the inserted jobs."""
        for drafts, receipts in self._inserted:
            await self.app.emit_inserted(drafts, receipts)
        if self._topics:
            await self._engine.jobs.wake(sorted(self._topics))

    # --- where calls run ----------------------------------------------------------------------------------------

    async def _elsewhere(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the app's loop."""
        return self.on_loop(work) if self._threaded else await work

    async def _on_handle(self, work: Coroutine[Any, Any, T]) -> T:
        """Run statements on the handle: a thread runs those of its own handle itself."""
        if self._threaded and self._factory is None:
            return self.on_loop(work)
        return await work

    # --- one writer at a time -----------------------------------------------------------------------------------

    async def _take_turn(self) -> None:
        """Wait for other blocks of this loop: on a store with one writer, and with a handle that blocks the loop.

        A statement that blocks the loop while it waits for a lock of another block here would wait for ever.
        """
        turn = await self._elsewhere(self.app.block_turn())
        await self._elsewhere(_acquired(turn))
        self._turn = turn

    def _watch(self) -> None:
        assert self._loop is not None
        if self._turn is not None:
            self._timer = self._loop.call_later(LONG, self._warn)

    def _warn(self) -> None:
        logger.warning(
            "the transaction of %s has been open for more than %g s. On %s every other write waits for it meanwhile: "
            "claims, settlements, enqueues. Do slow work, such as calls over the network, before the block.",
            self.name,
            LONG,
            self._engine.name,
        )

    def _release_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        assert self._loop is not None
        if self._threaded:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._free, turn)
        else:
            self._free(turn)

    def _free(self, turn: asyncio.Lock) -> None:
        if self._timer is not None:
            self._timer.cancel()
        turn.release()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _acquired(lock: asyncio.Lock) -> None:
    await lock.acquire()


def _described(factory: Any) -> str:
    return str(getattr(factory, "__qualname__", None) or type(factory).__qualname__)

"""An engine's connections to its database: statements, transactions and retries.

Connections are opened on demand and kept. Writes and reads use connections of different kinds ("jobs" and "admin"),
because the server plans their statements by different rules. A call takes the connection of its kind that was used
last, so an engine that does one thing at a time has one connection. Each lane limits its concurrent calls; renewals are
never limited.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from stoker.engines.base import Clock
from stoker.engines.call_times import CallTimes
from stoker.engines.postgres import schema
from stoker.engines.postgres.connection import BEGIN, COMMON, FOR_ADMIN, FOR_JOBS, Connection, Pooler, Retriable
from stoker.engines.postgres.groups import GroupCloser
from stoker.engines.postgres.statements import merged, sql, texts
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.postgres.wakeup.notifier import Notifier
from stoker.engines.shared.audit_lines import tell
from stoker.engines.sql.exchanges import Exchange, Row, Together, Touch
from stoker.model.errors import EngineBusy, EngineClosed, EngineRefused
from stoker.model.ids import JobId
from stoker.model.time import Instant

T = TypeVar("T")
Work: TypeAlias = Callable[[Connection, Unit, Row], Awaitable[T]]

TURNS = 20
"""Turns of the loop after which it has read what had arrived on a connection, and closed one that the server closed."""

TRIES = 6
"""Attempts at a transaction that the server aborts for a deadlock or conflict."""

LANES = {"write": 4, "keyed": 4, "settle": 4, "claim": 2, "stream": 4, "admin": 3}
"""Concurrent calls of each lane; further calls wait. Renewals are not limited.

Inserts with unique keys may wait for the lock of another transaction: neither plain inserts nor settlements wait for
them.
"""

KINDS = {"jobs": FOR_JOBS, "streams": FOR_JOBS, "admin": FOR_ADMIN, "transaction": COMMON}
"""Settings of the connections of each kind. In a transaction users run statements of their own."""

SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_NOW = sql("now")
_NOW_LAX = sql("now_lax")
_NOW_HASTY = sql("now_hasty")


class Options(msgspec.Struct, frozen=True):
    """How a database is used. `where` is its name in messages, never with a password."""

    url: str
    where: str
    schema: str
    clock: Clock | None
    migrate: str
    pooler: Pooler
    patience: float
    direct: str | None
    history: int | None = None
    read_limit: float | None = None


class Store:
    """One schema, held by one engine on one loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.history = options.history
        self.call_times = CallTimes()
        self.texts = texts(options.schema)
        self.notifier = Notifier(self)
        self.group_closer = GroupCloser(self)
        self.identity: tuple[str, int] | None = None
        self.version = ""
        """Server version reported by the newest connection."""
        self.asked: WeakKeyDictionary[Any, tuple[Instant, float]] = WeakKeyDictionary()
        """Users' connections that were seen in this database: the server's time, and when that was by our clock."""
        self._pooler: Pooler = options.pooler
        self._idle: dict[str, list[Connection]] = {}
        self._lanes: dict[str, asyncio.Semaphore] = {}
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._opening = asyncio.Lock()

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and check the schema."""
        async with self._opening:
            if self._home is not None and self._home[0] == os.getpid():
                return
            self.notifier = Notifier(self)
            self._idle = {kind: [] for kind in KINDS}
            self._lanes = {lane: asyncio.Semaphore(n) for lane, n in LANES.items()}
            connection = await self.connect("jobs")
            try:
                self.identity = await schema.prepare(connection, self.options)
            except BaseException:
                connection.terminate()
                raise
            self._idle["jobs"].append(connection)
            self._home = (os.getpid(), asyncio.get_running_loop())

    async def close(self) -> None:
        """Close all connections. Calls under way fail."""
        if self._home is None or self._home[0] != os.getpid():
            self._home = None
            return
        await self.group_closer.close()
        # Pending notifications are sent before the connections are closed.
        await self.notifier.close()
        self._home = None
        idle = [connection for kind in self._idle.values() for connection in kind]
        self._idle = {}
        await asyncio.gather(*(connection.close() for connection in idle))

    def inside(self) -> None:
        """Raise unless called on the engine's own loop and process."""
        home, where = self._home, self.options.where
        if home is None:
            raise EngineClosed(f"the engine on {where} is not open. Await open() first")
        if home[0] != os.getpid():
            raise EngineClosed(
                f"the engine on {where} was opened in process {home[0]} and this is process {os.getpid()}: a "
                "connection does not survive a fork. Make another with for_loop()"
            )
        if asyncio.get_running_loop() is not home[1]:
            raise EngineRefused(f"the engine on {where} belongs to another event loop. Use for_loop() to make one")

    def now(self) -> Instant | None:
        """The injected clock's instant; None when the server's clock rules."""
        clock = self.options.clock
        return None if clock is None else clock()

    # --- connections --------------------------------------------------------------------------------------------

    async def connect(self, kind: str) -> Connection:
        """A new connection with the settings of its kind."""
        options = self.options
        # The server stops waiting for a lock before the client does; otherwise abandoned waits would pile up there.
        limit = {"lock_timeout": str(int(options.patience * 900))}
        settings = {**KINDS[kind], **limit}
        most = options.read_limit if kind == "admin" else None
        connection = await Connection.open(
            options.url,
            options.where,
            purpose=kind,
            settings=settings,
            pooler=self._pooler,
            patience=options.patience,
            ids=kind != "transaction",
            limit=most,
        )
        self.version = connection.version
        return connection

    @property
    def pooled(self) -> bool:
        """Whether a pooler in transaction mode is in between."""
        return self._pooler == "transaction"

    @asynccontextmanager
    async def lend(self, lane: str) -> AsyncIterator[Connection]:
        """A connection for one call on a lane: write, claim, renew or admin."""
        connection = await self.take(lane)
        try:
            yield connection
        finally:
            self.give_back(lane, connection)

    async def take(self, lane: str) -> Connection:
        """Take a connection; the caller must `give_back` it. `lend` does both."""
        self.inside()
        turn = self._lanes.get(lane)
        if turn is not None:
            await turn.acquire()
        try:
            kind = _kind(lane)
            connection = await self._idle_one(self._idle.get(kind, [])) or await self.connect(kind)
        except BaseException:
            if turn is not None:
                turn.release()
            raise
        connection.turn = turn
        return connection

    async def _idle_one(self, idle: list[Connection]) -> Connection | None:
        """An idle connection that the server has not closed; None without one.

        After a restart of the server its word may still be unread, because the loop was busy: what is sent then is
        lost, and a caller would not know whether it was stored.
        """
        while idle:
            connection = idle.pop()
            try:
                for _ in range(TURNS):
                    if not connection.usable or not connection.unread():
                        break
                    await asyncio.sleep(0)
            except BaseException:
                idle.append(connection)
                raise
            if connection.usable:
                return connection
        return None

    def give_back(self, lane: str, connection: Connection) -> None:
        """Keep a connection for the next call, unless its state is unknown."""
        if connection.pooled:
            self._pooler = "transaction"
        if connection.usable:
            if self._home is None:
                connection.terminate()
            else:
                self._idle[_kind(lane)].append(connection)
        if connection.turn is not None:
            connection.turn.release()

    # --- one statement ------------------------------------------------------------------------------------------

    async def once(self, lane: str, name: str, values: Sequence[Any], *, extra: float = 0.0) -> list[Row]:
        """Run one statement as a transaction of its own. What is large may take some seconds extra."""
        text, patience = self.texts[name], self.options.patience + extra
        return await self._persist(lane, lambda connection: connection.run(text, values, patience))

    async def each(self, lane: str, make: Callable[[], Exchange[T]]) -> T:
        """Run an exchange on one connection, every statement a transaction of its own."""
        return await self._persist(lane, lambda connection: self.play(connection, make()))

    async def _persist(self, lane: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Repeat what the server aborted for a deadlock or conflict, up to `TRIES` times."""
        for turn in range(TRIES):
            connection = await self.take(lane)
            try:
                return await work(connection)
            except Retriable as error:
                if turn + 1 == TRIES:
                    raise self._gave_up(error) from error
            finally:
                self.give_back(lane, connection)
            await breather(turn)
        raise AssertionError

    # --- several statements -------------------------------------------------------------------------------------

    async def write(
        self,
        make: Callable[[Unit], Exchange[T]],
        *,
        lane: str = "write",
        lax: bool = False,
        notify: bool = True,
        lock_wait: float | None = None,
    ) -> T:
        """Run an exchange in one transaction, and notify after the commit. `lax` does not wait for the fsync.

        `lock_wait` limits the seconds spent on each lock of another transaction; then `Locked` is raised.
        """
        first: tuple[str, Row] = (_NOW_LAX if lax else _NOW, ())
        if lock_wait is not None:
            first = (_NOW_HASTY, (str(int(lock_wait * 1000)),))
        return await self.transact(
            lambda connection, unit, _: self.play(connection, make(unit)), lane=lane, first=first, notify=notify
        )

    def change(self, make: Callable[[Unit], Exchange[T]]) -> Awaitable[T]:
        """Run an operator's change in one transaction, on a connection of reads."""
        return self.write(make, lane="admin")

    def refresh(self, make: Callable[[Unit], Exchange[T]]) -> Awaitable[T]:
        """Run a write that is soon repeated in one transaction, without waiting for the fsync."""
        return self.write(make, lax=True)

    def column(self, document: bytes) -> str:
        """Return JSON as a column takes it."""
        return document.decode()

    async def transact(
        self,
        work: Work[T],
        *,
        lane: str = "write",
        first: tuple[str, Row],
        notify: bool = True,
        begin: str = BEGIN,
    ) -> T:
        """Run `work` in one transaction, whose first statement returns a row that begins with the clock."""
        unit, answer = await self._persist(lane, lambda connection: self._transact(connection, work, first, begin))
        if notify and unit.woken:
            self.notify(unit.woken)
        if unit.touched_groups:
            self.group_closer.add(unit.touched_groups)
        tell(unit.entries)
        return answer

    async def _transact(
        self, connection: Connection, work: Work[T], first: tuple[str, Row], begin: str
    ) -> tuple[Unit, T]:
        patience, (name, values) = self.options.patience, first
        try:
            await connection.command(connection.within_limit(begin), patience)
            [row] = await connection.run(self.texts[name], values, patience)
            now = self.now()
            unit = Unit(row[0] if now is None else now)
            answer = await work(connection, unit, row)
            await self.play(connection, unit.end())
            await connection.command("COMMIT", patience)
        except BaseException:
            if connection.usable:
                await connection.rollback()
            raise
        return unit, answer

    async def read(self, make: Callable[[Instant], Exchange[T]]) -> T:
        """Run a reading exchange in one snapshot."""
        patience = self.options.patience
        async with self.lend("admin") as connection:
            await connection.command(connection.within_limit(SNAPSHOT), patience)
            try:
                now = self.now()
                if now is None:
                    [(now,)] = await connection.run(self.texts[_NOW], (), patience)
                answer = await self.play(connection, make(now))
                await connection.command("COMMIT", patience)
            except BaseException:
                if connection.usable:
                    await connection.rollback()
                raise
            return answer

    async def server_time(self) -> Instant:
        """The server's clock, or the injected one."""
        async with self.lend("admin") as connection:
            now = self.now()
            if now is None:
                [(now,)] = await connection.run(self.texts[_NOW], (), self.options.patience)
            return now

    async def play(self, connection: Connection, exchange: Exchange[T]) -> T:
        """Run the statements of an exchange on a connection, in its current transaction."""
        patience = self.options.patience
        answer: Any = None
        send: Callable[[Any], Any] = exchange.send
        try:
            while True:
                asked = send(answer)
                text, values = self.statement(asked)
                send = exchange.send
                try:
                    run = connection.touch if isinstance(asked, Touch) else connection.run
                    answer = await run(text, values, patience)
                except Exception as error:  # noqa: BLE001 - the exchange may undo something first
                    send, answer = exchange.throw, error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def statement(self, asked: Any) -> tuple[str, Row]:
        """Return the text of a statement, and its values."""
        if isinstance(asked, Together):
            names = tuple(name for name, _ in asked.parts)
            return merged(self.options.schema, names), tuple(value for _, values in asked.parts for value in values)
        name, values = asked
        return self.texts[name], values

    # --- waking -------------------------------------------------------------------------------------------------

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until one of the topics is woken."""
        return await self.notifier.wait(topics, timeout)

    async def ended(self, job: JobId, timeout: float) -> bool:
        """Sleep until a job has ended or is gone."""
        self.inside()
        return await self.notifier.ends.wait(job, timeout)

    async def news(self, job: JobId, seen: int, timeout: float) -> int:
        """Sleep until there is news of a job."""
        self.inside()
        return await self.notifier.ends.news(job, seen, timeout)

    async def wake(self, topics: Sequence[str]) -> None:
        """Wake waiters of the topics."""
        self.inside()
        self.notify(set(topics))

    def notify(self, topics: set[str]) -> None:
        """After a commit: wake waiters of this engine and of other processes."""
        self.notifier.notify(topics)

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """Call on the engine's loop, from any thread; do nothing if it is not open in this process."""
        home = self._home
        if home is None or home[0] != os.getpid():
            return

        def run() -> None:
            if self._home is home:
                call()

        # The loop may have been closed without the engine.
        with suppress(RuntimeError):
            home[1].call_soon_threadsafe(home[1].call_later, delay, run)

    async def at_home(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run on the engine's own loop; a synchronous caller in another thread is blocked meanwhile."""
        home = self._home
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not None or home is None:
            return await make()
        return asyncio.run_coroutine_threadsafe(make(), home[1]).result()

    def _gave_up(self, error: BaseException) -> EngineBusy:
        return EngineBusy(
            f"{self.options.where} aborted this transaction {TRIES} times because of others ({error}). Nothing "
            "was stored; try again"
        )


def _kind(lane: str) -> str:
    return {"admin": "admin", "stream": "streams", "transaction": "transaction"}.get(lane, "jobs")


async def breather(turn: int) -> None:
    """Pause before the next try: longer each time, with jitter."""
    await asyncio.sleep(random.random() * 0.005 * (1 << turn))

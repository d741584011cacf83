"""User transactions: inserts and settlements that exist if and only if the user commits.

`Own` is a transaction that the engine made, on a connection of its own so that the engine goes on beside it;
`run_on_handle` uses a handle that the user made on the same file. Neither takes the write lock: a user may keep a
transaction open for long, and other writers would wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from stoker.engines.sql.exchanges import Exchange, Many, Row
from stoker.engines.sql.user_handles import handles
from stoker.engines.sqlite.connection import Connection, DriverError, identity, translated
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.engines.sqlite.write_transaction import LONGEST_NAP, SHORTEST_NAP, commit
from stoker.model.errors import EngineBusy, EngineClosed, EngineRefused
from stoker.model.groups import Closing

T = TypeVar("T")

_HIGH = sql("now")
_HIGH_WRITING = sql("now_writing")


def in_unit(unit: Unit, exchange: Exchange[T], clock: str = _HIGH) -> Exchange[T]:
    """Return an exchange with the begin and end of its unit.

    `clock` is the statement that reads the store's clock.
    """
    yield from unit.begin(clock)
    result = yield from exchange
    yield from unit.end()
    return result


def with_savepoint(exchange: Exchange[T]) -> Exchange[T]:
    """Return an exchange that is undone if it raises, while the transaction around it goes on."""
    yield "SAVEPOINT stoker_call", ()
    try:
        result = yield from exchange
    except Exception:
        yield "ROLLBACK TO stoker_call", ()
        yield "RELEASE stoker_call", ()
        raise
    yield "RELEASE stoker_call", ()
    return result


class Own:
    """A transaction made by `SqliteEngine.transaction`."""

    def __init__(self, owner: object, connection: Connection) -> None:
        self.owner = owner
        self.connection: Connection | None = connection
        self.woken: set[str] = set()
        self.closings: list[Closing] = []
        self.rolled_back = False
        self.touched = False
        """Did the user take the driver's connection? It may have settings of his own then."""
        self._patience = 0.0

    async def begin(self) -> None:
        """Do nothing: it was begun when it was made."""

    async def start(self, patience: float) -> None:
        """Begin a write transaction; waits for other writers without blocking the loop."""
        self._patience = patience
        deadline, nap = time.monotonic() + patience, SHORTEST_NAP
        while True:
            try:
                assert self.connection is not None
                self.connection.begin()
                return
            except EngineBusy:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(nap)
            nap = min(nap * 2, LONGEST_NAP)

    def run(self, unit: Unit, exchange: Exchange[T]) -> T:
        self._check()
        result = self._open().run_exchange(in_unit(unit, exchange))
        self.woken |= unit.woken
        self.closings += unit.closings
        return result

    def look(self, exchange: Exchange[T]) -> T:
        """Run an exchange that only reads."""
        self._check()
        return self._open().run_exchange(exchange)

    @property
    def raw(self) -> Any:
        """The driver's connection."""
        self.touched = True
        return self._open().raw

    def _open(self) -> Connection:
        if self.connection is None:
            raise EngineClosed("this transaction is over")
        return self.connection

    async def execute(self, statement: str, values: Sequence[Any]) -> list[Row]:
        """Run a statement of the user's own; returns its rows. Raises what the driver raises."""
        found: list[Row] = self._open().raw.execute(statement, values).fetchall()
        return found

    def _check(self) -> None:
        """Refuse to go on outside of the transaction: every statement would be committed by itself."""
        if not self._open().raw.in_transaction:
            raise EngineRefused(
                "this transaction was committed or rolled back inside its block. Leave the commit to the block"
            )

    async def end(self, *, keep: bool) -> Connection | None:
        """Commit in a thread, or roll back. Returns the connection if it can be used again, else closes it."""
        connection = self._open()
        usable = False
        try:
            if keep:
                self._check()
                self.connection = None
                connection.hand_over()
                await asyncio.to_thread(commit, connection, self._patience)
            else:
                connection.rollback()
            usable = not self.touched
        finally:
            self.connection = None
            if not usable:
                connection.close()
        return connection if usable else None


async def run_on_handle(path: str, handle: Any, unit: Unit, exchange: Exchange[T]) -> T:
    """Run an exchange on a user's handle, inside the transaction that the user will end.

    SQLite refuses every write of a transaction that began with a plain BEGIN and a read once another connection has
    written. So the first statement writes: it waits for other writers, and what is read after it stays true.
    """
    await check(path, handle)
    run_many = partial(handles.run_many, handle)
    return await _play(path, in_unit(unit, exchange, _HIGH_WRITING), partial(handles.run, handle), run_many)


async def look_on_handle(path: str, handle: Any, exchange: Exchange[T]) -> T:
    """Run an exchange that only reads on a user's handle. It begins no transaction there, so it locks nothing."""
    await check(path, handle)
    return await _play(path, exchange, partial(handles.look, handle))


async def _play(
    path: str,
    exchange: Exchange[T],
    run: Callable[[str, Row], Awaitable[list[Row]]],
    run_many: Callable[[str, list[Row]], Awaitable[int]] | None = None,
) -> T:
    send: Callable[[Any], Any] = exchange.send
    result: Any = None
    try:
        while True:
            asked = send(result)
            send = exchange.send
            try:
                if type(asked) is Many:
                    assert run_many is not None
                    result = await run_many(asked.statement, asked.rows)
                else:
                    result = await run(asked[0], asked[1])
            except Exception as error:  # noqa: BLE001 - the exchange may roll back to a savepoint first
                send, result = exchange.throw, error
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except DriverError as error:
        raise translated(error, path) from error


async def check(path: str, handle: Any) -> None:
    """Refuse a handle on anything but this file, naming what it is on."""
    who = handles.describe_handle(handle)
    if handles.dialect_of(handle) != "sqlite":
        dialect = handles.dialect_of(handle)
        raise EngineRefused(f"tx= is a {who} on {dialect}, but the jobs are in {path}. Nothing was stored")
    file = await handles.sqlite_file(handle)
    if not file or identity(file) != identity(path):
        raise EngineRefused(
            f"tx= is a {who} on {file or 'a database in memory'}, but the jobs are in {path}. Nothing was stored: one "
            "transaction cannot hold both. Use a connection to the same file, or enqueue without tx="
        )

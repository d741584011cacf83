"""Other people's transactions: inserts and settlements that exist if and only if somebody commits.

`Own` is the engine's own transaction, on a connection of its own so that the engine goes on beside it. `Theirs` is a
handle of the user's on the same file. Neither takes the write lock: nobody may wait at it for as long as a user thinks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stoker.engines.sql.steps import Many, Steps
from stoker.engines.sql.user_handles import handles
from stoker.engines.sqlite import file_checks
from stoker.engines.sqlite.connection import Connection, DriverError, translated
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import FURTHEST_AHEAD, Unit
from stoker.engines.sqlite.write_transaction import LONGEST_NAP, SHORTEST_NAP, commit
from stoker.model.errors import EngineBusy, EngineClosed, EngineRefused
from stoker.model.job import Draft
from stoker.model.time import Instant

T = TypeVar("T")

_HIGH = sql("now")
_HIGH_WRITING = sql("now_writing")


def whole(unit: Unit, door: Steps[T], clock: str = _HIGH) -> Steps[T]:
    """A door with the beginning and the end of its unit. `clock` is the statement that reads the store's clock."""
    yield from unit.begin(clock)
    answer = yield from door
    yield from unit.end()
    return answer


def undoing(door: Steps[T]) -> Steps[T]:
    """A door that leaves nothing behind when it raises, though the transaction around it goes on."""
    yield "SAVEPOINT stoker_call", ()
    try:
        answer = yield from door
    except Exception:
        yield "ROLLBACK TO stoker_call", ()
        yield "RELEASE stoker_call", ()
        raise
    yield "RELEASE stoker_call", ()
    return answer


def may_refuse(drafts: Sequence[Draft]) -> bool:
    """Can an insert of these raise half-way?"""
    return any(draft.unique is not None and draft.unique.mode == "raise" for draft in drafts)


class Own:
    """The engine's own transaction. Made by `SqliteEngine.transaction`."""

    def __init__(self, owner: object, connection: Connection) -> None:
        self.owner = owner
        self.connection: Connection | None = connection
        self.woken: set[str] = set()
        self._patience = 0.0

    async def begin(self, patience: float) -> None:
        """Begin to write; waits for others without blocking the loop."""
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

    def run(self, unit: Unit, door: Steps[T]) -> T:
        if self.connection is None:
            raise EngineClosed("this transaction is over")
        answer = self.connection.play(whole(unit, door))
        self.woken |= unit.woken
        return answer

    async def end(self, *, keep: bool) -> None:
        """Commit off the loop, or roll back. The handle is of no use afterwards."""
        connection, self.connection = self.connection, None
        assert connection is not None
        try:
            if keep:
                await asyncio.to_thread(commit, connection, self._patience)
            else:
                connection.rollback()
        finally:
            connection.close()


async def on_theirs(path: str, handle: Any, unit: Unit, door: Steps[T]) -> T:
    """Play a door on a user's handle, inside the transaction that they will end.

    A transaction that was begun with a plain BEGIN and reads first is refused every write once somebody else has
    written. So the first statement writes: it waits for its turn, and what is read after it stays true.
    """
    await check(path, handle)
    steps = whole(unit, door, _HIGH_WRITING)
    send: Callable[[Any], Any] = steps.send
    answer: Any = None
    try:
        while True:
            step = send(answer)
            send = steps.send
            try:
                if type(step) is Many:
                    answer = await handles.run_many(handle, step.statement, step.rows)
                else:
                    answer = await handles.run(handle, step[0], step[1])
            except Exception as error:  # noqa: BLE001 - the door may want to undo something first
                send, answer = steps.throw, error
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except DriverError as error:
        raise translated(error, path) from error


async def check(path: str, handle: Any) -> None:
    """Refuse a handle on anything but this very file, by name."""
    who = handles.describe_handle(handle)
    if handles.dialect_of(handle) != "sqlite":
        dialect = handles.dialect_of(handle)
        raise EngineRefused(f"tx= is a {who} on {dialect}, but the jobs are in {path}. Nothing was stored")
    file = await handles.sqlite_file(handle)
    if not file or file_checks.identity(file) != file_checks.identity(path):
        raise EngineRefused(
            f"tx= is a {who} on {file or 'a database in memory'}, but the jobs are in {path}. Nothing was stored: one "
            "transaction cannot hold both. Use a connection to the same file, or enqueue without tx="
        )


def at_now(clock: Instant, make: Callable[[Instant], Steps[T]]) -> Steps[T]:
    """A question asked at the store's now, which the clock alone does not know."""
    [(high,)] = yield _HIGH, ()
    return (yield from make(high if 0 < high - clock <= FURTHEST_AHEAD else clock))

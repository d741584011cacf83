"""Runs an engine's statements inside a transaction that the user commits.

The SQL engines call `run` and `run_many` for everything that was given `tx=`, and compare `sqlite_file` or the
handle's dialect with their own first. SQLite statements pass unchanged; Postgres statements are written with `$1` and
are rewritten for drivers that want something else. Handles are recognised by the module and name of their class or one
of its bases, so no library is imported that the user did not import.

Rule: what is run here exists if and only if the user commits (see `drivers`). A synchronous handle makes `run` finish
without suspending, so that `drive` needs no loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from stoker.engines.sql.user_handles.django import Django
from stoker.engines.sql.user_handles.drivers import (
    Adapter,
    AioSqlite,
    Asyncpg,
    AsyncPsycopg,
    Parameters,
    Psycopg,
    Rows,
    describe_handle,
)
from stoker.engines.sql.user_handles.sqlalchemy import Alchemy, AlchemySession, AsyncAlchemy, AsyncAlchemySession
from stoker.model.errors import EngineRefused

__all__ = [
    "connection_of",
    "describe_handle",
    "dialect_of",
    "drive",
    "is_over",
    "is_rolled_back",
    "known",
    "look",
    "run",
    "run_many",
    "running_loop",
    "sqlite_file",
    "suspends",
    "touch",
]

T = TypeVar("T")
ACCEPTED = (
    "sqlite3.Connection, aiosqlite.Connection, psycopg.Connection and AsyncConnection, asyncpg.Connection, "
    "SQLAlchemy's Connection, Session, AsyncConnection and AsyncSession, Django's connection"
)

WITHOUT_A_LOOP = (
    "this call came without an event loop, but its transaction handle is asynchronous. Nothing of the call may be "
    "relied upon: roll back, and await the asynchronous form inside the handle's own loop"
)


async def run(handle: Any, statement: str, parameters: Parameters = ()) -> Rows:
    """Run one statement in the handle's transaction and return its rows. Empty: `[]`."""
    adapter = adapt(handle)
    await adapter.begin()
    return await adapter.execute(statement, parameters)


async def look(handle: Any, statement: str, parameters: Parameters = ()) -> Rows:
    """Run one statement that only reads, in the handle's transaction if there is one; none is begun for it."""
    return await adapt(handle).execute(statement, parameters)


async def touch(handle: Any, statement: str, parameters: Parameters = ()) -> int:
    """Run one statement that returns no rows; return how many rows it touched."""
    adapter = adapt(handle)
    await adapter.begin()
    return await adapter.touch(statement, parameters)


async def run_many(handle: Any, statement: str, rows: Iterable[Parameters]) -> int:
    """Run one statement per row; return how many rows it touched, -1 where the driver does not report it. Empty: 0."""
    listed = list(rows)
    if not listed:
        return 0
    adapter = adapt(handle)
    await adapter.begin()
    return await adapter.execute_many(statement, listed)


async def sqlite_file(handle: Any) -> str:
    """The path of the handle's main database as SQLite sees it; an empty text for one in memory."""
    rows = await adapt(handle).execute("PRAGMA database_list", ())
    return next((str(row[2] or "") for row in rows if row[1] == "main"), "")


def dialect_of(handle: Any) -> str:
    """`sqlite`, `postgresql`, or another dialect that the handle reports."""
    return adapt(handle).dialect


def suspends(handle: Any) -> bool:
    """Whether the handle belongs to a loop, so that its statements are awaited."""
    return adapt(handle).suspends


def connection_of(handle: Any) -> Any | None:
    """The Postgres driver's own connection, which stays in its database; None where a library may take another one.

    A pool of asyncpg lends its connections behind a new object each time.
    """
    if not isinstance(adapt(handle), Psycopg | Asyncpg):
        return None
    return getattr(handle, "_con", None) if type(handle).__name__ == "PoolConnectionProxy" else handle


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a synchronous handle to its end, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise EngineRefused(WITHOUT_A_LOOP)


def is_rolled_back(error: BaseException) -> bool:
    """Whether a commit that raised this certainly did not happen: the server aborted it and said why."""
    return any(state[:2] in ("40", "23") for state in _states(error))


def is_over(error: BaseException) -> bool:
    """Whether a statement about a savepoint failed because its transaction was ended."""
    if isinstance(error, EngineRefused) or any(state in ("3B001", "25P01") for state in _states(error)):
        return True
    return "no such savepoint" in str(error)


def _states(error: BaseException) -> Iterator[str]:
    """The SQLSTATEs of an error and of what caused it."""
    found: BaseException | None = error
    while found is not None:
        yield str(getattr(found, "sqlstate", None) or "")
        original = getattr(found, "orig", None)
        found = original if isinstance(original, BaseException) else found.__cause__


def adapt(handle: Any) -> Adapter:
    """The adapter for a handle; anything unknown is refused by name."""
    adapter = known(handle)
    if adapter is None:
        raise EngineRefused(f"tx= cannot be a {describe_handle(handle)}. Accepted are: {ACCEPTED}. Nothing was stored")
    if adapter.suspends and running_loop() is None:
        raise EngineRefused(WITHOUT_A_LOOP)
    return adapter


def known(handle: Any) -> Adapter | None:
    for kind in type(handle).__mro__:
        adapter = ADAPTERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if adapter is not None:
            return adapter(handle)
    return None


def django(handle: Any) -> Adapter:
    return Django(handle, known)


ADAPTERS: dict[tuple[str, str], Callable[[Any], Adapter]] = {
    ("sqlite3", "Connection"): Adapter,
    ("aiosqlite", "Connection"): AioSqlite,
    ("psycopg", "Connection"): Psycopg,
    ("psycopg", "AsyncConnection"): AsyncPsycopg,
    ("asyncpg", "Connection"): Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): Asyncpg,
    ("sqlalchemy", "Connection"): Alchemy,
    ("sqlalchemy", "Session"): AlchemySession,
    ("sqlalchemy", "scoped_session"): AlchemySession,
    ("sqlalchemy", "AsyncConnection"): AsyncAlchemy,
    ("sqlalchemy", "AsyncSession"): AsyncAlchemySession,
    ("sqlalchemy", "async_scoped_session"): AsyncAlchemySession,
    ("django", "BaseDatabaseWrapper"): django,
    ("django", "ConnectionProxy"): django,
}

"""One adapter per driver of users' handles, and what each driver reports about its transaction.

Used by `handles`, and by `sqlalchemy` for the connection underneath.

Rule: a statement never commits by itself. A handle whose driver commits each statement must be inside a transaction,
or it is refused; one whose driver begins by itself gets an explicit BEGIN first, because the standard library begins
only before statements whose first word it knows (`WITH … INSERT` would be committed at once).
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from stoker.model.errors import EngineRefused

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
Rows: TypeAlias = list[tuple[Any, ...]]

IDLE = 0  # libpq's code for "no transaction"
BEGIN = "BEGIN IMMEDIATE"  # a transaction that reads first and writes later may be refused the write
PLACEHOLDER = re.compile(r"\$(\d+)")


def describe_handle(handle: Any) -> str:
    """A handle's name for messages: its class, never its address or password."""
    kind = type(handle)
    return f"{kind.__module__}.{kind.__qualname__}"


# --- state of the raw connection --------------------------------------------------------------------------------


def outside(raw: Any) -> bool:
    """Is the driver's connection outside of any transaction?"""
    match type(raw).__module__.partition(".")[0]:
        case "asyncpg":
            return not raw.is_in_transaction()
        case "psycopg" | "psycopg2":
            return bool(raw.info.transaction_status == IDLE)
        case _:
            return not raw.in_transaction


async def commits_each(raw: Any) -> bool:
    """Would the driver commit each statement by itself?"""
    match type(raw).__module__.partition(".")[0]:
        case "asyncpg":
            return True
        case "psycopg" | "psycopg2":
            return bool(raw.autocommit)
        case "aiosqlite" if hasattr(sys.modules["sqlite3"].Connection, "autocommit"):
            # It hides this property, which Python 3.12 added and which only the connection's own thread may read.
            autocommit = await raw._execute(getattr, raw._conn, "autocommit")  # noqa: SLF001
            return autocommit is True or raw.isolation_level is None
        case _:
            return getattr(raw, "autocommit", None) is True or raw.isolation_level is None


def refused(handle: Any) -> EngineRefused:
    return EngineRefused(
        f"tx= is a {describe_handle(handle)} that commits every statement by itself and is not inside a transaction, "
        "so the job would exist whether you commit or not. Begin a transaction on it first. Nothing was stored"
    )


def pyformat(statement: str, parameters: Parameters) -> tuple[str, Mapping[str, Any]]:
    """`$1` as `%(p1)s`, for drivers that know nothing else."""
    named = parameters if isinstance(parameters, Mapping) else {f"p{n}": value for n, value in enumerate(parameters, 1)}
    return _named(statement), named


@functools.lru_cache(maxsize=1024)
def _named(statement: str) -> str:
    return PLACEHOLDER.sub(r"%(p\1)s", statement.replace("%", "%%"))


def touched(tag: str) -> int:
    """How many rows a statement touched, by the server's tag: `INSERT 0 3`."""
    return int(tag.rpartition(" ")[2])


# --- adapters -------------------------------------------------------------------------------------------------


class Adapter:
    """Runs statements on one handle. This one is the plain `sqlite3.Connection`."""

    dialect = "sqlite"
    suspends = False
    """Does a statement have to be awaited on the handle's loop?"""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    async def begin(self) -> None:
        """Make sure that what follows waits for the user's commit."""
        if outside(self.handle):
            if await commits_each(self.handle):
                raise refused(self.handle)
            if self.dialect == "sqlite":
                await self.execute(BEGIN, ())

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        cursor, texts = self.handle.cursor(), self.handle.text_factory
        cursor.row_factory = None
        self.handle.text_factory = str
        try:
            return cursor.execute(statement, parameters).fetchall()  # type: ignore[no-any-return]
        finally:
            self.handle.text_factory = texts
            cursor.close()

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        return int(self.handle.executemany(statement, rows).rowcount)

    async def touch(self, statement: str, parameters: Parameters) -> int:
        """Run a statement without an answer; return how many rows it touched."""
        return await self.execute_many(statement, [parameters])


class AioSqlite(Adapter):
    """Its statements run in a thread of its own: as few round trips as can be."""

    suspends = True

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        if self.handle.text_factory is not str:
            raise EngineRefused(
                "tx= is an aiosqlite connection with a text_factory of its own; Stoker reads text as str"
            )
        if self.handle.row_factory is None:
            return list(await self.handle.execute_fetchall(statement, parameters))
        async with self.handle.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(statement, parameters)
            return list(await cursor.fetchall())

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        async with self.handle.executemany(statement, rows) as cursor:
            return int(cursor.rowcount)


class Psycopg(Adapter):
    """The synchronous connection of psycopg 3."""

    dialect = "postgresql"

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        with self.handle.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row) as cursor:
            cursor.execute(*pyformat(statement, parameters))
            return list(cursor.fetchall()) if cursor.description else []

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        with self.handle.cursor() as cursor:
            cursor.executemany(pyformat(statement, ())[0], [pyformat("", row)[1] for row in rows])
            return int(cursor.rowcount)

    async def touch(self, statement: str, parameters: Parameters) -> int:
        # `executemany` would begin and end a pipeline, for two more round trips.
        with self.handle.cursor() as cursor:
            cursor.execute(*pyformat(statement, parameters))
            return int(cursor.rowcount)


class AsyncPsycopg(Psycopg):
    """The asynchronous connection of psycopg 3."""

    suspends = True

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        async with self.handle.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row) as cursor:
            await cursor.execute(*pyformat(statement, parameters))
            return list(await cursor.fetchall()) if cursor.description else []

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        async with self.handle.cursor() as cursor:
            await cursor.executemany(pyformat(statement, ())[0], [pyformat("", row)[1] for row in rows])
            return int(cursor.rowcount)

    async def touch(self, statement: str, parameters: Parameters) -> int:
        async with self.handle.cursor() as cursor:
            await cursor.execute(*pyformat(statement, parameters))
            return int(cursor.rowcount)


class Asyncpg(Adapter):
    """A connection of asyncpg, of a pool or not. It does not report how many rows a statement touched."""

    dialect = "postgresql"
    suspends = True

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        return [tuple(row) for row in await self.handle.fetch(statement, *parameters)]

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        await self.handle.executemany(statement, rows)
        return -1

    async def touch(self, statement: str, parameters: Parameters) -> int:
        return touched(await self.handle.execute(statement, *parameters))

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg.rows
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async
from sqlalchemy.pool import NullPool

from stoker.engines.sql.user_handles.handles import describe_handle, dialect_of, drive, run, run_many, sqlite_file
from stoker.model.errors import EngineRefused
from tests.engines.sql.openers import (
    OPENERS,
    SYNCHRONOUS,
    aio,
    alchemy,
    alchemy_async,
    alchemy_async_session,
    alchemy_session,
    maybe,
    plain,
)

INSERT = "INSERT INTO t VALUES (?, ?) RETURNING a"
# The standard library does not see that this one writes, and would commit it at once.
HIDDEN = "WITH given(a, b) AS (VALUES (?, ?)) INSERT INTO t SELECT a, b FROM given RETURNING a"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("PRAGMA journal_mode=wal")
        connection.execute("CREATE TABLE t (a, b)")
    return tmp_path / "jobs.db"


@pytest.fixture
def stored(path: Path) -> Iterator[Callable[[], list[tuple[Any, ...]]]]:
    with closing(sqlite3.connect(path)) as connection:
        yield lambda: connection.execute("SELECT a, b FROM t ORDER BY a").fetchall()


@pytest.mark.spec("SQLITE-57")
@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("statement", [INSERT, HIDDEN])
async def test_exists_if_and_only_if_the_user_commits(
    path: Path, stored: Callable[[], list[tuple[Any, ...]]], name: str, statement: str
) -> None:
    async with OPENERS[name](path) as handle:
        assert await run(handle, statement, (1, "x")) == [(1,)]
        assert await run(handle, "SELECT a, b FROM t", ()) == [(1, "x")]
        assert stored() == []
        await maybe(handle.commit())
        assert stored() == [(1, "x")]
    async with OPENERS[name](path) as handle:
        assert await run(handle, statement, [2, "y"]) == [(2,)]
        assert await run(handle, "UPDATE t SET b = 'z'") == []
        await maybe(handle.rollback())
        assert stored() == [(1, "x")]
    async with OPENERS[name](path) as handle:
        await run(handle, statement, (3, "gone with the connection"))
    assert stored() == [(1, "x")]


@pytest.mark.spec("SQLITE-57")
@pytest.mark.parametrize("name", OPENERS)
async def test_many_rows_in_one_call(path: Path, stored: Callable[[], list[tuple[Any, ...]]], name: str) -> None:
    async with OPENERS[name](path) as handle:
        assert await run_many(handle, "INSERT INTO t VALUES (?, ?)", [(n, "x") for n in range(5)]) == 5
        assert await run_many(handle, "DELETE FROM t WHERE a > ? AND b = ?", iter([(2, "x"), (7, "x")])) == 2
        assert await run_many(handle, "INSERT INTO t VALUES (?, ?)", []) == 0
        assert stored() == []
        await maybe(handle.commit())
    assert [row[0] for row in stored()] == [0, 1, 2]


@pytest.mark.spec("SQLITE-57")
@pytest.mark.parametrize("name", OPENERS)
async def test_says_which_file_and_which_language_it_speaks(path: Path, name: str) -> None:
    async with OPENERS[name](path) as handle:
        assert Path(await sqlite_file(handle)).samefile(path)
        assert dialect_of(handle) == "sqlite"


async def test_a_database_in_memory_has_no_file() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert await sqlite_file(connection) == ""


@pytest.mark.spec("SQLITE-57")
@pytest.mark.parametrize("name", ["sqlite3", "aiosqlite", "sqlalchemy-session", "sqlalchemy-async-session"])
async def test_joins_a_transaction_that_is_open_already(
    path: Path, stored: Callable[[], list[tuple[Any, ...]]], name: str
) -> None:
    insert = "INSERT INTO t VALUES (0, 'mine')"
    async with OPENERS[name](path) as handle:
        await maybe(handle.execute(sa.text(insert) if name.startswith("sqlalchemy") else insert))
        await run(handle, INSERT, (1, "x"))
        await maybe(handle.rollback())
        assert stored() == []


@pytest.mark.spec("SQLITE-57")
async def test_named_parameters_pass_too(path: Path) -> None:
    async with plain(path) as handle, alchemy(path) as other:
        assert await run(handle, "SELECT :a, :b", {"a": 1, "b": 2}) == [(1, 2)]
        handle.rollback()
        assert await run(other, "SELECT ?2, ?1", (1, 2)) == [(2, 1)]


@pytest.mark.spec("SQLITE-58")
@pytest.mark.parametrize(
    "opener, options",
    [
        (plain, {"isolation_level": None}),
        (aio, {"isolation_level": None}),
        (alchemy, {"isolation_level": "AUTOCOMMIT"}),
        (alchemy_session, {"isolation_level": "AUTOCOMMIT"}),
        (alchemy_async, {"isolation_level": "AUTOCOMMIT"}),
        (alchemy_async_session, {"isolation_level": "AUTOCOMMIT"}),
    ],
)
async def test_one_that_commits_each_statement_is_refused_outside_a_transaction(
    path: Path, stored: Callable[[], list[tuple[Any, ...]]], opener: Any, options: dict[str, Any]
) -> None:
    async with opener(path, **options) as handle:
        with pytest.raises(EngineRefused, match="Begin a transaction"):
            await run(handle, INSERT, (1, "x"))
        with pytest.raises(EngineRefused, match="Begin a transaction"):
            await run_many(handle, "INSERT INTO t VALUES (?, ?)", [(1, "x")])
        assert stored() == []


@pytest.mark.spec("SQLITE-58")
@pytest.mark.parametrize("opener", [plain, aio])
async def test_one_that_commits_each_statement_is_welcome_inside_a_transaction(
    path: Path, stored: Callable[[], list[tuple[Any, ...]]], opener: Any
) -> None:
    async with opener(path, isolation_level=None) as handle:
        await maybe(handle.execute("BEGIN"))
        await run(handle, INSERT, (1, "x"))
        assert stored() == []
        await maybe(handle.execute("COMMIT"))
        assert stored() == [(1, "x")]


@pytest.mark.spec("SQLITE-58")
async def test_the_autocommit_of_newer_pythons_is_understood(path: Path) -> None:
    """Stands in for Python 3.12's attribute where there is none yet."""

    class Connection(sqlite3.Connection):
        autocommit = True

    with closing(sqlite3.connect(path, factory=Connection)) as handle:
        with pytest.raises(EngineRefused, match="Begin a transaction"):
            await run(handle, INSERT, (1, "x"))
        handle.execute("BEGIN")
        assert await run(handle, INSERT, (1, "x")) == [(1,)]


@pytest.mark.spec("SQLITE-59")
@pytest.mark.parametrize("handle", [None, "jobs.db", object(), asyncio.Lock()])
async def test_anything_else_is_refused_by_name(handle: object) -> None:
    for call in (run(handle, INSERT, ()), run_many(handle, INSERT, [()]), sqlite_file(handle)):
        with pytest.raises(EngineRefused) as caught:
            await call
        assert describe_handle(handle) in str(caught.value)
        assert "aiosqlite.Connection" in str(caught.value)
        assert "AsyncSession" in str(caught.value)
    with pytest.raises(EngineRefused):
        dialect_of(handle)


def test_a_handle_is_described_without_its_secrets(path: Path) -> None:
    engine = sa.create_engine("postgresql+psycopg://user:secret@host/db")
    assert describe_handle(orm.Session(engine)) == "sqlalchemy.orm.session.Session"
    assert dialect_of(orm.Session(engine)) == "postgresql"


@pytest.mark.spec("SQLITE-60")
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_synchronous_handle_needs_no_loop(path: Path, stored: Callable[[], list[tuple[Any, ...]]], name: str) -> None:
    async def work(handle: Any) -> str:
        await run(handle, INSERT, (1, "x"))
        await run_many(handle, "INSERT INTO t VALUES (?, ?)", [(2, "y")])
        return await sqlite_file(handle)

    opened = SYNCHRONOUS[name](path)
    handle = drive(opened.__aenter__())
    assert Path(drive(work(handle))).samefile(path)
    handle.commit()
    drive(opened.__aexit__(None, None, None))
    assert stored() == [(1, "x"), (2, "y")]


@pytest.mark.spec("SQLITE-60")
async def test_an_asynchronous_handle_without_a_loop_is_refused(path: Path) -> None:
    async with aio(path) as handle:
        with pytest.raises(EngineRefused, match="asynchronous"):
            drive(run(handle, "SELECT 1"))


def test_what_a_driven_coroutine_raises_comes_through(path: Path) -> None:
    with closing(sqlite3.connect(path)) as handle, pytest.raises(sqlite3.OperationalError, match="nothing"):
        drive(run(handle, "SELECT * FROM nothing"))


@pytest.mark.spec("SQLITE-61")
async def test_the_users_own_factories_do_not_matter_and_stay(path: Path) -> None:
    def as_dict(cursor: Any, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    async with plain(path) as handle:
        handle.row_factory = as_dict
        handle.text_factory = bytes
        assert await run(handle, "SELECT 1 AS a, 'x' AS b") == [(1, "x")]
        assert handle.execute("SELECT 1 AS a, 'x' AS b").fetchall() == [{"a": 1, "b": b"x"}]
    async with aio(path) as handle:
        handle.row_factory = as_dict
        assert await run(handle, "SELECT 1 AS a, 'x' AS b") == [(1, "x")]
        handle.text_factory = bytes
        with pytest.raises(EngineRefused, match="text_factory"):
            await run(handle, "SELECT 1")


@pytest.mark.parametrize("name", OPENERS)
async def test_an_error_of_the_driver_arrives_as_the_driver_raised_it(path: Path, name: str) -> None:
    async with OPENERS[name](path) as handle:
        with pytest.raises(sqlite3.OperationalError, match="nothing"):
            await run(handle, "SELECT * FROM nothing")
        with pytest.raises(sqlite3.OperationalError, match="nothing"):
            await run_many(handle, "DELETE FROM nothing WHERE a = ?", [(1,)])


@pytest.mark.spec("SQLITE-57")
async def test_two_that_read_before_they_write_do_not_trip_over_each_other(path: Path) -> None:
    async with plain(path, timeout=0) as first, plain(path, timeout=0) as second:
        await run(first, "SELECT * FROM t")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await run(second, "SELECT * FROM t")
        await run(first, INSERT, (1, "x"))
        first.commit()
        await run(second, INSERT, (2, "y"))


# --- Postgres: the same rules on a real server --------------------------------------------------------------------


@asynccontextmanager
async def psycopg_sync(url: str, schema: str) -> AsyncIterator[Any]:
    with closing(psycopg.connect(url, row_factory=psycopg.rows.dict_row)) as handle:
        handle.execute(f"SET search_path TO {schema}".encode())
        handle.commit()
        yield handle


@asynccontextmanager
async def psycopg_async(url: str, schema: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as handle:
        await handle.execute(f"SET search_path TO {schema}".encode())
        await handle.commit()
        yield handle
        await handle.rollback()


@asynccontextmanager
async def alchemy_postgres(url: str, schema: str, driver: str) -> AsyncIterator[Any]:
    options = {"options": f"-csearch_path={schema}"} if driver == "psycopg" else {}
    engine = sa_async.create_async_engine(
        sa.make_url(url).set(drivername=f"postgresql+{driver}"), poolclass=NullPool, connect_args=options
    )
    async with sa_async.AsyncSession(engine) as session:
        yield session
    await engine.dispose()


@pytest.fixture
def table(postgres_url: str, postgres_schema: str) -> Iterator[Callable[[], list[tuple[Any, ...]]]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {postgres_schema}.t (a int, b text)".encode())
        query = f"SELECT a, b FROM {postgres_schema}.t ORDER BY a".encode()
        yield lambda: connection.execute(query).fetchall()


@pytest.mark.spec("SQLITE-57")
@pytest.mark.parametrize("opener", [psycopg_sync, psycopg_async])
async def test_psycopg(
    postgres_url: str, postgres_schema: str, table: Callable[[], list[tuple[Any, ...]]], opener: Any
) -> None:
    async with opener(postgres_url, postgres_schema) as handle:
        assert dialect_of(handle) == "postgresql"
        assert await run(handle, "INSERT INTO t VALUES ($1, $2) RETURNING b, '100%'", (1, "x")) == [("x", "100%")]
        assert await run_many(handle, "INSERT INTO t VALUES ($1, $2)", [(2, "y"), (3, "z")]) == 2
        assert await run(handle, "UPDATE t SET b = $1 WHERE b LIKE 'z%'", ("w",)) == []
        assert table() == []
        await maybe(handle.commit())
        assert table() == [(1, "x"), (2, "y"), (3, "w")]
        await maybe(handle.set_autocommit(True))
        with pytest.raises(EngineRefused, match="Begin a transaction"):
            await run(handle, "DELETE FROM t")
        await maybe(handle.set_autocommit(False))


@pytest.mark.spec("SQLITE-57")
async def test_asyncpg(postgres_url: str, postgres_schema: str, table: Callable[[], list[tuple[Any, ...]]]) -> None:
    connection = await asyncpg.connect(postgres_url, server_settings={"search_path": postgres_schema})
    try:
        assert dialect_of(connection) == "postgresql"
        with pytest.raises(EngineRefused, match="Begin a transaction"):
            await run(connection, "INSERT INTO t VALUES ($1, $2)", (1, "x"))
        transaction = connection.transaction()
        await transaction.start()
        assert await run(connection, "INSERT INTO t VALUES ($1, $2) RETURNING a", (1, "x")) == [(1,)]
        assert await run_many(connection, "INSERT INTO t VALUES ($1, $2)", [(2, "y")]) == -1
        assert table() == []
        await transaction.commit()
        assert table() == [(1, "x"), (2, "y")]
    finally:
        await connection.close()


@pytest.mark.spec("SQLITE-57")
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemy_on_postgres(
    postgres_url: str, postgres_schema: str, table: Callable[[], list[tuple[Any, ...]]], driver: str
) -> None:
    insert = f"INSERT INTO {postgres_schema}.t VALUES ($1, $2) RETURNING b, '100%'"
    async with alchemy_postgres(postgres_url, postgres_schema, driver) as handle:
        assert dialect_of(handle) == "postgresql"
        assert await run(handle, insert, (1, "x")) == [("x", "100%")]
        assert table() == []
        await handle.commit()
        assert table() == [(1, "x")]
        await run(handle, insert, (2, "y"))
        await handle.rollback()
        assert table() == [(1, "x")]
        await handle.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(EngineRefused, match="Begin a transaction"):
            await run(handle, insert, (3, "z"))

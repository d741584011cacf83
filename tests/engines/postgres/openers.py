"""Every kind of handle a user may give as `tx=`, opened on a Postgres database; Django's has its own tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async
from sqlalchemy.pool import NullPool

Opener: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]


def dialect(url: str, driver: str) -> sa.URL:
    return sa.make_url(url).set(drivername=f"postgresql+{driver}")


@asynccontextmanager
async def plain(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@asynccontextmanager
async def plain_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection
        await connection.rollback()


class Begun:
    """asyncpg's connection, which begins only when told so; ends as the others do."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def commit(self) -> None:
        await self.connection.execute("COMMIT; BEGIN")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK; BEGIN")


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    await connection.execute("BEGIN")
    yield Begun(connection)
    await connection.close()


@asynccontextmanager
async def alchemy(url: str) -> AsyncIterator[Any]:
    engine = sa.create_engine(dialect(url, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@asynccontextmanager
async def alchemy_session(url: str) -> AsyncIterator[Any]:
    engine = sa.create_engine(dialect(url, "psycopg"), poolclass=NullPool)
    with orm.Session(engine) as session:
        yield session
    engine.dispose()


@asynccontextmanager
async def alchemy_async(url: str) -> AsyncIterator[Any]:
    engine = sa_async.create_async_engine(dialect(url, "asyncpg"), poolclass=NullPool)
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def alchemy_async_session(url: str) -> AsyncIterator[Any]:
    engine = sa_async.create_async_engine(dialect(url, "asyncpg"), poolclass=NullPool)
    async with sa_async.AsyncSession(engine) as session:
        yield session
    await engine.dispose()


@asynccontextmanager
async def alchemy_async_psycopg(url: str) -> AsyncIterator[Any]:
    engine = sa_async.create_async_engine(dialect(url, "psycopg"), poolclass=NullPool)
    async with sa_async.AsyncSession(engine) as session:
        yield session
    await engine.dispose()


SYNCHRONOUS: dict[str, Opener] = {
    "psycopg": plain,
    "sqlalchemy-connection": alchemy,
    "sqlalchemy-session": alchemy_session,
}
ASYNCHRONOUS: dict[str, Opener] = {
    "psycopg-async": plain_async,
    "asyncpg": bare,
    "sqlalchemy-async-connection": alchemy_async,
    "sqlalchemy-async-session": alchemy_async_session,
    "sqlalchemy-async-psycopg": alchemy_async_psycopg,
}
TELLING = tuple(name for name in (*SYNCHRONOUS, *ASYNCHRONOUS) if name.startswith("sqlalchemy"))
"""Those whose library tells of a commit."""

OPENERS = SYNCHRONOUS | ASYNCHRONOUS


def handle_of(opened: Any) -> Any:
    """What the user would give as `tx=`."""
    return opened.connection if isinstance(opened, Begun) else opened

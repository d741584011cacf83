"""Every kind of handle a user may give as `tx=`, opened on a SQLite file; Django's has its own tests."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

import aiosqlite
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async
from sqlalchemy.pool import NullPool

Opener: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Any]]


async def maybe(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) else value


@asynccontextmanager
async def plain(path: Path, **options: Any) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(path, **options)) as connection:
        yield connection


@asynccontextmanager
async def aio(path: Path, **options: Any) -> AsyncIterator[Any]:
    async with aiosqlite.connect(path, **options) as connection:
        yield connection


@asynccontextmanager
async def alchemy(path: Path, **options: Any) -> AsyncIterator[Any]:
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool, **options)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@asynccontextmanager
async def alchemy_session(path: Path, **options: Any) -> AsyncIterator[Any]:
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool, **options)
    with orm.Session(engine) as session:
        yield session
    engine.dispose()


@asynccontextmanager
async def alchemy_scoped(path: Path) -> AsyncIterator[Any]:
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    scoped = orm.scoped_session(orm.sessionmaker(engine))
    yield scoped
    scoped.remove()
    engine.dispose()


@asynccontextmanager
async def alchemy_explicit(path: Path) -> AsyncIterator[Any]:
    """SQLAlchemy's own recipe for transactions that begin where one thinks they do."""
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    sa.event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN") and None)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@asynccontextmanager
async def alchemy_async(path: Path, **options: Any) -> AsyncIterator[Any]:
    engine = sa_async.create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool, **options)
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def alchemy_async_session(path: Path, **options: Any) -> AsyncIterator[Any]:
    engine = sa_async.create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool, **options)
    async with sa_async.AsyncSession(engine) as session:
        yield session
    await engine.dispose()


SYNCHRONOUS: dict[str, Opener] = {
    "sqlite3": plain,
    "sqlalchemy-connection": alchemy,
    "sqlalchemy-session": alchemy_session,
    "sqlalchemy-scoped": alchemy_scoped,
    "sqlalchemy-explicit": alchemy_explicit,
}
ASYNCHRONOUS: dict[str, Opener] = {
    "aiosqlite": aio,
    "sqlalchemy-async-connection": alchemy_async,
    "sqlalchemy-async-session": alchemy_async_session,
}
OPENERS = SYNCHRONOUS | ASYNCHRONOUS

"""A factory for every kind of handle that a block takes, on a SQLite file or a Postgres database."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, NamedTuple, TypeAlias

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy as sa
from django.db import connection as django_connection
from django.db import transaction
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async
from sqlalchemy.pool import NullPool

Begin: TypeAlias = Callable[[], Any]


class Site(NamedTuple):
    """Where jobs and effects are. `level`: the isolation of transactions on Postgres."""

    url: str
    path: str | None = None
    level: str | None = None

    def sql(self, driver: str) -> sa.URL:
        if self.path is not None:
            return sa.make_url(f"sqlite+{driver}:///{self.path}")
        return sa.make_url(self.url).set(drivername=f"postgresql+{driver}")

    def options(self) -> dict[str, Any]:
        level = {} if self.level is None else {"isolation_level": self.level}
        return {"poolclass": NullPool, **level}


# --- for handlers in threads, and on the loop -----------------------------------------------------------------------


def plain_sqlite(site: Site) -> Begin:
    @contextmanager
    def begin() -> Iterator[Any]:
        with closing(sqlite3.connect(site.path or "")) as connection, connection:
            yield connection

    return begin


def plain_psycopg(site: Site) -> Begin:
    @contextmanager
    def begin() -> Iterator[Any]:
        # Its own `with` leaves it open when the commit raises.
        with closing(psycopg.connect(site.url)) as connection, connection:
            if site.level is not None:
                connection.isolation_level = getattr(psycopg.IsolationLevel, site.level.replace(" ", "_"))
            yield connection

    return begin


def alchemy(site: Site) -> Begin:
    return sa.create_engine(site.sql("pysqlite" if site.path else "psycopg"), **site.options()).begin


def alchemy_session(site: Site) -> Begin:
    engine = sa.create_engine(site.sql("pysqlite" if site.path else "psycopg"), **site.options())
    return orm.sessionmaker(engine).begin


def django(_: Site) -> Begin:
    """The settings are the test's."""

    @contextmanager
    def begin() -> Iterator[Any]:
        try:
            with transaction.atomic():
                yield django_connection
        finally:
            django_connection.close()

    return begin


# --- for handlers on the loop ---------------------------------------------------------------------------------------


def aio_sqlite(site: Site) -> Begin:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with aiosqlite.connect(site.path or "") as connection:
            yield connection
            await connection.commit()

    return begin


def with_asyncpg(site: Site) -> Begin:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        connection = await asyncpg.connect(site.url)
        level = None if site.level is None else site.level.lower().replace(" ", "_")
        try:
            async with connection.transaction(isolation=level):
                yield connection
        finally:
            await connection.close()

    return begin


def async_psycopg(site: Site) -> Begin:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(site.url) as connection:
            if site.level is not None:
                await connection.set_isolation_level(getattr(psycopg.IsolationLevel, site.level.replace(" ", "_")))
            yield connection

    return begin


def alchemy_async(site: Site) -> Begin:
    return sa_async.create_async_engine(site.sql("aiosqlite" if site.path else "asyncpg"), **site.options()).begin


def alchemy_async_session(site: Site) -> Begin:
    engine = sa_async.create_async_engine(site.sql("aiosqlite" if site.path else "asyncpg"), **site.options())
    return sa_async.async_sessionmaker(engine).begin


PLAIN: dict[str, dict[str, Callable[[Site], Begin]]] = {
    "sqlite": {
        "sqlite3": plain_sqlite,
        "sqlalchemy": alchemy,
        "sqlalchemy-session": alchemy_session,
        "django": django,
    },
    "postgres": {
        "psycopg": plain_psycopg,
        "sqlalchemy": alchemy,
        "sqlalchemy-session": alchemy_session,
        "django": django,
    },
}
ASYNC: dict[str, dict[str, Callable[[Site], Begin]]] = {
    "sqlite": {
        "aiosqlite": aio_sqlite,
        "sqlalchemy-async": alchemy_async,
        "sqlalchemy-async-session": alchemy_async_session,
    },
    "postgres": {
        "psycopg-async": async_psycopg,
        "asyncpg": with_asyncpg,
        "sqlalchemy-async": alchemy_async,
        "sqlalchemy-async-session": alchemy_async_session,
    },
}


def execute(handle: Any, text: str) -> Any:
    """Run a statement without values on any handle; the answer is awaited where the handle is asynchronous."""
    if type(handle).__module__.startswith("sqlalchemy"):
        return handle.execute(sa.text(text))
    if type(handle).__module__.startswith("django"):
        return handle.cursor().execute(text)
    return handle.execute(text)

"""Adapters for SQLAlchemy's four handles.

Used by `handles` alone; SQLAlchemy itself is never imported.

Rule: statements go through SQLAlchemy and not past it, so that it begins its transaction, logs and counts as it does
for its own. Only the question whether a transaction is open is put to the driver's connection. What a driver raised
leaves here as the driver raised it, for the engine that translates its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stoker.engines.sql.user_handles.drivers import (
    BEGIN,
    Adapter,
    Parameters,
    Rows,
    commits_each,
    outside,
    pyformat,
    refused,
)


@contextmanager
def bare() -> Iterator[None]:
    """Take SQLAlchemy's wrapping off a driver's error."""
    try:
        yield
    except Exception as error:
        original = getattr(error, "orig", None)
        if isinstance(original, Exception):
            raise original from error
        raise


class Alchemy(Adapter):
    """SQLAlchemy's Connection."""

    @property
    def dialect(self) -> str:  # type: ignore[override]
        return str(self._bind().dialect.name)

    @property
    def _first(self) -> str:
        """A statement that begins a transaction and, on Postgres, takes no snapshot, as every SELECT would."""
        return "SHOW transaction_isolation" if self.dialect == "postgresql" else "SELECT 1"

    def _bind(self) -> Any:
        return self.handle

    def _connection(self) -> Any:
        return self.handle

    async def begin(self) -> None:
        connection = self._connection()
        raw = connection.connection.driver_connection
        if outside(raw):
            # Its own BEGIN, and whatever the user hung on that event, comes with the first statement.
            connection.exec_driver_sql(self._first).close()
            if outside(raw):
                if await commits_each(raw):
                    raise refused(self.handle)
                with bare():
                    connection.exec_driver_sql(BEGIN)

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        with bare():
            result = self._connection().exec_driver_sql(*self._styled(statement, parameters))
            return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        styled = [self._styled(statement, row) for row in rows]
        with bare():
            return int(self._connection().exec_driver_sql(styled[0][0], [values for _, values in styled]).rowcount)

    async def touch(self, statement: str, parameters: Parameters) -> int:
        with bare():
            return int(self._connection().exec_driver_sql(*self._styled(statement, parameters)).rowcount)

    def _styled(self, statement: str, parameters: Parameters) -> tuple[str, Any]:
        if self._bind().dialect.paramstyle == "pyformat":
            return pyformat(statement, parameters)
        return statement, parameters if isinstance(parameters, Mapping) else tuple(parameters)


class AlchemySession(Alchemy):
    """A Session works on the Connection of its current transaction."""

    def _bind(self) -> Any:
        return self.handle.get_bind()

    def _connection(self) -> Any:
        return self.handle.connection()


class AsyncAlchemy(Alchemy):
    """SQLAlchemy's AsyncConnection."""

    suspends = True

    async def _opened(self) -> Any:
        return self.handle

    async def begin(self) -> None:
        connection = await self._opened()
        raw = (await connection.get_raw_connection()).driver_connection
        if outside(raw):
            await connection.exec_driver_sql(self._first)
            if outside(raw):
                if await commits_each(raw):
                    raise refused(self.handle)
                with bare():
                    await connection.exec_driver_sql(BEGIN)

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        with bare():
            result = await (await self._opened()).exec_driver_sql(*self._styled(statement, parameters))
            return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        styled = [self._styled(statement, row) for row in rows]
        with bare():
            connection = await self._opened()
            return int((await connection.exec_driver_sql(styled[0][0], [values for _, values in styled])).rowcount)

    async def touch(self, statement: str, parameters: Parameters) -> int:
        with bare():
            result = await (await self._opened()).exec_driver_sql(*self._styled(statement, parameters))
            return int(result.rowcount)


class AsyncAlchemySession(AsyncAlchemy):
    """An AsyncSession works on the AsyncConnection of its current transaction."""

    def _bind(self) -> Any:
        return self.handle.get_bind()

    async def _opened(self) -> Any:
        return await self.handle.connection()

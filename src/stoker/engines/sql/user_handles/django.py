"""The adapter for Django's connections: `connections[alias]`, and the proxy `django.db.connection`.

Used by `handles` alone; Django itself is never imported.

Rule: statements go to the driver's connection inside, because Django's cursors rewrite placeholders. What Django's
cursors would have refused is refused here, with messages about Django: a loop in this thread, a connection of another
thread, an atomic block that can only roll back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.engines.sql.user_handles.drivers import Adapter, Parameters, Rows, commits_each, describe_handle, outside
from stoker.model.errors import EngineRefused


def opened(handle: Any) -> Any:
    """The driver's connection, which Django opens when it is needed first."""
    try:
        handle.ensure_connection()
    except Exception as error:
        if type(error).__name__ != "SynchronousOnlyOperation":
            raise
        raise EngineRefused(
            "tx= is Django's connection, and this thread runs an event loop, where Django refuses to use one. Nothing "
            "was stored. Put the atomic block and enqueue_sync(...) into a plain function, and await it with "
            "sync_to_async(...)"
        ) from error
    handle.validate_thread_sharing()
    if handle.in_atomic_block and handle.needs_rollback:
        raise EngineRefused(
            "tx= is Django's connection in an atomic block that can only be rolled back, after an error inside it. "
            "Nothing was stored. Let the error leave the block, or put what may fail into an atomic block of its own"
        )
    return handle.connection


class Django(Adapter):
    """Django's wrapper around an adapter of its driver's connection."""

    def __init__(self, handle: Any, adapters: Callable[[Any], Adapter | None]) -> None:
        super().__init__(handle)
        raw = opened(handle)
        below = adapters(raw)
        if below is None:
            raise EngineRefused(
                f"tx= is Django's connection over a {describe_handle(raw)}. Stoker takes Django's connections over "
                "psycopg 3 and over sqlite3. Nothing was stored"
            )
        self._below = below

    @property
    def dialect(self) -> str:  # type: ignore[override]
        return self._below.dialect

    async def begin(self) -> None:
        raw = self._below.handle
        if outside(raw) and await commits_each(raw):
            raise EngineRefused(
                "tx= is Django's connection outside of an atomic block, where every statement is committed by itself, "
                "so the job would exist whether you commit or not. Call this inside `with transaction.atomic():`. "
                "Nothing was stored"
            )
        await self._below.begin()

    async def execute(self, statement: str, parameters: Parameters) -> Rows:
        return await self._below.execute(statement, parameters)

    async def execute_many(self, statement: str, rows: list[Parameters]) -> int:
        return await self._below.execute_many(statement, rows)

    async def touch(self, statement: str, parameters: Parameters) -> int:
        return await self._below.touch(statement, parameters)

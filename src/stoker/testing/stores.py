"""Stores of a test kit's own: in memory, a file, a schema or a prefix that nothing else uses and that is removed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from stoker.engines.base import Clock, Engine
from stoker.engines.memory.engine import MemoryEngine
from stoker.engines.sql.user_handles.handles import drive
from stoker.engines.url import engine_from_url
from stoker.model.errors import InvalidArgument
from stoker.testing.user_transactions import UserTransactions

T = TypeVar("T")

ADDRESSES: Final = {
    "postgres": "STOKER_TEST_POSTGRES_URL",
    "postgresql": "STOKER_TEST_POSTGRES_URL",
    "redis": "STOKER_TEST_REDIS_URL",
}
"""Where the URL of a server stands that a test names without one."""


class OwnStore:
    """A fresh store on `clock`: `engine` is not opened, `remove` is called when all engines on it are closed."""

    def __init__(self, where: str, clock: Clock) -> None:
        url = _url(where)
        scheme = urlsplit(url).scheme
        self.in_memory = scheme == "memory"
        self._folder: Path | None = None
        self._schema: str | None = None
        self._prefix: str | None = None
        self.user_transactions: UserTransactions | None = None
        self.engine: Engine
        if self.in_memory:
            self.engine = engine = engine_from_url(url, clock=clock)
            assert isinstance(engine, MemoryEngine)
            engine.history = None  # a test looks at all its jobs, however many have ended
            drive(engine.open())  # so that a synchronous tx= finds it open, before any loop has used the app
            self.user_transactions = UserTransactions(engine)
            engine.adopt(self.user_transactions.of)
        elif scheme == "sqlite":
            self.engine = self._file(None if where == "sqlite" else url, clock)
        elif scheme.startswith("postgres"):
            self._schema = f"stoker_kit_{uuid.uuid4().hex}"
            self.engine = engine_from_url(url, clock=clock, schema=self._schema)
        else:
            self._prefix = f"stoker_kit_{uuid.uuid4().hex}"
            self.engine = engine_from_url(url, clock=clock, prefix=self._prefix)

    def _file(self, url: str | None, clock: Clock) -> Engine:
        """Make an engine on a file in a folder of its own, beside the file that the URL names."""
        given = None if url is None else Path(engine_from_url(url).where)
        if given is not None and not given.parent.is_dir():
            raise InvalidArgument("store", url, f"must be in a folder that exists; {given.parent} does not")
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-kit-", dir=None if given is None else given.parent))
        own = quote(str(self._folder / ("jobs.db" if given is None else given.name)))
        query = "" if url is None else urlsplit(url).query
        return engine_from_url(f"sqlite:///{own}?{query}", clock=clock)

    async def remove(self) -> None:
        """Remove everything that was stored."""
        if self.user_transactions is not None:
            self.user_transactions.forget()
            await self.engine.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._schema is not None:
            engine: Any = self.engine.for_loop()
            await engine.open()
            try:
                async with engine.transaction() as tx:
                    await tx.execute(f'drop schema "{self._schema}" cascade', ())
            finally:
                await engine.close()
        if self._prefix is not None:
            await self._remove_keys(self._prefix)

    async def _remove_keys(self, prefix: str) -> None:
        engine: Any = self.engine.for_loop()
        await engine.open()
        try:
            connection = engine._store.connection
            for keys in (await connection.each_node("KEYS", f"*{prefix}*")).values():
                if keys:
                    await connection.pipeline([("UNLINK", key) for key in keys])
        finally:
            await engine.close()


def _url(where: object) -> str:
    """The URL that a user means: one of the names of engines, or a URL."""
    if not isinstance(where, str) or ("://" not in where and where not in ("memory", "sqlite", *ADDRESSES)):
        raise InvalidArgument("store", where, 'must be "memory", "sqlite", or the URL of a store')
    if where == "memory":
        return "memory://"
    if where == "sqlite":
        return "sqlite:///jobs.db"
    if where in ADDRESSES:
        found = os.environ.get(ADDRESSES[where])
        if not found:
            why = f"needs a server: set ${ADDRESSES[where]} to its URL, or give the URL itself"
            raise InvalidArgument("store", where, why)
        return found
    return where


def aside(work: Callable[[], Awaitable[T]]) -> T:
    """Run to its end on a loop of its own, in a thread of its own; the caller waits, also inside a running loop."""
    ended: list[T] = []
    failed: list[BaseException] = []

    async def run() -> None:
        try:
            ended.append(await work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="stoker-kit", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return ended[0]

"""Where the engines on servers are measured: a real server for the run, a schema or prefix for each measurement.

The servers come from the tests' own services, with their disks in use: Postgres syncs at every commit, Redis appends to
its log and syncs that every second.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from benchmarks.doors import drafts
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model.ids import JobId
from stoker.registry import mint

Name: TypeAlias = Literal["postgres", "redis"]
NAMES: tuple[Name, ...] = ("postgres", "redis")


class Bare(Protocol):
    """The plain loop beside an engine."""

    @property
    def holding(self) -> bool: ...
    async def prepare(self, batch: int) -> None: ...
    async def insert(self, ids: list[JobId]) -> None: ...
    async def turn(self, batch: int) -> int: ...
    async def heard(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A fresh store. `part` is the schema or the prefix that makes it one."""

    server: str
    part: str
    url: str
    open_bare: Callable[[str, str], AbstractAsyncContextManager[Bare]]

    def engine(self) -> Engine:
        return engine_from_url(self.url)

    def bare(self) -> AbstractAsyncContextManager[Bare]:
        return self.open_bare(self.server, self.part)


def open_bare(name: Name) -> Callable[[str, str], AbstractAsyncContextManager[Bare]]:
    """How the plain loop on such a server is opened."""
    if name == "postgres":
        from benchmarks.bare_postgres import BarePostgres

        return BarePostgres.open
    from benchmarks.bare_redis import BareRedis

    return BareRedis.open


class Ground:
    """One server and the places on it."""

    def __init__(self, name: Name, servers: ExitStack) -> None:
        from tests import services

        self.name = name
        self._open_bare = open_bare(name)
        if name == "postgres":
            self.server: Any = servers.enter_context(services.postgres_server(max_wal_size="4GB"))
        else:
            self.server = servers.enter_context(services.redis_server())

    def place(self) -> Place:
        """A new store."""
        url, part = self.server.url, f"bench_{uuid.uuid4().hex[:12]}"
        key = "schema" if self.name == "postgres" else "prefix"
        return Place(url, part, f"{url}{'&' if '?' in url else '?'}{key}={part}", self._open_bare)

    def waiting(self, jobs: int) -> Place:
        """A store with so many jobs to be drained."""
        place = self.place()
        asyncio.run(fill(place, jobs))
        return place

    def drop(self, place: Place) -> None:
        """Let a store go: what one measurement left must not weigh on the next."""
        asyncio.run(_drop(self.name, place))


async def fill(place: Place, jobs: int) -> None:
    """Store no-op jobs."""
    engine = place.engine()
    await engine.open()
    try:
        for start in range(0, jobs, 1_000):
            await engine.jobs.insert(drafts([mint() for _ in range(min(1_000, jobs - start))]))
    finally:
        await engine.close()


async def _drop(name: Name, place: Place) -> None:
    if name == "postgres":
        import asyncpg

        link = await asyncpg.connect(place.server)
        await link.execute(f'DROP SCHEMA IF EXISTS "{place.part}" CASCADE')
        await link.close()
    else:
        import redis.asyncio as redis

        client = redis.Redis.from_url(place.server)
        keys = [key async for key in client.scan_iter(f"*{place.part}*", count=1_000)]
        if keys:
            await client.unlink(*keys)
        await client.aclose()

"""A store of each engine, an app on it that seals, and what the store holds, byte for byte."""

from __future__ import annotations

import base64
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from stoker import Seal, Stoker
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisEngine
from stoker.engines.sqlite import SqliteEngine
from tests.harness.fixtures import batches

KEY, OLDER = bytes(range(32)), bytes(range(32, 64))
ENGINES = [
    pytest.param(name, marks=pytest.mark.engine(name))
    for name in ("memory", "sqlite", "postgres", "redis", "redis_cluster")
]
FEW = [ENGINES[1], ENGINES[3]]
"""For what the engine inside does not decide."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}")


class Sealable:
    """A store: `engine()` makes an engine on it, `dump()` returns what it holds."""

    def __init__(
        self,
        name: str,
        engine: Callable[[], Engine],
        dump: Callable[[], bytes],
        rows: Callable[[], bytes] | None = None,
    ) -> None:
        self.name = name
        self.engine = engine
        self.dump = dump
        self.rows = rows or dump
        """What a reader of rows sees: a file may hold what was deleted."""

    def app(self, seal: Seal | None = None, **options: Any) -> Stoker:
        """An app on the store."""
        return Stoker(self.engine(), seal=seal or Seal(keys={"2026-11": KEY}), **options)

    def plain_app(self) -> Stoker:
        """An app on the store that has no key."""
        return Stoker(self.engine())

    def holds(self, secret: str, *, rows: bool = False) -> bool:
        """Is a text in the store, as it is or in base64?"""
        raw = self.rows() if rows else self.dump()
        assert len(raw) > 200, "the dump is empty"
        if secret.encode() in raw:
            return True
        return any(
            secret.encode() in base64.urlsafe_b64decode(run[cut:].translate(_URL) + b"=" * (-len(run[cut:]) % 4))
            for run in _BASE64.findall(raw)
            for cut in range(4)
            if len(run[cut:]) % 4 != 1
        )


_URL = bytes.maketrans(b"+/", b"-_")


@pytest.fixture(params=ENGINES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sealable]:
    """One store after the other."""
    match request.param:
        case "memory":
            first = MemoryEngine()
            yield Sealable("memory", lambda: first.for_loop(), lambda: repr(vars(first._access.store)).encode())
        case "sqlite":
            yield Sealable(
                "sqlite",
                lambda: SqliteEngine(tmp_path / "jobs.db", durability="process"),
                lambda: b"".join(one.read_bytes() for one in tmp_path.glob("jobs.db*") if one.is_file()),
                lambda: _of_sqlite(tmp_path / "jobs.db"),
            )
        case "postgres":
            url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
            yield Sealable("postgres", lambda: PostgresEngine(url, schema=schema), lambda: _of_postgres(url, schema))
        case name:
            url, prefix = request.getfixturevalue(f"{name}_url"), request.getfixturevalue(f"{name}_prefix")
            nodes = [url]
            if name == "redis_cluster":
                nodes = [node.server.url for node in request.getfixturevalue("redis_cluster").masters]
            yield Sealable(name, lambda: RedisEngine(url, prefix=prefix), lambda: _of_redis(nodes, prefix))


def _of_sqlite(path: Path) -> bytes:
    parts: list[bytes] = []
    with closing(sqlite3.connect(path)) as connection:
        for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
            for row in connection.execute(f'select * from "{table}"'):
                parts += (value if isinstance(value, bytes) else str(value).encode() for value in row)
    return b"\0".join(parts)


def _of_postgres(url: str, schema: str) -> bytes:
    parts: list[bytes] = []
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = %s", (schema,)).fetchall()
        for (table,) in tables:
            for row in connection.execute(f'select * from "{schema}"."{table}"'.encode()):
                parts += (value if isinstance(value, bytes) else str(value).encode() for value in row)
    return b"\0".join(parts)


def _of_redis(nodes: list[str], prefix: str) -> bytes:
    parts: list[object] = []
    for node in nodes:
        with redis.Redis.from_url(node) as client:
            for key in (key for some in batches(client, f"*{prefix}*") for key in some):
                parts.append(key)
                match client.type(key):
                    case b"string":
                        parts.append(client.get(key))
                    case b"hash":
                        parts += [part for pair in client.hgetall(key).items() for part in pair]
                    case b"list":
                        parts += client.lrange(key, 0, -1)
                    case b"set":
                        parts += client.smembers(key)
                    case b"zset":
                        parts += client.zrange(key, 0, -1)
                    case b"stream":
                        parts += [part for _, fields in client.xrange(key) for pair in fields.items() for part in pair]
                    case other:
                        pytest.fail(f"{key!r} is a {other!r}, which this test does not read")
    return b"\0".join(part for part in parts if isinstance(part, bytes))

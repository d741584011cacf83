"""The stores that all systems share: one server each for Postgres and Redis, and a folder for SQLite files.

Every system finds the same durability: Postgres waits for the disk at each commit, Redis syncs its log every second.
SQLite's level is each system's own; the tables name it.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.peer import Peer
from benchmarks.peers.trees import cpu


class Place:
    """A fresh store for one system, and questions to it."""

    url: str

    def sql(self, statement: str) -> int:
        raise TypeError(f"this store has no SQL: {statement}")

    def size(self, *patterns: str) -> int:
        raise TypeError(f"this store has no keys: {patterns}")

    def settle_down(self) -> None:
        """What a store does by itself sooner or later: statistics of filled tables."""

    def written(self) -> int | None:
        """Bytes of its log so far; None where the system's own processes write."""
        return None

    def server_cpu(self) -> float:
        """Seconds of CPU of its server so far."""
        return 0.0


class SqlitePlace(Place):
    def __init__(self, file: Path) -> None:
        self.file = file
        self.url = f"sqlite:///{file}"

    def sql(self, statement: str) -> int:
        with closing(sqlite3.connect(self.file, timeout=10)) as link:
            [(found,)] = link.execute(statement)
        return int(found)


class PostgresPlace(Place):
    def __init__(self, url: str, pid: int) -> None:
        import psycopg

        self.url = url
        self._pid = pid
        self._link = psycopg.connect(url, autocommit=True)

    def sql(self, statement: str) -> int:
        [(found,)] = self._link.execute(statement)
        return int(found)

    def text(self, statement: str) -> str:
        [(found,)] = self._link.execute(statement)
        return str(found)

    def run(self, statement: str) -> None:
        self._link.execute(statement)

    def settle_down(self) -> None:
        self.run("VACUUM ANALYZE")

    def written(self) -> int:
        return self.sql("SELECT pg_current_wal_insert_lsn() - '0/0'")

    def server_cpu(self) -> float:
        return cpu(self._pid)

    def close(self) -> None:
        self._link.close()


SIZES = {b"list": "LLEN", b"zset": "ZCARD", b"hash": "HLEN", b"set": "SCARD"}


class RedisPlace(Place):
    def __init__(self, url: str, pid: int) -> None:
        import redis

        self.url = url
        self._pid = pid
        self._client: Any = redis.Redis.from_url(url)

    def size(self, *patterns: str) -> int:
        keys = [key for pattern in patterns for key in (self._client.keys(pattern) if "*" in pattern else [pattern])]
        return sum(map(self._size, keys))

    def _size(self, key: str) -> int:
        kind = self._client.type(key)
        if kind == b"stream":
            groups = self._client.xinfo_groups(key)
            unread = [len(self._client.xrange(key, b"(" + group["last-delivered-id"])) for group in groups]
            return sum(int(group["pending"]) for group in groups) + sum(unread)
        return int(self._client.execute_command(SIZES[kind], key)) if kind in SIZES else 0

    def written(self) -> int:
        return int(self._client.info("persistence")["aof_current_size"])

    def server_cpu(self) -> float:
        return cpu(self._pid)

    def version(self) -> str:
        return str(self._client.info("server")["redis_version"])

    def flush(self) -> None:
        self._client.flushall()


class Grounds:
    """Servers for the run, started when the first system asks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers = ExitStack()
        self._numbers = itertools.count()
        self._postgres: Any = None
        self._redis: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    @property
    def postgres(self) -> Any:
        """The Postgres of this run."""
        from tests import services

        if self._postgres is None:
            server = services.postgres_server(max_wal_size="4GB", shared_buffers="512MB")
            self._postgres = self._servers.enter_context(server)
        return self._postgres

    @property
    def redis(self) -> Any:
        """The Redis of this run; its log is not rewritten meanwhile, so that its size tells what was written."""
        from tests import services

        if self._redis is None:
            server = services.redis_server(**{"auto-aof-rewrite-percentage": "0"})
            self._redis = self._servers.enter_context(server)
        return self._redis

    def template(self, peer: Peer) -> str:
        """An empty Postgres database into which the schema of a system goes."""
        name = f"{peer.environment.replace('-', '_')}_schema"
        self.postgres.sql(f"CREATE DATABASE {name}")
        return self._database(name)

    def _database(self, name: str) -> str:
        found: str = self.postgres.url.rpartition("/")[0] + f"/{name}"
        return found

    @contextmanager
    def place(self, peer: Peer) -> Iterator[Place]:
        """A fresh store, gone afterwards."""
        if peer.store == "sqlite":
            folder = self._folder / str(next(self._numbers))
            folder.mkdir()
            try:
                yield SqlitePlace(folder / "jobs.db")
            finally:
                shutil.rmtree(folder)
        elif peer.store == "redis":
            place = RedisPlace(self.redis.url, self.redis.pid)
            place.flush()
            try:
                yield place
            finally:
                place.flush()
        else:
            name = f"bench_{next(self._numbers)}"
            self.postgres.sql(f"CREATE DATABASE {name} TEMPLATE {peer.environment.replace('-', '_')}_schema")
            other = PostgresPlace(self._database(name), self.postgres.pid)
            try:
                yield other
            finally:
                other.close()
                self.postgres.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def versions(self) -> dict[str, str]:
        """Of the servers and of SQLite, with what they do for durability."""
        found = {"SQLite": f"{sqlite3.sqlite_version} in Stoker and Huey: WAL, synchronous=FULL"}
        if self._redis is not None:
            place = RedisPlace(self._redis.url, self._redis.pid)
            found["Redis"] = f"{place.version()}: appendonly yes, appendfsync everysec"
        if self._postgres is not None:
            [[version]] = self._postgres.sql("SHOW server_version")
            [[sync]] = self._postgres.sql("SHOW synchronous_commit")
            [[fsync]] = self._postgres.sql("SHOW fsync")
            found["Postgres"] = f"{version}: fsync={fsync}, synchronous_commit={sync}"
        return found

"""Where a storm rages, as the environment tells its processes: the store, the ledger, the user's own tables."""

from __future__ import annotations

import mmap
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

LEASE: Final = 3.0
"""Seconds without a renewal after which a worker's jobs are taken over."""

BACKLOG: Final = 50
"""Jobs that may wait before producers pause: behind many, the time until a job runs again tells only of the queue."""

RATE, BURST = 10, 5
"""Starts a second of the queue `rated`, and how many at once: fewer than come at once."""

LIMITS: Final = {"limited_1": 1, "limited_2": 2, "limited_3": 3}
"""Kinds with a limit by key."""

CHILD_MEMORY: Final = 512
"""MiB of a handler's own process."""

TABLES: Final = (
    "create table if not exists lab_orders (n bigint primary key, job text not null)",
    "create table if not exists lab_effects (n bigint not null, door text not null)",
    "create table if not exists lab_received (n bigint not null)",
    "create table if not exists lab_counters (key text primary key, value bigint not null)",
    "create table if not exists lab_sent (key text not null, value bigint not null)",
    "create table if not exists lab_projected (key text not null, value bigint not null)",
)
"""What belongs to the user: rows that must agree with the jobs, messages and steps that were stored with them."""

KEYS: Final = 20
"""Keys of messages in the outbox."""


class FileClock:
    """The machine's clock and so many seconds, which a file says: it jumps for all processes at once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            self.set(0)
        with self.path.open("rb") as file:
            self._ahead = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)

    def set(self, by: int) -> None:
        """Let it jump, at once."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        os.pwrite(fd, bytes([by]), 0)
        os.close(fd)

    def __call__(self) -> int:
        return time.time_ns() // 1_000 + 1_000_000 * self._ahead[0]


class Place(NamedTuple):
    """`url` is how members reach the store; `ledger` is a path."""

    url: str
    ledger: str

    @classmethod
    def given(cls) -> Place:
        """The place that the environment names."""
        return cls(os.environ["LAB_URL"], os.environ["LAB_LEDGER"])

    @property
    def environ(self) -> dict[str, str]:
        return {"LAB_URL": self.url, "LAB_LEDGER": self.ledger}

    @property
    def options(self) -> dict[str, Any]:
        """Of the engine: on SQLite, whose clock is that of its processes, one that can jump."""
        return {"clock": FileClock(f"{self.ledger}.clock")} if self.url.startswith("sqlite") else {}

    @property
    def schema(self) -> str:
        """On Postgres, where it is the last option of the URL."""
        return self.url.partition("schema=")[2]

    @property
    def transactional(self) -> bool:
        """Can the store join a transaction of the user's?"""
        return not self.url.startswith("redis")

    @property
    def mark(self) -> str:
        """How the user's driver writes a placeholder."""
        return "%s" if self.schema else "?"

    @property
    def own_mark(self) -> str:
        """How the engine's own transaction writes one."""
        return "$1" if self.schema else "?"

    def table(self, name: str) -> str:
        """A table of the user's, as a connection of the engine finds it."""
        return f"{self.schema}.{name}" if self.schema else name

    def connect(self) -> Any:
        """A connection of the user's own; it begins transactions by itself."""
        if self.schema:
            return psycopg.connect(self.url.partition("?")[0], options=f"-csearch_path={self.schema}")
        return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30, check_same_thread=False)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        """A transaction of the user's own, as blocks and consumers take it."""
        with closing(self.connect()) as raw, raw:
            yield raw

    def run(self, raw: Any, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement, written with `?`."""
        cursor = raw.execute(text.replace("?", self.mark), values)
        return cursor.fetchall() if cursor.description else []

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """What one statement finds, in a transaction of its own."""
        with self.begin() as raw:
            return self.run(raw, text)

    def furnish(self) -> None:
        """Make the user's tables."""
        with self.begin() as raw:
            for statement in TABLES:
                self.run(raw, statement)
            for n in range(KEYS):
                self.run(raw, "insert into lab_counters values (?, 0)", f"k{n}")

"""Builds SQLite stores of any size quickly: the engine makes the schema, bulk statements the rows.

Rows are written with the engine's own statements, so a store built here is what the engine would have made of as many
calls, counters included.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.app import NOOP, PAYLOAD, QUEUE
from stoker.engines.sqlite import SqliteEngine
from stoker.engines.sqlite.columns import DONE, INSERT_BODY, INSERT_READY, PENDING
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import COMPLETED, ENQUEUED
from stoker.model.job import DEFAULT_ATTEMPTS, Demand, Draft, Settlement, Status
from stoker.model.time import DAY
from stoker.registry import mint

BETTER = -5
"""The priority of delayed jobs that stand before all others."""

_NUMBERS = "UPDATE stoker_clock SET seq = seq + ? RETURNING seq"
_FINISH_ALL = """
INSERT INTO stoker_done (id, seq, qid, status, token, attempts, started, finished, expires, cancel)
SELECT id, seq, qid, 3, created, 1, created, created, created + ?3, 0 FROM stoker_body WHERE seq BETWEEN ?1 AND ?2
"""


def build(path: Path, *, ready: int = 0, done: int = 0, delayed: int = 0) -> None:
    """A closed store with so many jobs waiting, finished, and due far in the future with a better priority."""
    asyncio.run(_begin(path))
    if not ready + done + delayed:
        return
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=256)) as raw:
        raw.execute("PRAGMA synchronous = OFF")
        raw.execute("PRAGMA cache_size = -65536")
        raw.execute("BEGIN IMMEDIATE")
        now = time.time_ns() // 1000
        [[qid]] = raw.execute("SELECT qid FROM stoker_queues WHERE name = ?", (QUEUE,))
        if done:
            first, last = _bodies(raw, qid, done, now - DAY, 0, now - DAY)
            raw.execute(_FINISH_ALL, (first, last, 7 * DAY))
            _count(raw, qid, {DONE: done, COMPLETED: done, ENQUEUED: done})
        if delayed:
            raw.execute(INSERT_READY, _bodies(raw, qid, delayed, now + DAY, BETTER, now))
            _count(raw, qid, {PENDING: delayed, ENQUEUED: delayed})
        if ready:
            raw.execute(INSERT_READY, _bodies(raw, qid, ready, now, 0, now))
            _count(raw, qid, {PENDING: ready, ENQUEUED: ready})
        raw.execute("COMMIT")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _begin(path: Path) -> None:
    """Make the schema and let one job pass all doors, so that queue, kind and counters are known."""
    engine = SqliteEngine(path, durability="process")
    await engine.open()
    try:
        await engine.jobs.renew("builder", [], first=True)
        await engine.jobs.insert([Draft(mint(), NOOP, PAYLOAD, QUEUE)])
        [claim] = await engine.jobs.claim(Demand("builder", ((QUEUE, 1),)))
        await engine.jobs.settle([Settlement(claim.id, claim.worker, claim.token, Status.DONE, ref=claim.ref)])
        await engine.jobs.renew("builder", [], lease=0)
    finally:
        await engine.close()


def _bodies(raw: sqlite3.Connection, qid: int, n: int, due: int, priority: int, created: int) -> tuple[int, int]:
    """Write `n` job bodies; the first and the last of their numbers."""
    [[last]] = raw.execute(_NUMBERS, (n,)).fetchall()
    first = last - n + 1

    def rows() -> Iterator[tuple[object, ...]]:
        for seq in range(first, last + 1):
            yield (
                seq,
                mint(),
                qid,
                priority,
                due,
                NOOP,
                PAYLOAD,
                DEFAULT_ATTEMPTS,
                created,
                None,
                None,
                None,
                None,
                None,
            )

    raw.executemany(INSERT_BODY, rows())
    return first, last


def _count(raw: sqlite3.Connection, qid: int, counts: dict[int, int]) -> None:
    raw.executemany(sql("count"), [(qid, NOOP, what, n) for what, n in counts.items()])

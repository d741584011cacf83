"""The limit on SQLite: the engine's statements in a plain loop, with nothing around them.

The texts come from the engine's own files and the connection from its own opener, so pragmas, page cache and the care
for the disk are the same. A test compares what both run, statement by statement: when the engine learns a better way,
this loop has to follow, or it would measure against a straw man. What is missing here is what the engine adds: gate,
coalescing, fences that are looked at, values of the model, futures, threads, wake-ups.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.app import NOOP, PAYLOAD, QUEUE
from benchmarks.stats import Meter
from stoker.engines.sqlite.columns import DONE, FINISH, INSERT_BODY, INSERT_READY, PENDING, PICK, RUNNING
from stoker.engines.sqlite.connection import FULL, NORMAL, Connection
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.subqueues import BEFORE_ALL
from stoker.engines.sqlite.unit_of_work import BLOCK, COMPLETED, ENQUEUED, MARK_EVERY
from stoker.model.ids import JobId
from stoker.model.job import DEFAULT_ATTEMPTS
from stoker.model.run_origins import number
from stoker.model.time import DAY

WORKER = "bare"
_ENLIST = "INSERT INTO stoker_workers (name, lease_until) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
_NUMBER = "SELECT wid FROM stoker_workers WHERE name = ?"
LEVELS = {"power": FULL, "process": NORMAL}

_HIGH, _MARK, _NUMBERS, _COUNT = sql("now"), sql("clock_mark"), sql("numbers"), sql("count")
_QUEUE, _QUEUE_BY_QID, _WORKER = sql("queue"), sql("queue_by_qid"), sql("worker")
_BODY, _READY = INSERT_BODY, INSERT_READY
_PRIORITY, _PICK, _TAKE, _DROP = sql("claim_priority"), PICK, sql("claim_take"), sql("claim_drop")
_FENCE, _FINISH, _TROUBLE_OVER = sql("settle_fence"), FINISH, sql("trouble_over")


def bell_of(path: Path) -> str:
    """Where a waiter for jobs of a store is notified that there are some."""
    return f"{path}.bare"


class Bare:
    """A bare connection to a store that was built before. `counters=False` leaves out what keeps the counts exact."""

    def __init__(self, path: Path, durability: str, *, counters: bool = True) -> None:
        self._connection = Connection(str(path))
        self.raw: sqlite3.Connection = self._connection._raw  # noqa: SLF001 - its pragmas are the point
        self._counters = counters
        self._held: list[Any] = []
        self._claimed = 0
        self._next = self._end = 0
        self._known = False
        self._connection.pragma("synchronous", LEVELS[durability])
        self.raw.execute(_ENLIST, (WORKER, time.time_ns() // 1000 + DAY))
        [[self._wid]] = self.raw.execute(_NUMBER, (WORKER,)).fetchall()
        self._qid, self._keep = self.raw.execute("SELECT qid, keep_done FROM stoker_queues").fetchall()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()

    def insert(self, ids: Sequence[JobId]) -> None:
        """Store one batch."""
        execute, many = self.raw.execute, self.raw.executemany
        now = time.time_ns() // 1000
        execute("BEGIN IMMEDIATE")
        [[high]] = execute(_HIGH, ()).fetchall()
        n = len(ids)
        first = self._next
        if first + n > self._end:
            [[last]] = execute(_NUMBERS, (n + BLOCK,)).fetchall()
            self._end = last + 1
            first = self._end - n - BLOCK
        self._next = first + n
        if not self._known:
            execute(_QUEUE, (QUEUE,)).fetchall()
            self._known = True
        qid = self._qid
        rows = [
            (seq, id_, qid, 0, now, NOOP, PAYLOAD, DEFAULT_ATTEMPTS, now, None, None, None, None, None)
            for seq, id_ in enumerate(ids, first)
        ]
        many(_BODY, rows)
        execute(_READY, (first, first + n - 1)).fetchall()
        if self._counters:
            many(_COUNT, [(qid, NOOP, PENDING, n), (qid, NOOP, ENQUEUED, n)])
        if now > high + MARK_EVERY:
            execute(_MARK, (now,)).fetchall()
        execute("COMMIT")

    def turn(self, batch: int, held: list[Any], claimed: int) -> tuple[list[Any], int]:
        """End one batch as done and take the next, in one transaction; the rows taken, and when."""
        execute, many = self.raw.execute, self.raw.executemany
        now = time.time_ns() // 1000
        execute("BEGIN IMMEDIATE")
        [[high]] = execute(_HIGH, ()).fetchall()
        qid, wid = self._qid, self._wid
        if held:
            execute(_WORKER, (WORKER,)).fetchall()
            execute(_QUEUE_BY_QID, (qid,)).fetchall()
            expires = now + self._keep
            many(_FENCE, [(wid, row[4], row[2]) for row in held])
            origin = number(WORKER)
            rows = [(row[0], row[4], qid, row[2], row[1], claimed, now, expires, origin, None) for row in held]
            many(_FINISH, rows)
            execute(_TROUBLE_OVER, (NOOP,)).fetchall()
        else:
            execute(_QUEUE, (QUEUE,)).fetchall()
        execute(_WORKER, (WORKER,)).fetchall()
        picked: list[Any] = []
        priority = BEFORE_ALL
        while len(picked) < batch and (found := execute(_PRIORITY, (qid, priority)).fetchall()):
            priority = found[0][0]
            more = execute(_PICK, (qid, priority, now, batch - len(picked))).fetchall()
            if more:
                due, id_ = more[-1][3], more[-1][0]
                execute(_TAKE, (qid, priority, due, id_, wid, now)).fetchall()
                execute(_DROP, (qid, priority, due, id_)).fetchall()
                picked += more
        if self._counters:
            done, taken = len(held), len(picked)
            counts = ((RUNNING, taken - done), (DONE, done), (COMPLETED, done), (PENDING, -taken))
            many(_COUNT, [(qid, NOOP, what, n) for what, n in counts if n])
        if now > high + MARK_EVERY:
            execute(_MARK, (now,)).fetchall()
        execute("COMMIT")
        return picked, now

    def care(self, level: int) -> None:
        """How much the next commits care for the disk."""
        self.raw.execute(f"PRAGMA synchronous = {level}")

    def begin(self, batch: int) -> None:
        """Take the first batch."""
        self._held, self._claimed = self.turn(batch, [], 0)

    def drain(self, batch: int, jobs: int | None = None) -> Meter:
        """Claim and settle: everything there is, or so many jobs and the rest at another call."""
        meter = Meter()
        if not self._held:
            self.begin(batch)
        while self._held and (jobs is None or meter.jobs < jobs):
            meter.jobs += len(self._held)
            with meter:
                self._held, self._claimed = self.turn(batch, self._held, self._claimed)
        return meter

    def fill(self, batches: Sequence[Sequence[JobId]]) -> Meter:
        """Store batch after batch."""
        meter = Meter()
        for batch in batches:
            meter.jobs += len(batch)
            with meter:
                self.insert(batch)
        return meter

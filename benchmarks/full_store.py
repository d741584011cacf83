"""Fills a store with many jobs, half of them history and half a backlog, as fast as the store takes them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.grounds import Place
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.control import Presence
from stoker.model.events import Event, EventType, Point
from stoker.model.job import Demand, Draft, Settlement, Status
from stoker.model.query import Retention
from stoker.model.same_error import signature
from stoker.model.stats import of_all
from stoker.model.time import HOUR, MINUTE, Instant
from stoker.registry import mint
from stoker.worker.rollup import write_points

QUEUES = 200
NAMES = [f"q{n}" for n in range(QUEUES)]
DEAD = 2_000
MINUTES = 60
WORKER = "bench"
EVENTS = 54_000
METRICS = ("enqueued", "completed", "processing", "total")


async def seed(engine: Engine) -> None:
    """Every queue with a done and a waiting job, dead ones, a worker, an hour of points, records of the errors."""
    await engine.open()
    await engine.jobs.renew(WORKER, [], first=True, lease=HOUR)
    await _lives(engine, QUEUES, Status.DONE)
    await _lives(engine, DEAD, Status.DEAD)
    await backlog(engine, QUEUES)
    await engine.control.beat(Presence(worker=WORKER, host="", pid=1, queues=dict.fromkeys(NAMES, 5)))
    minute = (await engine.now()) // MINUTE * MINUTE
    for ago in range(1, MINUTES + 1):
        at = minute - ago * MINUTE
        points = [Point(name, metric, at, 50, 5e6, 1e5, 2e5, 3e5, 4e5) for name in NAMES for metric in METRICS]
        points += [Point("", of_all(metric), at, 50 * QUEUES, 5e6 * QUEUES, 1e5, 2e5, 3e5, 4e5) for metric in METRICS]
        await engine.timeline.record([], points, now=minute)
    await _events(engine, minute)
    await write_points(engine)


async def _events(engine: Engine, minute: Instant) -> None:
    """What a hundred jobs per second leave in the last three closed minutes."""
    types = (EventType.ENQUEUED, EventType.STARTED, EventType.COMPLETED)
    for n in range(0, EVENTS, 1_000):
        at = minute - 3 * MINUTE + n * 3 * MINUTE // EVENTS
        told = [Event(at, types[m % 3], mint(), NAMES[m % QUEUES], "bench", 1, 500, 900) for m in range(1_000)]
        await engine.timeline.record(told, now=minute)


async def backlog(engine: Engine, jobs: int) -> None:
    """Jobs that wait, in all queues."""
    for start in range(0, jobs, 1_000):
        chosen = range(start, min(start + 1_000, jobs))
        await engine.jobs.insert([Draft(mint(), "bench", b"{}", queue=NAMES[n % QUEUES]) for n in chosen])


async def _lives(engine: Engine, jobs: int, status: Status) -> None:
    """Store jobs and end them. Deaths are told of, as a worker does, in a minute that is closed."""
    at = (await engine.now()) // MINUTE * MINUTE - MINUTE // 2
    for start in range(0, jobs, 1_000):
        n = min(1_000, jobs - start)
        await backlog(engine, n)
        claims = await engine.jobs.claim(Demand(WORKER, tuple((name, n) for name in NAMES), n))
        error = f"Timeout: {start} s" if status is Status.DEAD else None
        await engine.jobs.settle([Settlement(one.id, WORKER, one.token, status, error=error) for one in claims])
        if error is not None:
            sign = signature(error)
            told = [Event(at, EventType.FAILED, one.id, one.queue, one.kind, 1, 500, error=sign) for one in claims]
            await engine.timeline.record(told, now=await engine.now())


def multiply(path: Path, jobs: int) -> None:
    """Add copies of the seeds to a SQLite file, without the engine, until it holds so many jobs."""
    link = sqlite3.connect(path)
    with link:
        [(seq, now)] = link.execute("SELECT max(seq), max(created) FROM stoker_body")
        qids = [qid for (qid,) in link.execute("SELECT qid FROM stoker_queues ORDER BY qid")]
        [(kept,)] = link.execute("SELECT max(expires - finished) FROM stoker_done WHERE status = 3")
        done, waiting = jobs // 2, jobs - jobs // 2
        rows = [(seq + n, mint(), qids[n % len(qids)]) for n in range(1, done + waiting + 1)]

        def bodies() -> Iterator[tuple[Any, ...]]:
            return ((one, job, qid, now) for one, job, qid in rows)

        link.executemany(
            "INSERT INTO stoker_body (seq, id, qid, priority, due, kind, payload, budget, created) "
            "VALUES (?1, ?2, ?3, 0, ?4, 'bench', x'7b7d', 5, ?4)",
            bodies(),
        )
        link.executemany(
            "INSERT INTO stoker_done (id, seq, qid, status, token, attempts, started, finished, expires, cancel, "
            "settled) VALUES (?2, ?1, ?3, 3, ?4, 1, ?4, ?4 - ?1 * 100000, ?4 - ?1 * 100000 + ?5, 0, 3)",
            ((*row, now, kept) for row in rows[:done]),
        )
        link.executemany(
            "INSERT INTO stoker_ready (qid, priority, due, id, seq, attempts, token, status, past) "
            "VALUES (?3, 0, ?4, ?2, ?1, 0, 0, 0, 0)",
            [(*row, now) for row in sorted(rows[done:], key=lambda row: (row[2], row[1]))],
        )
        for what, n in ((0, waiting), (3, done), (8, jobs), (9, done)):
            link.execute("UPDATE stoker_counts SET n = n + ? WHERE what = ?", (n // len(qids), what))
    link.close()


MULTIPLY = """
CREATE TEMP TABLE fresh AS
SELECT
    n,
    (lpad(to_hex($1::bigint + n / 1000), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8'
     || lpad(to_hex(n), 15, '0'))::uuid AS id,
    'q' || n % $2::int AS queue
FROM generate_series(1, $3::bigint) AS n;
INSERT INTO stoker.job (id, created, due, budget, priority, queue, kind, payload)
SELECT f.id, $4, $4, 5, 0, f.queue, 'bench', '{}' FROM fresh AS f;
INSERT INTO stoker.done (id, finished, expires, token, started, attempts, status, settled, cancel, queue)
SELECT f.id, $4 - f.n * 100000, $4 - f.n * 100000 + 604800000000, $4, $4, 1, 3, 3, false, f.queue
FROM fresh AS f WHERE f.n <= $5;
INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
SELECT $4, 0, f.id, 0, 0, 0, -1, false, f.queue FROM fresh AS f WHERE f.n > $5;
UPDATE stoker.tally SET
    pending = pending + ($3 - $5) / $2, done = done + $5 / $2, enqueued = enqueued + $3 / $2,
    completed = completed + $5 / $2;
DROP TABLE fresh;
VACUUM ANALYZE
"""
"""Values: milliseconds of the first id, queues, jobs, now, how many of them are done."""


async def multiply_postgres(server: str, schema: str, engine: Engine, jobs: int) -> None:
    """Add copies of the seeds to a Postgres schema, without the engine."""
    now = await engine.now()
    await engine.operator.expire(Retention())  # which adds the counts up
    values = (now // 1_000, QUEUES, jobs, now, jobs // 2)
    link = await asyncpg.connect(server)
    try:
        for statement in MULTIPLY.replace("stoker.", f'"{schema}".').split(";\n"):
            text = statement
            for number, value in enumerate(values, 1):
                text = text.replace(f"${number}", str(value))
            await link.execute(text)
    finally:
        await link.close()


async def fill(place: Place, engine: Engine, jobs: int) -> None:
    """Fill a seeded store on a server."""
    if engine.name == "postgres":
        await multiply_postgres(place.server, place.part, engine, jobs)
    else:
        await _lives(engine, jobs // 2, Status.DONE)
        await backlog(engine, jobs - jobs // 2)


async def sqlite(path: Path, jobs: int) -> None:
    """Fill a file."""
    engine = SqliteEngine(path, durability="process")
    await seed(engine)
    await engine.close()
    multiply(path, jobs)

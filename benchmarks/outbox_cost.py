"""What an outbox costs: appending and delivering, against the same by hand; pickup; producers beside the vacuum.

On Postgres also the whole path from append to handler, and how it holds out beside an old snapshot and a long writer.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

from benchmarks.catalog import Benchmark
from benchmarks.rows import Row, at_least, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter, Pair, in_turns, pace_row, times
from stoker.app import Stoker
from stoker.engines.base import Outbox as Streams
from stoker.engines.base import outbox_of
from stoker.model.outbox.consumers import Seek
from stoker.model.outbox.cursor import Consumer, LeaseRequest
from stoker.outbox import Batch, Entry, Message, Outbox
from stoker.outbox.service import VACUUM_REST, VACUUM_STEP
from stoker.registry import mint
from stoker.worker import Worker

BODY = {"order": 4711, "customer": "ada", "cents": 990, "note": "x" * 100}
MANY = 1_000
CHUNK = 100

TABLE = "CREATE TABLE by_hand (id {id} PRIMARY KEY, created bigint, key text, type text, headers text, payload {raw})"
CURSOR = "CREATE TABLE hand_cursor (position bigint)"


class Ground:
    """A store, a connection of the user's on it, and the same tables by hand."""

    def __init__(self, url: str, db: Any, mark: str) -> None:
        self.jobs = Stoker(url, timeline=False)
        self.outbox: Outbox[dict[str, Any]] = Outbox(self.jobs, stream="bench", partitions=16)
        self.db = db
        postgres = mark == "%s"
        self.jobs.run(self.jobs.open())
        db.execute(TABLE.format(id="uuid" if postgres else "blob", raw="bytea" if postgres else "blob"))
        db.execute(CURSOR)
        db.execute("INSERT INTO hand_cursor VALUES (0)")
        db.commit()
        self._insert = f"INSERT INTO by_hand VALUES ({', '.join([mark] * 6)})"
        self._postgres = postgres

    def by_hand(self) -> tuple[Any, ...]:
        """The columns of a message, made without Stoker."""
        made = mint()
        id_ = made.hex() if self._postgres else made
        return id_, time.time_ns() // 1_000, "order-7", "json", "{}", json.dumps(BODY).encode()

    def append_one(self, count: int) -> Meter:
        meter = Meter()
        for _ in range(count):
            with meter:
                self.outbox.append_sync("order-7", BODY, tx=self.db)
                self.db.commit()
        meter.jobs = count
        return meter

    def hand_one(self, count: int) -> Meter:
        meter = Meter()
        for _ in range(count):
            with meter:
                self.db.execute(self._insert, self.by_hand())
                self.db.commit()
        meter.jobs = count
        return meter

    def append_many(self, count: int) -> Meter:
        meter = Meter()
        for _ in range(count):
            with meter:
                entries: list[Entry] = [self.outbox.entry(f"order-{n}", BODY) for n in range(MANY)]
                self.outbox.append_many_sync(entries, tx=self.db)
                self.db.commit()
        meter.jobs = count * MANY
        return meter

    def hand_many(self, count: int) -> Meter:
        meter = Meter()
        for _ in range(count):
            with meter:
                rows = [self.by_hand() for _ in range(MANY)]
                self.db.cursor().executemany(self._insert, rows)
                self.db.commit()
        meter.jobs = count * MANY
        return meter

    def close(self) -> None:
        self.db.close()
        self.jobs.run(self.jobs.close())


def appends(session: Session, name: str, ground: Ground) -> Iterator[Row]:
    few, rounds = session.sized(100, 400), session.rounds
    pairs = in_turns(rounds, partial(ground.append_one, few), partial(ground.hand_one, few))
    yield pace_row(f"outbox.append.{name}", pairs, at_least(1 / 1.3), "one per transaction of the user's")
    times = session.sized(2, 8)
    pairs = in_turns(rounds, partial(ground.append_many, times), partial(ground.hand_many, times))
    bar = at_least(1 / 2 if name == "sqlite" else 1 / 1.3)
    yield pace_row(f"outbox.append.many.{name}", pairs, bar, f"{MANY} in one transaction, ids and JSON included")


# --- delivering -----------------------------------------------------------------------------------------------------


async def _delivered(url: str, count: int, batch: int) -> Meter:
    """Deliver messages that are numbered already, through a whole worker."""
    jobs = Stoker(url, timeline=False)
    outbox: Outbox[dict[str, Any]] = Outbox(jobs, stream="deliver", partitions=1)
    done = asyncio.Event()
    seen = 0
    meter = Meter()

    @outbox.deliver(batch=batch, lanes=1)
    async def nothing(batch: Batch[Any]) -> None:
        nonlocal seen
        if not seen:
            meter.__enter__()  # the start of the worker is not counted, nor is its first batch
        else:
            meter.jobs += len(batch)
        seen += len(batch.rest())
        if seen >= count:
            meter.__exit__()
            done.set()

    async with jobs:
        for _ in range(count // MANY):
            await outbox.append_many([outbox.entry("k", BODY) for _ in range(MANY)])
        streams = outbox_of(await jobs.engine())
        await streams.register(outbox.stream, [outbox.handlers["nothing"].consumer])
        await _numbered(streams)
        async with Worker(jobs, {}):
            await done.wait()
    return meter


async def _numbered(streams: Streams) -> None:
    """Have the engine number what is committed: a lease of an unknown consumer does, and takes nothing."""
    for _ in range(10):
        await streams.lease(LeaseRequest("deliver", "nothing", "nobody", 1))


def _bare(db: Any, count: int, batch: int, mark: str) -> Meter:
    """A bare cursor loop over as many rows of the same columns: read behind the position, move it, commit."""
    kind = "bigint" if mark == "%s" else "integer"
    db.execute(
        f"CREATE TABLE log (number {kind} PRIMARY KEY, created bigint, id text, key text, type text, payload text)"
    )
    rows = [(n, time.time_ns(), mint().hex(), "k", "json", json.dumps(BODY)) for n in range(1, count + 1)]
    db.cursor().executemany(f"INSERT INTO log VALUES ({', '.join([mark] * 6)})", rows)
    db.commit()
    meter, position = Meter(), 0
    read = (
        f"SELECT number, created, id, key, type, payload FROM log WHERE number > {mark} ORDER BY number LIMIT {batch}"
    )
    with meter:
        while found := db.execute(read, (position,)).fetchall():
            position = found[-1][0]
            db.execute(f"UPDATE hand_cursor SET position = {mark}", (position,))
            db.commit()
    db.execute("DROP TABLE log")
    db.commit()
    meter.jobs = count
    return meter


def deliveries(session: Session, name: str, fresh: Callable[[], str], db: Any, mark: str) -> Iterator[Row]:
    count = session.sized(5_000, 20_000)
    for batch in (100, 500):
        value = lambda batch=batch: asyncio.run(_delivered(fresh(), count, batch))  # noqa: E731
        pairs = in_turns(session.rounds, value, partial(_bare, db, count, batch, mark))
        yield pace_row(f"outbox.deliver.{batch}.{name}", pairs, at_least(0.6), "a worker, against a bare cursor loop")


# --- pickup and vacuum ----------------------------------------------------------------------------------------------


async def _picked_up(url: str, count: int) -> Pair[float]:
    """Milliseconds from the end of an append, and of an enqueue, of this process to its handler."""
    jobs = Stoker(url, timeline=False)
    outbox: Outbox[int] = Outbox(jobs, stream="pickup", partitions=4)
    taken: list[float] = []
    appended: list[float] = []

    @outbox.deliver
    async def take(_message: Message[int]) -> None:
        taken.append(time.perf_counter())

    @jobs.task
    async def run() -> None:
        taken.append(time.perf_counter())

    async def waits(put: Callable[[], Awaitable[object]]) -> float:
        """The median over isolated calls."""
        del taken[:], appended[:]
        for n in range(count):
            await asyncio.sleep(0.02)
            await put()
            appended.append(time.perf_counter())
            while len(taken) <= n:
                await asyncio.sleep(0.0005)
        found = [max(began - ended, 0.0) for began, ended in zip(taken, appended, strict=True)]
        return median(found[count // 10 :]) * 1e3

    async with jobs, Worker(jobs, {"default": 4}):
        of_job = await waits(run.enqueue)
        return Pair(await waits(lambda: outbox.append("k", 1)), of_job)


def pickups(session: Session, name: str, fresh: Callable[[], str]) -> Row:
    pairs = [asyncio.run(_picked_up(fresh(), session.sized(30, 100))) for _ in range(FEWEST_ROUNDS)]
    value, limit = median(pair.value for pair in pairs), median(pair.limit for pair in pairs)
    note = "p50, from the end of an append to its handler, against a job's pickup in the same run"
    return Row(f"outbox.pickup.{name}", "ms", value, limit, times(pairs), at_most(2.0, "ratio"), note=note)


async def _produced(url: str, seconds: float, *, vacuum: bool) -> Meter:
    """Append while a vacuum deletes what is passed, or while it does not."""
    jobs = Stoker(url, timeline=False)
    outbox: Outbox[dict[str, Any]] = Outbox(jobs, stream="vacuum", partitions=4)
    meter = Meter()
    async with jobs:
        engine = await jobs.engine()
        streams = outbox_of(engine)
        for _ in range(10):
            await outbox.append_many([outbox.entry(str(n), BODY) for n in range(MANY)])
        await streams.register(outbox.stream, [Consumer("passed")])
        await streams.steer("vacuum", "passed", Seek("end"))

        async def sweep() -> None:
            while True:
                began = time.monotonic()
                swept = await streams.vacuum("vacuum", VACUUM_STEP)
                await asyncio.sleep((time.monotonic() - began) * VACUUM_REST if swept.more else 0.05)

        sweeping = asyncio.create_task(sweep()) if vacuum else None
        end = time.monotonic() + seconds
        with meter:
            while time.monotonic() < end:
                await outbox.append("k", BODY)
                meter.jobs += 1
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
    return meter


def vacuums(session: Session, name: str, fresh: Callable[[], str]) -> Row:
    seconds = session.sized(1, 3)
    pairs = in_turns(
        session.rounds,
        lambda: asyncio.run(_produced(fresh(), seconds, vacuum=True)),
        lambda: asyncio.run(_produced(fresh(), seconds, vacuum=False)),
    )
    return pace_row(f"outbox.vacuum.{name}", pairs, at_least(0.9), "producers beside the vacuum, against without")


# --- the whole path, on Postgres ------------------------------------------------------------------------------------


async def _whole_path(url: str, count: int) -> Meter:
    """Append messages, and deliver them: numbering included, the start of the worker not."""
    jobs = Stoker(url, timeline=False)
    outbox: Outbox[dict[str, Any]] = Outbox(jobs, stream="path", partitions=16)
    done, meter = asyncio.Event(), Meter()
    seen = 0

    @outbox.deliver(batch=CHUNK)
    async def nothing(batch: Batch[Any]) -> None:
        nonlocal seen
        seen += len(batch.rest())
        if seen >= count:
            meter.__exit__()
            done.set()

    async with jobs, Worker(jobs, {}):
        with meter:
            for start in range(0, count, CHUNK):
                await outbox.append_many([outbox.entry(str(n), BODY) for n in range(start, start + CHUNK)])
            await done.wait()
    meter.jobs = count
    return meter


async def _relay_by_hand(url: str, count: int) -> Meter:
    """Insert rows, and take them out again: `DELETE ... SKIP LOCKED`, a transaction for each batch."""
    import asyncpg

    server, _, schema = url.partition("?schema=")
    db, other = await asyncpg.connect(server), await asyncpg.connect(server)
    table = f"{schema}.by_hand"
    await db.execute(
        f"CREATE TABLE {table} (n bigserial PRIMARY KEY, id uuid, created bigint, key text, type text, headers text, "
        "payload bytea)"
    )
    insert = f"INSERT INTO {table} (id, created, key, type, headers, payload) VALUES ($1, $2, $3, $4, $5, $6)"
    take = (
        f"DELETE FROM {table} WHERE n = ANY(ARRAY(SELECT n FROM {table} ORDER BY n LIMIT {CHUNK} "
        "FOR UPDATE SKIP LOCKED)) RETURNING *"
    )

    async def relay() -> None:
        left = count
        while left:
            async with other.transaction():
                left -= len([json.loads(row["payload"]) for row in await other.fetch(take)])

    meter = Meter()
    with meter:
        relaying = asyncio.create_task(relay())
        for start in range(0, count, CHUNK):
            rows = [
                (uuid.UUID(bytes=mint()), time.time_ns() // 1_000, str(n), "json", "{}", json.dumps(BODY).encode())
                for n in range(start, start + CHUNK)
            ]
            async with db.transaction():
                await db.executemany(insert, rows)
        await relaying
    meter.jobs = count
    await db.close()
    await other.close()
    return meter


def whole_path(session: Session, fresh: Callable[[], str]) -> Row:
    count = session.sized(5_000, 20_000)
    pairs = in_turns(
        session.rounds,
        lambda: asyncio.run(_whole_path(fresh(), count)),
        lambda: asyncio.run(_relay_by_hand(fresh(), count)),
    )
    return pace_row("outbox.path.postgres", pairs, at_least(0.4), "append to handler, against DELETE ... SKIP LOCKED")


async def _held_out(url: str, seconds: float, *, writer: bool) -> Pair[float]:
    """Messages per second in the last sixth of a time, and in the first, while a transaction of a user's is open."""
    import psycopg

    jobs = Stoker(url, timeline=False)
    outbox: Outbox[dict[str, Any]] = Outbox(jobs, stream="held", partitions=4)
    at: list[float] = []

    @outbox.deliver(batch=20)
    async def nothing(batch: Batch[Any]) -> None:
        at.extend([time.monotonic()] * len(batch.rest()))

    with psycopg.connect(url.partition("?schema=")[0]) as held:
        async with jobs, Worker(jobs, {}):
            await outbox.append("first", BODY)  # a stream that is new would be registered by the held transaction
            while not at:
                await asyncio.sleep(0.001)
            if writer:
                outbox.append_sync("held", BODY, tx=held)
            else:
                held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                held.execute("SELECT 1")
            sent, began = 0, time.monotonic()
            while time.monotonic() < began + seconds:
                if sent - len(at) < 400:
                    await outbox.append_many([outbox.entry(str(n), BODY) for n in range(20)])
                    sent += 20
                else:
                    await asyncio.sleep(0.001)
    sixth = seconds / 6
    first = sum(one < began + sixth for one in at)
    last = sum(began + seconds - sixth <= one < began + seconds for one in at)
    return Pair(last / sixth, first / sixth)


def held_out(session: Session, fresh: Callable[[], str]) -> Iterator[Row]:
    seconds = session.sized(6, 60)
    for name, writer in (("snapshot", False), ("writer", True)):
        value, limit = asyncio.run(_held_out(fresh(), seconds, writer=writer))
        note = f"a {name} held for {seconds} s: messages in its last sixth, against the first"
        yield Row(f"outbox.held.{name}.postgres", "/s", value, limit, value / limit, at_least(0.8), note=note)


# --- grounds --------------------------------------------------------------------------------------------------------


def on_sqlite(session: Session) -> Iterator[Row]:
    rounds = max(session.rounds, FEWEST_ROUNDS)
    with session.copies(empty(session), 5 * rounds + 2) as paths:
        path = paths.pop()
        db = sqlite3.connect(path)
        db.execute("PRAGMA journal_mode = wal")
        ground = Ground(f"sqlite:///{path}", db, "?")
        urls = [f"sqlite:///{one}" for one in paths]
        yield from appends(session, "sqlite", ground)
        yield from deliveries(session, "sqlite", urls.pop, db, "?")
        yield pickups(session, "sqlite", urls.pop)
        ground.close()
    with session.copies(empty(session), 2 * rounds) as paths:
        yield vacuums(session, "sqlite", [f"sqlite:///{one}" for one in paths].pop)


def on_postgres(session: Session) -> Iterator[Row]:
    import psycopg

    ground_ = session.ground("postgres")
    places: list[Any] = []

    def fresh() -> str:
        place = ground_.waiting(0)
        places.append(place)
        return str(place.url)

    place = ground_.waiting(0)
    db = psycopg.connect(place.server, options=f"-csearch_path={place.part}")
    ground = Ground(place.url, db, "%s")
    try:
        yield from appends(session, "postgres", ground)
        yield from deliveries(session, "postgres", fresh, db, "%s")
        yield pickups(session, "postgres", fresh)
        yield vacuums(session, "postgres", fresh)
        yield whole_path(session, fresh)
        yield from held_out(session, fresh)
    finally:
        ground.close()
        for one in (*places, place):
            ground_.drop(one)


BENCHMARKS = [
    Benchmark("outbox.sqlite", ("sqlite",), on_sqlite),
    Benchmark("outbox.postgres", ("postgres",), on_postgres),
]

"""Streams on Postgres: users' handles, the order of numbers under late commits, and what dead rows cost."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import time
from collections import defaultdict
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.connection import FOR_JOBS
from stoker.engines.postgres.statements import STATEMENTS, placed
from stoker.engines.sql.user_handles.handles import drive
from stoker.model.ids import Mint
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest, NothingDue
from stoker.model.outbox.delivery import Delivered, Rejected, conclude_batch
from stoker.model.outbox.letters import LetterFilter
from stoker.model.outbox.stream import Entry, Message, Stream, entry, partition_of
from stoker.model.time import HOUR
from tests.engines.postgres.openers import OPENERS, handle_of
from tests.engines.postgres.sleepers import Make
from tests.engines.sql.openers import maybe

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
ORDERS = Stream("orders")
REQUEST = LeaseRequest("orders", "publish", "w1", 100)


def made(key: str, payload: bytes = b"{}", stream: Stream = ORDERS) -> Entry:
    return entry(stream, key, payload, "Order", id=mint())


async def begun(engine: PostgresEngine, stream: Stream = ORDERS) -> None:
    await engine.outbox.register(stream, [Consumer("publish")])
    await engine.jobs.renew("w1", [], first=True)


async def leased(engine: PostgresEngine) -> Lease:
    found = await engine.outbox.lease(REQUEST)
    assert isinstance(found, Lease), found
    return found


# --- users' handles -------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-42", "OUTBOX-44")
@pytest.mark.parametrize("name", OPENERS)
async def test_every_call_of_a_stream_joins_the_users_transaction(make: Make, postgres_url: str, name: str) -> None:
    """On every kind of handle: a stream, messages small and large, an advance with letters, and received ids."""
    engine = await make()
    entries = [made("a", b"\x00\xff'%s $1"), made("b", bytes(range(256)) * 40), made("c", b"")]
    async with OPENERS[name](postgres_url) as opened:
        handle = handle_of(opened)
        await engine.outbox.register(ORDERS, [Consumer("publish", "end")], tx=handle)
        await engine.outbox.append(ORDERS, entries, tx=handle)
        await maybe(opened.rollback())
        assert await engine.outbox.streams() == []
        await engine.outbox.append(ORDERS, entries[:1], tx=handle)
        await engine.outbox.append(ORDERS, entries[1:], tx=handle)
        await engine.outbox.register(ORDERS, [Consumer("publish"), Consumer("late", "end")], tx=handle)
        assert await engine.outbox.receive("s", ["1", "2", "1"], keep=HOUR, tx=handle) == [True, True, False]
        await maybe(opened.commit())
        await engine.jobs.renew("w1", [], first=True)
        lease = await leased(engine)
        assert [(one.id, one.payload) for one in lease.messages] == [(one.id, one.payload) for one in entries]
        advance = conclude_batch(lease, Rejected("no"), await engine.now())
        assert (await engine.outbox.advance(advance, tx=handle)).applied
        await maybe(opened.rollback())
        assert (await engine.outbox.letters(LetterFilter())).n == 0
        assert (await engine.outbox.advance(advance, tx=handle)).applied
        await maybe(opened.commit())
    found = (await engine.outbox.letters(LetterFilter())).letters
    assert {one.id: one.payload for one in found} == {one.id: one.payload for one in entries}
    assert await engine.outbox.lease(REQUEST) == NothingDue()


@pytest.mark.spec("OUTBOX-42")
async def test_a_synchronous_handle_appends_without_a_loop(make: Make, postgres_url: str) -> None:
    engine = await make()
    await begun(engine)

    def work() -> None:
        with psycopg.connect(postgres_url) as connection:
            drive(engine.outbox.append(ORDERS, [made("a")], tx=connection))

    await asyncio.to_thread(work)
    assert [one.key for one in (await leased(engine)).messages] == ["a"]


@pytest.mark.spec("OUTBOX-44")
async def test_a_trigger_appends_by_the_sql_function(make: Make, postgres_url: str, postgres_schema: str) -> None:
    """A key meets the same partition as from Python, and what is wrong is refused by name."""
    engine = await make()
    stream = Stream("orders", 8)
    await begun(engine, stream)
    append = f'SELECT "{postgres_schema}".append(%s, %s, %s, %s, %s)'.encode()
    keys = ["a", "ключ", "k7", "zz"]
    with psycopg.connect(postgres_url) as connection:
        for key in keys:
            connection.execute(append, ("orders", key, b"x" * 2_000, "T", '{"h": "1"}'))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for wrong in (("no", "a", b"", "T", None), ("orders", "", b"", "T", None), ("orders", "a", b"", "T", "[1]")):
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="Nothing was stored"):
                connection.execute(append, wrong)
    found: dict[str, Message] = {}
    while isinstance(lease := await engine.outbox.lease(REQUEST), Lease):
        found |= {one.key: one for one in lease.messages}
    assert {key: one.partition for key, one in found.items()} == {key: partition_of(key, 8) for key in keys}
    assert all((one.payload, one.headers) == (b"x" * 2_000, {"h": "1"}) for one in found.values())


@pytest.mark.spec("OUTBOX-45")
async def test_a_new_consumer_in_an_open_transaction_does_not_stop_the_others(make: Make, postgres_url: str) -> None:
    """It numbers what is committed; until it ends a lease shows what had a number before, and the state all."""
    engine = await make()
    await begun(engine)
    with psycopg.connect(postgres_url) as theirs:
        await engine.outbox.register(ORDERS, [Consumer("late", "end")], tx=theirs)
        await engine.outbox.append(ORDERS, [made("a")])
        assert await engine.outbox.lease(REQUEST) == NothingDue(numbering=True)
        [state] = await engine.outbox.streams()
        assert (state.last, [one.waiting for one in state.cursors]) == ((1,), [1])
        assert state.cursors[0].oldest is not None
        theirs.commit()
    assert [one.key for one in (await leased(engine)).messages] == ["a"]


# --- order ----------------------------------------------------------------------------------------------------------

WRITERS, TRANSACTIONS = 16, 100


async def _write(
    engine: PostgresEngine, url: str, schema: str, who: int, stream: Stream, sent: dict[bytes, tuple[str, int]]
) -> None:
    """Bump rows and append their values: late commits, xids taken long before the append, rollbacks."""
    rng = random.Random(who)
    connection = await asyncpg.connect(url)
    try:
        for _ in range(TRANSACTIONS):
            mine: dict[bytes, tuple[str, int]] = {}
            transaction = connection.transaction()
            await transaction.start()
            if rng.random() < 0.3:
                await connection.execute("SELECT pg_current_xact_id()")
                await asyncio.sleep(rng.random() * 0.02)
            for key in sorted(rng.sample(range(40), rng.randrange(1, 4))):
                bump = f'UPDATE "{schema}".counts SET n = n + 1 WHERE key = $1 RETURNING n'
                value = await connection.fetchval(bump, key)
                one = made(f"k{key}", str(value).encode(), stream)
                await engine.outbox.append(stream, [one], tx=connection)
                mine[one.id] = (one.key, value)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.05)
            if rng.random() < 0.12:
                await transaction.rollback()
            else:
                await transaction.commit()
                sent |= mine
    finally:
        await connection.close()


@pytest.mark.spec("OUTBOX-41")
async def test_late_commits_neither_skip_nor_invert(make: Make, postgres_url: str, postgres_schema: str) -> None:
    """Writers bump a row and append its value: every key is delivered as 1, 2, 3 ..., and numbers have no gap."""
    engine, other = await make(), await make()
    stream = Stream("orders", 4)
    await begun(engine, stream)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        table = f'"{postgres_schema}".counts'
        connection.execute(f"CREATE TABLE {table} (key int PRIMARY KEY, n int NOT NULL)".encode())
        connection.execute(f"INSERT INTO {table} SELECT g, 0 FROM generate_series(0, 39) AS g".encode())
    sent: dict[bytes, tuple[str, int]] = {}
    got: dict[int, list[Any]] = defaultdict(list)
    over = asyncio.Event()

    async def read(one: PostgresEngine) -> None:
        while True:
            ended = over.is_set()
            lease = await one.outbox.lease(REQUEST)
            if isinstance(lease, Lease):
                got[lease.cursor.partition] += lease.messages
                assert (await one.outbox.advance(conclude_batch(lease, Delivered(), 0))).applied
            elif ended and lease == NothingDue():
                return
            else:
                await asyncio.sleep(0.003)

    async def keep_alive() -> None:
        while not over.is_set():
            await engine.jobs.renew("w1", [])
            await asyncio.sleep(1)

    async def write() -> None:
        writers = (_write(engine, postgres_url, postgres_schema, n, stream, sent) for n in range(WRITERS))
        await asyncio.gather(*writers)
        over.set()

    await asyncio.gather(write(), read(engine), read(other), keep_alive())
    messages = list(itertools.chain.from_iterable(got.values()))
    assert len(sent) > 2_000
    assert {one.id for one in messages} == sent.keys()
    assert len(messages) == len(sent)
    values: dict[str, list[int]] = defaultdict(list)
    for partition in got.values():
        assert [one.number for one in partition] == list(range(1, len(partition) + 1))
        for one in partition:
            values[one.key].append(int(one.payload))
    assert all(found == list(range(1, len(found) + 1)) for found in values.values())


# --- dead rows ------------------------------------------------------------------------------------------------------


async def _buffers(url: str, text: str, values: tuple[Any, ...]) -> int:
    """Pages that a statement touches, in a transaction that is rolled back."""
    connection = await asyncpg.connect(url, server_settings=FOR_JOBS)
    try:
        transaction = connection.transaction()
        await transaction.start()
        plan = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) {text}", *values)
        await transaction.rollback()
    finally:
        await connection.close()
    head = next(line for (line,) in plan if "Buffers:" in line)
    return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", head)))


@pytest.mark.spec("OUTBOX-65")
async def test_dead_rows_under_a_held_snapshot_cost_a_turn_nothing(
    make: Make, postgres_url: str, postgres_schema: str
) -> None:
    """The statements of a turn touch at most twice the pages after thousands of turns that an old snapshot keeps."""
    engine = await make()
    await begun(engine)
    connection = await asyncpg.connect(postgres_url)

    async def seen() -> str:
        query = f'SELECT seen::text FROM "{postgres_schema}".sequence($1, NULL, NULL, 1000, true, false)'
        return str(await connection.fetchval(query, "orders"))

    async def cost(snapshot: str) -> dict[str, int]:
        query = f'SELECT rid, pid, turn, position FROM "{postgres_schema}".cursor ORDER BY turn DESC LIMIT 1'
        rid, pid, turn, position = await connection.fetchrow(query)
        home = await connection.fetchval("SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint")
        fields = (position, 0, None, "w1", 1, 1, 0, 1, None, 0)
        asked: list[tuple[str, tuple[Any, ...]]] = [
            ("outbox_sequence", ("orders", snapshot, home, 1_000, False, False)),
            ("outbox_look", ("orders", snapshot, home, 1_000, False, False, "publish", None, "w1", None, None)),
            ("outbox_cursors", ("orders", "publish", None, "w1", None, None)),
            ("outbox_turn", (rid, pid, turn, *fields, 10, True, False, None)),
            ("outbox_turn", (rid, pid, turn, *fields, 10, True, True, None)),
            ("outbox_partitions", (pid // 64,)),
            ("outbox_passed", (pid // 64,)),
        ]
        return {
            f"{n} {name}": await _buffers(postgres_url, placed(STATEMENTS[name], postgres_schema), values)
            for n, (name, values) in enumerate(asked)
        }

    try:
        await engine.outbox.append(ORDERS, [made("k") for _ in range(20)])
        await engine.outbox.advance(conclude_batch(await leased(engine), Delivered(), 0))
        await engine.outbox.append(ORDERS, [made("k") for _ in range(20)])
        await cost(await seen())
        before = await cost(await seen())
        with psycopg.connect(postgres_url) as held:
            held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            held.execute("SELECT 1")
            for _ in range(10):
                await engine.outbox.append(ORDERS, [made("k") for _ in range(300)])
                while isinstance(
                    lease := await engine.outbox.lease(LeaseRequest("orders", "publish", "w1", 10)), Lease
                ):
                    await engine.outbox.advance(conclude_batch(lease, Delivered(), 0))
                await engine.jobs.renew("w1", [])
            await engine.outbox.append(ORDERS, [made("k") for _ in range(20)])
            await cost(await seen())
            after = await cost(await seen())
    finally:
        await connection.close()
    assert {name: (before[name], n) for name, n in after.items() if n > 2 * before[name]} == {}

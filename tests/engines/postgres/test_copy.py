"""Large batches go in by COPY, and nobody can tell but by the clock on the wall."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from stoker.engines.base import Clock
from stoker.engines.postgres import PostgresEngine, insert
from stoker.engines.postgres.connection import Connection
from stoker.engines.postgres.statements import STATEMENTS
from stoker.model.errors import EngineBusy, EngineError, EngineUnavailable, InvalidPayload
from stoker.model.ids import Mint
from stoker.model.job import LARGEST_BATCH, Demand, Draft, Options, Receipt, Status, Stored
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from tests.engines.postgres.test_producer_role import documented, lowly
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.engine("postgres")

USUAL = insert.COPIED
NOW = 1_700_000_000_000_000
ODD = '{"a": "tab\\t \\\\N \\\\. \\u0000 é 漢 😀 \'quoted\' \u2028", "b":  1.0}\n'
Make = Callable[..., Awaitable[PostgresEngine]]

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)


def draft(**options: Any) -> Draft:
    return Draft(id=mint(), kind=options.pop("kind", "work"), **options)


def every_sort(at: int) -> list[Draft]:
    """Drafts that differ in everything a draft can say, but a key."""
    return [
        draft(),
        draft(payload=ODD.encode()),
        draft(queue="mail", kind="send", priority=-1000),
        draft(queue="mail", kind="work", priority=1000, attempts=1),
        draft(delay=HOUR),
        draft(at=at + DAY, tenant="t"),
        draft(at=at - DAY, tenant="odd 'tenant' \\N é"),
        draft(options=Options(timeout=MINUTE, keep=0, metadata={"k": "é"}), queue="later", delay=60 * SECOND),
    ]


@pytest.fixture
async def make(postgres_url: str, postgres_schema: str) -> AsyncIterator[Make]:
    opened: list[PostgresEngine] = []

    async def open_one(url: str = postgres_url, **options: Any) -> PostgresEngine:
        engine = PostgresEngine(url, schema=postgres_schema, **options)
        await engine.open()
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        await engine.close()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Three drafts are many; answers what was copied: the table, and how many rows."""
    monkeypatch.setattr(insert, "COPIED", 3)
    copied: list[tuple[str, int]] = []
    copy = Connection.copy

    async def noted(self: Connection, schema: str, table: str, columns: Any, rows: Any, patience: float) -> None:
        copied.append((table, len(rows)))
        await copy(self, schema, table, columns, rows, patience)

    monkeypatch.setattr(Connection, "copy", noted)
    return copied


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def relative(admin: psycopg.Connection[Any], schema: str, drafts: list[Draft]) -> list[Any]:
    """What both tables say about a batch, but for its ids, with times counted from the instant it was stored at."""
    instants: set[int] = set()
    found = []
    for one in drafts:
        query = f"select to_jsonb(j) - 'id', to_jsonb(r) - 'id' from {schema}.job j join {schema}.ready r using (id)"
        [(body, place)] = admin.execute(f"{query} where id = encode(%s, 'hex')::uuid".encode(), (one.id,)).fetchall()
        instants.add(body.pop("created"))
        found.append((body, place))
    [instant] = instants
    for (body, place), one in zip(found, drafts, strict=True):
        for row in (body, place):
            row["due"] -= instant if one.at is None else one.at
    return found


def counted(admin: psycopg.Connection[Any], schema: str) -> dict[str, int]:
    tables = ("job", "ready", "delta")
    return {t: admin.execute(f"select count(*) from {schema}.{t}".encode()).fetchall()[0][0] for t in tables}


async def held_up(admin: psycopg.Connection[Any], schema: str) -> int:
    """The session of a copy that waits for a lock."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = admin.execute(
            "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like %s",
            (f'COPY "{schema}"%',),
        ).fetchone()
        if found is not None:
            return int(found[0])
        await asyncio.sleep(0.005)
    pytest.fail("no copy waits")


@pytest.mark.spec("PGCOPY-01")
@pytest.mark.parametrize("clock", [None, lambda: NOW])
async def test_copied_jobs_are_those_a_statement_stores(
    make: Make,
    copies: list[tuple[str, int]],
    admin: psycopg.Connection[Any],
    postgres_schema: str,
    clock: Clock | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every column of both tables, every receipt, every count, everybody woken; one instant for the whole batch."""
    engine = await make(clock=clock)
    told: list[set[str]] = []
    monkeypatch.setattr(engine._store, "notify", told.append)
    at = NOW if clock else time.time_ns() // 1000
    copied, stated = every_sort(at), every_sort(at)
    assert await engine.insert(copied) == [Receipt(one.id, Stored.INSERTED) for one in copied]
    assert copies == [("job", 8), ("ready", 8)]
    counts = (await engine.census()).by_status()
    monkeypatch.setattr(insert, "COPIED", 100)
    assert await engine.insert(stated) == [Receipt(one.id, Stored.INSERTED) for one in stated]
    assert len(copies) == 2
    assert told == [{"default", "mail"}] * 2

    stored = [relative(admin, postgres_schema, drafts) for drafts in (copied, stated)]
    assert stored[0] == stored[1]
    if clock is not None:
        assert {job.created_at for job in await engine.get([one.id for one in copied]) if job} == {NOW}
    assert (counts[Status.PENDING], sum(counts.values())) == (8, 8)
    assert {key: n for key, n in (await engine.census()).by_status().items() if n} == {Status.PENDING: 16}
    query = f"select queue, kind, sum(pending), sum(enqueued) from {postgres_schema}.delta group by 1, 2 order by 1, 2"
    assert admin.execute(query.encode()).fetchall() == [
        ("default", "work", 10, 10),
        ("later", "work", 2, 2),
        ("mail", "send", 2, 2),
        ("mail", "work", 2, 2),
    ]


@pytest.mark.spec("PGCOPY-01")
async def test_an_import_is_copied_and_can_be_worked_off(
    make: Make, copies: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of the usual size that come side by side become one copy; the jobs come back in their order."""
    monkeypatch.setattr(insert, "COPIED", USUAL)
    engine = await make()
    await engine.renew("w", [], first=True)
    chunks = [[draft() for _ in range(LARGEST_BATCH)] for _ in range(3)]
    received = await asyncio.gather(*(engine.insert(chunk) for chunk in chunks))
    assert copies == [("job", 3 * LARGEST_BATCH), ("ready", 3 * LARGEST_BATCH)]
    assert [[receipt.id for receipt in receipts] for receipts in received] == [
        [one.id for one in chunk] for chunk in chunks
    ]
    claims = await engine.claim(Demand("w", (("default", LARGEST_BATCH),), LARGEST_BATCH))
    assert [claim.id for claim in claims] == [one.id for one in chunks[0]]
    counts = (await engine.census()).by_status()
    assert (counts[Status.PENDING], counts[Status.RUNNING]) == (2 * LARGEST_BATCH, LARGEST_BATCH)


@pytest.mark.spec("PGCOPY-02")
async def test_an_id_that_is_stored_already_sends_each_call_its_own_way(
    make: Make, copies: list[tuple[str, int]], admin: psycopg.Connection[Any], postgres_schema: str
) -> None:
    """Nothing of the copy stays; who repeated something is told so, the others are stored, all are counted once."""
    engine = await make()
    known, twice = draft(), draft()
    await engine.insert([known])
    ahead, *calls = [[draft()], [draft(), known], [draft()], [twice, twice]]  # the first leaves before the others come
    _, *received = await asyncio.gather(*(engine.insert(call) for call in (ahead, *calls)))
    assert copies == [("job", 5)]
    inserted, existing = Stored.INSERTED, Stored.EXISTING
    assert [[receipt.stored for receipt in receipts] for receipts in received] == [
        [inserted, existing],
        [inserted],
        [inserted, existing],
    ]
    assert (await engine.census()).by_status()[Status.PENDING] == 5
    assert {t: n for t, n in counted(admin, postgres_schema).items() if t != "delta"} == {"job": 5, "ready": 5}


@pytest.mark.spec("PGCOPY-02")
async def test_what_cannot_be_stored_is_refused_as_by_a_statement(
    make: Make, copies: list[tuple[str, int]], admin: psycopg.Connection[Any], postgres_schema: str
) -> None:
    """No text: refused before anything is sent. A NUL: refused by the server, in the same words."""
    engine = await make()
    with pytest.raises(InvalidPayload):
        await engine.insert([draft(), draft(payload=b"\xff"), draft()])
    assert copies == []
    with pytest.raises(EngineError) as stated:
        await engine.insert([draft(payload=b'"\x00"')])
    with pytest.raises(EngineError) as copied:
        await engine.insert([draft(), draft(payload=b'"\x00"'), draft()])
    assert copies == [("job", 3)]
    assert (type(copied.value), str(copied.value)) == (type(stated.value), str(stated.value))
    assert counted(admin, postgres_schema) == {"job": 0, "ready": 0, "delta": 0}
    assert len(await engine.insert([draft(), draft(), draft()])) == 3


@pytest.mark.spec("PGCOPY-03")
@pytest.mark.parametrize("table", ["job", "ready"])
@pytest.mark.parametrize("end", ["canceled", "killed", "late"])
async def test_a_copy_that_is_cut_off_leaves_nothing(
    make: Make,
    copies: list[tuple[str, int]],
    admin: psycopg.Connection[Any],
    postgres_url: str,
    postgres_schema: str,
    table: str,
    end: str,
) -> None:
    """With more on its way than the server has read, or between the two tables; the next call works."""
    engine = await make(timeout=0.5 if end == "late" else 20.0)
    drafts = [draft(payload=b'"' + b"x" * 400_000 + b'"') for _ in range(20)]
    with psycopg.connect(postgres_url) as holder:
        holder.execute(f"lock table {postgres_schema}.{table} in exclusive mode".encode())
        stuck = asyncio.create_task(insert.together(engine._store, drafts))
        session = await held_up(admin, postgres_schema)
        if end == "canceled":
            stuck.cancel()
            expected: type[BaseException] = asyncio.CancelledError
        elif end == "killed":
            admin.execute("select pg_terminate_backend(%s)", (session,))
            expected = EngineUnavailable
        else:
            expected = EngineBusy
        with pytest.raises(expected):
            await stuck
        holder.rollback()
    assert copies[-1][0] == table
    assert await engine.insert(drafts) == [Receipt(one.id, Stored.INSERTED) for one in drafts]
    assert counted(admin, postgres_schema) == {"job": 20, "ready": 20, "delta": 1}
    assert (await engine.census()).by_status()[Status.PENDING] == 20


@pytest.mark.spec("PGCOPY-03")
async def test_a_copy_that_the_server_gives_up_is_begun_again(
    make: Make,
    copies: list[tuple[str, int]],
    admin: psycopg.Connection[Any],
    postgres_url: str,
    postgres_schema: str,
) -> None:
    """The caller of a copy that was chosen to end a deadlock is not told."""
    engine = await make(timeout=20.0)
    drafts = [draft() for _ in range(3)]
    async with await psycopg.AsyncConnection.connect(postgres_url) as holder:
        await holder.execute("set deadlock_timeout = '1min'")
        await holder.execute(f"lock table {postgres_schema}.ready in exclusive mode".encode())
        stuck = asyncio.create_task(engine.insert(drafts))
        await held_up(admin, postgres_schema)
        await holder.execute(f"lock table {postgres_schema}.job in exclusive mode".encode())
        await holder.rollback()
        assert await stuck == [Receipt(one.id, Stored.INSERTED) for one in drafts]
    assert copies == [("job", 3), ("ready", 3)] * 2
    assert counted(admin, postgres_schema) == {"job": 3, "ready": 3, "delta": 1}


@pytest.mark.spec("PGCOPY-03")
@pytest.mark.parametrize("order", [b"delta", b"COMMIT"])
async def test_a_copy_whose_answer_is_lost_may_be_repeated(
    make: Make, copies: list[tuple[str, int]], postgres_url: str, order: bytes
) -> None:
    """Whoever does not know whether the jobs are stored asks again, and they are, once."""
    with Proxy(postgres_url) as proxy:
        engine = await make(proxy.url)
        drafts = [draft() for _ in range(3)]
        proxy.lose_reply(order)
        with pytest.raises(EngineUnavailable):
            await engine.insert(drafts)
        stored = Stored.EXISTING if order == b"COMMIT" else Stored.INSERTED
        assert await engine.insert(drafts) == [Receipt(one.id, stored) for one in drafts]
        assert (await engine.census()).by_status()[Status.PENDING] == 3
        assert ("job", 3) in copies
        await engine.close()


@pytest.mark.spec("PGCOPY-04")
@pytest.mark.parametrize("told", ["auto", "transaction"])
async def test_copies_pass_a_pooler(
    make: Make, copies: list[tuple[str, int]], postgres_pooler_url: str, told: str
) -> None:
    """Each in a session that is somebody else's the next moment, also after one that failed."""
    engine = await make(postgres_pooler_url, pooler=told)
    batches = [[draft(payload=ODD.encode()) for _ in range(50)] for _ in range(8)]
    received = await asyncio.gather(*(insert.together(engine._store, batch) for batch in batches))
    assert [receipt.id for receipts in received for receipt in receipts] == [one.id for b in batches for one in b]
    [_, again, _] = await engine.insert([draft(), batches[0][0], draft()])
    assert again.stored is Stored.EXISTING
    assert copies.count(("job", 50)) == copies.count(("ready", 50)) == 8
    assert (await engine.census()).by_status()[Status.PENDING] == 402


@pytest.mark.spec("PGCOPY-04")
async def test_a_producer_may_copy(
    make: Make, copies: list[tuple[str, int]], admin: psycopg.Connection[Any], postgres_url: str, postgres_schema: str
) -> None:
    """With the documented grants: the driver looks up the columns' types, and reads none of them."""
    await make()
    role = f"r_{postgres_schema}"
    admin.execute(f"create role {role} login".encode())
    try:
        admin.execute(documented(1, postgres_schema, role).encode())
        producer = await make(lowly(postgres_url, role))
        assert len(await producer.insert([draft(), draft(), draft()])) == 3
        assert copies == [("job", 3), ("ready", 3)]
        await producer.close()
    finally:
        admin.execute(f"drop owned by {role}; drop role {role}".encode())


@pytest.mark.spec("PGCOPY-05")
async def test_every_column_that_must_be_filled_is(
    make: Make, admin: psycopg.Connection[Any], postgres_schema: str
) -> None:
    """A migration that adds a column has to tell the copy as well as the statement."""
    await make()
    for table, copied in (("job", insert.JOB), ("ready", insert.READY)):
        needed = admin.execute(
            "select column_name from information_schema.columns where table_schema = %s and table_name = %s"
            " and is_nullable = 'NO' and column_default is null and is_identity = 'NO'",
            (postgres_schema, table),
        ).fetchall()
        assert {name for (name,) in needed} - set(copied) == set()
        stated = re.search(rf"INSERT INTO stoker\.{table} \((.+?)\)", STATEMENTS["insert"])
        assert stated is not None
        assert tuple(stated[1].split(", ")) == copied

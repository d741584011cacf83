"""Streams on Postgres: isolation levels, savepoints, held claims, numbering by several processes, missing bodies."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.engines.postgres import PostgresEngine
from stoker.model.errors import EngineRefused, InvalidOption
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest, NothingDue
from stoker.model.outbox.delivery import Delivered, RetryLater, conclude_batch, quarantine, readable
from stoker.model.outbox.letters import LetterFilter
from stoker.model.outbox.stream import Entry, Stream, entry, topic
from stoker.model.outcome import Done
from stoker.model.time import HOUR
from stoker.outbox import Message, Outbox
from tests.engines.postgres.openers import OPENERS, TELLING, handle_of
from tests.engines.postgres.sleepers import Make, until
from tests.engines.sql.openers import maybe
from tests.harness.apps import drain

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
ORDERS = Stream("orders", 2)
REQUEST = LeaseRequest("orders", "publish", "w1", 10)


@pytest.fixture
async def engine(make: Make) -> PostgresEngine:
    engine = await make()
    await engine.jobs.renew("w1", [], first=True, lease=HOUR)
    await engine.outbox.register(ORDERS, [Consumer("publish")])
    return engine


def order(key: str = "a", payload: bytes = b"{}", **options: Any) -> Entry:
    return entry(ORDERS, key, payload, "OrderPlaced", id=mint(), partition=0, **options)


async def leased(engine: PostgresEngine, limit: int = 10) -> Lease:
    found = await engine.outbox.lease(LeaseRequest("orders", "publish", "w1", limit))
    assert isinstance(found, Lease)
    return found


async def position(engine: PostgresEngine) -> int:
    [state] = await engine.outbox.streams(["orders"])
    return state.cursors[0].cursor.position


# --- the user's own transaction -------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-59", "OUTBOX-63")
@pytest.mark.parametrize("name", OPENERS)
async def test_inbox_and_held_claim_join_the_users_transaction(
    engine: PostgresEngine, postgres_url: str, name: str
) -> None:
    """What a block of exactly-once work does: receive, hold, settle."""
    [claim] = await claims(engine, 1)
    for ending, status in (("rollback", Status.RUNNING), ("commit", Status.DONE)):
        async with OPENERS[name](postgres_url) as opened:
            tx = handle_of(opened)
            assert await engine.outbox.receive("billing", ["1", "1"], keep=HOUR, tx=tx) == [True, False]
            held = await engine.outbox.hold(claim, tx=tx)
            assert held is not None
            await engine.jobs.settle([conclude(held, Done())], tx=tx)
            await maybe(getattr(opened, ending)())
        [found] = await engine.operator.get([claim.id])
        assert found is not None
        assert found.status is status
    async with OPENERS[name](postgres_url) as opened:
        tx = handle_of(opened)
        assert await engine.outbox.receive("billing", ["1"], keep=HOUR, tx=tx) == [False]
        assert await engine.outbox.hold(claim, tx=tx) is None


async def claims(engine: PostgresEngine, n: int) -> list[Claim]:
    await engine.jobs.insert([Draft(job_id=mint(), kind="work") for _ in range(n)])
    return await engine.jobs.claim(Demand("w1", (("default", n),)))


@pytest.mark.spec("OUTBOX-42")
async def test_a_savepoint_that_is_rolled_back_leaves_nothing(engine: PostgresEngine, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as handle:
        await engine.outbox.append(ORDERS, [order("a")], tx=handle)
        handle.execute("SAVEPOINT mine")
        await engine.outbox.append(ORDERS, [order("b")], tx=handle)
        handle.execute("ROLLBACK TO mine")
        await engine.outbox.append(ORDERS, [order("c")], tx=handle)
    assert [(one.key, one.number) for one in (await leased(engine)).messages] == [("a", 1), ("c", 2)]


@pytest.mark.spec("OUTBOX-43")
async def test_a_refused_append_leaves_the_users_transaction_alone(engine: PostgresEngine, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as handle:
        with pytest.raises(InvalidOption, match="partitions"):
            await engine.outbox.append(Stream("orders", 4), [order()], tx=handle)
        await engine.outbox.append(ORDERS, [order("b")], tx=handle)
    elsewhere = postgres_url.rsplit("/", 1)[0] + "/template1"
    with psycopg.connect(elsewhere) as handle, pytest.raises(EngineRefused, match="template1"):
        await engine.outbox.append(ORDERS, [order()], tx=handle)
    assert [one.key for one in (await leased(engine)).messages] == ["b"]


@pytest.mark.spec("OUTBOX-61")
@pytest.mark.parametrize("name", TELLING)
async def test_a_commit_that_the_library_reports_wakes_a_waiter(
    engine: PostgresEngine, make: Make, postgres_url: str, name: str
) -> None:
    """In another engine too."""
    other = await make()
    waiting = [asyncio.create_task(one.jobs.wait([topic("orders")], 20)) for one in (engine, other)]
    assert await other.jobs.wait(["nothing"], 0.2) == frozenset(), "both listen by now"
    async with OPENERS[name](postgres_url) as opened:
        await engine.outbox.append(ORDERS, [order()], tx=opened)
        await maybe(opened.commit())
        assert await asyncio.gather(*waiting) == [{"~orders"}] * 2


# --- isolation ------------------------------------------------------------------------------------------------------

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.mark.spec("OUTBOX-63")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_held_claim_is_settled_whatever_its_siblings_do(
    engine: PostgresEngine, postgres_url: str, level: str
) -> None:
    """Jobs claimed together share a row; above read committed a held one has a row of its own."""
    mine, *siblings = await claims(engine, 4)
    with psycopg.connect(postgres_url) as handle:
        handle.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        held = await engine.outbox.hold(mine, tx=handle)
        assert held is not None
        handle.execute("SELECT 1")
        assert (await engine.jobs.settle([conclude(one, Done()) for one in siblings[:2]])).verdicts == [
            Verdict.APPLIED
        ] * 2
        assert (await engine.jobs.settle([conclude(held, Done())], tx=handle)).verdicts == [Verdict.APPLIED]
    assert (await engine.jobs.settle([conclude(siblings[2], Done())])).verdicts == [Verdict.APPLIED]
    assert (await engine.operator.census()).by_status()[Status.DONE] == 4


@pytest.mark.spec("OUTBOX-41", "OUTBOX-42")
@pytest.mark.parametrize("level", LEVELS)
async def test_every_isolation_level_appends(engine: PostgresEngine, postgres_url: str, level: str) -> None:
    """A transaction with an old snapshot appends behind what was committed meanwhile."""
    with psycopg.connect(postgres_url) as handle:
        handle.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        handle.execute("SELECT 1")
        await engine.outbox.append(ORDERS, [order("a")])
        await engine.outbox.append(ORDERS, [order("b")], tx=handle)
    assert [one.key for one in (await leased(engine)).messages] == ["a", "b"]


# --- numbering ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-41")
async def test_a_commit_that_is_later_than_many_others_is_found(engine: PostgresEngine, postgres_url: str) -> None:
    """Also by a process that has looked many times since, and by one that looks for the first time."""
    with psycopg.connect(postgres_url) as late:
        await engine.outbox.append(ORDERS, [order("late")], tx=late)
        for n in range(20):
            await engine.outbox.append(ORDERS, [order(str(n))])
            lease = await leased(engine)
            assert [one.key for one in lease.messages] == [str(n)]
            await engine.outbox.advance(conclude_batch(lease, Delivered(), 0))
    await engine.outbox.append(ORDERS, [order("behind")])
    assert [(one.key, one.number) for one in (await leased(engine)).messages] == [("late", 21), ("behind", 22)]


@pytest.mark.spec("OUTBOX-41")
async def test_what_another_process_numbers_is_not_numbered_again(engine: PostgresEngine, make: Make) -> None:
    """Two processes in turns, each with a snapshot of its own: numbers stay dense."""
    other = await make()
    keys = []
    for n in range(20):
        await engine.outbox.append(ORDERS, [order(str(n))])
        at = (engine, other)[n % 2]
        lease = await at.outbox.lease(REQUEST)
        assert isinstance(lease, Lease)
        keys += [(one.key, one.number) for one in lease.messages]
        assert (await at.outbox.advance(conclude_batch(lease, Delivered(), 0))).applied
    assert keys == [(str(n), n + 1) for n in range(20)]


@pytest.mark.spec("OUTBOX-41")
async def test_a_snapshot_of_another_server_start_is_not_trusted(
    engine: PostgresEngine, postgres_url: str, postgres_schema: str
) -> None:
    """With one it would see nothing: numbers of transactions may begin anew after a restore."""
    await engine.outbox.append(ORDERS, [order("a")])
    await leased(engine)
    await engine.outbox.append(ORDERS, [order("b")])
    with psycopg.connect(postgres_url) as connection:
        future = "9000000000:9000000000:"
        step = f"SELECT moved FROM {postgres_schema}.sequence('orders', '{future}', 1, 1000, false, false)"
        assert connection.execute(step.encode()).fetchone() == (1,)


@asynccontextmanager
async def numbering_elsewhere(make: Make) -> AsyncIterator[None]:
    """Another session that has numbered, and takes long to commit."""
    other = await make()
    async with other.transaction() as tx:
        await other.outbox.register(ORDERS, [Consumer(f"late-{mint().hex()}", "end")], tx=tx)
        yield


@pytest.mark.spec("OUTBOX-41")
async def test_a_lease_says_that_another_session_numbers(engine: PostgresEngine, make: Make) -> None:
    """It has waited a moment for it; what has a number already is leased all the same."""
    await engine.outbox.append(ORDERS, [order("a")])
    async with numbering_elsewhere(make):
        assert await engine.outbox.lease(REQUEST) == NothingDue(numbering=True)
    assert (await engine.outbox.advance(conclude_batch(await leased(engine), RetryLater("away", HOUR), 0))).applied
    assert await engine.outbox.lease(REQUEST) != NothingDue(numbering=True)
    await engine.outbox.append(ORDERS, [entry(ORDERS, "b", b"{}", "OrderPlaced", id=mint(), partition=1)])
    async with numbering_elsewhere(make):
        found = await engine.outbox.lease(REQUEST)
        assert isinstance(found, NothingDue)
        assert found.numbering
        assert found.after is not None
    assert [one.key for one in (await leased(engine)).messages] == ["b"]


@pytest.mark.spec("DELIVER-12")
async def test_a_drain_waits_for_messages_that_another_session_numbers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are committed, so they can be delivered now; also where that takes longer than a look waits."""
    app = Stoker(await make())
    outbox: Outbox[int] = Outbox(app, stream="orders", partitions=ORDERS.partitions)
    seen: list[int] = []
    answers: list[Any] = []

    @outbox.deliver
    async def publish(message: Message[int]) -> None:
        seen.append(message.body)

    await outbox.append("a", 1)
    streams = outbox_of(await app.engine())
    await streams.register(outbox.stream, [outbox.handlers["publish"].consumer])
    lease = streams.lease

    async def watched(request: LeaseRequest) -> Any:
        answers.append(await lease(request))
        return answers[-1]

    monkeypatch.setattr(streams, "lease", watched)
    async with numbering_elsewhere(make):
        draining = asyncio.create_task(drain(app))
        await until(lambda: draining.done() or len(answers) > 1)
        assert not draining.done()
        assert seen == []
    await draining
    assert seen == [1]
    await app.close()


@pytest.mark.spec("OUTBOX-41", "OUTBOX-43")
async def test_concurrent_first_appends_register_one_stream(engine: PostgresEngine) -> None:
    """The second one waits for the first and joins its stream."""
    bills = Stream("bills", 4)
    await asyncio.gather(*(engine.outbox.append(bills, [order(str(n))]) for n in range(8)))
    await engine.outbox.register(bills, [Consumer("publish")])
    found = await engine.outbox.lease(LeaseRequest("bills", "publish", "w1", 10))
    assert isinstance(found, Lease)
    assert [one.number for one in found.messages] == list(range(1, 9))


# --- what cannot be read --------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-25")
@pytest.mark.parametrize("damage", ["DELETE FROM body", "UPDATE incoming SET headers = '{' WHERE key = 'a'"])
async def test_a_message_that_cannot_be_read_becomes_a_letter(
    engine: PostgresEngine, postgres_url: str, postgres_schema: str, damage: str
) -> None:
    """It comes without a payload, and the messages behind it go on."""
    await engine.outbox.append(ORDERS, [order("a", bytes(5_000)), order("b")])
    with psycopg.connect(postgres_url, options=f"-csearch_path={postgres_schema}") as connection:
        connection.execute(damage.encode())
    lease = await leased(engine)
    missing, rest = readable(lease.messages)
    assert ([one.key for one in missing], rest) == (["a"], ())
    assert (await engine.outbox.advance(quarantine(lease, missing, await engine.now()))).applied
    [letter] = (await engine.outbox.letters(LetterFilter())).letters
    assert "the body of message 1 is missing" in letter.reason
    assert [one.key for one in (await leased(engine)).messages] == ["b"]


@pytest.mark.spec("OUTBOX-40")
async def test_the_vacuum_deletes_bodies_with_their_messages(
    engine: PostgresEngine, postgres_url: str, postgres_schema: str
) -> None:
    await engine.outbox.append(ORDERS, [order("a", bytes(5_000)), order("b"), order("c", bytes(5_000))])
    lease = await leased(engine, 2)
    await engine.outbox.advance(conclude_batch(lease, Delivered(), 0))
    assert (await engine.outbox.vacuum("orders", 100)).deleted == 2
    with psycopg.connect(postgres_url, options=f"-csearch_path={postgres_schema}") as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() for table in ("message", "body")
        ]
    assert counts == [(1,), (1,)]

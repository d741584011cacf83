"""Streams on SQLite: every handle of a user's transaction, wake-ups, and what is not written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.engines.sql.user_handles.handles import drive
from stoker.engines.sqlite.engine import SqliteEngine
from stoker.model.errors import EngineRefused, InvalidOption, SchemaMismatch
from stoker.model.ids import Mint
from stoker.model.job import Demand, Draft, Status
from stoker.model.lifecycle import conclude
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest, NothingDue
from stoker.model.outbox.delivery import Delivered, Rejected, Rejection, conclude_batch, quarantine, readable
from stoker.model.outbox.letters import LetterFilter
from stoker.model.outbox.stream import Entry, Stream, entry, topic
from stoker.model.outcome import Done
from stoker.model.time import HOUR
from tests.engines.sql.openers import OPENERS, SYNCHRONOUS, maybe, plain

pytestmark = pytest.mark.engine("sqlite")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
ORDERS = Stream("orders", 2)
REQUEST = LeaseRequest("orders", "publish", "w1", 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.jobs.renew("w1", [], first=True)
    await engine.outbox.register(ORDERS, [Consumer("publish")])
    yield engine
    await engine.close()


def order(key: str = "a", **options: Any) -> Entry:
    return entry(ORDERS, key, b"{}", "OrderPlaced", id=mint(), partition=0, **options)


async def leased(engine: SqliteEngine) -> Lease:
    found = await engine.outbox.lease(REQUEST)
    assert isinstance(found, Lease)
    return found


async def position(engine: SqliteEngine) -> int:
    [state] = await engine.outbox.streams(["orders"])
    return state.cursors[0].cursor.position


# --- the user's own transaction -------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-42", "OUTBOX-43", "SQLITE-70")
@pytest.mark.parametrize("name", OPENERS)
async def test_messages_exist_once_the_user_commits(engine: SqliteEngine, path: Path, name: str) -> None:
    """Also of a stream that the append registers, with headers, and in the order of the calls."""
    bills = Stream("bills", 4)

    async def write(ending: str) -> None:
        async with OPENERS[name](path) as handle:
            await engine.outbox.append(ORDERS, [order("a"), order("b", headers={"trace": "ü"})], tx=handle)
            await engine.outbox.append(ORDERS, [order("c")], tx=handle)
            await engine.outbox.append(bills, [order()], tx=handle)
            assert await engine.outbox.lease(REQUEST) == NothingDue()
            await maybe(getattr(handle, ending)())

    await write("rollback")
    assert await engine.outbox.lease(REQUEST) == NothingDue()
    assert [one.stream for one in await engine.outbox.streams()] == [ORDERS]
    await write("commit")
    found = (await leased(engine)).messages
    assert [(one.key, one.number, one.headers) for one in found] == [
        ("a", 1, {}),
        ("b", 2, {"trace": "ü"}),
        ("c", 3, {}),
    ]
    assert [(one.stream, one.last) for one in await engine.outbox.streams()] == [
        (bills, (1, 0, 0, 0)),
        (ORDERS, (3, 0)),
    ]


@pytest.mark.spec("OUTBOX-42")
@pytest.mark.parametrize("name", SYNCHRONOUS)
async def test_a_synchronous_handle_needs_no_loop(engine: SqliteEngine, path: Path, name: str) -> None:
    """In a thread without a loop, for a stream that is registered and for one that is not."""

    async def write() -> None:
        async with OPENERS[name](path) as handle:
            drive(engine.outbox.append(ORDERS, [order()], tx=handle))
            drive(engine.outbox.append(Stream("bills"), [order()], tx=handle))
            assert drive(engine.outbox.receive("billing", ["1"], keep=HOUR, tx=handle)) == [True]
            await maybe(handle.commit())

    await asyncio.to_thread(drive, write())
    assert len((await leased(engine)).messages) == 1


@pytest.mark.spec("OUTBOX-42")
async def test_a_savepoint_that_is_rolled_back_leaves_nothing(engine: SqliteEngine, path: Path) -> None:
    """And its number is given to the next message."""
    async with plain(path, isolation_level=None) as handle:
        handle.execute("BEGIN")
        await engine.outbox.append(ORDERS, [order("a")], tx=handle)
        handle.execute("SAVEPOINT mine")
        await engine.outbox.append(ORDERS, [order("b")], tx=handle)
        handle.execute("ROLLBACK TO mine")
        await engine.outbox.append(ORDERS, [order("c")], tx=handle)
        handle.execute("COMMIT")
    assert [(one.key, one.number) for one in (await leased(engine)).messages] == [("a", 1), ("c", 2)]


@pytest.mark.spec("OUTBOX-43")
async def test_a_refused_append_leaves_the_users_transaction_alone(engine: SqliteEngine, path: Path) -> None:
    """Another count of partitions, or another file: the user goes on and commits."""
    async with plain(path) as handle:
        with pytest.raises(InvalidOption, match="partitions"):
            await engine.outbox.append(Stream("orders", 4), [order()], tx=handle)
        await engine.outbox.append(ORDERS, [order("b")], tx=handle)
        handle.commit()
    async with plain(path.with_name("other.db")) as handle:
        with pytest.raises(EngineRefused, match=r"other\.db"):
            await engine.outbox.append(ORDERS, [order()], tx=handle)
    assert [one.key for one in (await leased(engine)).messages] == ["b"]


@pytest.mark.spec("OUTBOX-50")
@pytest.mark.parametrize("name", OPENERS)
async def test_an_advance_counts_once_the_user_commits(engine: SqliteEngine, path: Path, name: str) -> None:
    """With its letters; rolled back, the lease goes on."""
    await engine.outbox.append(ORDERS, [order("a"), order("b")])
    lease = await leased(engine)
    advance = conclude_batch(lease, Delivered(2, (Rejection(2, "odd"),)), await engine.now())
    for ending, moved in (("rollback", 0), ("commit", 2)):
        async with OPENERS[name](path) as handle:
            assert (await engine.outbox.advance(advance, tx=handle)).applied
            await maybe(getattr(handle, ending)())
        assert await position(engine) == moved
    assert [one.number for one in (await engine.outbox.letters(LetterFilter())).letters] == [2]
    async with OPENERS[name](path) as handle:
        assert not (await engine.outbox.advance(advance, tx=handle)).applied
        await maybe(handle.commit())


@pytest.mark.spec("OUTBOX-59", "OUTBOX-63")
@pytest.mark.parametrize("name", OPENERS)
async def test_inbox_and_held_claim_join_the_users_transaction(engine: SqliteEngine, path: Path, name: str) -> None:
    """What a block of exactly-once work does: receive, hold, settle."""
    job = Draft(job_id=mint(), kind="work")
    await engine.jobs.insert([job])
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    for ending, status in (("rollback", Status.RUNNING), ("commit", Status.DONE)):
        async with OPENERS[name](path) as handle:
            assert await engine.outbox.receive("billing", ["1", "1"], keep=HOUR, tx=handle) == [True, False]
            held = await engine.outbox.hold(claim, tx=handle)
            assert held is not None
            await engine.jobs.settle([conclude(held, Done())], tx=handle)
            await maybe(getattr(handle, ending)())
        [found] = await engine.operator.get([job.job_id])
        assert found is not None
        assert found.status is status
    async with OPENERS[name](path) as handle:
        assert await engine.outbox.receive("billing", ["1"], keep=HOUR, tx=handle) == [False]
        assert await engine.outbox.hold(claim, tx=handle) is None


# --- wake-ups -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-61")
async def test_the_users_own_commit_wakes_a_waiter(engine: SqliteEngine, path: Path) -> None:
    """No datagram is sent for it: the file is watched. A rollback wakes no waiter."""
    waiting = asyncio.create_task(engine.jobs.wait([topic("orders")], 20))
    await asyncio.sleep(0)
    with closing(sqlite3.connect(path)) as handle:
        await engine.outbox.append(ORDERS, [order()], tx=handle)
        handle.rollback()
        await engine.outbox.append(ORDERS, [order()], tx=handle)
        handle.commit()
        assert await waiting == {"~orders"}
    assert len((await leased(engine)).messages) == 1


@pytest.mark.spec("OUTBOX-61")
async def test_an_append_wakes_waiters_of_other_engines(engine: SqliteEngine) -> None:
    other = engine.for_loop()
    await other.open()
    try:
        waiting = asyncio.create_task(other.jobs.wait([topic("orders"), "default"], 20))
        await asyncio.sleep(0)
        await engine.outbox.append(ORDERS, [order()])
        assert await waiting == {"~orders"}
    finally:
        await other.close()


# --- what is not written, and what cannot be read -------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-38", "OUTBOX-40")
async def test_idle_calls_write_nothing(engine: SqliteEngine, path: Path) -> None:
    """Neither a lease without messages nor a vacuum with nothing to delete begins a write."""
    await engine.outbox.append(ORDERS, [order()])
    await engine.outbox.lease(REQUEST)
    log = path.with_name(f"{path.name}-wal")
    before = (log.stat().st_size, log.stat().st_mtime_ns)
    for _ in range(5):
        assert isinstance(await engine.outbox.lease(REQUEST), NothingDue)
        assert (await engine.outbox.vacuum("orders", 100)).deleted == 0
    assert (log.stat().st_size, log.stat().st_mtime_ns) == before


@pytest.mark.spec("OUTBOX-38")
async def test_a_read_error_takes_no_lease(engine: SqliteEngine, path: Path) -> None:
    """The cursor is as before, and no attempt is counted."""
    await engine.outbox.append(ORDERS, [order()])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE stoker_letters RENAME TO mislaid")
        with pytest.raises(SchemaMismatch):
            await engine.outbox.lease(REQUEST)
        connection.execute("ALTER TABLE mislaid RENAME TO stoker_letters")
    assert (await leased(engine)).cursor.attempts == 1


@pytest.mark.spec("OUTBOX-25")
@pytest.mark.parametrize("damage", ["payload = NULL", "payload = 'text'", "headers = '{'", "headers = '[1]'"])
async def test_a_message_that_cannot_be_read_becomes_a_letter(engine: SqliteEngine, path: Path, damage: str) -> None:
    """It comes without a payload, and the messages behind it go on."""
    await engine.outbox.append(ORDERS, [order("a"), order("b")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE stoker_messages SET {damage} WHERE key = 'a'")
        connection.commit()
    lease = await leased(engine)
    missing, rest = readable(lease.messages)
    assert ([one.key for one in missing], rest) == (["a"], ())
    assert (await engine.outbox.advance(quarantine(lease, missing, await engine.now()))).applied
    [letter] = (await engine.outbox.letters(LetterFilter())).letters
    assert "the body of message 1 is missing" in letter.reason
    assert [one.key for one in (await leased(engine)).messages] == ["b"]


@pytest.mark.spec("OUTBOX-48")
async def test_a_long_batch_is_read_piece_by_piece(engine: SqliteEngine) -> None:
    """More messages than one statement reads, in order, and no further than wanted."""
    await engine.outbox.append(ORDERS, [order(str(n)) for n in range(300)])
    found = await engine.outbox.lease(LeaseRequest("orders", "publish", "w1", 200))
    assert isinstance(found, Lease)
    assert [one.number for one in found.messages] == list(range(1, 201))
    assert found.more
    await engine.outbox.advance(conclude_batch(found, Rejected("bad"), await engine.now()))
    found = await engine.outbox.lease(LeaseRequest("orders", "publish", "w1", 100))
    assert isinstance(found, Lease)
    assert [one.number for one in found.messages] == [201]

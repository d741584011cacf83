"""Appending to an outbox: alone, in a transaction of the engine's, and in one of the user's."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model.errors import EngineRefused, InvalidInput, InvalidOption, StokerError
from stoker.model.ids import parse
from stoker.model.outbox.stream import partition_of, topic
from stoker.outbox import Outbox


async def count(jobs: Stoker) -> int:
    [state] = await outbox_of(await jobs.engine()).streams(["orders"])
    return sum(state.last)


@pytest.mark.spec("PUBLISH-01")
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1"])
def test_redis_is_refused_by_name(url: str) -> None:
    with pytest.raises(EngineRefused, match=r"[Rr]edis.*has no streams"):
        Outbox[int](Stoker(url), stream="orders")


@pytest.mark.spec("PUBLISH-01")
def test_options_are_checked_where_they_are_written() -> None:
    jobs = Stoker("memory://")
    with pytest.raises(InvalidOption, match="power of two"):
        Outbox[int](jobs, stream="orders", partitions=3)
    with pytest.raises(InvalidInput, match="stream"):
        Outbox[int](jobs, stream="no such name")
    with pytest.raises(InvalidInput, match="keep"):
        Outbox[int](jobs, stream="orders", keep=-1)
    assert "orders of 4" in repr(Outbox[int](jobs, stream="orders", partitions=4))


@pytest.mark.spec("PUBLISH-02", "PUBLISH-03")
async def test_messages_exist_if_the_transaction_commits(jobs: Stoker) -> None:
    outbox = Outbox[int](jobs, stream="orders")
    store = await jobs.engine()
    first = await outbox.append("a", 1)
    assert parse(first)[6] >> 4 == 7
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as tx:
            await outbox.append("a", 2, tx=tx)
            _ = 1 / 0
    assert await count(jobs) == 1
    async with store.transaction() as tx:
        ids = await outbox.append_many([outbox.entry("a", n) for n in range(3)], tx=tx)
    assert ids == sorted(ids)
    assert await count(jobs) == 4
    assert await outbox.append_many([]) == []


@pytest.mark.spec("PUBLISH-05")
async def test_one_bad_message_refuses_all_before_anything_is_sent(jobs: Stoker) -> None:
    outbox = Outbox[object](jobs, stream="orders", partitions=2)
    with pytest.raises(InvalidInput, match="key"):
        await outbox.append("", 1)
    with pytest.raises(InvalidInput, match="printable"):
        await outbox.append("a", 1, type="ü")
    with pytest.raises(InvalidInput, match="headers"):
        await outbox.append("a", 1, headers={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match="partition"):
        await outbox.append("a", 1, partition=2)
    wider = Outbox[object](Stoker("memory://"), stream="orders", partitions=64)
    far = next(str(n) for n in range(99) if partition_of(str(n), 64) > 1)
    with pytest.raises(InvalidInput, match="partition"):
        await outbox.append_many([outbox.entry("a", 1), wider.entry(far, 1)])
    assert await outbox_of(await jobs.engine()).streams() == []


@pytest.mark.spec("PUBLISH-02", "PUBLISH-03")
def test_a_synchronous_handle_needs_no_loop(tmp_path: Path) -> None:
    jobs = Stoker(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox[str](jobs, stream="orders")
    jobs.run(jobs.open())
    db = sqlite3.connect(tmp_path / "shop.db")
    with db:
        outbox.append_sync("a", "one", tx=db)
        outbox.append_many_sync([outbox.entry("a", "two"), outbox.entry("b", "three")], tx=db)
        outbox.append_many_sync([], tx=db)
    outbox.append_sync("c", "never", tx=db)
    db.rollback()
    outbox.append_sync("c", "alone")
    assert jobs.run(count(jobs)) == 4
    db.close()
    jobs.run(jobs.close())


@pytest.mark.spec("PUBLISH-02")
async def test_a_waiting_call_inside_a_loop_is_refused(jobs: Stoker) -> None:
    with pytest.raises(StokerError, match=r"`await outbox.append\(...\)`"):
        Outbox[str](jobs, stream="orders").append_sync("a", "one")


@pytest.mark.spec("PUBLISH-07")
async def test_wake_reaches_who_waits_for_the_stream(jobs: Stoker) -> None:
    outbox = Outbox[str](jobs, stream="orders")
    engine = await jobs.engine()
    waiting = asyncio.create_task(engine.jobs.wait([topic("orders")], 10))
    await asyncio.sleep(0)
    await outbox.wake()
    assert await waiting == {"~orders"}

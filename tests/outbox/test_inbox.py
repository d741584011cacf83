"""The inbox: each message once, in the transaction of the user's own writes."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import psycopg
import pytest

from stoker import Inbox, Stoker
from stoker.model.errors import EngineRefused, InvalidInput
from stoker.model.query import Retention
from stoker.testing.clock import VirtualClock
from tests.engines.sql.openers import OPENERS, maybe


@pytest.mark.spec("INBOX-03")
def test_what_cannot_work_is_refused_where_it_is_written() -> None:
    jobs = Stoker("memory://")
    with pytest.raises(EngineRefused, match="redis has no streams"):
        Inbox(Stoker("redis://127.0.0.1:1"), source="billing")
    with pytest.raises(InvalidInput, match="source"):
        Inbox(jobs, source="")
    with pytest.raises(InvalidInput, match="every message would be new"):
        Inbox(jobs, source="billing", keep=0)
    with pytest.raises(InvalidInput, match="keep"):
        Inbox(jobs, source="billing", keep=-1)
    assert repr(Inbox(jobs, source="billing")) == "<Inbox billing>"


@pytest.mark.spec("INBOX-01", "INBOX-02")
async def test_an_id_is_new_once_and_after_a_rollback_again(jobs: Stoker) -> None:
    inbox = Inbox(jobs, source="billing")
    engine = await jobs.engine()
    with pytest.raises(ZeroDivisionError):
        async with engine.transaction() as tx:
            assert await inbox.receive("1", tx=tx) is True
            raise ZeroDivisionError
    async with engine.transaction() as tx:
        assert await inbox.receive("1", tx=tx) is True
        assert await inbox.receive(("1", "2", "2"), tx=tx) == [False, True, False]
        assert await inbox.receive([], tx=tx) == []
        assert await Inbox(jobs, source="shipping").receive("1", tx=tx) is True


@pytest.mark.spec("INBOX-02", "INBOX-03")
async def test_bad_calls_are_refused_and_store_nothing(jobs: Stoker) -> None:
    inbox = Inbox(jobs, source="billing")
    with pytest.raises(EngineRefused, match="needs tx="):
        await inbox.receive("1")
    async with (await jobs.engine()).transaction() as tx:
        for bad in ("", b"1", ["2", 3], "x" * 600):
            with pytest.raises(InvalidInput, match="id"):
                await inbox.receive(bad, tx=tx)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="must be text, or a list"):
            await inbox.receive(1, tx=tx)  # type: ignore[call-overload]
        assert await inbox.receive(["1", "2"], tx=tx) == [True, True]


@pytest.mark.engine("sqlite")
@pytest.mark.spec("INBOX-02")
@pytest.mark.parametrize("name", OPENERS)
async def test_every_handle_of_sqlite_takes_part(tmp_path: Path, name: str) -> None:
    async with Stoker(f"sqlite:///{tmp_path}/shop.db") as jobs:
        inbox = Inbox(jobs, source="billing")
        async with OPENERS[name](tmp_path / "shop.db") as handle:
            assert await inbox.receive("1", tx=handle)
            await maybe(handle.rollback())
            assert await inbox.receive("1", tx=handle)
            await maybe(handle.commit())
            assert await inbox.receive(["1", "2"], tx=handle) == [False, True]
            await maybe(handle.rollback())


@pytest.mark.engine("sqlite")
@pytest.mark.spec("INBOX-02")
def test_a_synchronous_transaction_needs_no_loop(tmp_path: Path) -> None:
    jobs = Stoker(f"sqlite:///{tmp_path}/shop.db")
    inbox = Inbox(jobs, source="billing")
    jobs.run(jobs.open())
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        with database:
            assert inbox.receive_sync("1", tx=database)
        with database:
            assert inbox.receive_sync(["1", "2"], tx=database) == [False, True]
        with pytest.raises(EngineRefused, match="needs tx="):
            inbox.receive_sync("3")
    jobs.run(jobs.close())


@pytest.mark.engine("postgres")
@pytest.mark.spec("INBOX-01", "INBOX-02")
@pytest.mark.parametrize(("end", "new"), [("commit", False), ("rollback", True)])
async def test_on_postgres_the_second_delivery_waits_for_the_first(
    postgres_url: str, postgres_schema: str, end: str, new: bool
) -> None:
    async with Stoker(postgres_url, schema=postgres_schema) as jobs:
        inbox = Inbox(jobs, source="billing")
        first, second = [await asyncpg.connect(postgres_url) for _ in range(2)]
        for connection in (first, second):
            await connection.execute("begin")
        assert await inbox.receive("1", tx=first)
        waiting = asyncio.create_task(inbox.receive("1", tx=second))
        await blocked(postgres_url, second.get_server_pid())
        await first.execute(end)
        assert await waiting is new
        for connection in (first, second):
            await connection.close()


async def blocked(url: str, pid: int) -> None:
    """Return when a session of Postgres waits for another one."""
    with psycopg.connect(url, autocommit=True) as watch:
        while watch.execute("select pg_blocking_pids(%s) <> '{}'", (pid,)).fetchone() != (True,):
            await asyncio.sleep(0.01)


@pytest.mark.spec("INBOX-01")
async def test_ids_are_forgotten_after_keep(timed_jobs: Stoker, clock: VirtualClock) -> None:
    engine = await timed_jobs.engine()
    inbox = Inbox(timed_jobs, source="billing", keep=60)

    async def receive() -> bool:
        await engine.operator.expire(Retention())
        async with engine.transaction() as tx:
            return await inbox.receive("1", tx=tx)

    assert await receive()
    clock.advance(59)
    assert not await receive()
    clock.advance(2)
    assert await receive()

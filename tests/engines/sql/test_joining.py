"""`jobs.joining(handle)`: what a Task or thread stores inside joins the user's transaction, without `tx=` anywhere."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from stoker import Inbox, Outbox, Stoker, Worker, current
from stoker.engines.base import outbox_of
from stoker.joining import Given
from stoker.model.errors import EngineRefused, InvalidInput
from stoker.testing import TestKit
from tests.engines.postgres import openers as on_postgres
from tests.engines.sql import openers as on_sqlite
from tests.harness.apps import PATIENCE

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")]
SYNCHRONOUS = [
    *(pytest.param("sqlite", name, marks=pytest.mark.engine("sqlite")) for name in on_sqlite.SYNCHRONOUS),
    *(pytest.param("postgres", name, marks=pytest.mark.engine("postgres")) for name in on_postgres.SYNCHRONOUS),
]
HANDLES = [
    *(pytest.param("sqlite", name, marks=pytest.mark.engine("sqlite")) for name in on_sqlite.OPENERS),
    *(pytest.param("postgres", name, marks=pytest.mark.engine("postgres")) for name in on_postgres.OPENERS),
]


class Shop:
    """An app with a task, a stream and an inbox, and the handles of users on the same database."""

    def __init__(self, url: str, target: Any, openers: dict[str, Any]) -> None:
        self.jobs = Stoker(url)
        self.work = self.jobs.task(name="work")(lambda n=0: n)
        self.orders: Outbox[int] = Outbox(self.jobs, stream="orders")
        self.inbox = Inbox(self.jobs, source="partner")
        self._target, self._openers = target, openers

    def opened(self, name: str) -> AbstractAsyncContextManager[Any]:
        """A handle of the user's, not begun; also one of asyncpg ends by `commit` and `rollback`."""
        found: AbstractAsyncContextManager[Any] = self._openers[name](self._target)
        return found

    async def stored(self) -> tuple[int, int]:
        """How many jobs and messages there are."""
        engine = await self.jobs.engine()
        messages = sum(sum(state.last) for state in await outbox_of(engine).streams())
        return sum((await engine.operator.census()).by_status().values()), messages


def make(name: str, request: pytest.FixtureRequest) -> Shop:
    if name == "sqlite":
        path = request.getfixturevalue("tmp_path") / "shop.db"
        return Shop(f"sqlite:///{path}", path, on_sqlite.OPENERS)
    server, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    return Shop(f"{server}?schema={schema}", server, on_postgres.OPENERS)


@pytest.fixture
def shop_on(request: pytest.FixtureRequest) -> Callable[[str], Shop]:
    return lambda name: make(name, request)


@pytest.fixture(params=ENGINES)
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    found = make(request.param, request)
    async with found.jobs:
        yield found


async def ended(opened: Any, how: str) -> None:
    await on_sqlite.maybe(getattr(opened, how)())


# --- everything that takes tx= ------------------------------------------------------------------------------------


@pytest.mark.spec("JOIN-01")
@pytest.mark.parametrize(("engine", "name"), HANDLES)
async def test_what_a_task_stores_shares_the_fate_of_its_transaction(
    shop_on: Callable[[str], Shop], engine: str, name: str
) -> None:
    """Enqueues, lists, groups and appends, with every handle that `tx=` takes; a message is received once."""
    shop = shop_on(engine)
    jobs, work = shop.jobs, shop.work
    async with jobs, shop.opened(name) as opened:
        handle = on_postgres.handle_of(opened)
        waits = await work.enqueue(0)
        for how, expected in (("rollback", (1, 0)), ("commit", (6, 1))):
            async with jobs.joining(handle) as given:
                assert given is handle
                assert await shop.inbox.receive("m-1") is True
                await work.enqueue(1)
                await jobs.enqueue(work.draft(2))
                await jobs.enqueue_many([work.draft(3)])
                await jobs.group([work.draft(4), work.draft(5)])
                await shop.orders.append("a", 6)
                assert await waits.signal("go", 7)
            assert (await shop.stored(), await waits.steps()) == ((1, 0), [])
            await ended(opened, how)
            assert (await shop.stored(), len(await waits.steps())) == (expected, expected[1])
        with jobs.joining(handle):
            assert await shop.inbox.receive("m-1") is False
        await ended(opened, "rollback")
        await work.enqueue(7)
        assert await shop.stored() == (7, 1)


@pytest.mark.spec("JOIN-01")
@pytest.mark.parametrize(("engine", "name"), SYNCHRONOUS)
def test_what_a_thread_stores_shares_the_fate_of_its_transaction(
    shop_on: Callable[[str], Shop], engine: str, name: str
) -> None:
    """The same calls without a loop, in the thread that has the handle: SQLite allows no other."""
    shop = shop_on(engine)
    jobs, work = shop.jobs, shop.work
    jobs.run(jobs.open())
    with _entered(shop.opened(name)) as handle:
        waits = work.enqueue_sync(0)
        for how, expected in (("rollback", (1, 0)), ("commit", (6, 1))):
            with jobs.joining(handle):
                assert shop.inbox.receive_sync("m-1") is True
                work.enqueue_sync(1)
                jobs.enqueue_sync(work.draft(2))
                jobs.enqueue_many_sync([work.draft(3)])
                jobs.run(jobs.group([work.draft(4), work.draft(5)]))
                shop.orders.append_sync("a", 6)
                assert waits.signal_sync("go", 7)
            assert (jobs.run(shop.stored()), waits.steps_sync()) == ((1, 0), [])
            getattr(handle, how)()
            assert (jobs.run(shop.stored()), len(waits.steps_sync())) == (expected, expected[1])
        open_group = jobs.run(jobs.group([work.draft(8)]))
        with jobs.joining(handle):
            open_group.add_sync(work.draft(9))
            with pytest.raises(InvalidInput, match="cannot be filled by a block in a transaction"), jobs.group():
                pass
        handle.rollback()
        work.enqueue_sync(7)
        assert jobs.run(shop.stored()) == (8, 1)
    jobs.run(jobs.close())


@contextmanager
def _entered(opened: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
    """One of the openers, whose sync handles await nothing, for code without a loop."""
    yield _driven(opened.__aenter__())
    _driven(opened.__aexit__(None, None, None))


def _driven(work: Awaitable[Any]) -> Any:
    try:
        work.__await__().send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("this handle waits for a loop")


@pytest.mark.spec("JOIN-01")
async def test_in_memory_the_engines_own_transaction_is_joined() -> None:
    jobs = Stoker("memory://")
    work = jobs.task(name="work")(lambda: None)
    async with jobs:
        engine = await jobs.engine()
        with pytest.raises(ZeroDivisionError):
            async with engine.transaction() as tx, jobs.joining(tx):
                await work.enqueue()
                raise ZeroDivisionError
        assert not any((await engine.operator.census()).by_status().values())
        async with engine.transaction() as tx, jobs.joining(tx):
            await work.enqueue()
        assert sum((await engine.operator.census()).by_status().values()) == 1


@pytest.mark.spec("JOIN-01")
def test_the_test_kit_follows_the_session_in_memory(tmp_path: Path) -> None:
    """A worker at the enqueue (`inline`) waits for the commit too."""
    jobs = Stoker("memory://")
    ran: list[int] = []
    work = jobs.task(name="work")(ran.append)
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=NullPool)
    with orm.Session(engine) as session, TestKit(jobs) as kit:
        with jobs.joining(session), kit.inline():
            session.execute(sa.text("create table users (name text)"))
            work.enqueue_sync(1)
            assert ran == []
            work.using(tx=False).enqueue_sync(2)
            assert ran == [2]
        session.rollback()
        kit.drain_sync()
        assert ran == [2]


# --- which one ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("JOIN-02")
async def test_false_stores_at_once_and_a_handle_in_the_call_wins(shop: Shop) -> None:
    jobs, work = shop.jobs, shop.work
    async with shop.opened("sqlalchemy-session") as outer, shop.opened("sqlalchemy-session") as other:
        with jobs.joining(outer):
            await work.using(tx=False).enqueue(1)
            await jobs.enqueue_many([work.draft(2)], tx=False)
            await shop.orders.append("a", 1, tx=False)
            async with jobs.group(tx=False) as group:
                await group.add(work.draft(3))
            await jobs.group([work.draft(4)], tx=False)
            assert await shop.stored() == (4, 1)
            with pytest.raises(EngineRefused, match="receive needs tx="):
                await shop.inbox.receive("m-1", tx=False)
            await work.using(tx=other).enqueue(5)
        outer.rollback()
        other.commit()
        assert await shop.stored() == (5, 1)


@pytest.mark.spec("JOIN-03")
async def test_the_inner_block_wins_and_the_outer_one_goes_on(shop: Shop) -> None:
    jobs, work = shop.jobs, shop.work
    async with shop.opened("sqlalchemy-session") as outer, shop.opened("sqlalchemy-session") as inner:
        with jobs.joining(outer):
            with jobs.joining(inner):
                await work.enqueue(1)
            inner.commit()
            assert await shop.stored() == (1, 0)
            await work.enqueue(2)
        assert await shop.stored() == (1, 0)
        outer.rollback()
        with pytest.raises(ZeroDivisionError), jobs.joining(outer):
            raise ZeroDivisionError
        await work.enqueue(3)
        assert await shop.stored() == (2, 0)


@pytest.mark.spec("JOIN-03")
async def test_another_app_is_not_affected(shop: Shop, tmp_path: Path) -> None:
    """Not even by a block of its own between: each app goes by its own innermost one."""
    other = Stoker(f"sqlite:///{tmp_path}/other.db", durability="process")
    theirs = other.task(name="theirs")(lambda: None)
    async with other, shop.opened("sqlalchemy-session") as session:
        with closing(sqlite3.connect(tmp_path / "other.db")) as db:
            with shop.jobs.joining(session):
                await theirs.enqueue()
                with other.joining(db):
                    await theirs.enqueue()
                    await shop.work.enqueue(1)
            db.rollback()
        assert await shop.stored() == (0, 0)
        session.commit()
        assert await shop.stored() == (1, 0)
        assert sum((await (await other.engine()).operator.census()).by_status().values()) == 1


@pytest.mark.spec("JOIN-04")
async def test_a_task_started_inside_joins_until_the_block_is_over(shop: Shop) -> None:
    """Afterwards its calls are refused: nothing is stored behind the back of a transaction that has ended."""
    jobs, work = shop.jobs, shop.work
    over = asyncio.Event()

    async def late() -> None:
        await over.wait()
        await work.enqueue(2)

    async with shop.opened("sqlalchemy-async-session") as session:
        async with jobs.joining(session):
            await asyncio.create_task(work.enqueue(1))
            outlives = asyncio.create_task(late())
        await session.rollback()
        over.set()
        with pytest.raises(
            EngineRefused, match=r"started inside jobs\.joining\(.*AsyncSession\), and that block is over"
        ):
            await outlives
        assert await shop.stored() == (0, 0)


@pytest.mark.spec("JOIN-04")
async def test_a_thread_of_its_own_does_not_join_and_to_thread_does(shop: Shop) -> None:
    jobs, work = shop.jobs, shop.work
    async with shop.opened("sqlalchemy-session") as session:
        with jobs.joining(session):
            thread = threading.Thread(target=work.enqueue_sync, args=(1,))
            thread.start()
            await asyncio.to_thread(thread.join, PATIENCE)
            assert await shop.stored() == (1, 0)
            await asyncio.to_thread(work.enqueue_sync, 2)
        assert await shop.stored() == (1, 0)
        session.commit()
        assert await shop.stored() == (2, 0)


@pytest.mark.spec("JOIN-05")
async def test_a_worker_that_is_started_inside_stays_outside(shop: Shop) -> None:
    """Its handlers' enqueues are stored at once, or join the handler's own block."""
    jobs, work = shop.jobs, shop.work

    @jobs.task
    async def parent() -> None:
        await work.using(queue="later").enqueue(1)
        async with current().transaction():
            await work.using(queue="later").enqueue(2)

    async with shop.opened("sqlalchemy-session") as session:
        job = await parent.enqueue()
        with jobs.joining(session):
            async with Worker(jobs, ["default"]):
                await job.result(PATIENCE)
        session.rollback()
        assert await shop.stored() == (3, 0)


# --- the transaction that an integration knows of -----------------------------------------------------------------


@pytest.mark.spec("JOIN-06")
async def test_an_integration_says_which_transaction_a_call_is_in(shop: Shop) -> None:
    """Asked for each call without `tx=` outside of a block; what it raises ends the call."""
    jobs, work = shop.jobs, shop.work
    async with shop.opened("sqlalchemy-session") as session, shop.opened("sqlalchemy-session") as other:
        ambient: list[Any] = []
        jobs.ambient = lambda: ambient[-1] if ambient else None
        await work.enqueue(1)
        ambient.append(session)
        await work.using(tx=False).enqueue(2)
        with jobs.joining(other):
            await work.enqueue(3)
        other.rollback()
        await work.enqueue(4)
        assert await shop.inbox.receive("m-1") is True
        assert await shop.stored() == (2, 0)
        session.commit()
        assert await shop.stored() == (3, 0)

        def refuse() -> None:
            raise EngineRefused("not here")

        jobs.ambient = refuse
        with pytest.raises(EngineRefused, match="not here"):
            await work.enqueue(5)
        assert await shop.stored() == (3, 0)


@pytest.mark.spec("JOIN-06")
async def test_a_call_that_is_made_after_the_commit_answers_nothing_before(shop: Shop) -> None:
    """So a signal counts as sent, and a receipt is refused: whether the message is new would be known too late."""

    class Later(Given):
        deferred = True

        async def join(self, call: Any, *, wakes: Any = ()) -> Any:
            return []

    waits = await shop.work.enqueue(1)
    shop.jobs.ambient = lambda: Later(shop.jobs, None)
    assert await waits.signal("go")
    with pytest.raises(EngineRefused, match="receive needs tx="):
        await shop.inbox.receive("m-1")


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.spec("JOIN-07")
@pytest.mark.engine("redis")
async def test_a_store_that_cannot_join_says_what_it_says_of_tx(redis_url: str, redis_prefix: str) -> None:
    jobs = Stoker(redis_url, prefix=redis_prefix)
    work = jobs.task(name="work")(lambda: None)
    session = AsyncSession()
    async with jobs:
        with pytest.raises(EngineRefused, match=r"Redis takes no tx= \(it was given .*AsyncSession\)") as by_tx:
            await work.using(tx=session).enqueue()
        async with jobs.joining(session):
            with pytest.raises(EngineRefused) as by_block:
                await work.enqueue()
            assert str(by_block.value) == str(by_tx.value)
            await work.using(tx=False).enqueue()


@pytest.mark.spec("JOIN-07")
async def test_what_is_no_handle_is_refused(shop: Shop, tmp_path: Path) -> None:
    jobs, work = shop.jobs, shop.work
    for nothing in (None, False):
        with pytest.raises(InvalidInput, match="joining: must be the handle of a transaction, as tx= takes it"):
            jobs.joining(nothing)
    with jobs.joining(object()), pytest.raises(EngineRefused, match=r"tx= cannot be a .*object\. Accepted are"):
        await work.enqueue()
    elsewhere = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/elsewhere.db", poolclass=NullPool)
    async with AsyncSession(elsewhere) as session, jobs.joining(session):
        with pytest.raises(EngineRefused, match="but the jobs are in"):
            await work.enqueue()
    await elsewhere.dispose()
    used = jobs.joining(object())
    with used:
        pass
    with pytest.raises(EngineRefused, match=r"was used before.*Call jobs\.joining\(\.\.\.\) for each block"), used:
        pass
    assert await shop.stored() == (0, 0)


@pytest.mark.spec("JOIN-07")
def test_an_async_session_is_refused_without_a_loop(shop_on: Callable[[str], Shop]) -> None:
    shop = shop_on("sqlite")
    shop.jobs.run(shop.jobs.open())
    session = AsyncSession(create_async_engine("sqlite+aiosqlite://"))
    with shop.jobs.joining(session), pytest.raises(EngineRefused, match="its transaction handle is asynchronous"):
        shop.work.enqueue_sync(1)
    assert shop.jobs.run(shop.stored()) == (0, 0)
    shop.jobs.run(shop.jobs.close())

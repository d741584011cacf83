"""Blocks with every kind of handle, at every isolation level, in threads and in processes of their own."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django import setup
from django.conf import settings

from stoker import transaction_block
from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.job_participant import JobParticipant
from stoker.model.chunk import Chunk
from stoker.model.errors import EngineRefused, LostClaim
from stoker.model.job import Status
from stoker.model.retry import Fixed
from stoker.outbox import Outbox
from stoker.outbox.inbox import Inbox
from stoker.task import Task
from stoker.testing.clock import VirtualClock
from stoker.testing.conformance import blocks
from stoker.testing.conformance.harness import START, Store
from tests.harness.apps import PATIENCE, becomes, drain, until, working
from tests.harness.django_settings import on_file, on_server, unconfigured
from tests.worker.factories import ASYNC, PLAIN, Site, execute

STORES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")]
LEVELS = ("REPEATABLE READ", "SERIALIZABLE")


def handles(*tables: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(store, name, id=f"{store}-{name}", marks=pytest.mark.engine(store))
        for store in ("sqlite", "postgres")
        for table in tables
        for name in table[store]
    ]


class Shop:
    """Jobs and effects in one database."""

    def __init__(self, site: Site, engine: Engine) -> None:
        self.site = site
        self.jobs = Stoker(engine, backoff=Fixed(0.01), attempts=3)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        if self.site.path is not None:
            with closing(sqlite3.connect(self.site.path)) as db, db:
                return db.execute(text).fetchall()
        with psycopg.connect(self.site.url) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def effects(self) -> list[int]:
        return [n for (n,) in self.rows("select n from effects order by n")]


@contextmanager
def opened(store: str, tmp_path: Path, request: pytest.FixtureRequest, level: str | None = None) -> Iterator[Shop]:
    if store == "sqlite":
        path = str(tmp_path / "shop.db")
        shop = Shop(Site(f"sqlite:///{path}", path), SqliteEngine(path, durability="process"))
        shop.rows("create table effects (n integer)")
        yield shop
        return
    url = request.getfixturevalue("postgres_url")
    name = f"shop_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    own = url.rsplit("/", 1)[0] + f"/{name}"
    shop = Shop(Site(own, level=level), PostgresEngine(own))
    shop.rows("create table effects (n integer)")
    try:
        yield shop
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def shop(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    with opened(store, tmp_path, request) as found, configured(found):
        yield found


@contextmanager
def configured(shop: Shop) -> Iterator[None]:
    """Django, on the shop's database."""
    with unconfigured():
        site = shop.site
        default = on_server(site.url) if site.path is None else on_file(Path(site.path))
        settings.configure(DATABASES={"default": default})
        setup()
        yield


class Trouble(Exception):
    pass


@pytest.mark.spec("BLOCK-26")
@pytest.mark.parametrize("store", [STORES[0]])
async def test_a_handler_may_return_the_result_of_its_block(
    shop: Shop, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stored already, so nothing is lost and nothing is logged; another value is."""

    @shop.jobs.task
    async def charge(returned: list[int]) -> list[int]:
        async with current().transaction() as tx:
            tx.result([7])
        return returned

    same = await charge.enqueue([7])
    await drain(shop.jobs)
    assert await same.result(0) == [7]
    assert "is not stored" not in caplog.text
    other = await charge.enqueue([8])
    await drain(shop.jobs)
    assert await other.result(0) == [7]
    assert caplog.text.count("is not stored: the job was settled by its transaction before") == 1
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-13")
@pytest.mark.parametrize(("store", "name"), handles(PLAIN))
async def test_a_plain_handler_with_every_handle(shop: Shop, store: str, name: str) -> None:
    """The first run of each job raises inside its block; the second one commits."""
    begin = PLAIN[store][name](shop.site)
    follow: Task[..., None] = shop.jobs.task(name="follow", queue="later")(_nothing)

    @shop.jobs.task
    def charge(n: int) -> None:
        with (one := current().transaction(begin)) as handle:
            execute(handle, f"insert into effects values ({n})")
            follow.enqueue_sync()
            one.result(n)
            if current().attempt == 1:
                raise Trouble

    made = [await charge.enqueue(n) for n in range(5)]
    async with working(shop.jobs, {"default": 3}, poll=0.02):
        records = [await becomes(one, Status.DONE, Status.DEAD) for one in made]
    assert [(one.status, one.attempts, one.result) for one in records] == [
        (Status.DONE, 2, str(n).encode()) for n in range(5)
    ]
    assert shop.effects() == [0, 1, 2, 3, 4]
    engine = await shop.jobs.engine()
    assert (await engine.operator.census()).by_status("later")[Status.PENDING] == 5
    await shop.jobs.close()


def _nothing() -> None:
    pass


@pytest.mark.spec("BLOCK-13")
@pytest.mark.parametrize(("store", "name"), [one for one in handles(PLAIN, ASYNC) if "django" not in one.id])
async def test_an_async_handler_with_every_handle(shop: Shop, store: str, name: str) -> None:
    """Also with handles that block: they are used on the loop then, as the handler itself would."""
    begin = (PLAIN[store] | ASYNC[store])[name](shop.site)
    orders: Outbox[str] = Outbox(shop.jobs, stream="orders", partitions=2)

    @shop.jobs.task
    async def charge(n: int) -> None:
        async with (one := current().transaction(begin)) as handle:
            answer = execute(handle, f"insert into effects values ({n})")
            if inspect.isawaitable(answer):
                await answer
            await orders.append("a", f"charged {n}")
            one.result(n)
            await asyncio.sleep(0)
            if current().attempt == 1:
                raise Trouble

    made = [await charge.enqueue(n) for n in range(5)]
    async with working(shop.jobs, {"default": 3}, poll=0.02):
        records = [await becomes(one, Status.DONE, Status.DEAD) for one in made]
    assert [(one.status, one.attempts, one.result) for one in records] == [
        (Status.DONE, 2, str(n).encode()) for n in range(5)
    ]
    assert shop.effects() == [0, 1, 2, 3, 4]
    engine: Any = await shop.jobs.engine()
    [state] = await engine.outbox.streams(["orders"])
    assert sum(state.last) == 5
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-02")
@pytest.mark.parametrize(("store", "name"), [one for one in handles(ASYNC) if "postgres" in one.id])
async def test_a_claim_that_is_lost_inside_rolls_the_users_handle_back(shop: Shop, store: str, name: str) -> None:
    """Another worker took the job over while the block was open: nothing that the handler wrote is committed."""
    begin = ASYNC[store][name](shop.site)
    blocks: list[asyncio.Task[None]] = []

    async def block() -> None:
        jobs = (await shop.jobs.engine()).jobs
        async with current().transaction(begin) as handle:
            await execute(handle, "insert into effects values (1)")
            await jobs.renew("thief", [], first=True)
            assert await jobs.reap("thief", 10, dead=[current().worker])

    @shop.jobs.task
    async def charge() -> None:
        blocks.append(asyncio.ensure_future(block()))
        await asyncio.shield(blocks[0])  # a worker that notices the loss first stops the handler, not the block

    job = await charge.enqueue()
    await drain(shop.jobs)
    with pytest.raises(LostClaim):
        await blocks[0]
    record = await job.refresh()
    assert (record.status, record.worker, shop.effects()) == (Status.RUNNING, "thief", [])
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-14")
@pytest.mark.engine("postgres")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["asyncpg", "sqlalchemy-async-session", "psycopg", "sqlalchemy"])
async def test_every_isolation_level(level: str, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Claims of one call share a row in the store: siblings that are settled meanwhile must not abort a block.

    At SERIALIZABLE the server may abort blocks that run at the same time, for what they read; they run again.
    """
    with opened("postgres", tmp_path, request, level) as shop:
        async with shop.jobs:
            table = PLAIN["postgres"] | ASYNC["postgres"]
            begin = table[name](shop.site)
            failed: list[str] = []

            async def on_loop(n: int) -> None:
                async with current().transaction(begin) as handle:
                    await execute(handle, f"insert into effects values ({n})")
                    await asyncio.sleep(0.002)

            def in_thread(n: int) -> None:
                with current().transaction(begin) as handle:
                    execute(handle, f"insert into effects values ({n})")

            handler = on_loop if name in ASYNC["postgres"] else in_thread
            charge: Task[..., None] = shop.jobs.task(name="charge", attempts=100, backoff=Fixed(0))(handler)
            shop.jobs.on_error(lambda run: failed.append(run.error))
            number, slots = (40, 8) if level == "REPEATABLE READ" else (10, 2)
            await shop.jobs.enqueue_many([charge.draft(n) for n in range(number)])
            async with working(shop.jobs, {"default": slots}, poll=0.02) as worker, asyncio.timeout(60):
                while worker.counts[Status.DONE] < number:
                    await asyncio.sleep(0.01)
            assert all("could not serialize access" in error for error in failed)
            assert level == "SERIALIZABLE" or failed == []
            assert shop.effects() == list(range(number))


@pytest.mark.spec("BLOCK-15")
@pytest.mark.parametrize(
    ("store", "name"),
    [one for one in handles(PLAIN) if one.id.rpartition("-")[2] in ("sqlite3", "psycopg")],
)
async def test_a_commit_inside_the_block_is_refused(shop: Shop, store: str, name: str) -> None:
    """What was committed there stays, and the job is not done: it does not look as if it had been exactly once."""
    begin = PLAIN[store][name](shop.site)

    @shop.jobs.task(attempts=1)
    def charge() -> None:
        with current().transaction(begin) as handle:
            execute(handle, "insert into effects values (1)")
            handle.commit()
            execute(handle, "insert into effects values (2)")

    job = await charge.enqueue()
    await drain(shop.jobs)
    record = await job.refresh()
    assert record.status is Status.DEAD
    assert "committed or rolled back inside its block" in (record.last_error or "")
    assert shop.effects() == [1]
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-15")
@pytest.mark.parametrize("store", STORES)
async def test_a_commit_inside_the_engines_own_transaction_is_refused(shop: Shop, store: str) -> None:
    @shop.jobs.task(attempts=1)
    async def charge() -> None:
        async with current().transaction() as tx:
            await tx.execute("insert into effects values (1)")
            await tx.execute("commit")

    job = await charge.enqueue()
    await drain(shop.jobs)
    record = await job.refresh()
    assert record.status is Status.DEAD, store
    assert "committed or rolled back inside its block" in (record.last_error or "")
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-13")
@pytest.mark.parametrize("store", STORES)
async def test_the_engines_own_transaction_runs_the_users_statements(shop: Shop, store: str) -> None:
    """With the driver's own types and plans: a uuid is a uuid, and nothing of the engine's settings is in force."""
    seen: list[Any] = []
    mark = "$1" if store == "postgres" else "?"

    @shop.jobs.task
    async def charge() -> None:
        async with current().transaction() as tx:
            await tx.execute(f"insert into effects values ({mark})", 7)
            seen.append(await tx.execute(f"select n from effects where n = {mark}", 7))
            if store == "postgres":
                key = uuid.uuid4()
                seen.append(await tx.execute("select $1::uuid = $2::uuid, $1::uuid", key, str(key)))
                seen.append(await tx.execute("show enable_seqscan"))
                assert seen[1][0][1] == key
                assert await tx.connection.fetchval("select 1") == 1
            else:
                assert tx.connection.execute("select 1").fetchall() == [(1,)]

    @shop.jobs.task
    def plain() -> None:
        with current().transaction() as tx:
            tx.execute(f"insert into effects values ({mark})", 8)

    made = [await charge.enqueue(), await plain.enqueue()]
    await drain(shop.jobs)
    assert [(await one.refresh()).status for one in made] == [Status.DONE] * 2
    assert seen[0] == [(7,)]
    if store == "postgres":
        assert seen[1][0][0] is True
        assert seen[2] == [("on",)]
    assert shop.effects() == [7, 8]
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-09")
@pytest.mark.parametrize("store", STORES)
async def test_a_factory_that_only_closes_is_refused_by_name(shop: Shop, store: str) -> None:
    """`closing(...)` rolls back: the block looks well ended, and nothing is stored."""

    def forgetful() -> Any:
        if store == "sqlite":
            return closing(sqlite3.connect(shop.site.path or ""))
        return closing(psycopg.connect(shop.site.url))

    @shop.jobs.task(attempts=1)
    def charge() -> None:
        with current().transaction(forgetful) as handle:
            execute(handle, "insert into effects values (1)")

    job = await charge.enqueue()
    worker = await drain(shop.jobs)
    record = await job.refresh()
    assert record.status is Status.DEAD
    assert "forgetful" in (record.last_error or "")
    assert "did not commit" in (record.last_error or "")
    assert (shop.effects(), worker.counts[Status.DONE]) == ([], 0)
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-08")
@pytest.mark.parametrize("store", [STORES[0]])
async def test_the_wrong_form_of_a_block_is_refused_by_name(shop: Shop, store: str) -> None:
    """`with` on the loop, an async factory in a thread, a factory on another database."""
    path = shop.site.path or ""
    other = str(Path(path).with_name("other.db"))
    told: dict[str, str] = {}

    @shop.jobs.task
    async def on_loop() -> None:
        with pytest.raises(EngineRefused, match="async with") as refused, current().transaction():
            raise AssertionError
        told["loop"] = str(refused.value)

    @shop.jobs.task
    def in_thread() -> None:
        begin = ASYNC["sqlite"]["aiosqlite"](shop.site)
        with pytest.raises(EngineRefused, match="async context manager"), current().transaction(begin):
            raise AssertionError
        with pytest.raises(EngineRefused, match=r"other\.db"), current().transaction(lambda: sqlite3.connect(other)):
            raise AssertionError
        with current().transaction(PLAIN["sqlite"]["sqlite3"](shop.site)) as handle:
            execute(handle, "insert into effects values (1)")

    made = [await on_loop.enqueue(), await in_thread.enqueue()]
    await drain(shop.jobs)
    assert [(await one.refresh()).last_error for one in made] == [None, None]
    assert (shop.effects(), list(told)) == ([1], ["loop"])
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-06")
@pytest.mark.parametrize("store", [STORES[0]])
async def test_items_of_a_chunk_have_blocks_of_their_own(shop: Shop, store: str) -> None:
    """The call itself has none: it is for many jobs. Items that opened none are settled as usual."""

    @shop.jobs.task(chunk=Chunk(4))
    async def charge(ns: list[int]) -> list[int]:
        with pytest.raises(Exception, match="one job's"):
            current().transaction()
        for item, n in zip(current().items, ns, strict=True):
            if n % 2:
                async with item.transaction() as tx:
                    await tx.execute("insert into effects values (?)", n)
                    tx.result(10 * n)
        return ns

    made = [await charge.enqueue(n) for n in range(4)]
    worker = await drain(shop.jobs)
    assert [(await one.refresh()).result for one in made] == [b"0", b"10", b"2", b"30"]
    assert (shop.effects(), worker.counts[Status.DONE]) == ([1, 3], 4)
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-16")
@pytest.mark.parametrize("store", [STORES[0]])
async def test_a_long_block_on_sqlite_is_named(
    shop: Shop, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every other write waits for it."""
    monkeypatch.setattr(transaction_block, "LONG", 0.01)

    @shop.jobs.task
    async def charge() -> None:
        async with current().transaction() as tx:
            await tx.execute("insert into effects values (1)")
            await until(lambda: "has been open for more than" in caplog.text)

    job = await charge.enqueue()
    await drain(shop.jobs)
    assert (await job.refresh()).status is Status.DONE
    assert f"the transaction of job {job.id} (charge) has been open" in caplog.text
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-06")
@pytest.mark.parametrize("store", [STORES[0]])
async def test_what_follows_a_block_is_logged(shop: Shop, store: str, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is returned afterwards, once per task, and an error; listeners hear of one success."""
    heard: list[tuple[str, Status | None]] = []
    shop.jobs.listener(lambda change: heard.append((change.kind, change.after)))

    @shop.jobs.task
    async def charge(n: int) -> int:
        async with current().transaction():
            pass
        if n == 2:
            raise Trouble("too late")
        return n

    for n in range(3):
        await charge.enqueue(n)
    worker = await drain(shop.jobs)
    assert worker.counts[Status.DONE] == 3
    assert caplog.text.count("is not stored: the job was settled by its transaction before") == 1
    assert "too late" in caplog.text
    assert "It is done all the same" in caplog.text
    assert heard.count(("charge", Status.DONE)) == 3
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-13")
@pytest.mark.parametrize("store", STORES)
async def test_who_waits_for_the_result_is_woken(shop: Shop, store: str) -> None:
    """And jobs that the block enqueued start at once, for listeners too."""
    heard: list[tuple[str, Status | None, Status | None]] = []
    shop.jobs.listener(lambda change: heard.append((change.kind, change.before, change.after)))

    @shop.jobs.task
    async def follow() -> str:
        return "followed"

    @shop.jobs.task
    async def charge() -> str:
        async with current().transaction() as tx:
            made = await follow.enqueue()
            tx.result(made.id)
        return ""

    async with working(shop.jobs, {"default": 2}, poll=3600):
        job = await charge.enqueue()
        follower = await asyncio.wait_for(job.result(), PATIENCE)
        assert await asyncio.wait_for(shop.jobs.handle(follower).result(), PATIENCE) == "followed"
    assert (store, ("follow", None, Status.PENDING) in heard) == (store, True)
    await shop.jobs.close()


@pytest.mark.spec("BLOCK-18")
@pytest.mark.engine("sqlite")
async def test_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child settles on a connection of its own and tells its worker, which settles nothing more."""
    path = tmp_path / "shop.db"
    monkeypatch.setenv("CHARGING_URL", f"sqlite:///{path}")
    monkeypatch.setenv("CHARGING_PATH", str(path))
    monkeypatch.delitem(sys.modules, "tests.worker.apps.charging", raising=False)
    charging = importlib.import_module("tests.worker.apps.charging")
    shop = Shop(Site(f"sqlite:///{path}", str(path)), SqliteEngine(path))
    shop.rows("create table effects (n integer)")
    tasks = [charging.own, charging.plain, charging.dies_after, charging.dies_inside]
    async with charging.jobs:
        made = [await task.enqueue(n) for n, task in enumerate(tasks)]
        async with working(charging.jobs, {"default": 4}, poll=0.02) as worker:
            records = [await becomes(one, Status.DONE, Status.DEAD) for one in made]
            await until(lambda: worker.counts[Status.DONE] == 4)
        engine = await charging.jobs.engine()
        assert (await engine.operator.census()).by_status("later")[Status.PENDING] == 4
    assert [(one.status, one.attempts) for one in records] == [
        *((Status.DONE, 2), (Status.DONE, 1)),
        *((Status.DONE, 1), (Status.DONE, 2)),
    ]
    assert int(records[0].result or b"0") != os.getpid()
    assert (shop.effects(), worker.lost) == ([0, 1, 2, 3], 0)


@pytest.mark.spec("BLOCK-18")
@pytest.mark.engine("sqlite")
async def test_a_commit_in_doubt_stays_in_doubt_beyond_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handlers swallow the error and return. The child must not report success, nor its worker store one."""
    path = tmp_path / "shop.db"
    monkeypatch.setenv("CHARGING_URL", f"sqlite:///{path}")
    monkeypatch.setenv("CHARGING_PATH", str(path))
    monkeypatch.delitem(sys.modules, "tests.worker.apps.charging", raising=False)
    charging = importlib.import_module("tests.worker.apps.charging")
    shop = Shop(Site(f"sqlite:///{path}", str(path)), SqliteEngine(path))
    shop.rows("create table effects (n integer)")
    async with charging.jobs:
        made = [await charging.doubtful.enqueue(1, happened=True), await charging.doubtful.enqueue(2, happened=False)]
        async with working(charging.jobs, {"default": 2}, poll=0.02) as worker:
            records = [await becomes(one, Status.DONE, Status.DEAD) for one in made]
            await until(lambda: worker.lost == 1 and worker.counts[Status.DONE] == 1)
        engine = await charging.jobs.engine()
        assert (await engine.operator.census()).by_status("later")[Status.PENDING] == 2
    assert [(one.status, one.attempts, one.result) for one in records] == [
        (Status.DONE, 1, None),
        (Status.DONE, 2, None),
    ]
    assert "the outcome of its commit is not known" in str(records[1].history)
    assert shop.effects() == [1, 2]


@pytest.mark.spec("BLOCK-18")
@pytest.mark.engine("memory")
async def test_a_process_cannot_join_a_store_that_it_does_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHARGING_URL", "memory://")
    monkeypatch.delitem(sys.modules, "tests.worker.apps.charging", raising=False)
    charging = importlib.import_module("tests.worker.apps.charging")
    async with charging.jobs:
        job = await charging.unshared.enqueue()
        async with working(charging.jobs, {"default": 1}):
            record = await becomes(job, Status.DEAD)
    assert "cannot see the memory store" in (record.last_error or "")


# --- the tests are awake --------------------------------------------------------------------------------------------


@pytest.mark.spec("BLOCK-04")
@pytest.mark.engine("memory")
async def test_a_commit_in_doubt_as_a_success_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(part: JobParticipant, _: str) -> None:
        part.committed()

    monkeypatch.setattr(JobParticipant, "in_doubt", careless)
    clock = VirtualClock(START)
    engine = MemoryEngine(clock)
    store = Store(engine, clock, lambda _: engine.for_loop())
    with pytest.raises(AssertionError):
        await blocks.test_a_commit_in_doubt_is_never_a_success(store, happened=False, swallows=True)


@pytest.mark.spec("BLOCK-14")
@pytest.mark.engine("postgres")
async def test_a_block_without_its_fence_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async def trusting(part: JobParticipant, engine: Engine, tx: Any) -> bool:
        return True

    monkeypatch.setattr(JobParticipant, "begin", trusting)
    with pytest.raises(AssertionError):
        await test_every_isolation_level("REPEATABLE READ", "asyncpg", tmp_path, request)


@pytest.mark.spec("BLOCK-01")
@pytest.mark.parametrize("store", STORES)
async def test_an_inbox_joins_the_block(shop: Shop, store: str) -> None:
    """A message that was received in a block that rolled back is new again."""
    inbox = Inbox(shop.jobs, source="billing")
    seen: list[bool] = []

    @shop.jobs.task
    async def consume() -> None:
        async with current().transaction():
            seen.append(await inbox.receive("m1"))
            if current().attempt == 1:
                raise Trouble

    @shop.jobs.task
    def again() -> None:
        with current().transaction():
            seen.append(inbox.receive_sync("m1"))

    async with working(shop.jobs, {"default": 1}, poll=0.02):
        await becomes(await consume.enqueue(), Status.DONE)
        await becomes(await again.enqueue(), Status.DONE)
    assert (store, seen) == (store, [True, True, False])
    await shop.jobs.close()

"""Django's own connections as `tx=`: its atomic blocks, savepoints and hooks, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.base import BaseHandler
from django.db import DatabaseError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from stoker import Stoker, sync
from stoker.contrib.django.fresh_connections import fresh_connections
from stoker.engines.base import Engine, outbox_of
from stoker.engines.sql.user_handles.handles import drive
from stoker.handle import JobHandle
from stoker.model import ids
from stoker.model.errors import Duplicate, EngineBusy, EngineRefused
from stoker.model.job import Claim, Demand, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outbox.stream import Entry, Stream, entry
from stoker.model.outcome import Done, Failed
from stoker.model.time import HOUR
from stoker.model.unique import Unique
from stoker.worker import Worker
from tests.harness.django_settings import django, on_file, on_server


class Shop:
    """An app, its task, a table of the user's, and Django on the same database."""

    def __init__(self, url: str, database: dict[str, Any]) -> None:
        self.jobs = Stoker(url)
        self.database = database
        self.work = self.jobs.task(name="work")(lambda value=None: value)
        self.jobs.run(self.jobs.open())
        self.engine: Engine = self.jobs.run(self.jobs.engine())

    def create(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("create table users (name text)")
        connection.close()  # the test begins as a request does: with a connection that is not open

    def add(self, name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("insert into users values (%s)", [name])

    def names(self) -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("select name from users order by name")
            return [row[0] for row in cursor.fetchall()]

    def enqueue(self, value: Any = None, tx: Any = connection, **options: Any) -> JobHandle[Any]:
        stored: JobHandle[Any] = self.work.using(tx=tx, **options).enqueue_sync(value)
        return stored

    def there(self, *handles: JobHandle[Any]) -> list[bool]:
        return [
            job is not None
            for job in self.jobs.run(self.engine.operator.get([ids.parse(handle.id) for handle in handles]))
        ]

    def statuses(self) -> dict[Status, int]:
        return {status: n for status, n in self.jobs.run(self.engine.operator.census()).by_status().items() if n}

    def claim(self) -> Claim:
        self.jobs.run(self.engine.jobs.renew("w1", [], first=True))
        [claim] = self.jobs.run(self.engine.jobs.claim(Demand("w1", (("default", 1),))))
        return claim

    def waiting(self) -> Future[frozenset[str]]:
        assert self.waited(0.1) == frozenset()  # and the engine listens from here on
        return asyncio.run_coroutine_threadsafe(self.engine.jobs.wait(["default"], 60), sync.shared.loop)

    def waited(self, seconds: float) -> frozenset[str]:
        return self.jobs.run(self.engine.jobs.wait(["default"], seconds))


ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")]


@pytest.fixture(params=ENGINES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        url, database = f"sqlite:///{path}", on_file(path)
    else:
        server, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        url, database = f"{server}?schema={schema}", on_server(server, options=f"-csearch_path={schema}")
    found = Shop(url, database)
    with django(database):
        found.create()
        yield found
    found.jobs.run(found.jobs.close())


class Undone(Exception):
    pass


# --- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-42")
def test_messages_exist_once_the_atomic_block_commits(shop: Shop) -> None:
    """And their stream, which the append registers; a block inside that is rolled back leaves nothing."""
    outbox, orders = outbox_of(shop.engine), Stream("orders")

    def order(key: str) -> Entry:
        return entry(orders, key, b"{}", "t", id=ids.compose(1, ord(key)))

    with pytest.raises(Undone), transaction.atomic():
        drive(outbox.append(orders, [order("a")], tx=connection))
        raise Undone
    assert shop.jobs.run(outbox.streams()) == []
    with transaction.atomic():
        shop.add("anna")
        with pytest.raises(Undone), transaction.atomic():
            drive(outbox.append(orders, [order("b")], tx=connection))
            raise Undone
        drive(outbox.append(orders, [order("c")], tx=connection))
    assert [state.last for state in shop.jobs.run(outbox.streams())] == [(1,)]
    assert shop.names() == ["anna"]


# --- one fate -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("DJANGO-01")
@pytest.mark.parametrize("handle", ["proxy", "wrapper"])
def test_job_and_row_are_committed_together(shop: Shop, handle: str) -> None:
    """With the proxy and with the connection itself, neither of them open before."""
    tx = connection if handle == "proxy" else connections["default"]
    assert tx.connection is None
    with transaction.atomic():
        job = shop.enqueue({"é": ["%s", "$1", "?", None, 1.5]}, tx, priority=-3, tenant="t'%", unique="k")
        again = shop.enqueue(tx=tx, unique="k")
        shop.add("ada")
        assert shop.there(job) == [False]
    assert again.id == job.id
    assert shop.names() == ["ada"]
    [record] = shop.jobs.run(shop.engine.operator.get([ids.parse(job.id)]))
    assert record is not None
    assert (record.status, record.priority, record.tenant) == (Status.PENDING, -3, "t'%")
    assert record.payload == '{"value":{"é":["%s","$1","?",null,1.5]}}'.encode()


@pytest.mark.spec("DJANGO-01")
def test_job_and_row_are_rolled_back_together(shop: Shop) -> None:
    jobs: list[JobHandle[Any]] = []
    with pytest.raises(Undone), transaction.atomic():
        shop.add("bob")
        jobs.append(shop.enqueue(unique="k"))
        raise Undone
    assert shop.there(*jobs) == [False]
    assert (shop.names(), shop.statuses()) == ([], {})
    with transaction.atomic():
        shop.enqueue(unique="k")
    assert shop.statuses() == {Status.PENDING: 1}


@pytest.mark.spec("DJANGO-01")
def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(shop: Shop) -> None:
    jobs: list[JobHandle[Any]] = []
    with transaction.atomic():
        shop.add("ada")
        jobs.append(shop.enqueue())
        with pytest.raises(Undone), transaction.atomic():
            shop.add("bob")
            jobs.append(shop.enqueue())
            raise Undone
        with transaction.atomic():
            jobs.append(shop.enqueue())
        jobs.append(shop.enqueue())
    assert shop.there(*jobs) == [True, False, True, True]
    assert shop.names() == ["ada"]
    assert shop.statuses() == {Status.PENDING: 3}


@pytest.mark.spec("DJANGO-01")
def test_settlements_join_an_atomic_block(shop: Shop) -> None:
    """Rolled back the run goes on under its claim; committed it is done, with its follow-up, or waits for a retry."""
    with transaction.atomic():
        first, second = shop.enqueue(), shop.enqueue()
    claims = [shop.claim(), shop.claim()]
    child = shop.work.draft("child")
    settlements = [
        conclude(claims[0], Done(b'{"a": "%"}', followups=(child,))),
        conclude(claims[1], Failed("bö'%m", after=HOUR), metadata={"a": "1"}),
    ]
    with pytest.raises(Undone), transaction.atomic():
        assert drive(shop.engine.jobs.settle(settlements, tx=connection)).verdicts == [Verdict.APPLIED] * 2
        raise Undone
    assert shop.statuses() == {Status.RUNNING: 2}
    with transaction.atomic():
        assert drive(shop.engine.jobs.settle(settlements, tx=connection)).verdicts == [Verdict.APPLIED] * 2
        shop.add("ada")
    done, retrying, follow = shop.jobs.run(
        shop.engine.operator.get([ids.parse(first.id), ids.parse(second.id), child.job_id])
    )
    assert done and retrying and follow
    assert (done.status, done.result) == (Status.DONE, b'{"a": "%"}')
    assert (retrying.status, retrying.last_error, retrying.metadata) == (Status.RETRYING, "bö'%m", {"a": "1"})
    assert shop.names() == ["ada"]


@pytest.mark.spec("DJANGO-01")
def test_a_duplicate_leaves_the_atomic_block_usable(shop: Shop) -> None:
    with transaction.atomic():
        first = shop.enqueue(unique=Unique("k", mode="raise"))
        with pytest.raises(Duplicate):
            shop.enqueue(unique=Unique("k", mode="raise"))
        shop.add("ada")
        last = shop.enqueue()
    assert shop.there(first, last) == [True, True]
    assert shop.names() == ["ada"]


@pytest.mark.spec("DJANGO-01")
def test_a_transaction_managed_by_hand_counts_as_well(shop: Shop) -> None:
    """With autocommit off there is no atomic block and no hook of Django's, and still one fate."""
    transaction.set_autocommit(False)
    try:
        lost = shop.enqueue()
        transaction.rollback()
        shop.add("ada")
        kept = shop.enqueue()
        assert shop.there(lost, kept) == [False, False]
        transaction.commit()
        assert shop.there(lost, kept) == [False, True]
    finally:
        transaction.set_autocommit(True)
    assert shop.names() == ["ada"]


@pytest.mark.spec("DJANGO-01")
def test_a_view_in_its_request_transaction(shop: Shop) -> None:
    """ATOMIC_REQUESTS: a view that raises leaves neither row nor job."""

    def view(request: HttpRequest) -> HttpResponse:
        name = request.GET["name"]
        shop.add(name)
        shop.enqueue(name)
        if name == "bob":
            raise Undone
        return HttpResponse(name)

    with django({**shop.database, "ATOMIC_REQUESTS": True}):
        serve = BaseHandler().make_view_atomic(view)
        assert serve(RequestFactory().get("/", {"name": "ada"})).content == b"ada"
        with pytest.raises(Undone):
            serve(RequestFactory().get("/", {"name": "bob"}))
        assert shop.names() == ["ada"]
    assert shop.statuses() == {Status.PENDING: 1}


# --- waking -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DJANGO-02")
@pytest.mark.parametrize("nested", [False, True])
def test_workers_wake_after_the_commit(shop: Shop, nested: bool) -> None:
    """Not before it, and also when the jobs came out of an inner block."""
    waiting = shop.waiting()
    with transaction.atomic():
        with transaction.atomic() if nested else nullcontext():
            shop.enqueue()
        assert not waiting.done()
    assert waiting.result(60) == {"default"}
    shop.claim()


@pytest.mark.spec("DJANGO-02")
def test_no_waiter_wakes_for_what_was_rolled_back(shop: Shop) -> None:
    with pytest.raises(Undone), transaction.atomic():
        shop.enqueue()
        raise Undone
    assert shop.waited(0.1) == frozenset()
    with transaction.atomic():
        shop.add("ada")
        with pytest.raises(Undone), transaction.atomic():
            shop.enqueue()
            raise Undone
    assert shop.waited(0.1) == frozenset()


@pytest.mark.spec("DJANGO-02")
def test_hooks_of_the_user_run_beside_ours(shop: Shop) -> None:
    heard: list[str] = []
    with transaction.atomic():
        transaction.on_commit(lambda: heard.append("before"))
        shop.enqueue()
        transaction.on_commit(lambda: heard.append("after"))
        assert heard == []
    assert heard == ["before", "after"]


@pytest.mark.engine("postgres")
@pytest.mark.spec("DJANGO-02")
def test_a_worker_elsewhere_wakes_and_an_app_that_is_not_open_notifies_no_listener(
    postgres_url: str, postgres_schema: str
) -> None:
    """Who enqueues without a loop tells through whichever engine of his app is open."""
    url = f"{postgres_url}?schema={postgres_schema}"
    worker = Stoker(url)
    engine = worker.run(worker.engine())
    producer = Stoker(url)
    work = producer.task(name="work")(lambda: None)
    with django(on_server(postgres_url)):
        with transaction.atomic():
            work.using(tx=connection).enqueue_sync()
        assert worker.run(engine.jobs.wait(["default"], 0.1)) == frozenset()
        producer.run(producer.open())
        waiting = asyncio.run_coroutine_threadsafe(engine.jobs.wait(["default"], 60), sync.shared.loop)
        with transaction.atomic():
            work.using(tx=connection).enqueue_sync()
        assert waiting.result(60) == {"default"}
    producer.run(producer.close())
    worker.run(worker.close())


# --- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DJANGO-03")
def test_outside_of_an_atomic_block_it_is_refused(shop: Shop) -> None:
    with pytest.raises(EngineRefused, match=r"Call this inside `with transaction\.atomic\(\):`"):
        shop.enqueue()
    assert shop.statuses() == {}


@pytest.mark.spec("DJANGO-03")
def test_a_block_that_can_only_roll_back_is_refused(shop: Shop) -> None:
    with transaction.atomic():
        with pytest.raises(Undone), transaction.atomic(savepoint=False):
            raise Undone
        with pytest.raises(EngineRefused, match="can only be rolled back"):
            shop.enqueue()
        with pytest.raises(EngineRefused, match="can only be rolled back"):
            shop.enqueue(unique=Unique("k", mode="raise"))
    assert shop.statuses() == {}


@pytest.mark.spec("DJANGO-03")
def test_a_connection_that_was_closed_in_its_block_is_refused(shop: Shop) -> None:
    with transaction.atomic():
        connection.close()
        with pytest.raises(EngineRefused, match="can only be rolled back"):
            shop.enqueue()
    assert shop.statuses() == {}


@pytest.mark.spec("DJANGO-03")
def test_a_connection_of_another_thread_is_refused_as_django_does(shop: Shop) -> None:
    caught: list[BaseException] = []

    def use(tx: Any) -> None:
        try:
            shop.enqueue(tx=tx)
        except (DatabaseError, EngineRefused) as error:
            caught.append(error)
        connection.close()

    with transaction.atomic():
        for tx in (connections["default"], connection):
            thread = threading.Thread(target=use, args=(tx,))
            thread.start()
            thread.join(30)
    # The proxy is the other thread's own connection, which is in no block.
    assert [type(error) for error in caught] == [DatabaseError, EngineRefused]
    assert "can only be used in that same thread" in str(caught[0])
    assert "atomic" in str(caught[1])
    assert shop.statuses() == {}


@pytest.mark.spec("DJANGO-03")
def test_a_driver_that_stoker_does_not_know_is_named(shop: Shop) -> None:
    wrapper = connections["default"]
    wrapper.connection = object()
    try:
        with pytest.raises(EngineRefused, match=r"over a builtins\.object\. .* psycopg 3 and over sqlite3"):
            shop.enqueue(tx=wrapper)
    finally:
        wrapper.connection = None


@pytest.mark.spec("DJANGO-03")
def test_a_file_is_refused_by_name_when_the_jobs_are_elsewhere(shop: Shop, tmp_path: Path) -> None:
    with django(on_file(tmp_path / "other.db")), transaction.atomic():
        with pytest.raises(EngineRefused, match=r"other\.db|on sqlite") as caught:
            shop.enqueue()
        assert "ConnectionProxy" in str(caught.value)
    assert shop.statuses() == {}


@pytest.mark.engine("postgres")
@pytest.mark.spec("DJANGO-03")
def test_another_database_of_the_server_is_refused_by_name(
    postgres_url: str, postgres_schema: str, tmp_path: Path
) -> None:
    other = f"d_{postgres_schema}"
    on_postgres, on_sqlite = Stoker(f"{postgres_url}?schema={postgres_schema}"), Stoker(f"sqlite:///{tmp_path}/jobs.db")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create database {other}".encode())
        try:
            with django(on_server(postgres_url.rpartition("/")[0] + f"/{other}")), transaction.atomic():
                for jobs, words in ((on_postgres, other), (on_sqlite, "on postgresql")):
                    jobs.run(jobs.open())
                    with pytest.raises(EngineRefused, match=words):
                        jobs.task(name="work")(lambda: None).using(tx=connection).enqueue_sync()
                    jobs.run(jobs.close())
        finally:
            admin.execute(f"drop database {other} with (force)".encode())


# --- async code ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("DJANGO-04")
@pytest.mark.parametrize("kind", ["enqueue", "enqueue_many", "enqueue_sync"])
def test_in_a_thread_with_a_loop_it_is_refused_with_the_way_out(shop: Shop, kind: str) -> None:
    async def view() -> None:
        work = shop.work.using(tx=connection)
        if kind == "enqueue":
            await work.enqueue()
        elif kind == "enqueue_sync":
            work.enqueue_sync()
        else:
            await shop.jobs.enqueue_many([shop.work.draft()], tx=connection)

    async def serve() -> None:
        try:
            with pytest.raises(EngineRefused, match=r"sync_to_async\(\.\.\.\)") as caught:
                await view()
            assert type(caught.value.__cause__).__name__ == "SynchronousOnlyOperation"
        finally:
            await shop.jobs.close()

    asyncio.run(serve())
    assert shop.jobs.run(shop.jobs.run(shop.jobs.engine()).operator.census()).by_status()[Status.PENDING] == 0


@pytest.mark.spec("DJANGO-04")
def test_async_code_enqueues_through_sync_to_async(shop: Shop) -> None:
    def register(name: str) -> None:
        with transaction.atomic():
            shop.add(name)
            shop.enqueue(name)

    async def serve() -> frozenset[str]:
        async with Stoker(shop.jobs.new_engine()) as mine:
            engine = await mine.engine()
            assert await engine.jobs.wait(["default"], 0.1) == frozenset()
            waiting = asyncio.create_task(engine.jobs.wait(["default"], 60))
            await sync_to_async(register)("ada")
            await sync_to_async(connections.close_all)()
            return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(serve()) == {"default"}
    assert shop.names() == ["ada"]
    assert shop.statuses() == {Status.PENDING: 1}


# --- settings of Django's -----------------------------------------------------------------------------------------


@pytest.mark.engine("postgres")
@pytest.mark.spec("DJANGO-05")
@pytest.mark.parametrize("binding", [False, True])
@pytest.mark.parametrize("zones", [{"USE_TZ": False, "TIME_ZONE": "Asia/Kathmandu"}, {"USE_TZ": True}])
def test_bindings_and_time_zones_do_not_matter(
    postgres_url: str, postgres_schema: str, binding: bool, zones: dict[str, Any]
) -> None:
    jobs = Stoker(f"{postgres_url}?schema={postgres_schema}")
    work = jobs.task(name="work")(lambda value: value)
    jobs.run(jobs.open())
    with django(on_server(postgres_url, server_side_binding=binding), **zones):
        with transaction.atomic():
            job = work.using(tx=connection, delay=60, expires=120, metadata={"é": "%"}).enqueue_sync({"a": "it's 100%"})
            hidden = work.using(tx=connection, unique="k").enqueue_sync(None)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("select '{\"a\": 1}'::jsonb, now()")
            row = cursor.fetchone()
    assert row[0] == '{"a": 1}'  # Django's own loaders are still in place
    assert (row[1].tzinfo is None) is not zones["USE_TZ"]
    engine = jobs.run(jobs.engine())
    record, other = jobs.run(engine.operator.get([ids.parse(job.id), ids.parse(hidden.id)]))
    assert record and other
    assert record.payload == b'{"value":{"a":"it\'s 100%"}}'
    assert record.options.metadata == {"é": "%"}
    assert record.scheduled_at - record.created_at == 60_000_000
    jobs.run(jobs.close())


@pytest.mark.engine("sqlite")
@pytest.mark.spec("DJANGO-06")
@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_block_that_has_not_read_yet_waits_for_its_turn_to_write(shop: Shop, tmp_path: Path) -> None:
    """Django begins without a write lock; a block that read first would be refused after another connection's write."""
    writer = closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False))
    with writer as other, transaction.atomic():
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO users VALUES ('eve')")
        ending = threading.Timer(0.1, other.execute, ("COMMIT",))
        ending.start()
        job = shop.enqueue()
        ending.join()
        shop.add("ada")
    assert shop.there(job) == [True]
    assert shop.names() == ["ada", "eve"]


@pytest.mark.engine("sqlite")
@pytest.mark.spec("DJANGO-06")
@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_block_that_has_read_what_is_no_longer_true_is_told_so(shop: Shop, tmp_path: Path) -> None:
    writer = closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None))
    with writer as other, pytest.raises(EngineBusy), transaction.atomic():
        assert shop.names() == []
        other.execute("INSERT INTO users VALUES ('eve')")
        shop.enqueue()
    assert shop.statuses() == {}


@pytest.mark.spec("DJANGO-05")
@pytest.mark.parametrize("mode", [None, "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_transaction_mode_of_a_file_will_do(tmp_path: Path, mode: str | None) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", {})
    with django(on_file(tmp_path / "shop.db", transaction_mode=mode)):
        with transaction.atomic():
            job = shop.enqueue(b"\x00\xff", unique="k")
            assert connection.in_atomic_block
        assert shop.there(job) == [True]
        assert not connection.connection.in_transaction
    shop.jobs.run(shop.jobs.close())


# --- connections of handlers --------------------------------------------------------------------------------------


@pytest.mark.engine("postgres")
@pytest.mark.spec("DJANGO-07")
@pytest.mark.parametrize("kept", [0, None], ids=["closed after each job", "kept, with health checks"])
def test_no_job_dies_after_the_server_ended_all_connections(
    postgres_url: str, postgres_schema: str, kept: int | None
) -> None:
    """Handlers in threads have a connection each; plain middleware renews it where it is used."""
    name = f"shop {postgres_schema}"
    database = on_server(postgres_url, application_name=name)
    jobs = Stoker(f"{postgres_url}?schema={postgres_schema}", middleware=[fresh_connections])

    used: dict[int, Any] = {}

    @jobs.task(attempts=1)
    def ask() -> int:
        mine = connections["default"]
        if used.setdefault(id(mine), mine) is mine and not mine.allow_thread_sharing:
            mine.inc_thread_sharing()  # so that the test can close it when the thread is gone
        with mine.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            return int(cursor.fetchone()[0])

    async def serve() -> list[Status]:
        async with jobs, Worker(jobs, {"default": 4}):
            before = [await ask.enqueue() for _ in range(20)]
            for handle in before:
                await handle.result(60)
            with psycopg.connect(postgres_url, autocommit=True) as server:
                query = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = %s"
                server.execute(query, [name])
            after = [await ask.enqueue() for _ in range(40)]
            async with asyncio.timeout(60):
                while (await (await jobs.engine()).operator.census()).by_status()[Status.DONE] < 60 and not [
                    handle for handle in after if (await handle.refresh()).status is Status.DEAD
                ]:
                    await asyncio.sleep(0.01)
            return [(await handle.refresh()).status for handle in after]

    with django({**database, "CONN_MAX_AGE": kept, "CONN_HEALTH_CHECKS": True}):
        assert set(asyncio.run(serve())) == {Status.DONE}
        for one in used.values():
            one.close()

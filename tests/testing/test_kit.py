"""The test kit: natural tests of an app that was made at import, what the kit swaps, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from stoker import (
    Chunk,
    Fixed,
    Inbox,
    InvalidInput,
    Never,
    NotFound,
    Outbox,
    Rate,
    Reject,
    Snooze,
    StepFailed,
    Stoker,
    StokerError,
    Unique,
    Worker,
    current,
    patience,
)
from stoker.errors import EngineBusy
from stoker.model.retry import Backoff
from stoker.outbox import Message
from stoker.testing import TestKit, VirtualClock, assert_enqueued, refute_enqueued
from tests.harness.django_settings import django, on_file, on_server
from tests.harness.fixtures import batches

NEVER = "sqlite:////nonexistent-folder/never.db"
"""Where the app has its own store: whatever touches it fails."""

jobs = Stoker(NEVER, backoff=Fixed(60))
happened: list[Any] = []


@jobs.task(attempts=3)
async def send(to: str, subject: str = "Hello") -> str:
    happened.append(("sent", to, current().attempt))
    return f"{subject}, {to}"


@jobs.task(queue="reports")
def report(month: int) -> int:
    send.enqueue_sync(f"boss{month}")
    return month


@jobs.task(unique=lambda order: f"order-{order}")
async def charge(order: int) -> None:
    happened.append(("charged", order))


@jobs.task
async def total() -> None:
    happened.append("total")


@jobs.task(attempts=1)
async def refuse() -> None:
    raise Reject("the account is closed")


@jobs.task
async def later(queue: str) -> None:
    current().metadata["seen"] = queue
    raise Snooze(600)


@jobs.task(isolation="process")
def apart(n: int) -> None:
    happened.append((os.getpid(), n))


@jobs.task(chunk=Chunk(10, within=0.01))
async def index(items: list[int]) -> None:
    happened.append(("indexed", sorted(items)))


@jobs.cron("0 * * * *")
async def hourly() -> None:
    occurrence = current().occurrence
    assert occurrence is not None
    happened.append(("hour", occurrence.hour))


jobs.budget("mail", Rate(2, per=60))
orders: Outbox[dict[str, int]] = Outbox(jobs, stream="orders")
senders = Inbox(jobs, source="partner")


@orders.deliver
async def project(message: Message[dict[str, int]]) -> None:
    happened.append(("delivered", message.body["order"]))


def sign_up(name: str) -> None:
    """Stand for a view of an app: it enqueues, and knows nothing of tests."""
    send.using(queue="mail", delay=timedelta(hours=1)).enqueue_sync(name, subject="Welcome")


ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres")]


@pytest.fixture(autouse=True)
def forget() -> None:
    happened.clear()


@pytest.fixture(params=ENGINES)
def where(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else str(request.param)


@pytest.fixture
async def kit(where: str) -> AsyncIterator[TestKit]:
    async with TestKit(jobs, where) as kit:
        yield kit


@pytest.fixture
def plain_kit(where: str) -> Iterator[TestKit]:
    with TestKit(jobs, where) as kit:
        yield kit


# --- twelve natural tests -----------------------------------------------------------------------------------------


@pytest.mark.spec("KIT-02")
def test_signing_up_enqueues_a_welcome(plain_kit: TestKit) -> None:
    sign_up("ada")
    assert_enqueued(send, to="ada", subject="Welcome", queue="mail", delay=3600)
    refute_enqueued(send, to="bob")
    refute_enqueued(report)


@pytest.mark.spec("KIT-03")
def test_a_report_is_run_and_mails_the_boss(plain_kit: TestKit) -> None:
    report.enqueue_sync(7)
    assert plain_kit.drain_sync() == {"done": 2}
    assert happened == [("sent", "boss7", 1)]


@pytest.mark.spec("KIT-06")
async def test_a_mail_is_tried_again_after_a_minute(kit: TestKit) -> None:
    kit.fail_next(send, ConnectionError("the mail server is away"))
    job = await send.enqueue("ada")
    assert await kit.drain() == {"retrying": 1}
    assert await kit.advance(59) == {}
    assert await kit.advance(1) == {"done": 1}
    assert await job.result() == "Hello, ada"
    assert happened == [("sent", "ada", 2)]


@pytest.mark.spec("KIT-04")
async def test_a_schedule_fires_every_hour(kit: TestKit) -> None:
    assert await kit.advance(3 * 3600) == {"done": 3}
    assert happened == [("hour", 1), ("hour", 2), ("hour", 3)]


@pytest.mark.spec("KIT-04")
async def test_what_becomes_due_runs_in_its_order(kit: TestKit) -> None:
    await send.using(delay=5400).enqueue("late")
    await send.using(delay=1800).enqueue("early")
    await kit.advance(7200)
    assert happened == [("sent", "early", 1), ("hour", 1), ("sent", "late", 1), ("hour", 2)]
    assert [job.started_at for job in kit.enqueued(send, to="early")] == [datetime(2030, 1, 1, 0, 30, tzinfo=UTC)]


@pytest.mark.spec("KIT-02")
async def test_a_transaction_that_is_rolled_back_enqueues_nothing(kit: TestKit) -> None:
    with pytest.raises(ZeroDivisionError):
        async with (await jobs.engine()).transaction() as tx:
            await send.using(tx=tx).enqueue("ada")
            raise ZeroDivisionError
    refute_enqueued(send)
    assert await kit.drain() == {}


@pytest.mark.spec("KIT-02")
async def test_an_order_is_charged_once(kit: TestKit) -> None:
    await charge.enqueue(1)
    await charge.enqueue(1)
    assert_enqueued(charge, order=1, unique="order-1")
    assert_enqueued(charge, unique=Unique("order-1"))
    refute_enqueued(charge, unique=Unique("order-1", for_=3600))
    refute_enqueued(charge, unique=None)
    with pytest.raises(AssertionError, match=r"unique is Unique\(key='order-1'.*, not Unique\(.*mode='replace'"):
        assert_enqueued(charge, unique=Unique("order-1", mode="replace", longest=60))
    await charge.using(unique=False).enqueue(2)
    assert assert_enqueued(charge, unique=False) == assert_enqueued(charge, unique=None, order=2)
    await charge.using(unique=Unique("debounced", mode="replace", longest=60)).enqueue(3)
    assert_enqueued(charge, unique=Unique("debounced", mode="replace", longest=60))
    assert await kit.drain() == {"done": 3}
    assert happened == [("charged", 1), ("charged", 2), ("charged", 3)]


@pytest.mark.spec("KIT-03")
async def test_the_total_comes_after_all_members(kit: TestKit) -> None:
    group = await jobs.group([send.draft("ada"), send.draft("bob")], then=total.draft())
    await kit.drain()
    assert (await group.wait(timeout=30)).done == 2
    assert happened[-1] == "total"


@pytest.mark.spec("KIT-03")
async def test_a_message_is_delivered(kit: TestKit) -> None:
    await orders.append("ada", {"order": 7})
    await kit.drain()
    assert happened == [("delivered", 7)]


@pytest.mark.spec("KIT-03")
async def test_a_job_that_is_rejected_is_dead(kit: TestKit) -> None:
    await refuse.enqueue()
    assert await kit.drain() == {"dead": 1}
    [job] = kit.enqueued(refuse, status="dead")
    assert "the account is closed" in str(job.last_error)


@pytest.mark.spec("KIT-07")
def test_inline_runs_the_callbacks_of_groups() -> None:
    """However the group is closed: by its last member, by the end of its block, or because it has none."""
    with TestKit(jobs) as kit, kit.inline():
        callbacks = [send.using(delay=60).draft(name) for name in ("whole", "block", "empty")]
        jobs.group_sync([total.draft()], then=callbacks[0])
        with jobs.group(then=callbacks[1]) as group:
            group.add_sync(total.draft())
        jobs.group_sync([], then=callbacks[2])
        said = [jobs.handle(one.id).result_sync(0) for one in callbacks]
        assert said == ["Hello, whole", "Hello, block", "Hello, empty"]


@pytest.mark.spec("KIT-07")
def test_inline_runs_jobs_at_their_enqueue(plain_kit: TestKit) -> None:
    plain_kit.fail_next("send", ConnectionError)
    with plain_kit.inline():
        report.enqueue_sync(7)
        sign_up("ada")
    assert happened == [("sent", "boss7", 2), ("sent", "ada", 1)]
    with plain_kit.inline():
        with plain_kit.inline():
            send.enqueue_sync("eve")
        send.enqueue_sync("eve")
    assert happened[2:] == [("sent", "eve", 1)] * 2
    sign_up("bob")
    assert_enqueued(send, to="bob", status="pending")


@pytest.mark.spec("KIT-05")
async def test_one_handler_is_run_as_its_second_attempt(kit: TestKit) -> None:
    assert await kit.run(send, "ada", attempt=2) == "Hello, ada"
    assert happened == [("sent", "ada", 2)]
    refute_enqueued(send)


# --- the swap -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("KIT-01")
async def test_the_app_has_its_own_store_and_declarations_before_and_after(tmp_path: Path) -> None:
    app = Stoker(f"sqlite:///{tmp_path}/own.db")
    app.budget("mail", Rate(5))
    task = app.task(send.fn)
    middleware, timeline, declared = app.middleware, app.timeline, app.declarations
    async with app:
        before = await task.enqueue("before")
        async with TestKit(app) as kit:
            assert app.tasks["send"] is task
            assert (await app.engine()).name == "memory"
            with pytest.raises(NotFound):
                await before.refresh()
            inside = await task.enqueue("inside")
            app.budget("more", Rate(1))
            assert (await app.spend("mail")).granted
            assert await kit.drain() == {"done": 1}
            async with app.lock("x") as held:
                assert held
        assert (await app.engine()).name == "sqlite"
        assert (await before.refresh()).status == "pending"
        with pytest.raises(NotFound):
            await inside.refresh()
        assert (app.middleware, app.timeline, app.declarations) == (middleware, timeline, declared)
        assert "more" not in app.declarations.budgets


@pytest.mark.spec("KIT-01")
async def test_declared_schedules_and_budgets_are_in_the_fresh_store(kit: TestKit) -> None:
    [schedule] = await jobs.schedules()
    assert schedule.name == "hourly"
    assert [(await jobs.spend("mail")).granted for _ in range(3)] == [True, True, False]
    await kit.advance(60)
    assert (await jobs.spend("mail")).granted


@pytest.mark.spec("KIT-01")
async def test_a_kit_takes_an_app_that_was_closed_and_one_that_closes_inside() -> None:
    app = Stoker("memory://")
    task = app.task(send.fn)
    async with app:
        pass
    async with TestKit(app) as kit:
        async with app:  # as the lifespan of a web app does
            await task.enqueue("ada")
        assert await kit.drain() == {"done": 1}


@pytest.mark.spec("KIT-01")
async def test_a_plain_block_works_inside_a_loop_in_memory() -> None:
    with TestKit(jobs) as kit:
        await send.enqueue("ada")
        assert await kit.drain() == {"done": 1}
        assert_enqueued(send, to="ada", status="done")


@pytest.mark.spec("KIT-08")
def test_a_kit_of_a_real_store_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"mine")
    with TestKit(jobs, f"sqlite:///{tmp_path}/jobs.db?durability=process") as kit:
        send.enqueue_sync("ada")
        assert kit.drain_sync() == {"done": 1}
        assert len(list(tmp_path.iterdir())) == 2
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


@pytest.mark.spec("KIT-08")
@pytest.mark.engine("postgres")
def test_a_kit_on_postgres_drops_its_schema(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        sql = "select count(*) from pg_namespace where nspname like 'stoker_kit_%'"
        before = connection.execute(sql).fetchone()
        with TestKit(jobs, postgres_url):
            send.enqueue_sync("ada")
            asyncio.run(_enqueue_and_close())
            assert connection.execute(sql).fetchone() != before
        assert connection.execute(sql).fetchone() == before


async def _enqueue_and_close() -> None:
    async with jobs:
        await send.enqueue("bob")


@pytest.mark.spec("KIT-08")
@pytest.mark.engine("redis")
def test_a_kit_on_redis_removes_its_keys(redis_url: str) -> None:
    import redis

    app = Stoker(NEVER)
    task = app.task(send.fn)
    with redis.Redis.from_url(redis_url) as client:
        with TestKit(app, redis_url) as kit:
            task.enqueue_sync("ada")
            assert kit.drain_sync() == {"done": 1}
            assert list(batches(client, "*stoker_kit_*"))
        assert not list(batches(client, "*stoker_kit_*"))


# --- the verbs ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("KIT-02")
def test_the_message_shows_what_was_enqueued_and_how_it_differs() -> None:
    with TestKit(jobs):
        with pytest.raises(AssertionError, match="'send' was not enqueued with to='ada': the store has no job of it"):
            assert_enqueued(send, to="ada")
        sign_up("bob")
        with pytest.raises(AssertionError) as raised:
            assert_enqueued(send, to="ada", queue="mail", delay=60, metadata={"a": "b"}, status="done")
        lines = str(raised.value).splitlines()
        assert lines[0].startswith("task 'send' was not enqueued with to='ada', ")
        assert lines[1].startswith("  send(to='bob', subject='Welcome'), pending in queue 'mail', job ")
        assert lines[2:] == [
            "    status is 'pending', not 'done'",
            "    to is 'bob', not 'ada'",
            "    metadata is {'a': None}, not {'a': 'b'}",
            "    delay is 3600 s, not 60 s",
        ]
        with pytest.raises(AssertionError, match=r"was enqueued with to='bob', and should not have been:\n  send\("):
            refute_enqueued(send, to="bob")


@pytest.mark.spec("KIT-02")
async def test_a_parameter_that_is_called_like_an_option_stands_in_args() -> None:
    async with TestKit(jobs) as kit:
        await later.enqueue(queue="blue")
        assert_enqueued(later, args={"queue": "blue"}, queue="default")
        refute_enqueued(later, args={"queue": "red"})
        await kit.drain()
        [job] = kit.enqueued("later")
        assert job.arguments == {"queue": "blue"}
        assert job.metadata["exec_seen"] == "blue"
        assert (job.scheduled_at - kit.clock.moment()).total_seconds() == 600


@pytest.mark.spec("KIT-02")
async def test_enqueued_lists_jobs_in_their_order() -> None:
    async with TestKit(jobs) as kit:
        await jobs.enqueue_many(send.draft(f"n{n}") for n in range(1_200))
        assert [job.arguments["to"] for job in kit.enqueued(send)] == [f"n{n}" for n in range(1_200)]
        await kit.drain()
        assert len(kit.enqueued(send, status="done")) == 1_200


@pytest.mark.spec("KIT-03")
async def test_handlers_that_want_a_process_run_in_this_one() -> None:
    async with TestKit(jobs) as kit:
        await apart.enqueue(1)
        await kit.drain()
        await kit.run(apart, 2)
        assert happened == [(os.getpid(), 1), (os.getpid(), 2)]


@pytest.mark.spec("KIT-03")
async def test_a_chunk_is_run() -> None:
    async with TestKit(jobs) as kit:
        await jobs.enqueue_many(index.draft(n) for n in (1, 2))
        await kit.drain()
        await kit.run(index, 3)
        assert happened == [("indexed", [1, 2]), ("indexed", [3])]


@pytest.mark.spec("KIT-05")
async def test_a_run_has_middleware_lifespans_metadata_and_follow_ups() -> None:
    app = Stoker("memory://")
    seen: list[Any] = []

    @app.lifespan
    async def pool() -> AsyncIterator[str]:
        yield "open"
        seen.append("closed")

    @app.task
    async def follow(n: int) -> str:
        run = current()
        run.progress(0.5)
        run.log("half")
        run.follow_up(follow.draft(n + 1))
        return f"{pool.state} {run.metadata['order']} {run.is_retry} {run.queue}"

    @app.task
    def in_thread() -> None:
        current().transaction()

    async def around(call: Callable[[Any], Awaitable[Any]], run: Any) -> Any:
        seen.append(run.kind)
        return await call(run)

    app.middleware.append(around)
    async with TestKit(app) as kit:
        assert await kit.run(follow, 1, metadata={"order": "7"}) == "open 7 False default"
        assert seen == ["follow", "closed"]
        assert [job.arguments for job in kit.enqueued(follow)] == [{"n": 2}]
        with pytest.raises(KeyError):
            await kit.run(follow, 1)
        with pytest.raises(StokerError, match=r"Enqueue the job and call kit\.drain"):
            await kit.run(in_thread)
        kit.fail_next(follow, ValueError)
        with pytest.raises(ValueError):
            await kit.run(follow, 1)


@pytest.mark.spec("KIT-07")
async def test_inline_raises_the_last_error_to_the_caller() -> None:
    async with TestKit(jobs) as kit:
        with kit.inline():
            for n in range(3):
                kit.fail_next(send, ConnectionError(f"no {n}"))
            with pytest.raises(ConnectionError, match="no 2"):
                await send.enqueue("ada")
            assert [job.attempts for job in kit.enqueued(send, status="dead")] == [3]
            await later.enqueue("x")
            assert_enqueued(later, status="pending")
            group = await jobs.group([send.draft("bob")], then=total.draft())
            assert (await group.progress()).done == 1
        assert happened == [("sent", "bob", 1), "total"]
        with pytest.raises(StokerError, match="has ended"):
            async with (await jobs.engine()).transaction() as tx:
                with kit.inline():
                    await send.using(tx=tx).enqueue("eve")
                assert happened == [("sent", "bob", 1), "total"]
            await send.using(tx=tx).enqueue("eve")


@pytest.mark.spec("KIT-04")
async def test_messages_are_delivered_again_at_their_time() -> None:
    app = Stoker("memory://")
    outbox: Outbox[str] = Outbox(app, stream="news")
    tries: list[str] = []

    @outbox.deliver
    async def tell(message: Message[str]) -> None:
        tries.append(message.body)
        if len(tries) == 1:
            raise ConnectionError("away")

    async with TestKit(app) as kit:
        await outbox.append("a", "hello")
        await kit.drain()
        assert tries == ["hello"]
        await kit.advance(3600)
        assert tries == ["hello", "hello"]


@pytest.mark.spec("KIT-04")
async def test_advance_stops_at_the_end_of_a_pause_and_at_what_a_job_brings(where: str) -> None:
    """Also where a job resumes a queue, or enqueues what is due before other jobs that waited longer."""
    app = Stoker(NEVER)
    started: list[tuple[str, float]] = []

    def note(name: str) -> None:
        started.append((name, (kit.clock.moment() - began).total_seconds()))

    @app.task(queue="paused")
    async def mail(name: str) -> None:
        note(name)

    @app.task(queue="stopped")
    async def stopped() -> None:
        note("stopped")

    @app.task
    async def first() -> None:
        note("first")
        await second.using(delay=3).enqueue()

    @app.task
    async def second() -> None:
        note("second")
        await app.queue("stopped").resume()

    async with TestKit(app, where) as kit:
        began = kit.clock.moment()
        await app.queue("paused").pause(for_=600)
        await app.queue("stopped").pause()
        await mail.enqueue("mail")
        await mail.using(delay=700).enqueue("late")
        await stopped.enqueue()
        await first.using(delay=5).enqueue()
        assert await kit.advance(599) == {"done": 3}
        assert started == [("first", 5), ("second", 8), ("stopped", 8)]
        assert await kit.advance(101) == {"done": 2}
        assert started[3:] == [("mail", 600), ("late", 700)]


# --- transactions of the user's, in memory --------------------------------------------------------------------


@pytest.mark.spec("KIT-11")
async def test_jobs_of_an_async_session_wait_for_its_commit(tmp_path: Path) -> None:
    database = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/own.db")
    async with TestKit(jobs) as kit, AsyncSession(database) as session:
        async with session.begin():
            job = await send.using(tx=session).enqueue("ada")
            refute_enqueued(send)
            assert_enqueued(send, tx=session, to="ada")
            assert await kit.drain() == {}
        assert await kit.drain() == {"done": 1}
        assert await job.result() == "Hello, ada"
        with pytest.raises(ZeroDivisionError):
            async with session.begin():
                await send.using(tx=session).enqueue("bob")
                raise ZeroDivisionError
        refute_enqueued(send, tx=session, to="bob")
    await database.dispose()


@pytest.mark.spec("KIT-11")
def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(tmp_path: Path) -> None:
    database = create_engine(f"sqlite:///{tmp_path}/own.db")
    with TestKit(jobs) as kit, Session(database) as session:
        send.using(tx=session).enqueue_sync("first")
        with session.begin_nested() as savepoint:
            send.using(tx=session).enqueue_sync("second")
            savepoint.rollback()
        with session.begin_nested():
            send.using(tx=session).enqueue_sync("third")
        assert [job.arguments["to"] for job in kit.enqueued(send, tx=session)] == ["first", "third"]
        session.commit()
        assert [job.arguments["to"] for job in kit.enqueued(send)] == ["first", "third"]
        send.using(tx=session).enqueue_sync("closed")
        session.close()
        send.using(tx=session).enqueue_sync("by hand")
        kit.commit()
        session.rollback()
        assert [job.arguments["to"] for job in kit.enqueued(send, tx=session)] == ["first", "third", "by hand"]
    database.dispose()


@pytest.mark.spec("KIT-11")
def test_jobs_of_a_django_connection_wait_for_its_commit(tmp_path: Path) -> None:
    with django(default=on_file(tmp_path / "own.db")), TestKit(jobs) as kit:
        from django.db import connection, transaction

        with transaction.atomic():
            send.using(tx=connection).enqueue_sync("first")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                send.using(tx=connection).enqueue_sync("second")
                raise ZeroDivisionError
            assert [job.arguments["to"] for job in kit.enqueued(send, tx=connection)] == ["first"]
            refute_enqueued(send)
        assert_enqueued(send, to="first")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            send.using(tx=connection).enqueue_sync("third")
            kit.commit()
            raise ZeroDivisionError
        assert [job.arguments["to"] for job in kit.enqueued(send)] == ["first", "third"]
        with pytest.raises(StokerError, match=r"inside `with transaction\.atomic\(\):`"):
            send.using(tx=connection).enqueue_sync("fourth")


@pytest.mark.spec("KIT-11")
def test_other_handles_are_refused(tmp_path: Path) -> None:
    said = r"sqlite3\.Connection.*use TestKit\(jobs, url\)\. Nothing was stored"
    with TestKit(jobs) as kit, closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        for call in (
            lambda: send.using(tx=connection).enqueue_sync("ada"),
            lambda: orders.append_sync("ada", {"order": 1}, tx=connection),
            lambda: senders.receive_sync("m1", tx=connection),
            lambda: kit.enqueued(send, tx=connection),
        ):
            with pytest.raises(StokerError, match=said):
                call()
        kit.commit()
        assert kit.drain_sync() == {}
        assert happened == []
    with TestKit(jobs, "sqlite") as kit:
        with pytest.raises(StokerError, match=r"kit\.commit\(\) is for a TestKit in memory"):
            kit.commit()
        with pytest.raises(InvalidInput, match=r"tx: cannot be a builtins\.object; give your session or connection"):
            kit.enqueued(send, tx=object())


@pytest.mark.spec("KIT-12")
def test_messages_and_received_ids_of_a_session_wait_for_its_commit(tmp_path: Path) -> None:
    database = create_engine(f"sqlite:///{tmp_path}/own.db")
    with TestKit(jobs) as kit, Session(database) as session:
        assert senders.receive_sync("m1", tx=session)
        assert not senders.receive_sync("m1", tx=session)
        orders.append_sync("ada", {"order": 1}, tx=session)
        with session.begin_nested() as savepoint:
            orders.append_sync("ada", {"order": 2}, tx=session)
            assert senders.receive_sync("m2", tx=session)
            savepoint.rollback()
        with session.begin_nested():
            orders.append_many_sync([orders.entry("ada", {"order": 3})], tx=session)
        kit.drain_sync()
        assert happened == []
        session.commit()
        kit.drain_sync()
        assert happened == [("delivered", 1), ("delivered", 3)]
        assert not senders.receive_sync("m1", tx=session)
        assert senders.receive_sync("m2", tx=session)
        orders.append_sync("ada", {"order": 4}, tx=session)
        session.rollback()
        assert senders.receive_sync("m2", tx=session)
        orders.append_sync("ada", {"order": 5}, tx=session)
        kit.commit()
        session.rollback()
        kit.drain_sync()
        assert happened[2:] == [("delivered", 5)]
        assert not senders.receive_sync("m2", tx=session)
        orders.append_sync("ada", {"order": 6}, tx=session)
    session.commit()  # the kit is over: there is nowhere to store it
    database.dispose()


@pytest.mark.spec("KIT-12")
def test_messages_of_a_django_connection_wait_for_its_commit(tmp_path: Path) -> None:
    with django(default=on_file(tmp_path / "own.db")), TestKit(jobs) as kit:
        from django.db import connection, transaction

        with transaction.atomic():
            orders.append_sync("ada", {"order": 1}, tx=connection)
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                orders.append_sync("ada", {"order": 2}, tx=connection)
                assert senders.receive_sync("m1", tx=connection)
                raise ZeroDivisionError
            with transaction.atomic():
                assert senders.receive_sync("m1", tx=connection)
                orders.append_sync("ada", {"order": 3}, tx=connection)
            kit.drain_sync()
            assert happened == []
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                orders.append_sync("ada", {"order": 4}, tx=connection)
                raise ZeroDivisionError
        kit.drain_sync()
        assert happened == [("delivered", 1), ("delivered", 3)]
        assert kit.enqueued(send, tx=connection) == []
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert not senders.receive_sync("m1", tx=connection)
            orders.append_sync("ada", {"order": 5}, tx=connection)
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            orders.append_sync("ada", {"order": 6}, tx=connection)
            kit.commit()
            raise ZeroDivisionError
        kit.drain_sync()
        assert happened[2:] == [("delivered", 6)]


@pytest.mark.spec("KIT-11")
async def test_what_stands_aside_obeys_keys_and_groups(tmp_path: Path) -> None:
    """The receipts in the transaction are those that a real store gives."""
    database = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/own.db")
    async with TestKit(jobs) as kit, AsyncSession(database) as session:
        await charge.enqueue(1)
        assert [(await charge.using(tx=session).enqueue(n)).stored for n in (1, 2, 2)] == [
            "existing",
            "inserted",
            "existing",
        ]
        await jobs.group([send.draft("ada"), send.draft("bob")], then=total.draft(), tx=session)
        assert len(kit.enqueued(charge, tx=session)) == 2
        await session.commit()
        assert await kit.drain() == {"done": 5}
        assert happened[-1] == "total"
        await charge.using(tx=session).enqueue(3)
        await charge.enqueue(3)  # a real store would wait here until the session ends
        with pytest.raises(EngineBusy, match="another call changed the same jobs or keys"):
            await session.commit()
    await database.dispose()


@pytest.mark.spec("KIT-11")
async def test_a_block_of_a_handler_joins_its_session_in_memory(tmp_path: Path) -> None:
    """Rows, follow-ups, messages and the end of the job are one commit here too."""
    app = Stoker(NEVER, backoff=Fixed(60))
    outbox: Outbox[int] = Outbox(app, stream="paid")
    database = create_engine(f"sqlite:///{tmp_path}/own.db")
    factory = sessionmaker(database)
    with factory.begin() as session:
        session.execute(text("create table paid (n int)"))

    @app.task(attempts=2)
    def pay(n: int) -> None:
        with current().transaction(factory.begin) as session:
            session.execute(text("insert into paid values (:n)"), {"n": n})
            outbox.append_sync("ada", n)
            tell.enqueue_sync(n)
            if current().attempt == 1:
                raise ConnectionError("away")

    @app.task
    async def tell(n: int) -> None:
        happened.append(("told", n))

    @outbox.deliver
    async def ship(message: Message[int]) -> None:
        happened.append(("shipped", message.body))

    async with TestKit(app) as kit:
        await pay.enqueue(7)
        assert await kit.drain() == {"retrying": 1}
        assert (happened, kit.enqueued(tell)) == ([], [])
        assert await kit.advance(60) == {"done": 2}
        assert sorted(happened) == [("shipped", 7), ("told", 7)]
    with factory() as session:
        assert session.execute(text("select n from paid")).all() == [(7,)]
    database.dispose()


# --- transactions of the user's, on a real store ------------------------------------------------------------------


def _sqlite3(kit: TestKit) -> AbstractContextManager[Any]:
    return closing(sqlite3.connect(kit.where))


def _psycopg(kit: TestKit) -> AbstractContextManager[Any]:
    return psycopg.connect(kit._where)


@contextmanager
def _session(kit: TestKit) -> Iterator[Any]:
    url = make_url(f"sqlite:///{kit.where}")
    if kit._where != "sqlite":
        url = make_url(kit._where).set(drivername="postgresql+psycopg")
    database = create_engine(url, poolclass=NullPool)
    with Session(database) as session:
        yield session


@contextmanager
def _django(kit: TestKit) -> Iterator[Any]:
    with django(default=on_file(Path(kit.where)) if kit._where == "sqlite" else on_server(kit._where)):
        from django.db import connection, transaction

        transaction.set_autocommit(False)
        yield connection


HANDLES = [
    pytest.param(engine, handle, id=f"{engine}-{handle.__name__}", marks=pytest.mark.engine(engine))
    for engine, handle in (
        ("sqlite", _sqlite3),
        ("sqlite", _session),
        ("sqlite", _django),
        ("postgres", _psycopg),
        ("postgres", _session),
        ("postgres", _django),
    )
]


@pytest.mark.spec("KIT-13")
@pytest.mark.parametrize(("engine", "opened"), HANDLES)
def test_a_rolled_back_transaction_on_a_real_store_shows_its_jobs(
    engine: str, opened: Callable[[TestKit], AbstractContextManager[Any]], request: pytest.FixtureRequest
) -> None:
    where = engine if engine == "sqlite" else str(request.getfixturevalue("postgres_url"))
    with TestKit(jobs, where) as kit:
        send.enqueue_sync("stored")
        with opened(kit) as handle:
            send.using(tx=handle, queue="mail", delay=60).enqueue_sync("ada", subject="é")
            assert_enqueued(send, tx=handle, to="ada", subject="é", queue="mail", delay=60)
            assert [job.arguments["to"] for job in kit.enqueued(send, tx=handle)] == ["stored", "ada"]
            refute_enqueued(send, to="ada")
            with pytest.raises(AssertionError, match=r"send\(to='ada', subject='é'\), pending in queue 'mail'"):
                assert_enqueued(send, tx=handle, to="eve")
            handle.rollback()
            refute_enqueued(send, tx=handle, to="ada")
            handle.rollback()
        assert kit.drain_sync() == {"done": 1}


@pytest.mark.spec("KIT-13")
@pytest.mark.parametrize("engine", ENGINES)
async def test_an_async_session_is_read_inside_its_own_run_sync(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = engine if engine != "postgres" else str(request.getfixturevalue("postgres_url"))
    async with TestKit(jobs, where) as kit:
        url = make_url(f"sqlite+aiosqlite:///{kit.where if engine == 'sqlite' else tmp_path / 'own.db'}")
        if engine == "postgres":
            url = make_url(where).set(drivername="postgresql+asyncpg")
        database = create_async_engine(url, poolclass=NullPool)
        async with AsyncSession(database) as session:
            await send.using(tx=session).enqueue("ada")
            [job] = await session.run_sync(lambda inside: kit.enqueued(send, tx=inside))
            assert job.arguments["to"] == "ada"
            if engine != "memory":
                with pytest.raises(
                    InvalidInput, match=r"AsyncSession, which must be awaited, .* session\.run_sync\(la"
                ):
                    kit.enqueued(send, tx=session)
            await session.rollback()
        refute_enqueued(send)


@pytest.mark.spec("KIT-13")
async def test_handles_that_must_be_awaited_are_refused_before_they_are_used() -> None:
    async with TestKit(jobs, "sqlite") as kit, aiosqlite.connect(kit.where) as connection:
        await send.using(tx=connection).enqueue("ada")
        with pytest.raises(
            InvalidInput, match=r"aiosqlite\..*Connection, which must be awaited, .* a synchronous handle"
        ):
            kit.enqueued(send, tx=connection)
        await connection.commit()
        assert_enqueued(send, to="ada")
    with pytest.raises(StokerError, match=r"kit.where works inside the block"):
        assert kit.where


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("KIT-09")
def test_an_app_has_one_kit_at_a_time() -> None:
    with TestKit(jobs) as kit:
        with pytest.raises(StokerError, match=r"<TestKit of <Stoker .* tasks> on memory> is open on this app already"):
            TestKit(jobs, "sqlite").__enter__()
        with pytest.raises(StokerError, match="this TestKit is open already: an app has one TestKit at a time"):
            kit.__enter__()
        with TestKit(Stoker("memory://")):
            send.enqueue_sync("ada")
        assert kit.drain_sync() == {"done": 1}
    with kit:
        refute_enqueued(send)


@pytest.mark.spec("KIT-09")
async def test_verbs_outside_of_the_block_are_refused() -> None:
    kit = TestKit(jobs)
    said = r"works inside the block of the kit only: the app has its own store now\. Write `with TestKit\(jobs\) as kit"
    for verb in (kit.drain, lambda: kit.advance(1), lambda: kit.run(send, "ada")):
        with pytest.raises(StokerError, match=said):
            await verb()
    with pytest.raises(StokerError, match=said):
        kit.enqueued(send)
    with pytest.raises(StokerError, match=said):
        kit.fail_next(send, ValueError())
    with pytest.raises(StokerError, match=said), kit.inline():
        pass


@pytest.mark.spec("KIT-05")
@pytest.mark.parametrize("backoff", [None, Fixed(3600), Fixed(1, limit=2), Never()])
async def test_a_step_is_tried_again_at_once_where_no_clock_moves(backoff: Backoff | None) -> None:
    app, tries = Stoker(NEVER), list[str]()

    def flaky() -> int:
        tries.append("again")
        if len(tries) < 3:
            raise ConnectionError("away")
        return len(tries)

    @app.task
    async def asynchronous() -> int:
        return await current().step("flaky", flaky, attempts=5, backoff=backoff)

    @app.task
    def plain() -> int:
        return current().step_sync("flaky", flaky, attempts=5, backoff=backoff)

    async with TestKit(app) as kit:
        for task in (asynchronous, plain):
            tries.clear()
            if isinstance(backoff, Never):
                with pytest.raises(StepFailed, match="away"):
                    await kit.run(task)
            else:
                assert await kit.run(task) == 3


@pytest.mark.spec("KIT-20")
async def test_waiting_where_nothing_runs_says_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "TRUSTED", 0.0)
    said = r"nothing runs by itself in a TestKit; call kit\.drain\(\), or kit\.advance\(seconds\)"
    async with TestKit(jobs) as kit:
        job, group = await send.enqueue("ada"), await jobs.group([send.draft("bob")])
        for limit in (None, 0, 3600):
            with pytest.raises(TimeoutError, match=rf"^job {job.id} has not ended: {said}"):
                await job.result(limit)
            for wait in (group.wait, group.results):
                with pytest.raises(TimeoutError, match=rf"^group {group.id} is not closed \(.* finished\): {said}"):
                    await wait(limit)
        with pytest.raises(TimeoutError, match=said):
            _ = [one async for one in group.as_completed()]
        assert (await asyncio.gather(kit.drain(), job.result(), group.results()))[1:] == [
            "Hello, ada",
            ["Hello, bob"],
        ]
        later = await send.using(delay=3600).enqueue("cas")
        assert (await asyncio.gather(kit.advance(3600), later.result()))[1] == "Hello, cas"
        with pytest.raises(TimeoutError, match=said):
            await (await send.enqueue("eve")).result()
        async with Worker(jobs):
            assert await (await send.enqueue("dan")).result() == "Hello, dan"
    assert jobs.unattended is None


@pytest.mark.spec("KIT-20")
def test_a_plain_test_that_forgot_to_drain_is_told_so() -> None:
    """Within a second: somebody may be about to start a worker."""
    with TestKit(jobs), pytest.raises(TimeoutError, match=r"call kit\.drain"):
        send.enqueue_sync("ada").result_sync()


@pytest.mark.spec("KIT-09")
async def test_a_real_store_inside_a_loop_needs_an_async_block() -> None:
    with pytest.raises(StokerError, match=r"Write `async with TestKit\(jobs, ...\)` here"):
        TestKit(jobs, "sqlite").__enter__()
    async with TestKit(jobs) as kit:
        with pytest.raises(StokerError, match="use `await drain"):
            kit.drain_sync()


@pytest.mark.spec("KIT-09")
def test_bad_input_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_TEST_POSTGRES_URL", raising=False)
    other = Stoker("memory://").task(send.fn)
    with TestKit(jobs) as kit:
        for call, said in (
            (lambda: assert_enqueued(send, t0="ada"), "t0: is no parameter of task 'send' and no option of a job; its"),
            (lambda: refute_enqueued(send, args={"t0": 1}), "its parameters are to, subject, options are at, attempts"),
            (lambda: refute_enqueued(total, x=1), "it has no parameters"),
            (lambda: assert_enqueued(send, args=["ada"]), "args: must map names of parameters to values"),  # type: ignore[arg-type]
            (lambda: assert_enqueued(send, status="ready"), "status: must be one of "),
            (lambda: assert_enqueued(send, limit=1), "limit: cannot be compared"),
            (lambda: assert_enqueued(send, unique=True), "unique: must be a key here"),
            (lambda: assert_enqueued(charge, unique=str), "unique: must be a key here"),
            (lambda: assert_enqueued(charge, unique=Unique()), "unique: must be a key here"),
            (lambda: assert_enqueued(send, delay="soon"), "delay: "),
            (lambda: assert_enqueued("send"), "task: must be a task, whose app says where to look"),  # type: ignore[arg-type]
            (lambda: kit.enqueued(other), "task: must be a task of the app that this kit was made for"),
            (lambda: kit.fail_next(other, ValueError()), "task: must be a task of the app that this kit was made for"),
            (lambda: kit.fail_next(send, "no"), "error: must be an exception"),  # type: ignore[arg-type]
            (lambda: kit.run_sync(other, "ada"), "task: must be a task of the app that this kit was made for"),
            (lambda: kit.run_sync(send, "ada", attempt=0), "attempt: must be a whole number of at least 1"),
            (lambda: kit.advance_sync(-1), "advance: "),
            (
                lambda: kit.drain_sync(slots=0),
                "slots: must be how many jobs of a queue run at a time, ",
            ),
            (lambda: kit.advance_sync(1, slots="x"), "slots: must be how many"),  # type: ignore[arg-type]
            (lambda: kit.fail_next("sned", ValueError()), "task: must be a task of the app that this kit was made"),
        ):
            with pytest.raises(InvalidInput) as refused:
                call()
            assert str(refused.value).startswith(said) or said in str(refused.value), said
            assert "Nothing was stored" not in str(refused.value)
    for call, said in (
        (lambda: TestKit("jobs"), "jobs: must be the Stoker object"),  # type: ignore[arg-type]
        (lambda: TestKit(jobs, 7).__enter__(), 'store: must be "memory", "sqlite", or the URL'),  # type: ignore[arg-type]
        (lambda: TestKit(jobs, "postgres").__enter__(), "store: needs a server: set $STOKER_TEST_POSTGRES_URL"),
        (lambda: TestKit(jobs, "mysql").__enter__(), 'store: must be "memory", "sqlite", or the URL'),
        (
            lambda: TestKit(jobs, "sqlite:////no/such/x.db").__enter__(),
            "store: must be in a folder that exists",
        ),
        (lambda: TestKit(jobs, "mysql://x").__enter__(), "url: "),
    ):
        with pytest.raises(InvalidInput) as refused:
            call()
        assert str(refused.value).startswith(said), said


def test_a_kit_takes_a_clock() -> None:
    clock = VirtualClock(datetime(2031, 5, 1, tzinfo=UTC))
    with TestKit(jobs, clock=clock) as kit:
        assert kit.clock is clock
        send.enqueue_sync("ada")
        assert assert_enqueued(send).created_at == clock.moment()


# --- the plugin of pytest -----------------------------------------------------------------------------------------

APP = """
from stoker import Stoker
jobs = Stoker("sqlite:////nonexistent-folder/never.db")
@jobs.task
async def send(to: str) -> None: ...
"""
TESTS = """
import pytest
from shop import send
from stoker.testing import TestKit, assert_enqueued

def test_plain(stoker_kit):
    send.enqueue_sync("ada")
    assert_enqueued(send, to="ada")

@pytest.mark.stoker(engines=["memory", "sqlite", "postgres"])
async def test_each(stoker_kit: TestKit) -> None:
    await send.enqueue("ada")
    assert await stoker_kit.drain() == {"done": 1}
"""


ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "stoker_pytest,pytest_asyncio.plugin"}
"""The plugins of this project's own tests take seconds to start."""


def pytest_in(folder: Path, *args: str, **environ: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-o", "asyncio_mode=auto"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function"]
    done = subprocess.run(
        [*command, "-v", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def project_folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


@pytest.mark.spec("KIT-10")
@pytest.mark.engine("postgres")
def test_the_fixture_runs_a_test_on_each_store_that_its_mark_names(project_folder: Path, postgres_url: str) -> None:
    (project_folder / "pytest.ini").write_text("[pytest]\nstoker_app = shop:jobs\n", encoding="utf-8")
    said = pytest_in(project_folder, "--strict-markers", STOKER_TEST_POSTGRES_URL=postgres_url, **ALONE)
    assert "4 passed" in said, said
    for name in ("memory", "sqlite", "postgres"):
        assert f"test_each[{name}] PASSED" in said
    assert "4 passed" in pytest_in(
        project_folder, "--stoker-app=shop", "-o", "stoker_app=", STOKER_TEST_POSTGRES_URL=postgres_url
    )


@pytest.mark.spec("KIT-10")
def test_the_fixture_without_an_app_and_the_mark_without_the_fixture_say_what_to_do(project_folder: Path) -> None:
    assert "write `stoker_app = shop.jobs:jobs` into the ini of pytest" in pytest_in(
        project_folder, "-k", "plain", **ALONE
    )
    marked = "import pytest\n@pytest.mark.stoker(engines=['memory'])\ndef test_a(): ...\n"
    (project_folder / "test_shop.py").write_text(marked, encoding="utf-8")
    assert "the test takes no stoker_kit, so there is nothing to run on ['memory']" in pytest_in(
        project_folder, **ALONE
    )
    (project_folder / "test_shop.py").write_text(marked.replace("engines=['memory']", "'memory'"), encoding="utf-8")
    assert 'write it as @pytest.mark.stoker(engines=["memory", "sqlite"])' in pytest_in(project_folder, **ALONE)


@pytest.mark.spec("KIT-10")
def test_the_plugin_imports_nothing_of_stoker_until_a_test_asks(tmp_path: Path) -> None:
    body = "import sys\ndef test_it():\n    assert 'stoker_pytest' in sys.modules and 'stoker' not in sys.modules\n"
    (tmp_path / "test_light.py").write_text(body, encoding="utf-8")
    said = pytest_in(tmp_path)
    assert "1 passed" in said, said


BARE = """
import sys
sys.modules |= dict.fromkeys(("pytest", "asyncpg", "redis", "sqlalchemy", "django", "starlette", "jinja2", "uvicorn"))
from stoker import Stoker
from stoker.testing import TestKit, assert_enqueued
jobs = Stoker("memory://")
@jobs.task
async def send(to: str) -> None: ...
for store in ("memory", "sqlite"):
    with TestKit(jobs, store) as kit:
        send.enqueue_sync("ada")
        assert kit.drain_sync() == {"done": 1}
        assert_enqueued(send, to="ada", status="done")
"""


@pytest.mark.spec("KIT-01")
def test_the_kit_needs_neither_pytest_nor_an_extra() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", BARE], check=True, timeout=120)

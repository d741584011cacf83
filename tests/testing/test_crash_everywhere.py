"""Faults for the user's own handlers: a worker that dies at every point, late jobs, lost answers, other orders."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from stoker import (
    Chunk,
    Fixed,
    Inbox,
    InvalidInput,
    Limit,
    Outbox,
    Reject,
    Snooze,
    Stoker,
    StokerError,
    current,
)
from stoker.errors import EngineUnavailable
from stoker.testing import CrashRun, TestKit
from tests.harness.django_settings import django, on_file
from tests.testing.test_kit import ALONE, NEVER, pytest_in

jobs = Stoker(NEVER, backoff=Fixed(60))
charged: list[str] = []
by_key: dict[str, int] = {}
mailed: list[str] = []
orders: Outbox[int] = Outbox(jobs, stream="orders")
partner = Inbox(jobs, source="partner")


@pytest.fixture(autouse=True)
def clean(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL, "stoker")
    reset()
    yield
    reset()


def reset() -> None:
    charged.clear()
    by_key.clear()
    mailed.clear()


@jobs.task(queue="mail")
async def mail(to: str) -> None:
    mailed.append(to)


# --- handlers that are wrong in the classic ways, and right ones ------------------------------------------------------


@jobs.task
async def charge_without_key(order: int) -> str:
    """Call a payment service, and let a later crash call it once more."""
    charged.append(f"order {order}")
    await mail.enqueue("ada")
    return "paid"


@jobs.task
async def charge_with_key(order: int) -> str:
    by_key[f"order {order}"] = order
    current().follow_up(mail.draft("ada"))
    return "paid"


@jobs.task
async def mail_after_commit() -> None:
    """Send when the block is committed, which a crash in between prevents for ever."""
    async with current().transaction():
        await mail.enqueue("ada")
    mailed.append("by hand")


@jobs.task
async def mail_in_block() -> str:
    async with current().transaction() as tx:
        await mail.enqueue("ada")
        await orders.append("ada", 7)
        assert await partner.receive("message 1")
        tx.result("mailed")
    return "ignored"


@jobs.task
def charge_in_thread(order: int) -> None:
    charged.append(f"order {order}")
    mail.enqueue_sync("ada")


@jobs.task
def block_in_thread() -> None:
    with current().transaction():
        mail.enqueue_sync("ada")


async def runs_of(kit: TestKit, task: object, *args: object) -> list[CrashRun]:
    return [run async for run in kit.crash_everywhere(task, *args, reset=reset)]  # type: ignore[arg-type]


@pytest.mark.spec("KIT-14")
async def test_a_charge_without_a_key_is_caught_and_one_with_a_key_passes() -> None:
    async with TestKit(jobs) as kit:
        twice = []
        async for run in kit.crash_everywhere(charge_without_key, 7, reset=reset):
            assert run.status == "done" and run.result == "paid"
            if len(charged) != 1:
                twice.append(run.point)
        assert twice == ["before mail was enqueued", "after mail was enqueued", "before the settlement"]
        async for run in kit.crash_everywhere(charge_with_key, 7, reset=reset):
            assert (len(by_key), mailed, run.result) == (1, ["ada"], "paid"), run


@pytest.mark.spec("KIT-14")
async def test_a_run_says_where_the_worker_died_and_what_came_of_it() -> None:
    async with TestKit(jobs) as kit:
        first, *others = await runs_of(kit, charge_without_key, 7)
    assert first.point is None and first.attempts == 1
    assert str(first) == (
        "no worker died; charge_without_key(order=7) is done after 1 attempt\n  enqueued: mail(to='ada')"
    )
    assert [run.point for run in others] == [
        "before the start",
        "before mail was enqueued",
        "after mail was enqueued",
        "before the settlement",
    ]
    assert all(run.attempts == 2 and run.exception is None for run in others)
    assert [len(run.enqueued) for run in others] == [1, 1, 2, 2]
    assert str(others[2]) == (
        "the worker died after mail was enqueued; charge_without_key(order=7) is done after 2 attempts\n"
        "  enqueued: mail(to='ada'), mail(to='ada')"
    )
    assert others[2].enqueued[1].arguments == {"to": "ada"}
    assert repr(first) == f"<CrashRun: {first}>"


@pytest.mark.spec("KIT-14")
async def test_what_stands_behind_a_commit_is_lost_and_what_is_inside_is_not() -> None:
    async with TestKit(jobs) as kit:
        lost = [run.point async for run in kit.crash_everywhere(mail_after_commit, reset=reset) if len(mailed) != 2]
        assert lost == ["after the commit of its block"]
        points = []
        async for run in kit.crash_everywhere(mail_in_block, reset=reset):
            points.append(run.point)
            assert (mailed, run.appended, run.result) == (["ada"], {"orders": 1}, "mailed"), run
        assert points == [
            None,
            "before the start",
            "before mail was enqueued",
            "after mail was enqueued",
            "before a message was appended to orders",
            "after a message was appended to orders",
            "before a message was received from partner",
            "after a message was received from partner",
            "before the commit of its block",
            "after the commit of its block",
        ]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(text("create table paid (n int)"))
    yield sessionmaker(engine)
    engine.dispose()


def rows(database: sessionmaker[Session]) -> int:
    with database() as session:
        return int(session.execute(text("select count(*) from paid")).scalar_one())


@pytest.mark.spec("KIT-14")
def test_an_enqueue_outside_of_the_users_transaction_is_caught(database: sessionmaker[Session]) -> None:
    app = Stoker(NEVER)

    @app.task
    def send() -> None: ...

    @app.task
    def without(n: int) -> None:
        with database.begin() as session:
            session.execute(text("insert into paid values (1)"))
            send.enqueue_sync()

    @app.task
    def within(n: int) -> None:
        with current().transaction(database.begin) as session:
            session.execute(text("insert into paid values (1)"))
            send.enqueue_sync()

    def empty() -> None:
        with database.begin() as session:
            session.execute(text("delete from paid"))

    with TestKit(app) as kit:
        found = {
            run.point: (rows(database), len(run.enqueued)) for run in kit.crash_everywhere_sync(without, 1, reset=empty)
        }
        assert found == {
            None: (1, 1),
            "before the start": (1, 1),
            "before send was enqueued": (1, 1),
            "after send was enqueued": (1, 2),  # a mail for an order that was rolled back
            "before the settlement": (2, 2),  # the order is paid twice
        }
        right = [
            (run.point, rows(database), len(run.enqueued)) for run in kit.crash_everywhere_sync(within, 1, reset=empty)
        ]
        assert {(n, sent) for _, n, sent in right} == {(1, 1)}
        assert right[-1][0] == "after the commit of its block"


@pytest.mark.spec("KIT-14")
def test_plain_handlers_and_plain_tests_have_the_same_points() -> None:
    with TestKit(jobs) as kit:
        points = [run.point for run in kit.crash_everywhere_sync(charge_in_thread, 7, reset=reset)]
        assert points == [
            None,
            "before the start",
            "before mail was enqueued",
            "after mail was enqueued",
            "before the settlement",
        ]
        for run in kit.crash_everywhere_sync(block_in_thread, reset=reset):
            assert mailed == ["ada"], run
        assert run.point == "after the commit of its block"


@pytest.mark.spec("KIT-14")
async def test_on_sqlite_a_block_with_sql_of_its_own_is_run_at_every_point() -> None:
    app = Stoker(NEVER)

    @app.task
    async def pay(n: int) -> None:
        async with current().transaction() as tx:
            await tx.execute("insert into paid values (?)", n)
            await note.enqueue()

    @app.task(queue="notes")
    async def note() -> None: ...

    def fresh() -> None:
        with closing(sqlite3.connect(kit.where)) as connection:
            connection.execute("create table paid (n int)")

    async with TestKit(app, "sqlite") as kit:
        points = 0
        async for run in kit.crash_everywhere(pay, 7, reset=fresh):
            with closing(sqlite3.connect(kit.where)) as connection:
                assert connection.execute("select n from paid").fetchall() == [(7,)], run
            assert len(run.enqueued) == 1, run
            points += 1
        assert points == 6


# --- durable jobs -----------------------------------------------------------------------------------------------------


def pay_provider(order: int) -> str:
    charged.append(f"order {order}")
    return f"receipt {order}"


def pay_provider_by_key(order: int, key: str) -> str:
    by_key.setdefault(key, order)
    return f"receipt {order}"


@jobs.task
async def label(order: int) -> str:
    return f"label {order}"


@jobs.task
async def durable(order: int) -> str:
    run = current()
    receipt = await run.step("charge", pay_provider_by_key, order, f"order {order}")
    name = await run.wait("approval", str, timeout=3600)
    await run.sleep(14 * 86400)
    return f"{receipt}, {name}, {await run.call(label.draft(order))}"


@jobs.task
def durable_in_thread(order: int) -> str:
    run = current()
    receipt: str = run.step_sync("charge", pay_provider, order)
    run.sleep_sync(3600)
    return receipt


@pytest.mark.spec("KIT-19")
async def test_a_durable_job_dies_around_each_step_and_before_each_suspension() -> None:
    async with TestKit(jobs) as kit:
        points = []
        async for run in kit.crash_everywhere(
            durable, 7, reset=reset, answer=lambda job: job.signal("approval", "ada")
        ):
            points.append(run.point)
            assert (run.result, len(by_key)) == ("receipt 7, ada, label 7", 1), run
            assert [job.kind for job in run.enqueued] == ["label"], run
    assert points == [
        None,
        "before the start",
        "before step charge was stored",
        "after step charge was stored",
        "before it was suspended",
        "before the start, time 2",
        "before it was suspended, time 2",
        "before the start, time 3",
        "before it was suspended, time 3",
        "before the start, time 4",
        "before the settlement",
    ]


@pytest.mark.spec("KIT-19")
def test_a_step_without_a_key_is_caught_before_it_is_stored_and_nowhere_else() -> None:
    with TestKit(jobs) as kit:
        twice = [run.point for run in kit.crash_everywhere_sync(durable_in_thread, 7, reset=reset) if len(charged) != 1]
        assert twice == ["before step charge was stored"]


@pytest.mark.spec("KIT-19")
async def test_a_job_that_waits_for_a_signal_that_nobody_sends_is_shown_waiting() -> None:
    @jobs.task(name="waits")
    async def waits() -> None:
        await current().wait("never")

    async with TestKit(jobs) as kit:
        runs = [run async for run in kit.crash_everywhere(waits)]
    assert {run.status for run in runs} == {"pending"} and [run.point for run in runs] == [
        None,
        "before the start",
        "before it was suspended",
    ]


@pytest.mark.spec("KIT-19")
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_step_in_a_transaction_is_stored_with_its_writes_or_not_at_all(where: str) -> None:
    app = Stoker(NEVER)

    @app.task
    async def send() -> None: ...

    async def write(tx: object) -> str:
        await send.enqueue()
        return "written"

    @app.task
    async def pay() -> str:
        return str(await current().step("write", write, tx=True))

    async with TestKit(app, where) as kit:
        points = []
        async for run in kit.crash_everywhere(pay):
            points.append(run.point)
            assert (len(run.enqueued), run.result) == (1, "written"), run
    assert points[-3:] == ["before step write was stored", "after step write was stored", "before the settlement"]


# --- what a run does ------------------------------------------------------------------------------------------------


@pytest.mark.spec("KIT-15")
async def test_every_run_has_an_empty_store_and_the_same_time() -> None:
    called: list[int] = []

    async def prepare() -> None:
        reset()
        called.append(len(kit.enqueued(mail)))
        await mail.using(delay=3600).enqueue("setup")

    async with TestKit(jobs) as kit:
        await mail.using(delay=60).enqueue("before")
        began, starts = kit.clock.now(), []
        async for run in kit.crash_everywhere(later, 5, reset=prepare):
            starts.append(run.job.created_at)
            assert [job.arguments["to"] for job in kit.enqueued(mail)] == ["setup"]
            assert run.enqueued == [] and run.job.status == "done"
            assert kit.clock.now() > began
        assert called == [0] * len(starts) and len(set(starts)) == 1
        assert [job.arguments["to"] for job in kit.enqueued(mail)] == ["before"]
        assert kit.clock.now() == began
        assert await kit.advance(60) == {"done": 1}


@jobs.task
async def later(minutes: int) -> None:
    if current().started_at.minute < minutes:
        raise Snooze(60 * minutes)


@pytest.mark.spec("KIT-15")
async def test_a_loop_that_is_left_early_does_not_keep_the_kit_from_its_end() -> None:
    async with TestKit(jobs) as kit:
        async for run in kit.crash_everywhere(charge_with_key, 7):
            if run.point is not None:
                break
        assert kit.enqueued(mail, status="done")
        assert [run.point async for run in kit.crash_everywhere(mail, "ada")] == [
            None,
            "before the start",
            "before the settlement",
        ]
        assert not kit.enqueued(mail)
    with pytest.raises(StokerError, match=r"kit\.crash_everywhere\(\) works inside the block"):
        async for _ in kit.crash_everywhere(mail, "ada"):
            pass


@jobs.task(attempts=3)
async def flaky() -> str:
    current().progress(0.5)
    if not charged:
        charged.append("tried")
        raise ConnectionError("the provider is away")
    return "at last"


@pytest.mark.spec("KIT-15")
async def test_points_of_later_attempts_count_and_errors_are_shown() -> None:
    async with TestKit(jobs) as kit:
        runs = await runs_of(kit, flaky)
    assert [run.point for run in runs] == [
        None,
        "before the start",
        "before progress was reported",
        "after progress was reported",
        "before the settlement",
        "before the start, time 2",
        "before progress was reported, time 2",
        "after progress was reported, time 2",
        "before the settlement, time 2",
    ]
    assert [run.attempts for run in runs] == [2, 3, 3, 3, 2, 3, 3, 3, 3]
    assert all(run.result == "at last" for run in runs)
    assert [type(run.exception) for run in runs[:5]] == [ConnectionError] * 4 + [type(None)]


@pytest.mark.spec("KIT-15")
async def test_a_job_with_one_attempt_is_dead_with_its_worker() -> None:
    async with TestKit(jobs) as kit:
        first, *others = await runs_of(kit, charge_with_key.using(attempts=1, keep=0), 7)
    assert first.status == "done"
    assert {run.status for run in others} == {"dead"}
    assert "error: process died under the job: the test kit killed its worker before the start" in str(others[0])
    assert others[0].result is None and "killed its worker" in str(others[0].error)


@jobs.task
async def logs() -> None:
    current().log(f"attempt {current().attempt}")


@pytest.mark.spec("KIT-15")
async def test_what_is_noted_before_a_death_is_stored_when_the_worker_dies_after_it() -> None:
    async with TestKit(jobs) as kit:
        lines = {run.point: run.job.log async for run in kit.crash_everywhere(logs)}
    assert lines["before a line was logged"] == ("attempt 2",)
    assert lines["after a line was logged"] == ("attempt 1", "attempt 2")


@jobs.task
async def swallows() -> None:
    with suppress(BaseException):
        await mail.enqueue("ada")
    with suppress(BaseException):
        await mail.enqueue("bob")
    charged.append("went on")


@jobs.task
async def in_parallel() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(mail.enqueue("ada"))
        group.create_task(mail.enqueue("bob"))


@pytest.mark.spec("KIT-15")
async def test_a_handler_that_catches_everything_is_dead_all_the_same() -> None:
    async with TestKit(jobs) as kit:
        for run in await runs_of(kit, swallows):
            assert run.attempts == (1 if run.point is None else 2) and run.status == "done", run
            sent = [job.arguments["to"] for job in run.enqueued]
            assert sent[-2:] == ["ada", "bob"], run
        found = {run.point: len(run.enqueued) for run in await runs_of(kit, in_parallel)}
    assert found[None] == 2 and len(found) == 7


@jobs.task(chunk=Chunk(10, within=0.01), queue="index")
async def index(items: list[int]) -> None:
    charged.append(f"indexed {items}")


@jobs.task(isolation="process")
def apart() -> None:
    mail.enqueue_sync("ada")


@pytest.mark.spec("KIT-15")
async def test_chunks_and_handlers_that_want_a_process_die_too() -> None:
    async with TestKit(jobs) as kit:
        assert [run.point for run in await runs_of(kit, index, 7)] == [
            None,
            "before the start",
            "before the settlement",
        ]
        assert charged == ["indexed [7]", "indexed [7]"]
        assert len(await runs_of(kit, apart)) == 5


@pytest.mark.spec("KIT-15")
async def test_a_handler_that_does_something_else_each_time_is_named() -> None:
    app, seen = Stoker(NEVER), [0]

    @app.task
    async def moody() -> None:
        seen[0] += 1
        if seen[0] == 1:
            await other.enqueue()

    @app.task
    async def other() -> None: ...

    async with TestKit(app) as kit:
        with pytest.raises(
            StokerError, match=r"moody did not come to the same point again: before other was enqueued.*with reset="
        ):
            async for _ in kit.crash_everywhere(moody):
                pass


# --- the other faults -----------------------------------------------------------------------------------------------


@pytest.mark.spec("KIT-16")
async def test_a_job_runs_twice_when_its_end_was_not_stored() -> None:
    async with TestKit(jobs) as kit:
        kit.twice(mail)
        await mail.enqueue("ada")
        await mail.enqueue("bob")
        now = kit.clock.now()
        assert await kit.drain() == {"done": 2}
        assert sorted(mailed) == ["ada", "ada", "bob"] and kit.clock.now() == now
        assert [job.attempts for job in kit.enqueued(mail)] == [2, 1]
        kit.twice(refused)
        await refused.enqueue()
        assert await kit.drain() == {"dead": 1}


@jobs.task
async def refused() -> None:
    raise Reject("the account is closed")


@pytest.mark.spec("KIT-16")
async def test_a_job_that_is_late_starts_later_and_others_overtake_it() -> None:
    async with TestKit(jobs) as kit:
        kit.late(mail, by=60)
        await mail.enqueue("ada")
        await mail.enqueue("bob")
        assert await kit.advance(59) == {"pending": 1, "done": 1}
        assert await kit.advance(1) == {"done": 1}
        assert mailed == ["bob", "ada"]
        kit.late(mail, by=60)
        job = await mail.using(expires=30).enqueue("cas")
        assert await kit.advance(60) == {"pending": 1, "canceled": 1}
        assert (await job.refresh()).status == "canceled"


@pytest.mark.spec("KIT-16")
async def test_an_enqueue_whose_answer_is_lost_is_stored() -> None:
    async with TestKit(jobs) as kit:
        kit.lose_commit_answer()
        with pytest.raises(EngineUnavailable, match="the caller cannot know it"):
            await mail.enqueue("ada")
        kit.lose_commit_answer()
        with pytest.raises(EngineUnavailable):
            await orders.append("ada", 7)
        await mail.enqueue("bob")
        assert [job.arguments["to"] for job in kit.enqueued(mail)] == ["ada", "bob"]


@pytest.mark.spec("KIT-16")
async def test_a_block_whose_answer_is_lost_has_done_its_job_once() -> None:
    async with TestKit(jobs) as kit:
        job = await mail_in_block.enqueue()
        kit.lose_commit_answer()
        assert await kit.advance(3600) == {"done": 1}  # the mail; what the worker says of the block comes too late
        assert mailed == ["ada"] and await job.result() == "mailed"
        assert (await job.refresh()).attempts == 1


@pytest.mark.spec("KIT-16")
def test_a_session_and_a_connection_whose_answer_is_lost_are_committed(
    database: sessionmaker[Session], tmp_path: Path
) -> None:
    with TestKit(jobs) as kit:
        kit.lose_commit_answer()
        with pytest.raises(EngineUnavailable), database.begin() as session:
            session.execute(text("insert into paid values (1)"))
            mail.using(tx=session).enqueue_sync("ada")
        assert rows(database) == 1 and len(kit.enqueued(mail)) == 1
        with django(default=on_file(tmp_path / "django.db")):
            from django.db import connection, transaction

            kit.lose_commit_answer()
            with pytest.raises(EngineUnavailable), transaction.atomic():
                mail.using(tx=connection).enqueue_sync("bob")
                mail.using(tx=connection).enqueue_sync("cas")
        assert len(kit.enqueued(mail)) == 3


@pytest.mark.spec("KIT-17")
async def test_the_seed_alone_decides_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def order(seed: int | None) -> list[str]:
        mailed.clear()
        async with TestKit(jobs) as kit:
            kit.reorder(seed)
            for n in range(8):
                await mail.enqueue(str(n))
            assert await kit.drain() == {"done": 8}
        return mailed.copy()

    first = await order(1)
    assert sorted(first) == [*"01234567"] and first != sorted(first)
    assert await order(1) == first
    assert len({tuple(await order(seed)) for seed in range(5)}) == 5
    monkeypatch.setenv("STOKER_TEST_SEED", "1")
    assert await order(None) == first
    monkeypatch.setenv("STOKER_TEST_SEED", "one")
    with pytest.raises(InvalidInput, match=r"\$STOKER_TEST_SEED: must be a whole number"):
        await order(None)


@pytest.mark.spec("KIT-17")
async def test_a_limit_and_a_chain_keep_their_order() -> None:
    app, ran = Stoker(NEVER), []

    @app.task(limit=Limit(1))
    async def one(n: int) -> None:
        ran.append(n)

    @app.task
    async def brings(n: int) -> None:
        ran.append(-n)
        await one.enqueue(n)

    for seed in range(3):
        ran.clear()
        async with TestKit(app) as kit:
            kit.reorder(seed)
            for n in range(6):
                await one.enqueue(n)
            assert await kit.drain() == {"done": 6}
            assert ran == [*range(6)]
            ran.clear()
            for n in range(1, 5):
                await brings.enqueue(n)
            assert await kit.drain(slots=2) == {"done": 8}
            assert sorted(ran) == [*range(-4, 0), *range(1, 5)]


@pytest.mark.spec("KIT-18")
async def test_faults_refuse_what_they_cannot_do() -> None:
    other = Stoker(NEVER)

    @other.task
    async def theirs() -> None: ...

    async with TestKit(jobs) as kit:
        for verb in (kit.twice, kit.fail_next):
            with pytest.raises(InvalidInput, match="task: must be a task of the app that this kit was made for"):
                verb(theirs, *([ValueError()] if verb == kit.fail_next else []))
        with pytest.raises(InvalidInput, match="task: must be a task"):
            async for _ in kit.crash_everywhere(theirs):
                pass
        with pytest.raises(InvalidInput, match="reset: must be a function"):
            async for _ in kit.crash_everywhere(mail, "ada", reset=[]):  # type: ignore[arg-type]
                pass
        with pytest.raises(InvalidInput, match="missing a required argument: 'to'"):
            async for _ in kit.crash_everywhere(mail):
                pass
        with pytest.raises(InvalidInput, match="by: must not be negative"):
            kit.late(mail, by=-1)
        with pytest.raises(InvalidInput, match="seed: must be a whole number"):
            kit.reorder("7")  # type: ignore[arg-type]
        with pytest.raises(StokerError, match=r"use `async for` with `kit\.crash_everywhere"):
            next(iter(kit.crash_everywhere_sync(mail, "ada")))
    async with TestKit(jobs, "sqlite") as kit:
        with pytest.raises(StokerError, match=r"lose_commit_answer\(\) is for a TestKit in memory"):
            kit.lose_commit_answer()


@pytest.mark.spec("KIT-14")
def test_reset_of_a_plain_test_runs_in_its_own_thread() -> None:
    seen = set()
    with TestKit(jobs) as kit:
        for _ in kit.crash_everywhere_sync(mail, "ada", reset=lambda: seen.add(threading.get_ident())):
            pass

        async def awaited() -> None:
            seen.add(0)

        for _ in kit.crash_everywhere_sync(mail, "ada", reset=awaited):
            pass
    assert seen == {threading.get_ident(), 0}


# --- a failure in pytest --------------------------------------------------------------------------------------------

SHOP = """
from stoker import Stoker
jobs = Stoker("sqlite:////nonexistent-folder/never.db")
charged = []
@jobs.task
async def send(to: str) -> None:
    charged.append(to)
@jobs.task
async def pay(order: int) -> None:
    charged.append(order)
"""
FAILING = """
from shop import charged, jobs, pay, send
from stoker.testing import TestKit

async def test_pay():
    async with TestKit(jobs) as kit:
        async for run in kit.crash_everywhere(pay, 7, reset=charged.clear):
            assert charged == [7]

def test_order(stoker_kit):
    charged.clear()
    stoker_kit.reorder()
    for n in range(6):
        send.enqueue_sync(str(n))
    stoker_kit.drain_sync()
    print("the order is", "".join(charged))
    assert charged == []

def test_quiet(stoker_kit):
    assert not "told"
"""


@pytest.mark.spec("KIT-17")
def test_a_failure_names_the_run_and_the_seed_and_the_seed_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(FAILING, encoding="utf-8")
    said = pytest_in(tmp_path, "--stoker-app=shop:jobs", **ALONE)
    assert "3 failed" in said, said
    assert "- Stoker -" in said
    assert "the worker died before the settlement; pay(order=7) is done after 2 attempts" in said
    [seed] = {line.rpartition("=")[2] for line in said.splitlines() if "in the order of --stoker-seed=" in line}
    [order] = {line for line in said.splitlines() if line.startswith("the order is")}
    again = pytest_in(tmp_path, "--stoker-app=shop:jobs", f"--stoker-seed={seed}", "-k", "order", **ALONE)
    assert order in again.splitlines(), again
    assert said.count("- Stoker -") == 2, said

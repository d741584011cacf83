from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model import ids
from stoker.model.errors import (
    Duplicate,
    DuplicateTask,
    EngineRefused,
    EngineUnavailable,
    InvalidInput,
    InvalidName,
    InvalidOption,
    InvalidPayload,
    NotFound,
    UnknownTask,
)
from stoker.model.events import Transition, Window
from stoker.model.job import Receipt, Status, Stored
from stoker.model.retry import Fixed
from stoker.model.time import SECOND
from stoker.model.unique import Unique
from tests.harness.apps import PATIENCE, drain
from tests.harness.doubles import Double


@pytest.fixture
def app() -> Stoker:
    return Stoker(MemoryEngine())


# --- the registry -----------------------------------------------------------------------------------------------


@pytest.mark.spec("API-01")
async def test_a_decorated_function_stays_a_plain_function(app: Stoker) -> None:
    @app.task
    async def resize(image: int, *, width: int = 800) -> str:
        """Make it smaller."""
        return f"{image}@{width}"

    @app.task(queue="mail", attempts=2)
    def send(to: str) -> str:
        return f"to {to}"

    assert await resize(7, width=200) == "7@200"
    assert send("a") == "to a"
    assert resize.__doc__ == "Make it smaller."
    assert resize.__name__ == "resize"
    assert set(app.tasks) == {"resize", "send"}
    assert app.tasks["send"].options.queue == "mail"
    assert repr(app) == "<Stoker 2 tasks>"


@pytest.mark.spec("API-02")
async def test_functions_one_cannot_decorate_are_registered_by_a_call(app: Stoker) -> None:
    import functools
    import textwrap

    class Greeter:
        async def __call__(self, name: str) -> str:
            return f"hello {name}"

    app.task(textwrap.shorten)
    app.task(name="greet", queue="front")(Greeter())
    app.task(functools.partial(textwrap.indent, prefix="> "))
    assert set(app.tasks) == {"shorten", "greet", "indent"}
    assert app.tasks["greet"].is_async
    assert app.tasks["shorten"].draft("some text", width=10).payload == b'{"text":"some text","width":10}'
    with pytest.raises(InvalidName, match="task name"):
        app.task(lambda: None)
    app.task(name="nothing")(lambda: None)


@pytest.mark.spec("API-03")
def test_two_tasks_of_one_name_are_an_error_that_names_both(app: Stoker) -> None:
    @app.task
    def work() -> int:
        return 1

    with pytest.raises(DuplicateTask) as caught:

        @app.task(name="work")
        def other() -> int:
            return 2

    assert "locals>.work" in str(caught.value)
    assert "locals>.other" in str(caught.value)
    assert str(caught.value).count("test_app.py:") == 2
    assert app.tasks["work"] is work

    @app.task(name="work", replace=True)
    def third() -> int:
        return 3

    assert app.tasks["work"] is third
    with pytest.raises(InvalidInput, match="is a task already"):
        app.task(third)


@pytest.mark.spec("API-04")
def test_a_handler_must_return_not_yield(app: Stoker) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def stream() -> Any:
        yield 1

    for fn in (numbers, stream):
        with pytest.raises(InvalidInput, match="does not yield"):
            app.task(fn)
    assert app.tasks == {}


@pytest.mark.spec("API-05")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"atempts": 3}, "did you mean attempts"),
        ({"attempts": 0}, "attempts"),
        ({"priority": 1001}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"isolation": "thread"}, "isolation"),
        ({"queue": "a b"}, "queue"),
        ({"unique": ""}, "unique key"),
        ({"unique": 7}, "unique"),
        ({"backoff": 5}, "backoff"),
        ({"metadata": {"n": 1}}, "metadata"),
        ({"name": "no spaces"}, "task name"),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(app: Stoker, options: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        app.task(**options)(lambda: None) if "name" in options else app.task(**options, name="x")(lambda: None)
    assert app.tasks == {}


MODULE = """
from {origin} import jobs

@jobs.task
async def found() -> int:
    return len(jobs.tasks)

assert list(jobs.tasks) == ["found"]
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.spec("API-06")
async def test_modules_are_imported_when_tasks_are_first_asked_for(modules: Path) -> None:
    (modules / "face_origin.py").write_text(
        "from stoker.app import Stoker\nfrom stoker.engines.memory import MemoryEngine\n"
        "jobs = Stoker(MemoryEngine(), modules=['face_tasks'])\n"
    )
    (modules / "face_tasks.py").write_text(MODULE.format(origin="face_origin"))
    import face_origin  # type: ignore[import-not-found]

    assert "face_tasks" not in sys.modules
    assert face_origin.jobs.draft("found").kind == "found"
    assert set(face_origin.jobs.tasks) == {"found"}


@pytest.mark.spec("API-06")
def test_a_module_that_failed_to_import_is_tried_again(modules: Path) -> None:
    app = Stoker(MemoryEngine(), modules=["face_late"])
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            app.tasks
    (modules / "face_late.py").write_text("")
    import importlib

    importlib.invalidate_caches()
    assert app.tasks == {}


# --- options ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-07")
def test_queues_come_from_the_call_the_task_the_router_the_app(app: Stoker) -> None:
    app = Stoker(MemoryEngine(), queue="fallback", router={"mail.": "post", "mail.bulk.": "slow", "x": "y"})
    for kind in ("mail.one", "mail.bulk.all", "other"):
        app.declare(kind)
    app.declare("mail.own", queue="own")
    queues = {kind: app.draft(kind).queue for kind in ("mail.one", "mail.bulk.all", "other", "mail.own")}
    assert queues == {"mail.one": "post", "mail.bulk.all": "slow", "other": "fallback", "mail.own": "own"}
    assert app.draft("mail.own", queue="call").queue == "call"
    by_function = Stoker(MemoryEngine(), router=lambda kind: "odd" if len(kind) % 2 else None)
    by_function.declare("abc")
    by_function.declare("abcd")
    assert [by_function.draft(kind).queue for kind in ("abc", "abcd")] == ["odd", "default"]


@pytest.mark.spec("API-08")
def test_options_come_from_the_call_the_task_the_app(app: Stoker) -> None:
    app = Stoker(MemoryEngine(), attempts=9, timeout=60, keep=3600, backoff=Fixed(9))

    @app.task(attempts=4, priority=5, timeout=30, keep=60, metadata={"a": "task", "b": "task"}, expires=5)
    async def full() -> None: ...

    @app.task
    async def bare() -> None: ...

    draft = bare.draft()
    assert (draft.attempts, draft.priority, draft.options.timeout) == (9, 0, 60 * SECOND)
    assert draft.options.backoff is None, "the app's backoff speaks after the queue's curve, so it does not travel"
    assert draft.options.keep is None, "nor does its retention, which speaks after the queue's"
    draft = full.draft()
    assert (draft.attempts, draft.priority, draft.options.timeout) == (4, 5, 30 * SECOND)
    assert draft.options.keep == 60 * SECOND
    zero = full.using(priority=0, delay=0, keep=0, expires=0, metadata={"a": "call"}).draft()
    assert (zero.priority, zero.delay, zero.options.keep, zero.options.expires) == (0, 0, 0, 0)
    assert zero.options.metadata == {"a": "call", "b": "task"}
    assert full.using(delay=60).using(delay=0).draft().delay == 0
    for wrong in ({"attempts": 0}, {"timeout": 0}):
        with pytest.raises(InvalidInput):
            full.using(**wrong)  # type: ignore[arg-type]


@pytest.mark.spec("API-09")
async def test_the_tenant_hook_speaks_where_the_caller_is_silent(app: Stoker) -> None:
    tenants = iter(["one", None, "two"])
    app = Stoker(MemoryEngine(), tenant=lambda: next(tenants))

    @app.task
    async def work() -> None: ...

    app.declare("named")
    assert work.draft().tenant == "one"
    assert work.using(tenant="mine").draft().tenant == "mine"
    assert work.draft().tenant is None
    assert app.draft("named").tenant == "two"
    assert app.draft("named", tenant="mine").tenant == "mine"
    with pytest.raises(InvalidInput, match="tenant"):
        work.using(tenant="")


# --- enqueueing by name -----------------------------------------------------------------------------------------


@pytest.mark.spec("API-10")
async def test_jobs_by_name_need_a_registered_or_declared_task(app: Stoker) -> None:
    @app.task
    async def add(a: int = 1, b: int = 2) -> int:
        return a + b

    app.declare("billing.charge", queue="billing", attempts=2, timeout=9)
    with pytest.raises(UnknownTask, match=r"'billing\.refund'.*known: add, billing\.charge") as caught:
        app.draft("billing.refund")
    assert caught.value.kind == "billing.refund"
    draft = app.draft("billing.charge", {"amount": 5}, priority=-1)
    assert (draft.queue, draft.attempts, draft.priority, draft.payload) == ("billing", 2, -1, b'{"amount":5}')
    assert draft.options.timeout == 9 * SECOND
    for payload, stored in (({"a": 1}, b'{"a":1}'), ([1, 2], b"[1,2]"), (None, b"null")):
        job = await app.enqueue(app.draft("add", payload))
        assert (await job.refresh()).payload == stored
    for wrong in (7, "text", True):
        with pytest.raises(InvalidPayload):
            app.draft("add", wrong)
    with pytest.raises(InvalidName):
        app.declare("no spaces")
    with pytest.raises(InvalidOption, match="did you mean queue"):
        app.declare("other", quue="x")  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="did you mean priority"):
        app.draft("add", prioritty=1)  # type: ignore[call-arg]


@pytest.mark.spec("API-10")
def test_a_key_made_from_arguments_cannot_be_made_for_a_job_by_name(app: Stoker) -> None:
    @app.task(unique=lambda n: f"n{n}")
    async def work(n: int) -> None: ...

    assert work.draft(3).unique == Unique("n3")
    with pytest.raises(InvalidInput, match="give unique="):
        app.draft("work", {"n": 3})
    assert app.draft("work", {"n": 3}, unique="n3").unique == Unique("n3")


# --- bulk -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-11")
async def test_many_drafts_are_stored_in_chunks_with_receipts_in_order(jobs: Stoker) -> None:
    @jobs.task
    async def work(n: int) -> None: ...

    receipts = await jobs.enqueue_many(work.draft(n) for n in range(2_345))
    assert len(receipts) == 2_345
    assert all(receipt.stored is Stored.INSERTED for receipt in receipts)
    engine = await jobs.engine()
    found = await engine.operator.get([ids.parse(receipts[n].id) for n in (0, 999, 1_000, 2_344)])
    assert [job.payload for job in found if job] == [b'{"n":0}', b'{"n":999}', b'{"n":1000}', b'{"n":2344}']
    assert await jobs.enqueue_many([]) == []


class Failing(Double):
    """Refuses the third insert."""

    inserts = 0

    async def insert(self, drafts: Any, *, tx: Any = None, group: Any = None) -> list[Receipt]:
        type(self).inserts += 1
        assert len(drafts) <= 1_000
        if self.inserts == 3:
            raise EngineUnavailable("no answer.")
        return await self.real.jobs.insert(drafts, tx=tx, group=group)


@pytest.mark.spec("API-12")
async def test_a_failed_chunk_names_the_first_draft_that_was_not_stored() -> None:
    app = Stoker(Failing())
    app.declare("work")
    drafts = [app.draft("work") for _ in range(2_500)]
    with pytest.raises(EngineUnavailable) as caught:
        await app.enqueue_many(drafts)
    assert caught.value.__notes__ == [
        "drafts 0 to 1999 were stored",
        f"draft 2000 (job {ids.text(drafts[2_000].job_id)}) and all after it were not stored",
    ]
    engine = await app.engine()
    assert [job is not None for job in await engine.operator.get([drafts[n].job_id for n in (0, 1_999, 2_000)])] == [
        True,
        True,
        False,
    ]
    await app.close()


@pytest.mark.spec("API-12")
async def test_a_duplicate_in_a_chunk_stores_nothing_of_it(jobs: Stoker) -> None:
    @jobs.task
    async def work(n: int) -> None: ...

    key = Unique("k", mode="raise")
    with pytest.raises(Duplicate) as caught:
        await jobs.enqueue_many([work.draft(1), work.using(unique=key).draft(2), work.using(unique=key).draft(3)])
    assert caught.value.__notes__[0] == "no draft was stored"
    assert caught.value.handle is not None
    census = await (await jobs.engine()).operator.census()
    assert not any(census.by_status().values())


@pytest.mark.spec("API-21")
async def test_duplicate_carries_the_handle_of_the_key_holder(jobs: Stoker) -> None:
    @jobs.task
    async def work(n: int) -> int:
        return n

    only = work.using(unique=Unique("k", mode="raise"))
    first = await only.enqueue(1)
    with pytest.raises(Duplicate) as caught:
        await only.enqueue(2)
    assert caught.value.handle == first
    assert caught.value.job_id == first.id
    await drain(jobs)
    assert await caught.value.handle.result(PATIENCE) == 1


@pytest.mark.spec("API-21")
def test_so_does_a_caller_with_a_transaction_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    jobs = Stoker(f"sqlite:///{path}")

    @jobs.task
    def work() -> None: ...

    only = work.using(unique=Unique("k", mode="raise"))
    first = only.enqueue_sync()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN")
        with pytest.raises(Duplicate) as caught:
            only.using(tx=connection).enqueue_sync()
        connection.rollback()
    assert caught.value.handle == first
    jobs.run(jobs.close())


# --- listeners and events --------------------------------------------------------------------------------------------


@pytest.mark.spec("API-13")
async def test_listeners_hear_of_inserts_that_really_happened(jobs: Stoker) -> None:
    received: list[Transition] = []
    jobs.listener(received.append)

    @jobs.task
    async def work() -> None: ...

    job = await work.using(unique="k").enqueue()
    again = await work.using(unique="k").enqueue()
    assert job == again
    assert (job.stored, again.stored) == (Stored.INSERTED, Stored.EXISTING)
    assert [(one.job, one.before, one.after) for one in received] == [(job.id, None, Status.PENDING)]


@pytest.mark.spec("API-14")
async def test_no_event_is_emitted_before_the_users_commit(jobs: Stoker) -> None:
    received: list[Transition] = []
    jobs.listener(received.append)

    @jobs.task
    async def work() -> None: ...

    engine = await jobs.engine()
    with pytest.raises(ZeroDivisionError):
        async with engine.transaction() as tx:
            rolled_back = await work.using(tx=tx).enqueue()
            1 / 0
    async with engine.transaction() as tx:
        kept = await work.using(tx=tx).enqueue()
        await jobs.enqueue_many([jobs.draft("work")], tx=tx)
    assert await engine.operator.get([ids.parse(rolled_back.id)]) == [None]
    assert (await kept.refresh()).status is Status.PENDING
    assert received == []
    assert jobs.timeline is not None
    assert len(jobs.timeline) == 0


# --- the store --------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-15")
async def test_the_url_comes_from_the_argument_the_environment_or_a_file_beside_you(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_URL", f"sqlite:///{tmp_path}/from_env.db")
    for app, file in ((Stoker(), "from_env.db"), (Stoker("sqlite:///given.db"), "given.db")):
        async with app:
            assert (tmp_path / file).exists()
    monkeypatch.setenv("STOKER_URL", "")
    async with Stoker():
        assert (tmp_path / "stoker.db").exists()
    async with Stoker("memory://", capacity=1) as app:
        assert "1, then raise" in (await (await app.engine()).describe()).facts["capacity"]
    with pytest.raises(InvalidOption, match="capacity"):
        Stoker(MemoryEngine(), capacity=1)


@pytest.mark.spec("API-16")
async def test_first_uses_at_once_share_one_engine(engine: Engine) -> None:
    app = Stoker(engine)

    @app.task
    async def work() -> None: ...

    await asyncio.gather(*(work.enqueue() for _ in range(20)))
    found = await asyncio.gather(*(app.engine() for _ in range(5)))
    assert len(set(map(id, found))) == 1
    assert sum((await found[0].operator.census()).by_status().values()) == 20
    await app.close()


@pytest.mark.spec("API-16")
def test_many_loops_and_threads_share_one_app(tmp_path: Path) -> None:
    app = Stoker(f"sqlite:///{tmp_path}/jobs.db", durability="process")

    @app.task
    async def work(n: int) -> None: ...

    engines: list[Engine] = []

    async def produce(n: int) -> None:
        async with app:
            engines.append(await app.engine())
            await asyncio.gather(*(work.enqueue(n) for _ in range(5)))

    threads = [threading.Thread(target=lambda n=n: asyncio.run(produce(n))) for n in range(4)]
    threads += [threading.Thread(target=lambda: [work.enqueue_sync(9) for _ in range(5)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, engines))) == 4

    async def count() -> int:
        async with app:
            return sum((await (await app.engine()).operator.census()).by_status().values())

    assert asyncio.run(count()) == 30
    app.run(app.close())


@pytest.mark.spec("API-16")
def test_one_loop_after_the_other_and_opening_again(tmp_path: Path) -> None:
    app = Stoker(f"sqlite:///{tmp_path}/jobs.db", durability="process")

    @app.task
    async def work() -> None: ...

    async def once() -> int:
        await work.enqueue()
        await app.close()
        await app.close()
        await work.enqueue()
        engine = await app.engine()
        await app.close()
        with pytest.raises(Exception, match="open"):
            await engine.operator.census()
        async with app:
            return sum((await (await app.engine()).operator.census()).by_status().values())

    assert [asyncio.run(once()) for _ in range(3)] == [2, 4, 6]


@pytest.mark.spec("API-17")
async def test_closing_writes_the_buffered_events(tmp_path: Path) -> None:
    app = Stoker(SqliteEngine(tmp_path / "jobs.db", durability="process"))

    @app.task
    async def work() -> None: ...

    async with app:
        job = await work.enqueue()
        assert app.timeline is not None
        assert len(app.timeline) == 1
    assert len(app.timeline) == 0
    async with app:
        [event] = await (await app.engine()).timeline.events(Window(0, 1 << 60))
        assert (ids.text(event.job), event.type) == (job.id, "enqueued")


@pytest.mark.spec("API-17")
async def test_a_producer_without_a_worker_writes_its_events_by_itself() -> None:
    app = Stoker(MemoryEngine(), event_flush=0.02)

    @app.task
    async def work() -> None: ...

    async with app:
        for _ in range(2):
            await work.enqueue()
            async with asyncio.timeout(PATIENCE):
                while app.timeline:
                    await asyncio.sleep(0.005)
        assert len(await (await app.engine()).timeline.events(Window(0, 1 << 60))) == 2


@pytest.mark.spec("BUFFER-10")
async def test_a_producer_in_a_hurry_drops_no_events() -> None:
    app = Stoker(MemoryEngine(), event_flush=3600, event_buffer=1_000, event_chunk=100)

    @app.task
    async def work() -> None: ...

    async with app:
        for _ in range(20):
            await app.enqueue_many([work.draft() for _ in range(500)])
            async with asyncio.timeout(PATIENCE):
                while app.timeline:
                    await asyncio.sleep(0)
        assert app.timeline is not None
        assert app.timeline.lost == 0


class Deaf(Double):
    error: Exception = EngineUnavailable("no answer.")

    async def record(self, events: Any, points: Any = (), *, now: int, chunk: bytes | None = None) -> int:
        raise self.error


@pytest.mark.spec("API-17")
@pytest.mark.parametrize("error", [EngineUnavailable("no answer."), ConnectionResetError("reset by peer")])
async def test_events_that_cannot_be_written_do_not_keep_the_app_from_closing(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    deaf = Deaf()
    deaf.error = error
    app = Stoker(deaf, event_flush=0.01)

    @app.task
    async def work() -> None: ...

    await work.enqueue()
    engine = await app.engine()
    async with asyncio.timeout(PATIENCE):
        while "could not be written" not in caplog.text:
            await asyncio.sleep(0.005)
    caplog.clear()
    await app.close()
    [line] = caplog.messages
    assert "1 event not written" in line
    assert "The jobs are stored" in line
    with pytest.raises(Exception, match="open"):
        await engine.operator.census()
    assert app.timeline is not None
    assert len(app.timeline) == 1


@pytest.mark.spec("API-17")
def test_closing_an_app_with_two_loops_warns_of_events_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Stoker(Deaf())

    @app.task
    async def work() -> None: ...

    async def both() -> None:
        await work.enqueue()
        await asyncio.to_thread(work.enqueue_sync)
        await app.close()

    asyncio.run(both())
    [line] = caplog.messages
    assert "2 events not written" in line


@pytest.mark.spec("API-17")
async def test_a_worker_that_cannot_write_events_leaves_that_to_its_app(caplog: pytest.LogCaptureFixture) -> None:
    """It has released its lease: that is not in doubt, and the one warning is about the events."""
    app = Stoker(Deaf())

    @app.task
    async def work() -> None: ...

    async with app:
        await work.enqueue()
        await drain(app)
        assert [one.state for one in await (await app.engine()).control.workers()] == ["stopped"]
    [line] = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert "3 events not written" in line


@pytest.mark.spec("API-18")
async def test_named_locks_are_tried_not_waited_for(jobs: Stoker) -> None:
    async with jobs.lock("nightly") as first, jobs.lock("nightly") as second:
        assert (first, second) == (True, False)
    async with jobs.lock("nightly", lease=5) as again:
        assert again


# --- users' own transactions ------------------------------------------------------------------------------------


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.spec("SYNC-04")
async def test_a_synchronous_handle_needs_no_loop_not_even_inside_one(tmp_path: Path) -> None:
    app = Stoker(SqliteEngine(tmp_path / "jobs.db", durability="process"))

    @app.task
    async def work(n: int) -> int:
        return n

    async with app:
        with connected(tmp_path / "jobs.db") as connection:
            with connection:
                kept = work.using(tx=connection).enqueue_sync(1)
            lost = work.using(tx=connection).enqueue_sync(2)
            connection.rollback()
        assert (await kept.refresh()).payload == b'{"n":1}'
        assert await (await app.engine()).operator.get([ids.parse(lost.id)]) == [None]
        with connected(tmp_path / "other.db") as other, pytest.raises(EngineRefused):
            work.using(tx=other).enqueue_sync(3)


@pytest.mark.spec("SYNC-04")
async def test_many_drafts_join_a_synchronous_transaction(tmp_path: Path) -> None:
    app = Stoker(SqliteEngine(tmp_path / "jobs.db", durability="process"))

    @app.task
    async def work(n: int) -> int:
        return n

    async with app:
        with connected(tmp_path / "jobs.db") as connection:
            with connection:
                kept = app.enqueue_many_sync((work.draft(n) for n in range(1_500)), tx=connection)
                single = app.enqueue_sync(work.draft(-1), tx=connection)
            lost = app.enqueue_many_sync([work.draft(2)], tx=connection)
            connection.rollback()
        assert (await app.handle(kept[-1].id).refresh()).payload == b'{"n":1499}'
        assert (await single.refresh()).payload == b'{"n":-1}'
        with pytest.raises(NotFound):
            await app.handle(lost[0].id).refresh()
    with pytest.raises(InvalidInput, match="must be a list"):
        app.enqueue_many_sync(work.draft(1))  # type: ignore[arg-type]


@pytest.mark.spec("API-11")
def test_many_drafts_are_stored_from_code_without_a_loop(tmp_path: Path) -> None:
    app = Stoker(f"sqlite:///{tmp_path}/jobs.db", durability="process")

    @app.task
    async def work(n: int) -> int:
        return n

    receipts = app.enqueue_many_sync(work.draft(n) for n in range(3))
    assert [app.handle(one.id).refresh_sync().payload for one in receipts] == [b'{"n":%d}' % n for n in range(3)]
    assert app.enqueue_sync(work.draft(7)).refresh_sync().payload == b'{"n":7}'
    app.run(app.close())


@pytest.mark.spec("SYNC-04")
async def test_the_engine_of_this_loop_is_the_one_whose_transaction_is_joined(tmp_path: Path) -> None:
    """Another loop's engine, opened before, would not know it."""
    app = Stoker(f"sqlite:///{tmp_path}/jobs.db", durability="process")

    @app.task
    async def work() -> None: ...

    await asyncio.to_thread(app.run, app.open())
    async with app:
        async with (await app.engine()).transaction() as tx:
            kept = work.using(tx=tx).enqueue_sync()
        assert (await kept.refresh()).status == "pending"


@pytest.mark.spec("TASK-06")
def test_a_draft_cannot_carry_a_transaction(app: Stoker) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match="tx"):
        work.using(tx=object()).draft()


# --- forks ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("SYNC-05")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_opens_its_own_engine_and_loop(tmp_path: Path) -> None:
    app = Stoker(f"sqlite:///{tmp_path}/jobs.db", durability="process")

    @app.task
    async def work(n: int) -> None: ...

    work.enqueue_sync(0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work.enqueue_sync(1)
            asyncio.run(_async_use(app))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    work.enqueue_sync(2)

    async def payloads() -> list[bytes]:
        from stoker.model.query import Query

        page = await (await app.engine()).operator.find(Query(order="oldest"))
        return sorted(job.payload for job in page.jobs)

    assert app.run(payloads()) == [b'{"n":0}', b'{"n":1}', b'{"n":2}', b'{"n":3}']
    app.run(app.close())


async def _async_use(app: Stoker) -> None:
    async with app:
        await app.enqueue(app.draft("work", {"n": 3}))


@pytest.mark.engine("sqlite")
@pytest.mark.spec("EVENT-15")
async def test_each_run_is_one_start_also_with_a_transaction_of_the_user(tmp_path: Path) -> None:
    """A job that came with tx= fails once and ends in a block: two runs, two starts, one enqueue."""
    app = Stoker(SqliteEngine(tmp_path / "jobs.db"))

    @app.task(attempts=2, backoff=Fixed(0.01))
    async def work() -> None:
        if current().attempt == 1:
            raise ValueError
        async with current().transaction():
            pass

    async with app:
        engine = await app.engine()
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as tx:
            tx.execute("BEGIN")
            job = await app.enqueue(work.draft(), tx=tx)
            tx.execute("COMMIT")
        await drain(app)
        async with asyncio.timeout(PATIENCE):
            while (await job.refresh()).status is not Status.DONE:
                await drain(app)
        told = [
            one
            for one in await engine.timeline.events(Window(0, await engine.now() + SECOND))
            if one.job == ids.parse(job.id)
        ]
    kinds = [(one.type.value, one.attempt) for one in told]
    assert kinds == [("enqueued", 0), ("started", 1), ("retried", 1), ("started", 2), ("completed", 2)]

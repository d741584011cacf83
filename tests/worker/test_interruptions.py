"""Timeouts, cancels, lost claims, and handlers that do not listen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import Context, current
from stoker.engines.base import Engine
from stoker.executors.outcomes import Cause
from stoker.model.errors import JobCanceled
from stoker.model.events import Transition
from stoker.model.job import Status
from stoker.model.outcome import Snooze
from stoker.model.query import CANCEL_REASON
from stoker.model.retry import Fixed
from stoker.worker import running
from tests.harness.apps import PATIENCE, becomes, drain, until, working

Next = Callable[[Context], Awaitable[Any]]


@pytest.fixture
def insistent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interruptions follow one another quickly, so that handlers are given up soon."""
    monkeypatch.setattr(running, "AGAIN_AFTER", 0.01)
    monkeypatch.setattr(running, "MOST_TRIES", 3)


# --- timeouts ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("SLOT-04")
async def test_a_run_that_exceeds_its_timeout_is_stopped_and_retried(jobs: Stoker) -> None:
    cleaned: list[str | None] = []

    @jobs.task(timeout=0.05, backoff=Fixed(60))
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(current().cancel.reason)

    job = await work.enqueue()
    last = await work.using(attempts=1).enqueue()
    quick = await work.using(timeout=0.01, attempts=1).enqueue()
    await drain(jobs)
    record = await job.refresh()
    assert (record.status, record.attempts) == (Status.RETRYING, 1)
    assert record.last_error == "timeout: ran longer than 0.05 s"
    assert (await last.refresh()).status is Status.DEAD
    assert (await quick.refresh()).last_error == "timeout: ran longer than 0.01 s"
    assert sorted(filter(None, cleaned)) == [
        "ran longer than 0.01 s",
        "ran longer than 0.05 s",
        "ran longer than 0.05 s",
    ]


@pytest.mark.spec("SLOT-04")
async def test_the_timeout_of_a_task_and_of_the_app_hold_for_jobs_that_carry_none(engine: Engine) -> None:
    app = Stoker(engine, timeout=0.05)

    @app.task(attempts=1)
    async def work() -> None:
        assert current().remaining is not None
        await asyncio.sleep(60)

    producer = Stoker(engine.for_loop())
    producer.declare("work", attempts=1)
    job = await producer.enqueue(producer.draft("work"))
    await drain(app)
    assert (await job.refresh()).last_error == "timeout: ran longer than 0.05 s"
    await producer.close()
    await app.close()


@pytest.mark.spec("WORKER-33")
async def test_the_policy_is_asked_about_a_timeout(jobs: Stoker, insistent: None) -> None:
    seen: list[str] = []
    go = asyncio.Event()

    def again(error: BaseException) -> bool:
        seen.append(repr(error))
        return False

    def broken(error: BaseException) -> bool:
        raise ValueError("no answer")

    async def endless() -> None:
        await asyncio.sleep(60)

    async def stubborn() -> None:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    def thread() -> None:
        while not current().cancel:
            time.sleep(0.002)

    def declare(name: str, fn: Callable[..., Any], **policy: Any) -> Any:
        return jobs.task(name=name, timeout=0.02, attempts=3, backoff=Fixed(60), **policy)(fn)

    tasks = {
        "given up": declare("given-up", endless, give_up_on=TimeoutError),
        "not listed": declare("not-listed", endless, retry_on=ConnectionError),
        "listed": declare("listed", endless, retry_on=(ConnectionError, TimeoutError)),
        "asked": declare("asked", endless, retry_if=again),
        "no answer": declare("no-answer", endless, retry_if=broken),
        "thread": declare("thread", thread, give_up_on=TimeoutError),
        "abandoned": declare("abandoned", stubborn, give_up_on=TimeoutError),
    }
    handles = {name: await task.enqueue() for name, task in tasks.items()}
    async with working(jobs, {"default": 10}):
        for name, job in handles.items():
            await becomes(job, Status.RETRYING if name in ("listed", "no answer") else Status.DEAD)
        go.set()
    assert seen == ["TimeoutError('ran longer than 0.02 s')"]
    errors = {name: (await job.refresh()).last_error for name, job in handles.items()}
    assert errors.pop("no answer") == "timeout: ran longer than 0.02 s\nretry_if itself raised: no answer"
    assert set(errors.values()) == {"timeout: ran longer than 0.02 s"}


@pytest.mark.spec("SLOT-05")
async def test_a_thread_past_its_limit_is_abandoned_and_its_place_taken(jobs: Stoker) -> None:
    go, token = threading.Event(), threading.Event()

    @jobs.task(timeout=0.05, attempts=1)
    def stuck() -> str:
        context = current()
        while not context.cancel:
            time.sleep(0.002)
        token.set()
        go.wait(PATIENCE)
        return "too late"

    @jobs.task
    def fine() -> int:
        return 1

    job = await stuck.enqueue()
    async with working(jobs, {"default": 1}) as worker:
        record = await becomes(job, Status.DEAD)
        assert record.last_error == "timeout: ran longer than 0.05 s"
        assert token.wait(PATIENCE), "the thread can see that it should stop"
        assert worker.executors.threads.abandoned == 1
        assert await (await fine.enqueue()).result(PATIENCE) == 1
        go.set()
        await until(lambda: worker.executors.threads.abandoned == 0)
    assert (await job.refresh()).result is None


@pytest.mark.spec("SLOT-06")
async def test_a_handler_that_swallows_every_interruption_is_abandoned(
    jobs: Stoker, insistent: None, caplog: pytest.LogCaptureFixture
) -> None:
    swallowed, go = [], asyncio.Event()

    @jobs.task(timeout=0.02, attempts=1)
    async def stubborn() -> str:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                swallowed.append(1)
        return "late"

    @jobs.task
    async def fine() -> int:
        return 1

    job = await stubborn.enqueue()
    async with working(jobs, {"default": 1}) as worker:
        record = await becomes(job, Status.DEAD)
        assert record.last_error == "timeout: ran longer than 0.02 s"
        assert 3 <= len(swallowed) <= 4
        assert "ignores that it was interrupted (timeout); it is abandoned" in caplog.text
        assert await (await fine.enqueue()).result(PATIENCE) == 1
        assert worker.runs == 0
        assert worker.lanes[0].busy == 0
        go.set()
        await asyncio.sleep(0.02)
        assert await (await fine.enqueue()).result(PATIENCE) == 1
    assert (await job.refresh()).status is Status.DEAD, "what the abandoned handler returned is not written"


@pytest.mark.spec("SLOT-06")
async def test_an_abandoned_run_does_not_disturb_the_next_one_of_the_same_job(jobs: Stoker, insistent: None) -> None:
    go, again = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @jobs.task(timeout=0.03, attempts=2, backoff=Fixed(0))
    async def work() -> str:
        runs.append(current().attempt)
        if current().attempt == 1:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue
            return "first"
        go.set()
        await again.wait()
        return "second"

    job = await work.using(timeout=PATIENCE).enqueue()
    async with working(jobs, {"default": 1}) as worker:
        await until(lambda: worker.runs == 1)
        [running] = worker.running_jobs.runs.values()
        worker.running_jobs.interrupt(running, Cause.TIMEOUT, "test")
        await until(lambda: runs == [1, 2])
        await asyncio.sleep(0.02)
        assert worker.runs == 1, "the second run is still in custody after the first one ended"
        again.set()
        assert await job.result(PATIENCE) == "second"


@pytest.mark.spec("SLOT-04")
async def test_cleaning_up_after_a_timeout_may_take_a_moment_and_may_fail(jobs: Stoker) -> None:
    @jobs.task(timeout=0.02, attempts=1)
    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)

    @jobs.task(timeout=0.02, attempts=1)
    async def clumsy() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("fell over the bucket") from None

    @jobs.task(timeout=0.02, attempts=1)
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE):
            group.create_task(asyncio.sleep(60))
            await asyncio.sleep(60)

    handles = [await task.enqueue() for task in (tidy, clumsy, grouped)]
    await drain(jobs)
    errors = [((await handle.refresh()).last_error or "").splitlines()[0] for handle in handles]
    limit = "timeout: ran longer than 0.02 s"
    assert errors == [limit, "ValueError: fell over the bucket", limit]


# --- middleware and scope ---------------------------------------------------------------------------------------


@pytest.mark.spec("WORKER-09")
async def test_middleware_wraps_the_handler_may_cut_it_short_and_is_covered_by_the_timeout(engine: Engine) -> None:
    log: list[str] = []

    async def outer(call: Next, context: Context) -> Any:
        log.append(f"outer {context.kind}")
        try:
            return await call(context)
        finally:
            log.append("outer done")

    async def inner(call: Next, context: Context) -> Any:
        assert current() is context
        if context.kind == "cached":
            return "from the cache"
        if context.kind == "slow":
            await asyncio.sleep(60)
        return [await call(context)]

    app = Stoker(engine, middleware=[outer, inner])
    app.task(name="plain")(lambda: "value")
    app.task(name="cached")(lambda: log.append("never"))
    app.task(name="slow", timeout=0.02, attempts=1)(lambda: log.append("never"))
    plain, cached, slow = [await app.enqueue(app.draft(kind)) for kind in ("plain", "cached", "slow")]
    await drain(app, queues={"default": 1})
    assert await plain.result(0) == ["value"]
    assert await cached.result(0) == "from the cache"
    assert (await slow.refresh()).last_error == "timeout: ran longer than 0.02 s"
    assert log == [f"outer {kind}" if n == 0 else "outer done" for kind in ("plain", "cached", "slow") for n in (0, 1)]
    await app.close()


@pytest.mark.spec("WORKER-10")
async def test_a_handler_runs_inside_its_tenants_scope(engine: Engine) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def scope(tenant: str) -> AsyncIterator[None]:
        if tenant == "unknown":
            raise LookupError("no such tenant")
        log.append(f"enter {tenant}")
        yield
        log.append(f"leave {tenant}")

    app = Stoker(engine, tenant_scope=scope)

    @app.task(attempts=1)
    async def work() -> None:
        log.append(str(current().tenant))

    await work.using(tenant="acme").enqueue()
    await work.enqueue()
    lost = await work.using(tenant="unknown").enqueue()
    await drain(app, queues={"default": 1})
    assert log == ["enter acme", "acme", "leave acme", "None"]
    assert "no such tenant" in ((await lost.refresh()).last_error or "")
    await app.close()


# --- listeners --------------------------------------------------------------------------------------------------


@pytest.mark.spec("WORKER-11")
async def test_listeners_hear_each_change_once_after_the_store_agreed(jobs: Stoker) -> None:
    heard: list[tuple[str, str, str]] = []

    def listen(change: Transition) -> None:
        heard.append((change.kind, str(change.before), str(change.after)))
        raise RuntimeError("a listener's trouble is its own")

    @jobs.task
    async def good() -> None: ...

    @jobs.task(attempts=2, backoff=Fixed(0))
    async def bad() -> None:
        raise ValueError

    jobs.listener(listen)
    await good.enqueue()
    await drain(jobs)
    await bad.enqueue()
    await drain(jobs)
    assert heard == [
        ("good", "None", "pending"),
        ("good", "pending", "running"),
        ("good", "running", "done"),
        ("bad", "None", "pending"),
        ("bad", "pending", "running"),
        ("bad", "running", "retrying"),
        ("bad", "retrying", "running"),
        ("bad", "running", "dead"),
    ]


@pytest.mark.spec("EVENT-06")
async def test_listeners_receive_the_status_a_job_really_had(jobs: Stoker) -> None:
    """A snoozed job waits as pending, also when an earlier run of it failed."""
    heard: list[str | None] = []

    @jobs.task(backoff=Fixed(0))
    async def work() -> None:
        if not current().is_retry:
            raise ValueError
        if "snoozed" not in current().metadata:
            current().metadata["snoozed"] = "yes"
            raise Snooze(0)

    jobs.listener(lambda change: heard.append(change.before) if change.after is Status.RUNNING else None)
    await work.enqueue()
    await drain(jobs)
    assert heard == [Status.PENDING, Status.RETRYING, Status.PENDING]


# --- cancel -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("SLOT-07")
async def test_a_cancel_from_anywhere_reaches_a_running_handler_at_once(jobs: Stoker) -> None:
    elsewhere = Stoker((await jobs.engine()).for_loop())
    started, reasons = asyncio.Event(), []

    @jobs.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(current().cancel.reason)

    job = await work.enqueue()
    async with working(jobs, lease=3600) as worker:  # by a wake-up: the next renewal comes after twenty minutes
        await started.wait()
        assert await elsewhere.handle(job.id).cancel(reason="wrong customer")
        with pytest.raises(JobCanceled, match="was canceled: wrong customer"):
            await job.result(PATIENCE)
        await until(lambda: worker.claims.tokens == {})
    assert reasons == ["wrong customer"]
    record = await job.refresh()
    assert (record.attempts, record.last_error) == (1, "wrong customer")
    assert record.metadata[CANCEL_REASON] == "wrong customer"
    await elsewhere.close()


@pytest.mark.spec("SLOT-07")
async def test_a_sync_handler_sees_the_token_and_success_still_wins(jobs: Stoker) -> None:
    started = threading.Semaphore(0)

    def wait() -> None:
        started.release()
        end = time.monotonic() + PATIENCE
        while not current().cancel.requested and time.monotonic() < end:
            time.sleep(0.002)

    @jobs.task(backoff=Fixed(60))
    def gives_up() -> None:
        wait()
        raise InterruptedError("stopped half-way")

    @jobs.task
    def finishes() -> str:
        wait()
        return "done anyway"

    one, two = await gives_up.enqueue(), await finishes.enqueue()
    async with working(jobs):
        for _ in range(2):
            assert await asyncio.to_thread(started.acquire, timeout=PATIENCE)
        assert await one.cancel()
        assert await two.cancel()
        assert await two.result(PATIENCE) == "done anyway"
        with pytest.raises(JobCanceled, match="stopped half-way"):
            await one.result(PATIENCE)


@pytest.mark.spec("SLOT-08")
async def test_a_forced_cancel_takes_the_claim_away_and_stops_the_handler(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    started, stopped = asyncio.Event(), asyncio.Event()
    heard: list[Transition] = []

    @jobs.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    job = await work.enqueue()
    async with working(jobs) as worker:
        await started.wait()
        jobs.listener(heard.append)
        assert await job.cancel(force=True, reason="enough")
        assert (await job.refresh()).status is Status.CANCELED
        await asyncio.wait_for(stopped.wait(), PATIENCE)
        await until(lambda: worker.lost == 1)
        assert worker.claims.tokens == {}
    assert "lease lost" in caplog.text
    assert job.id in caplog.text
    assert (await job.refresh()).last_error == "enough"
    assert [(one.job, one.before, one.after) for one in heard] == [(job.id, Status.RUNNING, Status.CANCELED)], (
        "the refused outcome reaches no listener"
    )


@pytest.mark.spec("SLOT-07")
async def test_a_job_that_waits_in_the_buffer_can_be_canceled_too(jobs: Stoker) -> None:
    go, ran = asyncio.Event(), []

    @jobs.task
    async def work(n: int) -> None:
        ran.append(n)
        await go.wait()

    handles = [await work.enqueue(n) for n in range(2)]
    async with working(jobs, {"default": 1}) as worker:
        worker.lanes[0].rate = 1_000.0  # so fast so far that the lane takes in advance
        worker.fetcher.wake()
        worker.store_loop.wakeup.set()
        await until(lambda: len(worker.lanes[0].buffer) == 1)
        assert await handles[1].cancel()
        record = await becomes(handles[1], Status.CANCELED)
        assert record.last_error == "canceled by its owner"
        go.set()
        await handles[0].result(PATIENCE)
    assert ran == [0]


# --- a stop is told, a deadlock is named --------------------------------------------------------------------------


@pytest.mark.spec("CONTEXT-10")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_long_handler_saves_and_snoozes_when_the_worker_stops(jobs: Stoker, kind: str) -> None:
    """From the beginning of the grace, long before it is interrupted; the next run goes on where this one was."""
    started = threading.Event()

    def begin() -> bool:
        if "page" in current().metadata:
            return False
        current().metadata["page"] = "7"
        started.set()
        return True

    @jobs.task(name="async")
    async def on_loop() -> str:
        if begin():
            await current().stopping
            raise Snooze(0)
        return current().metadata["page"]

    @jobs.task(name="thread")
    def in_thread() -> str:
        if begin():
            assert current().stopping.wait(PATIENCE)
            raise Snooze(0)
        return current().metadata["page"]

    job = await (on_loop if kind == "async" else in_thread).enqueue()
    async with working(jobs) as worker:
        await until(started.is_set)
        await worker.stop(PATIENCE)
    record = await job.refresh()
    assert (record.status, record.attempts) == (Status.PENDING, 0)
    async with working(jobs):
        assert await job.result(PATIENCE) == "7"


@pytest.mark.spec("CONTEXT-11")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_that_waits_for_its_own_queue_is_warned(
    jobs: Stoker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with both jobs and what to do; not while a slot is free."""
    caplog.set_level(logging.WARNING)

    @jobs.task
    async def child() -> int:
        return 7

    @jobs.task(name="async")
    async def on_loop() -> int:
        return await (await child.enqueue()).result(60)

    @jobs.task(name="thread")
    def in_thread() -> int:
        return jobs.run(_enqueue_and_wait())

    async def _enqueue_and_wait() -> int:
        return await (await child.enqueue()).result(60)

    parent = on_loop if kind == "async" else in_thread
    async with working(jobs, {"default": 2}):
        assert await (await parent.enqueue()).result(PATIENCE) == 7
    assert "deadlock" not in caplog.text
    job = await parent.enqueue()
    async with working(jobs, {"default": 1}) as worker:
        await until(lambda: "deadlock: every slot of queue default is taken (1)" in caplog.text)
        assert job.id in caplog.text
        assert "follow_up" in caplog.text
        async with working(jobs, {"default": 1}):
            assert await job.result(PATIENCE) == 7
        assert worker.runs == 0
    assert caplog.text.count("deadlock") == 1

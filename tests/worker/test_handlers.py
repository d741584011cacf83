"""What handlers return, raise and say, and what becomes of their jobs."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import METADATA_WARNING, current
from stoker.engines.memory import MemoryEngine
from stoker.model import ids
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput, ResultUnavailable
from stoker.model.events import EventType, Window
from stoker.model.job import Status
from stoker.model.lifecycle import RESULT_WARNING
from stoker.model.outcome import Reject, Retry, Snooze, Throttle
from stoker.model.query import Requeue, Selection
from stoker.model.retry import Curve, Exponential, Fixed, Linear, Never
from stoker.model.time import HOUR, SECOND
from stoker.testing.clock import VirtualClock
from stoker.worker import maintenance
from tests.harness.apps import PATIENCE, becomes, drain, until, working


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


# --- results ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("WORKER-01")
async def test_async_handlers_run_on_the_loop_and_sync_ones_in_threads(jobs: Stoker) -> None:
    main = threading.get_ident()

    @jobs.task
    async def on_loop() -> bool:
        return threading.get_ident() == main

    @jobs.task
    def in_thread() -> bool:
        return threading.get_ident() == main

    handles = [await on_loop.enqueue(), await in_thread.enqueue()]
    worker = await drain(jobs)
    assert [await handle.result(0) for handle in handles] == [True, False]
    assert worker.counts[Status.DONE] == 2
    assert worker.claims.tokens == {}
    assert worker.runs == 0


@pytest.mark.spec("WORKER-01")
async def test_a_coroutine_behind_a_plain_wrapper_is_awaited(jobs: Stoker) -> None:
    async def inner(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    def wrapper(n: int) -> Any:
        return inner(n)

    jobs.task(wrapper)
    job = await jobs.enqueue(jobs.draft("wrapper", [1]))
    await drain(jobs)
    assert await job.result(0) == 2


@pytest.mark.spec("WORKER-02", "HANDLE-07")
async def test_a_result_that_cannot_be_encoded_leaves_the_job_done_and_says_so(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    results: dict[str, Callable[[], Any]] = {
        "object": object,
        "nan": lambda: float("nan"),
        "surrogate": lambda: "\ud800",
        "nul": lambda: "\0",
        "keys": lambda: {1: 2},
        "large": lambda: "x" * (1 << 20),
        "deep": lambda: nested(70),
    }

    @jobs.task
    async def make(what: str) -> Any:
        return results[what]()

    handles = {what: await make.enqueue(what) for what in results}
    await drain(jobs)
    for what, handle in handles.items():
        record = await handle.refresh()
        assert (record.status, record.result) == (Status.DONE, None), what
        with pytest.raises(ResultUnavailable) as refused:
            await handle.result(0)
        assert refused.value.why == record.metadata[RESULT_WARNING]
        assert (refused.value.job_id, refused.value.kind, refused.value.attempt) == (handle.id, "make", 1)
        assert f"job {handle.id} (make, queue default) is done, but its result cannot be stored" in caplog.text


@pytest.mark.spec("HANDLE-07")
async def test_a_result_is_what_the_last_run_returned(jobs: Stoker) -> None:
    """Whatever earlier runs and the handler itself noted: a null result is null, a refused one is an error."""

    @jobs.task(attempts=1)
    async def work(*, refused: bool) -> Any:
        current().metadata["result_warning"] = "mine"
        if not current().is_retry:
            raise ValueError("first")
        return object() if refused else None

    handles = [await work.enqueue(refused=refused) for refused in (False, True)]
    await drain(jobs)
    engine = await jobs.engine()
    await engine.operator.alter(Selection(tuple(ids.parse(handle.id) for handle in handles)), Requeue())
    await drain(jobs)
    assert await handles[0].result(0) is None
    with pytest.raises(ResultUnavailable):
        await handles[1].result(0)


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("WORKER-03")
async def test_a_failing_job_is_retried_by_its_backoff_with_rising_attempts(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    seen: list[tuple[int, bool, str | None]] = []

    @timed_jobs.task(attempts=3, backoff=Linear(10, 5))
    async def work() -> str:
        context = current()
        error = context.previous_error
        seen.append((context.attempt, context.is_retry, error and error.splitlines()[0]))
        if context.attempt < 3:
            raise ValueError(f"attempt {context.attempt}")
        return "at last"

    job = await work.enqueue()
    for wait in (10, 15):
        await drain(timed_jobs)
        record = await job.refresh()
        assert record.status is Status.RETRYING
        assert record.scheduled_at == clock.moment() + timedelta(seconds=wait)
        clock.advance(wait - 1)
        await drain(timed_jobs)
        assert (await job.refresh()).status is Status.RETRYING, "not before its time"
        clock.advance(1)
    await drain(timed_jobs)
    assert await job.result(0) == "at last"
    assert seen == [(1, False, None), (2, True, "ValueError: attempt 1"), (3, True, "ValueError: attempt 2")]
    assert [failure.attempt for failure in (await job.refresh()).history] == [1, 2]


@pytest.mark.spec("WORKER-03")
async def test_a_spent_budget_and_a_backoff_that_never_retries_end_dead(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    runs: list[str] = []

    @timed_jobs.task(backoff=Fixed(0))
    async def work(name: str) -> None:
        runs.append(name)
        raise ValueError(name)

    spent = await work.using(attempts=3).enqueue("spent")
    never = await work.using(backoff=Never()).enqueue("never")
    limited = await work.using(backoff=Fixed(0, limit=1)).enqueue("limited")
    await drain(timed_jobs)
    assert sorted(runs) == ["limited", "limited", "never", "spent", "spent", "spent"]
    for job in (spent, never, limited):
        record = await job.refresh()
        assert record.status is Status.DEAD
        assert record.last_error is not None
        assert record.last_error.startswith("ValueError")
        assert "stoker/worker" not in record.last_error


@pytest.mark.spec("WORKER-04")
async def test_the_next_delay_is_the_handlers_the_jobs_the_queues_the_apps(clock: VirtualClock) -> None:
    app = Stoker(MemoryEngine(clock), backoff=Fixed(70))

    class Busy(Exception):
        def __init__(self, request: Any) -> None:
            self.retry_after = request

    @app.task
    async def work(request: float | None = None) -> None:
        raise Busy(request)

    async with app:
        await (await app.engine()).control.tune("curved", Tuning(curve=Curve(True, 30 * SECOND, HOUR)))
        wished = await work.using(queue="curved", backoff=Fixed(50)).enqueue(request=40)
        own = await work.using(queue="curved", backoff=Fixed(50)).enqueue()
        curved = await work.using(queue="curved").enqueue()
        default = await work.using(queue="plain").enqueue()
        await drain(app, queues=["curved", "plain"])
        waits = [
            ((await job.refresh()).scheduled_at - clock.moment()).seconds for job in (wished, own, curved, default)
        ]
        assert waits == [40, 50, 60, 70]


@pytest.mark.spec("WORKER-04")
async def test_retry_after_may_be_nonsense(timed_jobs: Stoker, clock: VirtualClock) -> None:
    class Broken(Exception):
        @property
        def retry_after(self) -> float:
            raise RuntimeError("no header")

    wishes: dict[str, Any] = {
        "timedelta": timedelta(seconds=33),
        "text": "soon",
        "nan": float("nan"),
        "negative": -1,
        "huge": 1e300,
    }

    @timed_jobs.task(backoff=Fixed(5))
    async def work(what: str) -> None:
        if what == "broken":
            raise Broken
        error = ValueError(what)
        error.retry_after = wishes[what]  # type: ignore[attr-defined]
        raise error

    handles = {what: await work.enqueue(what) for what in (*wishes, "broken")}
    await drain(timed_jobs)
    waits = {what: ((await job.refresh()).scheduled_at - clock.moment()).seconds for what, job in handles.items()}
    assert waits == {"timedelta": 33} | dict.fromkeys(("text", "nan", "negative", "huge", "broken"), 5)


@pytest.mark.spec("WORKER-05")
async def test_the_policy_says_which_errors_are_worth_a_retry(jobs: Stoker) -> None:
    raising: dict[str, BaseException] = {
        "listed": ConnectionError(),
        "never": ConnectionRefusedError(),
        "other": KeyError(),
        "group": ExceptionGroup("g", [ConnectionError(), ExceptionGroup("h", [ConnectionResetError()])]),
        "mixed": ExceptionGroup("g", [ConnectionError(), KeyError()]),
        "given up": ExceptionGroup("g", [ConnectionError(), ConnectionRefusedError()]),
    }

    @jobs.task(retry_on=ConnectionError, give_up_on=(ConnectionRefusedError,), backoff=Fixed(60))
    async def listed(what: str) -> None:
        raise raising[what]

    @jobs.task(retry_if=lambda error: "again" in str(error), backoff=Fixed(60))
    def asked(what: str) -> None:
        raise ValueError(what)

    def broken(error: BaseException) -> bool:
        raise SystemExit(3)

    @jobs.task(retry_if=broken, backoff=Fixed(60))
    async def unanswered() -> None:
        raise ValueError("itself")

    handles = {what: await listed.enqueue(what) for what in raising}
    handles |= {what: await asked.enqueue(what) for what in ("once again", "final")}
    handles["predicate fails"] = await unanswered.enqueue()
    await drain(jobs)
    statuses = {what: (await handle.refresh()).status.value for what, handle in handles.items()}
    assert statuses == {
        "listed": "retrying",
        "never": "dead",
        "other": "dead",
        "group": "retrying",
        "mixed": "dead",
        "given up": "dead",
        "once again": "retrying",
        "final": "dead",
        "predicate fails": "retrying",
    }
    assert "retry_if itself raised" in ((await handles["predicate fails"].refresh()).last_error or "")


@pytest.mark.spec("RETRY-09")
async def test_the_app_decides_about_errors_that_a_task_says_nothing_about() -> None:
    app = Stoker(MemoryEngine(), give_up_on=LookupError, retry_if=lambda error: "again" in str(error))
    raising = {"lookup": KeyError("again"), "again": ValueError("again"), "final": ValueError("no")}

    @app.task(backoff=Fixed(60))
    async def plain(what: str) -> None:
        raise raising[what]

    @app.task(backoff=Fixed(60), retry_on=LookupError)
    async def own(what: str) -> None:
        raise raising[what]

    async with app:
        made = {(task.name, what): await task.enqueue(what) for task in (plain, own) for what in raising}
        await drain(app)
        statuses = {name: (await job.refresh()).status.value for name, job in made.items()}
    assert statuses == {
        ("plain", "lookup"): "dead",
        ("plain", "again"): "retrying",
        ("plain", "final"): "dead",
        ("own", "lookup"): "retrying",
        ("own", "again"): "dead",
        ("own", "final"): "dead",
    }


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text for you")

    __repr__ = __str__


class Hostile(Exception):
    """Lies about itself wherever it can."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.spec("WORKER-06")
async def test_errors_that_cannot_be_printed_end_the_attempt_not_the_worker(jobs: Stoker) -> None:
    def endless() -> None:
        endless()

    def cyclic() -> None:
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    def raising(error: BaseException) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    acts: dict[str, Callable[[], None]] = {
        "unprintable": raising(Unprintable()),
        "hostile": raising(Hostile()),
        "large": raising(ValueError("x" * 10_000_000)),
        "binary": raising(ValueError("\0\ud800")),
        "deep": endless,
        "cyclic": cyclic,
        "stop": raising(StopIteration()),
    }

    @jobs.task(attempts=1)
    async def on_loop(what: str) -> None:
        acts[what]()

    @jobs.task(attempts=1)
    def in_thread(what: str) -> None:
        acts[what]()

    handles = [await task.enqueue(what) for what in acts for task in (on_loop, in_thread)]
    await drain(jobs)
    for handle in handles:
        record = await handle.refresh()
        assert record.status is Status.DEAD
        assert record.last_error
        assert len(record.last_error.encode()) <= 64 << 10


@pytest.mark.spec("SLOT-01")
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_exits_and_strange_exceptions_are_panics_and_the_worker_lives(jobs: Stoker, where: str) -> None:
    class Strange(BaseException):
        pass

    raising: dict[str, BaseException] = {
        "exit": SystemExit(7),
        "generator": GeneratorExit(),
        "strange": Strange("very"),
        "group": BaseExceptionGroup("g", [SystemExit(1)]),
    }

    def fail(what: str) -> None:
        raise raising[what]

    async def fail_on_loop(what: str) -> None:
        raise raising[what]

    work = jobs.task(name="work")(fail_on_loop if where == "loop" else fail)
    good = jobs.task(name="good")(lambda: 1)
    handles = [await work.enqueue(what) for what in raising]
    fine = await good.enqueue()
    await drain(jobs)
    for handle in handles:
        record = await handle.refresh()
        assert record.status is Status.DEAD, "a panic is not retried"
        assert (record.last_error or "").startswith("panic: ")
        assert record.attempts == 1
    assert await fine.result(0) == 1


@pytest.mark.spec("SLOT-02")
async def test_a_keyboard_interrupt_stops_the_worker_and_hands_the_job_back(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None:
        raise KeyboardInterrupt

    job = await work.enqueue()
    async with working(jobs) as worker:
        await asyncio.wait_for(worker.join(), PATIENCE)
        assert worker.state == "stopped"
    record = await job.refresh()
    assert (record.status, record.attempts, record.last_error) == (Status.PENDING, 0, None)


@pytest.mark.spec("SLOT-03")
async def test_a_cancelled_error_of_the_handlers_own_is_an_ordinary_failure(jobs: Stoker) -> None:
    ran: list[int] = []

    @jobs.task(backoff=Fixed(60))
    async def raises() -> None:
        raise asyncio.CancelledError("mine")

    @jobs.task(backoff=Fixed(60))
    async def awaits_canceled() -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    @jobs.task(backoff=Fixed(60))
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    @jobs.task(backoff=Fixed(60))
    async def cancels_itself_too_late() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @jobs.task
    async def innocent(n: int) -> None:
        await asyncio.sleep(0)
        ran.append(n)

    handles = [await task.enqueue() for task in (raises, awaits_canceled, cancels_itself)]
    late = await cancels_itself_too_late.enqueue()
    more = [await innocent.enqueue(n) for n in range(5)]
    await drain(jobs, queues={"default": 1})
    for handle in handles:
        record = await handle.refresh()
        assert record.status is Status.RETRYING
        assert "CancelledError" in (record.last_error or "")
    assert (await late.refresh()).status is Status.DONE
    assert [(await handle.refresh()).status for handle in more] == [Status.DONE] * 5
    assert ran == list(range(5)), "no other run is hit by it"


# --- exits ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("SIGNAL-01")
async def test_snooze_puts_the_job_off_free_of_charge(timed_jobs: Stoker, clock: VirtualClock) -> None:
    runs: list[int] = []

    @timed_jobs.task(attempts=1)
    async def work() -> str:
        runs.append(current().attempt)
        if len(runs) < 3:
            try:
                raise Snooze(60)
            except Exception as error:
                raise AssertionError("a stray except must not eat an exit") from error
        return "awake"

    job = await work.enqueue()
    for _ in range(2):
        await drain(timed_jobs)
        record = await job.refresh()
        assert (record.status, record.attempts, record.history) == (Status.PENDING, 0, ())
        assert record.scheduled_at == clock.moment() + timedelta(seconds=60)
        clock.advance(60)
    await drain(timed_jobs)
    assert await job.result(0) == "awake"
    assert runs == [1, 1, 1]


@pytest.mark.spec("SIGNAL-02")
async def test_throttle_cools_the_whole_queue_or_only_the_job(timed_jobs: Stoker, clock: VirtualClock) -> None:
    runs: list[str] = []

    @timed_jobs.task
    async def work(name: str, wait: float | None = None, queue: bool = True) -> None:
        runs.append(name)
        if name not in runs[:-1] and name != "calm":
            raise Throttle(wait, queue=queue)

    hot = await work.using(priority=-1).enqueue("hot", 120)
    calm = await work.enqueue("calm")
    await drain(timed_jobs, queues={"default": 1}, claim_batch=1)
    assert runs == ["hot"]
    record = await hot.refresh()
    assert (record.status, record.attempts, record.throttles) == (Status.PENDING, 0, 1)
    assert (await calm.refresh()).status is Status.PENDING
    clock.advance(121)
    await drain(timed_jobs)
    assert sorted(runs) == ["calm", "hot", "hot"]
    alone = await work.using(queue="other").enqueue("alone", 30, queue=False)
    beside = await work.using(queue="other").enqueue("calm")
    await drain(timed_jobs, queues=["other"])
    assert (await alone.refresh()).scheduled_at == clock.moment() + timedelta(seconds=30)
    assert (await beside.refresh()).status is Status.DONE


@pytest.mark.spec("SIGNAL-03")
async def test_retry_counts_as_a_failure_with_a_time_of_its_own(timed_jobs: Stoker, clock: VirtualClock) -> None:
    when = datetime(2030, 1, 1, 2, tzinfo=UTC)

    @timed_jobs.task(attempts=2, backoff=Exponential(base=9))
    async def work(at: bool) -> None:
        raise Retry("not yet", at=when) if at else Retry(delay=5)

    by_time, by_delay = await work.enqueue(at=True), await work.enqueue(at=False)
    await drain(timed_jobs)
    record = await by_time.refresh()
    assert (record.status, record.last_error) == (Status.RETRYING, "not yet")
    # The store's clock stood still while the handler ran, so what the run took is missing here.
    assert timedelta(0) <= clock.moment() + timedelta(hours=2) - record.scheduled_at < timedelta(seconds=PATIENCE)
    assert (await by_delay.refresh()).scheduled_at == clock.moment() + timedelta(seconds=5)
    clock.advance(5)
    await drain(timed_jobs)
    assert (await by_delay.refresh()).status is Status.DEAD, "the budget is spent"


@pytest.mark.spec("RETRY-08")
async def test_a_time_the_handler_asks_for_does_not_beat_the_policy(timed_jobs: Stoker, clock: VirtualClock) -> None:
    runs: list[str] = []

    class Busy(Exception):
        retry_after = 1

    wishes: dict[str, Callable[[], BaseException]] = {
        "delay": lambda: Retry(delay=1),
        "moment": lambda: Retry(at=datetime(2000, 1, 1, tzinfo=UTC)),
        "error": Busy,
    }

    @timed_jobs.task(attempts=6)
    async def work(request: str) -> None:
        runs.append(request)
        error = wishes[request]()
        raise error

    never = [await work.using(backoff=Never()).enqueue(request) for request in wishes]
    await drain(timed_jobs)
    assert sorted(runs) == sorted(wishes)
    limited = [await work.using(backoff=Fixed(60, limit=2)).enqueue(request) for request in wishes]
    for _ in range(6):
        await drain(timed_jobs)
        clock.advance(1)
    assert sorted(runs) == sorted(list(wishes) * 4), "one run before, and three each: two retries at the chosen time"
    for job in (*never, *limited):
        assert (await job.refresh()).status is Status.DEAD


@pytest.mark.spec("SIGNAL-04")
async def test_reject_is_dead_at_once(jobs: Stoker) -> None:
    @jobs.task(attempts=9)
    def work() -> None:
        raise Reject("no \0 such \ud800 thing")

    job = await work.enqueue()
    await drain(jobs)
    record = await job.refresh()
    assert (record.status, record.attempts) == (Status.DEAD, 1)
    assert (record.last_error or "").startswith("no ")


@pytest.mark.spec("SIGNAL-05")
async def test_in_a_group_ordinary_errors_win_then_the_gravest_signal(jobs: Stoker) -> None:
    groups: dict[str, list[BaseException]] = {
        "ordinary": [Reject("r"), ValueError("v")],
        "reject": [Snooze(1), Reject("r"), Retry("t", delay=60)],
        "retry": [Snooze(1), Throttle(queue=False), Retry("t", delay=60)],
        "snooze": [Snooze(60), BaseExceptionGroup("inner", [Snooze(60)])],
    }

    @jobs.task(backoff=Fixed(60))
    async def work(what: str) -> None:
        raise BaseExceptionGroup(what, groups[what])

    @jobs.task(backoff=Fixed(60))
    async def in_task_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper(Reject("from a task")))
            group.create_task(asyncio.sleep(60))

    async def sleeper(error: BaseException) -> None:
        raise error

    handles = {what: await work.enqueue(what) for what in groups}
    grouped = await in_task_group.enqueue()
    await drain(jobs)
    found = {what: (await handle.refresh()) for what, handle in handles.items()}
    assert {what: (record.status.value, record.attempts) for what, record in found.items()} == {
        "ordinary": ("retrying", 1),
        "reject": ("dead", 1),
        "retry": ("retrying", 1),
        "snooze": ("pending", 0),
    }
    assert (await grouped.refresh()).last_error == "from a task"


# --- the context ------------------------------------------------------------------------------------------------


@pytest.mark.spec("CONTEXT-01")
async def test_current_tells_a_handler_about_its_run(jobs: Stoker) -> None:
    seen: dict[str, Any] = {}

    @jobs.task(queue="mail", timeout=3600)
    def work() -> None:
        context = current()
        seen.update({name: getattr(context, name) for name in ("id", "kind", "queue", "tenant", "attempt", "worker")})
        assert context.token > 0
        assert 0 <= context.elapsed < PATIENCE
        assert context.remaining is not None
        assert 3600 - PATIENCE < context.remaining <= 3600
        assert not context.cancel
        assert not context.cancel.requested

    job = await work.using(tenant="acme").enqueue()
    worker = await drain(jobs)
    await job.result(0)
    assert seen == {
        "id": job.id,
        "kind": "work",
        "queue": "mail",
        "tenant": "acme",
        "attempt": 1,
        "worker": worker.id,
    }


@pytest.mark.spec("CONTEXT-02")
async def test_progress_and_log_lines_are_on_the_record_also_of_a_quick_job(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TEND_EVERY", 0.05)
    go = asyncio.Event()

    @jobs.task
    async def slow() -> None:
        current().progress(0.25)
        current().log("begun")
        await go.wait()

    @jobs.task
    def quick() -> None:
        current().log("first")
        current().progress(0.5)
        current().log("second", "third")
        current().progress(1)

    job, other = await slow.enqueue(), await quick.enqueue()
    async with working(jobs):
        await becomes(other, Status.DONE)
        async with asyncio.timeout(PATIENCE):
            while (await job.refresh()).progress != 0.25:
                await asyncio.sleep(0.01)
        go.set()
        await job.result(PATIENCE)
    record = await other.refresh()
    assert (record.progress, record.log) == (1.0, ("first", "second", "third"))
    assert (await job.refresh()).log == ("begun",)


@pytest.mark.spec("CONTEXT-02")
async def test_what_a_handler_says_may_be_anything_and_any_amount(jobs: Stoker) -> None:
    @jobs.task
    def chatty() -> None:
        for n in range(5_000):
            current().log(f"line {n}")
        current().log("\0 \ud800", 7)  # type: ignore[arg-type]

    @jobs.task(attempts=1)
    async def wrong() -> None:
        for fraction in (-0.1, 1.1, float("nan")):
            with pytest.raises(InvalidInput, match="progress"):
                current().progress(fraction)

    job, other = await chatty.enqueue(), await wrong.enqueue()
    await drain(jobs)
    log = (await job.refresh()).log
    assert len(log) == 100
    assert log[:2] == ("line 4902", "line 4903")
    assert log[-1] == "7"
    assert (await other.refresh()).status is Status.DONE


@pytest.mark.spec("CONTEXT-03")
async def test_metadata_of_a_run_is_kept_with_a_prefix(jobs: Stoker) -> None:
    @jobs.task(metadata={"source": "import"})
    async def work(fail: bool = False) -> None:
        current().metadata["rows"] = "12"
        current().metadata["number"] = 7  # type: ignore[assignment]
        current().metadata["odd"] = "\0\ud800"
        if fail:
            raise Reject("bad")

    @jobs.task
    def excessive() -> None:
        current().metadata["large"] = "x" * 10_000

    handles = [await work.enqueue(), await work.enqueue(fail=True)]
    large = await excessive.enqueue()
    await drain(jobs)
    for handle in handles:
        metadata = (await handle.refresh()).metadata
        assert (metadata["exec_rows"], metadata["exec_number"]) == ("12", "7")
        assert "exec_odd" in metadata
    record = await large.refresh()
    assert record.status is Status.DONE
    assert "left out" in record.metadata["exec_metadata_warning"]


@pytest.mark.spec("CONTEXT-09")
async def test_an_attempt_reads_what_the_ones_before_it_noted(jobs: Stoker) -> None:
    """In async and in plain handlers alike; what the enqueuer said is there from the beginning."""

    def attempt() -> None:
        metadata = current().metadata
        assert metadata["source"] == "import"
        metadata["page"] = str(int(metadata.get("page", "0")) + 1)
        if current().attempt < 3:
            raise ValueError

    @jobs.task(metadata={"source": "import"}, backoff=Fixed(0))
    async def on_loop() -> None:
        attempt()

    @jobs.task(metadata={"source": "import"}, backoff=Fixed(0))
    def in_thread() -> None:
        attempt()

    handles = [await on_loop.enqueue(), await in_thread.enqueue()]
    await drain(jobs)
    for handle in handles:
        record = await handle.refresh()
        assert (record.status, record.last_error) == (Status.DONE, None)
        assert record.metadata == {"source": "import", "exec_page": "3"}


@pytest.mark.spec("CONTEXT-04")
async def test_follow_ups_are_stored_with_success_and_only_then(jobs: Stoker) -> None:
    ran: list[str] = []

    @jobs.task
    async def after(name: str) -> None:
        ran.append(name)

    @jobs.task(attempts=1)
    async def work(fail: bool) -> None:
        current().follow_up(after.draft(f"{fail} 1"), [after.draft(f"{fail} 2")])
        if fail:
            raise ValueError("no")

    heard: list[str] = []
    jobs.listener(lambda change: heard.append(f"{change.kind} {change.after}") if change.before is None else None)
    await work.enqueue(fail=True)
    await work.enqueue(fail=False)
    await drain(jobs)
    assert sorted(ran) == ["False 1", "False 2"]
    assert heard == ["work pending", "work pending", "after pending", "after pending"]


@pytest.mark.spec("SETTLE-23")
async def test_follow_ups_with_a_key_that_were_stored_are_told(jobs: Stoker) -> None:
    """To listeners and the timeline, before they are told as started; one that met its holder is not."""

    @jobs.task(unique="one")
    async def after() -> None: ...

    @jobs.task
    async def work() -> None:
        current().follow_up(after.draft(), after.draft())

    heard: list[tuple[str, Status | None, Status | None]] = []
    jobs.listener(lambda change: heard.append((change.kind, change.before, change.after)))
    await work.enqueue()
    await drain(jobs)
    assert [change for kind, *change in heard if kind == "after"] == [
        [None, Status.PENDING],
        [Status.PENDING, Status.RUNNING],
        [Status.RUNNING, Status.DONE],
    ]
    engine = await jobs.engine()
    assert jobs.timeline is not None
    await jobs.timeline.flush(engine.timeline)
    events = await engine.timeline.events(Window(0, await engine.now() + HOUR))
    assert [event.type for event in events if event.kind == "after"].count(EventType.ENQUEUED) == 1


@pytest.mark.spec("CONTEXT-07")
async def test_what_one_job_puts_into_contextvars_no_other_job_sees(jobs: Stoker) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")

    @jobs.task
    async def dirty() -> str:
        before = variable.get()
        await asyncio.sleep(0)
        variable.set("dirty")
        await asyncio.sleep(0)
        assert variable.get() == "dirty"
        assert await asyncio.ensure_future(asyncio.to_thread(variable.get)) == "dirty"
        return before

    @jobs.task
    def threaded() -> str:
        before = variable.get()
        variable.set("dirty")
        return before

    handles = [await task.enqueue() for _ in range(3) for task in (dirty, threaded)]
    await drain(jobs, queues={"default": 1})
    assert [await handle.result(0) for handle in handles] == ["clean"] * 6
    assert variable.get() == "clean"


@pytest.mark.spec("CONTEXT-08")
async def test_the_logger_says_which_job_speaks(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stoker.job")

    @jobs.task
    async def work() -> None:
        current().logger.info("hello")

    job = await work.enqueue()
    await drain(jobs)
    [record] = [record for record in caplog.records if record.name == "stoker.job"]
    assert (record.job, record.kind, record.attempt) == (job.id, "work", 1)  # type: ignore[attr-defined]


# --- what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.spec("WORKER-07")
async def test_an_unknown_task_is_put_back_for_longer_and_longer_and_dies_after_the_grace(
    timed_jobs: Stoker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    timed_jobs.declare("elsewhere")
    job = await timed_jobs.enqueue(timed_jobs.draft("elsewhere"))
    waits: list[float] = []
    await drain(timed_jobs, queues=["default"], unknown_task_grace=3600)
    while (record := await job.refresh()).status is Status.PENDING and len(waits) < 30:
        assert record.attempts == 0
        waits.append((record.scheduled_at - clock.moment()).total_seconds())
        clock.advance(waits[-1])
        await drain(timed_jobs, queues=["default"], unknown_task_grace=3600)
    assert record.status is Status.DEAD
    assert "'elsewhere'" in (record.last_error or "")
    assert waits == sorted(waits)
    assert waits[0] == 1
    assert waits[-1] == 300
    assert 3600 <= sum(waits) < 3600 + 300
    assert f"job {job.id} (elsewhere, queue default) cannot run here" in caplog.text


@pytest.mark.spec("WORKER-07")
async def test_arguments_that_do_not_fit_are_treated_like_an_unknown_task(jobs: Stoker) -> None:
    @jobs.task(validate=False)
    async def work(n: int) -> None: ...

    payloads: list[Any] = [{"n": "seven"}, {"m": 1}, [1, 2], None, {}]
    patient = [await jobs.enqueue(jobs.draft("work", payload)) for payload in payloads]
    await drain(jobs)
    assert {(await job.refresh()).status for job in patient} == {Status.PENDING}
    strict = [await jobs.enqueue(jobs.draft("work", payload)) for payload in payloads]
    await drain(jobs, unknown_task_grace=0)
    for job in strict:
        record = await job.refresh()
        assert record.status is Status.DEAD
        assert (record.last_error or "").startswith("the arguments do not fit task 'work': work(")


@pytest.mark.spec("WORKER-08")
async def test_a_job_that_was_not_started_in_time_is_canceled(timed_jobs: Stoker, clock: VirtualClock) -> None:
    ran: list[str] = []

    @timed_jobs.task(expires=60)
    async def work(name: str) -> None:
        ran.append(name)

    timed_jobs.declare("elsewhere", expires=60)
    in_time = await work.enqueue("in time")
    clock.advance(60)
    await drain(timed_jobs)
    late = await work.enqueue("late")
    stranger = await timed_jobs.enqueue(timed_jobs.draft("elsewhere"))
    clock.advance(61)
    await drain(timed_jobs)
    assert ran == ["in time"]
    assert (await in_time.refresh()).status is Status.DONE
    for job in (late, stranger):
        record = await job.refresh()
        assert (record.status, record.attempts) == (Status.CANCELED, 0)
        assert record.last_error == "expired: not started within 60 s"


@pytest.mark.spec("HOOK-09")
async def test_plain_middleware_runs_in_the_thread_of_the_handler(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    """In order, inside the async ones; it may change the result and knows the run. Async tasks go without."""
    caplog.set_level(logging.INFO)
    log: list[tuple[str, int]] = []

    def plain(name: str) -> Callable[[Callable[[Any], Any], Any], Any]:
        def middleware(call: Callable[[Any], Any], context: Any) -> Any:
            assert context is current()
            log.append((name, threading.get_ident()))
            try:
                return f"{name}({call(context)})"
            finally:
                log.append((f"{name} out", threading.get_ident()))

        return middleware

    async def outer(call: Callable[[Any], Any], context: Any) -> Any:
        log.append(("outer", threading.get_ident()))
        return f"outer({await call(context)})"

    jobs.middleware += [plain("a"), outer, plain("b")]

    @jobs.task(attempts=1)
    def in_thread(fail: bool = False) -> str:
        log.append(("handler", threading.get_ident()))
        if fail:
            raise ValueError("no")
        return "x"

    @jobs.task
    async def on_loop() -> str:
        return "y"

    handles = [await in_thread.enqueue(), await on_loop.enqueue()]
    failed = await in_thread.enqueue(fail=True)
    async with working(jobs, {"default": 1}):
        assert [await handle.result(PATIENCE) for handle in handles] == ["outer(a(b(x)))", "outer(y)"]
        await becomes(failed, Status.DEAD)
    names = ["outer", "a", "b", "handler", "b out", "a out"]
    assert [name for name, _ in log] == [*names, "outer", *names]
    assert len({thread for name, thread in log[1:6]}) == 1
    assert log[0][1] == threading.get_ident() != log[1][1]
    assert caplog.text.count("not the async task on_loop") == 2


@pytest.mark.spec("CONTEXT-12")
async def test_metadata_of_a_run_is_stored_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loop, in threads, in processes and of each job of a chunk: a kill loses a second of it at most."""
    monkeypatch.setenv("NOTING_DB", str(tmp_path / "jobs.db"))  # children read it too
    monkeypatch.setattr(maintenance, "TEND_EVERY", 0.02)
    noting = importlib.import_module("tests.worker.apps.noting")
    async with noting.jobs as jobs:
        tasks = [noting.on_loop, noting.in_thread, noting.in_thread.using(isolation="process")]
        handles = [await task.enqueue() for task in tasks]
        handles += [await noting.in_a_chunk.enqueue(number) for number in (1, 2)]
        ends = ["", "", "", " of 1", " of 2"]
        async with working(jobs, {"default": 3, "in_a_chunk": 1}):
            for step in ("one", "two"):
                async with asyncio.timeout(PATIENCE):
                    while True:
                        records = [await handle.refresh() for handle in handles]
                        if [record.metadata.get("exec_step") for record in records] == [step + end for end in ends]:
                            break
                        await asyncio.sleep(0.01)
                assert {record.status for record in records} == {Status.RUNNING}
                assert [record.metadata["exec_count"] for record in records[1:3]] == ["3", "3"], "text, as everywhere"
                (tmp_path / step).touch()
            for handle in handles:
                await handle.result(PATIENCE)
        assert "exec_passing" not in (await handles[2].refresh()).metadata, "what was removed at once is not stored"


@pytest.mark.spec("CONTEXT-12")
async def test_metadata_that_is_too_large_is_not_stored_while_its_run_goes_on(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end says so; what was stored before stays."""
    monkeypatch.setattr(maintenance, "TEND_EVERY", 0.01)
    steps = [asyncio.Event(), asyncio.Event()]

    @jobs.task
    async def work() -> None:
        current().metadata["page"] = "1"
        await steps[0].wait()
        current().metadata["page"] = "x" * 10_000_000
        await steps[1].wait()

    handle = await work.enqueue()
    async with working(jobs, poll=0.01) as worker:
        async with asyncio.timeout(PATIENCE):
            while (await handle.refresh()).metadata != {"exec_page": "1"}:
                await asyncio.sleep(0.01)
        steps[0].set()
        await until(lambda: any(len(own["page"]) > 1 for own in worker.progress.gathered.values()))
        await worker.progress.write()
        assert (await handle.refresh()).metadata == {"exec_page": "1"}
        steps[1].set()
        await handle.result(PATIENCE)
    found = (await handle.refresh()).metadata
    assert (found["exec_page"], "left out" in found[METADATA_WARNING]) == ("1", True)

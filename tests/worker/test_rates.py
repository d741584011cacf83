"""Rates while workers are at work: a queue's own, and budgets that handlers spend from."""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import random

import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.context import current
from stoker.engines.url import engine_from_url
from stoker.limits import Limit
from stoker.model.job import Status
from stoker.model.outcome import Retry, Snooze, Throttle
from stoker.model.retry import Fixed
from stoker.model.throttle import OPEN, Rate
from stoker.testing.clock import VirtualClock
from tests.harness.apps import PATIENCE, becomes, drain, until, working


@pytest.mark.spec("RATE-12")
async def test_workers_start_no_more_than_the_rate_allows(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """Two workers with twenty slots on five starts a minute: five now, five a minute later."""
    runs: list[int] = []

    @timed_jobs.task(queue="mail")
    async def send(n: int) -> None:
        runs.append(n)

    timed_jobs.queue("mail", rate=Rate(5, per=60))
    await timed_jobs.enqueue_many(send.draft(n) for n in range(20))
    slots = {"mail": 10}
    async with working(timed_jobs, slots, lease=3600) as one, working(timed_jobs, slots, lease=3600) as other:
        for rounds in (1, 2):
            await until(lambda wanted=5 * rounds: len(runs) == wanted)  # type: ignore[misc]
            for worker in (one, other):
                worker.fetcher.wake()
                await worker.store_loop.call()
            await asyncio.sleep(0.01)
            assert len(runs) == 5 * rounds
            clock.advance(60)
            for worker in (one, other):
                worker.due_timer.reset()
    assert runs == sorted(runs)


@pytest.mark.spec("RATE-11")
async def test_a_refused_spend_puts_the_job_off_and_costs_nothing(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """The job waits as long as the hint says, keeps its attempts, and its queue does not cool down."""

    @timed_jobs.task
    async def call() -> str:
        await current().spend("sms", 2)
        return "sent"

    timed_jobs.budget("sms", Rate(1, per=2, burst=3))
    first, second = await call.enqueue(), await call.enqueue()
    await drain(timed_jobs)
    done, put_off = await first.refresh(), await second.refresh()
    if done.status is not Status.DONE:
        done, put_off = put_off, done
    assert (done.status, put_off.status, put_off.attempts, put_off.history) == (Status.DONE, Status.PENDING, 0, ())
    engine = await timed_jobs.engine()
    assert put_off.scheduled_at == datetime.fromtimestamp(await engine.now() / 1e6, UTC) + timedelta(seconds=4)
    assert all(queue.cooldown == OPEN for queue in await engine.control.queues())
    clock.advance(4)
    await drain(timed_jobs)
    assert (await second.refresh()).status is (await first.refresh()).status is Status.DONE


@pytest.mark.spec("RATE-11")
async def test_a_handler_drains_a_budget_that_the_real_limiter_refused(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def call() -> list[bool]:
        return [await current().drain("sms"), await current().drain("unknown")]

    timed_jobs.budget("sms", Rate(9))
    job = await call.enqueue()
    await drain(timed_jobs)
    assert await job.result(0) == [True, False]
    grant = await timed_jobs.spend("sms")
    assert (grant.granted, grant.wait) == (False, timedelta(seconds=1))


@pytest.mark.spec("RATE-11", "BUDGET-12")
async def test_handlers_spend_on_the_loop_in_threads_and_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a handler runs, it spends from the same budget, and a refusal puts its job off."""
    monkeypatch.setenv("SPENDING_DB", str(tmp_path / "jobs.db"))  # children read it too
    spending = importlib.import_module("tests.worker.apps.spending")
    places = [
        task.using(isolation=apart) for task in (spending.on_loop, spending.in_thread) for apart in (None, "process")
    ]
    async with spending.jobs as jobs, working(jobs, {"default": 2}):
        granted = [await task.enqueue() for task in places]
        assert [await job.result(PATIENCE) == os.getpid() for job in granted] == [True, False, True, False]
        refused = [await task.enqueue() for task in places]
        drained = [await spending.emptied.using(isolation=apart).enqueue() for apart in (None, "process")]
        assert [await job.result(PATIENCE) for job in drained] == [[True, False]] * 2
        for job in refused:
            record = await becomes(job, Status.PENDING)
            while record.scheduled_at == record.created_at:
                record = await becomes(job, Status.PENDING)
            assert (record.attempts, record.history, record.metadata["stoker.held_by"]) == (0, (), "sms")


@pytest.mark.engine("redis")
@pytest.mark.spec("WORKER-39")
async def test_a_busy_fair_queue_leaves_a_rated_queue_its_rate(redis_url: str, redis_prefix: str) -> None:
    """Beside it, starts of the rated queue and spent tokens of a budget reach 15 of 20 in each of five seconds."""
    jobs = Stoker(engine_from_url(f"{redis_url}?prefix={redis_prefix}"), timeline=False)
    starts: dict[str, list[float]] = {"rated": [], "spending": []}
    left = 0

    @jobs.task(queue="fair", limit=Limit(2, key="@tenant"))
    async def churn() -> None:
        nonlocal left
        left -= 1
        await asyncio.sleep(random() * 0.004)

    @jobs.task(queue="rated")
    async def rated() -> None:
        starts["rated"].append(time.monotonic())

    @jobs.task(queue="spending")
    async def spend() -> None:
        await current().spend("calls")
        starts["spending"].append(time.monotonic())

    jobs.queue("fair", fair=True)
    jobs.queue("rated", rate=Rate(20))
    jobs.budget("calls", Rate(20))

    def steady(times: list[float]) -> bool:
        """Were there 15 starts in each of the last five full seconds? A stall of the machine only makes us wait."""
        seconds = Counter(int(time.monotonic() - at) for at in times)
        return max(seconds, default=0) >= 5 and all(seconds[ago] >= 15 for ago in range(5))

    async def keep_busy() -> None:
        nonlocal left
        while True:
            if left < 2_000:
                left += len(await jobs.enqueue_many(churn.using(tenant=f"t{n % 5}").draft() for n in range(2_000)))
            await asyncio.sleep(0.1)

    async with jobs:
        await jobs.enqueue_many(task.draft() for task in (rated, spend) for _ in range(1_500))
        busy = asyncio.create_task(keep_busy())
        slots = {"fair": 20, "rated": 5, "spending": 5}
        async with working(jobs, slots):
            await until(lambda: steady(starts["rated"]) and steady(starts["spending"]))
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


# --- tokens that can never be granted -----------------------------------------------------------------------------


@pytest.mark.spec("BUDGET-11")
async def test_a_spend_above_the_declared_capacity_is_a_mistake_of_the_handler(timed_jobs: Stoker) -> None:
    @timed_jobs.task(attempts=1)
    async def call(budget: str, n: int) -> None:
        await current().spend(budget, n)

    @timed_jobs.task(attempts=1)
    def plain(budget: str, n: int) -> None:
        current().spend_sync(budget, n)

    timed_jobs.budget("llm", Rate(10))
    made = [await task.enqueue(budget, n) for task in (call, plain) for budget, n in (("llm", 50), ("lmm", 1))]
    await drain(timed_jobs)
    errors = [(await job.refresh()).last_error or "" for job in made]
    for above, unknown in (errors[:2], errors[2:]):
        assert "InvalidInput: spend('llm', n): budget 'llm' is declared to hold at most 10 tokens" in above
        assert "below the 50 asked for; got 50" in above
        assert "InvalidInput: spend('lmm', n): no app declares this budget and none is stored" in unknown


@pytest.mark.spec("BUDGET-12")
async def test_a_spend_that_a_tuning_made_impossible_waits_and_is_named(
    timed_jobs: Stoker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The job is put off as before; explain, Health and one log line a minute say that this cannot end by itself."""

    @timed_jobs.task(attempts=1)
    async def call() -> str:
        await current().spend("llm", 50)
        return "sent"

    timed_jobs.budget("llm", Rate(100, per=60))
    engine = await timed_jobs.engine()
    await timed_jobs.declarations.store(engine)
    await timed_jobs.budget("llm").tune(Rate(10, per=60))
    admin = Admin(timed_jobs)
    job, _ = await call.enqueue(), await call.enqueue()
    async with working(timed_jobs, {"default": 2}, lease=3600) as worker:
        await until(lambda: worker.failures.held == {"llm": 50})
        record = await becomes(job, Status.PENDING)
        while "stoker.held_by" not in record.metadata:
            record = await becomes(job, Status.PENDING)
        assert (record.attempts, record.metadata["stoker.held_by"], record.history) == (0, "llm", ())
        why = await admin.jobs.explain(job.id)
        assert why.reason == "held_by_budget"
        assert "held by budget 'llm', which refused it 50 tokens" in why.detail
        assert "in vain: the budget holds at most 10" in why.detail
        await worker.maintenance.show_and_tune()
        [check] = [one for one in await admin.health.check() if one.name == "budgets"]
        assert (check.verdict.value, check.read) == (
            "warning",
            "jobs ask budget llm for 50 tokens, and it was tuned to hold at most 10",
        )
        logged = [one.getMessage() for one in caplog.records if "can never run" in one.getMessage()]
        assert len(logged) == 1, "two jobs, one line"
        assert "is held by budget llm and can never run: budget 'llm' was tuned to hold at most 10 tokens" in logged[0]
        assert "(its code declares 100), which is below the 50 asked for" in logged[0]
    await timed_jobs.budget("llm").tune(Rate(1000, per=60))
    clock.advance(60)
    await drain(timed_jobs)
    assert (await job.refresh()).status in {Status.DONE, Status.PENDING}
    assert {one.verdict.value for one in await admin.health.check() if one.name == "budgets"} == {"ok"}


@pytest.mark.spec("BUDGET-11")
async def test_a_refusal_outside_a_handler_says_why(timed_jobs: Stoker) -> None:
    timed_jobs.budget("late", Rate(10))
    assert "is declared and not stored yet" in ((await timed_jobs.spend("late")).reason or "")
    await timed_jobs.declarations.store(await timed_jobs.engine())
    assert await timed_jobs.spend("late", 10)
    for n, says in ((1, "has no token now"), (50, "declared to hold at most 10 tokens")):
        refused = await timed_jobs.spend("late", n)
        assert not refused
        assert says in (refused.reason or "")
    assert "no app declares this budget" in ((await timed_jobs.spend("unknown")).reason or "")
    await timed_jobs.budget("tuned").tune(Rate(5))
    granted, refused = await timed_jobs.spend("tuned", 5), await timed_jobs.spend("tuned", 6)
    assert (granted.reason, refused.reason) == (
        None,
        "budget 'tuned' was tuned to hold at most 5 tokens, which is below the 6 asked for",
    )


@pytest.mark.spec("SIGNAL-06")
@pytest.mark.parametrize(
    ("raised", "status", "attempts", "waits"),
    [
        (lambda: Snooze(-5), Status.PENDING, 0, 60),
        (lambda: Throttle(math.nan), Status.PENDING, 0, 60),
        (lambda: Retry("later", delay=-5), Status.RETRYING, 1, 7),
    ],
)
async def test_a_handler_with_an_impossible_delay_costs_no_more_than_a_possible_one(
    timed_jobs: Stoker,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    raised: Callable[[], BaseException],
    status: Status,
    attempts: int,
    waits: float,
) -> None:
    @timed_jobs.task(attempts=3, backoff=Fixed(7), give_up_on=(ValueError,))
    async def work() -> None:
        raise raised()

    job = await work.enqueue()
    await drain(timed_jobs)
    record = await job.refresh()
    assert (record.status, record.attempts) == (status, attempts)
    assert record.scheduled_at == clock.moment() + timedelta(seconds=waits)
    [line] = [one for one in caplog.records if "impossible delay" in one.getMessage()]
    assert line.getMessage().startswith(f"job {job.id} (work, queue default) ended its run with an impossible delay.")
    assert line.__dict__["job"] == job.id

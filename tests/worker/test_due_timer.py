"""The due timer: a worker that is not woken starts jobs when they are due. `poll` is an hour, so it does not look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.model.control import Tuning
from stoker.model.job import Claim, Demand, Status
from stoker.model.next_due import NextDue
from stoker.model.outcome import Snooze, Throttle
from stoker.model.retry import Fixed
from stoker.model.throttle import Rate
from stoker.model.time import SECOND
from stoker.testing.clock import VirtualClock
from stoker.worker import Worker
from stoker.worker.due_timer import LATER, DueTimer
from stoker.worker.fetcher import Fetcher
from tests.harness.apps import PATIENCE, until, working
from tests.harness.doubles import Double

NEVER = 3600
"""A poll interval that no test lives to see."""


def set_to(worker: Worker, seconds: float) -> bool:
    """Is the alarm set to this time from now, give or take what the test itself needs?"""
    left = worker.due_timer.fires_in
    return left is not None and seconds - PATIENCE < left <= seconds + LATER


@pytest.mark.spec("WORKER-35")
async def test_the_alarm_is_set_to_the_next_due_time(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """By the store's clock, and moved by a job that is due earlier than what the worker knew."""

    @timed_jobs.task
    async def work() -> None: ...

    await work.using(delay=7200).enqueue()
    async with working(timed_jobs, poll=NEVER) as worker:
        await until(lambda: set_to(worker, 7200))
        await work.using(delay=0.2).enqueue()
        await until(lambda: set_to(worker, 0.2))
        clock.advance(0.2)
        await until(lambda: worker.counts[Status.DONE] == 1)
        await until(lambda: set_to(worker, 7200))


@pytest.mark.spec("WORKER-35")
async def test_a_delayed_job_starts_without_a_poll(jobs: Stoker) -> None:
    """Also one that comes back by a snooze or a retry, and one that waits for a cool-down."""
    runs: list[str] = []

    @jobs.task(attempts=3, backoff=Fixed(0.05))
    async def work(name: str) -> None:
        runs.append(name)
        if runs.count(name) == 1:
            if name == "snooze":
                raise Snooze(0.05)
            if name == "throttle":
                raise Throttle(0.05)
            if name == "retry":
                raise ValueError(name)

    async with working(jobs, poll=NEVER):
        for name in ("delay", "snooze", "retry", "throttle"):
            handle = await work.using(delay=0.05).enqueue(name)
            await handle.result(PATIENCE)
    assert runs == ["delay", *(name for name in ("snooze", "retry", "throttle") for _ in range(2))]


class Counting:
    """Counts what a worker asks of its engine."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claims = self.looks = self.waits = 0
        claim, ahead, wait = engine.jobs.claim, engine.jobs.ahead, engine.jobs.wait

        async def counted_wait(topics: Sequence[str], timeout: float) -> frozenset[str]:
            self.waits += "default" in topics
            return await wait(topics, timeout)

        async def counted_claim(demand: Demand) -> list[Claim]:
            self.claims += 1
            return await claim(demand)

        async def counted_ahead(queues: Sequence[str]) -> NextDue:
            self.looks += 1
            return await ahead(queues)

        monkeypatch.setattr(engine.jobs, "claim", counted_claim)
        monkeypatch.setattr(engine.jobs, "ahead", counted_ahead)
        monkeypatch.setattr(engine.jobs, "wait", counted_wait)


@pytest.mark.spec("WORKER-36")
@pytest.mark.parametrize("closed", ["paused", "cooling", "dry"])
async def test_no_claim_is_spent_on_a_closed_queue(jobs: Stoker, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """Its worker sleeps, can be stopped, and is woken by a resume."""
    runs: list[int] = []

    @jobs.task
    async def work() -> None:
        runs.append(1)
        if closed == "cooling" and len(runs) == 1:
            raise Throttle(NEVER)

    engine = await jobs.engine()
    if closed == "paused":
        await engine.control.tune("default", Tuning(paused=True))
    if closed == "dry":
        await engine.control.tune("default", Tuning(rate=Rate(1, per=NEVER)))
        await work.enqueue()
    await work.enqueue()
    counting = Counting(engine, monkeypatch)
    async with working(jobs, poll=0.01) as worker:
        await until(lambda: worker.due_timer.open == frozenset())
        await until(lambda: closed == "paused" or worker.due_timer.sleeps)
        claims, looks, waits = counting.claims, counting.looks, counting.waits
        await until(lambda: counting.waits > waits + 20)
        assert counting.claims == claims
        if closed == "paused":
            assert counting.looks > looks, "a lost wake-up must not keep it closed"
        else:
            assert counting.looks <= looks + 1, "it knows when the queue opens; its settings were read once meanwhile"
        if closed == "paused":
            await engine.control.tune("default", Tuning(paused=False))
            await until(lambda: runs == [1])
        else:
            await asyncio.wait_for(worker.stop(), PATIENCE)
    assert runs == [1]


@pytest.mark.spec("WORKER-36")
async def test_a_queue_that_was_reopened_is_noticed_without_a_wake_up(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads the settings of its queues every few seconds anyway."""
    runs: list[int] = []

    @jobs.task
    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Throttle(NEVER)

    engine = await jobs.engine()

    async def never_woken(_topics: Sequence[str], _timeout: float) -> frozenset[str]:
        await asyncio.sleep(0.005)
        return frozenset()

    monkeypatch.setattr(engine.jobs, "wait", never_woken)
    await work.enqueue()
    handle = await work.enqueue()
    async with working(jobs, {"default": 1}, poll=0.01) as worker:
        await until(lambda: worker.due_timer.sleeps)
        await worker.maintenance.show_and_tune()
        await engine.control.tune("default", Tuning(reopen=True))
        await worker.maintenance.show_and_tune()
        await handle.result(PATIENCE)


@pytest.mark.spec("WORKER-35")
async def test_a_job_that_cannot_be_had_is_asked_for_less_and_less(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without a share of its queue sees a job that is due and does not spin."""

    @jobs.task
    async def work() -> None: ...

    engine = await jobs.engine()
    counting = Counting(engine, monkeypatch)
    async with working(jobs, poll=NEVER) as worker:
        monkeypatch.setattr(worker.limits, "portions", lambda *_: [])
        await work.enqueue()
        await until(lambda: counting.looks > 5)
        assert worker.due_timer.pause >= LATER * 8


@pytest.mark.spec("WORKER-35")
async def test_the_alarm_is_set_to_the_next_token_and_to_the_end_of_a_pause(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    """A worker sleeps exactly until then, and the job starts without any other wake-up."""
    runs: list[int] = []

    @timed_jobs.task
    async def work() -> None:
        runs.append(1)

    engine = await timed_jobs.engine()
    await engine.control.tune("default", Tuning(rate=Rate(1, per=5)))
    for _ in range(2):
        await work.enqueue()
    async with working(timed_jobs, poll=NEVER, lease=NEVER) as worker:
        timer = worker.due_timer
        await until(lambda: runs == [1] and timer.open == frozenset() and timer.fires_in is not None)
        assert set_to(worker, 5)
        clock.advance(5)
        timer.reset()
        await until(lambda: runs == [1, 1])
        await engine.control.tune("default", Tuning(paused=True, pause_for=60 * SECOND))
        await work.enqueue()
        timer.reset()
        await until(lambda: timer.open == frozenset() and (timer.fires_in or 0) > 50)
        clock.advance(60)
        timer.reset()
        await until(lambda: runs == [1, 1, 1])


@pytest.mark.spec("WORKER-39")
async def test_a_poll_reaches_every_queue_beside_one_that_is_always_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait returns the busy queue and the due timer knows nothing: the calm queue is asked at each poll."""
    jobs = Stoker(MemoryEngine())
    engine = await jobs.engine()
    asked: list[str] = []
    claim = engine.jobs.claim

    async def noted_claim(demand: Demand) -> list[Claim]:
        asked.extend(queue for queue, _ in demand.queues)
        return await claim(demand)

    async def always_woken(topics: Sequence[str], _timeout: float) -> frozenset[str]:
        await asyncio.sleep(0.001)
        return frozenset({"busy"}.intersection(topics))

    async def unknown(queues: Sequence[str]) -> NextDue:
        return NextDue(frozenset(queues), None)

    monkeypatch.setattr(engine.jobs, "claim", noted_claim)
    monkeypatch.setattr(engine.jobs, "wait", always_woken)
    monkeypatch.setattr(engine.jobs, "ahead", unknown)
    async with working(jobs, {"busy": 1, "calm": 1}, poll=0.05):
        await until(lambda: asked.count("calm") > 5)
    await jobs.close()


@pytest.mark.spec("WORKER-39")
async def test_resets_do_not_put_the_timer_off() -> None:
    """A job that is due cannot be had, and the timer is reset all the time: it still fires, poll after poll."""

    class Refusing(Double):
        async def ahead(self, queues: Sequence[str]) -> NextDue:
            return NextDue(frozenset(queues), 0)

    fetcher = Fetcher({"busy": 1}, "own")
    lane = fetcher.lanes[0]
    timer = DueTimer(Refusing(), fetcher, poll=0.1)
    fired = 0

    async def ask_for_jobs() -> None:
        nonlocal fired
        fired += 1
        lane.may_have_more = False

    def keep_resetting() -> bool:
        timer.reset()
        return fired > 12

    lane.may_have_more = False
    running = asyncio.create_task(timer.run(ask_for_jobs))
    await until(keep_resetting)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("WORKER-39")
async def test_a_job_that_cannot_be_had_hides_no_later_one() -> None:
    """The timer is set to what comes next, although another queue has had a due job for long."""

    class Refusing(Double):
        async def ahead(self, queues: Sequence[str]) -> NextDue:
            return NextDue(frozenset(queues), 0, 5 * SECOND)

    fetcher = Fetcher({"busy": 1}, "own")
    fetcher.lanes[0].may_have_more = False
    timer = DueTimer(Refusing(), fetcher, poll=NEVER)
    timer.pause = NEVER
    running = asyncio.create_task(timer.run(asyncio.Event().wait))  # type: ignore[arg-type]
    timer.reset()
    await until(lambda: timer.fires_in is not None)
    assert (timer.fires_in or 0) <= 5 + LATER
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

"""Starting, stopping, draining; slots and queues."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
import time
import uuid
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.model.errors import InvalidInput, InvalidOption, StokerError
from stoker.model.events import Window
from stoker.model.job import Status
from stoker.model.outcome import Snooze
from stoker.model.query import Expired, Retention, Sweep
from stoker.model.time import MILLISECOND
from stoker.worker import Worker, janitor
from stoker.worker import worker as worker_module
from tests.harness.apps import PATIENCE, becomes, drain, until, working
from tests.harness.doubles import Double

# --- starting and stopping --------------------------------------------------------------------------------------


@pytest.mark.spec("WORKER-12")
async def test_a_worker_starts_once_stops_once_and_may_start_again(jobs: Stoker) -> None:
    @jobs.task
    def work() -> str:
        return current().worker

    worker = Worker(jobs)
    seen = [worker.ready]
    await worker.stop()
    ran_under: list[str] = []
    for _ in range(2):
        await worker.start()
        seen.append(worker.ready)
        with pytest.raises(StokerError, match="running already"):
            await worker.start()
        ran_under.append(await (await work.enqueue()).result(PATIENCE))
        await asyncio.gather(worker.stop(), worker.stop())
        await worker.stop()
        assert (worker.state, worker.ready) == ("stopped", False)
        await asyncio.wait_for(worker.join(), PATIENCE)
    assert seen == [False, True, True]
    assert len(set(ran_under)) == 2, "a worker id is never used twice"
    assert worker.claims.tokens == {}


@pytest.mark.spec("WORKER-12")
async def test_a_stop_asked_for_while_starting_is_not_forgotten(jobs: Stoker) -> None:
    worker = Worker(jobs)
    starting = asyncio.ensure_future(worker.start())
    await asyncio.sleep(0)
    assert worker.state in ("starting", "running")
    worker.ask_stop()
    await starting
    await asyncio.wait_for(worker.join(), PATIENCE)
    assert worker.state == "stopped"


@pytest.mark.spec("WORKER-13")
async def test_a_job_that_ends_within_the_grace_ends_as_usual(jobs: Stoker) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def work() -> str:
        started.set()
        await go.wait()
        return "in time"

    job = await work.enqueue()
    worker = Worker(jobs)
    await worker.start()
    await started.wait()
    stopping = asyncio.ensure_future(worker.stop(grace=PATIENCE))
    await asyncio.sleep(0.01)
    assert worker.state == "stopping"
    late = await work.enqueue()
    go.set()
    await stopping
    assert await job.result(0) == "in time"
    assert (await late.refresh()).status is Status.PENDING, "nothing is claimed any more"
    assert (await job.refresh()).attempts == 1


@pytest.mark.spec("WORKER-13")
@pytest.mark.parametrize(("setting", "grace"), [(0, PATIENCE), (3600, 0.01)])
async def test_the_grace_of_a_stop_counts_and_not_the_setting(jobs: Stoker, setting: float, grace: float) -> None:
    """A longer one lets the job end although the setting allows nothing, a shorter one ends it at once."""
    started = asyncio.Event()

    @jobs.task
    async def work() -> None:
        started.set()
        await current().stopping
        for _ in range(20 if grace > 1 else 1_000_000):  # a few turns of the loop, or for ever
            await asyncio.sleep(0.005)

    job = await work.enqueue()
    worker = Worker(jobs, shutdown_grace=setting)
    await worker.start()
    await started.wait()
    await asyncio.wait_for(worker.stop(grace=grace), PATIENCE)
    record = await job.refresh()
    assert (record.status, record.attempts) == ((Status.DONE, 1) if grace > 1 else (Status.PENDING, 0))


@pytest.mark.spec("WORKER-13")
async def test_what_does_not_end_in_time_is_handed_back_with_its_attempt(jobs: Stoker) -> None:
    started, reasons = asyncio.Semaphore(0), []

    @jobs.task
    async def endless() -> None:
        started.release()
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(current().cancel.reason)

    @jobs.task
    def threaded() -> None:
        loop.call_soon_threadsafe(started.release)
        end = time.monotonic() + PATIENCE
        while not current().cancel and time.monotonic() < end:
            time.sleep(0.002)

    loop = asyncio.get_running_loop()
    handles = [await endless.enqueue(), await threaded.enqueue()]
    worker = Worker(jobs)
    await worker.start()
    for _ in handles:
        await started.acquire()
    await worker.stop(grace=0.01)
    for handle in handles:
        record = await handle.refresh()
        assert (record.status, record.attempts, record.last_error) == (Status.PENDING, 0, None)
        assert record.worker is None
    assert reasons == ["the worker is shutting down"]
    assert worker.claims.tokens == {}


@pytest.mark.spec("WORKER-13")
async def test_claims_that_were_not_started_are_handed_back(jobs: Stoker) -> None:
    go = asyncio.Event()

    @jobs.task
    async def work() -> None:
        await go.wait()

    handles = [await work.enqueue() for _ in range(20)]
    worker = Worker(jobs, {"default": 1})
    await worker.start()
    worker.lanes[0].rate = 1_000.0
    worker.fetcher.wake()
    worker.store_loop.wakeup.set()
    await until(lambda: len(worker.lanes[0].buffer) == 19)
    stopping = asyncio.ensure_future(worker.stop(grace=PATIENCE))
    for handle in handles[1:]:
        assert (await becomes(handle, Status.PENDING)).attempts == 0
    assert (await handles[0].refresh()).status is Status.RUNNING
    go.set()
    await stopping
    assert (await handles[0].refresh()).status is Status.DONE
    assert worker.claims.tokens == {}


@pytest.mark.spec("WORKER-13")
async def test_hurrying_and_quieting(jobs: Stoker) -> None:
    started = asyncio.Event()

    @jobs.task
    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    job = await work.enqueue()
    worker = Worker(jobs)
    await worker.start()
    await started.wait()
    worker.quiet()
    other = await work.enqueue()
    await asyncio.sleep(0.05)
    assert (await other.refresh()).status is Status.PENDING
    assert worker.ready
    stopping = asyncio.ensure_future(worker.stop(grace=60))
    await asyncio.sleep(0.01)
    worker.hurry()
    await asyncio.wait_for(stopping, PATIENCE)
    assert (await job.refresh()).status is Status.PENDING


@pytest.mark.spec("WORKER-13")
async def test_a_handler_that_outlives_even_the_interruption_is_left_behind(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "LAST_WAIT", 0.05)
    started, go = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def stubborn() -> None:
        started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    job = await stubborn.enqueue()
    worker = Worker(jobs)
    await worker.start()
    await started.wait()
    await asyncio.wait_for(worker.stop(0), PATIENCE)
    assert (await job.refresh()).status is Status.PENDING
    assert "abandoned" in caplog.text
    go.set()
    await asyncio.sleep(0.01)


@pytest.mark.spec("WORKER-14")
async def test_a_handler_may_stop_its_own_worker(jobs: Stoker) -> None:
    @jobs.task
    async def suicide() -> None:
        await holder[0].stop(grace=0.01)

    holder: list[Worker] = [Worker(jobs)]
    job = await suicide.enqueue()
    await holder[0].start()
    await asyncio.wait_for(holder[0].join(), PATIENCE)
    assert holder[0].state == "stopped"
    assert (await job.refresh()).status is Status.PENDING


@pytest.mark.spec("WORKER-14")
def test_a_loop_that_ends_under_a_running_worker_does_not_hang(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    app = Stoker(MemoryEngine())

    @app.task
    async def work() -> None:
        ran.append("started")
        await asyncio.sleep(60)

    async def forgetful() -> Worker:
        await work.enqueue()
        worker = Worker(app)
        await worker.start()
        while not ran:
            await asyncio.sleep(0.002)
        return worker

    worker = asyncio.run(asyncio.wait_for(forgetful(), PATIENCE))
    assert worker.state == "stopped"
    assert "the event loop ends under a running worker" in caplog.text
    worker.lease_keeper.thread.join(PATIENCE)
    assert not worker.lease_keeper.thread.is_alive(), "no thread keeps the lease of a worker that is gone"


@pytest.mark.spec("WORKER-15")
async def test_serve_and_the_context_manager_open_and_close_everything(engine: Engine) -> None:
    app = Stoker(engine)

    @app.task
    async def work() -> int:
        return 5

    async with app, Worker(app, drain=False) as worker:
        assert await (await work.enqueue()).result(PATIENCE) == 5
    assert worker.state == "stopped"
    await work.enqueue()
    await asyncio.wait_for(Worker(app, drain=True).serve(), PATIENCE)
    async with app:
        engine = await app.engine()
        assert (await engine.operator.census()).by_status()[Status.DONE] == 2
        types = Counter(event.type.value for event in await engine.timeline.events(Window(0, 1 << 60)))
        assert types == {"enqueued": 2, "started": 2, "completed": 2}


# --- drain ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DRAIN-01")
async def test_draining_runs_what_is_due_and_what_that_brings_about(jobs: Stoker) -> None:
    ran: list[str] = []

    @jobs.task
    async def parent(depth: int) -> None:
        ran.append(f"parent {depth}")
        if depth:
            await parent.enqueue(depth - 1)
            current().follow_up(child.draft(depth))

    @jobs.task(queue="other")
    def child(depth: int) -> None:
        ran.append(f"child {depth}")
        if depth > 1:
            grandchild.enqueue_sync(depth)

    @jobs.task
    async def grandchild(depth: int) -> None:
        ran.append(f"grandchild {depth}")

    @jobs.task
    async def later() -> None:
        ran.append("later")
        raise Snooze(60)

    await parent.enqueue(3)
    await later.enqueue()
    await later.using(delay=60).enqueue()
    worker = await drain(jobs)
    assert Counter(ran) == Counter(
        [*(f"parent {n}" for n in range(4)), "child 1", "child 2", "child 3", "grandchild 2", "grandchild 3", "later"]
    )
    assert worker.state == "stopped"
    assert (await (await jobs.engine()).operator.census()).by_status()[Status.PENDING] == 2


@pytest.mark.spec("DRAIN-01")
async def test_draining_an_empty_store_ends_at_once(jobs: Stoker) -> None:
    await drain(jobs, queues=["a", "b"], poll=3600)


# --- slots and queues -------------------------------------------------------------------------------------------


@pytest.mark.spec("WORKER-16")
@pytest.mark.parametrize("order", ["own", "strict", "weighted"])
async def test_concurrency_is_never_exceeded(jobs: Stoker, order: Any) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def enter(queue: str) -> None:
        for name in (queue, "all"):
            running[name] += 1
            most[name] = max(most[name], running[name])
        await asyncio.sleep(random.random() / 500)
        for name in (queue, "all"):
            running[name] -= 1

    @jobs.task
    async def work() -> None:
        await enter(current().queue)

    drafts = [work.using(queue=queue).draft() for queue in ("mail", "default") for _ in range(60)]
    await jobs.enqueue_many(drafts)
    worker = await drain(jobs, queues={"mail": 2, "default": 5}, order=order)
    assert worker.counts[Status.DONE] == 120
    assert most["all"] == 7
    if order == "own":
        assert (most["mail"], most["default"]) == (2, 5)


@pytest.mark.spec("WORKER-17")
async def test_strict_order_serves_the_first_queue_first_and_weights_favour_the_larger(jobs: Stoker) -> None:
    ran: list[str] = []

    @jobs.task
    async def work() -> None:
        ran.append(current().queue)

    async def fill() -> None:
        ran.clear()
        await jobs.enqueue_many([work.using(queue=queue).draft() for queue in ("low", "high") for _ in range(60)])

    await fill()
    await drain(jobs, queues={"high": 1, "low": 1}, order="strict", claim_batch=1)
    assert ran == ["high"] * 60 + ["low"] * 60
    await fill()
    random.seed(7)
    await drain(jobs, queues={"high": 9, "low": 1}, order="weighted", claim_batch=1)
    assert ran[:60].count("high") > 40
    assert "low" in ran[:60], "no queue starves"


@pytest.mark.spec("WORKER-17")
async def test_priority_comes_before_age(jobs: Stoker) -> None:
    ran: list[int] = []

    @jobs.task
    async def work(n: int) -> None:
        ran.append(n)

    await jobs.enqueue_many([work.using(priority=-n).draft(n) for n in range(5)])
    await drain(jobs, queues={"default": 1})
    assert ran == [4, 3, 2, 1, 0]


@pytest.mark.spec("WORKER-18")
def test_queues_may_be_given_as_a_mapping_a_list_or_text(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Stoker(MemoryEngine())
    app.task(name="a", queue="mail")(lambda: None)
    app.task(name="b")(lambda: None)

    def slots(queues: Any = None, **settings: Any) -> dict[str, int]:
        return {queue: lane.slots for lane in Worker(app, queues, **settings).lanes for queue in lane.queues}

    assert slots() == {"mail": 10, "default": 10}
    assert slots(slots=3) == {"mail": 3, "default": 3}
    assert slots({"x": 2}) == {"x": 2}
    assert slots(["x", "y"]) == {"x": 10, "y": 10}
    assert slots("mail:5,default:20") == {"mail": 5, "default": 20}
    monkeypatch.setenv("STOKER_QUEUES", "env:4")
    assert slots() == {"env": 4}
    monkeypatch.setenv("STOKER_QUEUES", "mail,other:3")
    assert slots() == slots({"mail": None, "other": 3}) == {"mail": 10, "other": 3}
    for wrong in ({}, {"x": 0}, ["a b"], [], "mail:many"):
        with pytest.raises(InvalidInput):
            Worker(app, wrong)
    with pytest.raises(InvalidOption, match="did you mean lease"):
        Worker(app, leese=3)


@pytest.mark.spec("WORKER-19")
async def test_no_task_is_made_per_job(jobs: Stoker) -> None:
    seen: set[int] = set()
    names: set[str] = set()

    @jobs.task(timeout=5)
    async def work() -> None:
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks()
        seen.add(len(tasks))
        names.add(asyncio.current_task().get_name())  # type: ignore[union-attr]

    await jobs.enqueue_many([work.draft() for _ in range(300)])
    before = len(asyncio.all_tasks())
    worker = await drain(jobs, queues={"default": 4})
    assert worker.counts[Status.DONE] == 300
    assert names == {"stoker-slot"}
    # Four slots, six loops and three services of the worker, plus what an engine and a stop that begins may add.
    assert max(seen) - before <= 4 + 6 + 3 + 3
    await until(lambda: not any(task.get_name().startswith("stoker-slot") for task in asyncio.all_tasks()))
    assert (worker.claims.tokens, worker.running_jobs.runs, len(worker.outcomes)) == ({}, {}, 0)
    assert not worker.progress.waiting


@pytest.mark.spec("WORKER-19")
async def test_threads_are_used_again_and_end_with_the_worker(jobs: Stoker) -> None:
    @jobs.task
    def work() -> str:
        return threading.current_thread().name

    handles = [await work.enqueue() for _ in range(100)]
    await drain(jobs, queues={"default": 2})
    assert len({await handle.result(0) for handle in handles}) <= 4

    def left() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.startswith(("stoker-handler", "stoker-lease"))]

    await until(lambda: not left())


@pytest.mark.spec("WORKER-20")
async def test_tiny_batches_and_many_slots_do_not_lock_up(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None: ...

    await jobs.enqueue_many([work.draft() for _ in range(300)])
    worker = await drain(jobs, queues={"default": 50}, settle_batch=1, claim_batch=7)
    assert worker.counts[Status.DONE] == 300


@pytest.mark.spec("WORKER-21")
async def test_a_job_enqueued_to_an_idle_worker_starts_at_once(jobs: Stoker) -> None:
    @jobs.task
    async def work(n: int) -> int:
        return n

    async with working(jobs, poll=3600):  # no wake-up is lost: the poll would come after an hour
        for n in range(10):
            assert await (await work.enqueue(n)).result(PATIENCE) == n


# --- cleaning ---------------------------------------------------------------------------------------------------


def cleaner(jobs: Stoker) -> Worker:
    """A worker that cleans more often than the settings allow."""
    worker = Worker(jobs)
    worker.retention = dataclasses.replace(worker.retention, clean_every=20 * MILLISECOND)
    return worker


@pytest.mark.spec("WORKER-32")
async def test_a_worker_removes_what_is_past_its_time(jobs: Stoker) -> None:
    @jobs.task(keep=0.01)
    def brief() -> None: ...

    @jobs.task
    def lasting() -> None: ...

    async with cleaner(jobs):
        gone, stays = await brief.enqueue(), await lasting.enqueue()
        engine = await jobs.engine()
        async with asyncio.timeout(PATIENCE):
            while await engine.operator.get([uuid.UUID(gone.id).bytes]) != [None]:
                await asyncio.sleep(0.01)
        assert (await becomes(stays, Status.DONE)).expires_at is not None


@pytest.mark.spec("WORKER-32")
async def test_long_cleaning_holds_up_no_other_chore(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    go, cleaning = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def work() -> None:
        current().progress(0.5)
        await go.wait()

    async def endless(_engine: Engine, _retention: Retention) -> int:
        cleaning.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(janitor, "clean", endless)
    async with cleaner(jobs):
        await asyncio.wait_for(cleaning.wait(), PATIENCE)
        job = await work.enqueue()
        async with asyncio.timeout(PATIENCE):
            while (await job.refresh()).progress != 0.5:
                await asyncio.sleep(0.01)
        go.set()


@pytest.mark.spec("WORKER-32")
async def test_between_two_batches_the_store_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pauses = [100.0], list[float]()

    class Slow(Double):
        async def expire(self, retention: Retention) -> Expired:
            clock[0] += 0.25
            if Sweep.JOBS not in retention.sweeps:
                return Expired()
            return Expired(jobs=retention.limit if len(pauses) < 2 else 3)

    async def rest(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(janitor, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(janitor, "asyncio", SimpleNamespace(sleep=rest))
    assert (await janitor.clean(Slow(), Retention(limit=10))).jobs == 23
    assert pauses == [0.5, 0.5]


@pytest.mark.spec("PRESENCE-07")
async def test_a_presence_tells_what_its_worker_runs_and_how_it_is(jobs: Stoker) -> None:
    started = asyncio.Event()

    @jobs.task
    async def hang() -> None:
        started.set()
        await current().stopping

    handle = await hang.enqueue()
    engine = await jobs.engine()
    async with Worker(jobs) as worker:
        await started.wait()
        worker.maintenance._tell_counts()
        await worker.maintenance.show_and_tune()
        [shown] = [one for one in await engine.control.workers() if one.worker == worker.id]
        assert (shown.jobs, shown.running, shown.hour) == ((handle.id,), 1, ((0, 0),))
        assert shown.uptime > 0
        assert shown.memory > 1 << 20

"""The lease: kept beside a blocked loop, lost, taken over; orphans; the worker's presence."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from typing import Any

import msgspec
import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import CONTROL, Engine
from stoker.engines.memory import MemoryEngine
from stoker.model import ids
from stoker.model.errors import EngineUnavailable
from stoker.model.events import Transition
from stoker.model.job import Demand, Renewal, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Lost
from stoker.model.time import SECOND
from stoker.testing.clock import VirtualClock
from stoker.worker import Worker, lease, state
from tests.harness.apps import PATIENCE, becomes, until, working
from tests.harness.calls import replace
from tests.harness.doubles import Double


class Rival:
    """A second worker on the same store, in a thread and a loop of its own. It serves an empty queue, and it reaps."""

    def __init__(self, app: Stoker, **settings: Any) -> None:
        self._app = app
        self._settings = settings
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        async with self._app, Worker(self._app, ["nobody"], **self._settings):
            self._ready.set()
            await self._end.wait()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE)


@pytest.mark.spec("KEEPER-01")
async def test_a_handler_that_blocks_the_loop_past_its_lease_keeps_its_job(
    jobs: Stoker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BLOCKED_AFTER", 0.2)
    runs: list[int] = []

    @jobs.task
    async def blocks() -> str:
        runs.append(current().attempt)
        time.sleep(2.4)
        return "unharmed"

    job = await blocks.enqueue()
    with Rival(jobs, lease=2):
        async with working(jobs, lease=2) as worker:
            assert await job.result(PATIENCE) == "unharmed"
            assert worker.lost == 0
    assert runs == [1]
    assert "the event loop has been blocked" in caplog.text
    assert "time.sleep(2.4)" in caplog.text, "the culprit is shown"


@pytest.mark.spec("KEEPER-02")
async def test_a_worker_taken_for_dead_stops_its_handlers_says_so_and_goes_on_under_a_new_id(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    started, reasons = asyncio.Event(), []
    heard: list[Transition] = []

    @jobs.task
    async def work() -> str:
        if current().attempt == 2:
            return current().worker
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(current().cancel.reason)
        return "never"

    job = await work.enqueue()
    engine = await jobs.engine()
    async with working(jobs) as worker:
        told: list[str] = []
        worker._state.on_identity = told.append
        await started.wait()
        former = worker.id
        await engine.jobs.renew("rival", [], first=True)
        [claim] = await engine.jobs.reap("rival", 10, dead=[former])
        assert claim.former == former
        jobs.listener(heard.append)
        await engine.jobs.wake([CONTROL])
        await until(lambda: reasons)
        await until(lambda: worker.ready and worker.id != former)
        assert told == [worker.id]
        assert "lease lost: worker" in caplog.text
        await until(lambda: worker.lost == 1)
        assert heard == [], "the refused outcome reaches no listener"
        assert (await job.refresh()).worker == "rival"
        await engine.jobs.renew("rival", [], lease=0)
        mine = await engine.jobs.reap(worker.id, 10)  # unless the worker has done it by itself
        await engine.jobs.settle([conclude(claim, Lost()) for claim in mine])
        assert await job.result(PATIENCE) == worker.id, "and it works as before"
        await until(lambda: not worker.claims.tokens)
    assert reasons == ["the worker's lease was lost"]


@pytest.mark.spec("KEEPER-02")
async def test_a_lost_lease_is_replaced_once_however_late_the_loop_takes_notice(jobs: Stoker) -> None:
    async def take_over(worker: str) -> None:
        engine = jobs.new_engine()
        await engine.open()
        await engine.jobs.renew("rival", [], first=True)
        await engine.jobs.reap("rival", 10, dead=[worker])
        await engine.close()

    async with working(jobs) as worker:
        keeper, former, taken = worker.lease_keeper, worker.id, list[str]()
        worker._state.on_identity = taken.append
        # From here on the loop is blocked, as by a handler: everything happens in other threads.
        rival = threading.Thread(target=asyncio.run, args=(take_over(former),))
        rival.start()
        rival.join()
        for _ in range(3):
            before, end = keeper.renewed_at, time.monotonic() + PATIENCE
            keeper.wake()
            while keeper.renewed_at == before and time.monotonic() < end:
                time.sleep(0.002)
        assert worker.claims.safe_until == -math.inf, "the worker has not dropped its claims yet"
        await until(lambda: worker.ready and worker.id != former)
        assert taken == [worker.id]
        assert worker.claims.safe_until > 0


@pytest.mark.spec("KEEPER-03")
async def test_a_claim_whose_answer_was_lost_is_handed_back(timed_jobs: Stoker, clock: VirtualClock) -> None:
    @timed_jobs.task(queue="elsewhere")
    async def work() -> None: ...

    job = await work.enqueue()
    engine = await timed_jobs.engine()
    async with working(timed_jobs, ["default"]) as worker:
        [claim] = await engine.jobs.claim(Demand(worker.id, (("elsewhere", 1),)))
        await engine.jobs.wake([CONTROL])
        await asyncio.sleep(0.05)
        assert (await job.refresh()).status is Status.RUNNING, "it may still be on its way"
        clock.advance(6)
        await engine.jobs.wake([CONTROL])
        record = await becomes(job, Status.PENDING)
        assert record.attempts == 0
        assert worker.claims.tokens == {}
    assert claim.attempt == 1


@pytest.mark.spec("KEEPER-04")
async def test_a_dead_workers_jobs_are_taken_over_and_run_again(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[str | None, str | None]] = []

    @jobs.task
    async def work() -> tuple[int, str]:
        return current().attempt, current().previous_error or ""

    job = await work.enqueue()
    engine = await jobs.engine()
    await engine.jobs.renew("the dead", [], lease=SECOND // 10, first=True)
    await engine.jobs.claim(Demand("the dead", (("default", 1),)))
    jobs.listener(lambda change: heard.append((change.before, change.after)))
    await asyncio.sleep(0.11)
    async with working(jobs, lease=1):
        attempt, error = await job.result(PATIENCE)
    assert attempt == 2
    assert error.startswith("visibility timeout: worker the dead stopped renewing")
    assert f"job {job.id} (work, queue default) failed" in caplog.text
    assert "worker the dead stopped renewing its lease" in caplog.text
    assert heard == [("running", "retrying"), ("retrying", "running"), ("running", "done")]


@pytest.mark.spec("KEEPER-05")
async def test_a_worker_shows_itself_and_says_good_bye(jobs: Stoker) -> None:
    engine = await jobs.engine()
    async with working(jobs, {"mail": 2, "default": 3}) as worker:
        async with asyncio.timeout(PATIENCE):
            while [one.state for one in await engine.control.workers()] != ["running"]:
                await asyncio.sleep(0.005)
        [presence] = await engine.control.workers()
        assert (presence.worker, presence.queues, presence.state) == (worker.id, {"mail": 2, "default": 3}, "running")
    [presence] = await engine.control.workers()
    assert presence.state == "stopped"
    await engine.jobs.renew("other", [], first=True)
    assert await engine.jobs.reap("other", 10) == []
    assert not (await engine.jobs.renew(worker.id, [])).known, "its lease is given back"


class Shut(MemoryEngine):
    """Cannot be opened by the keeper."""

    opened = 0

    async def open(self) -> None:
        type(self).opened += 1
        if self.opened > 1:
            raise EngineUnavailable("no answer.")
        await super().open()


@pytest.mark.spec("KEEPER-06")
async def test_a_worker_without_a_lease_does_not_start() -> None:
    app = Stoker(Shut())
    worker = Worker(app)
    with pytest.raises(EngineUnavailable):
        await worker.start()
    assert (worker.state, worker.ready) == ("new", False)
    worker.lease_keeper.thread.join(PATIENCE)
    assert not worker.lease_keeper.thread.is_alive()
    await app.close()


class Forgetful(Double):
    """Its renewals fail in a way that no engine may."""

    renewals = 0

    async def renew(self, *args: Any, **kwargs: Any) -> Any:
        type(self).renewals += 1
        if self.renewals == 2:
            raise OSError("a bug")
        return await self.real.jobs.renew(*args, **kwargs)


@pytest.mark.spec("KEEPER-06")
async def test_a_worker_whose_keeper_dies_stops(caplog: pytest.LogCaptureFixture) -> None:
    app = Stoker(Forgetful())
    async with working(app) as worker:
        await (await app.engine()).jobs.wake([CONTROL])
        await asyncio.wait_for(worker.join(), PATIENCE)
        assert not worker.ready
    assert "the lease keeper died" in caplog.text
    await app.close()


@pytest.mark.spec("KEEPER-03")
async def test_orphans_are_left_alone_while_a_claim_is_under_way(engine: Engine) -> None:
    app = Stoker(engine)
    app.task(name="work", queue="elsewhere")(lambda: None)
    async with app:
        job = await app.enqueue(app.draft("work"))
        async with working(app, ["default"]) as worker:
            [claim] = await (await app.engine()).jobs.claim(Demand(worker.id, (("elsewhere", 1),)))
            worker.store_loop.asking = True
            worker.lease_reports.renewed(Renewal(True, orphaned=[claim]))
            assert len(worker.outcomes) == 0
            worker.store_loop.asking = False
            worker.lease_reports.renewed(Renewal(True, orphaned=[claim]))
            await becomes(job, Status.PENDING)
    assert ids.text(claim.id) == job.id


@pytest.mark.spec("KEEPER-07")
async def test_a_claim_that_waited_past_its_lease_is_handed_back_and_not_run(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asleep = 0.0
    monkeypatch.setattr(state, "lease_clock", lambda: time.monotonic() + asleep)
    runs: list[tuple[int, int]] = []

    @timed_jobs.task
    async def work(n: int) -> None:
        nonlocal asleep
        runs.append((n, current().token))
        if n == 0:  # the process is frozen under the first of five claims
            asleep = 4000.0
            clock.advance(4000)

    handles = [await work.enqueue(n) for n in range(5)]
    since = (await handles[0].refresh()).scheduled_at
    engine = await timed_jobs.engine()
    async with working(timed_jobs, {"default": 5}, lease=3600) as worker:  # no renewal comes by itself
        await becomes(handles[0], Status.DONE)
        for handle in handles[1:]:
            record = await becomes(handle, Status.PENDING)
            assert (record.attempts, record.scheduled_at) == (0, since)
        assert [n for n, _ in runs] == [0]
        assert not worker.ready, "nothing is claimed before the lease is renewed"
        assert "hands back 4 claimed jobs that had not started" in caplog.text
        await engine.jobs.wake([CONTROL])
        for handle in handles:
            await becomes(handle, Status.DONE)
        assert sorted(n for n, _ in runs) == [0, 1, 2, 3, 4]
        assert min(token for n, token in runs if n) >= clock(), "each ran under a claim of its own"


@pytest.mark.spec("KEEPER-08")
async def test_the_safe_end_of_a_lease_counts_from_before_the_renewal_was_sent(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reply arrives a day late: by then the lease of an hour is over, of the first renewal and of later ones."""
    late, left = 0.0, list[float]()
    monkeypatch.setattr(state, "lease_clock", lambda: time.monotonic() + late)
    engine = await jobs.engine()

    def slow(_: str, renew: Any) -> Any:
        async def call(*args: Any, **more: Any) -> Renewal:
            nonlocal late
            left.append(worker.claims.safe_until - state.lease_clock())
            renewal: Renewal = await renew(*args, **more)
            late += 86_400
            return renewal

        return call

    replace(engine, ["renew"], slow)
    worker = Worker(jobs, lease=3600)
    async with worker:
        for renewals in (2, 3):
            await engine.jobs.wake([CONTROL])
            await until(lambda wanted=renewals: len(left) == wanted)  # type: ignore[misc]
    assert all(seconds < 0 for seconds in left[1:3]), left


@pytest.mark.spec("KEEPER-08")
async def test_the_safe_end_counts_so_too_after_a_lost_lease(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both replies, that the lease is lost and that there is a new one, arrive a day late."""
    late, asked = 0.0, 0
    monkeypatch.setattr(state, "lease_clock", lambda: time.monotonic() + late)
    engine = await jobs.engine()

    def slow(_: str, renew: Any) -> Any:
        async def call(*args: Any, **more: Any) -> Renewal:
            nonlocal late, asked
            renewal: Renewal = await renew(*args, **more)
            if not asked:
                return renewal
            late += 86_400
            asked += 1
            return msgspec.structs.replace(renewal, known=asked != 2)

        return call

    replace(engine, ["renew"], slow)
    worker = Worker(jobs, lease=3600)
    async with worker:
        former = worker.id
        asked = 1
        await engine.jobs.wake([CONTROL])
        await until(lambda: worker.id != former and worker.claims.safe_until > -math.inf)
        assert worker.claims.safe_until < state.lease_clock()

"""A store that goes away and comes back, and answers that get lost."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import CONTROL, Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineUnavailable
from stoker.model.events import Transition, Window
from stoker.model.job import Status
from stoker.worker import Worker, lease, store_loop
from tests.harness.apps import ENGINES, PATIENCE, becomes, drain, until, working
from tests.harness.calls import replace

CALLS = ("insert", "claim", "settle", "renew", "note", "reap", "beat", "record", "expire")


class Weather:
    """What happens to the calls of a stormy engine and its twins."""

    def __init__(self) -> None:
        self.away = False
        self.swallow: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    async def around(self, name: str, call: Any) -> Any:
        self.calls[name] += 1
        if self.away:
            raise EngineUnavailable("the store is away")
        answer = await call()
        if self.swallow[name]:
            self.swallow[name] -= 1
            raise EngineUnavailable("the answer was lost")
        return answer


@pytest.fixture
def weather() -> Weather:
    return Weather()


@pytest.fixture(params=ENGINES)
async def app(request: pytest.FixtureRequest, tmp_path: Path, weather: Weather) -> Any:
    engine: Engine
    if request.param == "memory":
        engine = MemoryEngine()
    else:
        engine = SqliteEngine(tmp_path / "jobs.db", durability="process")
    replace(
        engine,
        CALLS,
        lambda name, method: lambda *args, **more: weather.around(name, functools.partial(method, *args, **more)),
    )
    app = Stoker(engine)
    yield app
    weather.away = False
    await app.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_loop, "LONGEST_PAUSE", 0.1)


@pytest.mark.spec("WORKER-22")
async def test_an_outage_loses_nothing_and_shows(
    app: Stoker, weather: Weather, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    go, runs = asyncio.Event(), Counter[int]()

    @app.task
    async def work(n: int) -> int:
        runs[n] += 1
        current().log(f"run {n}")
        await go.wait()
        return n

    handles = [await work.enqueue(n) for n in range(30)]
    async with working(app, {"default": 10}, lease=15) as worker:
        await until(lambda: len(runs) == 10)
        assert worker.ready
        weather.away = True
        go.set()
        await until(lambda: not worker.ready)
        await until(lambda: worker.runs == 0)
        await asyncio.sleep(0.1)
        assert worker.state == "running", "an outage is not the end"
        weather.away = False
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(30))
        await until(lambda: worker.ready and worker.claims.tokens == {})
    assert set(runs.values()) == {1}
    assert (await handles[3].refresh()).log == ("run 3",)
    assert caplog.text.count("the store does not answer") == 1, "said once per outage"
    assert "the store answers again" in caplog.text


@pytest.mark.spec("FAILLOG-10", "WORKER-22")
async def test_a_lease_that_cannot_be_renewed_turns_readiness_red_and_claims_nothing(
    app: Stoker, weather: Weather, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[str] = []

    @app.task
    async def long() -> str:
        try:
            await go.wait()
        except asyncio.CancelledError:
            stopped.append("canceled")
            raise
        return "finished"

    go = asyncio.Event()
    job = await long.enqueue()
    async with working(app, lease=15) as worker:
        await until(lambda: worker.runs == 1)
        weather.away = True
        worker.lease_keeper.wake()
        await until(lambda: not worker._state.healthy)
        assert not worker.ready
        assert not worker._state.taking
        weather.away = False
        worker.lease_keeper.wake()
        await until(lambda: worker.ready)
        go.set()
        assert await job.result(PATIENCE) == "finished"
    assert stopped == [], "handlers run on; only the store can say that a claim is lost"
    [line] = [one.getMessage() for one in caplog.records if "the lease cannot be renewed" in one.getMessage()]
    assert ". Running jobs go on" in line


@pytest.mark.spec("WORKER-23")
async def test_an_outcome_whose_answer_was_lost_is_written_and_told_once(app: Stoker, weather: Weather) -> None:
    heard: list[Transition] = []

    @app.task
    async def work() -> str:
        return "once"

    job = await work.enqueue()
    app.listener(heard.append)
    weather.swallow["settle"] = 1
    worker = await drain(app)
    assert await job.result(0) == "once"
    assert [(one.before, one.after) for one in heard] == [("pending", "running"), ("running", "done")]
    assert (worker.lost, worker.counts[Status.DONE]) == (0, 1)
    events = await (await app.engine()).timeline.events(Window(0, 1 << 60))
    assert [event.type for event in events] == ["enqueued", "started", "completed"]


@pytest.mark.spec("WORKER-24")
async def test_a_stop_during_an_outage_ends_and_what_was_not_written_runs_again(
    app: Stoker, weather: Weather, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_loop, "FINISH_WITHIN", 0.2)
    started = asyncio.Event()

    @app.task
    async def work() -> str:
        if current().attempt == 1:
            started.set()
            await asyncio.sleep(60)
        return "again"

    job = await work.enqueue()
    worker = Worker(app, lease=1)
    await worker.start()
    await started.wait()
    weather.away = True
    await asyncio.wait_for(worker.stop(0), PATIENCE)
    assert worker.state == "stopped"
    assert "1 outcome not written before the end: the jobs run again" in caplog.text
    weather.away = False
    assert (await job.refresh()).status is Status.RUNNING
    async with working(app, lease=1):
        assert await job.result(PATIENCE) == "again"


@pytest.mark.spec("WORKER-24")
async def test_a_stop_in_the_middle_of_a_call_does_not_lose_its_answer(app: Stoker, weather: Weather) -> None:
    slow = asyncio.Event()

    @app.task
    async def work() -> int:
        return 1

    around = weather.around

    async def hesitant(name: str, call: Any) -> Any:
        answer = await around(name, call)
        if name == "settle":
            slow.set()
            await asyncio.sleep(0.05)
        return answer

    weather.around = hesitant  # type: ignore[method-assign]
    job = await work.enqueue()
    worker = Worker(app)
    await worker.start()
    await asyncio.wait_for(slow.wait(), PATIENCE)
    await worker.stop(0)
    assert (await job.refresh()).status is Status.DONE
    assert (worker.counts[Status.DONE], worker.lost, worker.claims.tokens) == (1, 0, {})


@pytest.mark.spec("WORKER-22")
async def test_the_expelled_worker_survives_an_outage_too(
    app: Stoker, weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "AGAIN_AFTER", 0.05)
    app.task(name="work")(lambda: 5)
    engine = await app.engine()
    async with working(app) as worker:
        former = worker.id
        await engine.jobs.renew("rival", [], first=True)
        await engine.jobs.reap("rival", 10, dead=[former])
        weather.swallow["renew"] = 1
        await engine.jobs.wake([CONTROL])
        await until(lambda: not weather.swallow["renew"] and worker.ready and worker.id != former)
        job = await app.enqueue(app.draft("work"))
        assert await job.result(PATIENCE) == 5
        await becomes(job, Status.DONE)

"""Outcomes that another transaction holds up: they wait apart from the others, and are written when they can be."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Transaction
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Demand, Settled, Settlement, Status, Verdict
from stoker.worker import Worker, resender, store_loop
from tests.harness.apps import PATIENCE, until, working
from tests.harness.doubles import Double


class Holding(Double):
    """A store in which another transaction has taken some unique keys."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = {"work/k"}
        self.asked: list[int] = []
        """How many settlements each call had that met the lock."""
        self.trouble: list[Exception] = []

    async def settle(
        self, settlements: Sequence[Settlement], *, tx: Transaction | None = None, demand: Demand | None = None
    ) -> Settled:
        free = [one for one in settlements if self.slots.isdisjoint(one.slots)]
        if len(free) < len(settlements):
            self.asked.append(len(settlements) - len(free))
            if self.trouble:
                raise self.trouble.pop()
        settled = await self.real.jobs.settle(free, tx=tx, demand=demand)
        verdicts = iter(settled.verdicts)
        return Settled(
            [next(verdicts) if self.slots.isdisjoint(one.slots) else Verdict.HELD for one in settlements],
            settled.claims,
        )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Holding:
    monkeypatch.setattr(resender, "SHORTEST_PAUSE", 0.005)
    monkeypatch.setattr(resender, "LONGEST_PAUSE", 0.02)
    return Holding()


@pytest.fixture
def app(store: Holding) -> Stoker:
    app = Stoker(store)

    @app.task
    async def work(n: int, key: str = "") -> int:
        if key:
            current().follow_up(work.using(unique=key).draft(n + 1))
        return n

    return app


@pytest.mark.spec("WORKER-34")
async def test_a_held_outcome_waits_alone_and_the_store_is_not_away(app: Stoker, store: Holding) -> None:
    async with app, working(app) as worker:
        held = await app.enqueue(app.draft("work", {"n": 0, "key": "k"}))
        await until(lambda: len(worker.outcomes.held))
        others = [await app.enqueue(app.draft("work", {"n": n})) for n in range(1, 51)]
        assert [await handle.result(PATIENCE) for handle in others] == list(range(1, 51))
        assert worker.ready
        assert (await held.refresh()).status is Status.RUNNING
        store.slots = set()
        assert await held.result(PATIENCE) == 0
        await until(lambda: not len(worker.outcomes.held) and not worker.claims.tokens)


@pytest.mark.spec("WORKER-34")
async def test_what_needs_the_same_key_joins_it_and_is_not_sent_with_others(app: Stoker, store: Holding) -> None:
    async with app, working(app) as worker:
        await app.enqueue(app.draft("work", {"n": 0, "key": "k"}))
        await until(lambda: len(worker.outcomes.held))
        handles = [
            await app.enqueue(app.draft("work", {"n": 100 * n, "key": "k" if n % 2 else "free"})) for n in range(1, 11)
        ]
        assert [await handle.result(PATIENCE) for handle in handles[1::2]] == [100 * n for n in range(2, 11, 2)]
        await until(lambda: len(worker.outcomes.held) == 6)
        store.slots = set()
        assert [await handle.result(PATIENCE) for handle in handles] == [100 * n for n in range(1, 11)]


@pytest.mark.spec("WORKER-34")
@pytest.mark.parametrize("trouble", [EngineUnavailable("gone for a moment."), OverflowError("a driver's mistake")])
async def test_a_store_that_fails_meanwhile_loses_nothing(
    app: Stoker, store: Holding, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_loop, "LONGEST_PAUSE", 0.05)
    async with app, working(app) as worker:
        held = await app.enqueue(app.draft("work", {"n": 0, "key": "k"}))
        await until(lambda: len(store.asked) > 1)
        store.trouble = [trouble]
        await until(lambda: not store.trouble)
        await until(lambda: len(worker.outcomes.held))
        store.slots = set()
        assert await held.result(PATIENCE) == 0


@pytest.mark.spec("WORKER-34")
async def test_a_long_wait_is_named_once(
    app: Stoker, store: Holding, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resender, "WARN_AFTER", 0.0)
    async with app, working(app):
        held = await app.enqueue(app.draft("work", {"n": 0, "key": "k"}))
        await until(lambda: len(store.asked) > 3)
        store.slots = set()
        await held.result(PATIENCE)
    said = [record.getMessage() for record in caplog.records if "waits for another transaction" in record.message]
    assert len(said) == 1
    assert f"the outcome (done) of job {held.id} (work)" in said[0]
    assert "work/k" in said[0]


@pytest.mark.spec("WORKER-34")
async def test_a_worker_that_stops_tries_to_write_it(app: Stoker, store: Holding) -> None:
    async with app:
        held = await app.enqueue(app.draft("work", {"n": 0, "key": "k"}))
        async with working(app) as worker:
            await until(lambda: len(worker.outcomes.held))
            left = len(store.asked)
            worker.ask_stop()
            await until(lambda: worker.state == "stopping" and len(store.asked) > left + 2)
            store.slots = set()
            await worker.join()
        assert await held.result(0) == 0


@pytest.mark.spec("WORKER-34")
async def test_a_worker_that_stops_says_what_it_could_not_write(
    app: Stoker, store: Holding, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_loop, "FINISH_WITHIN", 0.2)
    async with app:
        await app.enqueue(app.draft("work", {"n": 0, "key": "k"}))
        async with working(app) as worker:
            await until(lambda: len(worker.outcomes.held))
    assert "1 outcome not written before the end" in caplog.text


@pytest.mark.spec("WORKER-34")
async def test_a_draining_worker_waits_for_it(app: Stoker, store: Holding) -> None:
    async with app:
        held = await app.enqueue(app.draft("work", {"n": 0, "key": "k"}))
        worker = Worker(app, drain=True)
        await worker.start()
        await until(lambda: len(store.asked) > 3)
        assert worker.state == "running"
        store.slots = set()
        await worker.join()
        assert await held.result(0) == 0


@pytest.mark.spec("WORKER-34")
async def test_a_queue_of_which_too_many_wait_is_left_alone_until_they_are_written(
    app: Stoker, store: Holding, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stoker.worker")
    async with app, working(app, {"default": 2, "other": 1}, claim_batch=1, settle_batch=1) as worker:
        most = worker.outcomes.most
        held = [await app.enqueue(app.draft("work", {"n": n, "key": "k"})) for n in range(4 * most)]
        await until(lambda: "claims no more jobs from queue default" in caplog.text)
        await until(lambda: not worker.fetcher.busy and not worker.fetcher.lane_of("default").buffer)
        tried = len(store.asked)
        await until(lambda: len(store.asked) > tried + 3)
        assert most <= len(worker.outcomes.held) <= most + 10, "and those that were claimed by then"
        assert (await store.operator.census()).ready("default") >= 2 * most
        other = await app.enqueue(app.draft("work", {"n": 7}, queue="other"))
        assert await other.result(PATIENCE) == 7
        store.slots = set()
        assert [await handle.result(PATIENCE) for handle in held] == list(range(4 * most))
    said = [record.getMessage() for record in caplog.records if "queue default" in record.getMessage()]
    assert len(said) == 2
    assert "work/k" in said[0]
    assert "from queue default again" in said[1]


@pytest.mark.spec("WORKER-34")
async def test_a_worker_that_starts_again_serves_a_queue_that_it_left_alone(
    app: Stoker, store: Holding, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_loop, "FINISH_WITHIN", 0.05)
    async with app, working(app, claim_batch=1, settle_batch=1) as worker:
        held = [await app.enqueue(app.draft("work", {"n": n, "key": "k"})) for n in range(2 * worker.outcomes.most)]
        await until(lambda: "claims no more jobs" in caplog.text)
        await worker.stop(0)
        store.slots = set()
        await worker.start()
        assert not worker.outcomes.held, "those of the first start are other workers' by now"
        assert await held[-1].result(PATIENCE) == len(held) - 1

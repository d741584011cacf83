"""Several calls to the store at once, where they travel."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import ClassVar

import pytest

from stoker.app import Stoker
from stoker.engines.base import CONTROL, Transaction
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Claim, Demand, Settled, Settlement, Status
from stoker.worker import Worker
from stoker.worker import fetcher as lanes
from stoker.worker import store_loop as store_loops
from stoker.worker.fetcher import Fetcher
from tests.harness.apps import PATIENCE, until
from tests.harness.doubles import Double
from tests.worker.test_fetcher import claims

JOBS = 900
DEEP = 10
"""Claims in the buffer from which on answers are held back: the worker has learnt how fast it is."""


class Far(Double):
    """A store at the other end of a long line: answers come when they are let through."""

    parallel_calls: ClassVar[int] = 3

    def __init__(self) -> None:
        super().__init__()
        self.through = asyncio.Event()
        self.through.set()
        self.buffer: Collection[Claim] = ()
        self.held = False
        self.under_way = self.most = self.lose = 0

    async def settle(
        self, settlements: Sequence[Settlement], *, tx: Transaction | None = None, demand: Demand | None = None
    ) -> Settled:
        if len(self.buffer) >= DEEP and not self.held:
            self.through.clear()
            self.held = True
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.through.wait()
            if self.lose:
                self.lose -= 1
                await self.real.jobs.settle(settlements, tx=tx)
                raise EngineUnavailable("the answer was lost.")
            return await self.real.jobs.settle(settlements, tx=tx, demand=demand)
        finally:
            self.under_way -= 1


class Near(Far):
    parallel_calls: ClassVar[int] = 1


@pytest.fixture(autouse=True)
def _deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is at the moment, buffers become deep."""
    monkeypatch.setattr(lanes, "HORIZON", 600.0)


async def drained(engine: Far, lose: int = 0) -> tuple[Counter[int], Worker]:
    """Run jobs through a worker of small batches, answers held back until all that can go has gone."""
    ran: Counter[int] = Counter()
    app = Stoker(engine)

    @app.task
    async def work(number: int) -> None:
        ran[number] += 1

    async with app:
        await app.enqueue_many(work.draft(number) for number in range(JOBS))
        worker = Worker(app, {"default": 5}, drain=True, claim_batch=5, settle_batch=5)
        [lane] = worker.lanes
        engine.buffer = lane.buffer
        await worker.start()
        await until(lambda: engine.held and not lane.buffer and engine.under_way >= min(2, engine.parallel_calls))
        engine.lose = lose
        engine.through.set()
        await asyncio.wait_for(worker.join(), PATIENCE)
        found = await (await app.engine()).operator.census()
    assert {(count.status, count.n) for count in found.counts} == {(Status.DONE, JOBS)}
    return ran, worker


@pytest.mark.spec("WORKER-31")
@pytest.mark.parametrize("kind", [Far, Near])
async def test_a_whole_batch_waits_for_the_call_before_it_only_where_calls_do_not_travel(kind: type[Far]) -> None:
    engine = kind()
    ran, worker = await drained(engine)
    assert ran == Counter(range(JOBS))
    assert worker.counts[Status.DONE] == JOBS
    assert (engine.most > 1) == (kind is Far)
    assert engine.most <= engine.parallel_calls
    assert worker.store_loop.asking == 0
    assert all(lane.asked == 0 for lane in worker.lanes)


@pytest.mark.spec("WORKER-31")
async def test_calls_whose_answers_are_lost_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_loops, "SHORTEST_PAUSE", 0.001)
    engine = Far()
    ran, worker = await drained(engine, lose=2)
    assert set(ran) == set(range(JOBS))
    assert worker.counts[Status.DONE] == JOBS
    assert not worker.outcomes.in_flight
    assert all(lane.asked == 0 for lane in worker.lanes)


class Slow(Double):
    """A store whose answer to a claim can be held back."""

    parallel_calls: ClassVar[int] = 3

    def __init__(self) -> None:
        super().__init__()
        self.through = asyncio.Event()
        self.through.set()
        self.asked = 0

    async def claim(self, demand: Demand) -> list[Claim]:
        self.asked += 1
        claims = await self.real.jobs.claim(demand)
        await self.through.wait()
        return claims


@pytest.mark.spec("WORKER-31")
async def test_an_outcome_that_rang_while_a_claim_was_under_way_is_written_when_that_is_back() -> None:
    engine, end, ended = Slow(), asyncio.Event(), asyncio.Event()
    app = Stoker(engine)

    @app.task
    async def long() -> None:
        await ended.wait()

    @app.task
    async def short() -> None:
        await end.wait()

    async with app, Worker(app, {"default": 5}, poll=60.0) as worker:
        await long.enqueue()
        await short.enqueue()
        await until(lambda: worker.runs == 2 and not worker.outcomes.flying)
        engine.through.clear()
        asked = engine.asked
        worker.fetcher.wake()
        worker.store_loop.wakeup.set()
        await until(lambda: engine.asked > asked)
        end.set()
        await until(lambda: len(worker.outcomes) == 1 and not worker.store_loop.wakeup.is_set())
        engine.through.set()
        await until(lambda: worker.counts[Status.DONE] == 1)
        ended.set()


@pytest.mark.spec("WORKER-31")
async def test_what_a_claim_brings_while_the_worker_stops_is_handed_back() -> None:
    engine = Slow()
    app = Stoker(engine)

    @app.task
    async def work() -> None: ...

    async with app:
        worker = Worker(app, {"default": 5}, poll=60.0)
        await worker.start()
        await until(lambda: engine.asked > 0 and not worker.outcomes.flying)
        engine.through.clear()
        handle = await work.enqueue()
        await until(lambda: worker.outcomes.flying)
        stopping = asyncio.create_task(worker.stop(grace=0))
        await until(lambda: worker.state == "stopping")
        engine.through.set()
        await stopping
        record = await handle.refresh()
    assert (record.status, record.attempts) == (Status.PENDING, 0)


@pytest.mark.spec("KEEPER-02")
@pytest.mark.parametrize("arrived", [False, True], ids=["under way", "in the buffer"])
async def test_what_was_claimed_under_an_id_that_was_lost_is_not_run(arrived: bool) -> None:
    """Another worker has the job: whether it is on its way to this one or waits in its buffer."""
    engine, ended, ran = Slow(), asyncio.Event(), list[int]()
    app = Stoker(engine)

    @app.task
    async def work(number: int) -> None:
        ran.append(number)
        if number:
            await ended.wait()

    async with app, Worker(app, {"default": 1}, poll=60.0) as worker:
        await app.enqueue_many(work.draft(0) for _ in range(20))  # now it claims ahead
        await until(lambda: worker.counts[Status.DONE] == 20 and not worker.outcomes.flying)
        former, [lane] = worker.id, worker.lanes
        if arrived:
            await app.enqueue_many(work.draft(number) for number in (1, 2))
            await until(lambda: lane.buffer and ran[-1] == 1)
        else:
            engine.through.clear()
            await work.enqueue(2)
            await until(lambda: worker.outcomes.flying)
        await engine.real.jobs.renew("rival", [], first=True)
        taken = await engine.real.jobs.reap("rival", 10, dead=[former])
        assert len(taken) == len(lane.buffer) + worker.runs + (not arrived)
        await engine.real.jobs.wake([CONTROL])
        await until(lambda: worker.id != former)
        engine.through.set()
        await until(lambda: not worker.outcomes.flying)
        ended.set()
        await until(lambda: worker.runs == 0 and not lane.buffer)
        assert {job.worker for job in await engine.real.operator.get([one.id for one in taken]) if job} == {"rival"}
    assert 2 not in ran, "what has not begun does not begin"


@pytest.mark.spec("WORKER-31")
def test_a_late_short_answer_does_not_hide_what_a_later_question_found() -> None:
    fetcher = Fetcher({"a": 10}, "own", 5)
    early, late = fetcher.ask("w"), fetcher.ask("w")
    assert early is not None
    assert late is not None
    assert fetcher.ask("w") is None, "what was asked for is not asked for twice"
    fetcher.distribute(late, claims(5))
    fetcher.distribute(early, [])
    again = fetcher.ask("w")
    assert again is not None
    fetcher.distribute(again, [])
    assert fetcher.ask("w") is None

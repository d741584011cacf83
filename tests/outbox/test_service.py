"""The service of a stream: lanes while the store is away or slow, after crashes, and the vacuum."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine, outbox_of
from stoker.executors.threads import Threads
from stoker.model.errors import EngineBusy, EngineUnavailable, InvalidInput
from stoker.model.outbox.consumers import Drop
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest
from stoker.outbox import Batch, Message, Outbox, Pace
from stoker.outbox.consumer_loop import ConsumerLoop
from stoker.outbox.service import FAR_BEHIND, vacuum_rest
from stoker.services import ServiceContext, UnderWay
from stoker.stopping import Stopping
from stoker.worker import Worker, maintenance
from tests.harness.apps import PATIENCE, drain, until, working
from tests.outbox.test_consumer_loop import QUICK, cursor, delivered, fill, letters


@pytest.fixture
def outbox(jobs: Stoker) -> Outbox[int]:
    return Outbox[int](jobs, stream="orders", partitions=1)


class Unreliable:
    """An engine whose calls of the outbox fail now and then; everything else is the engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.calls: list[str] = []
        self.failing: dict[str, int] = {}
        self.lost_answers = 0

    @property
    def jobs(self) -> Any:
        return self

    outbox = jobs

    def __getattr__(self, name: str) -> Any:
        facet = next((one for one in (self._engine.jobs, outbox_of(self._engine)) if hasattr(one, name)), self._engine)
        return getattr(facet, name)

    async def lease(self, request: LeaseRequest) -> Any:
        self._meet("lease")
        return await outbox_of(self._engine).lease(request)

    async def vacuum(self, stream: str, limit: int) -> Any:
        self._meet("vacuum")
        return await outbox_of(self._engine).vacuum(stream, limit)

    async def wait(self, topics: Any, timeout: float) -> Any:
        self._meet("wait")
        return await self._engine.jobs.wait(topics, timeout)

    async def advance(self, advance: Any, *, tx: Any = None, request: Any = None) -> Any:
        self._meet("advance")
        answer = await outbox_of(self._engine).advance(advance, tx=tx, request=request)
        if self.lost_answers:
            self.lost_answers -= 1
            raise EngineUnavailable("the answer was lost.")
        return answer

    def _meet(self, call: str) -> None:
        self.calls.append(call)
        if self.failing.get(call):
            self.failing[call] -= 1
            raise EngineUnavailable("gone for a moment.")


class Setup:
    """The service of an outbox, run without a worker."""

    def __init__(self, outbox: Outbox[int], engine: Any) -> None:
        self._service = next(iter(outbox.app.services))
        self._engine = engine
        self.stopping = Stopping()

    async def __aenter__(self) -> Self:
        await self._engine.jobs.renew("w1", [], first=True)
        app: Any = None
        context = ServiceContext(app, self._engine, lambda: "w1", lambda: not self.stopping, self.stopping, UnderWay())
        self._task = asyncio.create_task(self._service.run(context))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stopping.set()
        await asyncio.wait_for(self._task, PATIENCE)


@pytest.mark.spec("DELIVER-16")
async def test_lanes_go_on_when_the_store_is_back(outbox: Outbox[int]) -> None:
    engine = Unreliable(await outbox.app.engine())
    engine.failing = {"lease": 2, "wait": 1, "vacuum": 1}
    got: list[int] = []

    @outbox.deliver(pace=QUICK)
    async def publish(message: Message[int]) -> None:
        got.append(message.body)

    await fill(outbox, 3)
    async with Setup(outbox, engine):
        await until(lambda: len(got) == 3)
    assert engine.failing == {"lease": 0, "wait": 0, "vacuum": 0}


@pytest.mark.spec("DELIVER-16")
async def test_an_advance_whose_answer_is_lost_is_not_repeated(
    outbox: Outbox[int], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Unreliable(await outbox.app.engine())
    engine.lost_answers = 1
    got: list[int] = []

    @outbox.deliver(pace=QUICK, lease=3, headroom=1)
    async def publish(message: Message[int]) -> None:
        got.append(message.body)

    await fill(outbox, 6)
    async with Setup(outbox, engine):
        await delivered(outbox, 6)
    # The advance applied and leased the partition again; that lease had to end first.
    assert got == list(range(6))
    assert "is not known" in caplog.text


@pytest.mark.spec("DELIVER-15")
async def test_after_crashes_messages_come_alone_and_a_killer_is_given_up(outbox: Outbox[int]) -> None:
    sizes: list[int] = []

    @outbox.deliver(attempts=2, pace=QUICK, batch=8)
    async def publish(batch: Batch[int]) -> None:
        sizes.append(len(batch.rest()))

    await fill(outbox, 8)
    engine = await outbox.app.engine()
    streams = outbox_of(engine)
    handler = outbox.handlers["publish"]
    await streams.register(outbox.stream, [handler.consumer])
    for n in range(2):
        await engine.jobs.renew(f"dead{n}", [], first=True)
        assert isinstance(await streams.lease(LeaseRequest("orders", "publish", f"dead{n}", 8)), Lease)
        await engine.jobs.renew(f"dead{n}", [], lease=0)
    async with Setup(outbox, engine):
        await delivered(outbox, 8)
    assert sizes[0] < 8
    assert sum(sizes) == 7
    [letter] = await letters(outbox)
    assert (letter.number, letter.attempts) == (1, 3)
    assert "died or lost their lease, 2 times in a row" in letter.reason


@pytest.mark.spec("DELIVER-10")
async def test_a_slow_lease_shortens_the_time_of_the_handler(outbox: Outbox[int]) -> None:
    """The deadline counts from before the call: the margin to store the outcome stays whole."""
    left: list[float] = []
    hands = 1_000.0

    @outbox.deliver(lanes=1)
    async def publish(batch: Batch[int]) -> None:
        left.append(batch.remaining)
        batch.rest()

    class Slow(Unreliable):
        async def lease(self, request: LeaseRequest) -> Any:
            nonlocal hands
            hands += 10.0
            return await super().lease(request)

    await fill(outbox, 1)
    engine = Slow(await outbox.app.engine())
    await engine.jobs.renew("w1", [], first=True)
    handler = outbox.handlers["publish"]
    await outbox_of(engine).register(outbox.stream, [handler.consumer])  # type: ignore[arg-type]
    app: Any = None
    context = ServiceContext(app, engine, lambda: "w1")  # type: ignore[arg-type]
    lanes = ConsumerLoop("orders", handler, context, engine, Threads(), lambda: hands)
    tasks = lanes.start()
    await until(lambda: left)
    lanes.close()
    await asyncio.gather(*tasks)
    assert left == [18.0]


@pytest.mark.spec("DELIVER-11")
async def test_a_lease_that_arrives_during_a_stop_is_given_back(outbox: Outbox[int]) -> None:
    called = False

    @outbox.deliver(pace=QUICK)
    async def publish(message: Message[int]) -> None:
        nonlocal called
        called = True

    class Late(Unreliable):
        async def lease(self, request: LeaseRequest) -> Any:
            setup.stopping.set()
            await asyncio.sleep(0.01)
            return await super().lease(request)

    await fill(outbox, 3)
    setup = Setup(outbox, Late(await outbox.app.engine()))
    async with setup:
        await until(lambda: bool(setup.stopping))
    assert not called
    state = await cursor(outbox)
    assert (state.cursor.holder, state.cursor.attempts, state.cursor.position) == (None, 0, 0)


@pytest.mark.spec("DELIVER-12")
async def test_a_worker_that_drains_waits_for_the_first_look_of_every_consumer(outbox: Outbox[int]) -> None:
    """Also before the lanes' tasks have had their first turn on the loop."""

    @outbox.deliver
    async def publish(message: Message[int]) -> None: ...

    engine, handler = await outbox.app.engine(), outbox.handlers["publish"]
    await outbox_of(engine).register(outbox.stream, [handler.consumer])
    context = ServiceContext(outbox.app, engine, lambda: "w1", under_way=UnderWay())
    lanes = ConsumerLoop("orders", handler, context, outbox_of(engine), Threads())
    tasks = lanes.start()
    assert context.under_way
    await until(lambda: not context.under_way)
    lanes.close()
    await asyncio.gather(*tasks)


@pytest.mark.spec("DELIVER-12")
@pytest.mark.parametrize("call", ["register", "lease"])
async def test_a_worker_that_drains_tries_again_what_a_busy_store_refused(
    outbox: Outbox[int], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A look that failed is none, and a service that waits for its next start has not looked."""
    got: list[int] = []

    @outbox.deliver(pace=QUICK)
    async def publish(message: Message[int]) -> None:
        got.append(message.body)

    await fill(outbox, 3)
    streams = outbox_of(await outbox.app.engine())
    plain, refusals = getattr(streams, call), [EngineBusy("another transaction holds a lock.")] * 2

    async def refused(*args: Any, **kwargs: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await plain(*args, **kwargs)

    monkeypatch.setattr(streams, call, refused)
    monkeypatch.setattr(maintenance, "SHORTEST_PAUSE", 0.2)
    await drain(outbox.app)
    assert got == [0, 1, 2]


@pytest.mark.spec("DELIVER-12")
def test_a_worker_without_queues_and_services_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no services either"):
        Worker(Stoker("memory://"), {})


@pytest.mark.spec("DELIVER-17")
def test_the_vacuum_rests_most_of_the_time() -> None:
    assert vacuum_rest(0.1, 5_000, more=True) == pytest.approx(1.9)
    assert vacuum_rest(0.1, FAR_BEHIND + 1, more=True) == pytest.approx(0.3)
    assert 0.5 <= vacuum_rest(0.1, 0, more=False) <= 1.5


@pytest.mark.spec("DELIVER-17")
async def test_workers_remove_what_every_consumer_has_passed(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.outbox.service.VACUUM_EVERY", 0.01)
    outbox = Outbox[int](jobs, stream="orders", partitions=1)

    @outbox.deliver
    async def publish(message: Message[int]) -> None: ...

    @outbox.deliver(attempts=None, pace=Pace(retry_base=3600, retry_max=3600))
    async def slow(message: Message[int]) -> None:
        if message.body == 300:
            raise OSError("away")

    await fill(outbox, 500)
    streams = outbox_of(await jobs.engine())
    async with working(jobs, {}):
        await delivered(outbox, 500)
        await delivered(outbox, 300, "slow")
        await until_swept(outbox, 300)
    await streams.register(outbox.stream, [Consumer("late")])
    assert (await cursor(outbox, "late")).cursor.position == 300


async def until_swept(outbox: Outbox[int], count: int) -> None:
    """Wait until a consumer that would begin now would begin behind so many messages."""
    streams = outbox_of(await outbox.app.engine())
    async with asyncio.timeout(PATIENCE):
        while True:
            await streams.register(outbox.stream, [Consumer("probe")])
            position = (await cursor(outbox, "probe")).cursor.position
            await streams.steer("orders", "probe", Drop())
            if position == count:
                return
            await asyncio.sleep(0.02)

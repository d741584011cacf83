"""What a handler's outcome does to its messages, through a worker."""

from __future__ import annotations

import asyncio
import functools
import operator
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model.outbox.consumers import CursorState, Drop
from stoker.model.outbox.letters import Letter, LetterFilter, LetterStatus
from stoker.model.outcome import Reject, Retry, Snooze, Throttle
from stoker.outbox import Batch, Message, Outbox, Pace
from stoker.outbox.outcomes import STOPPED
from tests.harness.apps import PATIENCE, drain, until, working

QUICK = Pace(batch=4, idle=0.02, retry_base=0.001, retry_max=0.002)
"""Every delivery ends soon, also after failures."""
SHORT: Any = {"lease": 3, "headroom": 2}
"""A handler has a second, and its outcome two: enough on a busy machine too."""


@pytest.fixture
def outbox(jobs: Stoker) -> Outbox[int]:
    return Outbox[int](jobs, stream="orders", partitions=1)


async def fill(outbox: Outbox[int], count: int, key: Callable[[int], str] = lambda _: "k") -> None:
    await outbox.append_many([outbox.entry(key(n), n) for n in range(count)])


async def cursor(outbox: Outbox[int], consumer: str = "publish") -> CursorState:
    """The cursor of the only partition, as soon as a worker has registered the consumer."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for state in await outbox_of(await outbox.app.engine()).streams([outbox.stream.name]):
                for one in state.cursors:
                    if one.cursor.consumer == consumer:
                        return one
            await asyncio.sleep(0.005)


async def letters(outbox: Outbox[int]) -> list[Letter]:
    found = await outbox_of(await outbox.app.engine()).letters(LetterFilter(outbox.stream.name, status=None))
    return sorted(found.letters, key=lambda one: one.number)


async def delivered(outbox: Outbox[int], count: int, consumer: str = "publish") -> CursorState:
    """The cursor, as soon as so many messages are passed and no worker holds the partition."""
    async with asyncio.timeout(PATIENCE):
        while (state := await cursor(outbox, consumer)).cursor.position < count or state.cursor.holder is not None:
            await asyncio.sleep(0.005)
    return state


@asynccontextmanager
async def running(outbox: Outbox[Any]) -> AsyncIterator[None]:
    async with working(outbox.app, {}):
        yield


# --- the three forms --------------------------------------------------------------------------------------------------


@pytest.mark.spec("DELIVER-02")
async def test_one_message_at_a_time(outbox: Outbox[int]) -> None:
    got: list[int] = []

    @outbox.deliver
    async def publish(message: Message[int]) -> None:
        got.append(message.body)

    await fill(outbox, 250)
    async with running(outbox):
        state = await delivered(outbox, 250)
    assert got == list(range(250))
    assert (state.waiting, state.cursor.attempts, state.cursor.last_error) == (0, 0, None)


@pytest.mark.spec("DELIVER-02")
async def test_a_batch_is_walked(outbox: Outbox[int]) -> None:
    sizes: list[int] = []
    got: list[int] = []

    @outbox.deliver(batch=30)
    async def publish(batch: Batch[int]) -> None:
        sizes.append(len(batch))
        first = batch.next()
        assert first is not None
        got.append(first.body)
        got.extend(one.body for one in batch.chunk(5))
        got.extend(one.body for one in batch)
        assert batch.next() is None
        assert 0 < batch.remaining <= 28

    await fill(outbox, 100)
    async with running(outbox):
        await delivered(outbox, 100)
    assert got == list(range(100))
    assert sizes == [30, 30, 30, 10]


@pytest.mark.spec("DELIVER-02")
async def test_chunks(outbox: Outbox[int]) -> None:
    got: list[list[int]] = []

    @outbox.deliver(chunk=30, batch=50)
    async def publish(messages: list[Message[int]]) -> None:
        got.append([one.body for one in messages])

    await fill(outbox, 100)
    async with running(outbox):
        await delivered(outbox, 100)
    assert functools.reduce(operator.iadd, got, []) == list(range(100))
    assert [len(one) for one in got] == [30, 20, 30, 20]


@pytest.mark.spec("DELIVER-03")
async def test_a_plain_handler_runs_in_a_thread(outbox: Outbox[int]) -> None:
    threads: set[int] = set()

    @outbox.deliver
    def publish(message: Message[int]) -> None:
        threads.add(threading.get_ident())

    @outbox.deliver
    def walk(batch: Batch[int]) -> None:
        for _ in batch:
            threads.add(threading.get_ident())

    await fill(outbox, 10)
    async with running(outbox):
        await delivered(outbox, 10)
        await delivered(outbox, 10, "walk")
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.spec("DELIVER-04")
async def test_keys_keep_their_order_over_partitions_and_lanes(jobs: Stoker) -> None:
    outbox = Outbox[int](jobs, stream="wide", partitions=8)
    got: dict[str, list[int]] = {}
    busy: set[int] = set()
    most = 0

    @outbox.deliver(lanes=3, batch=7)
    async def publish(batch: Batch[int]) -> None:
        nonlocal most
        assert batch.partition not in busy
        busy.add(batch.partition)
        most = max(most, len(busy))
        while most < 3:
            await asyncio.sleep(0.001)
        for one in batch:
            got.setdefault(one.key, []).append(one.body)
        busy.remove(batch.partition)

    await fill(outbox, 500, lambda n: str(n % 40))
    async with running(outbox):
        await until(lambda: sum(map(len, got.values())) == 500)
    assert all(numbers == sorted(numbers) for numbers in got.values())
    assert most == 3


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DELIVER-05")
async def test_nothing_handed_out_is_a_paced_retry(outbox: Outbox[int]) -> None:
    calls = 0

    @outbox.deliver(pace=QUICK)
    async def publish(batch: Batch[int]) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            batch.rest()

    await fill(outbox, 3)
    async with running(outbox):
        await delivered(outbox, 3)
    assert calls >= 3


@pytest.mark.spec("DELIVER-06")
async def test_a_failure_keeps_what_was_finished_and_stores_the_reason(outbox: Outbox[int]) -> None:
    got: list[int] = []
    attempts: list[int] = []

    @outbox.deliver(pace=Pace(retry_base=3600, retry_max=3600))
    async def publish(message: Message[int]) -> None:
        if message.body == 2:
            raise ValueError("no such order")
        got.append(message.body)
        attempts.append(message.attempts)

    await fill(outbox, 5)
    async with running(outbox):
        await delivered(outbox, 2)
    assert got == [0, 1]
    state = await cursor(outbox)
    assert (state.cursor.position, state.cursor.failures, state.cursor.attempts) == (2, 1, 0)
    assert state.cursor.due > 0


@pytest.mark.spec("DELIVER-06")
async def test_the_handler_sees_earlier_attempts(outbox: Outbox[int]) -> None:
    seen: list[tuple[int, int]] = []

    @outbox.deliver(pace=QUICK)
    async def publish(batch: Batch[int]) -> None:
        one = batch.next()
        assert one is not None
        seen.append((one.attempts, batch.attempts))
        if len(seen) < 4:
            raise OSError("sink is away")
        batch.rest()

    await fill(outbox, 3)
    async with running(outbox):
        await delivered(outbox, 3)
    assert seen[:4] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert all(one == (0, 0) for one in seen[4:])


@pytest.mark.spec("DELIVER-06")
async def test_a_retry_may_name_its_delay(outbox: Outbox[int]) -> None:
    @outbox.deliver
    async def publish(message: Message[int]) -> None:
        raise Retry("not yet", delay=500)

    await fill(outbox, 1)
    async with running(outbox):
        async with asyncio.timeout(PATIENCE):
            while (state := await cursor(outbox)).cursor.last_error is None:
                await asyncio.sleep(0.005)
    engine = await outbox.app.engine()
    assert state.cursor.last_error == "not yet"
    assert 500 - PATIENCE < (state.cursor.due - await engine.now()) / 1e6 <= 500


@pytest.mark.spec("DELIVER-07")
async def test_a_message_that_is_rejected_becomes_a_letter_and_the_batch_goes_on(outbox: Outbox[int]) -> None:
    got: list[int] = []

    @outbox.deliver
    async def publish(message: Message[int]) -> None:
        if message.body == 2:
            raise Reject("nonsense")
        got.append(message.body)

    @outbox.deliver(chunk=2)
    async def chunks(messages: list[Message[int]]) -> None:
        if messages[0].body == 2:
            raise Reject("bad chunk")

    await fill(outbox, 5)
    async with running(outbox):
        await delivered(outbox, 5)
        await delivered(outbox, 5, "chunks")
    assert got == [0, 1, 3, 4]
    found = [(one.consumer, one.number, one.reason) for one in await letters(outbox)]
    assert sorted(found) == [("chunks", 3, "bad chunk"), ("chunks", 4, "bad chunk"), ("publish", 3, "nonsense")]


@pytest.mark.spec("DELIVER-07")
async def test_a_walked_batch_that_is_rejected_keeps_its_prefix(outbox: Outbox[int]) -> None:
    @outbox.deliver
    async def publish(batch: Batch[int]) -> None:
        for one in batch:
            if one.body == 1:
                batch.reject(one, "alone")
            if one.body == 3:
                raise Reject("and the rest")

    await fill(outbox, 5)
    async with running(outbox):
        await delivered(outbox, 5)
    assert [(one.number, one.reason) for one in await letters(outbox)] == [
        (2, "alone"),
        (4, "and the rest"),
        (5, "and the rest"),
    ]


@pytest.mark.spec("DELIVER-08")
@pytest.mark.parametrize("raised", [Snooze(0.001), Throttle(0.001)])
async def test_a_snooze_costs_no_attempt(outbox: Outbox[int], raised: BaseException) -> None:
    seen: list[int] = []

    @outbox.deliver(attempts=1, pace=QUICK)
    async def publish(message: Message[int]) -> None:
        seen.append(message.attempts)
        if len(seen) < 5:
            raise raised

    await fill(outbox, 1)
    async with running(outbox):
        await delivered(outbox, 1)
    assert seen == [0] * 5
    assert await letters(outbox) == []


@pytest.mark.spec("DELIVER-09")
@pytest.mark.parametrize("then", ["letter", "park"])
async def test_a_message_is_given_up_after_its_attempts(outbox: Outbox[int], then: Any) -> None:
    calls: list[int] = []

    @outbox.deliver(attempts=3, then=then, pace=QUICK)
    async def publish(message: Message[int]) -> None:
        calls.append(message.body)
        if message.body == 1:
            raise ValueError("poison")

    await fill(outbox, 6, lambda n: "ab"[n % 2])
    async with running(outbox):
        state = await delivered(outbox, 6)
    assert calls.count(1) == 4  # the first time there was progress before it
    found = [(one.number, one.status) for one in await letters(outbox)]
    if then == "letter":
        assert found == [(2, LetterStatus.PENDING)]
        assert state.cursor.parked == 0
        assert [one for one in calls if one != 1] == [0, 2, 3, 4, 5]
    else:
        assert found == [(number, LetterStatus.PARKED) for number in (2, 4, 6)]
        assert state.cursor.parked == 1
        assert [one for one in calls if one != 1] == [0, 2, 4]
    assert "ValueError: poison" in (await letters(outbox))[0].reason


@pytest.mark.spec("DELIVER-06")
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("own"), ExceptionGroup("g", [OSError()])]
)
async def test_whatever_a_handler_raises_is_a_retry(outbox: Outbox[int], error: BaseException) -> None:
    calls = 0

    @outbox.deliver(pace=QUICK)
    async def publish(message: Message[int]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error

    await fill(outbox, 1)
    async with running(outbox):
        await delivered(outbox, 1)
    assert calls == 2


@pytest.mark.spec("DELIVER-06")
async def test_a_body_that_does_not_fit_is_a_retry_with_its_reason(outbox: Outbox[int]) -> None:
    @outbox.deliver(name="publish", attempts=1)  # type: ignore[arg-type]
    async def take(message: Message[str]) -> None:
        _ = message.body

    await fill(outbox, 1)
    async with running(outbox):
        await delivered(outbox, 1)
    assert "take()" in (await letters(outbox))[0].reason


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DELIVER-10")
async def test_at_the_deadline_iteration_ends_by_itself(outbox: Outbox[int]) -> None:
    walks: list[list[int]] = []

    @outbox.deliver(**SHORT)
    async def publish(batch: Batch[int]) -> None:
        walks.append([])
        for one in batch:
            walks[-1].append(one.body)
            if len(walks) == 1 and one.body == 1:
                while batch.remaining > 0:
                    time.sleep(0.005)

    await fill(outbox, 4)
    async with running(outbox):
        await delivered(outbox, 4)
    assert walks[:2] == [[0, 1], [2, 3]]


@pytest.mark.spec("DELIVER-10")
@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_that_ignores_its_deadline_is_cut_and_its_prefix_kept(
    outbox: Outbox[int], plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    let_go = threading.Event()

    if plain:

        @outbox.deliver(**SHORT)
        def publish(message: Message[int]) -> None:
            calls.append(message.body)
            if calls == [0, 1, 2]:
                let_go.wait(PATIENCE)

    else:

        @outbox.deliver(**SHORT, name="publish")
        async def publish_async(message: Message[int]) -> None:
            calls.append(message.body)
            if calls == [0, 1, 2]:
                await asyncio.sleep(PATIENCE)

    await fill(outbox, 4)
    async with running(outbox):
        await delivered(outbox, 2)
        await delivered(outbox, 4)
        let_go.set()
    assert calls == [0, 1, 2, 2, 3]
    assert "messages finished: 2 of 4" in caplog.text


@pytest.mark.spec("DELIVER-10")
async def test_a_handler_that_swallows_its_interruption_is_left_behind(
    outbox: Outbox[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.outbox.consumer_loop.UNWIND", 0.05)
    calls = 0
    let_go = asyncio.Event()

    @outbox.deliver(**SHORT)
    async def publish(message: Message[int]) -> None:
        nonlocal calls
        calls += 1
        while calls == 1 and not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    await fill(outbox, 1)
    async with running(outbox):
        await delivered(outbox, 1)
        let_go.set()
    assert calls == 2
    assert "left behind" in caplog.text


# --- life -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DELIVER-11")
async def test_a_stop_lets_the_batch_finish(outbox: Outbox[int]) -> None:
    got: list[int] = []
    begun = asyncio.Event()

    @outbox.deliver(batch=3)
    async def publish(message: Message[int]) -> None:
        begun.set()
        await asyncio.sleep(0.02)
        got.append(message.body)

    await fill(outbox, 9)
    async with working(outbox.app, {}) as worker:
        await begun.wait()
        await worker.stop(PATIENCE)
    assert got == [0, 1, 2]
    state = await cursor(outbox)
    assert (state.cursor.position, state.cursor.holder, state.cursor.attempts) == (3, None, 0)


@pytest.mark.spec("DELIVER-11")
async def test_when_the_grace_is_over_the_prefix_is_kept_and_the_attempt_given_back(outbox: Outbox[int]) -> None:
    got: list[int] = []
    begun = asyncio.Event()

    @outbox.deliver(batch=3)
    async def publish(message: Message[int]) -> None:
        if message.body == 1:
            begun.set()
            await asyncio.sleep(PATIENCE)
        got.append(message.body)

    await fill(outbox, 3)
    async with working(outbox.app, {}) as worker:
        await begun.wait()
        await worker.stop(0.01)
    state = await cursor(outbox)
    assert got == [0]
    assert (state.cursor.position, state.cursor.holder, state.cursor.attempts, state.cursor.due) == (1, None, 0, 0)
    assert state.cursor.failures == 0


@pytest.mark.spec("DELIVER-11")
async def test_a_front_message_that_is_interrupted_by_a_stop_keeps_its_attempts(outbox: Outbox[int]) -> None:
    begun = asyncio.Event()

    @outbox.deliver(batch=3)
    async def publish(message: Message[int]) -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    await fill(outbox, 3)
    async with working(outbox.app, {}) as worker:
        await begun.wait()
        await worker.stop(0)
    state = await cursor(outbox)
    assert (state.cursor.position, state.cursor.attempts, state.cursor.last_error) == (0, 0, STOPPED)


@pytest.mark.spec("DELIVER-12")
async def test_a_worker_that_drains_delivers_what_there_is(outbox: Outbox[int]) -> None:
    got: list[int] = []

    @outbox.deliver(batch=2)
    async def publish(message: Message[int]) -> None:
        got.append(message.body)

    await fill(outbox, 25)
    await drain(outbox.app, queues={})
    assert got == list(range(25))


@pytest.mark.spec("DELIVER-12")
async def test_a_drain_ends_with_the_last_delivery_and_not_at_the_next_poll(outbox: Outbox[int]) -> None:
    got: list[int] = []

    @outbox.deliver
    async def publish(message: Message[int]) -> None:
        got.append(message.body)

    await fill(outbox, 1)
    await drain(outbox.app, queues={}, poll=3600)
    assert got == [0]


@pytest.mark.spec("DELIVER-13")
async def test_an_append_starts_its_delivery_at_once(outbox: Outbox[int]) -> None:
    times: list[float] = []

    @outbox.deliver(pace=Pace(idle=3600, retry_base=1))
    async def publish(message: Message[int]) -> None:
        times.append(time.monotonic())

    async with running(outbox):
        await delivered(outbox, 0)
        for n in range(5):
            await outbox.append("k", n)
            await until(lambda count=n + 1: len(times) >= count)  # type: ignore[misc]


@pytest.mark.spec("DELIVER-13")
async def test_every_consumer_of_a_process_is_woken(outbox: Outbox[int]) -> None:
    got: list[str] = []
    for name in ("one", "two", "three"):

        @outbox.deliver(name=name, pace=Pace(idle=3600))
        async def publish(message: Message[int], name: str = name) -> None:
            got.append(name)

    async with running(outbox):
        await delivered(outbox, 0, "one")
        await outbox.append("k", 1)
        await until(lambda: len(got) == 3)
    assert sorted(got) == ["one", "three", "two"]


@pytest.mark.spec("DELIVER-14")
async def test_a_consumer_that_is_dropped_gets_nothing_more(
    outbox: Outbox[int], caplog: pytest.LogCaptureFixture
) -> None:
    @outbox.deliver(pace=QUICK)
    async def publish(message: Message[int]) -> None: ...

    async with running(outbox):
        await fill(outbox, 1)
        await delivered(outbox, 1)
        await outbox_of(await outbox.app.engine()).steer("orders", "publish", Drop())
        await until(lambda: "was deleted; delivery stopped" in caplog.text)

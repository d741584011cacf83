from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stoker.engines.base import CONTROL, Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.memory.events import EventLog
from stoker.model.control import Presence
from stoker.model.errors import EngineClosed
from stoker.model.events import Event, EventType, Window
from stoker.model.ids import JobId, compose
from stoker.model.job import Demand, Draft, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed
from stoker.model.query import Cancel, Query, Retention, Selection
from stoker.model.time import MINUTE, SECOND
from stoker.testing.clock import VirtualClock

_numbers = iter(range(1, 1_000_000))


def draft(**options: Any) -> Draft:
    number = next(_numbers)
    return Draft(compose(number, number), "work", **options)


async def opened(**options: Any) -> MemoryEngine:
    engine = MemoryEngine(**options)
    await engine.open()
    await engine.jobs.renew("w", [], first=True, lease=10**12)
    return engine


async def finish(engine: MemoryEngine, n: int = 1, *, ok: bool = True) -> list[JobId]:
    claims = await engine.jobs.claim(Demand("w", (("default", n),)))
    outcome = Done() if ok else Failed("again", after=10**9)
    await engine.jobs.settle([conclude(claim, outcome) for claim in claims])
    return [claim.id for claim in claims]


async def stored(engine: MemoryEngine) -> list[JobId]:
    return [job.id for job in (await engine.operator.find(Query(order="oldest", limit=1_000))).jobs]


def in_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> threading.Thread:
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    return thread


def test_it_is_an_engine() -> None:
    engine: Engine = MemoryEngine()
    assert engine.name == "memory"


# --- what it is -------------------------------------------------------------------------------------------------


@pytest.mark.spec("MEMORY-01")
async def test_it_says_that_nothing_survives() -> None:
    engine = await opened(capacity=7)
    described = await engine.describe()
    assert not described.durable
    assert "lost when it exits" in described.durability
    assert len(described.warnings) == 1
    assert "not durable" in described.warnings[0]
    assert "retry timer" in described.warnings[0]
    assert described.facts["capacity"] == "7, then raise"
    await engine.close()


@pytest.mark.spec("MEMORY-10")
async def test_use_before_open_and_after_close_is_refused() -> None:
    engine = MemoryEngine()
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: engine.jobs.insert([draft()]),
        lambda: engine.operator.get([]),
        lambda: engine.jobs.wait(["default"], 0),
        lambda: engine.describe(),
        lambda: engine.transaction().__aenter__(),
    ]
    for _ in range(2):
        for call in calls:
            with pytest.raises(EngineClosed):
                await call()
        await engine.open()
        await engine.open()
        await engine.jobs.insert([])
        await engine.close()
        await engine.close()


@pytest.mark.spec("MEMORY-10")
async def test_what_was_stored_is_there_when_the_engine_opens_again() -> None:
    engine = await opened()
    await engine.jobs.insert([draft()])
    waiting = asyncio.create_task(engine.jobs.wait(["elsewhere"], 60))
    await asyncio.sleep(0)
    await engine.close()
    assert await asyncio.wait_for(waiting, 60) == frozenset()
    await engine.open()
    assert len(await stored(engine)) == 1
    await engine.close()


# --- history ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("MEMORY-05")
async def test_the_history_is_bounded_in_the_order_jobs_finished() -> None:
    engine = await opened(history=2)
    jobs = [draft(priority=-n) for n in range(5)]
    await engine.jobs.insert(jobs)
    done = await finish(engine, 4)
    assert done == [job.job_id for job in reversed(jobs[1:])]
    assert await stored(engine) == sorted([*done[-2:], jobs[0].job_id])
    census = await engine.operator.census()
    assert (census.by_status()[Status.DONE], census.totals["work"].completed) == (2, 4)
    await engine.close()


@pytest.mark.spec("MEMORY-05")
async def test_active_jobs_are_never_pruned() -> None:
    engine = await opened(history=1)
    jobs = [draft() for _ in range(50)]
    await engine.jobs.insert(jobs)
    await finish(engine, 10, ok=False)
    running = await engine.jobs.claim(Demand("w", (("default", 10),)))
    assert len(await stored(engine)) == 50
    await engine.operator.alter(Selection(tuple(job.job_id for job in jobs[20:])), Cancel())
    assert len(await stored(engine)) == 21
    assert len(running) == 10
    await engine.close()


@pytest.mark.spec("MEMORY-05")
async def test_events_go_with_the_jobs_that_are_pruned() -> None:
    engine = await opened(history=1)
    jobs = [draft(), draft()]
    await engine.jobs.insert(jobs)
    now = await engine.now()
    await engine.timeline.record(
        [Event(now, EventType.ENQUEUED, job.job_id, "default", "work") for job in jobs], now=now
    )
    await finish(engine, 2)
    events = await engine.timeline.events(Window(0, now + MINUTE))
    assert [event.job for event in events] == [jobs[1].job_id]
    await engine.close()


@pytest.mark.spec("MEMORY-05")
async def test_expire_can_bound_the_history_further() -> None:
    engine = await opened()
    await engine.jobs.insert([draft() for _ in range(6)])
    done = await finish(engine, 5)
    assert (await engine.operator.expire(Retention(finished=3, limit=1))).jobs == 1
    assert (await engine.operator.expire(Retention(finished=3))).jobs == 1
    assert (await engine.operator.expire(Retention(finished=3))).jobs == 0
    assert (await stored(engine))[:3] == done[2:]
    await engine.close()


@pytest.mark.spec("MEMORY-06")
def test_the_oldest_events_make_room() -> None:
    event_log = EventLog(most=100)
    for n in range(250):
        event_log.write([Event(n, EventType.STARTED, compose(n // 2, 0), "q", "k")], [], 0, 0, None)
    kept = [event.at for event in event_log.read(Window(0, 1_000))]
    assert kept == list(range(kept[0], 250))
    assert 80 <= len(kept) <= 100
    event_log.hide(compose(0, 0))
    event_log.hide(compose(124, 0))
    assert event_log.expire_events(240) == 240 - kept[0]
    assert [event.at for event in event_log.read(Window(0, 1_000))] == list(range(240, 248))


# --- twins ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MEMORY-11")
async def test_a_twin_in_another_thread_wakes_this_loop() -> None:
    engine = await opened()
    job = draft()

    async def produce() -> None:
        twin = engine.for_loop()
        await twin.open()
        await twin.jobs.insert([job])
        await twin.close()

    waiting = asyncio.create_task(engine.jobs.wait(["default"], 30))
    await asyncio.sleep(0)
    thread = in_thread(produce)
    assert await asyncio.wait_for(waiting, 60) == {"default"}
    thread.join()
    assert [claim.id for claim in await engine.jobs.claim(Demand("w", (("default", 1),)))] == [job.job_id]
    await engine.close()


@pytest.mark.spec("MEMORY-11")
async def test_a_cancel_reaches_a_keeper_on_its_own_loop() -> None:
    engine = await opened()
    await engine.jobs.insert([draft()])
    [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    ready, heard = threading.Event(), list[object]()

    async def keep() -> None:
        twin = engine.for_loop()
        await twin.open()
        waiting = asyncio.create_task(twin.jobs.wait([CONTROL], 30))
        await asyncio.sleep(0)
        ready.set()
        heard.append(await waiting)
        heard.append((await twin.jobs.renew("w", [(claim.id, claim.token)])).canceling)
        await twin.close()

    thread = in_thread(keep)
    await asyncio.to_thread(ready.wait, 10)
    await engine.operator.alter(Selection((claim.id,)), Cancel())
    await asyncio.to_thread(thread.join, 10)
    assert heard == [{CONTROL}, [(claim.id, claim.token)]]
    await engine.close()


@pytest.mark.spec("MEMORY-11")
async def test_twins_in_many_threads_share_one_store() -> None:
    """Producers and consumers on loops of their own: every job is handed out exactly once, and the counts add up."""
    engine = await opened(history=10_000)
    each, threads = 200, 4
    taken: list[JobId] = []
    failures: list[BaseException] = []

    async def produce() -> None:
        twin = engine.for_loop()
        await twin.open()
        for _ in range(each):
            await twin.jobs.insert([draft()])
        await twin.close()

    async def consume(worker: str) -> None:
        twin = engine.for_loop()
        await twin.open()
        await twin.jobs.renew(worker, [], first=True, lease=MINUTE)
        while len(taken) < each * threads:
            claims = await twin.jobs.claim(Demand(worker, (("default", 7),)))
            await twin.jobs.settle([conclude(claim, Done()) for claim in claims])
            taken.extend(claim.id for claim in claims)
            if not claims:
                await twin.jobs.wait(["default"], 0.01)
        await twin.close()

    async def watched(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except BaseException as error:
            failures.append(error)

    crew = [in_thread(lambda: watched(produce())) for _ in range(threads)]
    crew += [in_thread(lambda n=n: watched(consume(f"c{n}"))) for n in range(threads)]  # type: ignore[misc]
    for thread in crew:
        await asyncio.to_thread(thread.join, 50)
    assert failures == []
    assert len(taken) == len(set(taken)) == each * threads
    assert (await engine.operator.census()).by_status()[Status.DONE] == each * threads
    await engine.close()


@pytest.mark.spec("MEMORY-11")
async def test_a_twin_whose_loop_is_gone_does_not_swallow_wake_ups() -> None:
    engine = await opened()
    twin = engine.for_loop()

    async def vanish() -> None:
        await twin.open()
        waiting = asyncio.ensure_future(twin.jobs.wait(["default"], 60))
        await asyncio.sleep(0)
        assert not waiting.done()

    thread = in_thread(vanish)
    await asyncio.to_thread(thread.join, 10)
    await engine.jobs.insert([draft()])
    assert await engine.jobs.wait(["default"], 0) == {"default"}
    assert await twin.jobs.wait(["default"], 0) == {"default"}
    await twin.close()
    await engine.close()


@pytest.mark.spec("MEMORY-11")
async def test_a_wake_up_that_meets_a_canceled_waiter_is_passed_on() -> None:
    engine = await opened()
    first = asyncio.create_task(engine.jobs.wait(["default"], 60))
    second = asyncio.create_task(engine.jobs.wait(["default"], 60))
    await asyncio.sleep(0)
    await engine.jobs.insert([draft()])
    first.cancel()
    assert await asyncio.wait_for(second, 60) == {"default"}
    third = asyncio.create_task(engine.jobs.wait(["default"], 60))
    await asyncio.sleep(0)
    await engine.jobs.insert([draft()])
    third.cancel()
    await asyncio.sleep(0)
    assert await engine.jobs.wait(["default"], 0) == {"default"}
    await engine.close()


# --- time -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MEMORY-12")
async def test_the_clock_stands_still_while_its_source_is_behind() -> None:
    clock = VirtualClock()
    engine = await opened(clock=clock)
    start = await engine.now()
    clock.rewind(60)
    assert await engine.now() == start
    clock.advance(59)
    assert await engine.now() == start
    clock.advance(2)
    assert await engine.now() == start + SECOND
    await engine.close()


@pytest.mark.spec("MEMORY-12")
async def test_a_mark_that_is_far_ahead_is_dropped() -> None:
    clock = VirtualClock()
    engine = await opened(clock=clock)
    start = await engine.now()
    clock.advance(3_600)
    late = draft(delay=SECOND)
    await engine.jobs.insert([late, draft(at=start)])
    clock.advance(2)
    assert (await engine.operator.census()).ready("default") == 2
    clock.set(start)
    assert await engine.now() == start
    census = await engine.operator.census()
    assert (census.ready("default"), census.later) == (1, {"default": 1})
    assert len(await engine.jobs.claim(Demand("w", (("default", 9),)))) == 1
    clock.advance(3_601)
    assert [claim.id for claim in await engine.jobs.claim(Demand("w", (("default", 9),)))] == [late.job_id]
    assert (await engine.describe()).facts["clock marks dropped"] == "1"
    await engine.close()


@pytest.mark.spec("MEMORY-12")
async def test_without_a_clock_of_the_tests_it_is_the_machines() -> None:
    engine = await opened()
    readings = [await engine.now() for _ in range(100)]
    assert readings == sorted(readings)
    assert readings[0] > 1_700_000_000 * SECOND
    await engine.control.beat(Presence(worker="w", host="h", pid=1, queues={}))
    assert (await engine.control.workers())[0].seen_at >= readings[-1]
    await engine.close()

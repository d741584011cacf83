"""The ticker: a service of every worker that fires what is due, by the store's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from stoker.app import Stoker
from stoker.engines.base import CONTROL, Engine
from stoker.model import cron, ids, schedule
from stoker.model.errors import EngineBusy, EngineUnavailable
from stoker.model.events import EventType, Transition, Window
from stoker.model.job import Draft, Status
from stoker.model.query import Query
from stoker.model.schedule import LONGEST_SLEEP, NO_ID, SHORTEST_SLEEP, Action, Schedule, Tick
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.services import ServiceContext
from stoker.testing.clock import VirtualClock
from stoker.worker import Worker
from stoker.worker import schedules as ticking
from stoker.worker.schedules import LOCK, Ticker, fire_due, fire_one
from tests.harness.apps import PATIENCE, until, working

START = 1_800_000_000_000_000 // HOUR * HOUR


def hourly(name: str = "report", **more: Any) -> Schedule:
    return Schedule(**{"name": name, "expression": "@hourly", "template": Draft(NO_ID, "work"), **more})


async def occurrences(engine: Engine) -> list[bytes]:
    return [job.id for job in (await engine.operator.find(Query(order="oldest", limit=1_000))).jobs]


@pytest.mark.spec("SCHED-17")
async def test_a_worker_stores_what_code_declares_and_fires_it(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real clock, from the declaration to the handler."""
    monkeypatch.setattr(ticking, "SHORTEST_SLEEP", 10_000)
    ran: list[str] = []

    @jobs.cron("* * * * * *", name="each.second")
    async def work() -> None:
        ran.append("work")

    async with working(jobs):
        await until(lambda: len(ran) >= 2)
    [found] = await jobs.schedules()
    assert (found.name, found.last_status) == ("each.second", "fired")


@pytest.mark.spec("SCHED-17")
async def test_an_edit_wakes_the_ticker(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticker sleeps for an hour where nothing is stored; a new schedule is seeded long before."""
    monkeypatch.setattr(ticking, "SHORTEST_SLEEP", 10_000)
    monkeypatch.setattr(ticking, "LONGEST_SLEEP", HOUR)
    task = jobs.task(name="work")(_nothing)
    engine = await jobs.engine()
    waits, real = list[Sequence[str]](), engine.jobs.wait

    async def noted(topics: Sequence[str], seconds: float) -> frozenset[str]:
        waits.append(topics)
        return await real(topics, seconds)

    monkeypatch.setattr(engine.jobs, "wait", noted)
    async with working(jobs):
        await until(lambda: [CONTROL] in waits)
        handle = await jobs.schedule("report", task.draft(), cron="@hourly")
        async with asyncio.timeout(PATIENCE):
            while (await handle.info()).next_fire is None:
                await asyncio.sleep(0.01)


async def _nothing() -> None: ...


@pytest.mark.spec("SCHED-17")
async def test_of_several_workers_one_ticks_and_hands_over_when_it_stops(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticking, "SHORTEST_SLEEP", 10_000)
    monkeypatch.setattr(ticking, "LONGEST_SLEEP", 50_000)
    jobs.cron("* * * * * *", name="work")(_nothing)
    engine = await jobs.engine()

    async def holder(*workers: Worker) -> Worker:
        async with asyncio.timeout(PATIENCE):
            while True:
                for worker in workers:
                    others = [one for one in workers if one is not worker]
                    held = await engine.control.lock(LOCK, worker.id, 15 * SECOND)
                    if held and not any([await engine.control.lock(LOCK, one.id, SECOND) for one in others]):
                        return worker
                await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(working(jobs)) for _ in range(2)]
        first = await holder(*workers)
        await first.stop(0)
        [rest] = [one for one in workers if one is not first]
        before = (await jobs.schedules())[0].last_fire
        async with asyncio.timeout(PATIENCE):
            while (await jobs.schedules())[0].last_fire == before:
                await asyncio.sleep(0.01)
        assert await engine.control.lock(LOCK, rest.id, SECOND), "the lock passed on without waiting for its end"


@pytest.mark.spec("SCHED-17")
async def test_a_store_without_schedules_costs_a_read_and_no_lock(engine: Engine) -> None:
    async with Stoker(engine) as jobs:
        store = await jobs.engine()
        context = ServiceContext(jobs, store, lambda: "w1")
        ticker = Ticker()
        assert await ticker.turn(context) == LONGEST_SLEEP
        assert await store.control.unlock(LOCK, "w1")
        assert await ticker.turn(context) == LONGEST_SLEEP
        assert not await store.control.unlock(LOCK, "w1")
        await store.schedules.put(hourly())
        assert SHORTEST_SLEEP <= await ticker.turn(context) <= LONGEST_SLEEP
        assert await store.control.lock(LOCK, "other", SECOND)
        assert await ticker.turn(context) == LONGEST_SLEEP, "the other one ticks"


@pytest.mark.spec("SCHED-17")
async def test_jobs_of_schedules_are_events_like_all_others(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, seen = timed_jobs, list[Transition]()
    jobs.listener(seen.append)
    clock.set(START)
    engine = await jobs.engine()
    await engine.schedules.put(hourly())
    for _ in range(2):
        await fire_due(jobs, engine, await engine.schedules.read())
        clock.advance(HOUR / SECOND)
    [change] = seen
    assert (change.kind, change.after) == ("work", Status.PENDING)
    assert change.job == ids.text(ids.occurrence("report", START + HOUR))
    await jobs.timeline.flush(engine.timeline)  # type: ignore[union-attr]
    [event] = await engine.timeline.events(Window(since=0, until=clock() + DAY * 10_000))
    assert event.job == ids.occurrence("report", START + HOUR)


@pytest.mark.spec("SCHED-21")
@pytest.mark.parametrize(("misfire", "fired", "missed"), [("once", 1, 4), ("skip", 0, 5), ("all", 5, 0)])
async def test_missed_occurrences_are_an_event(
    timed_jobs: Stoker, clock: VirtualClock, misfire: str, fired: int, missed: int
) -> None:
    clock.set(START)
    engine = await timed_jobs.engine()
    await engine.schedules.put(hourly(misfire=misfire))
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    clock.advance((5 * HOUR + 2 * MINUTE) / SECOND)
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    await timed_jobs.timeline.flush(engine.timeline)  # type: ignore[union-attr]
    events = await engine.timeline.events(Window(since=0, until=clock() + DAY * 10_000))
    assert sum(event.type is EventType.ENQUEUED for event in events) == fired
    left_out = [event for event in events if event.type is EventType.SCHEDULE_MISSED]
    assert [event.attempt for event in left_out] == ([missed] if missed else [])
    assert all(event.job == ids.occurrence("report", START + HOUR) and event.kind == "work" for event in left_out)


@pytest.mark.spec("SCHED-18")
async def test_one_schedule_that_cannot_be_evaluated_is_disabled_alone(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A zone that has gone from the machine, and a bug of ours: both are the schedule's last error."""
    clock.set(START)
    engine = await timed_jobs.engine()
    for name in ("bug", "sound", "zone"):
        await engine.schedules.put(hourly(name, tz="Europe/Paris" if name == "zone" else "UTC"))
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    clock.advance(HOUR / SECOND)

    def breaking(one: Schedule, now: int) -> Tick:
        if one.name == "bug":
            raise ZeroDivisionError("ours")
        return schedule.tick(one, now)

    def gone(name: str) -> None:
        raise LookupError(name)

    monkeypatch.setattr(ticking, "tick", breaking)
    monkeypatch.setattr(cron, "ZoneInfo", gone)
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    found = {one.name: one for one in await engine.schedules.read()}
    assert [(one.enabled, one.last_status) for one in found.values()] == [
        (False, Action.DISABLE),
        (True, Action.FIRE),
        (False, Action.DISABLE),
    ]
    assert "ZeroDivisionError" in (found["bug"].last_error or "")
    assert "Europe/Paris" in (found["zone"].last_error or "")
    assert await occurrences(engine) == [ids.occurrence("sound", START + HOUR)]
    assert sum("is disabled: " in record.getMessage() for record in caplog.records) == 2


@pytest.mark.spec("SCHED-18")
async def test_a_job_that_cannot_be_made_is_the_last_error(
    timed_jobs: Stoker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A template that an older version stored, and whose metadata leaves no room for the schedule's own."""
    clock.set(START)
    engine = await timed_jobs.engine()
    await engine.schedules.put(hourly())
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    clock.advance(HOUR / SECOND)
    [stored] = await engine.schedules.read()
    options = msgspec.structs.replace(stored.template.options, metadata={"k": "x" * 8_180})
    crowded = msgspec.structs.replace(stored, template=msgspec.structs.replace(stored.template, options=options))
    fired = await fire_one(timed_jobs, engine, crowded, clock())
    assert fired.schedule is not None
    assert (fired.schedule.last_status, fired.schedule.enabled) == (Action.FAIL, True)
    assert "metadata" in (fired.schedule.last_error or "")
    assert fired.schedule.next_fire == clock() + HOUR
    assert any("its job could not be stored: metadata" in record.getMessage() for record in caplog.records)


@pytest.mark.spec("SCHED-19")
async def test_a_part_of_the_store_with_another_clock_is_fired_by_that_clock(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    """A Redis Cluster has a clock for each server: nothing is lost, whether the ticker's is ahead or behind."""
    clock.set(START)
    engine = await timed_jobs.engine()
    await engine.schedules.put(hourly(misfire="all"))
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    for hours in range(1, 5):
        clock.set(START + hours * HOUR + MINUTE)
        for skew in (-2 * DAY, 2 * DAY, 90 * MINUTE):
            [stored] = await engine.schedules.read()
            await fire_one(timed_jobs, engine, stored, clock() + skew)
    assert await occurrences(engine) == [ids.occurrence("report", START + n * HOUR) for n in range(1, 5)]


@pytest.mark.spec("SCHED-19")
async def test_the_hosts_clock_has_no_part_in_it(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.set(START)
    engine = await timed_jobs.engine()
    await engine.schedules.put(hourly())
    context = ServiceContext(timed_jobs, engine, lambda: "w1")
    ticker = Ticker()
    await ticker.turn(context)
    monkeypatch.setattr("time.time_ns", lambda: (START + 3 * DAY) * 1_000)
    monkeypatch.setattr("time.time", lambda: (START + 3 * DAY) / SECOND)
    await ticker.turn(context)
    assert await occurrences(engine) == []
    clock.advance(HOUR / SECOND)
    await ticker.turn(context)
    assert await occurrences(engine) == [ids.occurrence("report", START + HOUR)]


@pytest.mark.spec("SCHED-18")
async def test_a_store_that_is_away_is_tried_again(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is recorded as an error of the schedule: the whole tick is repeated when the store is back."""
    clock.set(START)
    engine = await timed_jobs.engine()
    await engine.schedules.put(hourly())
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    clock.advance(HOUR / SECOND)
    fire = engine.schedules.fire

    async def away(*_: Any) -> None:
        raise EngineUnavailable("gone for a moment.")

    monkeypatch.setattr(engine.schedules, "fire", away)
    with pytest.raises(EngineUnavailable):
        await fire_due(timed_jobs, engine, await engine.schedules.read())
    monkeypatch.setattr(engine.schedules, "fire", fire)
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    assert await occurrences(engine) == [ids.occurrence("report", START + HOUR)]
    [stored] = await engine.schedules.read()
    assert (stored.last_error, stored.missed) == (None, 0)
    assert not [record for record in caplog.records if "report" in record.getMessage()]


@pytest.mark.spec("SCHED-18")
async def test_a_schedule_that_the_store_cannot_fire_now_does_not_hold_up_the_others(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock.set(START)
    engine = await timed_jobs.engine()
    for name in ("busy", "sound"):
        await engine.schedules.put(hourly(name))
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    clock.advance(HOUR / SECOND)
    fire = engine.schedules.fire

    async def busy(decision: Tick, drafts: Any) -> Any:
        if decision.name == "busy":
            raise EngineBusy("others changed the same jobs.")
        return await fire(decision, drafts)

    monkeypatch.setattr(engine.schedules, "fire", busy)
    assert await fire_due(timed_jobs, engine, await engine.schedules.read()) == LONGEST_SLEEP
    assert await occurrences(engine) == [ids.occurrence("sound", START + HOUR)]
    [record] = [one for one in caplog.records if "could not be fired" in one.getMessage()]
    assert "schedule busy could not be fired and is tried again: others changed" in record.getMessage()
    monkeypatch.setattr(engine.schedules, "fire", fire)
    await fire_due(timed_jobs, engine, await engine.schedules.read())
    assert set(await occurrences(engine)) == {ids.occurrence(name, START + HOUR) for name in ("busy", "sound")}

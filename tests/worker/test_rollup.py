"""The roll-up: closed minutes become points, by one worker of a store, and a failing question hinders no other."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stoker.admin.documents import error_records, kind_hours
from stoker.app import Stoker
from stoker.documents import readable
from stoker.engines.base import ERRORS, KIND_HOURS
from stoker.engines.memory import MemoryEngine
from stoker.model.error_records import ErrorRecord
from stoker.model.errors import EngineError, EngineUnavailable
from stoker.model.events import Event, EventCount, EventType, Latency, Point, Window
from stoker.model.job import Draft
from stoker.model.kind_hours import KindHour
from stoker.model.query import Census, Retention
from stoker.model.same_error import fingerprint
from stoker.model.stats import METRICS, MOST_LATE
from stoker.model.time import HOUR, MINUTE, SECOND, Instant
from stoker.registry import mint
from stoker.services import ServiceContext
from stoker.worker import Worker, rollup
from tests.harness.apps import drain
from tests.harness.doubles import Double

START: Instant = 30_000_000 * MINUTE


class Clock:
    now = START

    def __call__(self) -> Instant:
        return self.now


async def points(engine: MemoryEngine) -> dict[tuple[str, str, int], Point]:
    found = await engine.timeline.points(0, 2 * START, METRICS)
    return {(one.queue, one.metric, (one.bucket - START) // MINUTE): one for one in found}


async def store(clock: Clock, engine: MemoryEngine) -> None:
    """A job was completed in each of five minutes, and two more jobs wait."""
    await engine.open()
    await engine.jobs.insert([Draft(mint(), "work"), Draft(mint(), "work", delay=9 * MINUTE)])
    for n in range(5):
        event = Event(START + n * MINUTE, EventType.COMPLETED, mint(), "mail", "send", 1, 7, 70 + n)
        await engine.timeline.record([event], now=START)
    clock.now = START + 4 * MINUTE + 30 * SECOND


@pytest.mark.spec("STATS-07")
async def test_the_last_three_closed_minutes_are_stored_again_and_again() -> None:
    clock = Clock()
    engine = MemoryEngine(clock=clock)
    await store(clock, engine)
    assert await rollup.write_points(engine) > 0
    found = await points(engine)
    assert found["mail", "completed", 1].count == 1
    assert found["mail", "total", 3] == Point("mail", "total", START + 3 * MINUTE, 1, 73, 73, 73, 73, 73)
    assert ("mail", "completed", 0) not in found
    assert ("mail", "completed", 4) not in found
    assert found["default", "ready", 3].max == 1
    assert found["default", "lag", 3].max == 4 * MINUTE + 30 * SECOND
    await rollup.write_points(engine)
    again = await points(engine)
    assert {place: point for place, point in again.items() if place[0]} == {
        place: point for place, point in found.items() if place[0]
    }
    await engine.close()


@pytest.mark.spec("STATS-09")
async def test_a_minute_is_computed_again_only_when_something_came_in() -> None:
    asked: list[Instant] = []

    class Counting(Double):
        async def latencies(self, window: Window) -> list[Latency]:
            asked.append((window.since - START) // MINUTE)
            return await self.real.timeline.latencies(window)

    clock = Clock()
    engine = Counting(clock=clock)
    await store(clock, engine)
    counted: rollup.Counted = {}
    for expected in ([1, 2, 3], []):
        await rollup.write_points(engine, counted)
        assert asked == expected
        asked.clear()
    await engine.timeline.record(
        [Event(START + 2 * MINUTE, EventType.COMPLETED, mint(), "mail", "send", 1, 9, 90)], now=clock()
    )
    clock.now += MINUTE
    await rollup.write_points(engine, counted)
    assert asked == [2, 4]
    found = await points(engine)
    assert [found["mail", "completed", minute].count for minute in (1, 2, 3, 4)] == [1, 2, 1, 1]
    await engine.close()


@pytest.mark.spec("STATS-11")
async def test_of_many_minutes_that_gained_events_the_latest_are_computed() -> None:
    clock = Clock()
    engine = MemoryEngine(clock=clock)
    await store(clock, engine)
    told = [Event(clock() - n * MINUTE, EventType.ENQUEUED, mint(), "mail", "send") for n in range(MOST_LATE + 9)]
    await engine.timeline.record(told, now=clock())
    counted: rollup.Counted = {}
    assert await rollup.write_points(engine, counted) > 0
    enqueued = [minute for queue, metric, minute in await points(engine) if (queue, metric) == ("mail", "enqueued")]
    assert enqueued == list(range(1 - MOST_LATE, 4)), "the closed minutes 1, 2 and 3, and those before"
    assert len(counted) == MOST_LATE + 3
    await engine.close()


@pytest.mark.spec("STATS-10")
async def test_a_minute_whose_events_are_gone_in_part_keeps_its_points() -> None:
    clock = Clock()
    engine = MemoryEngine(clock=clock)
    await store(clock, engine)
    more = [Event(START + MINUTE + n, EventType.COMPLETED, mint(), "mail", "send", 1, 7, 70) for n in (10, 20)]
    await engine.timeline.record(more, now=clock())
    await rollup.write_points(engine)
    before = await points(engine)
    assert before["mail", "completed", 1].count == before["mail", "total", 1].count == 3
    assert (await engine.operator.expire(Retention(events=clock() - START - MINUTE - 20))).events == 3
    assert sum(one.n for one in await engine.timeline.event_counts(START, START + 2 * MINUTE)) == 1
    await rollup.write_points(engine)
    after = await points(engine)
    assert {place: point for place, point in after.items() if place[0]} == {
        place: point for place, point in before.items() if place[0]
    }
    assert after["", "all_completed", 1].count == 3
    await engine.close()


@pytest.mark.spec("STATS-07")
async def test_a_question_that_fails_is_left_out_quietly(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Double):
        async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
            raise EngineError("no events today")

        async def census(self) -> Census:
            raise ValueError("not even translated")

    clock = Clock()
    engine = Broken(clock=clock)
    await store(clock, engine)
    await engine.timeline.record([], [Point("", "m", START, 1)], now=START)
    assert await rollup.write_points(engine) > 0
    assert {metric for _, metric, _ in await points(engine)} == {"store_read", "store_write"}
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
    await engine.close()


@pytest.mark.spec("STATS-07")
async def test_a_store_that_is_away_ends_the_round_and_not_the_service(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0
    done = asyncio.Event()

    class Away(Double):
        async def now(self) -> Instant:
            return START - SECOND

        async def census(self) -> Census:
            nonlocal rounds
            rounds += 1
            if rounds == 2:
                done.set()
            raise EngineUnavailable("gone for a moment")

    pauses: list[float] = []
    sleep = asyncio.sleep

    async def quick(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("stoker.worker.rollup.asyncio.sleep", quick)
    engine = Away()
    await engine.open()
    task = asyncio.create_task(rollup.RollUp().run(ServiceContext(jobs, engine, lambda: "w1")))
    await asyncio.wait_for(done.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 2 <= pauses[0] <= 2 + rollup.SPREAD
    await engine.close()


@pytest.mark.spec("STATS-07")
async def test_only_the_holder_of_the_lock_rolls_up(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr("stoker.worker.rollup.asyncio.sleep", lambda _: sleep(0))
    engine = MemoryEngine(clock=Clock())
    await engine.open()
    rolled: list[str] = []

    async def write(*_: object) -> int:
        rolled.append("once")
        return 0

    monkeypatch.setattr(rollup, "write_points", write)
    await engine.control.lock(rollup.LOCK, "another", MINUTE)
    task = asyncio.create_task(rollup.RollUp().run(ServiceContext(jobs, engine, lambda: "w1")))
    for _ in range(50):
        await sleep(0)
    assert rolled == []
    await engine.control.unlock(rollup.LOCK, "another")
    while not rolled:
        await sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.close()


@pytest.mark.spec("STATS-07")
async def test_every_worker_has_a_roll_up(jobs: Stoker) -> None:
    async with Worker(jobs):
        assert "stoker-service-rollup" in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.spec("STATS-15")
async def test_a_worker_that_stops_counts_the_running_minute(tmp_path: Path) -> None:
    """Else the last minutes before the last worker stopped would be in no figure."""
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(attempts=1)
    async def send(to: str) -> None:
        if not to:
            raise ValueError("no address")

    async with app:
        began = (await (await app.engine()).now()) // MINUTE * MINUTE
        await send.enqueue("ada")
        await send.enqueue("")
        await drain(app)
        engine = await app.engine()
        found = await engine.timeline.points(began, await engine.now(), ["all_completed", "kind_failed", "counted"])
        assert {one.metric: one.count for one in found} == {"all_completed": 1, "kind_failed": 1, "counted": 1}
        assert [record.error for record in await error_records(engine)] == ["ValueError: no address"]
        assert await engine.control.lock(rollup.LOCK, "another", MINUTE), "the next one that stops has it"
        await send.enqueue("bob")
        await drain(app)
        [done] = await engine.timeline.points(began, await engine.now(), ["all_completed"], width=HOUR)
        assert done.count == 1, "another worker rolls up, and counts it"


@pytest.mark.spec("STATS-15", "STATS-14")
async def test_the_first_round_computes_what_was_not_counted() -> None:
    """While no worker lived jobs were enqueued, and the last one may have been killed."""
    clock = Clock()
    engine = MemoryEngine(clock=clock)
    await store(clock, engine)
    await rollup.close(engine, "w1")
    assert (await points(engine))["mail", "completed", 4].count == 1
    later = [Event(START + n * MINUTE + 50 * SECOND, EventType.ENQUEUED, mint(), "mail", "send") for n in (4, 30)]
    await engine.timeline.record(later, now=clock())
    clock.now = START + HOUR + 10 * MINUTE
    service = rollup.RollUp()
    await service._round(engine)
    found = await points(engine)
    assert [found["mail", "enqueued", minute].count for minute in (4, 30)] == [1, 1]
    assert found["mail", "completed", 0].count == 1
    assert ("mail", "enqueued", 5) not in found
    hours = START // HOUR * HOUR, START // HOUR * HOUR - HOUR
    [record] = await kind_hours(engine)
    assert (record.at, record.points("send")[0].count) == (hours[0], 5)
    await service._round(engine)
    assert service._hours is not None
    assert service._hours >= set(hours)
    late = [Event(at, EventType.COMPLETED, mint(), "mail", "send", 1, 7, 70) for at in (clock(), START + 20 * MINUTE)]
    await engine.timeline.record(late, now=clock())
    await service._round(engine)
    [record] = await kind_hours(engine)
    assert record.points("send")[0].count == 6, "an hour that gains events is recorded anew"
    await engine.close()


@pytest.mark.spec("ERRORS-05")
async def test_failures_that_could_not_be_added_are_counted_again() -> None:
    """Another worker wrote the record meanwhile, or the store refused."""

    class Refusing(Double):
        answers: ClassVar[list[bool | Exception]] = [False, EngineError("no")]

        async def swap(self, *args: Any, **options: Any) -> bool:
            if self.answers:
                answer = self.answers.pop()
                if isinstance(answer, Exception):
                    raise answer
                return answer
            return await self.real.documents.swap(*args, **options)

    clock = Clock()
    engine = Refusing(clock=clock)
    await store(clock, engine)
    died = Event(START + 3 * MINUTE, EventType.FAILED, mint(), "mail", "send", 1, 7, error="Timeout: …")
    await engine.timeline.record([died], now=clock())
    counted: rollup.Counted = {}
    for _ in range(2):
        await rollup.write_points(engine, counted)
        assert await error_records(engine) == []
        assert START + 3 * MINUTE not in counted
    await rollup.write_points(engine, counted)
    [record] = await error_records(engine)
    assert (record.died.counts, record.kinds) == ((1,), ("send",))
    assert START + 3 * MINUTE in counted
    await engine.close()


@pytest.mark.spec("ERRORS-05")
async def test_an_error_whose_record_cannot_be_read_holds_up_no_other() -> None:
    clock = Clock()
    engine = MemoryEngine(clock=clock)
    await store(clock, engine)
    texts = [f"{name}: …" for name in ("Timeout", "Refused", "Missing")]
    first = min(texts, key=fingerprint)
    assert await engine.documents.swap(ERRORS, fingerprint(first), None, b'{"id": 1}')
    died = [Event(START + 3 * MINUTE, EventType.FAILED, mint(), "mail", "send", 1, 7, error=text) for text in texts]
    await engine.timeline.record(died, now=clock())
    for _ in range(2):
        await rollup.write_points(engine)
    found = {record.id: record for record, _ in await readable(engine, ERRORS, ErrorRecord)}
    assert found.keys() == {fingerprint(text) for text in texts if text != first}
    assert {record.died.counts for record in found.values()} == {(1,)}
    await engine.close()


@pytest.mark.spec("ERRORS-05", "STATS-07")
async def test_records_that_another_release_has_written_are_left_alone() -> None:
    clock = Clock()
    engine = MemoryEngine(clock=clock)
    await store(clock, engine)
    for kind in (ERRORS, KIND_HOURS):
        assert await engine.documents.swap(kind, "odd", None, b'{"id": 1, "at": "once"}')
    died = Event(START + 3 * MINUTE, EventType.FAILED, mint(), "mail", "send", 1, 7, error="Timeout: …")
    await engine.timeline.record([died], now=clock())
    await rollup.write_points(engine)
    [(record, _)] = await readable(engine, ERRORS, ErrorRecord)
    assert record.kinds == ("send",)
    await rollup.write_hour(engine, START // HOUR * HOUR)
    [(hour, _)] = await readable(engine, KIND_HOURS, KindHour)
    assert hour.at == START // HOUR * HOUR
    for kind in (ERRORS, KIND_HOURS):
        assert len(await engine.documents.read(kind)) == 2
    await engine.close()

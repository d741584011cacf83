"""How many processes the work needs, asked of every engine."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from stoker.admin import Admin
from stoker.admin.as_json import plain
from stoker.admin.scale import RunTimes
from stoker.app import Stoker
from stoker.limits import Limit
from stoker.model.chunk import Chunk
from stoker.model.control import Presence, Tuning
from stoker.model.errors import EngineUnavailable, InvalidArgument
from stoker.model.events import Point
from stoker.model.job import Demand, Settlement, Status
from stoker.model.scale import Measured
from stoker.model.schedule import tick
from stoker.model.throttle import Rate
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, moment
from stoker.testing.clock import VirtualClock

pytestmark = pytest.mark.spec("SCALE-09")


async def put(app: Stoker, n: int, queue: str, **options: Any) -> None:
    await app.enqueue_many([app.draft("send", queue=queue, **options) for _ in range(n)])


async def ran(app: Stoker, kind: str, seconds: float, ago: int) -> None:
    """Some runs of a kind were measured, so many microseconds ago."""
    engine = await app.engine()
    now = await engine.now()
    took = Point(kind, "kind_processing", (now - ago) // MINUTE * MINUTE, 10, 10 * seconds * SECOND)
    await engine.timeline.record([], [took], now=now)


async def test_only_claimable_work_needs_processes(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    await ran(app, "send", 60, 5 * MINUTE)
    await put(app, 25, "open")
    await put(app, 5, "open", delay=3600)
    await put(app, 30, "paused")
    await admin.queues.pause("paused")
    await put(app, 30, "rated")
    await admin.queues.tune("rated", Tuning(rate=Rate(1, per=3600)))
    await put(app, 40, "keyed", limit=Limit(2))
    await put(app, 3, "keyed")
    await engine.jobs.renew("w", [], first=True)
    started = await engine.jobs.claim(Demand("w", (("keyed", 1), ("rated", 30)), 31))
    assert [one.queue for one in started] == ["keyed", "rated"]
    found = await admin.queues.scale()
    assert {one.name: (one.processes, one.claimable, one.held, one.held_by, one.running) for one in found.queues} == {
        "open": (3, 25, 0, (), 0),
        "paused": (0, 0, 30, ("pause",), 0),
        "rated": (1, 0, 29, ("rate",), 1),
        "keyed": (1, 4, 38, ("limit",), 1),
    }
    assert (found.processes, found.claimable, found.held, found.running) == (3, 29, 97, 2)
    one = await admin.queues.scale("open", slots=5)
    assert (one.processes, [queue.name for queue in one.queues]) == (5, ["open"])
    assert one.next_due == moment(clock() + HOUR)
    assert one.next_due_in == timedelta(hours=1)
    assert (await admin.queues.scale("open", target_wait=3600)).processes == 1
    assert json.loads(json.dumps(plain(one)))["next_due_in"] == 3600


async def test_run_times_that_could_not_be_read_are_asked_for_again(
    app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, known = await app.engine(), RunTimes()
    await ran(app, "send", 60, 5 * MINUTE)
    now = await engine.now()

    async def away(*_: Any, **__: Any) -> list[Point]:
        raise EngineUnavailable("the server is gone.")

    with monkeypatch.context() as patched:
        patched.setattr(engine.timeline, "points", away)
        with pytest.raises(EngineUnavailable):
            await known.read(engine, now, {"send"})
    assert await known.read(engine, now, {"send"}) == {"send": Measured(60 * SECOND, 10)}


async def test_due_retries_count_and_slots_are_those_of_live_workers(admin: Admin, app: Stoker) -> None:
    engine = await app.engine()
    await put(app, 8, "mail")
    await engine.jobs.renew("w", [], first=True)
    claims = await engine.jobs.claim(Demand("w", (("mail", 6),), 6))
    for after, one in zip((0, 0, 0, HOUR), claims, strict=False):
        ended = Settlement(one.id, one.worker, one.token, Status.RETRYING, after, error="again")
        await engine.jobs.settle([ended])
    for worker, slots in (("w", 1), ("x", 3)):
        await engine.control.beat(Presence(worker=worker, host=worker, pid=1, queues={"mail": slots, "idle": 1}))
    [idle, mail] = (await admin.queues.scale(target_wait=0)).queues
    assert (idle.name, idle.processes, idle.slots) == ("idle", 0, 1)
    assert (mail.claimable, mail.running, mail.slots, mail.slots_needed, mail.processes) == (5, 2, 2, 7, 4)


async def test_run_times_come_from_the_last_hour_else_from_the_last_day(admin: Admin, app: Stoker) -> None:
    await put(app, 100, "mail")
    assert (await admin.queues.scale("mail")).queues[0].run_time == timedelta(seconds=1)
    await ran(app, "send", 90, DAY - HOUR)
    assert (await admin.queues.scale("mail")).queues[0].slots_needed == 90
    await ran(app, "send", 10, HOUR // 2)
    assert (await admin.queues.scale("mail")).queues[0].run_time == timedelta(seconds=10)


async def test_a_due_schedule_needs_a_process(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    """And the next one is what a scaler that ends the last process waits for."""
    await admin.schedules.create("hourly", app.draft("send", queue="mail"), cron="0 * * * *")
    engine = await app.engine()
    [hourly] = await engine.schedules.read()
    await engine.schedules.fire(tick(hourly, clock()), [])
    [hourly] = await engine.schedules.read()
    assert hourly.next_fire is not None
    asleep = await admin.queues.scale("mail")
    assert (asleep.processes, asleep.next_due) == (0, moment(hourly.next_fire))
    clock.advance(timedelta(microseconds=hourly.next_fire - clock()))
    assert [(await admin.queues.scale(*names)).processes for names in (("mail",), (), ("other",))] == [1, 1, 0]


async def test_a_queue_that_is_not_known_needs_nothing_and_is_told(admin: Admin, app: Stoker) -> None:
    await put(app, 1, "mail")
    found = await admin.queues.scale("mial")
    assert (found.processes, found.queues[0].claimable) == (0, 0)
    assert "Did you mean mail?" in found.hint
    assert (await admin.queues.scale("mail")).hint == ""
    for wrong in ({"slots": 0}, {"target_wait": 4000}, {"target_wait": -1}):
        with pytest.raises(InvalidArgument):
            await admin.queues.scale("mail", **wrong)


@pytest.mark.engine("memory")
async def test_jobs_of_a_chunk_share_a_slot() -> None:
    jobs = Stoker("memory://")

    @jobs.task(queue="rows", chunk=Chunk(50))
    async def store(rows: list[int]) -> None: ...

    async with jobs:
        await jobs.enqueue_many([store.draft(n) for n in range(1_000)])
        [rows] = (await Admin(jobs).queues.scale("rows", target_wait=0)).queues
        assert (rows.slots, rows.slots_needed, rows.processes) == (500, 1_000, 2)

"""What operators and workers do on a server that is full, lossy or crowded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from stoker.admin.kinds import read_points
from stoker.engines.base import LEASE
from stoker.engines.redis import events as event_log
from stoker.engines.redis import find
from stoker.model.control import Presence, Tuning
from stoker.model.errors import EngineFull
from stoker.model.events import REMEMBERED, Event, EventType, Point, Window
from stoker.model.ids import JobId
from stoker.model.job import Demand, Draft, Status
from stoker.model.lifecycle import KEEP_DEAD, conclude
from stoker.model.outcome import Done, Failed, Rejected
from stoker.model.query import (
    Cancel,
    Clone,
    Delete,
    Discard,
    Expired,
    Move,
    Prioritize,
    Query,
    Requeue,
    Retention,
    RunNow,
    Selection,
)
from stoker.model.throttle import Rate
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.worker.rollup import write_hour
from tests import services
from tests.engines.redis.stand import Stand

pytestmark = pytest.mark.engine("redis")


class Bench(Stand):
    async def add(self, n: int = 1, **options: Any) -> list[JobId]:
        drafts = [Draft(self.mint(), "work", **options) for _ in range(n)]
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    async def run(self, n: int, outcome: Any) -> list[JobId]:
        await self.engine.jobs.renew("w", [], first=True)
        claims = await self.engine.jobs.claim(Demand("w", (("default", n),)))
        await self.engine.jobs.settle([conclude(claim, outcome) for claim in claims])
        return [claim.id for claim in claims]


@pytest.fixture
async def bench(redis_url: str, redis_prefix: str) -> AsyncIterator[Bench]:
    async with Bench.on(redis_url, redis_prefix) as found:
        yield found


# --- no memory left ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[redis.Redis]:
    """A server of this module's own; each test takes its memory away by itself."""
    with services.redis_server() as server, redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def full(small: redis.Redis) -> AsyncIterator[Bench]:
    """Jobs of every kind on a server that has no memory left."""
    small.flushall()
    port = small.connection_pool.connection_kwargs["port"]
    async with Bench.on(f"redis://127.0.0.1:{port}/0", "full") as found:
        await found.add(2)
        await found.run(2, Rejected("no"))
        await found.add(2)
        await found.run(2, Done())
        await found.engine.control.tune("api", Rate(1, burst=10))
        await found.add(3, delay=HOUR)
        await found.add(1)
        await found.engine.jobs.claim(Demand("w", (("default", 1),)))
        small.config_set("maxmemory", 1)
        yield found
        small.config_set("maxmemory", 0)


@pytest.mark.spec("REDISOPS-20")
async def test_a_full_server_takes_no_jobs_and_stores_nothing_half(full: Bench) -> None:
    before = await full.engine.operator.census()
    with pytest.raises(EngineFull, match="maxmemory"):
        await full.add(5)
    with pytest.raises(EngineFull):
        await full.add(1, unique=Unique("k"))
    with pytest.raises(EngineFull):
        await full.engine.timeline.record([Event(1, EventType.ENQUEUED, full.mint(), "q", "k")], now=1)
    assert await full.engine.operator.census() == before
    assert await full.engine.timeline.events(Window(0, 1 << 60)) == []


@pytest.mark.spec("REDISOPS-21")
async def test_a_full_server_lets_people_make_room(full: Bench) -> None:
    """Whatever ends, removes, moves or holds back jobs gets through."""
    engine = full.engine
    page = await engine.operator.find(Query(order="oldest", limit=100))
    by_status: dict[Status, list[JobId]] = {}
    for job in page.jobs:
        by_status.setdefault(job.status, []).append(job.id)
    later, dead = by_status[Status.PENDING], by_status[Status.DEAD]
    for change, jobs in (
        (Prioritize(3), later),
        (Move("other"), later[:1]),
        (RunNow(), later[:1]),
        (Cancel(), later),
        (Requeue(), later[:1]),
        (Discard(), dead[:1]),
        (Clone((full.mint(),)), dead[1:]),
    ):
        assert (await engine.operator.alter(Selection(tuple(jobs)), change)).changed == len(jobs), change
    assert (
        await engine.operator.alter(Selection(tuple(by_status[Status.RUNNING])), Cancel("stop"))
    ).cancel_requested == 1
    assert await engine.control.tune("mail", Tuning(paused=True))
    assert (await engine.control.spend("api")).granted
    assert await engine.control.lock("janitor", "me", SECOND)
    await engine.control.beat(Presence(worker="w", host="h", pid=1, queues={}))
    assert (await engine.operator.alter(Selection(tuple(dead)), Delete())).changed == 2
    full.clock.set(full.clock() + KEEP_DEAD + HOUR)
    assert (await engine.operator.expire(Retention())).jobs == 4
    assert await engine.operator.expire(Retention()) == Expired()
    assert (await engine.jobs.renew("w", [], lease=LEASE)).known


# --- a reply that was lost, and bounds --------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-22")
async def test_a_recording_that_is_sent_twice_counts_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    at = bench.clock()
    event, point = Event(at, EventType.STARTED, bench.mint(), "q", "k"), Point("q", "m", at, 1, 1.5)
    monkeypatch.setattr("stoker.engines.redis.events.os.urandom", lambda n: b"t" * n)
    for _ in range(3):
        await bench.engine.timeline.record([event], [point], now=at)
    assert await bench.engine.timeline.events(Window(at, at + 1)) == [event]
    bench.clock.set(at + REMEMBERED + 1)
    monkeypatch.setattr("stoker.engines.redis.events.os.urandom", lambda n: b"u" * n)
    await bench.engine.timeline.record([event], now=at + REMEMBERED + 1)
    assert await bench.engine._store.connection.call("ZCARD", bench.engine._store.home.key("tickets")) == 1


@pytest.mark.spec("REDISOPS-23")
async def test_events_and_points_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound the oldest make room, in the index by job too."""
    monkeypatch.setattr(event_log, "MOST_EVENTS", 100)
    monkeypatch.setattr(event_log, "MOST_POINTS", 50)
    at, job = bench.clock(), bench.mint()
    for start in range(0, 300, 60):
        events = [Event(at + start + n, EventType.STARTED, job, "q", "k") for n in range(60)]
        await bench.engine.timeline.record(events, [Point("q", "m", at + start + n, n) for n in range(60)], now=at)
    kept = await bench.engine.timeline.events(Window(at, at + 1_000))
    assert 50 <= len(kept) <= 100
    assert [event.at for event in kept] == list(range(at + 300 - len(kept), at + 300))
    assert await bench.engine.timeline.events(Window(at, at + 1_000, job=job)) == kept
    points = await bench.engine.timeline.points(at, at + 1_000, ["m"])
    assert 0 < len(points) <= 50
    assert points[-1].bucket == at + 299


@pytest.mark.spec("STATS-14")
async def test_what_kinds_did_outlives_their_points(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of a busy kind, of which the bound keeps the minutes of two hours."""
    monkeypatch.setattr(event_log, "MOST_POINTS", 130)
    start, hours = bench.clock() // HOUR * HOUR, 7 * 24
    for hour in range(hours):
        at = start + hour * HOUR
        points = [Point("send", "kind_completed", at + n * MINUTE, 1) for n in range(60)]
        await bench.engine.timeline.record([], points, now=at)
        await write_hour(bench.engine, at)
    left = await bench.engine.timeline.points(start, start + 7 * DAY, ["kind_completed"])
    assert 60 < len(left) <= 130
    asked = ["kind_completed"], start, start + 7 * DAY, 112 * MINUTE
    found = await read_points(bench.engine, "send", *asked, now=start + 7 * DAY)
    assert {one.count for one in found} == {112}
    assert len(found) == 7 * 24 * 60 // 112


@pytest.mark.spec("TIMELINE-18")
async def test_points_of_a_few_queues_are_read_a_few_buckets_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a script runs, the server does nothing else."""
    at = bench.clock()
    points = [Point(name, "m", at + n * MINUTE, n) for n in range(20) for name in ("a", "b", "c")]
    await bench.engine.timeline.record([], points, now=at)
    monkeypatch.setattr(event_log, "MOST_RANGES", 7)
    found = await bench.engine.timeline.points(at, at + HOUR, ["m"], frozenset({"a", "c"}))
    assert found == [one for one in points if one.queue != "b"]


@pytest.mark.spec("TIMELINE-23")
async def test_minutes_into_which_was_written_late_are_found_a_few_blocks_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a script runs, the server does nothing else."""
    at = bench.clock() // MINUTE * MINUTE
    monkeypatch.setattr(event_log, "PAGE", 3)
    for n in range(9):
        events = [Event(at - n * MINUTE * late, EventType.ENQUEUED, bench.mint(), "q", "k") for late in (0, 1)]
        await bench.engine.timeline.record(events, now=bench.clock())
    assert await bench.engine.timeline.late_minutes(at) == [at - n * MINUTE for n in range(8, 0, -1)]


# --- many -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-24")
async def test_a_thousand_keyed_jobs_change_in_one_call(bench: Bench) -> None:
    drafts = [Draft(bench.mint(), "work", unique=Unique(f"k{n}")) for n in range(1_000)]
    jobs = tuple(receipt.id for receipt in await bench.engine.jobs.insert(drafts))
    assert len(await bench.run(1_000, Rejected("no"))) == 1_000
    sent = 0
    ask = bench.engine._store.connection._ask

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal sent
        sent += 1
        return await ask(*args, **kwargs)

    bench.engine._store.connection._ask = counted  # type: ignore[method-assign]
    assert (await bench.engine.operator.alter(Selection(jobs), Requeue())).changed == 1_000
    assert sent < 12, "round trips do not grow with the selection"
    await bench.engine.jobs.renew("w", [])
    await bench.engine.jobs.claim(Demand("w", (("default", 1_000),)))
    sent = 0
    assert (await bench.engine.operator.alter(Selection(jobs), Cancel())).cancel_requested == 1_000
    assert sent < 12


@pytest.mark.spec("REDISOPS-24")
async def test_waiting_jobs_are_found_however_many_there_are(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few are sorted, many are walked: the pages are the same."""
    jobs = await bench.add(60)
    await bench.run(20, Done())
    await bench.run(5, Failed("again", after=HOUR))
    query = Query(statuses=frozenset({Status.PENDING, Status.RETRYING}), order="oldest", limit=7)

    async def walked() -> list[JobId]:
        found, cursor = [], None
        while True:
            page = await bench.engine.operator.find(
                Query(statuses=query.statuses, order="oldest", limit=7, cursor=cursor)
            )
            found += [job.id for job in page.jobs]
            if (cursor := page.cursor) is None:
                return found

    few = await walked()
    monkeypatch.setattr(find, "LONGEST_WALK", 10)
    assert await walked() == few == jobs[20:]


@pytest.mark.spec("REDISOPS-25")
async def test_operators_and_workers_at_once_leave_sound_counts(bench: Bench) -> None:
    """Cancels, requeues and deletes race with claims and settlements; every counter equals a recount."""
    jobs = tuple(await bench.add(200))

    async def work(worker: str) -> None:
        await bench.engine.jobs.renew(worker, [], first=True)
        for _ in range(30):
            claims = await bench.engine.jobs.claim(Demand(worker, (("default", 5),)))
            await bench.engine.jobs.settle([conclude(claim, Rejected("no")) for claim in claims])

    async def meddle(start: int) -> None:
        for n in range(12):
            part = jobs[(start + n * 16) % 200 :][:16]
            for change in (Cancel(), Requeue(), Delete() if n % 4 == 3 else Requeue()):
                await bench.engine.operator.alter(Selection(part), change)

    await asyncio.gather(work("a"), work("b"), meddle(0), meddle(100))
    counts: dict[Status, int] = dict.fromkeys(Status, 0)
    for job in (await bench.engine.operator.find(Query(limit=1_000))).jobs:
        counts[job.status] += 1
    census = await bench.engine.operator.census()
    assert census.by_status() == counts
    for status in Status:
        found = (await bench.engine.operator.find(Query(statuses=frozenset({status}), limit=1_000))).jobs
        assert len(found) == counts[status], status

"""What operators do over the queues of a cluster, of which each is a shard of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.engines.redis import RedisClusterEngine
from stoker.engines.redis.cluster import move
from stoker.engines.redis.control import pairs
from stoker.engines.redis.keys import Shard
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.control import Tuning
from stoker.model.errors import EngineUnavailable
from stoker.model.events import Event, EventType, Window
from stoker.model.ids import JobId, Mint
from stoker.model.job import Demand, Draft, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Snoozed
from stoker.model.query import Cancel, Delete, Move, Query, Retention, Selection, Tally
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique
from tests.engines.redis.stand import Stand, entropy

pytestmark = pytest.mark.engine("redis-cluster")


class Bench(Stand):
    async def add(self, queue: str, n: int = 1, **options: Any) -> list[JobId]:
        drafts = [Draft(self.mint(), "work", queue=queue, **options) for _ in range(n)]
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    async def alter(self, change: Any, *jobs: JobId) -> Tally:
        return await self.engine.operator.alter(Selection(jobs), change)

    async def queue_of(self, job: JobId) -> str | None:
        [found] = await self.engine.operator.get([job])
        return None if found is None else found.queue

    async def moving(self, shard: Shard) -> list[tuple[bytes, bytes]]:
        return pairs(await self.store.connection.call("HGETALL", shard.key("moving")))


@pytest.fixture
async def bench(redis_cluster_url: str, redis_cluster_prefix: str) -> AsyncIterator[Bench]:
    async with Bench.on(redis_cluster_url, redis_cluster_prefix, RedisClusterEngine) as found:
        yield found


@pytest.mark.spec("REDISOPS-30")
async def test_a_cluster_is_described(bench: Bench) -> None:
    told = await bench.engine.describe()
    assert (told.facts["masters"], told.facts["cluster_state"], told.facts["mode"]) == ("3", "ok", "cluster")
    assert int(told.facts["replicas"]) == 3
    assert "asynchronous" in told.durability
    assert told.durable


@pytest.mark.spec("REDISOPS-31")
async def test_questions_and_actions_reach_every_queue(bench: Bench) -> None:
    jobs = [job for n in range(9) for job in await bench.add(f"q{n}", delay=HOUR * (n % 2))]
    await bench.engine.control.tune("q3", Tuning(paused=True))
    assert [queue.name for queue in await bench.engine.control.queues()] == [f"q{n}" for n in range(9)]
    newest, found = None, []
    while True:
        page = await bench.engine.operator.find(Query(limit=4, cursor=newest))
        found += [job.id for job in page.jobs]
        if (newest := page.cursor) is None:
            break
    assert found == jobs[::-1]
    assert [job.id for job in (await bench.engine.operator.find(Query(queues=frozenset({"q2", "q5"})))).jobs] == [
        jobs[5],
        jobs[2],
    ]
    census = await bench.engine.operator.census()
    assert census.by_status()[Status.PENDING] == 9
    assert census.later == {f"q{n}": 1 for n in range(9) if n % 2}
    assert census.totals["work"].enqueued == 9
    tally = await bench.alter(Cancel(), jobs[7], bench.mint(), jobs[1], jobs[4])
    assert (tally.changed, tally.missing, tally.changed_ids) == (3, 1, (jobs[7], jobs[1], jobs[4]))
    assert (await bench.alter(Cancel(), *jobs)).refused == {Status.CANCELED: 3}


@pytest.mark.spec("REDISOPS-31")
async def test_deleting_takes_the_events_along(bench: Bench) -> None:
    [job], [other] = await bench.add("a"), await bench.add("b")
    at = bench.clock()
    await bench.engine.timeline.record(
        [Event(at, EventType.ENQUEUED, one, "a", "work") for one in (job, other)], now=at
    )
    assert (await bench.alter(Delete(), job)).changed == 1
    assert [event.job for event in await bench.engine.timeline.events(Window(at, at + 1))] == [other]
    await bench.alter(Cancel(), other)
    bench.clock.set(at + 31 * DAY)
    assert (await bench.engine.operator.expire(Retention(events=60 * DAY))).jobs == 1
    assert await bench.engine.timeline.events(Window(at, at + 1)) == []


@pytest.mark.spec("REDISOPS-32")
async def test_a_move_takes_everything_along(bench: Bench) -> None:
    """The job is claimed from its new queue only, with its past."""
    [job] = await bench.add("from", priority=-3, tenant="t", payload=b'{"a": 1.0}')
    await bench.engine.jobs.renew("w", [], first=True)
    [claim] = await bench.engine.jobs.claim(Demand("w", (("from", 1),)))
    await bench.engine.jobs.settle([conclude(claim, Failed("one", after=SECOND))])
    [before] = await bench.engine.operator.get([job])
    assert (await bench.alter(Move("to"), job)).changed == 1
    [after] = await bench.engine.operator.get([job])
    assert before is not None
    assert after is not None
    assert (after.queue, after.status, after.history, after.last_error) == (
        "to",
        Status.RETRYING,
        before.history,
        "one",
    )
    assert (after.attempts, after.priority, after.tenant, after.payload) == (1, -3, "t", b'{"a": 1.0}')
    assert (after.created_at, after.scheduled_at) == (before.created_at, before.scheduled_at)
    census = await bench.engine.operator.census()
    assert [(count.queue, count.status, count.n) for count in census.counts] == [("to", Status.RETRYING, 1)]
    assert census.totals["work"].enqueued == 1
    bench.clock.set(bench.clock() + HOUR)
    await bench.engine.jobs.renew("w", [])
    [again] = await bench.engine.jobs.claim(Demand("w", (("from", 5), ("to", 5))))
    assert (again.id, again.attempt, again.token > claim.token) == (job, 2, True)


@pytest.mark.spec("REDISOPS-32")
async def test_a_move_takes_the_past_of_a_job_along_that_waits_as_if_it_were_new(bench: Bench) -> None:
    [job] = await bench.add("from")
    await bench.engine.jobs.renew("w", [], first=True)
    [claim] = await bench.engine.jobs.claim(Demand("w", (("from", 1),)))
    await bench.engine.jobs.settle([conclude(claim, Snoozed(after=SECOND))])
    assert (await bench.alter(Move("to"), job)).changed == 1
    bench.clock.set(bench.clock() + SECOND)
    [again] = await bench.engine.jobs.claim(Demand("w", (("from", 5), ("to", 5))))
    assert (again.id, again.queue, again.token > claim.token) == (job, "to", True)
    [verdict] = (await bench.engine.jobs.settle([conclude(claim, Done())])).verdicts
    assert verdict is Verdict.LOST


@pytest.mark.spec("REDISOPS-33")
async def test_a_move_that_was_cut_short_is_finished_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = await bench.add("from", 3)
    deliver = move.deliver

    async def die(*_: Any) -> None:
        raise EngineUnavailable("gone in between")

    monkeypatch.setattr(move, "deliver", die)
    with pytest.raises(EngineUnavailable):
        await bench.alter(Move("to"), *jobs)
    assert [await bench.queue_of(job) for job in jobs] == [None] * 3
    assert len(await bench.moving(bench.store.shard("from"))) == 3
    monkeypatch.setattr(move, "deliver", deliver)
    twins = [bench.engine.for_loop() for _ in range(3)]
    for twin in twins:
        await twin.open()
    await asyncio.gather(*(engine.operator.expire(Retention()) for engine in (bench.engine, *twins)))
    for twin in twins:
        await twin.close()
    assert [await bench.queue_of(job) for job in jobs] == ["to"] * 3
    assert (await bench.engine.operator.census()).by_status()[Status.PENDING] == 3
    assert await bench.moving(bench.store.shard("from")) == []


@pytest.mark.spec("REDISOPS-33")
async def test_a_parcel_that_is_delivered_twice_arrives_once(bench: Bench) -> None:
    """Also when the job was deleted in between; after a day no caller is that late any more."""
    [job] = await bench.add("from")
    source = bench.store.shard("from")
    await bench.store.work(source, lambda unit: _send(unit, job))
    [(_, parcel)] = await bench.moving(source)
    await move.deliver(bench.store, source)
    assert await bench.queue_of(job) == "to"
    await bench.alter(Delete(), job)
    await bench.store.connection.call("HSET", source.key("moving"), job, parcel)
    await move.deliver(bench.store, source)
    assert await bench.queue_of(job) is None
    assert (await bench.engine.operator.census()).counts == ()
    marks = bench.store.shard("to").key("arrived")
    assert await bench.store.connection.call("HLEN", marks) == 1
    bench.clock.set(bench.clock() + 2 * DAY)
    await bench.engine.operator.expire(Retention())
    assert await bench.store.connection.call("HLEN", marks) == 0


async def _send(unit: Any, job: JobId) -> None:
    await unit.load(Wanted(frozenset({job})))
    move.send(unit, unit.get(job), "to")


@pytest.mark.spec("FENCE-01")
async def test_a_lost_settlement_stores_no_follow_up_in_another_shard(bench: Bench) -> None:
    """Follow-ups of other queues are stored before the end of their job: only while its claim is valid."""
    for worker in ("w1", "w2"):
        await bench.engine.jobs.renew(worker, [], first=True)
    [job] = await bench.add("from")
    [old] = await bench.engine.jobs.claim(Demand("w1", (("from", 1),)))
    [new] = await bench.engine.jobs.reap("w2", 1, dead=["w1"])
    follow_up = Draft(bench.mint(), "work", queue="to")
    assert bench.store.shard("to") is not bench.store.shard("from")
    verdicts = (await bench.engine.jobs.settle([conclude(old, Done(followups=(follow_up,)))])).verdicts
    assert verdicts == [Verdict.LOST]
    assert await bench.queue_of(follow_up.job_id) is None
    verdicts = (await bench.engine.jobs.settle([conclude(new, Done(followups=(follow_up,)))])).verdicts
    assert verdicts == [Verdict.APPLIED]
    assert await bench.queue_of(follow_up.job_id) == "to"
    assert await bench.queue_of(job) == "from"


@pytest.mark.spec("REDISOPS-34")
async def test_a_keyed_job_stays_in_its_queue(bench: Bench) -> None:
    [job] = await bench.add("from", unique=Unique("k"))
    assert await bench.alter(Move("to"), job) == Tally(blocked=1)
    assert await bench.queue_of(job) == "from"
    assert (await bench.alter(Move("from"), job)).changed == 1


@pytest.mark.spec("REDISOPS-08")
async def test_a_shard_that_went_back_is_told(redis_cluster_url: str, redis_cluster_prefix: str) -> None:
    """Each shard's writes are counted for themselves, on the server's own clock."""
    engine = RedisClusterEngine(redis_cluster_url, prefix=redis_cluster_prefix)
    await engine.open()
    try:
        mint = Mint(lambda: 1, lambda n: next(entropy).to_bytes(n))
        for _ in range(2):
            for queue in ("a", "b", "c"):
                await engine.jobs.insert([Draft(mint(), "work", queue=queue)])
        assert await engine._write_counter.report() == []
        shard = engine._store.shard("b")
        assert await engine._store.connection.call("HGET", shard.key("writes"), engine._write_counter._engine) == b"2"
        await engine._store.connection.call("HSET", shard.key("writes"), engine._write_counter._engine, 1)
        for queue in ("a", "b", "c"):
            await engine.jobs.insert([Draft(mint(), "work", queue=queue)])
        assert len(engine._write_counter.losses) == 1
    finally:
        await engine.close()
    async with asyncio.timeout(60):
        found = RedisClusterEngine(redis_cluster_url, prefix=redis_cluster_prefix)
        await found.open()
        assert await found._store.connection.call("EXISTS", shard.key("writes")) == 0
        await found.close()

"""Divided queues on Redis: what scripts read and write, and the form of the script that a plain queue runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from stoker.engines.redis import RedisEngine
from stoker.engines.redis.insert import LIMITED_AT_ONCE
from stoker.engines.redis.keys import FIXED, PLAIN_KEYS, SUBQUEUE_KEYS
from stoker.engines.redis.scripts import LOOKS_AT_ONCE, Script, script
from stoker.engines.redis.subqueues import REPINNED_AT_ONCE
from stoker.model.control import Tuning
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Done, Failed, Snoozed
from stoker.model.query import Cancel, Delete, Query, Selection
from stoker.model.time import HOUR, MINUTE, SECOND
from tests import services
from tests.engines.redis.stand import Stand

pytestmark = pytest.mark.engine("redis")

QUEUE = "default"


class Bench(Stand):
    def limited(self, key: str = "a", n: int = 1, **options: Any) -> Draft:
        slot = Slot("api", key, n, options.pop("hold", "running"))
        return Draft(self.mint(), "work", options=Options(limit=slot), **options)

    async def add(self, *drafts: Draft) -> list[JobId]:
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    async def take(self, n: int = 100, worker: str = "w") -> list[Claim]:
        await self.engine.jobs.renew(worker, [], first=True, lease=HOUR)
        return await self.engine.jobs.claim(Demand(worker, ((QUEUE, n),)))

    async def end(self, claims: Sequence[Claim], outcome: Any = None) -> None:
        settled = await self.engine.jobs.settle([conclude(claim, outcome or Done()) for claim in claims])
        assert settled.verdicts == [Verdict.APPLIED] * len(claims)

    async def running(self) -> dict[str, int]:
        return {one.name: one.running for one in await self.engine.control.subqueues(QUEUE)}

    async def stored(self) -> list[str]:
        """Which keys of subqueues there are."""
        found = [name for name in SUBQUEUE_KEYS if await self.call("EXISTS", self.home.of_queue(name, QUEUE))]
        fields = await self.call("HKEYS", self.home.key("queues"))
        return [*found, *(["has_subqueues"] if f"{QUEUE}/has_subqueues".encode() in fields else [])]

    async def counted(self, n: int) -> tuple[int, int]:
        """How many jobs a claim takes, and how many commands the server runs for it."""
        await self.call("CONFIG", "RESETSTAT")
        claims = await self.engine.jobs.claim(Demand("w", ((QUEUE, n),)))
        lines = (await self.call("INFO", "commandstats")).decode().splitlines()
        calls = [line.split("calls=")[1].split(",")[0] for line in lines if "cmdstat_z" in line or "cmdstat_h" in line]
        return len(claims), sum(map(int, calls))


@pytest.fixture
async def bench(redis_url: str, redis_prefix: str) -> AsyncIterator[Bench]:
    async with Bench.on(redis_url, redis_prefix) as found:
        yield found


@pytest.fixture
async def alone(redis_prefix: str) -> AsyncIterator[Bench]:
    """On a server of its own, which counts what scripts do."""
    with services.redis_server(save="", appendonly="no") as server:
        async with Bench.on(server.url, redis_prefix) as found:
            await found.engine._server_checks.stop()  # it asks the server now and then
            yield found


@pytest.mark.spec("REDISLIMIT-01")
async def test_a_plain_queue_runs_scripts_without_subqueues(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys, no code of theirs. An engine that meets a queue with subqueues for the first time asks again, once."""
    seen: list[tuple[str, int]] = []
    plain = {script(name).sha for name in ("insert", "claim", "settle", "ahead")}
    original = bench.store.connection.run

    async def run(one: Script, keys: Sequence[str], args: Sequence[Any], **more: Any) -> Any:
        if one.name != "renew":
            seen.append((one.name + ("" if one.sha in plain else " with subqueues"), len(keys)))
        return await original(one, keys, args, **more)

    monkeypatch.setattr(bench.store.connection, "run", run)
    await bench.add(Draft(bench.mint(), "work"))
    await bench.end(await bench.take())
    await bench.engine.jobs.ahead([QUEUE])
    per_queue = len(FIXED) + len(PLAIN_KEYS)
    assert seen == [
        ("insert", per_queue),
        ("claim", per_queue + 1),
        ("settle", per_queue + 1),
        ("ahead", per_queue),
    ]
    other = RedisEngine(bench.engine._options.address.url, prefix=bench.store.options.prefix, clock=bench.clock)
    await other.open()
    await other.jobs.insert([bench.limited(), bench.limited()])
    await other.close()
    seen.clear()
    assert len(await bench.take()) == 1
    assert await bench.take() == []
    assert seen == [("claim", per_queue + 1), *[("claim with subqueues", per_queue + len(SUBQUEUE_KEYS) + 1)] * 2]


@pytest.mark.spec("REDISLIMIT-04")
async def test_calls_at_the_same_moment_store_few_keys_by_one_script(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of many keys is one script all the same: all or nothing of it is stored."""
    sizes: list[int] = []
    original = bench.store.connection.run

    async def run(one: Script, keys: Sequence[str], args: Sequence[Any], **more: Any) -> Any:
        if one.name == "insert":
            sizes.append(sum(isinstance(arg, str) and arg.startswith("api/") for arg in args))
        return await original(one, keys, args, **more)

    monkeypatch.setattr(bench.store.connection, "run", run)
    calls = [[bench.limited(f"k{n} {m}") for m in range(50)] for n in range(20)]
    await asyncio.gather(*(bench.engine.jobs.insert(call) for call in calls))
    assert sum(sizes) == 1_000
    assert max(sizes) <= LIMITED_AT_ONCE
    sizes.clear()
    await bench.engine.jobs.insert([bench.limited(f"one {n}") for n in range(1_000)])
    assert sizes == [1_000]


@pytest.mark.spec("LIMIT-30")
async def test_a_queue_whose_keys_are_finished_is_plain_again(bench: Bench) -> None:
    await bench.add(*(bench.limited(key, hold=hold) for key in "abc" for hold in ("running", "retrying")))
    assert await bench.stored() == [*SUBQUEUE_KEYS, "has_subqueues"]
    await bench.end(await bench.take(), Snoozed(SECOND))
    bench.clock.set(bench.clock() + SECOND)
    while claims := await bench.take():
        await bench.end(claims)
    assert await bench.stored() == []


@pytest.mark.spec("LIMIT-02", "LIMIT-46")
async def test_a_claim_costs_what_it_takes_however_much_is_blocked(alone: Bench) -> None:
    """The same commands behind 20 jobs of a full key and behind 5,000, beside 10 full keys and beside 1,000."""
    await alone.add(alone.limited("full", priority=-9))
    await alone.take()
    found = []
    for n, keys in ((20, 10), (5_000, 1_000)):
        for start in range(0, n, 1_000):
            await alone.add(*(alone.limited("full", priority=-9) for _ in range(min(1_000, n - start))))
        for start in range(0, keys, 500):
            wide = range(start, min(start + 500, keys))
            await alone.add(*(alone.limited(f"wide {n} {k}", priority=-9) for k in wide for _ in range(2)))
        while await alone.take(1_000):
            pass
        await alone.add(*(alone.limited(f"open {n} {k}") for k in range(10)), Draft(alone.mint(), "work"))
        found.append(await alone.counted(8))
    assert found[0] == found[1]
    assert found[0][0] == 8


@pytest.mark.spec("LIMIT-20")
async def test_a_number_for_very_many_keys_is_applied_in_parts(bench: Bench) -> None:
    keys = [f"k{n:04}" for n in range(2 * REPINNED_AT_ONCE + 50)]
    await bench.add(*(bench.limited(key) for key in keys for _ in range(2)))
    first = await bench.take(1_000)
    assert len(first) == len(keys)
    assert await bench.take(1_000) == []
    await bench.engine.control.tune(QUEUE, Tuning(limits=(("api", 2),)))
    assert len(await bench.take(1_000)) == len(keys)
    await bench.engine.control.tune(QUEUE, Tuning(limits=(("api", None),)))
    await bench.end(first)
    views = await bench.engine.control.subqueues(QUEUE, limit=1_000)
    assert {(one.running, one.most, one.pinned) for one in views} == {(1, 1, False)}


@pytest.mark.spec("LIMIT-16")
async def test_more_keys_that_become_due_than_one_script_looks_at(bench: Bench) -> None:
    """A claim goes on asking: a short answer means that nothing else may run."""
    n = 2 * LOOKS_AT_ONCE + 50
    for start in range(0, n, 500):
        await bench.add(*(bench.limited(f"k{k}", delay=MINUTE) for k in range(start, min(start + 500, n))))
    assert await bench.take(1_000) == []
    bench.clock.set(bench.clock() + MINUTE)
    await bench.add(*(bench.limited("last") for _ in range(3)))
    assert len(await bench.take(1_000)) == n + 1


@pytest.mark.spec("LIMIT-36")
async def test_jobs_leave_the_middle_of_an_entry(bench: Bench) -> None:
    """Jobs stored together share an entry; one that is canceled is cut out of it, and the next one starts."""
    jobs = await bench.add(*(bench.limited() for _ in range(60)))
    gone = [*jobs[:2], jobs[30], jobs[59]]
    tally = await bench.engine.operator.alter(Selection(tuple(gone)), Cancel())
    assert tally.changed == 4
    assert (await bench.engine.operator.alter(Selection(tuple(gone)), Delete())).changed == 4
    page = await bench.engine.operator.find(Query(order="due", limit=100))
    assert [job.id for job in page.jobs] == [job for job in jobs if job not in gone]
    found: list[JobId] = []
    while claims := await bench.take():
        found += [claim.id for claim in claims]
        await bench.end(claims)
    assert found == [job for job in jobs if job not in gone]
    assert await bench.stored() == []


@pytest.mark.spec("REDISLIMIT-03")
async def test_a_large_claim_and_a_large_settlement_are_several_scripts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job may be of another key: while a script runs, the server does nothing else."""
    jobs = await bench.add(*(bench.limited(f"k{n}") for n in range(450)), *(bench.limited("last") for _ in range(2)))
    calls: list[str] = []
    original = bench.store.connection.run

    async def run(one: Script, keys: Sequence[str], args: Sequence[Any], **more: Any) -> Any:
        calls.append(one.name)
        return await original(one, keys, args, **more)

    monkeypatch.setattr(bench.store.connection, "run", run)
    claims = await bench.take(1_000)
    assert [claim.id for claim in claims] == jobs[:451]
    assert calls.count("claim") == 1 + 5  # the first one learns that the queue has subqueues
    demand = Demand("w", ((QUEUE, 5),))
    settled = await bench.engine.jobs.settle([conclude(claim, Done()) for claim in claims], demand=demand)
    assert settled.verdicts == [Verdict.APPLIED] * 451
    assert [claim.id for claim in settled.claims] == jobs[451:]
    assert calls.count("settle") == 3


# --- records that cannot be read --------------------------------------------------------------------------------


async def _damage(bench: Bench, job: JobId) -> None:
    """Cut the body of a job, its options included."""
    key = bench.home.key("jobs")
    [body] = await bench.call("ZRANGEBYLEX", key, b"[" + job, b"(" + job + b"\1")
    await bench.call("ZREM", key, body)
    await bench.call("ZADD", key, 0, body[:30])


@pytest.mark.spec("LIMIT-13")
async def test_a_job_that_cannot_be_read_takes_no_slot(bench: Bench) -> None:
    """A claim that meets it sets it aside and takes the next one of its key."""
    jobs = await bench.add(*(bench.limited() for _ in range(3)))
    await _damage(bench, jobs[0])
    claims = await bench.take()
    assert [claim.id for claim in claims] == jobs[1:2]
    assert await bench.running() == {"api/a": 1}
    await bench.end(claims)
    assert [claim.id for claim in await bench.take()] == jobs[2:]
    [broken] = await bench.engine.operator.get(jobs[:1])
    assert broken is not None
    assert broken.status is Status.DEAD


@pytest.mark.spec("LIMIT-13")
async def test_options_that_cannot_be_read_give_the_slot_back(bench: Bench) -> None:
    jobs = await bench.add(bench.limited(), bench.limited())
    key = bench.home.key("jobs")
    [body] = await bench.call("ZRANGEBYLEX", key, b"[" + jobs[0], b"(" + jobs[0] + b"\1")
    await bench.call("ZREM", key, body)
    await bench.call("ZADD", key, 0, body.replace(b'{"limit"', b'["limit"'))
    assert [claim.id for claim in await bench.take()] == jobs[1:]
    assert await bench.running() == {"api/a": 1}


@pytest.mark.spec("LIMIT-13")
async def test_a_claim_that_cannot_be_read_gives_its_slot_back_when_it_is_reaped(bench: Bench) -> None:
    jobs = await bench.add(bench.limited(), bench.limited())
    await bench.take(worker="silent")
    await bench.call("HSET", bench.home.key("state"), jobs[0], b"r" * 12)
    bench.clock.set(bench.clock() + 2 * HOUR)
    await bench.engine.jobs.renew("heir", [], first=True, lease=HOUR)
    assert await bench.engine.jobs.reap("heir", 9) == []
    assert [claim.id for claim in await bench.take(worker="heir")] == jobs[1:]
    assert await bench.running() == {"api/a": 1}


@pytest.mark.spec("LIMIT-36")
async def test_a_broken_job_is_deleted_out_of_its_key(bench: Bench) -> None:
    jobs = await bench.add(*(bench.limited() for _ in range(3)))
    await _damage(bench, jobs[1])
    assert (await bench.engine.operator.alter(Selection((jobs[1],)), Delete())).changed == 1
    for job in (jobs[0], jobs[2]):
        claims = await bench.take()
        assert [claim.id for claim in claims] == [job]
        await bench.end(claims)
    assert await bench.stored() == []


# --- no memory left ---------------------------------------------------------------------------------------------


@pytest.mark.spec("REDISLIMIT-02")
async def test_workers_go_on_at_maxmemory(alone: Bench) -> None:
    """Claims and ends of limited jobs begin with a removal, and so does a look at what became due."""
    await alone.add(*(alone.limited(key) for key in "ab" for _ in range(3)), alone.limited("c", delay=MINUTE))
    await alone.engine.control.tune("fair", Tuning(fair=True))
    await alone.engine.jobs.insert([Draft(alone.mint(), "work", queue="fair", tenant=tenant) for tenant in "xyz"])
    await alone.call("CONFIG", "SET", "maxmemory", "1")
    try:
        first = await alone.take()
        assert len(first) == 2
        await alone.end(first[:1])
        await alone.end(first[1:], Failed("broken", after=HOUR))
        second = await alone.take()
        assert len(second) == 2
        alone.clock.set(alone.clock() + MINUTE)
        await alone.engine.jobs.renew("w", [], lease=HOUR)
        assert len(await alone.take()) == 1
        assert len(await alone.engine.jobs.claim(Demand("w", (("fair", 3),)))) == 3
    finally:
        await alone.call("CONFIG", "SET", "maxmemory", "0")

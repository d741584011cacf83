"""What a worker holds may be much: no script looks at more of it than it was asked to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stoker.engines.redis.leases import OWNERS_AT_ONCE, RENEWED_AT_ONCE
from stoker.engines.redis.record_format import ids_of
from stoker.model.job import Claim, Demand, Draft, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.query import Cancel, Query, Requeue, Selection
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from tests import services
from tests.engines.redis.stand import Stand

pytestmark = pytest.mark.engine("redis")


class Bench(Stand):
    """A server of one's own, which counts what scripts do."""

    async def held(self, n: int, worker: str = "silent", *, at_once: int = 100) -> list[Claim]:
        """So many claims of a worker, each entry under a token of its own."""
        await self.engine.jobs.renew(worker, [], first=True, lease=HOUR)
        claims: list[Claim] = []
        while len(claims) < n:
            self.clock.set(self.clock() + 1)
            await self.engine.jobs.insert([Draft(self.mint(), "work", b"{}") for _ in range(at_once)])
            claims += await self.engine.jobs.claim(Demand(worker, (("default", at_once),)))
        assert len(claims) == n
        return claims

    async def fall_silent(self) -> None:
        self.clock.set(self.clock() + 2 * HOUR)
        await self.engine.jobs.renew("heir", [], first=True, lease=HOUR)

    async def commands(self, action: Callable[[], Awaitable[Any]]) -> tuple[Any, dict[str, int]]:
        """What an action answers, and how often it made the server run each command."""
        await self.call("CONFIG", "RESETSTAT")
        answer = await action()
        lines = (await self.call("INFO", "commandstats")).decode().splitlines()
        stats = dict(line.removeprefix("cmdstat_").split(":") for line in lines if line.startswith("cmdstat_"))
        calls = {name: int(fields.split(",")[0].removeprefix("calls=")) for name, fields in stats.items()}
        return answer, {name: n for name, n in calls.items() if name not in ("config|resetstat", "config", "info")}


@pytest.fixture
async def bench(redis_prefix: str) -> AsyncIterator[Bench]:
    with services.redis_server(save="", appendonly="no") as server:
        async with Bench.on(server.url, redis_prefix) as found:
            await found.engine._server_checks.stop()  # it asks the server now and then
            yield found


async def test_a_renewal_after_a_small_step_back_counts_from_the_clock_of_the_store(bench: Bench) -> None:
    """The server's clock is half a minute behind, as after a failover: no lease is half a minute shorter for it."""
    jobs, before = bench.engine.jobs, bench.clock()
    await jobs.renew("w1", [], lease=MINUTE, first=True)
    await jobs.insert([Draft(bench.mint(), "work", b"{}")])
    [claim] = await jobs.claim(Demand("w1", (("default", 1),)))
    bench.clock.set(before - 30 * SECOND)
    assert (await jobs.renew("w1", [(claim.id, claim.token)], lease=MINUTE)).known
    bench.clock.set(before + 45 * SECOND)
    await jobs.renew("w2", [], lease=MINUTE, first=True)
    assert await jobs.reap("w2", 10) == []
    bench.clock.set(before + 61 * SECOND)
    assert [one.id for one in await jobs.reap("w2", 10)] == [claim.id]


@pytest.mark.spec("LEASE-19")
async def test_a_reap_takes_only_what_its_owner_still_runs(bench: Bench) -> None:
    """An entry may name a job that has ended or is another worker's, after a failover that lost a write."""
    done, lost, mine = await bench.held(3, at_once=1)
    key = bench.home.held("silent")
    entries = await bench.call("ZRANGE", key, 0, -1)
    await bench.engine.jobs.settle([conclude(done, Done())])
    await bench.engine.jobs.renew("other", [], first=True, lease=DAY)
    await bench.engine.operator.alter(Selection((lost.id,)), Cancel(force=True))
    await bench.engine.operator.alter(Selection((lost.id,)), Requeue())
    [again] = await bench.engine.jobs.claim(Demand("other", (("default", 1),)))
    await bench.call("ZADD", key, *(part for entry in entries for part in (0, entry)))
    await bench.fall_silent()
    assert [claim.id for claim in await bench.engine.jobs.reap("heir", 10)] == [mine.id]
    found = await bench.engine.operator.get([done.id, again.id])
    assert [(job.status, job.worker) for job in found if job] == [(Status.DONE, None), (Status.RUNNING, "other")]


@pytest.mark.spec("LOT-09")
async def test_a_reap_costs_what_it_takes_however_much_is_held(bench: Bench) -> None:
    """The same number of commands for 400 claims and for 4,000; every claim is taken over once, oldest first."""
    few = [claim.id for claim in await bench.held(400)]
    await bench.fall_silent()
    taken, at_few = await bench.commands(lambda: bench.engine.jobs.reap("heir", limit=50))
    assert [claim.id for claim in taken] == few[:50]
    many = [claim.id for claim in await bench.held(4_000, "silent too", at_once=1_000)]
    await bench.fall_silent()
    left = [claim.id for claim in taken]
    taken, at_many = await bench.commands(lambda: bench.engine.jobs.reap("heir", limit=50))
    assert sum(at_many.values()) <= sum(at_few.values()) + 10, "one more owner to look at"
    left += [claim.id for claim in taken]
    while taken := await bench.engine.jobs.reap("heir", limit=500):
        left += [claim.id for claim in taken]
    assert left == [*few, *many]


@pytest.mark.spec("LOT-09")
async def test_a_reap_of_many_owners_takes_the_oldest_of_all(bench: Bench) -> None:
    """Claims of several workers are mixed in time; more workers than are looked at in one call are all reaped."""
    wanted = []
    for _ in range(2):
        for n in range(OWNERS_AT_ONCE // 2):
            wanted += await bench.held(2, f"w{n}", at_once=2)
    for n in range(OWNERS_AT_ONCE):
        await bench.engine.jobs.renew(f"idle{n}", [], first=True, lease=HOUR)
    await bench.fall_silent()
    taken: list[Claim] = []
    for _ in range(20):
        taken += await bench.engine.jobs.reap("heir", limit=15)
    assert [claim.id for claim in taken] == [claim.id for claim in wanted]
    assert [claim.former for claim in taken] == [claim.worker for claim in wanted]
    assert await bench.call("ZRANGE", bench.home.key("workers"), 0, -1) == [b"heir"]


@pytest.mark.spec("LOT-10")
async def test_a_renewal_of_much_is_several_short_calls(bench: Bench) -> None:
    """Lost, canceling and orphaned claims are told as in one call, wherever in the parts they are."""
    claims = await bench.held(5 * RENEWED_AT_ONCE, at_once=RENEWED_AT_ONCE // 2)
    bench.clock.set(bench.clock() + 20 * SECOND)
    held = [(claim.id, claim.token) for claim in claims]
    orphans = {held[place] for place in (0, 777, len(held) - 1)}
    strangers = [(bench.mint(), claims[n].token) for n in (3, 800)]
    told = [*strangers, *(pair for pair in reversed(held) if pair not in orphans)]
    renewal, commands = await bench.commands(lambda: bench.engine.jobs.renew("silent", told, lease=HOUR))
    assert commands["evalsha"] == 5
    assert renewal.known
    assert renewal.lost == strangers
    assert {(claim.id, claim.token) for claim in renewal.orphaned} == orphans
    bench.clock.set(bench.clock() + 2 * HOUR)
    await bench.engine.jobs.renew("heir", [], first=True, lease=HOUR)
    while await bench.engine.jobs.reap("heir", limit=1_000):
        pass
    assert not (await bench.engine.jobs.renew("silent", held, lease=HOUR)).known
    assert len((await bench.engine.operator.find(Query(statuses=frozenset({Status.RUNNING}), limit=10))).jobs) == 10


@pytest.mark.spec("LOT-02")
async def test_running_jobs_that_are_asked_to_stop_stay_where_they_are_held(bench: Bench) -> None:
    """Some of an entry, one of them named twice: each is held once, and the others are not touched."""
    claims = await bench.held(4, "w", at_once=4)
    ids = [claim.id for claim in claims]
    await bench.engine.operator.alter(Selection((ids[0], ids[2], ids[0])), Cancel())
    stored = [ids_of(entry[8:]) for entry in await bench.call("ZRANGE", bench.home.held("w"), 0, -1)]
    assert sorted(job for part in stored for job in part) == sorted(ids)
    renewal = await bench.engine.jobs.renew("w", [(claim.id, claim.token) for claim in claims], lease=HOUR)
    assert ([job for job, _ in renewal.canceling], renewal.lost) == ([ids[0], ids[2]], [])

"""Ids that came to the same place in the same step share an entry there, and leave it one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.engines.redis.record_format import HAS_STATE, ids_of
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Note, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Outcome
from stoker.model.query import Cancel, Delete, Prioritize, Query, Retention, Selection
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique
from tests.engines.redis.stand import Stand

pytestmark = pytest.mark.engine("redis")

GARBAGE = b"\xff garbage"


class Bench(Stand):
    """An engine, and a look at its entries."""

    async def claimed(self, n: int, worker: str = "w") -> list[Claim]:
        await self.engine.jobs.insert([Draft(self.mint(), "work", b"{}") for _ in range(n)])
        await self.engine.jobs.renew(worker, [], first=True, lease=HOUR)
        claims = await self.engine.jobs.claim(Demand(worker, (("default", n),)))
        assert len(claims) == n
        return claims

    async def finish(self, claims: list[Claim]) -> None:
        settled = await self.engine.jobs.settle([conclude(claim, Done()) for claim in claims])
        assert set(settled.verdicts) == {Verdict.APPLIED}

    async def ended(self, n: int) -> list[JobId]:
        """Jobs that ended in one step."""
        claims = await self.claimed(n)
        await self.finish(claims)
        return [claim.id for claim in claims]

    async def held(self, worker: str = "w") -> list[list[JobId]]:
        return [ids_of(entry[8:]) for entry in await self.call("ZRANGE", self.home.held(worker), 0, -1)]

    async def ends(self) -> list[list[JobId]]:
        return [ids_of(packed) for packed in await self.call("ZRANGE", self.home.key("ends"), 0, -1)]

    async def waiting(self) -> list[list[JobId]]:
        """The jobs of each waiting entry."""
        places = await self.call("ZRANGE", self.home.of_queue("wait", "default"), 0, -1)
        return [ids_of(place.removesuffix(HAS_STATE)[10:]) for place in places]

    async def add(self, *drafts: Draft) -> list[JobId]:
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    def drafts(self, n: int, **options: Any) -> list[Draft]:
        return [Draft(self.mint(), "work", b"{}", **options) for _ in range(n)]

    async def claim(self, n: int) -> list[JobId]:
        await self.engine.jobs.renew("w", [], first=True, lease=HOUR)
        return [claim.id for claim in await self.engine.jobs.claim(Demand("w", (("default", n),)))]

    async def stored(self) -> list[JobId]:
        return [job.id for job in (await self.engine.operator.find(Query(order="oldest"))).jobs]


@pytest.fixture
async def bench(redis_url: str, redis_prefix: str) -> AsyncIterator[Bench]:
    async with Bench.on(redis_url, redis_prefix) as found:
        yield found


@pytest.mark.spec("LOT-01")
async def test_what_is_claimed_in_one_step_is_one_entry_until_the_last_has_ended(bench: Bench) -> None:
    claims = await bench.claimed(5)
    ids = [claim.id for claim in claims]
    assert await bench.held() == [ids]
    await bench.finish([claims[1], claims[3]])
    assert await bench.held() == [[ids[0], ids[2], ids[4]]]
    await bench.finish([claims[4], claims[0], claims[2]])
    assert await bench.held() == []


@pytest.mark.spec("LOT-01")
async def test_claims_of_the_same_instant_have_an_entry_each_and_end_for_themselves(bench: Bench) -> None:
    """The clock may stand still: then two claims of a worker have the same token."""
    first, second = await bench.claimed(2), await bench.claimed(3)
    assert first[0].token == second[0].token
    assert await bench.held() == [[claim.id for claim in first], [claim.id for claim in second]]
    await bench.finish([*first, second[1]])
    assert await bench.held() == [[second[0].id, second[2].id]]


@pytest.mark.spec("LOT-02")
async def test_a_reaper_of_some_jobs_of_an_entry_leaves_the_others_where_they_are(bench: Bench) -> None:
    claims = await bench.claimed(4)
    ids = [claim.id for claim in claims]
    bench.clock.set(bench.clock() + 2 * HOUR)
    await bench.engine.jobs.renew("heir", [], first=True)
    taken = [claim.id for claim in await bench.engine.jobs.reap("heir", limit=3)]
    assert taken == ids[:3]
    assert await bench.held() == [ids[3:]]
    assert sorted(job for ids in await bench.held("heir") for job in ids) == taken
    settled = await bench.engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    assert settled.verdicts[:3] == [Verdict.LOST] * 3


@pytest.mark.spec("LOT-03")
async def test_what_ends_in_one_step_is_one_entry(bench: Bench) -> None:
    ids = await bench.ended(3)
    assert await bench.ends() == [ids]
    claims = await bench.claimed(2)
    bench.clock.set(bench.clock() + SECOND)
    await bench.engine.jobs.settle(
        [conclude(claims[0], Done()), conclude(claims[1], Failed("no", after=SECOND))],
    )
    assert await bench.ends() == [ids, [claims[0].id]]


@pytest.mark.spec("LOT-04")
async def test_one_that_is_removed_leaves_its_entry(bench: Bench) -> None:
    ids = await bench.ended(3)
    tally = await bench.engine.operator.alter(Selection((ids[1],)), Delete())
    assert tally.changed == 1
    assert await bench.ends() == [[ids[0], ids[2]]]
    assert await bench.stored() == [ids[0], ids[2]]


@pytest.mark.spec("LOT-04")
async def test_several_that_are_removed_leave_their_entries_together(bench: Bench) -> None:
    first = await bench.ended(4)
    bench.clock.set(bench.clock() + SECOND)
    second = await bench.ended(3)
    assert (await bench.engine.operator.alter(Selection((*first[:3], *second)), Delete())).changed == 6
    assert await bench.ends() == [first[3:]]
    assert await bench.stored() == first[3:]


@pytest.mark.spec("LOT-04")
async def test_one_that_cannot_be_read_leaves_its_entry(bench: Bench) -> None:
    ids = await bench.ended(3)
    await bench.call("HSET", bench.home.key("state"), ids[1], GARBAGE)
    assert (await bench.engine.operator.alter(Selection((ids[1],)), Delete())).changed == 1
    assert await bench.ends() == [[ids[0], ids[2]]]


@pytest.mark.spec("LOT-04")
async def test_one_that_runs_and_cannot_be_read_leaves_its_entry(bench: Bench) -> None:
    claims = await bench.claimed(3)
    await bench.call("HSET", bench.home.key("state"), claims[1].id, GARBAGE)
    assert (await bench.engine.operator.alter(Selection((claims[1].id,)), Delete())).changed == 1
    assert await bench.held() == [[claims[0].id, claims[2].id]]


@pytest.mark.spec("LOT-05")
async def test_no_more_than_the_limit_of_an_entry_expires(bench: Bench) -> None:
    first, second = await bench.ended(5), await bench.ended(3)
    bench.clock.set(bench.clock() + bench.engine.keep_done + SECOND)
    assert (await bench.engine.operator.expire(Retention(limit=2))).jobs == 2
    assert await bench.stored() == [*first[2:], *second]
    assert (await bench.engine.operator.expire(Retention(limit=4))).jobs == 4
    assert await bench.stored() == second[1:]
    assert (await bench.engine.operator.expire(Retention(limit=4))).jobs == 2
    assert await bench.ends() == []
    assert (await bench.engine.operator.census()).by_status().get(Status.DONE, 0) == 0


@pytest.mark.spec("LOT-11")
@pytest.mark.parametrize("surplus", [False, True], ids=["expired", "surplus"])
async def test_nothing_of_a_job_outlives_its_retention(bench: Bench, surplus: bool) -> None:
    """Its result, notes, errors, keys and state go with it."""
    await bench.add(*bench.drafts(2, unique=Unique("one")), *bench.drafts(1, unique=Unique("two")))
    await bench.engine.jobs.renew("w", [], first=True, lease=HOUR)
    claims = await bench.engine.jobs.claim(Demand("w", (("default", 9),)))
    await bench.engine.jobs.note([Note(claim.id, "w", claim.token, 0.5, {"a": "b"}, ("line",)) for claim in claims])
    outcomes: list[Outcome] = [Done(b'"result"'), Failed("no", retry=False)]
    settled = [conclude(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]
    assert set((await bench.engine.jobs.settle(settled)).verdicts) == {Verdict.APPLIED}
    hashes = ("state", "last", "notes", "results", "errors", "keys", "corrupt")
    sets = ("jobs", "unsuccessful", "ends", "named")
    assert [await bench.call("HLEN", bench.home.key(name)) for name in ("results", "notes", "errors")] == [1, 2, 1]
    if surplus:
        assert (await bench.engine.operator.expire(Retention(finished=0))).jobs == 2
    else:
        bench.clock.set(bench.clock() + 60 * DAY)
        assert (await bench.engine.operator.expire(Retention())).jobs == 2
    left = {name: await bench.call("HLEN", bench.home.key(name)) for name in hashes}
    left |= {name: await bench.call("ZCARD", bench.home.key(name)) for name in sets}
    assert left == dict.fromkeys((*hashes, *sets), 0)


@pytest.mark.spec("LOT-05")
async def test_a_surplus_is_counted_in_jobs(bench: Bench) -> None:
    first = await bench.ended(5)
    bench.clock.set(bench.clock() + SECOND)
    second = await bench.ended(3)
    assert (await bench.engine.operator.expire(Retention(finished=8))).jobs == 0
    assert (await bench.engine.operator.expire(Retention(finished=6))).jobs == 2
    assert await bench.stored() == [*first[2:], *second]
    assert (await bench.engine.operator.expire(Retention(finished=2))).jobs == 4
    assert await bench.stored() == second[1:]


@pytest.mark.spec("LOT-05")
async def test_of_those_that_expire_together_the_oldest_ids_go_first(bench: Bench) -> None:
    claims = await bench.claimed(4)
    await bench.finish([claims[0], claims[3]])
    await bench.finish([claims[1], claims[2]])
    assert (await bench.engine.operator.expire(Retention(finished=2))).jobs == 2
    assert await bench.stored() == [claims[2].id, claims[3].id]


# --- waiting ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("LOT-06")
async def test_who_comes_together_stands_together(bench: Bench) -> None:
    ids = await bench.add(*bench.drafts(120))
    entries = await bench.waiting()
    assert [job for place in entries for job in place] == ids
    assert [len(place) for place in entries] == [50, 50, 20]


@pytest.mark.spec("LOT-06")
@pytest.mark.parametrize("n", [1, 7, 50, 60, 130])
async def test_claims_of_any_size_take_all_jobs_in_order(bench: Bench, n: int) -> None:
    ids = await bench.add(*bench.drafts(120))
    bench.clock.set(bench.clock() + SECOND)
    ids += await bench.add(*bench.drafts(3))
    found: list[JobId] = []
    while some := await bench.claim(n):
        assert len(some) == n or len(found) + len(some) == len(ids)
        found += some
        left = [job for place in await bench.waiting() for job in place]
        assert left == ids[len(found) :], "what is not taken stays where it was"
    assert found == ids


@pytest.mark.spec("LOT-06")
@pytest.mark.parametrize("n", [1, 2, 5, 20])
async def test_calls_whose_ids_are_mixed_are_claimed_in_order(bench: Bench, n: int) -> None:
    """They were stored at the same instant, so the ids decide."""
    drafts = bench.drafts(12)
    await bench.add(*drafts[0:12:3])
    await bench.add(*drafts[1:12:3])
    await bench.add(*drafts[2:12:3])
    found: list[JobId] = []
    while some := await bench.claim(n):
        found += some
    assert found == [draft.job_id for draft in drafts]


@pytest.mark.spec("LOT-06")
async def test_ids_that_do_not_ascend_are_claimed_in_order(bench: Bench) -> None:
    drafts = bench.drafts(5)
    await bench.add(*reversed(drafts))
    assert await bench.claim(3) == [draft.job_id for draft in drafts[:3]]
    assert await bench.claim(3) == [draft.job_id for draft in drafts[3:]]


@pytest.mark.spec("LOT-06")
async def test_one_that_comes_back_to_a_place_of_the_same_instant_is_claimed_in_order(bench: Bench) -> None:
    """A job that was put back has a state and stands by itself, between two of an entry."""
    [first, second, third] = bench.drafts(3)
    await bench.add(second)
    await bench.engine.jobs.renew("w", [], first=True, lease=HOUR)
    [claim] = await bench.engine.jobs.claim(Demand("w", (("default", 1),)))
    await bench.engine.jobs.settle([conclude(claim, Failed("again", after=0))])
    await bench.add(first, third)
    assert await bench.claim(1) == [first.job_id]
    assert await bench.claim(5) == [second.job_id, third.job_id]


@pytest.mark.spec("LOT-06")
async def test_each_priority_has_its_own_entries(bench: Bench) -> None:
    low, high, usual = bench.drafts(3, priority=5), bench.drafts(3, priority=-5), bench.drafts(3)
    await bench.add(*(draft for trio in zip(low, high, usual, strict=True) for draft in trio))
    await bench.add(*bench.drafts(2, priority=-9, delay=HOUR))
    wanted = [draft.job_id for draft in (*high, *usual, *low)]
    assert await bench.claim(4) == wanted[:4]
    assert await bench.claim(10) == wanted[4:]


@pytest.mark.spec("LOT-07")
async def test_one_that_is_changed_leaves_the_others_where_they_are(bench: Bench) -> None:
    ids = await bench.add(*bench.drafts(4))
    assert (await bench.engine.operator.alter(Selection((ids[1],)), Cancel())).changed == 1
    assert await bench.waiting() == [[ids[0], ids[2], ids[3]]]
    assert (await bench.engine.operator.alter(Selection((ids[0],)), Prioritize(3))).changed == 1
    assert await bench.waiting() == [[ids[2], ids[3]], [ids[0]]]
    assert (await bench.engine.operator.alter(Selection((ids[2], ids[3])), Delete())).changed == 2
    assert await bench.claim(5) == [ids[0]]


@pytest.mark.spec("LOT-07")
@pytest.mark.parametrize("place", [0, 1])
async def test_any_sixteen_bytes_are_an_id(bench: Bench, place: int) -> None:
    ids = [JobId(b"\1" * 16), JobId(b"\xff" * 16)]
    await bench.add(*(Draft(job, "work", b"{}") for job in ids))
    assert await bench.waiting() == [ids]
    assert (await bench.engine.operator.alter(Selection((ids[place],)), Delete())).changed == 1
    assert await bench.claim(5) == [ids[1 - place]]


@pytest.mark.spec("LOT-08")
async def test_who_is_not_due_stands_alone(bench: Bench) -> None:
    ids = await bench.add(*bench.drafts(3, delay=HOUR))
    assert await bench.waiting() == [[job] for job in ids]
    assert (await bench.engine.operator.census()).later == {"default": 3}
    bench.clock.set(bench.clock() + HOUR)
    assert await bench.claim(5) == ids

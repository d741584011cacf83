"""Fair queues: tenants take turns, whatever each of them has waiting."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stoker.model.control import Tuning
from stoker.model.job import Draft, Options, Verdict
from stoker.model.limit import Slot
from stoker.model.outcome import Done, Failed
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import QUEUE, Store


async def fair(store: Store, *, on: bool = True) -> None:
    """Make the queue fair, or not."""
    await store.engine.control.tune(QUEUE, Tuning(fair=on))


def of(store: Store, tenant: str | None, n: int = 1, **options: Any) -> list[Draft]:
    """Drafts of a tenant."""
    return [store.draft(tenant=tenant, **options) for _ in range(n)]


async def turns(store: Store, n: int, each: int = 1) -> list[str | None]:
    """Whose jobs so many claims of `each` hand out; each claim a moment after the one before."""
    found: list[str | None] = []
    for _ in range(n):
        store.pass_time(1)
        found += [claim.tenant for claim in await store.claim(n=each)]
    return found


@pytest.mark.core
@pytest.mark.spec("FAIR-01")
async def test_tenants_take_turns(store: Store) -> None:
    await fair(store)
    await store.insert(*of(store, "a", 9), *of(store, "b", 2), *of(store, "c", 3))
    assert await turns(store, 10) == ["a", "b", "c", "a", "b", "c", "a", "c", "a", "a"]


@pytest.mark.core
@pytest.mark.spec("FAIR-02")
@pytest.mark.parametrize("n", [2, 7, 10, 30])
async def test_shares_of_a_claim_differ_by_at_most_one(store: Store, n: int) -> None:
    """The rest goes to those whose turn it is, and the next claim begins with the others."""
    await fair(store)
    await store.insert(*of(store, "a", 99), *of(store, "b", 99), *of(store, "c", 99))
    first = Counter(await turns(store, 1, n))
    assert sum(first.values()) == n
    assert max(first.values()) - min(first[tenant] for tenant in "abc") <= 1
    both = first + Counter(await turns(store, 1, n))
    assert sum(both.values()) == 2 * n
    assert max(both.values()) - min(both[tenant] for tenant in "abc") <= 2


@pytest.mark.core
@pytest.mark.spec("FAIR-03")
async def test_a_newcomer_waits_for_one_round_at_most(store: Store) -> None:
    """Behind thousands of jobs of others, one job of each is before it."""
    await fair(store)
    for start in range(0, 2_000, 1_000):
        await store.insert(*of(store, f"t{start}", 1_000))
    assert set(await turns(store, 2)) == {"t0", "t1000"}
    await store.insert(*of(store, "new"))
    assert "new" in await turns(store, 3)


@pytest.mark.core
@pytest.mark.spec("FAIR-04")
async def test_priority_orders_the_jobs_of_a_tenant_only(store: Store) -> None:
    await fair(store)
    urgent = of(store, "a", 2, priority=-9)
    plain, other = of(store, "a"), of(store, "b", priority=9)
    await store.insert(*plain, *urgent, *other)
    found = [claim.id for _ in range(4) for claim in await store.claim()]
    assert found == [urgent[0].job_id, other[0].job_id, urgent[1].job_id, plain[0].job_id]


@pytest.mark.spec("FAIR-05")
async def test_jobs_without_a_tenant_are_one_tenant(store: Store) -> None:
    await fair(store)
    await store.insert(*of(store, None, 3), *of(store, "a", 3))
    assert Counter(await turns(store, 4)) == {None: 2, "a": 2}


@pytest.mark.core
@pytest.mark.spec("FAIR-06")
async def test_a_tenant_that_runs_dry_joins_at_the_end_again(store: Store) -> None:
    await fair(store)
    await store.insert(*of(store, "a"), *of(store, "b", 5), *of(store, "c", 5))
    assert await turns(store, 2) == ["a", "b"]
    store.pass_time(1)
    await store.insert(*of(store, "a", 2))
    assert await turns(store, 4) == ["c", "b", "a", "c"]


@pytest.mark.spec("FAIR-07")
async def test_delayed_and_retried_jobs_take_their_tenants_turn(store: Store) -> None:
    await fair(store)
    await store.insert(*of(store, "a", delay=MINUTE), *of(store, "b", 4))
    [claim] = await store.claim()
    assert claim.tenant == "b"
    await store.finish(claim, Failed("broken", after=MINUTE))
    assert await turns(store, 1) == ["b"]
    assert (await store.engine.jobs.ahead([QUEUE])).wait == 0
    store.pass_time(MINUTE)
    assert sorted(str(one) for one in await turns(store, 2)) == ["a", "b"]
    assert await turns(store, 9) == ["b", "b"]


@pytest.mark.spec("FAIR-08")
async def test_limits_take_turns_under_their_key(store: Store) -> None:
    """A cap for each tenant, and turns: a full one gives its turn to the others."""
    await fair(store)
    drafts = [
        store.draft(tenant=tenant, options=Options(limit=Slot("cap", tenant, n)))
        for tenant, n in (("a", 1), ("b", 3))
        for _ in range(5)
    ]
    await store.insert(*drafts, *of(store, "c", 3))
    assert Counter(await turns(store, 1, 20)) == {"a": 1, "b": 3, "c": 3}
    assert await turns(store, 1, 20) == []


@pytest.mark.core
@pytest.mark.spec("FAIR-09")
async def test_switching_with_jobs_waiting_loses_none(store: Store) -> None:
    """What stood in the main line goes first; afterwards what stands in subqueues goes by priority and time."""
    before = await store.insert(*of(store, "a", 3))
    await fair(store)
    store.pass_time(10 * SECOND)
    await store.insert(*of(store, "a", 3), *of(store, "b", 3))
    found = await store.claim(n=4)
    assert [claim.id for claim in found[:3]] == before
    await fair(store, on=False)
    store.pass_time(10 * SECOND)
    later = await store.insert(*of(store, "b", 2, priority=-1))
    rest = await store.claim(n=20)
    assert [claim.id for claim in rest[:2]] == later
    assert [claim.id for claim in rest[2:]] == sorted(claim.id for claim in rest[2:])
    assert len(found) + len(rest) == 11
    for claim in (*found, *rest):
        assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert await store.claim() == []


@pytest.mark.spec("FAIR-10")
async def test_no_demand_stays_idle_while_anybody_has_work(store: Store) -> None:
    await fair(store)
    await store.insert(*of(store, "a", 50), *of(store, "b", 1), *of(store, "c", 2))
    assert Counter(await turns(store, 1, 40)) == {"a": 37, "b": 1, "c": 2}


@pytest.mark.spec("FAIR-11")
async def test_a_fair_queue_obeys_its_rate(store: Store) -> None:
    await fair(store)
    await store.engine.control.tune(QUEUE, Tuning(rate=Rate(4, per=60)))
    await store.insert(*of(store, "a", 9), *of(store, "b", 9))
    assert Counter(await turns(store, 1, 40)) == {"a": 2, "b": 2}
    assert await turns(store, 1, 40) == []


# --- starts per time and key ------------------------------------------------------------------------------------


def rated(store: Store, key: str, rate: Rate, n: int | None = None) -> Draft:
    """A draft whose key starts at a rate."""
    return store.draft(options=Options(limit=Slot("api", key, n, rate=rate)))


@pytest.mark.core
@pytest.mark.spec("LIMIT-38")
async def test_a_key_starts_no_more_than_its_rate(store: Store) -> None:
    """Each key has tokens of its own; they come back with time, and the worker sleeps until then."""
    rate = Rate(2, per=10)
    await store.insert(*(rated(store, key, rate) for key in ("a", "b") for _ in range(5)))
    assert len(await store.claim("w1", n=20)) == 4
    assert await store.claim("w1", n=20) == []
    assert (await store.engine.jobs.ahead([QUEUE])).wait == 5 * SECOND
    store.pass_time(5 * SECOND)
    assert len(await store.claim("w2", n=20)) == 2
    await store.insert(store.draft(), rated(store, "c", rate))
    assert len(await store.claim("w2", n=20)) == 2


@pytest.mark.spec("LIMIT-38")
async def test_the_tokens_of_a_key_outlive_its_jobs(store: Store) -> None:
    """A key that ran dry does not start anew with a full bucket."""
    rate = Rate(1, per=60)
    await store.insert(rated(store, "a", rate))
    await store.finish(await store.take(), Done())
    await store.insert(rated(store, "a", rate))
    assert await store.claim() == []
    store.pass_time(MINUTE)
    await store.finish((await store.claim("w2"))[0], Done())
    store.pass_time(2 * MINUTE)
    assert await store.claim("w3") == []
    assert await store.engine.control.subqueues(QUEUE) == []


@pytest.mark.spec("LIMIT-38")
async def test_rate_and_number_hold_together(store: Store) -> None:
    rate = Rate(10, per=HOUR // SECOND)
    await store.insert(*(rated(store, "a", rate, 3) for _ in range(20)))
    started = 0
    for _ in range(5):
        claims = await store.claim(n=20)
        started += len(claims)
        assert len(claims) <= 3
        for claim in claims:
            await store.finish(claim, Done())
    assert started == 10


@pytest.mark.core
@pytest.mark.spec("FAIR-12")
@pytest.mark.parametrize("known", [True, False])
async def test_a_new_number_of_one_limit_leaves_the_turns_of_others(store: Store, known: bool) -> None:
    """`known`: a claim has looked at what waits."""
    await fair(store)
    other = Options(limit=Slot("calls", key="a", n=1))
    await store.insert(*of(store, "b", delay=SECOND), *of(store, "x", delay=SECOND, options=other))
    if known:
        assert await store.claim() == []
    await store.engine.control.tune(QUEUE, Tuning(limits=(("api", 3),)))
    store.pass_time(2 * SECOND)
    await store.insert(*of(store, "a"))
    assert await turns(store, 3) == ["b", "x", "a"]

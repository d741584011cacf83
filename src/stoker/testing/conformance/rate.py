"""A queue's rate: a claim takes one token for each job that it hands out, and no job without a token."""

from __future__ import annotations

import asyncio
import random

import pytest

from stoker.model.control import Queue, Tuning
from stoker.model.job import Claim, Demand, Status
from stoker.model.lifecycle import conclude
from stoker.model.next_due import NextDue
from stoker.model.outcome import Done, HandedBack, Throttled
from stoker.model.throttle import LONGEST_SLEEP, Bucket, Rate, full, level, retuned, take
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store

_NEVER = 0.04


async def _queue(store: Store, name: str = QUEUE) -> Queue:
    return next(queue for queue in await store.engine.control.queues() if queue.name == name)


async def _bucket(store: Store) -> Bucket:
    bucket = (await _queue(store)).bucket
    assert bucket is not None
    return bucket


async def _rated(store: Store, rate: Rate, jobs: int = 20) -> None:
    await store.engine.control.tune(QUEUE, Tuning(rate=rate))
    await store.insert(*(store.draft() for _ in range(jobs)))


@pytest.mark.core
@pytest.mark.spec("RATE-02")
async def test_a_claim_takes_no_more_than_tokens(store: Store) -> None:
    """Of twenty jobs five start, in order, and exactly their tokens go; other queues are not limited."""
    jobs = await store.insert(*(store.draft(priority=n % 3) for n in range(20)))
    await store.insert(*(store.draft(queue="other") for _ in range(20)))
    await store.engine.control.tune(QUEUE, Tuning(rate=Rate(5)))
    await store.enlist("w1")
    claims = await store.engine.jobs.claim(Demand("w1", ((QUEUE, 9), ("other", 9))))
    assert [claim.queue for claim in claims] == [QUEUE] * 5 + ["other"] * 9
    assert [claim.id for claim in claims[:5]] == jobs[::3][:5]
    assert await _bucket(store) == Bucket(Rate(5), 0, store.now())
    assert await store.claim(n=9) == []
    assert await store.counts(QUEUE) == {Status.PENDING: 15, Status.RUNNING: 5}


@pytest.mark.core
@pytest.mark.spec("RATE-02")
async def test_a_claim_takes_exactly_as_many_tokens_as_jobs(store: Store) -> None:
    """A claim that asks for many and finds two takes two tokens; one that finds none takes none."""
    await store.engine.control.tune(QUEUE, Tuning(rate=Rate(10, per=60)))
    assert await store.claim(n=9) == []
    assert await _bucket(store) == full(Rate(10, per=60), store.now())
    await store.insert(store.draft(), store.draft(), store.draft(delay=HOUR))
    assert len(await store.claim(n=9)) == 2
    assert (await _bucket(store)).tokens == 8
    assert await store.claim(n=9) == []
    assert (await _bucket(store)).tokens == 8


@pytest.mark.core
@pytest.mark.spec("RATE-03")
async def test_fifty_claims_at_once_start_as_many_jobs_as_there_are_tokens(store: Store) -> None:
    """Two engines, fifty claims of up to three on ten tokens: ten jobs start."""
    await _rated(store, Rate(1, per=3600, burst=10), jobs=60)
    twin = store.engine.for_loop()
    await twin.open()
    try:
        for worker in range(5):
            await store.enlist(f"w{worker}")
        demands = [Demand(f"w{n % 5}", ((QUEUE, n % 3 + 1),)) for n in range(50)]
        engines = (store.engine, twin)
        found = await asyncio.gather(*(engines[n % 2].jobs.claim(demand) for n, demand in enumerate(demands)))
    finally:
        await twin.close()
    ids = [claim.id for claims in found for claim in claims]
    assert len(ids) == len(set(ids)) == 10
    assert await store.counts() == {Status.PENDING: 50, Status.RUNNING: 10}
    assert (await _bucket(store)).tokens == 0


@pytest.mark.core
@pytest.mark.spec("RATE-04")
async def test_tokens_come_back_with_time(store: Store) -> None:
    """One every half second up to the burst; part of a token starts nothing and is not lost."""
    await _rated(store, Rate(2, burst=3))
    assert len(await store.claim(n=9)) == 3
    store.pass_time(SECOND // 2 - 1)
    assert await store.claim(n=9) == []
    store.pass_time(1)
    assert len(await store.claim(n=9)) == 1
    store.pass_time(3 * SECOND // 4)
    assert len(await store.claim(n=9)) == 1
    store.pass_time(SECOND // 4)
    assert len(await store.claim(n=9)) == 1
    store.pass_time(MINUTE)
    assert len(await store.claim(n=9)) == 3


@pytest.mark.core
@pytest.mark.spec("RATE-04")
async def test_a_clock_that_steps_back_neither_takes_nor_gives_tokens(store: Store) -> None:
    """Jobs due before the step start with the tokens that are left, and the way forward counts once."""
    await _rated(store, Rate(1, burst=6))
    store.pass_time(2 * HOUR)
    assert len(await store.claim(n=4)) == 4
    late = store.now()
    store.clock.set(late - HOUR)
    assert len(await store.claim("w2", n=9)) == 2
    assert await store.claim("w2", n=9) == []
    store.clock.set(late)
    assert await store.claim("w3", n=9) == []
    store.pass_time(SECOND)
    assert len(await store.claim("w3", n=9)) == 1


@pytest.mark.core
@pytest.mark.spec("RATE-03")
@pytest.mark.parametrize("seed", range(2))
async def test_claims_follow_the_rule_book(store: Store, seed: int) -> None:
    """After many random steps, fused claims among them, every number of claims and every level is the model's."""
    dice = random.Random(seed)
    rates = [Rate(1, burst=4), Rate(3, per=7), Rate(0.1, burst=2.5), Rate(50)]
    await _rated(store, rates[0], jobs=300)
    model, held = full(rates[0], store.now()), list[Claim]()
    await store.enlist("w1", lease=9 * HOUR)
    for _ in range(60):
        store.pass_time(dice.choice([0, 1, SECOND // 3, SECOND, 9 * SECOND]))
        if dice.random() < 0.1:
            rate = dice.choice(rates)
            await store.engine.control.tune(QUEUE, Tuning(rate=rate))
            model = retuned(model, rate, store.now())
        demand = Demand("w1", ((QUEUE, dice.randint(1, 6)),))
        if held and dice.random() < 0.5:
            settled = await store.engine.jobs.settle([conclude(held.pop(), Done())], demand=demand)
            claims = settled.claims
        else:
            claims = await store.engine.jobs.claim(demand)
        assert len(claims) == min(demand.queues[0][1], int(level(model, store.now())))
        if claims:
            model = take(model, len(claims), store.now())
            held += claims
        found = await _bucket(store)
        assert (found.rate, found.refilled_at) == (model.rate, model.refilled_at)
        assert found.tokens == pytest.approx(model.tokens)


@pytest.mark.core
@pytest.mark.spec("RATE-05")
async def test_a_worker_sleeps_until_the_next_token(store: Store) -> None:
    """A queue with jobs and no token is not open, and the wait is exact; with a token it is open."""
    await _rated(store, Rate(2))
    assert (await store.engine.jobs.ahead([QUEUE])).open == {QUEUE}
    await store.claim(n=9)
    assert await store.engine.jobs.ahead([QUEUE, "other"]) == NextDue(frozenset({"other"}), SECOND // 2)
    store.pass_time(SECOND // 2 - 1)
    assert await store.engine.jobs.ahead([QUEUE]) == NextDue(frozenset(), 1)
    store.pass_time(1)
    assert await store.engine.jobs.ahead([QUEUE]) == NextDue(frozenset({QUEUE}), 0)
    assert len(await store.claim(n=9)) == 1


@pytest.mark.core
@pytest.mark.spec("RATE-05")
async def test_a_worker_without_jobs_waits_for_no_token(store: Store) -> None:
    """A job that is due after the next token sets the wait, no job sets none, and no wait is above a minute."""
    await _rated(store, Rate(1, per=10), jobs=1)
    await store.claim(n=9)
    assert (await store.engine.jobs.ahead([QUEUE])).wait is None
    await store.add(delay=HOUR)
    assert (await store.engine.jobs.ahead([QUEUE])).wait == HOUR
    await store.engine.control.tune(QUEUE, Tuning(rate=Rate(1, per=3600)))
    await store.add()
    assert (await store.engine.jobs.ahead([QUEUE])).wait == LONGEST_SLEEP


@pytest.mark.core
@pytest.mark.spec("RATE-06")
async def test_shut_gates_cost_no_token(store: Store) -> None:
    """Neither a worker without a lease nor a paused nor a cooling queue takes any."""
    await _rated(store, Rate(5, per=60))
    assert await store.engine.jobs.claim(Demand("stranger", ((QUEUE, 5),))) == []
    await store.engine.control.tune(QUEUE, Tuning(paused=True))
    assert await store.claim(n=5) == []
    await store.engine.control.tune(QUEUE, Tuning(paused=False))
    assert (await _bucket(store)).tokens == 5
    await store.finish(await store.take(), Throttled(SECOND))
    assert (await _bucket(store)).tokens == 4
    assert await store.claim(n=5) == []
    assert (await _bucket(store)).tokens == 4


@pytest.mark.core
@pytest.mark.spec("RATE-07")
async def test_a_job_that_is_handed_back_has_spent_its_token(store: Store) -> None:
    """Its next start needs another one; a reap and a renewal need none."""
    await _rated(store, Rate(2, per=60), jobs=2)
    first = await store.take()
    await store.finish(first, HandedBack())
    again = await store.take()
    assert (again.id, again.attempt) == (first.id, 1)
    assert await store.claim() == []
    store.pass_time(MINUTE)
    await store.enlist("reaper")
    assert [claim.id for claim in await store.engine.jobs.reap("reaper", 9)] == [first.id]
    assert (await _bucket(store)).tokens == 0


@pytest.mark.core
@pytest.mark.spec("RATE-07")
async def test_a_claim_behind_settlements_obeys_the_rate(store: Store) -> None:
    """Settlements apply; of what is asked for with them only what has a token comes."""
    await _rated(store, Rate(3, per=60))
    claims = await store.claim(n=2)
    settled = await store.engine.jobs.settle(
        [conclude(claim, Done()) for claim in claims], demand=Demand("w1", ((QUEUE, 5),))
    )
    assert len(settled.claims) == 1
    settled = await store.engine.jobs.settle([conclude(settled.claims[0], Done())], demand=Demand("w1", ((QUEUE, 5),)))
    assert settled.claims == []
    assert await store.counts() == {Status.PENDING: 17, Status.DONE: 3}
    assert (await _bucket(store)).tokens == 0


@pytest.mark.core
@pytest.mark.spec("RATE-09")
async def test_another_rate_keeps_the_tokens_that_fit(store: Store) -> None:
    """A higher rate does not fill the bucket, a lower one cuts it, and without a rate everything starts."""
    await _rated(store, Rate(1, per=3600, burst=10), jobs=40)
    await store.claim(n=4)
    await store.engine.control.tune(QUEUE, Tuning(rate=Rate(1, per=3600, burst=100)))
    assert (await _bucket(store)).tokens == 6
    await store.engine.control.tune(QUEUE, Tuning(rate=Rate(1, per=3600, burst=2)))
    assert len(await store.claim(n=9)) == 2
    await store.engine.control.tune(QUEUE, Tuning(clear=frozenset({"rate"})))
    assert len(await store.claim(n=9)) == 9
    assert (await _queue(store)).rate is None


@pytest.mark.core
@pytest.mark.spec("RATE-09")
async def test_another_rate_wakes_a_waiter(store: Store) -> None:
    """A worker that sleeps for want of tokens learns of a new rate, and of none, at once."""
    await _rated(store, Rate(1, per=3600), jobs=5)
    await store.claim(n=9)
    for tuning in (Tuning(rate=Rate(9, per=3600)), Tuning(clear=frozenset({"rate"}))):
        await store.quiet(QUEUE)
        await store.engine.control.tune(QUEUE, tuning)
        assert await store.engine.jobs.wait([QUEUE], ARRIVES) == {QUEUE}


@pytest.mark.spec("RATE-10")
async def test_a_rate_that_another_engine_sets_counts_at_once(store: Store) -> None:
    """An engine that claimed without a rate obeys one that its twin sets, and no longer one that was cleared."""
    await store.insert(*(store.draft() for _ in range(30)))
    assert len(await store.claim(n=3)) == 3
    twin = store.engine.for_loop()
    await twin.open()
    try:
        await twin.control.tune(QUEUE, Tuning(rate=Rate(2, per=60)))
        assert len(await store.claim(n=9)) == 2
        assert await twin.jobs.claim(Demand("w1", ((QUEUE, 9),))) == []
        await twin.control.tune(QUEUE, Tuning(clear=frozenset({"rate"})))
        assert len(await store.claim(n=9)) == 9
        await twin.control.tune(QUEUE, Tuning(rate=Rate(1, per=60)))
        assert len(await store.claim(n=9)) == 1
    finally:
        await twin.close()


@pytest.mark.spec("RATE-10")
async def test_a_rate_survives_a_reopen(store: Store) -> None:
    """Neither the rate nor the tokens that are left change when the store is closed and opened."""
    await _rated(store, Rate(5, per=60))
    await store.claim(n=3)
    before = await _queue(store)
    await store.engine.close()
    await store.engine.open()
    assert await _queue(store) == before
    assert len(await store.claim(n=9)) == 2


@pytest.mark.spec("RATE-02")
async def test_a_demand_over_rated_and_plain_queues_keeps_its_order_and_total(store: Store) -> None:
    """The total counts over all queues, and what a rate refuses is left to the queues behind it."""
    for queue in ("a", "b", "c"):
        await store.insert(*(store.draft(queue=queue) for _ in range(9)))
    for queue in ("a", "c"):
        await store.engine.control.tune(queue, Tuning(rate=Rate(2, per=60)))
    await store.enlist("w1")
    claims = await store.engine.jobs.claim(Demand("w1", (("a", 5), ("b", 3), ("c", 5)), 6))
    assert [claim.queue for claim in claims] == ["a", "a", "b", "b", "b", "c"]
    claims = await store.engine.jobs.claim(Demand("w1", (("a", 5), ("c", 5), ("b", 5)), 6))
    assert [claim.queue for claim in claims] == ["c", "b", "b", "b", "b", "b"]

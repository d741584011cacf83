"""Rate budgets: a token bucket per name that many workers spend from, never more than it holds."""

from __future__ import annotations

import asyncio
import random

import pytest

from stoker.model.budgets import ONLY, Budget, Rates
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput
from stoker.model.throttle import Bucket, Grant, Rate, drained, full, retuned, spend
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import Store

_TEN_AT_ONCE = Rate(1, per=3600, burst=10)
"""Ten tokens, and in the time of a case no more."""


async def _bucket(store: Store, name: str = "api") -> Bucket:
    [budget] = [budget for budget in await store.engine.control.budgets() if budget.name == name]
    return budget.buckets[ONLY]


def _close(found: Bucket, wanted: Bucket) -> bool:
    """Equal but for the last digits of the tokens: engines may compute floats in another place."""
    same = (found.rate, found.refilled_at) == (wanted.rate, wanted.refilled_at)
    return same and found.tokens == pytest.approx(wanted.tokens)


@pytest.mark.core
@pytest.mark.spec("BUDGET-01")
async def test_budgets_of_a_fresh_store_are_none(store: Store) -> None:
    """No budgets, and tuning queues makes none."""
    await store.engine.control.tune("mail", Tuning(workers=1))
    assert await store.engine.control.budgets() == []


@pytest.mark.core
@pytest.mark.spec("BUDGET-01")
async def test_budgets_start_full_and_are_listed_by_name(store: Store) -> None:
    """A new budget has all its tokens; the list is sorted, and budgets are no queues."""
    for name in ("sms", "api", "Z"):
        assert await store.engine.control.tune(name, Rate(1, per=2, burst=10))
    wanted = full(Rate(1, per=2, burst=10), store.now())
    assert await store.engine.control.budgets() == [Budget(name, {ONLY: wanted}) for name in ("Z", "api", "sms")]
    assert await store.engine.control.queues() == []


@pytest.mark.core
@pytest.mark.spec("BUDGET-02")
async def test_budgets_grant_until_they_are_empty(store: Store) -> None:
    """Each spend takes its tokens or none; a refusal carries a hint and takes nothing."""
    await store.engine.control.tune("api", Rate(1, per=2, burst=5))
    assert await store.engine.control.spend("api", 3) == Grant(granted=True)
    assert await store.engine.control.spend("api", 3) == Grant(
        granted=False, wait=4 * SECOND, capacity=5, enough=2 * SECOND
    )
    assert await store.engine.control.spend("api") == Grant(granted=True)
    assert await store.engine.control.spend("api", 1) == Grant(granted=True)
    assert not (await store.engine.control.spend("api")).granted
    store.pass_time(2 * SECOND - 1)
    assert not (await store.engine.control.spend("api")).granted
    store.pass_time(1)
    assert (await store.engine.control.spend("api")).granted
    assert not (await store.engine.control.spend("api")).granted


@pytest.mark.core
@pytest.mark.spec("BUDGET-03")
@pytest.mark.parametrize("seed", range(3))
async def test_budgets_follow_the_rule_book(store: Store, seed: int) -> None:
    """After many random steps every result and every level is the model's."""
    dice = random.Random(seed)
    rates = [Rate(2, burst=8), Rate(4, per=3), Rate(0.25, burst=12.5), Rate(100, burst=4), Rate(1, per=3600, burst=8)]
    await store.engine.control.tune("api", rates[0])
    model = full(rates[0], store.now())
    for _ in range(150):
        match dice.randrange(10):
            case 0:
                store.pass_time(dice.choice([0, 1, SECOND // 3, SECOND, HOUR]))
            case 1:
                rate = dice.choice(rates)
                assert await store.engine.control.tune("api", rate) is (rate != model.rate)
                model = retuned(model, rate, store.now())
            case 2:
                assert await store.engine.control.drain("api")
                model = drained(model, store.now())
            case _:
                store.pass_time(dice.choice([0, 0, SECOND // 4]))
                n = dice.randint(1, 3)
                model, wanted = spend(model, n, store.now())
                assert await store.engine.control.spend("api", n) == wanted
        assert _close(await _bucket(store), model)


@pytest.mark.core
@pytest.mark.spec("BUDGET-04")
async def test_budgets_are_never_overspent_by_many_at_once(store: Store) -> None:
    """Fifty who ask at the same time for one of ten tokens: exactly ten get one."""
    await store.engine.control.tune("api", _TEN_AT_ONCE)
    grants = await asyncio.gather(*(store.engine.control.spend("api") for _ in range(50)))
    assert sum(grant.granted for grant in grants) == 10
    assert {grant.wait for grant in grants if not grant.granted} == {MINUTE}
    assert (await _bucket(store)).tokens == 0


@pytest.mark.core
@pytest.mark.spec("BUDGET-05")
async def test_budgets_that_do_not_exist_refuse(store: Store) -> None:
    """An unknown name is a refusal with the longest hint, not an error, and does not come into being."""
    assert await store.engine.control.spend("unknown") == Grant(granted=False, wait=MINUTE)
    assert not await store.engine.control.drain("unknown")
    assert await store.engine.control.budgets() == []


@pytest.mark.spec("BUDGET-05")
async def test_budgets_refuse_more_than_they_can_hold(store: Store) -> None:
    """A request above the capacity is refused however long one waits."""
    await store.engine.control.tune("api", Rate(10, burst=5))
    store.pass_time(HOUR)
    refused = await store.engine.control.spend("api", 6)
    assert (refused.granted, refused.capacity) == (False, 5)
    assert (await store.engine.control.spend("api", 5)).granted


@pytest.mark.core
@pytest.mark.spec("BUDGET-06")
async def test_budgets_can_be_drained(store: Store) -> None:
    """After a drain there is nothing until the rate has refilled it."""
    await store.engine.control.tune("api", Rate(1, burst=10))
    store.pass_time(HOUR)
    assert await store.engine.control.drain("api")
    assert await _bucket(store) == Bucket(Rate(1, burst=10), 0, store.now())
    assert not (await store.engine.control.spend("api")).granted
    store.pass_time(2 * SECOND)
    assert (await store.engine.control.spend("api", 2)).granted
    assert not (await store.engine.control.spend("api")).granted


@pytest.mark.core
@pytest.mark.spec("BUDGET-07")
async def test_budgets_keep_their_tokens_when_retuned(store: Store) -> None:
    """New settings neither refill nor empty a budget; a smaller capacity keeps what fits."""
    slow = {"n": 1, "per": 3600}
    await store.engine.control.tune("api", Rate(**slow, burst=10))
    await store.engine.control.spend("api", 4)
    await store.engine.control.tune("api", Rate(**slow, burst=100))
    assert (await _bucket(store)).tokens == 6
    assert not (await store.engine.control.spend("api", 7)).granted
    await store.engine.control.tune("api", Rate(**slow, burst=2))
    assert (await _bucket(store)).tokens == 2
    await store.engine.control.tune("api", Rate(**slow, burst=10))
    assert (await _bucket(store)).tokens == 2


@pytest.mark.core
@pytest.mark.spec("BUDGET-10")
async def test_budgets_follow_the_code_until_people_change_them(store: Store) -> None:
    """The rate that was declared last is followed, tokens kept; one that people set stays."""
    assert await store.engine.control.tune("api", _TEN_AT_ONCE, declared=True)
    await store.engine.control.spend("api", 4)
    assert not await store.engine.control.tune("api", _TEN_AT_ONCE, declared=True)
    assert await store.engine.control.tune("api", Rate(9, per=3600, burst=99), declared=True)
    [budget] = await store.engine.control.budgets()
    nine = Rate(9, per=3600, burst=99)
    assert budget == Budget("api", {ONLY: Bucket(nine, 6, store.now())}, Rates({ONLY: nine}))
    assert await store.engine.control.tune("api", Rate(2, per=3600))
    assert await store.engine.control.tune("api", Rate(8, per=3600), declared=True)
    [budget] = await store.engine.control.budgets()
    two, eight = Rate(2, per=3600), Rates({ONLY: Rate(8, per=3600)})
    assert budget == Budget("api", {ONLY: Bucket(two, 2, store.now())}, eight)
    assert (await store.engine.control.spend("api")).granted
    [budget] = await store.engine.control.budgets()
    assert (budget.declared, budget.buckets[ONLY].tokens) == (eight, 1)


@pytest.mark.core
@pytest.mark.spec("BUDGET-08")
async def test_budgets_survive_a_clock_that_steps_back(store: Store) -> None:
    """Going back in time neither takes tokens away nor makes the way forward count twice."""
    await store.engine.control.tune("api", Rate(1, burst=10))
    await store.engine.control.spend("api", 4)
    late = store.now()
    store.clock.set(late - HOUR)
    assert (await store.engine.control.spend("api", 5)).granted
    assert not (await store.engine.control.spend("api", 2)).granted
    store.clock.set(late)
    assert not (await store.engine.control.spend("api", 2)).granted
    assert (await store.engine.control.spend("api", 1)).granted
    store.pass_time(3 * SECOND)
    assert not (await store.engine.control.spend("api", 4)).granted
    assert (await store.engine.control.spend("api", 3)).granted


@pytest.mark.spec("BUDGET-09")
async def test_budgets_with_impossible_names_and_amounts_are_refused(store: Store) -> None:
    """Bad names and amounts raise and change nothing."""
    await store.engine.control.tune("api", Rate(1, burst=2))
    before = await store.engine.control.budgets()
    with pytest.raises(InvalidInput):
        await store.engine.control.tune("two words", Rate(1))
    for n in (0, -1):
        with pytest.raises(InvalidInput):
            await store.engine.control.spend("api", n)
    assert await store.engine.control.budgets() == before


@pytest.mark.spec("BUDGET-04")
async def test_budgets_are_one_for_every_engine_on_the_store(store: Store) -> None:
    """Twins spend from the same bucket."""
    await store.engine.control.tune("api", Rate(3, per=3600))
    twin = store.engine.for_loop()
    await twin.open()
    try:
        grants = [(await engine.control.spend("api")).granted for engine in (twin, store.engine) * 2]
        assert grants == [True, True, True, False]
    finally:
        await twin.close()

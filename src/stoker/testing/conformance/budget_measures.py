"""Budgets with several measures and with keys: all measures are taken or none, and each key has its own tokens."""

from __future__ import annotations

import asyncio
import random

import pytest

from stoker.model.audit import AuditQuery, By
from stoker.model.budgets import Buckets, Budget, Rates, Spend, at_hand, budgeted, emptied
from stoker.model.errors import InvalidInput
from stoker.model.query import Retention, Sweep
from stoker.model.throttle import Grant, Rate, full, level
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import Store

LLM = Rates({"requests": Rate(1, per=3600, burst=10), "tokens": Rate(60, per=60, burst=1000)})
"""Ten requests, in the time of a case no more; a thousand tokens, and one a second."""

BY_KEY = Rates(LLM.rates, keyed=True)
BUCKETS = Retention(sweeps=frozenset({Sweep.BUCKETS}))


async def _budget(store: Store, name: str = "llm") -> Budget:
    [budget] = [one for one in await store.engine.control.budgets() if one.name == name]
    return budget


async def _levels(store: Store, key: str | None = None) -> dict[str, float]:
    """What is left of each measure; a key that is not kept has nothing to show."""
    found = (await _budget(store)).buckets
    if key is not None:
        found = next((one.buckets for one in await store.engine.control.buckets("llm", keys=[key])), {})
    return {measure: level(bucket, store.now()) for measure, bucket in found.items()}


async def _spend(store: Store, key: str | None = None, **asked: int) -> Grant:
    return await store.engine.control.spend("llm", Spend(asked, key))


async def _correct(store: Store, key: str | None = None, **more: int) -> Grant:
    return await store.engine.control.spend("llm", Spend(more, key, corrects=True))


@pytest.mark.core
@pytest.mark.spec("BUDGET-13")
async def test_measures_are_taken_together_or_not_at_all(store: Store) -> None:
    """The refusal names the measure that has too few and when it has enough, and costs nothing of any."""
    assert await store.engine.control.tune("llm", LLM)
    assert await store.engine.control.budgets() == [
        Budget("llm", {measure: full(rate, store.now()) for measure, rate in LLM.rates.items()})
    ]
    assert await _spend(store, requests=1, tokens=900) == Grant(granted=True)
    refused = Grant(granted=False, wait=20 * SECOND, capacity=1000, measure="tokens", enough=20 * SECOND)
    assert await _spend(store, requests=1, tokens=120) == refused
    assert await _spend(store, tokens=100) == Grant(granted=True), "one measure alone"
    assert await _levels(store) == {"requests": 9, "tokens": 0}
    both = await _spend(store, requests=10, tokens=100)
    assert (both.measure, both.enough, both.wait) == ("requests", HOUR, MINUTE), "the one that takes longest"
    above = await _spend(store, requests=11, tokens=1000)
    assert (above.measure, above.capacity) == ("requests", 10), "one that can never have as many"
    store.pass_time(20 * SECOND)
    assert (await _spend(store, tokens=20)).granted


@pytest.mark.core
@pytest.mark.spec("BUDGET-13")
async def test_measures_are_never_overspent_by_many_at_once(store: Store) -> None:
    """Forty ask at once for a request and some tokens through two engines: each measure bounds them all."""
    await store.engine.control.tune("llm", LLM)
    twin = store.engine.for_loop()
    await twin.open()
    try:
        asked = [Spend({"requests": 1, "tokens": 300 if turn % 4 == 0 else 1}) for turn in range(40)]
        engines = (store.engine, twin) * 20
        spends = (engine.control.spend("llm", one) for engine, one in zip(engines, asked, strict=True))
        grants = await asyncio.gather(*spends)
    finally:
        await twin.close()
    taken = [one.asked for one, grant in zip(asked, grants, strict=True) if grant.granted]
    left = await _levels(store)
    assert left == {"requests": 10 - len(taken), "tokens": 1000 - sum(one["tokens"] for one in taken)}
    assert min(left.values()) >= 0
    assert len(taken) == 10


@pytest.mark.core
@pytest.mark.spec("BUDGET-14")
async def test_keys_have_buckets_of_their_own(store: Store) -> None:
    """The first spend of a key makes its buckets, full; what it takes is missing nowhere else."""
    await store.engine.control.tune("llm", BY_KEY)
    assert await store.engine.control.buckets("llm") == []
    assert (await _spend(store, "acme", requests=1, tokens=1000)).granted
    refused = await _spend(store, "acme", tokens=1)
    assert (refused.granted, refused.measure) == (False, "tokens")
    assert (await _spend(store, "a/b ☃", requests=10)).granted
    assert await _levels(store, "acme") == {"requests": 9, "tokens": 0}
    assert await _levels(store, "a/b ☃") == {"requests": 0, "tokens": 1000}
    assert await _levels(store, "other") == {}
    assert await _levels(store) == {"requests": 10, "tokens": 1000}
    [first, second] = await store.engine.control.buckets("llm")
    assert (first.key, second.key) == ("a/b ☃", "acme"), "what is full again last comes first"
    assert [one.key for one in await store.engine.control.buckets("llm", limit=1)] == ["a/b ☃"]
    assert [one.key for one in await store.engine.control.buckets("llm", keys=["acme", "none"])] == ["acme"]
    assert await store.engine.control.buckets("llm", limit=0) == []
    assert await store.engine.control.buckets("llm", limit=0, keys=["acme"]) == []
    assert await store.engine.control.buckets("llm", keys=[]) == await store.engine.control.buckets("none") == []


@pytest.mark.core
@pytest.mark.spec("BUDGET-14")
async def test_a_key_is_not_overspent_by_many_at_once(store: Store) -> None:
    """Thirty ask at once for one of ten requests of a key that is new, through two engines: ten get one."""
    await store.engine.control.tune("llm", BY_KEY)
    twin = store.engine.for_loop()
    await twin.open()
    try:
        asked = Spend({"requests": 1, "tokens": 1}, "acme")
        grants = await asyncio.gather(*(engine.control.spend("llm", asked) for engine in (store.engine, twin) * 15))
    finally:
        await twin.close()
    assert sum(grant.granted for grant in grants) == 10
    assert await _levels(store, "acme") == {"requests": 0, "tokens": 990}


@pytest.mark.core
@pytest.mark.spec("BUDGET-15")
async def test_keys_are_forgotten_when_they_are_full_again(store: Store) -> None:
    """Not before; and a key that was forgotten has all its tokens, as it had."""
    await store.engine.control.tune("llm", Rates({"tokens": Rate(1, burst=10)}, keyed=True))
    store.pass_time(MINUTE)
    for n in range(1, 4):
        assert (await _spend(store, f"key {n}", tokens=n)).granted
    store.pass_time(2 * SECOND - 1)
    assert (await store.engine.operator.expire(BUCKETS)).buckets == 1
    assert {one.key for one in await store.engine.control.buckets("llm")} == {"key 2", "key 3"}
    store.pass_time(1)
    assert (await store.engine.operator.expire(BUCKETS)).buckets == 1
    store.pass_time(HOUR)
    assert (await store.engine.operator.expire(BUCKETS)).buckets == 1
    assert await store.engine.control.buckets("llm") == []
    assert (await _spend(store, "key 3", tokens=10)).granted
    assert not (await _spend(store, "key 3", tokens=1)).granted


@pytest.mark.spec("BUDGET-15")
async def test_keys_are_forgotten_in_batches(store: Store) -> None:
    """A sweep forgets as many as it may, and the next one the rest."""
    await store.engine.control.tune("llm", Rates({"tokens": Rate(1, burst=10)}, keyed=True))
    for n in range(5):
        await _spend(store, f"key {n}", tokens=1)
    store.pass_time(MINUTE)
    few = Retention(sweeps=frozenset({Sweep.BUCKETS}), limit=3)
    assert [(await store.engine.operator.expire(few)).buckets for _ in range(3)] == [3, 2, 0]


@pytest.mark.core
@pytest.mark.spec("BUDGET-16")
async def test_keys_follow_new_rates_from_the_change_on(store: Store) -> None:
    """An empty key fills up at the new rate, and is not forgotten at the time of the old one."""
    await store.engine.control.tune("llm", Rates({"tokens": Rate(10, burst=10)}, keyed=True))
    assert (await _spend(store, "acme", tokens=10)).granted
    assert await store.engine.control.tune("llm", Rates({"tokens": Rate(1, per=10, burst=5)}))
    store.pass_time(20 * SECOND)
    assert (await store.engine.operator.expire(BUCKETS)).buckets == 0
    assert await _levels(store, "acme") == {"tokens": 2}
    assert not (await _spend(store, "acme", tokens=3)).granted
    assert (await _spend(store, "other", tokens=5)).granted
    store.pass_time(HOUR)
    assert (await store.engine.operator.expire(BUCKETS)).buckets == 2


@pytest.mark.core
@pytest.mark.spec("BUDGET-17")
async def test_corrections_are_always_taken(store: Store) -> None:
    """Below zero if need be, and given back no further than full; later spends wait until the debt is paid."""
    await store.engine.control.tune("llm", LLM)
    await _spend(store, requests=1, tokens=400)
    assert await _correct(store, tokens=900) == Grant(granted=True)
    assert await _levels(store) == {"requests": 9, "tokens": -300}
    refused = await _spend(store, tokens=1)
    assert (refused.granted, refused.enough) == (False, 301 * SECOND)
    assert await store.engine.control.drain("llm")
    assert await _levels(store) == {"requests": 0, "tokens": -300}, "what is owed stays owed"
    assert await _correct(store, requests=-5, tokens=-1200) == Grant(granted=True)
    assert await _levels(store) == {"requests": 5, "tokens": 900}
    await _correct(store, tokens=-5000)
    assert (await _levels(store))["tokens"] == 1000


@pytest.mark.core
@pytest.mark.spec("BUDGET-17")
async def test_corrections_of_keys_that_were_forgotten(store: Store) -> None:
    """What is given back to a full key makes no buckets; what it owes does. An unknown measure changes nothing."""
    await store.engine.control.tune("llm", BY_KEY)
    assert (await _correct(store, "acme", tokens=-5)).granted
    assert await store.engine.control.buckets("llm") == []
    assert (await _correct(store, "acme", tokens=1500)).granted
    assert await _levels(store, "acme") == {"requests": 10, "tokens": -500}
    assert not (await _correct(store, "acme", other=1)).granted
    assert await _levels(store, "acme") == {"requests": 10, "tokens": -500}


@pytest.mark.core
@pytest.mark.spec("BUDGET-18")
async def test_measures_and_keys_that_do_not_fit_are_refused(store: Store) -> None:
    """Without a capacity, as by an unknown budget; nothing comes into being."""
    await store.engine.control.tune("llm", LLM)
    await store.engine.control.tune("keyed", BY_KEY)
    unfit = Grant(granted=False, wait=MINUTE)
    assert await _spend(store, requests=1, words=1) == unfit
    assert await _spend(store, "acme", requests=1) == unfit
    assert await store.engine.control.spend("llm", 1) == unfit
    assert await store.engine.control.spend("keyed", Spend({"requests": 1})) == unfit
    assert await _levels(store) == {"requests": 10, "tokens": 1000}
    assert not await store.engine.control.drain("llm", key="acme")
    assert not await store.engine.control.drain("keyed")
    assert await store.engine.control.buckets("llm") == await store.engine.control.buckets("keyed") == []
    with pytest.raises(InvalidInput, match="must be one that budget 'llm' has: requests or tokens"):
        await store.engine.control.tune("llm", Rates({"words": Rate(1)}))
    assert (await _budget(store)).buckets.keys() == LLM.rates.keys()


@pytest.mark.core
@pytest.mark.spec("BUDGET-18")
async def test_drains_empty_every_measure(store: Store) -> None:
    """Of the budget, or of one key alone."""
    await store.engine.control.tune("llm", LLM)
    assert await store.engine.control.drain("llm")
    assert await _levels(store) == {"requests": 0, "tokens": 0}
    await store.engine.control.tune("llm", BY_KEY, declared=True)
    assert await store.engine.control.drain("llm", key="acme")
    assert await _levels(store, "acme") == {"requests": 0, "tokens": 0}
    assert (await _spend(store, "other", requests=10, tokens=1000)).granted


@pytest.mark.core
@pytest.mark.spec("BUDGET-19")
async def test_the_code_decides_which_measures_there_are(store: Store) -> None:
    """A new declaration adds and drops measures; rates that people set stay, and tokens as far as they fit."""
    assert await store.engine.control.tune("llm", LLM, declared=True)
    assert not await store.engine.control.tune("llm", LLM, declared=True)
    await _spend(store, requests=4, tokens=700)
    people = Rate(30, per=60, burst=200)
    assert await store.engine.control.tune("llm", Rates({"tokens": people}), by=By("ops"))
    assert await _levels(store) == {"requests": 6, "tokens": 200}
    [entry] = await store.engine.audit.read(AuditQuery())
    assert (entry.deed.action, entry.deed.target) == ("limits.tune", "limit llm")
    assert entry.deed.before is not None
    assert entry.deed.before["buckets"]["tokens"]["rate"] == {"n": 60.0, "per": 60.0, "burst": 1000.0}
    other = Rates({"tokens": Rate(5), "images": Rate(2)}, keyed=True)
    assert await store.engine.control.tune("llm", other, declared=True)
    budget = await _budget(store)
    assert {measure: one.rate for measure, one in budget.buckets.items()} == {"tokens": people, "images": Rate(2)}
    assert (budget.declared, budget.keyed) == (other, True)


@pytest.mark.core
@pytest.mark.spec("BUDGET-20")
@pytest.mark.parametrize("keyed", [False, True], ids=["one", "keys"])
async def test_measures_follow_the_rule_book(store: Store, keyed: bool) -> None:
    """After many random steps every answer and every bucket is the model's."""
    dice = random.Random(7)
    rates = [Rates({"a": Rate(2, burst=8), "b": Rate(n, burst=20)}, keyed) for n in (1, 5)]
    await store.engine.control.tune("llm", rates[0])
    model, kept = budgeted(None, "llm", rates[0], store.now()), dict[str, Buckets]()
    for _ in range(100):
        key, now = dice.choice(["x", "y"]) if keyed else None, store.now()
        after: Buckets | None = None
        match dice.randrange(12):
            case 0:
                store.pass_time(dice.choice([1, SECOND, 4 * SECOND]))
            case 1:
                wanted = dice.choice(rates)
                await store.engine.control.tune("llm", wanted)
                model = budgeted(model, "llm", wanted, now)
            case 2:
                assert await store.engine.control.drain("llm", key=key)
                after = emptied(model, key, kept.get(key or ""), now)
            case roll:
                asked = {name: dice.randint(1, 4) for name in dice.choice(["a", "b", "ab"])}
                spend = Spend(asked, key, corrects=roll == 3)
                after, grant = spend.of(model, kept.get(key or ""), now)
                assert await store.engine.control.spend("llm", spend) == grant
        if after is not None and key is not None:
            kept[key] = after
        elif after is not None:
            model = Budget("llm", after)
        assert (await _budget(store)).buckets == model.buckets
        found = {one.key: one.buckets for one in await store.engine.control.buckets("llm")}
        assert found == {name: at_hand(model, name, one, store.now()) for name, one in kept.items()}

"""Budgets: several measures, keys, declarations, corrections, and what a refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.budgets import (
    MOST_MEASURES,
    ONLY,
    Buckets,
    Budget,
    Rates,
    Spend,
    _corrected,
    address,
    asked_of,
    at_hand,
    budgeted,
    emptied,
    forgets,
    full_at,
    is_full,
    read_address,
    refusal,
    spend_of,
    tune_command,
    unfit,
    words,
)
from stoker.model.errors import InvalidInput, InvalidName
from stoker.model.throttle import Bucket, Grant, Rate, full
from stoker.model.time import DAY, MINUTE, SECOND

NOW = 1_000 * SECOND
LLM = Rates({"requests": Rate(10, per=60), "tokens": Rate(100, per=100, burst=1000)})
KEYED = Rates(LLM.rates, keyed=True)


def new(rates: Rate | Rates = LLM, now: int = NOW) -> Budget:
    return budgeted(None, "llm", rates, now)


def left(buckets: Buckets | None) -> dict[str, float]:
    assert buckets is not None
    return {measure: bucket.tokens for measure, bucket in buckets.items()}


@pytest.mark.spec("BUDGET-10")
def test_a_budget_follows_the_code_until_people_change_it() -> None:
    def one(rate: Rate) -> Rates:
        return Rates({ONLY: rate})

    declared = budgeted(None, "sms", Rate(5), NOW, declared=True)
    assert declared == Budget("sms", {ONLY: full(Rate(5), NOW)}, one(Rate(5)))
    assert budgeted(declared, "sms", Rate(5), NOW + DAY, declared=True) == declared
    followed = budgeted(declared, "sms", Rate(9), NOW, declared=True)
    assert followed == Budget("sms", {ONLY: Bucket(Rate(9), 5, NOW)}, one(Rate(9)))
    edited = budgeted(followed, "sms", Rate(2), NOW)
    assert (edited.buckets[ONLY].rate, edited.declared) == (Rate(2), one(Rate(9)))
    assert budgeted(edited, "sms", Rate(8), NOW, declared=True) == Budget("sms", edited.buckets, one(Rate(8)))
    by_people = budgeted(None, "sms", Rate(3), NOW)
    kept = budgeted(by_people, "sms", Rate(8), NOW, declared=True)
    assert kept == Budget("sms", {ONLY: full(Rate(3), NOW)}, one(Rate(8)))
    with pytest.raises(InvalidName):
        budgeted(None, "two words", Rate(1), NOW)


@pytest.mark.spec("BUDGET-19")
def test_the_code_adds_and_drops_measures_and_people_change_rates() -> None:
    declared = budgeted(None, "llm", LLM, NOW, declared=True)
    tuned = budgeted(declared, "llm", Rates({"tokens": Rate(5)}), NOW)
    assert (tuned.buckets["tokens"], tuned.buckets["requests"]) == (full(Rate(5), NOW), declared.buckets["requests"])
    other = Rates({"tokens": Rate(7), "images": Rate(1)}, keyed=True)
    after = budgeted(tuned, "llm", other, NOW, declared=True)
    assert after == Budget("llm", {"tokens": full(Rate(5), NOW), "images": full(Rate(1), NOW)}, other, keyed=True)
    for wrong, says in (("words", "'words'"), (ONLY, "None")):
        with pytest.raises(InvalidInput, match=f"has: requests or tokens; got {says}"):
            budgeted(declared, "llm", Rates({wrong: Rate(1)}), NOW)
    with pytest.raises(InvalidInput, match="has only one and no name for it"):
        budgeted(new(Rate(1)), "llm", Rates({"words": Rate(1)}), NOW)


@pytest.mark.spec("BUDGET-13")
def test_a_spend_takes_every_measure_or_none() -> None:
    budget = new()
    after, grant = Spend({"requests": 2, "tokens": 900}).of(budget, None, NOW)
    assert (left(after), grant) == ({"requests": 8, "tokens": 100}, Grant(granted=True))
    assert left(Spend({"requests": 10}).of(budget, None, NOW)[0]) == {"requests": 0, "tokens": 1000}
    assert after is not None
    spent = Budget("llm", after)
    nothing, refused = Spend({"requests": 1, "tokens": 112}).of(spent, None, NOW)
    assert nothing is None
    assert refused == Grant(granted=False, wait=12 * SECOND, capacity=1000, measure="tokens", enough=12 * SECOND)
    _, both = Spend({"requests": 10, "tokens": 105}).of(spent, None, NOW)
    assert (both.measure, both.enough) == ("requests", 12 * SECOND), "the one that takes longest"
    _, never = Spend({"requests": 11, "tokens": 900}).of(spent, None, NOW)
    assert (never.measure, never.wait) == ("requests", 18 * SECOND), "one that can never have as many"


@pytest.mark.spec("BUDGET-14")
def test_a_key_has_buckets_of_its_own() -> None:
    budget = new(KEYED)
    after, grant = Spend({"tokens": 1000}, "acme").of(budget, None, NOW)
    assert grant.granted
    assert left(after) == {"requests": 10, "tokens": 0}
    assert not Spend({"tokens": 1}, "acme").of(budget, after, NOW)[1].granted
    assert Spend({"tokens": 1}, "other").of(budget, None, NOW)[1].granted
    assert left(emptied(budget, "acme", None, NOW)) == {"requests": 0, "tokens": 0}


@pytest.mark.spec("BUDGET-18")
@pytest.mark.parametrize(
    ("rates", "spend"),
    [
        (LLM, Spend({"words": 1})),
        (LLM, Spend({"requests": 1, "words": 1})),
        (LLM, Spend({"tokens": 1}, "acme")),
        (KEYED, Spend({"tokens": 1})),
        (LLM, spend_of(1)),
        (None, spend_of(1)),
    ],
)
def test_what_does_not_fit_is_refused_without_a_capacity(rates: Rates | None, spend: Spend) -> None:
    budget = None if rates is None else new(rates)
    assert spend.of(budget, None, NOW) == (None, Grant(granted=False, wait=MINUTE))
    assert rates is None or unfit("llm", spend, rates) is not None
    assert emptied(None, None, None, NOW) is None


@pytest.mark.spec("BUDGET-17")
def test_a_correction_is_always_taken_and_never_overfills() -> None:
    budget = new()
    more, grant = Spend({"tokens": 1200}, corrects=True).of(budget, None, NOW)
    assert (left(more), grant) == ({"requests": 10, "tokens": -200}, Grant(granted=True))
    back, _ = Spend({"tokens": -5}, corrects=True).of(budget, None, NOW)
    assert left(back) == {"requests": 10, "tokens": 1000}
    keyed = new(KEYED)
    assert Spend({"tokens": -5}, "acme", corrects=True).of(keyed, None, NOW)[0] is None, "it is full, and not kept"
    assert left(Spend({"tokens": 5}, "acme", corrects=True).of(keyed, None, NOW)[0])["tokens"] == 995
    assert Spend({"words": -5}, corrects=True).of(budget, None, NOW) == (None, Grant(granted=False, wait=MINUTE))
    assert more is not None
    assert left(emptied(Budget("llm", more), None, None, NOW))["tokens"] == -200, "a drain forgives nothing"


@pytest.mark.spec("BUDGET-15", "BUDGET-16")
def test_keys_are_forgotten_when_full_by_the_present_rates() -> None:
    budget = new(Rates({"a": Rate(10), "b": Rate(1, burst=20)}, keyed=True))
    assert not forgets(budget, NOW + 20 * SECOND - 1), "a key may have been emptied just when the rates changed"
    assert forgets(budget, NOW + 20 * SECOND)
    after, _ = Spend({"a": 10, "b": 3}, "x").of(budget, None, NOW)
    assert after is not None
    assert (full_at(after), is_full(after, NOW + 3 * SECOND), is_full(after, NOW)) == (NOW + 3 * SECOND, True, False)
    slower = budgeted(budget, "llm", Rates({"a": Rate(1, burst=5)}), NOW + SECOND // 2)
    found = at_hand(slower, "x", after, NOW + DAY)
    assert found is not None
    assert found["a"] == Bucket(Rate(1, burst=5), 5, NOW + SECOND // 2), "filled at the old rate up to the change"
    assert found["b"] == after["b"]
    assert at_hand(slower, "new", None, NOW + DAY) == {
        "a": full(Rate(1, burst=5), NOW + DAY),
        "b": full(Rate(1, burst=20), NOW + DAY),
    }


@pytest.mark.spec("BUDGET-21")
@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ({}, "must have one rate, or a rate for each of up to 8 measures"),
        ({f"m{n}": Rate(1) for n in range(MOST_MEASURES + 1)}, "up to 8 measures"),
        ({ONLY: Rate(1), "tokens": Rate(1)}, "give one rate, or a name to every measure"),
        ({"key": Rate(1)}, "is a parameter of spend and budget; choose another name"),
        ({"tokens": 5}, "must be a Rate"),
        ({ONLY: 5}, "must be a Rate"),
        ({"two words": Rate(1)}, "must be 1-128 of letters"),
    ],
)
def test_bad_measures_are_refused(rates: Any, says: str) -> None:
    with pytest.raises((InvalidInput, InvalidName), match=says):
        Rates(rates)


@pytest.mark.spec("BUDGET-21")
def test_bad_spends_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must be True or False"):
        Rates({ONLY: Rate(1)}, keyed="acme")  # type: ignore[arg-type]
    wrong: list[Any] = [0, -1, 0.5, float("nan"), float("inf"), "5", True, None]
    for n in wrong:
        with pytest.raises(InvalidInput, match=r"spend\(tokens\): must be a number, at least 1"):
            Spend({"tokens": n})
    for n in wrong[3:]:
        with pytest.raises(InvalidInput, match="must be a number"):
            Spend({ONLY: n}, corrects=True)
    with pytest.raises(InvalidInput, match="asks for nothing"):
        Spend({})
    with pytest.raises(InvalidInput, match="budget key: must be a non-empty text"):
        Spend({ONLY: 1}, "")
    with pytest.raises(InvalidInput, match="cannot go with requests, tokens; name every measure"):
        asked_of(1, {"requests": 1, "tokens": 2})
    assert (asked_of(None, {}), asked_of(3, {})) == ({ONLY: 1}, {ONLY: 3})
    assert asked_of(None, {"tokens": 3}) == {"tokens": 3}
    assert spend_of(Spend({ONLY: 2})) == spend_of(2)


@pytest.mark.spec("BUDGET-11")
@pytest.mark.parametrize(
    ("n", "capacity", "declared", "lasting", "mistaken", "says"),
    [
        (5, 10, Rate(10), False, False, "budget 'llm' has fewer than 5 tokens now; it has enough in about 3.0 s"),
        (1, 10, Rate(10), False, False, "budget 'llm' has no token now"),
        (10, 10, None, False, False, "budget 'llm' has fewer than 10 tokens now"),
        (5, None, Rate(5), False, False, "budget 'llm' is declared and not stored yet: a worker stores it"),
        (5, None, Rate(1), True, True, "declared to hold at most 1 token, which is below the 5 asked for"),
        (50, 60, Rate(10), False, False, "budget 'llm' has fewer than 50 tokens now"),
        (50, 10, Rate(100), True, False, "was tuned to hold at most 10 tokens (its code declares 100), which is below"),
        (50, 10, None, True, False, "was tuned to hold at most 10 tokens, which is below the 50 asked for"),
        (5_000, 2_000, Rate(1_000), True, True, "declared to hold at most 1,000 tokens, which is below the 5,000"),
        (1, None, None, True, True, "no app declares this budget and none is stored: jobs.budget('llm', Rate(...))"),
    ],
)
def test_a_refusal_says_whether_waiting_helps(
    n: int, capacity: float | None, declared: Rate | None, lasting: bool, mistaken: bool, says: str
) -> None:
    grant = Grant(granted=False, wait=MINUTE, capacity=capacity, enough=3 * SECOND)
    rates = None if declared is None else Rates({ONLY: declared})
    found = refusal("llm", spend_of(n), grant, rates, None)
    assert (found.lasting, found.mistaken) == (lasting, mistaken)
    assert says in found.why


@pytest.mark.spec("BUDGET-13", "BUDGET-21")
@pytest.mark.parametrize(
    ("spend", "capacity", "declared", "stored", "mistaken", "says"),
    [
        (
            Spend({"requests": 1, "tokens": 12}),
            1000,
            LLM,
            None,
            False,
            "'llm', measure tokens has fewer than 12",
        ),
        (Spend({"tokens": 12}, "acme"), 1000, KEYED, None, False, "budget 'llm', measure tokens, key acme has fewer"),
        (Spend({"requests": 1, "tokens": 1001}), None, LLM, None, True, "measure tokens is declared to hold at most"),
        (Spend({"tokens": 5}), None, LLM, new(KEYED), False, "is stored otherwise than this app declares it"),
        (Spend({"words": 5}), None, None, new(), True, "'words' is no measure of budget 'llm', which has requests, to"),
        (spend_of(5), None, None, new(), True, "a number without a name is no measure of budget 'llm', which has req"),
        (Spend({"words": 5}), None, None, new(Rate(1)), True, "'llm', which has only one and no name for it"),
        (Spend({"tokens": 5}, "acme"), None, None, new(), True, "has no keys, and key='acme' was given"),
        (Spend({"tokens": 5}), None, None, new(KEYED), True, "has buckets for each key: say whose tokens to take"),
        (Spend({"tokens": 5}), None, None, new(), True, "has changed meanwhile; ask again"),
    ],
)
def test_a_refusal_names_the_measure_and_the_key(
    spend: Spend, capacity: float | None, declared: Rates | None, stored: Budget | None, mistaken: bool, says: str
) -> None:
    grant = Grant(granted=False, wait=MINUTE, capacity=capacity, measure="tokens" if capacity else "", enough=SECOND)
    found = refusal("llm", spend, grant, declared, stored)
    assert says in found.why
    assert found.mistaken is mistaken


@pytest.mark.spec("EXPLAIN-06")
def test_addresses_of_buckets_are_read_back() -> None:
    for parts in (("llm", "", None), ("llm", "tokens", None), ("llm", "", "a/b"), ("llm", "tokens", "acme")):
        assert read_address(address(*parts)) == parts
    assert (words("", 1), words("tokens", 5000), words("fish", 1)) == ("1 token", "5,000 tokens", "1 fish")
    assert tune_command("llm", "", 5) == "stoker limits tune llm --rate 5/TIME"
    assert tune_command("llm", "tokens", 5) == "stoker limits tune llm --measure tokens --rate 5/TIME"


@pytest.mark.spec("BUDGET-08")
def test_a_correction_never_sets_the_clock_of_a_bucket_back() -> None:
    """Two engines settle out of order: the later instant stays, or the time between would be refilled twice."""
    bucket = Bucket(Rate(10, per=10, burst=10), 2.0, NOW)
    assert _corrected(bucket, 1, NOW - SECOND).refilled_at == NOW
    assert _corrected(bucket, 1, NOW + SECOND).refilled_at == NOW + SECOND

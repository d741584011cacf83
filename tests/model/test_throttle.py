from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.retry import OFF, Curve
from stoker.model.throttle import (
    DECAY_GRACE,
    FLAT_COOLDOWN,
    MOST_EVENTS,
    OPEN,
    Bucket,
    Cool,
    Cooldown,
    cooldown_delay,
    cooled,
    drained,
    full,
    retuned,
    spend,
    wait_hint,
)
from stoker.model.time import DAY, HOUR, MINUTE, SECOND

NOW = 1_800_000_000_000_000
CURVE = Curve(on=True, base=MINUTE, max=30 * MINUTE)
NUMBERS = st.floats(1, 1e6)
RATES = st.floats(0, 1e6)


# --- cool-down ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("THROTTLE-02")
@pytest.mark.parametrize(
    ("curve", "count", "hint", "expected"),
    [
        (OFF, 0, None, FLAT_COOLDOWN),
        (OFF, 9, None, FLAT_COOLDOWN),
        (OFF, 0, 2 * SECOND, 2 * SECOND),
        (OFF, 9, 0, 0),
        (OFF, 0, HOUR, HOUR),
        (CURVE, 0, None, MINUTE),
        (CURVE, 1, None, 2 * MINUTE),
        (CURVE, 2, 3 * MINUTE, 4 * MINUTE),
        (CURVE, 2, 5 * MINUTE, 5 * MINUTE),
        (CURVE, 10**9, None, 30 * MINUTE),
        (CURVE, 10**9, HOUR, HOUR),
    ],
)
def test_a_named_time_is_the_window_and_a_curve_the_least(
    curve: Curve, count: int, hint: int | None, expected: int
) -> None:
    assert cooldown_delay(curve, count, hint) == expected


@pytest.mark.spec("THROTTLE-02")
def test_a_window_is_shut_strictly_before_its_deadline() -> None:
    assert not OPEN.shut(NOW)
    assert Cooldown(NOW + 1, 1).shut(NOW)
    assert not Cooldown(NOW, 1).shut(NOW)


@pytest.mark.spec("THROTTLE-03")
def test_only_the_first_throttle_of_a_window_counts() -> None:
    first = cooled(NOW, OPEN, Cool(0, MINUTE))
    assert first == Cooldown(NOW + MINUTE, 1)
    assert cooled(NOW, first, Cool(0, HOUR)) is first
    assert cooled(NOW + 1, first, Cool(1, HOUR)) is first
    assert cooled(NOW + MINUTE, first, Cool(0, HOUR)) is first
    assert cooled(NOW + MINUTE, first, Cool(1, HOUR)) == Cooldown(NOW + MINUTE + HOUR, 2)


@pytest.mark.spec("THROTTLE-03")
@given(st.integers(0, MOST_EVENTS), st.integers(0, 40), st.integers(0, DAY), st.integers(-DAY, DAY))
def test_the_count_never_leaves_its_bounds(count: int, seen: int, delay: int, offset: int) -> None:
    before = Cooldown(NOW + offset, count)
    after = cooled(NOW, before, Cool(seen, delay))
    assert after.count in {count, min(count + 1, MOST_EVENTS)}
    assert after == before or (after.until == NOW + delay and seen == count)


@pytest.mark.spec("THROTTLE-04")
def test_success_clears_the_count_only_after_the_grace() -> None:
    window = Cooldown(NOW, 3)
    assert cooled(NOW - 1, window, Cool(3)) is window
    assert cooled(NOW + DECAY_GRACE - 1, window, Cool(3)) is window
    assert cooled(NOW + DECAY_GRACE, window, Cool(3)) == OPEN
    assert cooled(NOW + DECAY_GRACE, window, Cool(0)) == OPEN
    assert cooled(NOW, Cooldown(None, 3), Cool(3)) == OPEN


@pytest.mark.spec("THROTTLE-04")
@given(st.integers(-DAY, DAY))
def test_a_success_on_an_open_queue_changes_nothing(offset: int) -> None:
    assert cooled(NOW, OPEN, Cool(0)) is OPEN
    idle = Cooldown(NOW + offset, 0)
    assert cooled(NOW, idle, Cool(0)) is idle


# --- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("THROTTLE-05")
def test_a_budget_grants_what_it_has_and_no_more() -> None:
    bucket = full(3, 0, NOW)
    for left in (2, 1, 0):
        bucket, grant = spend(bucket, 1, NOW)
        assert (grant.granted, grant.wait, bucket.tokens) == (True, 0, left)
    after, grant = spend(bucket, 1, NOW + DAY)
    assert after is bucket
    assert (grant.granted, grant.wait) == (False, MINUTE)


@pytest.mark.spec("THROTTLE-05")
def test_a_budget_refills_with_time_up_to_its_capacity() -> None:
    empty = drained(full(10, 2, NOW), NOW)
    assert not spend(empty, 1, NOW + SECOND // 2 - 1)[1].granted
    assert spend(empty, 1, NOW + SECOND // 2)[1].granted
    bucket, grant = spend(empty, 10, NOW + DAY)
    assert grant.granted
    assert bucket.tokens == 0


@pytest.mark.spec("THROTTLE-05")
def test_several_tokens_or_none() -> None:
    bucket = full(5, 0, NOW)
    assert spend(bucket, 6, NOW)[0] is bucket
    assert spend(bucket, 5, NOW)[0].tokens == 0


@pytest.mark.spec("THROTTLE-06")
@given(NUMBERS, RATES, st.floats(0, 1), st.integers(-DAY, DAY), st.integers(1, 100))
def test_tokens_stay_within_bounds_and_time_never_goes_back(
    capacity: float, rate: float, share: float, offset: int, n: int
) -> None:
    before = Bucket(capacity, rate, capacity * share, NOW)
    after, grant = spend(before, n, NOW + offset)
    assert 0 <= after.tokens <= capacity
    assert after.refilled_at >= before.refilled_at
    assert grant.granted == (after is not before)
    if offset <= 0 and grant.granted:
        assert after.tokens == pytest.approx(before.tokens - n)


@pytest.mark.spec("THROTTLE-06")
def test_draining_empties_and_never_goes_back_in_time() -> None:
    bucket = full(5, 1, NOW)
    assert drained(bucket, NOW + SECOND) == Bucket(5, 1, 0.0, NOW + SECOND)
    assert drained(bucket, NOW - DAY).refilled_at == NOW


@pytest.mark.spec("THROTTLE-06")
@given(NUMBERS, NUMBERS, RATES)
def test_retuning_keeps_what_fits(before: float, after: float, rate: float) -> None:
    bucket = retuned(full(before, 1, NOW), after, rate)
    assert (bucket.capacity, bucket.rate, bucket.tokens) == (after, rate, min(before, after))


@pytest.mark.spec("THROTTLE-07")
@pytest.mark.parametrize(
    ("rate", "wait"),
    [
        (None, MINUTE),
        (0, MINUTE),
        (-1, MINUTE),
        (math.nan, MINUTE),
        (math.inf, MINUTE),
        (1, 2 * SECOND),
        (0.5, 4 * SECOND),
        (100, SECOND),
        (0.001, MINUTE),
    ],
)
def test_a_refusal_says_how_long_to_wait(rate: float | None, wait: int) -> None:
    assert wait_hint(rate) == wait


@pytest.mark.spec("THROTTLE-08", "INPUT-05")
@pytest.mark.parametrize(
    ("capacity", "rate", "field"),
    [
        (0, 1, "budget capacity"),
        (0.5, 1, "budget capacity"),
        (math.nan, 1, "budget capacity"),
        (math.inf, 1, "budget capacity"),
        (1, -1, "budget rate"),
        (1, math.nan, "budget rate"),
        (1, math.inf, "budget rate"),
    ],
)
def test_an_impossible_budget_is_refused_by_name(capacity: float, rate: float, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        full(capacity, rate, NOW)
    assert refused.value.field == field
    with pytest.raises(InvalidInput):
        retuned(full(1, 1, NOW), capacity, rate)


@pytest.mark.spec("THROTTLE-08", "INPUT-05")
@pytest.mark.parametrize("n", [0, -1])
def test_nobody_takes_less_than_one_token(n: int) -> None:
    with pytest.raises(InvalidInput, match="tokens"):
        spend(full(1, 1, NOW), n, NOW)

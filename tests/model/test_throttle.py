from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.retry import OFF, Curve
from stoker.model.throttle import (
    DECAY_GRACE,
    FLAT_COOLDOWN,
    HIGHEST_RATE,
    LONGEST_SLEEP,
    MOST_EVENTS,
    OPEN,
    Bucket,
    Cool,
    Cooldown,
    Rate,
    cooldown_delay,
    cooled,
    drained,
    full,
    level,
    retuned,
    spend,
    take,
    until_token,
    until_tokens,
    wait_hint,
)
from stoker.model.time import DAY, HOUR, MINUTE, SECOND

NOW = 1_800_000_000_000_000
CURVE = Curve(on=True, base=MINUTE, max=30 * MINUTE)
RATES = st.builds(Rate, st.floats(0.001, 1e6), st.floats(0.001, 1e6), st.floats(1, 1e6))


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


# --- rates ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("RATE-01")
def test_a_rate_holds_what_it_starts_at_once_and_in_the_long_run() -> None:
    rate = Rate(100, per=60)
    assert (rate.capacity, rate.refill) == (100, 100 / 60)
    assert rate == Rate(100, timedelta(minutes=1), 100) == Rate(*rate.numbers)
    assert (Rate(10, burst=30).capacity, Rate(10, burst=30).refill) == (30, 10)
    assert Rate(0.2, burst=1).refill == Rate(1, per=5).refill
    assert msgspec.json.decode(msgspec.json.encode(rate), type=Rate) == rate


@pytest.mark.spec("RATE-08", "INPUT-05")
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"n": 0}, "Rate.n"),
        ({"n": -1}, "Rate.n"),
        ({"n": math.nan}, "Rate.n"),
        ({"n": math.inf}, "Rate.n"),
        ({"n": HIGHEST_RATE + 1}, "Rate.n"),
        ({"n": True}, "Rate.n"),
        ({"n": "5"}, "Rate.n"),
        ({"n": 0.5}, "Rate.n"),
        ({"n": 1, "per": 0}, "Rate.per"),
        ({"n": 1, "per": -1}, "Rate.per"),
        ({"n": 1, "per": math.nan}, "Rate.per"),
        ({"n": 1, "per": math.inf}, "Rate.per"),
        ({"n": 1, "burst": 0}, "Rate.burst"),
        ({"n": 1, "burst": 0.9}, "Rate.burst"),
        ({"n": 1, "burst": math.nan}, "Rate.burst"),
    ],
)
def test_an_impossible_rate_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Rate(**given)
    assert refused.value.field == field


@pytest.mark.spec("THROTTLE-05")
def test_a_budget_grants_what_it_has_and_no_more() -> None:
    bucket = full(Rate(3, per=timedelta(days=100)), NOW)
    for left in (2, 1, 0):
        bucket, grant = spend(bucket, 1, NOW)
        assert (grant.granted, grant.wait, bucket.tokens) == (True, 0, left)
    after, grant = spend(bucket, 1, NOW + DAY)
    assert after is bucket
    assert (grant.granted, grant.wait) == (False, MINUTE)


@pytest.mark.spec("THROTTLE-05")
def test_a_budget_refills_with_time_up_to_its_capacity() -> None:
    empty = drained(full(Rate(2, burst=10), NOW), NOW)
    assert not spend(empty, 1, NOW + SECOND // 2 - 1)[1].granted
    assert spend(empty, 1, NOW + SECOND // 2)[1].granted
    bucket, grant = spend(empty, 10, NOW + DAY)
    assert grant.granted
    assert bucket.tokens == 0


@pytest.mark.spec("THROTTLE-05")
def test_a_bucket_refills_evenly_and_counts_no_time_twice() -> None:
    bucket = take(full(Rate(2, burst=10), NOW), 10, NOW)
    assert [level(bucket, NOW + n * SECOND // 2) for n in range(4)] == [0, 1, 2, 3]
    bucket = take(bucket, 2, NOW + SECOND)
    assert level(bucket, NOW + SECOND) == 0
    assert level(bucket, NOW + 3 * SECOND // 2) == 1, "the second before has been spent"
    assert (level(bucket, NOW + 6 * SECOND), level(bucket, NOW + HOUR)) == (10, 10)
    half = take(bucket, 3, NOW + 3 * SECOND)
    assert (half.tokens, level(half, NOW)) == (1, 1), "a clock that steps back takes none away"
    assert level(half, NOW + 3 * SECOND + SECOND // 4) == 1.5


@pytest.mark.spec("THROTTLE-05")
def test_several_tokens_or_none() -> None:
    bucket = full(Rate(5), NOW)
    assert spend(bucket, 6, NOW)[0] is bucket
    assert spend(bucket, 5, NOW)[0].tokens == 0


@pytest.mark.spec("BUDGET-02")
@pytest.mark.parametrize("n", [0, -1, 0.5, math.nan, -math.inf, "5", None])
def test_what_is_no_number_of_tokens_is_refused(n: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a number, at least 1"):
        spend(Bucket(Rate(5), 5.0, NOW), n, NOW)


@pytest.mark.spec("THROTTLE-06")
@given(RATES, st.floats(0, 1), st.integers(-DAY, DAY), st.integers(1, 100))
def test_tokens_stay_within_bounds_and_time_never_goes_back(rate: Rate, share: float, offset: int, n: int) -> None:
    before = Bucket(rate, rate.capacity * share, NOW)
    after, grant = spend(before, n, NOW + offset)
    assert 0 <= after.tokens <= rate.capacity
    assert after.refilled_at >= before.refilled_at
    assert grant.granted == (after is not before)
    if offset <= 0 and grant.granted:
        assert after.tokens == pytest.approx(before.tokens - n)


@pytest.mark.spec("THROTTLE-06")
def test_draining_empties_and_never_goes_back_in_time() -> None:
    bucket = full(Rate(1, burst=5), NOW)
    assert drained(bucket, NOW + SECOND) == Bucket(Rate(1, burst=5), 0.0, NOW + SECOND)
    assert drained(bucket, NOW - DAY).refilled_at == NOW


@pytest.mark.spec("THROTTLE-06")
@given(RATES, RATES)
def test_another_rate_keeps_what_fits(before: Rate, after: Rate) -> None:
    bucket = retuned(full(before, NOW), after, NOW + DAY)
    assert (bucket.rate, bucket.tokens) == (after, min(before.capacity, after.capacity))
    assert retuned(bucket, after, NOW + 2 * DAY) is bucket


@pytest.mark.spec("THROTTLE-06")
def test_time_before_another_rate_counts_at_the_old_one() -> None:
    empty = drained(full(Rate(1, per=60), NOW), NOW)
    assert retuned(empty, Rate(100), NOW + 30 * SECOND) == Bucket(Rate(100), 0.5, NOW + 30 * SECOND)


@pytest.mark.spec("THROTTLE-07")
@pytest.mark.parametrize(
    ("rate", "wait"),
    [
        (None, MINUTE),
        (Rate(1), 2 * SECOND),
        (Rate(1, per=2), 4 * SECOND),
        (Rate(100), SECOND),
        (Rate(1, per=1000), MINUTE),
    ],
)
def test_a_refusal_says_how_long_to_wait(rate: Rate | None, wait: int) -> None:
    assert wait_hint(rate) == wait


@pytest.mark.spec("RATE-05")
def test_the_next_token_is_at_most_a_minute_away() -> None:
    empty = drained(full(Rate(2), NOW), NOW)
    assert until_token(full(Rate(2), NOW), NOW) == 0
    assert until_token(empty, NOW) == SECOND // 2
    assert until_token(empty, NOW + SECOND // 2 - 1) == 1
    assert until_token(empty, NOW - SECOND) == SECOND + SECOND // 2
    assert until_token(drained(full(Rate(1, per=timedelta(days=1)), NOW), NOW), NOW) == LONGEST_SLEEP
    assert until_token(empty, NOW - DAY) == LONGEST_SLEEP
    assert [until_tokens(empty, 2, NOW + at) for at in (0, -SECOND)] == [SECOND, 2 * SECOND], (
        "the clock catches up first"
    )
    assert until_tokens(full(Rate(2), NOW), 2, NOW) == 0
    one = full(Rate(1), NOW)
    assert until_token(one, NOW - HOUR) == until_tokens(one, 1, NOW - HOUR) == 0, "it is there, whatever the clock says"


@pytest.mark.spec("RATE-05")
@given(RATES, st.floats(0, 0.99))
def test_after_the_sleep_there_is_a_token_or_almost(rate: Rate, tokens: float) -> None:
    bucket = Bucket(rate, tokens, NOW)
    wait = until_token(bucket, NOW)
    assert 0 < wait <= LONGEST_SLEEP
    if wait < LONGEST_SLEEP:
        assert level(bucket, NOW + wait) >= 1 - 1e-9


@pytest.mark.spec("THROTTLE-08", "INPUT-05")
@pytest.mark.parametrize("n", [0, -1])
def test_less_than_one_token_is_refused(n: int) -> None:
    with pytest.raises(InvalidInput, match=r"spend\(n\): must be a number, at least 1"):
        spend(full(Rate(1), NOW), n, NOW)


@pytest.mark.spec("AUDIT-10")
def test_a_rate_is_said_in_words() -> None:
    said = [rate.in_words for rate in (Rate(5), Rate(100, per=60), Rate(2.5, per=3_600), Rate(1, per=10))]
    assert said == ["5 per second", "100 per minute", "2.5 per hour", "1 per 10 s"]
    assert Rate(1_000_000, per=60).in_words == "1,000,000 per minute"

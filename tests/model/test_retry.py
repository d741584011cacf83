from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.retry import (
    DEEPEST_EXPONENT,
    DEFAULT_BACKOFF,
    FALLBACK_DELAY,
    OFF,
    Backoff,
    Curve,
    DelayList,
    Delays,
    Exponential,
    Fixed,
    Linear,
    Never,
    Policy,
    backoff_delay,
    clamped_curve,
    given_curve,
    next_delay,
    worth_retrying,
)
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND, span

ROLLS = st.floats(0, 1, exclude_max=True)
DURATIONS = st.floats(0, 1e6)
LIMITS = st.none() | st.integers(0, 50)
STRATEGIES: st.SearchStrategy[Backoff] = st.one_of(
    st.just(Never()),
    st.builds(Fixed, DURATIONS, LIMITS),
    st.builds(Linear, DURATIONS, DURATIONS, DURATIONS, LIMITS),
    st.builds(Exponential, DURATIONS, st.floats(1, 1000), DURATIONS, LIMITS, st.sampled_from(["none", "some", "full"])),
    st.builds(DelayList, st.lists(DURATIONS, min_size=1, max_size=5).map(sorted).map(tuple), LIMITS),
)


def delays(strategy: Backoff, n: int, roll: float = 0.5) -> list[float | None]:
    found = [backoff_delay(strategy, each, roll) for each in range(1, n + 1)]
    return [None if each is None else each / SECOND for each in found]


# --- strategies -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("RETRY-01")
def test_never_means_never() -> None:
    assert delays(Never(), 3) == [None, None, None]


@pytest.mark.spec("RETRY-01")
def test_fixed_waits_the_same_every_time() -> None:
    assert delays(Fixed(2.5, limit=3), 4) == [2.5, 2.5, 2.5, None]
    assert delays(Fixed(timedelta(minutes=1)), 2) == [60, 60]


@pytest.mark.spec("RETRY-01")
def test_linear_grows_by_its_increment_up_to_its_maximum() -> None:
    assert delays(Linear(1, 2, 60, limit=3), 4) == [1, 3, 5, None]
    assert delays(Linear(1, 2, max=4), 4) == [1, 3, 4, 4]


@pytest.mark.spec("RETRY-01")
def test_exponential_multiplies_up_to_its_maximum() -> None:
    assert delays(Exponential(1, 3, 20, limit=4, jitter="none"), 5) == [1, 3, 9, 20, None]
    assert delays(Exponential(2, 1, jitter="none"), 3) == [2, 2, 2]


@pytest.mark.spec("RETRY-10")
def test_a_list_of_delays_is_waited_in_turn_and_its_last_repeats() -> None:
    assert delays(Delays(10, 30, 60), 5) == [10, 30, 60, 60, 60]
    assert delays(Delays(timedelta(minutes=1), 0, limit=2), 3) == [60, 0, None]
    assert Delays(60) == Delays(timedelta(minutes=1)) != Delays(60, limit=1)
    assert [repr(Delays(10, 0.5)), repr(Delays(10, limit=3))] == ["Delays(10.0, 0.5)", "Delays(10.0, limit=3)"]


@pytest.mark.spec("RETRY-01")
def test_the_default_doubles_from_a_second_to_a_quarter_of_an_hour() -> None:
    assert delays(DEFAULT_BACKOFF, 5) == [1, 2, 4, 8, 16]
    assert delays(DEFAULT_BACKOFF, 12)[-1] == 900


@pytest.mark.spec("RETRY-02")
@given(STRATEGIES, st.integers(-5, 1_000_000), ROLLS)
def test_every_delay_is_bounded_for_every_number(strategy: Backoff, n: int, roll: float) -> None:
    delay = backoff_delay(strategy, n, roll)
    if isinstance(strategy, Never) or (strategy.limit is not None and n > strategy.limit):
        assert delay is None
        return
    assert delay is not None
    if isinstance(strategy, DelayList):
        longest = span(strategy.delays[-1])
    else:
        longest = span(strategy.interval if isinstance(strategy, Fixed) else strategy.max)
    assert 0 <= delay <= min(longest * 5 // 4 + 1, LONGEST)


@pytest.mark.spec("RETRY-02")
@given(STRATEGIES, st.integers(1, 2_000))
def test_delays_never_shrink(strategy: Backoff, n: int) -> None:
    one, two = backoff_delay(strategy, n, 0.5), backoff_delay(strategy, n + 1, 0.5)
    assert one is None or two is None or one <= two


@pytest.mark.spec("RETRY-02")
def test_numbers_that_overflow_are_survived_quickly() -> None:
    assert backoff_delay(Exponential(1, 1000, jitter="none"), 1_000_000, 0.5) == 900 * SECOND
    assert backoff_delay(Exponential(0, 1000, jitter="none"), 1_000_000, 0.5) == 0
    assert backoff_delay(Exponential(max=timedelta(days=3660)), 1_000_000, 0.999999) == LONGEST


@pytest.mark.spec("RETRY-03")
@given(ROLLS, st.integers(1, 40))
def test_jitter_keeps_its_promise(roll: float, n: int) -> None:
    exact = backoff_delay(Exponential(jitter="none"), n, roll)
    some = backoff_delay(Exponential(jitter="some"), n, roll)
    full = backoff_delay(Exponential(jitter="full"), n, roll)
    assert exact is not None
    assert some is not None
    assert full is not None
    assert 0.75 * exact - 1 <= some <= 1.25 * exact + 1
    assert 0 <= full <= exact


@pytest.mark.spec("RETRY-03")
def test_the_middle_of_the_dice_is_the_plain_delay() -> None:
    assert backoff_delay(Exponential(jitter="some"), 3, 0.5) == 4 * SECOND
    assert backoff_delay(Exponential(jitter="full"), 3, 0.5) == 2 * SECOND
    assert backoff_delay(Exponential(jitter="full"), 3, 0.0) == 0


@pytest.mark.spec("RETRY-01")
def test_the_same_wait_in_other_words_is_the_same_strategy() -> None:
    assert Fixed(60) == Fixed(60.0) == Fixed(timedelta(minutes=1))
    assert Exponential(base=timedelta(seconds=1)) == Exponential()


@pytest.mark.spec("RETRY-04", "INPUT-04")
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Fixed(-1), "Fixed.interval"),
        (lambda: Fixed(math.nan), "Fixed.interval"),
        (lambda: Fixed("1"), "Fixed.interval"),  # type: ignore[arg-type]
        (lambda: Fixed(1, -1), "Fixed.limit"),
        (lambda: Fixed(1, "3"), "Fixed.limit"),  # type: ignore[arg-type]
        (lambda: Fixed(1, 1.5), "Fixed.limit"),  # type: ignore[arg-type]
        (lambda: Linear(math.inf, 1), "Linear.initial"),
        (lambda: Linear(1, -1), "Linear.increment"),
        (lambda: Linear(1, 1, 1e12), "Linear.max"),
        (lambda: Delays(), "Delays"),
        (lambda: Delays(*range(101)), "Delays"),
        (lambda: Delays(10, -1), "Delays"),
        (lambda: Delays("10"), "Delays"),  # type: ignore[arg-type]
        (lambda: Delays(10, limit=-1), "Delays.limit"),
        (lambda: Exponential(base=-1), "Exponential.base"),
        (lambda: Exponential(max=-1), "Exponential.max"),
        (lambda: Exponential(factor=0.5), "Exponential.factor"),
        (lambda: Exponential(factor=math.nan), "Exponential.factor"),
        (lambda: Exponential(factor=math.inf), "Exponential.factor"),
        (lambda: Exponential(factor=1001), "Exponential.factor"),
        (lambda: Exponential(factor="2"), "Exponential.factor"),  # type: ignore[arg-type]
        (lambda: Exponential(limit=-1), "Exponential.limit"),
        (lambda: Exponential(jitter="lots"), "Exponential.jitter"),  # type: ignore[arg-type]
    ],
)
def test_an_impossible_strategy_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.field == field


# --- the queue's curve ----------------------------------------------------------------------------------------------


@pytest.mark.spec("RETRY-06")
def test_a_curve_doubles_from_its_base() -> None:
    curve = Curve(on=True, base=10 * SECOND, max=300 * SECOND)
    assert [curve.delay(n) // SECOND for n in (0, 1, 2, 3, 4, 5)] == [10, 20, 40, 80, 160, 300]


@pytest.mark.spec("RETRY-06")
@given(st.integers(-(2**70), 2**70), st.integers(SECOND, DAY), st.integers(SECOND, DAY))
def test_a_curve_survives_every_stored_exponent(exponent: int, base: int, most: int) -> None:
    curve = Curve(on=True, base=base, max=most)
    assert 0 < curve.delay(exponent) <= most
    assert curve.delay(exponent) <= curve.delay(exponent + 1)
    assert curve.delay(DEEPEST_EXPONENT) == curve.delay(DEEPEST_EXPONENT + 1)


@pytest.mark.spec("RETRY-06")
@given(st.booleans(), st.integers(-LONGEST, LONGEST), st.integers(-LONGEST, LONGEST))
def test_a_stored_curve_stays_between_a_second_and_a_day(on: bool, base: int, most: int) -> None:
    curve = clamped_curve(Curve(on, base, most))
    assert curve.on is on
    assert SECOND <= curve.base <= DAY
    assert SECOND <= curve.max <= DAY
    assert clamped_curve(curve) == curve


@pytest.mark.spec("RETRY-06")
def test_curves_are_off_by_default() -> None:
    assert (OFF.on, OFF.base, OFF.max) == (False, MINUTE, 30 * MINUTE)


# --- who decides ----------------------------------------------------------------------------------------------------

ON = Curve(on=True, base=HOUR, max=DAY)


@pytest.mark.spec("RETRY-05", "RETRY-08")
@pytest.mark.parametrize(
    ("own", "backoff", "curve", "default", "expected"),
    [
        (0, Fixed(1), ON, Fixed(2), 0),
        (7, Never(), ON, Fixed(2), None),
        (7, Fixed(1, limit=0), ON, Fixed(2), None),
        (7, None, ON, Never(), 7),
        (7, None, OFF, Never(), None),
        (7, None, OFF, None, 7),
        (None, Fixed(1), ON, Fixed(2), SECOND),
        (None, Never(), ON, Fixed(2), None),
        (None, Fixed(1, limit=0), ON, Fixed(2), None),
        (None, None, ON, Fixed(2), 2 * HOUR),
        (None, None, OFF, Fixed(2), 2 * SECOND),
        (None, None, OFF, Never(), None),
        (None, None, OFF, None, FALLBACK_DELAY),
    ],
    ids=[
        "own word",
        "never over own word",
        "a spent limit over own word",
        "own word over the queue",
        "the app's never over own word",
        "own word alone",
        "job over queue",
        "job says no",
        "job's limit is spent",
        "queue over default",
        "a curve that is off is silent",
        "default says no",
        "nobody speaks",
    ],
)
def test_the_first_voice_with_an_opinion_decides(
    own: int | None, backoff: Backoff | None, curve: Curve, default: Backoff | None, expected: int | None
) -> None:
    found = next_delay(1, own=own, backoff=backoff, curve=curve, attempt=1, default=default, roll=0.5)
    assert found == expected


@pytest.mark.spec("RETRY-07")
def test_which_errors_are_worth_a_retry() -> None:
    error = ConnectionResetError("gone")

    def worth(retry_on: Any = None, give_up_on: Any = None, retry_if: Any = None) -> bool:
        return worth_retrying(error, Policy(retry_on, give_up_on, retry_if))

    assert worth()
    assert worth(retry_on=OSError)
    assert not worth(retry_on=(KeyError, ValueError))
    assert not worth(retry_on=OSError, give_up_on=ConnectionError)
    assert not worth(give_up_on=(OSError,), retry_if=lambda _: True)
    assert worth(retry_on=KeyError, retry_if=lambda _: True)
    assert not worth(retry_on=OSError, retry_if=lambda _: False)
    assert worth(give_up_on=KeyError)


@pytest.mark.spec("RETRY-09")
def test_a_task_decides_before_its_app() -> None:
    error = ConnectionResetError("gone")
    app = Policy(give_up_on=OSError)
    assert not worth_retrying(error, Policy(), app)
    assert not worth_retrying(error, Policy(give_up_on=KeyError), app), "the task says nothing about this error"
    assert worth_retrying(error, Policy(retry_on=OSError), app)
    assert worth_retrying(error, Policy(retry_if=lambda _: True), app)
    assert not worth_retrying(error, Policy(retry_on=KeyError), Policy(retry_if=lambda _: True))
    assert worth_retrying(KeyError(), Policy(), app), "neither says anything about it"


@pytest.mark.spec("RETRY-09", "INPUT-10")
@pytest.mark.parametrize(
    "wrong",
    [{"retry_on": "KeyError"}, {"retry_on": [KeyError]}, {"give_up_on": (KeyError, int)}, {"retry_if": KeyError()}],
)
def test_a_policy_names_classes_and_a_function(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Policy(**wrong)


@pytest.mark.spec("QUEUE-04")
def test_a_curve_does_not_fall() -> None:
    assert given_curve(SECOND, SECOND) == Curve(on=True, base=SECOND, max=SECOND)
    with pytest.raises(InvalidInput, match=r"must not begin with a longer wait than it ends with; got '5 s to 1 s'"):
        given_curve(5 * SECOND, SECOND)

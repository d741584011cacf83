from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.outcome import Reject, Retry, Signal, Snooze, Throttle, loudest
from stoker.model.time import MINUTE, SECOND


class Custom(Signal):
    """A signal of a later version."""


LEAVES = st.sampled_from([Snooze(1), Throttle(), Retry(), Reject("no"), Custom(), ValueError("x"), KeyboardInterrupt()])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, min_size=1, max_size=4).map(lambda errors: BaseExceptionGroup("group", errors)),
    max_leaves=12,
)


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


@pytest.mark.spec("SETTLE-17")
def test_signals_are_not_caught_by_accident() -> None:
    for signal in (Snooze, Throttle, Retry, Reject):
        assert issubclass(signal, Signal)
        assert not issubclass(signal, Exception)


@pytest.mark.spec("SETTLE-17")
def test_signals_read_durations_and_moments() -> None:
    assert Snooze(1.5).after == 1_500_000
    assert str(Snooze(timedelta(minutes=1))) == "snoozed for 60 s"
    assert (Throttle().retry_after, Throttle().queue) == (None, True)
    assert (Throttle(60, queue=False).retry_after, Throttle(60, queue=False).queue) == (MINUTE, False)
    assert (Retry().why, Retry().after, Retry().at) == ("asked for a retry", None, None)
    assert Retry("not yet", delay=5).after == 5 * SECOND
    assert Retry(at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).at == SECOND
    assert (Reject("bad").why, str(Reject("bad"))) == ("bad", "bad")


@pytest.mark.spec("SETTLE-17", "INPUT-10")
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Snooze(-1), "Snooze"),
        (lambda: Snooze(math.nan), "Snooze"),
        (lambda: Snooze(1e18), "Snooze"),
        (lambda: Snooze(None), "Snooze"),  # type: ignore[arg-type]
        (lambda: Throttle(-1), "Throttle"),
        (lambda: Throttle(math.inf), "Throttle"),
        (lambda: Retry(delay=-1), "Retry"),
        (lambda: Retry(at=datetime(2030, 1, 1)), "Retry"),
        (lambda: Retry(at=5), "Retry"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_signal_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.field == field


@pytest.mark.spec("SETTLE-18")
def test_a_plain_error_means_itself() -> None:
    error = ValueError("x")
    assert loudest(error) is error
    snooze = Snooze(1)
    assert loudest(snooze) is snooze


@pytest.mark.spec("SETTLE-18")
def test_of_several_signals_the_gravest_speaks() -> None:
    ranked: list[BaseException] = [Reject("no"), Retry(), Throttle(), Snooze(1)]
    for place in range(4):
        group = BaseExceptionGroup("group", [*reversed(ranked[place:])])
        assert loudest(group) is ranked[place]
    first, second = Retry("one"), Retry("two")
    assert loudest(BaseExceptionGroup("group", [Snooze(1), BaseExceptionGroup("in", [first]), second])) is first


@pytest.mark.spec("SETTLE-18")
def test_ordinary_errors_win_over_signals() -> None:
    group = BaseExceptionGroup("group", [Reject("no"), BaseExceptionGroup("in", [Snooze(1), ValueError("x")])])
    assert loudest(group) is group


@pytest.mark.spec("SETTLE-18")
@given(TREES)
def test_the_loudest_is_one_of_those_who_spoke(error: BaseException) -> None:
    found = loudest(error)
    if all(isinstance(leaf, Signal) for leaf in leaves(error)):
        assert found in leaves(error)
        if any(isinstance(leaf, Reject) for leaf in leaves(error)):
            assert isinstance(found, Reject)
    else:
        assert found is error


@pytest.mark.spec("SETTLE-18")
def test_a_signal_nobody_knows_speaks_last() -> None:
    throttle = Throttle()
    assert loudest(BaseExceptionGroup("group", [Custom(), throttle])) is throttle

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.outcome import (
    Exit,
    Failed,
    Held,
    Outcome,
    OutOfTokens,
    Panicked,
    Reject,
    Rejected,
    Retry,
    Snooze,
    Snoozed,
    Throttle,
    Throttled,
    gravest,
)
from stoker.model.time import MINUTE, SECOND, Span


class Custom(Exit):
    """An exit of unknown meaning."""

    def outcome(self, ran: Span, text: Callable[[object], str]) -> Outcome:
        return super().outcome(ran, text)


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
    for kind in (Snooze, Throttle, Retry, Reject):
        assert issubclass(kind, Exit)
        assert not issubclass(kind, Exception)


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


@pytest.mark.spec("SIGNAL-06", "INPUT-10")
@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, 1e18, "soon", b"60", True, timedelta(days=-1), [60]])
def test_an_impossible_delay_is_a_minute_with_a_warning(wrong: Any) -> None:
    snooze, throttle = Snooze(wrong), Throttle(wrong)
    assert (snooze.after, throttle.retry_after, throttle.queue) == (MINUTE, MINUTE, True)
    for raised in (snooze, throttle):
        assert raised.warning is not None
        assert raised.warning.startswith(f"{type(raised).__name__}: must ")
        assert raised.warning.endswith(". Stoker waits 60 s instead.")
    assert snooze.outcome(0, str) == Snoozed(MINUTE, warning=snooze.warning)
    assert throttle.outcome(0, str) == Throttled(MINUTE, True, throttle.warning)
    assert Snooze(None).after == MINUTE  # type: ignore[arg-type]
    assert (Snooze(1).warning, Throttle().warning, Throttle(1).warning, Retry(delay=1).warning) == (None,) * 4


@pytest.mark.spec("SIGNAL-06", "INPUT-10")
@pytest.mark.parametrize("wrong", [{"delay": -1}, {"at": datetime(2030, 1, 1)}, {"at": 5}, {"delay": "soon"}])
def test_a_retry_with_an_impossible_time_waits_as_its_backoff_says(wrong: Any) -> None:
    retry = Retry("not yet", **wrong)
    assert (retry.why, retry.after, retry.at) == ("not yet", None, None)
    assert retry.warning is not None
    assert retry.warning.startswith("Retry: must ") and retry.warning.endswith("as long as the backoff says.")
    assert retry.outcome(7, str) == Failed("not yet", ran=7, warning=retry.warning)


@pytest.mark.spec("BUDGET-12")
def test_a_refused_spend_carries_its_budget() -> None:
    held = Held("llm", 50)
    raised = OutOfTokens(3, held)
    assert isinstance(raised, Snooze)
    assert raised.outcome(0, str) == Snoozed(3 * SECOND, held)


@pytest.mark.spec("SETTLE-18")
def test_a_plain_error_means_itself() -> None:
    error = ValueError("x")
    assert gravest(error) is error
    snooze = Snooze(1)
    assert gravest(snooze) is snooze


@pytest.mark.spec("SETTLE-18")
def test_of_several_signals_the_gravest_decides() -> None:
    ranked: list[BaseException] = [Reject("no"), Retry(), Throttle(), Snooze(1)]
    for place in range(4):
        group = BaseExceptionGroup("group", [*reversed(ranked[place:])])
        assert gravest(group) is ranked[place]
    first, second = Retry("one"), Retry("two")
    assert gravest(BaseExceptionGroup("group", [Snooze(1), BaseExceptionGroup("in", [first]), second])) is first


@pytest.mark.spec("SETTLE-18")
def test_ordinary_errors_win_over_signals() -> None:
    group = BaseExceptionGroup("group", [Reject("no"), BaseExceptionGroup("in", [Snooze(1), ValueError("x")])])
    assert gravest(group) is group


@pytest.mark.spec("SETTLE-18")
@given(TREES)
def test_the_gravest_is_one_of_those_raised(error: BaseException) -> None:
    found = gravest(error)
    if all(isinstance(leaf, Exit) for leaf in leaves(error)):
        assert found in leaves(error)
        if any(isinstance(leaf, Reject) for leaf in leaves(error)):
            assert isinstance(found, Reject)
    else:
        assert found is error


@pytest.mark.spec("SETTLE-18")
def test_a_signal_of_unknown_meaning_decides_last() -> None:
    throttle = Throttle()
    assert gravest(BaseExceptionGroup("group", [Custom(), throttle])) is throttle


@pytest.mark.spec("SETTLE-17")
def test_each_signal_knows_its_outcome() -> None:
    def text(value: object) -> str:
        return f"<{value}>"

    assert Snooze(1).outcome(9, text) == Snoozed(SECOND)
    assert Throttle(60, queue=False).outcome(9, text) == Throttled(MINUTE, queue=False)
    assert Retry("later", delay=1).outcome(9, text) == Failed("<later>", retry=True, after=SECOND, ran=9)
    assert Reject("no").outcome(9, text) == Rejected("<no>")
    assert Custom("odd").outcome(9, text) == Panicked("<odd>")

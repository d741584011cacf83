from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.time import LONGEST, SECOND, instant, moment
from stoker.testing.clock import START, VirtualClock


@pytest.mark.spec("CLOCK-01")
def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock()
    assert clock.now() == clock() == instant(START)
    assert clock.advance(1.5) == clock() == instant(START) + 1_500_000
    assert clock.advance(timedelta(days=30)) == clock.now() == instant(START) + 1_500_000 + 30 * 86_400 * SECOND
    assert repr(clock) == "<VirtualClock 2030-01-31T00:00:01Z>"


@pytest.mark.spec("CLOCK-01")
def test_it_starts_where_it_is_told() -> None:
    noon = datetime(2031, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert moment(VirtualClock(noon)()) == noon
    assert VirtualClock(7)() == 7
    assert VirtualClock(0).set(noon) == instant(noon)


@pytest.mark.spec("CLOCK-02")
def test_it_goes_backwards_only_on_purpose() -> None:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    before = clock.now()
    assert clock.rewind(60) == before - 60 * SECOND
    assert clock.set(5) == clock() == 5
    for wrong in (-1, timedelta(seconds=-1), float("nan"), "1", True, LONGEST):
        with pytest.raises(InvalidInput):
            clock.advance(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            clock.rewind(wrong)  # type: ignore[arg-type]
    assert clock() == 5


@pytest.mark.spec("CLOCK-02")
@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), -1, 1.5, True, None, "now"])
def test_an_instant_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="clock"):
        VirtualClock(wrong)
    clock = VirtualClock(9)
    with pytest.raises(InvalidInput, match="clock"):
        clock.set(wrong)
    with pytest.raises(InvalidInput, match="before 1970"):
        clock.rewind(1)
    assert clock() == 9


@pytest.mark.spec("CLOCK-01", "CLOCK-02")
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 10**6))))
def test_steps_add_up(steps: list[tuple[bool, int]]) -> None:
    clock = VirtualClock()
    expected = clock()
    for forwards, seconds in steps:
        expected += seconds * SECOND * (1 if forwards else -1)
        assert (clock.advance if forwards else clock.rewind)(seconds) == expected
    assert clock() == expected


@pytest.mark.spec("CLOCK-03")
def test_threads_may_move_it_at_once() -> None:
    clock = VirtualClock(0)

    def push() -> None:
        for _ in range(2_000):
            clock.advance(1)

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock() == 8_000 * SECOND

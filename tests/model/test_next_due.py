from __future__ import annotations

import pytest

from stoker.model.control import Pause
from stoker.model.next_due import SOON, Gate, NextDue, next_due_of, together, wakes
from stoker.model.steps import NEVER
from stoker.model.throttle import Rate, drained, full
from stoker.model.time import HOUR, MINUTE, SECOND

NOW = 1_800_000_000_000_000
DRY = drained(full(Rate(1), NOW), NOW)


@pytest.mark.spec("WAKE-10")
@pytest.mark.parametrize(("wait", "woken"), [(-HOUR, True), (0, True), (SOON, True), (SOON + 1, False)])
def test_a_job_that_is_due_soon_wakes(wait: int, woken: bool) -> None:
    assert wakes(NOW + wait, NOW) is woken


@pytest.mark.spec("WAKE-08", "RATE-05")
@pytest.mark.parametrize(
    ("gate", "is_open", "wait"),
    [
        (Gate("q"), True, None),
        (Gate("q", due=NOW + HOUR), True, HOUR),
        (Gate("q", due=NOW - HOUR), True, 0),
        (Gate("q", until=NOW, due=NOW), True, 0),
        (Gate("q", until=NOW + 1, due=NOW), False, 1),
        (Gate("q", until=NOW + MINUTE, due=NOW + HOUR), False, MINUTE),
        (Gate("q", Pause(), until=NOW + MINUTE, due=NOW), False, None),
        (Gate("q", Pause(), due=NOW), False, None),
        (Gate("q", Pause(NOW + HOUR), until=NOW + MINUTE, due=NOW), False, HOUR),
        (Gate("q", Pause(NOW), due=NOW), True, 0),
        (Gate("q", due=NOW, bucket=full(Rate(1), NOW)), True, 0),
        (Gate("q", due=NOW, bucket=DRY), False, SECOND),
        (Gate("q", due=NOW + MINUTE, bucket=DRY), False, MINUTE),
        (Gate("q", bucket=DRY), False, None),
        (Gate("q", due=NEVER), True, None),
    ],
)
def test_what_one_queue_waits_for(gate: Gate, is_open: bool, wait: int | None) -> None:
    assert next_due_of([gate], NOW) == NextDue(frozenset({"q"} if is_open else ()), wait)


@pytest.mark.spec("WAKE-08")
def test_the_nearest_of_several_queues_counts() -> None:
    gates = [
        Gate("a", due=NOW + HOUR),
        Gate("b", until=NOW + MINUTE, due=NOW),
        Gate("c", Pause(), due=NOW),
    ]
    assert next_due_of(gates, NOW) == NextDue(frozenset({"a"}), MINUTE)
    assert next_due_of(gates[::-1], NOW) == NextDue(frozenset({"a"}), MINUTE), "whichever is asked first"
    assert next_due_of([], NOW) == NextDue(frozenset(), None)


@pytest.mark.spec("WAKE-11")
def test_a_queue_with_due_jobs_hides_no_later_one() -> None:
    """Also when several servers were asked; without due jobs there is nothing to hide."""
    due, soon, late = Gate("a", due=NOW), Gate("b", due=NOW + MINUTE), Gate("c", due=NOW + HOUR)
    everything = NextDue(frozenset("abc"), 0, MINUTE)
    assert next_due_of([late, due, soon], NOW) == everything
    assert together([next_due_of([one], NOW) for one in (due, soon, late)]) == everything
    assert together([next_due_of([due, late], NOW), next_due_of([soon], NOW)]) == everything
    assert together([next_due_of([soon], NOW), next_due_of([late], NOW)]) == NextDue(frozenset("bc"), MINUTE)
    assert together([]) == NextDue(frozenset(), None)

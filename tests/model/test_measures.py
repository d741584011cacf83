from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.job import Claim, Status
from stoker.model.measures import BOUNDS, MANY, Histogram, Measures, Recorder, added, histogram_of
from stoker.model.steps import StepState
from stoker.model.time import SECOND

NOW = 5_000_000


def claim(waited: int) -> Claim:
    """A claim of a job that was due so many seconds before."""
    return Claim(b"j" * 16, "send", "mail", b"{}", 1, 0, 5, "w1", 9, NOW + waited * SECOND, NOW, NOW)


@pytest.mark.spec("METRIC-04")
def test_a_value_is_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for seconds in (-1.0, 0.001, 0.0011, 10_000.0):
        histogram.add(seconds)
    assert histogram.counts[0] == 2
    assert histogram.counts[1] == 1
    assert histogram.counts[len(BOUNDS)] == 1
    assert histogram.sum == pytest.approx(10_000.0021)


@pytest.mark.spec("METRIC-04")
@given(st.lists(st.sampled_from([-1.0, 0.0, 0.0005, 2e9, *BOUNDS, *(bound * 1.01 for bound in BOUNDS)])))
def test_many_values_are_counted_as_each_would_be(values: list[float]) -> None:
    one_by_one = Histogram()
    for value in values:
        one_by_one.add(value)
    found = histogram_of(values)
    assert found.counts == one_by_one.counts
    assert found.sum == pytest.approx(one_by_one.sum)


@pytest.mark.spec("METRIC-04")
def test_runs_are_counted_however_many_there_are() -> None:
    """Also by a reading in between, which changes nothing that was read before."""
    recorder = Recorder()
    read: list[Measures] = []
    for n in range(2 * MANY + 3):
        if n in (1, 701):
            read.append(recorder.measures({}, 0.0))
        recorder.ran(claim(n % 2), Status.DONE, 0.25)
    read.append(recorder.measures({}, 0.0))
    assert [sum(one.runs["send"]["completed"].counts) for one in read] == [1, 701, 2 * MANY + 3]
    assert [sum(one.waits["mail"].counts) for one in read] == [1, 701, 2 * MANY + 3]
    assert read[-1].runs["send"]["completed"].sum == (2 * MANY + 3) / 4
    assert read[-1].waits["mail"].sum == MANY + 1


@pytest.mark.spec("METRIC-04", "DURABLE-17")
def test_a_run_that_was_suspended_is_counted_as_waiting() -> None:
    recorder = Recorder()
    recorder.ran(claim(1), None, 0.25)
    assert list(recorder.measures({}, 0.0).runs["send"]) == ["waiting"]


@pytest.mark.spec("METRIC-10")
def test_steps_of_processes_add_up_and_stay() -> None:
    one, other = Recorder(), Recorder()
    for recorder, kind, state in (
        (one, "send", StepState.DONE),
        (one, "send", StepState.FAILED),
        (other, "send", StepState.DONE),
        (other, "post", StepState.DONE),
    ):
        recorder.stepped(kind, state)
    gone = other.measures({}, 0.0).counters()
    total = added([one.measures({}, 0.0), gone])
    assert total.steps == {"send": {"done": 2, "failed": 1}, "post": {"done": 1}}
    assert gone.steps == {"send": {"done": 1}, "post": {"done": 1}}, "adding up changes no part"


def measured(busy: dict[str, int], lag: float, runs: int, failures: int = 0) -> Measures:
    recorder = Recorder()
    for status in (*[Status.DONE] * runs, *[Status.DEAD] * failures):
        recorder.ran(claim(1), status, 0.2)
        recorder.called("settle", 0.01)
    return recorder.measures(busy, lag)


@pytest.mark.spec("METRIC-04")
def test_measures_of_processes_add_up() -> None:
    one, other = measured({"mail": 2}, 0.5, 1), measured({"mail": 1, "slow": 1}, 0.1, 2, 1)
    total = added([one, other])
    assert sum(total.runs["send"]["completed"].counts) == 3
    assert sum(total.runs["send"]["failed"].counts) == 1
    assert sum(total.waits["mail"].counts) == 4
    assert total.calls["settle"].sum == pytest.approx(0.04)
    assert (total.busy, total.renewal_lag) == ({"mail": 3, "slow": 1}, 0.5)
    assert sum(one.runs["send"]["completed"].counts) == 1, "adding up changes no part"


@pytest.mark.spec("METRIC-04")
def test_of_a_process_that_is_gone_its_counters_stay() -> None:
    gone = measured({"mail": 2}, 0.5, 1)
    left = gone.counters()
    assert (left.busy, left.renewal_lag) == ({}, 0.0)
    assert left.runs == gone.runs

from __future__ import annotations

import pytest

from stoker.model.job import Status
from stoker.model.measures import BOUNDS, Histogram, Measures, Recorder, added


@pytest.mark.spec("METRIC-04")
def test_a_value_is_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for seconds in (-1.0, 0.001, 0.0011, 10_000.0):
        histogram.add(seconds)
    assert histogram.counts[0] == 2
    assert histogram.counts[1] == 1
    assert histogram.counts[len(BOUNDS)] == 1
    assert histogram.sum == pytest.approx(10_000.0021)


def measured(busy: dict[str, int], lag: float, runs: int, failures: int = 0) -> Measures:
    recorder = Recorder()
    for status in (*[Status.DONE] * runs, *[Status.DEAD] * failures):
        recorder.ran("send", "mail", status, 0.2, 1.0)
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

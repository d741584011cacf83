from __future__ import annotations

import pytest

from stoker.model.job import Status
from stoker.model.measures import BOUNDS, Histogram, Measures, added


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
def test_measures_of_processes_add_up() -> None:
    one, other = Measures(busy={"mail": 2}, renewal_lag=0.5), Measures(busy={"mail": 1, "slow": 1}, renewal_lag=0.1)
    for measures in (one, other, other):
        measures.ran("send", "mail", Status.DONE, 0.2, 1.0)
        measures.called("settle", 0.01)
    other.ran("send", "mail", Status.DEAD, 0.2, 1.0)
    total = added([one, other])
    assert sum(total.runs["send"]["completed"].counts) == 3
    assert sum(total.runs["send"]["failed"].counts) == 1
    assert sum(total.waits["mail"].counts) == 4
    assert total.calls["settle"].sum == pytest.approx(0.03)
    assert (total.busy, total.renewal_lag) == ({"mail": 3, "slow": 1}, 0.5)
    assert sum(one.runs["send"]["completed"].counts) == 1, "adding up changes no part"


@pytest.mark.spec("METRIC-04")
def test_of_a_process_that_is_gone_its_counters_stay() -> None:
    gone = Measures(busy={"mail": 2}, renewal_lag=0.5)
    gone.ran("send", "mail", Status.DONE, 0.2, 1.0)
    left = gone.counters()
    assert (left.busy, left.renewal_lag) == ({}, 0.0)
    assert left.runs == gone.runs

"""The page about scaling says what was measured, and the simulation behind it obeys what no machine can exceed."""

from __future__ import annotations

import pytest

from benchmarks import scaling
from benchmarks.simulation import Costs, simulate


def test_page_and_chart_show_what_was_measured() -> None:
    rows = scaling.results()
    text = scaling.PAGE.read_text(encoding="utf-8")
    assert scaling.page(text, rows) == text, "run python -m benchmarks.scaling"
    assert scaling.CHART.read_text(encoding="utf-8") == scaling.chart(rows)
    for engine in scaling.ENGINES:
        for sweep in (*scaling.SWEEPS, "sleepers"):
            assert [name for name in rows if name.startswith(f"scale.{engine}.{sweep}.")], (engine, sweep)


def test_of_several_runs_the_page_says_what_each_has_measured() -> None:
    old = {"machine": "2 cores", "revision": "abc", "date": "2026-01-01"}
    rows = {"scale.redis.queues.1": old, "scale.redis.queues.10": old}
    assert scaling.source(rows) == "- 2 cores; revision abc, 2026-01-01\n"
    rows["scale.sqlite.payload.100"] = {**old, "revision": "def", "date": "2026-01-02"}
    assert scaling.source(rows) == (
        "- 2 cores; revision abc, 2026-01-01: redis.queues\n- 2 cores; revision def, 2026-01-02: sqlite.payload\n"
    )


def test_a_lone_worker_is_held_back_by_its_own_core() -> None:
    found = simulate(Costs(worker=1e-5, server=1e-6, batch=100), workers=1, cores=4)
    assert found.rate == pytest.approx(1e5, rel=0.01)
    assert found.server < 0.1


def test_many_workers_are_held_back_by_the_server() -> None:
    costs = Costs(worker=1e-5, server=1e-5, batch=100, round_trip=0.0005)
    rates = [simulate(costs, workers, cores=2).rate for workers in (1, 2, 4, 8, 16)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(2 / 1e-5, rel=0.01)


def test_one_sync_serves_all_commits_that_wait() -> None:
    """Calls wait for the disk, two batches of each worker at a time, and none waits for more than two syncs."""
    costs = Costs(worker=1e-7, server=1e-7, batch=10, sync=0.01)
    alone, many = simulate(costs, 1, 16), simulate(costs, 16, 16)
    assert alone.disk > 0.9
    assert many.rate == pytest.approx(16 * alone.rate, rel=0.1)


def test_on_shared_cores_workers_and_server_take_turns() -> None:
    costs = Costs(worker=1e-5, server=3e-5, batch=100)
    assert simulate(costs, 4, 2, shared=True).rate == pytest.approx(2 / 4e-5, rel=0.01)

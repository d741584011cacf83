from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import catalog, doors, stats, stores
from benchmarks.__main__ import main, run
from benchmarks.bare import Bare
from benchmarks.catalog import Benchmark
from benchmarks.report import Lines, cells
from benchmarks.rows import Row, absolute, as_json, at_least, at_most
from benchmarks.session import Session
from benchmarks.stats import Meter, Pair
from stoker.engines.sqlite import SqliteEngine
from stoker.registry import mint


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, quick=True)


# --- statistics -------------------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    pairs = [Pair(2.0, 1.0), Pair(40.0, 10.0), Pair(10.0, 9.0)]
    assert stats.share(pairs) == 0.5
    assert stats.times(pairs) == 2.0
    assert stats.over(pairs) == 1.0


def test_the_two_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], str]:
        def measure() -> str:
            order.append(name)
            return name

        return measure

    pairs = stats.in_turns(1, side("value"), side("limit"))
    assert pairs == [Pair("value", "limit")] * stats.FEWEST_ROUNDS
    assert order[:4] == ["value", "limit", "limit", "value"]


@pytest.mark.parametrize("percent, sample", [(50, 2.0), (99.9, 4.0), (0, 1.0), (75, 3.0)])
def test_percentiles_are_samples(percent: float, sample: float) -> None:
    assert stats.percentile([4.0, 1.0, 3.0, 2.0], percent) == sample


def test_a_meter_adds_up_only_what_it_is_entered_for() -> None:
    meter = Meter()
    with meter:
        sum(range(1000))
    first = meter.cpu, meter.wall
    sum(range(1000))
    assert (meter.cpu, meter.wall) == first
    with meter:
        pass
    assert meter.wall > first[1]


# --- rows -------------------------------------------------------------------------------------------------------


def test_bars_are_about_ratio_value_or_distance() -> None:
    assert Row("a", "µs", 10.0, 7.0, 0.7, at_least(0.7)).passed is True
    assert Row("a", "µs", 10.0, 7.0, 0.69, at_least(0.7)).passed is False
    assert Row("a", "µs", 10.0, 7.0, 1.4, at_most(2, "over"), over=3.0).passed is False
    assert Row("a", "µs", 10.0).passed is None
    assert absolute("a", "ms", 3.0, at_most(2.0)).passed is False
    assert absolute("a", "ms", 3.0, at_most(2.0)).ratio == 1.5


def test_the_json_is_a_list_of_rows_with_five_fields() -> None:
    rows = [Row("a", "µs", 1 / 3, 0.2, 0.6, at_least(0.5), note="x"), Row("b", "ms", 2.0)]
    assert json.loads(as_json(rows)) == [
        {"name": "a", "unit": "µs", "value": 0.33333, "limit": 0.2, "ratio": 0.6},
        {"name": "b", "unit": "ms", "value": 2.0, "limit": None, "ratio": None},
    ]


def test_a_row_shows_its_bar_and_whether_it_is_cleared() -> None:
    assert cells(Row("a", "ms", 3.0, 2.0, 1.5, at_most(1.0)))[3:7] == ("2", "1.50", "≤ 1 ms", "FAIL")


# --- the run ----------------------------------------------------------------------------------------------------


def test_every_benchmark_has_a_name_of_its_own_and_a_group() -> None:
    benchmarks = catalog.everything()
    assert len({benchmark.name for benchmark in benchmarks}) == len(benchmarks)
    assert {group for benchmark in benchmarks for group in benchmark.groups} == set(catalog.GROUPS)


def test_benchmarks_are_chosen_by_group_and_by_name() -> None:
    def nothing(_session: Session) -> list[Row]:
        return []

    drain, work = Benchmark("drain.full", ("sqlite",), nothing), Benchmark("worker.idle", ("worker",), nothing)
    every = [drain, work]
    assert catalog.chosen(every, [], []) == every
    assert catalog.chosen(every, ["worker"], []) == [work]
    assert catalog.chosen(every, [], ["drain"]) == [drain]
    assert catalog.chosen(every, [], ["worker.idle.more"]) == [work]
    assert catalog.chosen(every, ["sqlite"], ["idle"]) == []


def test_one_that_breaks_does_not_stop_the_others(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_session: Session) -> Iterator[Row]:
        yield Row("half", "ms", 1.0)
        raise ValueError("no luck")

    good = Benchmark("good", ("sqlite",), lambda _: [Row("good", "ms", 1.0)])
    rows, whole = run([Benchmark("bad", ("sqlite",), broken), good], session, Lines())
    assert [row.name for row in rows] == ["good"]
    assert not whole
    assert "bad: could not be measured: no luck" in capsys.readouterr().out


def test_the_command_measures_a_row_and_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.sqlite_cost.SLICE", 200)
    file = tmp_path / "rows.json"
    result = CliRunner().invoke(main, ["--engine", "sqlite", "--quick", "--json", str(file), "drain.normal.100"])
    assert result.exit_code == 0, result.output
    assert "drain.normal.100" in result.output
    [row] = json.loads(file.read_text())
    assert row.keys() == {"name", "unit", "value", "limit", "ratio"}
    assert row["value"] > 0
    assert row["limit"] > 0
    assert row["ratio"] > 0


def test_an_unknown_name_is_refused() -> None:
    result = CliRunner().invoke(main, ["no-such-row"])
    assert result.exit_code == 2
    assert "no benchmark of these groups has such a name" in result.output


# --- the limit --------------------------------------------------------------------------------------------------


class Trace:
    """Counts the statements that connections run while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        self.on = False
        connect = sqlite3.connect

        def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **kwargs)
            connection.set_trace_callback(self._see)
            return connection

        monkeypatch.setattr(sqlite3, "connect", traced)

    def _see(self, statement: str) -> None:
        # The clock's mark and the settings depend on the moment; the lease belongs to no job.
        if self.on and not statement.startswith(("PRAGMA", "UPDATE stoker_clock", "UPDATE stoker_workers")):
            words = statement.replace("(", " ").split()
            tables = [word for word in words if word.startswith("stoker_")]
            self.seen[" ".join([words[0], *tables])] += 1

    def take(self) -> Counter[str]:
        self.on = False
        seen, self.seen = self.seen, Counter()
        return seen


def test_the_bare_loop_runs_what_the_engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that does less than the engine, or more, would be no limit. When this fails, `bare.py` has to follow."""
    paths = [tmp_path / "engine.db", tmp_path / "bare.db"]
    for path in paths:
        stores.build(path, ready=3)
    trace = Trace(monkeypatch)

    def batches() -> list[list[bytes]]:
        return [[mint() for _ in range(4)] for _ in range(3)]

    async def through_the_doors() -> None:
        engine = SqliteEngine(paths[0], durability="process")
        await engine.open()
        await engine.jobs.renew(doors.WORKER, [], first=True)
        drain = doors.Drain(engine, 5)
        await drain.begin()
        trace.on = True
        await doors.fill(engine, batches())
        await drain.run()
        by_engine.update(trace.take())
        await engine.close()

    by_engine: Counter[str] = Counter()
    asyncio.run(through_the_doors())
    with Bare(paths[1], "process") as bare:
        bare.begin(5)
        trace.on = True
        bare.fill(batches())
        bare.drain(5)
        by_loop = trace.take()
    assert by_engine == by_loop
    assert sum(by_engine.values()) > 20

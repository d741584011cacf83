"""The benchmark of other systems: what the pages show is what the file holds, and a visit counts what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.children import ROOT
from benchmarks.peers import environments, history, report, trees
from benchmarks.peers.__main__ import STORES, chosen, main
from benchmarks.peers.peer import Copy
from benchmarks.peers.pins import NODE, PYTHON
from benchmarks.peers.places import Grounds
from benchmarks.peers.producer import WARM
from benchmarks.peers.records import Figure, Records
from benchmarks.peers.systems import everything, load
from benchmarks.peers.visits import Visit

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """Two systems on Redis: Stoker drains faster, Huey enqueues faster."""
    found = Records(tmp_path / "peers.json")
    for key, one, drain in (("stoker.redis", 200.0, 9_000.0), ("huey.redis", 100.0, 1_234.0)):
        peer = load(key)
        found.describe(peer)
        for extra in (0, 50, 10):
            figures = {"one": one + extra, "drain.default.1": drain, "drain.tuned.1": drain, "pickup": one / 100}
            found.add(peer, "drain", figures, "noon")
    return found


# --- the published results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", report.CHARTS)
def test_charts_show_what_the_results_hold(name: str) -> None:
    assert (ROOT / "docs" / "images" / name).read_text("utf-8") == report.charts(Records())[name], (
        "run: scripts/bench peers --report"
    )


def test_every_system_was_measured_or_is_named_on_the_page() -> None:
    data = Records().data
    page = (ROOT / "docs" / "explanation" / "benchmark-settings.md").read_text("utf-8")
    unmeasured = [peer.key for peer in everything() if not data["systems"].get(peer.key, {}).get("rows")]
    assert all(key in page for key in unmeasured)
    assert all(data["left_out"].values())


# --- tables and charts ------------------------------------------------------------------------------------------------


def test_a_figure_is_the_median_with_the_lowest_and_highest_round(records: Records) -> None:
    assert records.figure("stoker.redis", "one") == Figure(210.0, 200.0, 250.0, 3)
    assert report.cell(records.figure("stoker.redis", "one")) == "210 (200–250) †"
    assert report.cell(Figure(0.5, 0.25, 12.34, 5)) == "0.50 (0.25–12.3)"
    assert records.figure("stoker.redis", "due") is None
    assert report.cell(None) == "–"


def test_results_outlive_the_run(records: Records, tmp_path: Path) -> None:
    records.save()
    again = Records(tmp_path / "peers.json")
    assert again.data == records.data
    again.forget(load("huey.redis"), "drain")
    assert again.figure("huey.redis", "one") is None
    assert again.figure("stoker.redis", "one") is not None


def test_rows_in_which_stoker_loses_are_listed(records: Records) -> None:
    lost = report.behind(records, "redis")
    assert "| enqueue one, µs | 210 | Huey 110 |" in lost
    assert "drain" not in lost
    assert "no row" in report.behind(records, "sqlite")
    assert "Not measured yet" in report.figures(records, "sqlite", report.SPEED)
    assert "rq.redis" in report.unmeasured(records)
    assert "Not measured yet: DBOS on Postgres, DBOS on SQLite, Stoker on" in report.steps(records)
    assert "Not measured yet: " in report.history(records)


def test_a_system_that_is_left_out_is_named(records: Records) -> None:
    records.leave_out(load("rq.redis"), "there is no such version")
    assert "- Left out: rq.redis: there is no such version" in report.circumstances(records)
    records.describe(load("rq.redis"))
    assert "- Left out: none" in report.circumstances(records)


def test_rounds_of_other_minutes_and_machines_are_named(records: Records) -> None:
    run = {"at": "noon", "revision": "abc", "load": 0.0, "servers": {}}
    records.data["runs"] = {"redis.drain": {**run, "machine": "one"}}
    assert "Not in the same minutes" not in report.circumstances(records)
    assert "- Machine: one\n" in report.circumstances(records)
    records.add(load("huey.redis"), "drain", {"one": 90.0}, "one o'clock")
    records.data["runs"]["redis.latency"] = {**run, "machine": "other"}
    found = report.circumstances(records)
    assert "- Not in the same minutes: huey.redis, drain: one o'clock" in found
    assert "- Machine: other (redis.latency)" in found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["sidekiq"], "there is no system 'sidekiq'"), (["rq", "--rounds", "0"], "0 is not in the range")],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], says: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(main, [*arguments, "--json", str(tmp_path / "peers.json")])
    assert found.exit_code == 2
    assert says in found.output


def test_a_system_is_named_in_full() -> None:
    assert [peer.key for peer in chosen(["rq"], ["redis"])] == ["stoker.redis", "rq.redis"]
    assert [peer.key for peer in chosen(["huey.sqlite"], [])] == [*(f"stoker.{one}" for one in STORES), "huey.sqlite"]


@pytest.mark.parametrize("name", report.CHARTS)
def test_charts_are_text_for_both_themes(records: Records, name: str) -> None:
    image = report.charts(records)[name]
    root = ET.fromstring(image)
    assert {"Redis", "Stoker", "Huey"} <= {text.text for text in root.iter(f"{SVG}text")}
    assert "prefers-color-scheme: dark" in image
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect")]
    assert len(widths) == (4 if "drain" in name else 2)
    assert max(widths) < float(root.attrib["width"])


# --- systems ----------------------------------------------------------------------------------------------------------


def test_systems_are_described_without_being_installed() -> None:
    """Neither Stoker nor another package can be imported with -S."""
    code = (
        "import sys; sys.path.insert(0, '.'); from benchmarks.peers.systems import everything; print(len(everything()))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(everything())


def test_the_readme_counts_the_other_systems() -> None:
    assert len({peer.environment for peer in everything()} - {"stoker"}) == 13
    assert "Stoker and thirteen other systems" in (ROOT / "README.md").read_text("utf-8")


def test_every_system_has_pinned_versions() -> None:
    assert {peer.environment for peer in everything()} == {"stoker", *PYTHON, *NODE}
    assert all("==" in pin for pins in PYTHON.values() for pin in pins)
    assert all("@" in pin for pins in NODE.values() for pin in pins)


def test_what_does_not_install_is_left_out_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environments.NotInstalled, match="there is no npm"):
        environments.environment("bullmq")
    monkeypatch.setattr(
        environments, "_commands", lambda *_: [[sys.executable, "-c", "raise OSError('no such version')"]]
    )
    with pytest.raises(environments.NotInstalled, match="OSError: no such version"):
        environments.environment("rq")


def test_a_copy_of_a_finished_job_differs_only_where_it_must() -> None:
    copy = Copy("jobs", {"id": "number"})
    assert history.statement(copy, "id, state", 5) == (
        "INSERT INTO jobs (id, state) SELECT number, state "
        "FROM (SELECT * FROM jobs) AS one, generate_series(1, 5) AS number"
    )


def test_a_visit_enqueues_drains_and_counts(tmp_path: Path) -> None:
    peer = load("stoker.sqlite")
    with Grounds(tmp_path) as grounds, grounds.place(peer) as place:
        visit = Visit(peer, Path(sys.executable), place, tmp_path)
        with visit.producer() as ask:
            rows = visit.drain_once(ask, "default", 1, 100)
            assert len(ask("one", count=3)) == 3
        assert peer.left(place) == WARM + 3
    assert rows["drain.default.1"] > 0
    assert rows["bytes.default"] > 0
    assert rows["memory.default"] > 10


def test_a_tree_of_processes_is_measured_and_ended() -> None:
    parent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert {parent.pid, child} <= set(trees.tree(parent.pid))
    assert trees.memory(parent.pid) > 0
    trees.kill(parent.pid)
    parent.communicate()
    assert parent.returncode == -9
    assert trees.cpu(os.getpid()) > 0

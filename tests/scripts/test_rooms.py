from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts import rooms
from tests.test_services import alive, until

LONG = """
import os, pathlib, time

def test():
    report = pathlib.Path(__file__).parent / "part"
    report.write_text(str(os.getpid()))
    report.rename(report.with_name("pid"))
    time.sleep(50)
"""


@pytest.mark.parametrize(
    "arguments", [[], ["--campaign"], ["--engine", "memory"], ["--engine=a", "--engine", "b", "--campaign"]]
)
def test_our_own_options_keep_the_whole_run(arguments: list[str]) -> None:
    assert rooms.only_ours(arguments)


@pytest.mark.parametrize("arguments", [["tests/model"], ["-k", "retry"], ["--engine", "memory", "tests/conformance"]])
def test_anything_else_goes_to_pytest(arguments: list[str]) -> None:
    assert not rooms.only_ours(arguments)


def test_the_report_ends_with_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    run = rooms.Run()
    run.seconds = {rooms.CHECKS: 61.0, rooms.UNIT: 1.0}
    run.outcomes.update(passed=3, skipped=1)
    run.engines.update(memory=2)
    assert rooms.report(run) == 0
    output = capsys.readouterr().out
    assert "OVER BUDGET" in output
    assert "conformance cases per engine: memory 2" in output
    assert output.splitlines()[-1] == "3 passed, 1 skipped in 62.00s"


def test_a_broken_room_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = rooms.Run()
    rooms.enter(run, rooms.CHECKS, [["false"], ["echo", "never reached"]])
    assert run.broken == ["checks"]
    assert rooms.report(run) == 1


def test_a_room_without_cases_for_the_engine_is_no_failure(tmp_path: Path) -> None:
    run = rooms.Run()
    command = [sys.executable, "-c", f"raise SystemExit({rooms.NOTHING_COLLECTED})", "pytest"]
    rooms.enter(run, rooms.APART[0], [command], tmp_path)
    assert run.broken == []


def test_what_a_room_has_beside_the_rest_counts_as_much(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_aside.py").write_text("def test(): raise AssertionError('aside')\n")
    run = rooms.Run()
    room = rooms.Room("odd", 1, str(tmp_path), "test_aside.py")
    with rooms.alongside(run, room, ["-p", "no:cacheprovider", "--rootdir", str(tmp_path)], tmp_path) as ignored:
        assert ignored == [f"--ignore={tmp_path}/test_aside.py"]
    assert run.broken == ["odd"]
    assert run.seconds[room] > 0
    assert "AssertionError: aside" in capfd.readouterr().out


def test_cases_are_counted_per_engine_and_chosen_by_engine_and_variant(tmp_path: Path) -> None:
    """The options of tests/conftest.py, on a small tree of its own."""
    conftest = Path(__file__).resolve().parents[1] / "conftest.py"
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conftest.py").write_text(conftest.read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    core\n    engine(name)\n    variant\n")
    (tmp_path / "conformance" / "test_memory.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    (tmp_path / "conformance" / "test_slow.py").write_text(
        "import pytest\npytestmark = [pytest.mark.variant, pytest.mark.engine('sqlite')]\n"
        "@pytest.mark.core\ndef test_a(): pass\ndef test_b(): pass\n"
    )
    expected: dict[tuple[str, ...], dict[str, int]] = {
        (): {"memory": 2, "sqlite": 1},
        ("--campaign",): {"memory": 2, "sqlite": 2},
        ("--engine=memory", "--engine", "sqlite"): {"memory": 2, "sqlite": 1},
    }
    with ThreadPoolExecutor() as at_once:
        found = at_once.map(lambda arguments: counted(tmp_path, *arguments), expected)
        assert dict(zip(expected, found, strict=True)) == expected


def counted(folder: Path, *arguments: str) -> dict[str, int]:
    tally = folder / f"tally{'-'.join(arguments)}.json"
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    code = rooms.call([sys.executable, "-m", "pytest", *options, *arguments, str(folder)], tally)
    assert code == 0
    engines: dict[str, int] = json.loads(tally.read_text())["engines"]
    return engines


def test_a_terminated_run_ends_its_child(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_long.py").write_text(LONG)
    command = [sys.executable, rooms.__file__, "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until((tmp_path / "pid").exists, "the inner test did not start")
    run.terminate()
    assert run.wait(20) == 128 + signal.SIGTERM
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), "the child remains")

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts import rooms
from tests.test_services import alive, until

PATH = "import sys; sys.path.append(sys.argv[1]); "
LONG = """
import os, pathlib, time

def test():
    report = pathlib.Path(__file__).parent / "part"
    report.write_text(str(os.getpid()))
    report.rename(report.with_name("pid"))
    time.sleep(600)
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
    assert rooms.report(run, 61.5) == 0
    output = capsys.readouterr().out
    assert "OVER BUDGET" in output
    assert "conformance cases per engine: memory 2" in output
    assert output.splitlines()[-1] == "3 passed, 1 skipped in 61.50s"


def test_every_test_is_in_one_room() -> None:
    """Whatever no room names, a new folder too, is in the room of the folder above it."""
    taken: list[Path] = []
    for room in (rooms.MODEL, rooms.UNIT, *rooms.APART):
        command = rooms.pytest_command(room, [])
        assert (rooms.ROOT / room.tests).exists(), room
        ignored = [rooms.ROOT / word.removeprefix("--ignore=") for word in command if word.startswith("--ignore=")]
        place = rooms.ROOT / room.tests
        files = [place] if place.is_file() else place.rglob("test_*.py")
        taken += [file for file in files if not any(file.is_relative_to(other) for other in ignored)]
    assert sorted(taken) == sorted((rooms.ROOT / "tests").rglob("test_*.py"))


def test_rooms_run_at_the_same_time_and_a_broken_one_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rooms.Run()
    meet = "touch {0}; while ! [ -e {1} ]; do sleep 0.01; done; echo met"
    one, two, three = (rooms.Room(name, 60) for name in ("one", "two", "three"))
    commands = {
        one: ["sh", "-c", meet.format(tmp_path / "a", tmp_path / "b")],
        two: ["sh", "-c", meet.format(tmp_path / "b", tmp_path / "a")],
        three: ["false"],
    }
    rooms.enter(run, commands, tmp_path, width=2)
    assert run.broken == ["three"]
    assert set(run.seconds) == {one, two, three}
    assert capsys.readouterr().out.count("met") == 2
    assert rooms.report(run, 1.0) == 1


def test_what_one_room_compiles_the_others_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setattr(rooms, "COMPILED", tmp_path / "compiled")
    (tmp_path / "box.py").write_text("")
    for _ in range(2):
        rooms.enter(rooms.Run(), {rooms.UNIT: [sys.executable, "-c", f"{PATH}import box", str(tmp_path)]}, tmp_path)
    [kept] = (tmp_path / "compiled").rglob("box.*.pyc")
    assert kept.parent == Path(f"{tmp_path / 'compiled'}{tmp_path}")


def test_a_room_without_cases_for_the_engine_is_no_failure(tmp_path: Path) -> None:
    run = rooms.Run()
    rooms.enter(run, {rooms.UNIT: ["sh", "-c", f"exit {rooms.NOTHING_COLLECTED}"]}, tmp_path)
    assert run.broken == []


def test_what_ends_a_run_ends_its_rooms(tmp_path: Path) -> None:
    class Ended(BaseException): ...

    def end(*_: object) -> None:
        raise Ended

    def interrupt() -> None:
        until(pid.exists, "the room did not open")
        os.kill(os.getpid(), signal.SIGUSR1)

    pid = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 600"]
    before = signal.signal(signal.SIGUSR1, end)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(Ended):
            rooms.enter(rooms.Run(), {rooms.UNIT: command}, tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not alive(int(pid.read_text()))


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
    assert run.wait(90) == 128 + signal.SIGTERM
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), "the child remains")

"""Runs the checks and the tests in rooms, several at a time, and says how long each room took.

A room is some tests with a process, servers and a time budget of their own. Much of their time is waiting, for servers
and for other processes, so a few rooms at a time keep all cores busy. Going over budget only warns: a slow machine is
no failure. In a campaign each room has the machine to itself. With arguments other than our own options everything is
handed to one pytest run instead.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
NOTHING_COLLECTED = 5
WIDTH = (os.cpu_count() or 1) + 1
"""Rooms at a time."""
COMPILED = Path(sys.prefix) / "compiled"
"""Rooms, and the hundreds of processes that they start, find here what one of them has compiled."""


@dataclass(frozen=True)
class Room:
    name: str
    budget: int
    """Seconds, beside other rooms, on two cores that nothing else uses; the longest room starts first."""
    tests: str = ""


CHECKS = Room("checks", 60)
MODEL = Room("model", 50, "tests/model")
UNIT = Room("unit", 260, "tests")
"""Everything that has no room of its own."""
APART = (
    Room("worker", 260, "tests/worker"),
    Room("postgres-engine", 150, "tests/engines/postgres"),
    Room("faults-postgres", 120, "tests/faults/postgres"),
    Room("postgres", 110, "tests/conformance/test_postgres.py"),
    Room("engines", 120, "tests/engines"),
    Room("browser", 110, "tests/browser"),
    Room("sqlite", 80, "tests/conformance/test_sqlite.py"),
    Room("faults-sqlite", 90, "tests/faults/sqlite"),
    Room("machine", 60, "tests/conformance/test_machine.py"),
    Room("outbox", 75, "tests/outbox"),
    Room("pooled", 60, "tests/conformance/test_postgres_pooled.py"),
    Room("cli", 90, "tests/cli"),
    Room("web", 100, "tests/web"),
    Room("faults-redis", 60, "tests/faults/redis"),
    Room("redis-cluster", 45, "tests/conformance/test_redis_cluster.py"),
    Room("conformance", 50, "tests/conformance"),
    Room("admin", 65, "tests/admin"),
    Room("docs", 80, "tests/docs"),
    Room("services", 30, "tests/test_services.py"),
)


@dataclass
class Run:
    """What happened so far."""

    seconds: dict[Room, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)


@dataclass
class Open:
    """A room whose command runs."""

    room: Room
    tally: Path
    output: Path
    started: float
    process: subprocess.Popen[bytes]


def main(arguments: list[str]) -> int:
    if not only_ours(arguments):
        return call([sys.executable, "-m", "pytest", *arguments])
    run, began = Run(), time.monotonic()
    shutil.rmtree(Path(f"{COMPILED}{tempfile.gettempdir()}"), ignore_errors=True)  # of modules that tests wrote
    with tempfile.TemporaryDirectory(prefix="stoker-test-") as scratch:
        commands = {CHECKS: [str(ROOT / "scripts" / "check")], MODEL: model_command(arguments, Path(scratch))}
        rooms = [CHECKS, *sorted((MODEL, UNIT, *APART), key=lambda room: -room.budget)]
        enter(
            run,
            {room: commands.get(room) or pytest_command(room, arguments) for room in rooms},
            Path(scratch),
            width=1 if "--campaign" in arguments else WIDTH,
        )
    return report(run, time.monotonic() - began)


def only_ours(arguments: list[str]) -> bool:
    """Whether the arguments are none, or only options that every room understands."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--engine":
            next(rest, None)
        elif argument != "--campaign" and not argument.startswith("--engine="):
            return False
    return True


def pytest_command(room: Room, arguments: list[str]) -> list[str]:
    """The tests of a room, without those below it that have rooms of their own."""
    others = [other.tests for other in (MODEL, *APART) if other.tests.startswith(f"{room.tests}/")]
    return [sys.executable, "-m", "pytest", "-q", room.tests, *(f"--ignore={tests}" for tests in others), *arguments]


def model_command(arguments: list[str], scratch: Path) -> list[str]:
    """The pure rules and their coverage.

    Nothing else is traced: it is their coverage that counts, and CPython 3.11 loses exceptions thrown into a traced
    coroutine that waits in its last `with` block.
    """
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={scratch / 'coverage'}"
    steps = (
        [*coverage, "run", data, "-m", "pytest", "-q", MODEL.tests, *arguments],
        [*coverage, "report", data],
    )
    return ["sh", "-c", " && ".join(map(shlex.join, steps))]


def enter(run: Run, commands: dict[Room, list[str]], scratch: Path, width: int = WIDTH) -> None:
    """Run the commands of the rooms, in their order, so many at a time; whatever ends us ends them first."""
    waiting = list(commands.items())
    at_work: list[Open] = []
    try:
        while waiting or at_work:
            while waiting and len(at_work) < width:
                at_work.append(opened(*waiting.pop(0), scratch))
            for one in [one for one in at_work if one.process.poll() is not None]:
                at_work.remove(one)
                close(run, one)
            time.sleep(0.02)
    except BaseException:
        for one in at_work:
            one.process.terminate()
        for one in at_work:
            one.process.wait()
        raise


def surroundings() -> dict[str, str]:
    """The environment of a command: what it compiles is kept, beside no source file, unless a place for it is set."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"PYTHONPYCACHEPREFIX": str(COMPILED), **kept}


def opened(room: Room, command: Sequence[str], scratch: Path) -> Open:
    tally, output = scratch / f"{room.name}.json", scratch / f"{room.name}.out"
    environment = {**surroundings(), "STOKER_TEST_TALLY": str(tally)}
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    return Open(room, tally, output, time.monotonic(), process)


def close(run: Run, one: Open) -> None:
    """Print what a room said, and count what its tests left behind."""
    run.seconds[one.room] = time.monotonic() - one.started
    print(f"\n--- {one.room.name}\n{one.output.read_text(errors='replace').rstrip()}", flush=True)
    if one.process.returncode not in (0, NOTHING_COLLECTED):
        run.broken.append(one.room.name)
    if one.tally.exists():
        counted = json.loads(one.tally.read_text())
        run.outcomes.update(counted["outcomes"])
        if one.room.tests.startswith("tests/conformance"):
            run.engines.update(counted["engines"])


def call(command: list[str], tally: Path | None = None) -> int:
    """Run a command; whatever ends us ends it first, so that it can clean up."""
    environment = {**surroundings(), **({"STOKER_TEST_TALLY": str(tally)} if tally else {})}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal has told the child as well.
            process.wait()
            raise
        except SystemExit:
            process.terminate()
            process.wait()
            raise


def terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def report(run: Run, seconds: float) -> int:
    print("\n--- time per room")
    for room, took in run.seconds.items():
        late = "  OVER BUDGET" if took > room.budget else ""
        broken = "  FAILED" if room.name in run.broken else ""
        print(f"{room.name:<16}{took:7.1f} s of {room.budget:4d} s{late}{broken}")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(run.engines.items())) or "none yet"
    print(f"\nconformance cases per engine: {counts}")
    if run.broken:
        print(f"failed rooms: {', '.join(run.broken)}")
    order = ("failed", "errors", "passed", "skipped", "deselected", "xfailed")
    words = [f"{run.outcomes[name]} {name}" for name in order if run.outcomes[name]] or ["0 passed"]
    print(f"{', '.join(words)} in {seconds:.2f}s")
    return 1 if run.broken else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")

"""Runs the checks and the tests room by room, and says how long each room took.

A room is a folder of tests with a time budget of its own. Going over budget only warns: a slow machine is no failure.
With arguments other than our own options everything is handed to one pytest run instead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
NOTHING_COLLECTED = 5


@dataclass(frozen=True)
class Room:
    name: str
    budget: int
    folder: str = ""
    beside: str = ""
    """What of the folder runs at the same time as the rest: its tests wait more than they work."""


CHECKS = Room("checks", 60)
MODEL = Room("model", 60, "tests/model")
UNIT = Room("unit", 40, "tests", "test_services.py")
APART = (
    Room("engines", 90, "tests/engines", "postgres"),
    Room("conformance", 180, "tests/conformance", "test_postgres.py"),
    Room("faults-sqlite", 40, "tests/faults/sqlite"),
    Room("faults-postgres", 40, "tests/faults/postgres", "test_network.py"),
    Room("faults-redis", 40, "tests/faults/redis", "test_network.py"),
    Room("worker", 100, "tests/worker"),
)


@dataclass
class Run:
    """What happened so far."""

    seconds: dict[Room, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)


def main(arguments: list[str]) -> int:
    if not only_ours(arguments):
        return call([sys.executable, "-m", "pytest", *arguments])
    run = Run()
    with tempfile.TemporaryDirectory(prefix="stoker-test-") as scratch:
        enter(run, CHECKS, [[str(ROOT / "scripts" / "check")]])
        enter(run, MODEL, model_commands(arguments, Path(scratch)), Path(scratch))
        with alongside(run, UNIT, arguments, Path(scratch)) as ignored:
            enter(run, UNIT, [[*unit_command(arguments), *ignored]], Path(scratch))
        for room in APART:
            if (ROOT / room.folder).is_dir():
                with alongside(run, room, arguments, Path(scratch)) as ignored:
                    enter(run, room, [[*pytest_command(), room.folder, *ignored, *arguments]], Path(scratch))
    return report(run)


def only_ours(arguments: list[str]) -> bool:
    """Whether the arguments are none, or only options that every room understands."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--engine":
            next(rest, None)
        elif argument != "--campaign" and not argument.startswith("--engine="):
            return False
    return True


def pytest_command() -> list[str]:
    return [sys.executable, "-m", "pytest", "-q"]


def model_commands(arguments: list[str], scratch: Path) -> list[list[str]]:
    """The pure rules and their coverage.

    Nothing else is traced: it is their coverage that counts, and CPython 3.11 loses exceptions thrown into a traced
    coroutine that waits in its last `with` block.
    """
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={scratch / 'coverage'}"
    return [
        [*coverage, "run", data, "-m", "pytest", "-q", MODEL.folder, *arguments],
        [*coverage, "report", data],
    ]


def unit_command(arguments: list[str]) -> list[str]:
    """Everything that has no room of its own."""
    ignored = [f"--ignore={room.folder}" for room in (MODEL, *APART)]
    return [*pytest_command(), UNIT.folder, *ignored, *arguments]


@contextmanager
def alongside(run: Run, room: Room, arguments: list[str], scratch: Path) -> Iterator[list[str]]:
    """Run what a room has beside the rest while the rest runs; gives what the rest leaves out."""
    if not room.beside:
        yield []
        return
    file, tally, started = f"{room.folder}/{room.beside}", scratch / f"{room.name}-beside.json", time.monotonic()
    with tempfile.TemporaryFile(dir=scratch) as output:
        command = [*pytest_command(), file, *arguments]
        environment = {**os.environ, "STOKER_TEST_TALLY": str(tally)}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output) as process:
            try:
                yield [f"--ignore={file}"]
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
        output.seek(0)
        print(f"\n--- {room.name}, {room.beside}\n{output.read().decode(errors='replace')}", flush=True)
    if code not in (0, NOTHING_COLLECTED) and room.name not in run.broken:
        run.broken.append(room.name)
    run.seconds[room] = time.monotonic() - started
    add(run, room, tally)


def enter(run: Run, room: Room, commands: list[list[str]], scratch: Path | None = None) -> None:
    print(f"\n--- {room.name}", flush=True)
    tally = scratch / f"{room.name}.json" if scratch else None
    started = time.monotonic()
    for command in commands:
        code = call(command, tally)
        if code and not (code == NOTHING_COLLECTED and "pytest" in command):
            run.broken.append(room.name)
            break
    run.seconds[room] = time.monotonic() - started
    if tally:
        add(run, room, tally)


def add(run: Run, room: Room, tally: Path) -> None:
    """Count what a run of pytest left behind."""
    if tally.exists():
        counted = json.loads(tally.read_text())
        run.outcomes.update(counted["outcomes"])
        if room.name == "conformance":
            run.engines.update(counted["engines"])


def call(command: list[str], tally: Path | None = None) -> int:
    """Run a command; whatever ends us ends it first, so that it can clean up."""
    environment = {**os.environ, **({"STOKER_TEST_TALLY": str(tally)} if tally else {})}
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


def report(run: Run) -> int:
    print("\n--- time per room")
    for room, seconds in run.seconds.items():
        late = "  OVER BUDGET" if seconds > room.budget else ""
        broken = "  FAILED" if room.name in run.broken else ""
        print(f"{room.name:<16}{seconds:7.1f} s of {room.budget:4d} s{late}{broken}")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(run.engines.items())) or "none yet"
    print(f"\nconformance cases per engine: {counts}")
    if run.broken:
        print(f"failed rooms: {', '.join(run.broken)}")
    order = ("failed", "errors", "passed", "skipped", "deselected", "xfailed")
    words = [f"{run.outcomes[name]} {name}" for name in order if run.outcomes[name]] or ["0 passed"]
    print(f"{', '.join(words)} in {sum(run.seconds.values()):.2f}s")
    return 1 if run.broken else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")

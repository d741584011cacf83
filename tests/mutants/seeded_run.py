"""Plants the bugs of `seeded.toml` one at a time into a copy of the tree and runs the tests that are to catch each.

A bug is caught when one of its tests fails. A test that could not be collected, or that no expression picked, is an
error of the table: it would say nothing about the bug.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("seeded.toml")
COPIED = ("src", "tests", "scripts", "examples", "docs", "deploy", "benchmarks", "pyproject.toml", "README.md")
LONGEST = 600.0
"""Seconds that the tests of one bug may take."""
FEW = 3
"""Bugs for which no servers are started ahead."""
PATIENCE = 30
"""Seconds until a test that hangs counts as failed: a lost wake-up shows in no other way."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Bug:
    """One bug: what is put in place of what, what a user would suffer, and which tests are to catch it."""

    name: str
    meet: str
    """The parts that meet where the bug is."""
    file: str
    before: str
    after: str
    suffers: str
    tests: tuple[str, ...]
    pick: str | None = None
    """An expression of pytest that picks some of the tests."""

    def fault(self) -> str | None:
        """Why it cannot be planted into this tree; None: it can."""
        path = ROOT / self.file
        times = path.read_text("utf-8").count(self.before) if path.exists() else 0
        if times != 1:
            return f"{self.name}: its text is {times} times in {self.file}, and must be there once"
        if self.before == self.after:
            return f"{self.name}: changes nothing"
        missing = [test for test in self.tests if not (ROOT / test.partition("::")[0]).exists()]
        return f"{self.name}: there is no {missing[0]}" if missing else None

    @property
    def command(self) -> list[str]:
        """The arguments of pytest."""
        return [*self.tests, *(() if self.pick is None else ("-k", self.pick))]


def bugs(only: Sequence[str] = ()) -> list[Bug]:
    """The table, or those whose names contain one of the given words."""
    rows: list[dict[str, Any]] = tomllib.loads(TABLE.read_text("utf-8"))["bug"]
    found = [Bug(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    return [one for one in found if not only or any(word in one.name for word in only)]


@dataclass(frozen=True)
class Found:
    """What became of a bug."""

    name: str
    outcome: str
    """caught, missed, or error."""
    by: str
    """The first test that failed; of an error, what pytest said."""
    seconds: float


def run(chosen: Sequence[Bug], say: Callable[[str], None]) -> Iterator[Found]:
    """Plant each bug and run its tests; first all these tests on the tree as it is."""
    with copied() as tree, servers(shared=len(chosen) > FEW) as environ:
        for command in together(chosen):
            code, text, seconds = tested(tree, command, environ)
            if code != 0:
                raise SystemExit(f"{' '.join(command)} does not pass without a bug:\n{text[-3000:]}")
            say(f"sound   {seconds:6.1f} s  {' '.join(command)}")
        for number, bug in enumerate(chosen):
            with planted(tree, bug, number):
                found = judged(bug, *tested(tree, bug.command, environ))
            say(f"{found.outcome:7} {found.seconds:6.1f} s  {bug.name}: {found.by}")
            yield found


def together(chosen: Sequence[Bug]) -> list[list[str]]:
    """The tests of all these bugs in few commands: one for each file or files that they name."""
    picks: dict[tuple[str, ...], list[str | None]] = {}
    for bug in chosen:
        picks.setdefault(bug.tests, []).append(bug.pick)
    commands = []
    for tests, some in picks.items():
        known = sorted({pick for pick in some if pick is not None})
        whole = None in some
        commands.append([*tests, *(() if whole else ("-k", " or ".join(f"({pick})" for pick in known)))])
    return commands


def judged(bug: Bug, code: int | None, text: str, seconds: float) -> Found:
    """Read how pytest ended."""
    failed = FAILED.search(text)
    if code == 1 and failed is not None:
        return Found(bug.name, "caught", failed[1], seconds)
    if code is None:
        return Found(bug.name, "caught", "the time limit: a test hangs", seconds)
    if code == 0:
        return Found(bug.name, "missed", "", seconds)
    return Found(bug.name, "error", " ".join(text[-400:].split()), seconds)


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree, which nothing else uses."""
    with tempfile.TemporaryDirectory(prefix="stoker-mutants-") as folder:
        tree = Path(folder) / "tree"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
            else:
                tree.mkdir(exist_ok=True)
                shutil.copy2(source, tree / name)
        for package in (tree / "src").iterdir():  # tests put the root of the tree on the path of processes they start
            (tree / package.name).symlink_to(package)
        yield tree


@contextlib.contextmanager
def servers(*, shared: bool) -> Iterator[dict[str, str]]:
    """The environment of tests, with servers that all of them share, else each run starts what it needs."""
    from tests import services

    with contextlib.ExitStack() as stack:
        environ = {**os.environ, "PYTHONPYCACHEPREFIX": stack.enter_context(tempfile.TemporaryDirectory())}
        if shared:
            environ["STOKER_TEST_POSTGRES_URL"] = stack.enter_context(services.postgres())
            environ["STOKER_TEST_REDIS_URL"] = stack.enter_context(services.redis())
        yield environ


@contextlib.contextmanager
def planted(tree: Path, bug: Bug, number: int) -> Iterator[None]:
    """Plant a bug for as long as the block lasts."""
    path = tree / bug.file
    sound, times = path.read_text("utf-8"), path.stat()
    path.write_text(sound.replace(bug.before, bug.after), "utf-8")
    stamp = 1_000_000_000 + number  # another one for each bug: what Python compiled of a file is known by it
    os.utime(path, (stamp, stamp))
    try:
        yield
    finally:
        path.write_text(sound, "utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def tested(tree: Path, tests: Sequence[str], environ: dict[str, str]) -> tuple[int | None, str, float]:
    """Run tests in the copy until one fails; returns pytest's code (None: out of time), its words and the seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "no:cacheprovider", *tests]
    command += ["-o", f"timeout={PATIENCE}", "--timeout-method=signal"]
    environ = {**environ, "PYTHONPATH": str(tree)}
    began = time.monotonic()
    with subprocess.Popen(
        command, cwd=tree, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            text = process.communicate(timeout=LONGEST)[0].decode(errors="replace")
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            text, code = process.communicate()[0].decode(errors="replace"), None
    return code, text, time.monotonic() - began

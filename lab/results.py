"""Results that add up: a line for every storm, and the tables of the documentation made from the lines.

Only lines of the present release are counted. A line names the revision at the storm's start, with a digest of `src/`,
and says whether the code was that of the revision and stayed so (`tree`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from lab.judge import WORDS, quantile
from lab.stores import ENGINES
from tests.faults.fork_server import ROOT

VERSION: Final = version("stoker")
FILE: Final = ROOT / "lab" / "results.jsonl"
CODE: Final = ("src", "lab", "tests/harness", "tests/services")
"""The code of a storm."""

CALM_PACE: Final = 2.0
"""Seconds between two faults at which recovery is measured."""

NAMES: Final = {"sqlite": "SQLite", "postgres": "Postgres", "redis": "Redis", "redis-cluster": "Redis Cluster"}


def digest(*folders: str) -> str:
    """What these folders hold, as a number: equal for equal code."""
    found = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".sql", ".lua"):
            found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


class Maker:
    """What makes a line of results, as it is before the storm: the code may be edited while one rages."""

    def __init__(self) -> None:
        self.made = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "stoker": VERSION,
            "revision": _git("rev-parse", "--short", "HEAD"),
            "src": digest("src"),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        }
        self._code = digest(*CODE)
        self._dirty = bool(_git("status", "--porcelain", *CODE, ":!lab/results.jsonl"))

    @property
    def tree(self) -> str:
        """Whether the code is that of the revision, and has been all the time."""
        if digest(*CODE) != self._code:
            return "changed"
        return "dirty" if self._dirty else "clean"

    def sign(self, line: dict[str, Any]) -> dict[str, Any]:
        """A line of results with what made it."""
        return {**self.made, "tree": self.tree, "load": round(os.getloadavg()[0], 1), **line}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def append(line: dict[str, Any], path: Path = FILE) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(path: Path = FILE) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def current(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the present release."""
    return [line for line in lines if line["stoker"] == VERSION]


class Sum:
    """The lines of one engine, added up."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self.faults: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter(dict.fromkeys(WORDS, 0))
        self.thawed: Counter[str] = Counter()
        self.recovery: dict[str, Counter[int]] = defaultdict(Counter)
        self.minutes = 0.0
        self.runs = 0
        self.servers: set[str] = set()
        self.pythons: set[str] = set()
        for line in lines:
            self.runs += 1
            self.minutes += line["seconds"]["storm"] / 60
            for name in ("faults", "work", "wrong", "thawed"):
                getattr(self, name).update(line[name])
            # At the pace of a storm those who take over are killed as well: the times would tell of the pace.
            for after, times in line["recovery"].items() if line["settings"].get("lull", 0) >= CALM_PACE else ():
                self.recovery[after].update({int(number): n for number, n in times.items()})
            self.servers.add(line["server"])
            self.pythons.add(line["python"])

    def recovered(self, after: str) -> str:
        """Median, 99th percentile and maximum, in seconds, and of how many times."""
        times = self.recovery[after]
        if not times:
            return "–"
        return " / ".join(f"{quantile(times, share):.2g}" for share in (0.5, 0.99, 1.0)) + f" of {times.total():,}"


def sums(lines: Iterable[dict[str, Any]]) -> dict[str, Sum]:
    found = current(lines)
    return {engine: Sum(line for line in found if line["engine"] == engine) for engine in ENGINES}

"""The results file: what was measured, with what, when, and every round's figure."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.children import ROOT
from benchmarks.peers.peer import Peer
from benchmarks.peers.pins import NODE, PYTHON
from benchmarks.rows import rounded

FILE = ROOT / "benchmarks" / "results" / "peers.json"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of one system: the median over the rounds, the lowest and the highest of them, and how many they are."""

    middle: float
    low: float
    high: float
    rounds: int


class Records:
    """What the file holds. Rounds are added to a row, or replace it."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self.data: dict[str, Any] = {"machine": "", "runs": {}, "systems": {}, "left_out": {}}
        if file.exists():
            self.data |= json.loads(file.read_text(encoding="utf-8"))

    @property
    def systems(self) -> dict[str, Any]:
        found: dict[str, Any] = self.data["systems"]
        return found

    def describe(self, peer: Peer) -> None:
        """Write down the version and the settings of a system."""
        self.data["left_out"].pop(peer.key, None)
        entry = self.systems.setdefault(peer.key, {"rows": {}})
        entry |= {
            "name": peer.name,
            "store": peer.store,
            "packages": list(PYTHON.get(peer.environment) or NODE.get(peer.environment) or ["stoker"]),
            "default": peer.default,
            "tuned": peer.tuned,
            "bulk": peer.bulk,
            "finished": peer.finished,
            "latency": peer.latency,
        }

    def leave_out(self, peer: Peer, reason: str) -> None:
        """A system that cannot be measured is named with the reason."""
        self.data["left_out"][peer.key] = reason

    def forget(self, peer: Peer, group: str) -> None:
        """Drop the rounds of earlier runs."""
        rows = self.systems[peer.key]["rows"]
        for row in [row for row, entry in rows.items() if entry["group"] == group]:
            del rows[row]
        self.systems[peer.key].get("spoilt", {}).pop(group, None)

    def add(self, peer: Peer, group: str, figures: dict[str, float], run: str) -> None:
        """One more round, of a run that began then."""
        rows = self.systems[peer.key]["rows"]
        for row, figure in figures.items():
            entry = rows.setdefault(row, {"group": group, "rounds": []})
            entry["rounds"].append(rounded(figure))
            known = entry["rounds"]
            entry["runs"] = sorted({*entry.get("runs", ()), run})
            entry |= {"median": rounded(median(known)), "low": min(known), "high": max(known)}

    def spoil(self, peer: Peer, group: str, why: str) -> None:
        """A visit that does not count, and the reason."""
        self.systems[peer.key].setdefault("spoilt", {}).setdefault(group, []).append(why)

    def figure(self, key: str, row: str) -> Figure | None:
        """A row of a system, if it was measured."""
        entry = self.systems.get(key, {"rows": {}})["rows"].get(row)
        return None if entry is None else Figure(entry["median"], entry["low"], entry["high"], len(entry["rounds"]))

    def save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.data, indent=1, ensure_ascii=False, sort_keys=True)
        self._file.write_text(text + "\n", encoding="utf-8")


def revision() -> str:
    """The last commit that changed Stoker's own code; with a + if files there are changed."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments, "--", "src"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return (git("log", "-1", "--format=%h", "--abbrev=9") or "unknown") + ("+" if git("status", "--porcelain") else "")

"""What `scripts/mutants` has found, in files beside it, and as tables for the documentation."""

from __future__ import annotations

import platform
import tomllib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.mutants.seeded_run import Found, bugs

HERE = Path(__file__).resolve().parent
SEEDED, MODEL, REASONS = HERE / "results_seeded.json", HERE / "results_model.json", HERE / "survivors.toml"
ENOUGH = 0.9
"""The part of the changes of the model that tests must notice."""


class Caught(msgspec.Struct, frozen=True):
    """One bug of the table, when it was planted last."""

    name: str
    outcome: str
    by: str
    on: str


class Changes(msgspec.Struct, frozen=True):
    """What became of the first so many changes of the model, in the order of a seed."""

    seed: int
    digest: str
    """Of the rules and their tests."""
    total: int
    tried: int = 0
    killed: int = 0
    survivors: list[str] = []
    on: str = ""
    python: str = ""

    @property
    def score(self) -> float:
        """The part that tests noticed."""
        return self.killed / max(self.tried, 1)

    def more(self, killed: int, survivors: Sequence[str]) -> Changes:
        """With the changes that were tried next."""
        return msgspec.structs.replace(
            self,
            tried=self.tried + killed + len(survivors),
            killed=self.killed + killed,
            survivors=sorted([*self.survivors, *survivors]),
            on=today(),
            python=platform.python_version(),
        )


def keep_seeded(found: Sequence[Found]) -> None:
    """Write what was found; bugs that were not planted keep their result, those that are no longer there lose it."""
    now = {one.name: Caught(one.name, one.outcome, one.by, today()) for one in found}
    kept = {one.name: one for one in seeded()} | now
    _write(SEEDED, [kept[bug.name] for bug in bugs() if bug.name in kept])


def keep_model(changes: Changes) -> None:
    _write(MODEL, changes)


def seeded() -> list[Caught]:
    return msgspec.json.decode(SEEDED.read_bytes(), type=list[Caught]) if SEEDED.exists() else []


def model() -> Changes:
    return msgspec.json.decode(MODEL.read_bytes(), type=Changes)


def reasons() -> dict[str, str]:
    """Why a change that survives does no harm, by its name."""
    rows = tomllib.loads(REASONS.read_text("utf-8")).get("survivor", [])
    return {name: row["reason"] for row in rows for name in row["changes"]}


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def _write(path: Path, what: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=1) + b"\n")


# --- for the documentation ----------------------------------------------------------------------------------------


def seeded_table() -> str:
    """The bugs by the parts that meet: how many there are, how many were caught, and one of them."""
    caught = {one.name for one in seeded() if one.outcome == "caught"}
    known = bugs()
    rows = ["| Where | Bugs | Caught | For example |", "| --- | --- | --- | --- |"]
    for meet, n in Counter(one.meet for one in known).items():
        some = [one for one in known if one.meet == meet]
        rows.append(f"| {meet} | {n} | {sum(one.name in caught for one in some)} | {some[0].name} |")
    return "\n".join([*rows, f"| **all** | **{len(known)}** | **{len(caught)}** | |"])


def model_line() -> str:
    """The last run over the model, in a sentence."""
    found = model()
    return (
        f"On {found.on}, with Python {found.python}: of {found.total:,} changes {found.tried:,} were tried, drawn from "
        f"all by seed {found.seed}, and the tests noticed {found.killed:,} of them, {found.score:.1%}."
    )


PARTS = {"seeded bugs": seeded_table, "model mutants": model_line}

"""The disk fails under an open engine: full, read-only, broken, slow to recover."""

from __future__ import annotations

import random
import secrets
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.faults.sqlite.audit import audit, stored_ids
from tests.faults.sqlite.harm import harmed
from tests.faults.sqlite.syscalls import READS, WRITES, library
from tests.faults.zygote import Zygote

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(600)]

replaceable = pytest.mark.skipif(
    library() is None, reason="this SQLite's system calls cannot be replaced: faults of the disk cannot be shown"
)

# What fails, with what, for how long; and the errors a caller may see.
KINDS: list[tuple[str, tuple[str, ...], str, int, set[str]]] = [
    ("write once", WRITES, "EIO", 1, {"EngineUnavailable"}),
    ("write for a while", WRITES, "EIO", 12, {"EngineUnavailable"}),
    ("full once", WRITES, "ENOSPC", 1, {"EngineFull"}),
    ("full for a while", WRITES, "ENOSPC", 12, {"EngineFull"}),
    ("read-only for a while", WRITES, "EROFS", 6, {"EngineUnavailable", "EngineReadOnly"}),
    # SQLite itself calls a file damaged whose disk cannot read it.
    ("read once", READS, "EIO", 1, {"EngineUnavailable", "CorruptRecord"}),
    ("read for a while", READS, "EIO", 6, {"EngineUnavailable", "CorruptRecord"}),
    ("read elsewhere", READS, "ESTALE", 3, {"EngineUnavailable"}),
    ("truncate", ("ftruncate",), "EIO", 2, {"EngineUnavailable"}),
    ("unlink", ("unlink",), "EIO", 2, {"EngineUnavailable"}),
]


@replaceable
@pytest.mark.spec("FAULT-20", "FAULT-21", "FAULT-22")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_any_call_may_fail(zygote: Zygote, tmp_path: Path, campaign: bool, journal: str) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    runs = struck = acknowledged = 0
    seen: set[str] = set()
    for name, calls, error, times, allowed in KINDS:
        places = range(1, 400) if campaign else sorted(chance.sample(range(1, 120), 2))
        for at in places:
            told = run(zygote, tmp_path, calls, at, times, error, journal)
            about = f"{name} at {at} ({journal}, seed {seed})"
            assert set(told["during"]["errors"]) <= allowed, f"{about}: {told['during']['words']}"
            assert told["after"]["errors"] == [], f"{about}: {told['after']['words']}"
            runs, struck = runs + 1, struck + bool(told["struck"])
            acknowledged += len(told["during"]["inserted"])
            seen.update(told["during"]["errors"])
            if campaign and not told["struck"]:
                break
    print(f"{runs} runs, {struck} struck, {acknowledged} inserts acknowledged meanwhile, 0 lost; errors {sorted(seen)}")
    assert struck > runs / 4


@replaceable
@pytest.mark.spec("FAULT-23")
def test_opening_may_fail_and_be_tried_again(zygote: Zygote, tmp_path: Path, campaign: bool) -> None:
    failed = 0
    for calls, error in (
        (WRITES, "ENOSPC"),
        (WRITES, "EIO"),
        (READS, "EIO"),
        (("open",), "EMFILE"),
        (("mmap",), "ENOMEM"),
    ):
        for at in range(1, 40 if campaign else 3):
            told = run(zygote, tmp_path, calls, at, 1, error, "wal", opening=True)
            failed += len(told["during"]["errors"])
            allowed = {
                "EngineUnavailable",
                "EngineFull",
                *(["CorruptRecord"] if calls is READS else ["EngineReadOnly"]),
            }
            assert set(told["during"]["errors"]) <= allowed, told["during"]["words"]
            assert told["after"]["errors"] == []
    assert failed


def run(
    zygote: Zygote, folder: Path, calls: Any, at: int, times: int, error: str, journal: str, **more: Any
) -> dict[str, Any]:
    place = folder / "place"
    place.mkdir()
    told: dict[str, Any] = zygote.call(
        harmed, folder=str(place), calls=list(calls), at=at, times=times, error=error, journal=journal, **more
    ).answer
    judge(place / "jobs.db", told["during"], told["after"])
    shutil.rmtree(place)
    return told


def judge(path: Path, *told: dict[str, Any]) -> None:
    """Nothing acknowledged is lost, and the file is sound."""
    assert audit(path) == []
    inserted = {job for one in told for job in one["inserted"]}
    done = {job for one in told for job in one["done"]}
    assert inserted <= {job.hex() for job in stored_ids(path)}
    with closing(sqlite3.connect(path)) as connection:
        assert done <= {job.hex() for (job,) in connection.execute("SELECT id FROM stoker_done WHERE status = 3")}

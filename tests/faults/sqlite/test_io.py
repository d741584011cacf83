"""The disk fails under an open engine: full, read-only, broken, slow to recover."""

from __future__ import annotations

import random
import secrets
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.sqlite.audit import audit, stored_ids
from tests.faults.sqlite.failing_disk import use_failing_disk
from tests.faults.sqlite.syscalls import READS, WRITES, library

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(600)]

replaceable = pytest.mark.skipif(
    library() is None, reason="this SQLite's system calls cannot be replaced: faults of the disk cannot be shown"
)

Kind: TypeAlias = tuple[str, tuple[str, ...], str, int, set[str]]
"""What fails, with what, for how long; and the errors a caller may see."""

KINDS: list[Kind] = [
    ("write once", WRITES, "EIO", 1, {"EngineUnavailable"}),
    ("write for a while", WRITES, "EIO", 12, {"EngineUnavailable"}),
    ("full once", WRITES, "ENOSPC", 1, {"EngineFull"}),
    ("full for a while", WRITES, "ENOSPC", 12, {"EngineFull"}),
    ("read-only for a while", WRITES, "EROFS", 6, {"EngineUnavailable", "EngineReadOnly"}),
    # SQLite itself calls a file damaged whose disk cannot read it: Stoker looks again.
    ("read once", READS, "EIO", 1, {"EngineUnavailable"}),
    ("read for a while", READS, "EIO", 6, {"EngineUnavailable"}),
    ("read elsewhere", READS, "ESTALE", 3, {"EngineUnavailable"}),
    ("truncate", ("ftruncate",), "EIO", 2, {"EngineUnavailable"}),
    ("unlink", ("unlink",), "EIO", 2, {"EngineUnavailable"}),
]


@replaceable
@pytest.mark.spec("FAULT-20", "FAULT-21", "FAULT-22", "FAULT-25")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_any_call_may_fail(
    fork_server: ForkServer, other_fork_server: ForkServer, tmp_path: Path, campaign: bool, journal: str
) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    places = [range(1, 400) if campaign else sorted(chance.sample(range(1, 120), 2)) for _ in KINDS]
    work = list(zip(KINDS, places, strict=True))
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(
            suffer,
            (fork_server, other_fork_server),
            (tmp_path / "a", tmp_path / "b"),
            (work[::2], work[1::2]),
            [journal] * 2,
        )
        runs = [report for half in halves for report in half]
    struck = sum(bool(report["struck"]) for report in runs)
    acknowledged = sum(len(report["during"]["inserted"]) for report in runs)
    seen = {error for report in runs for error in report["during"]["errors"]}
    print(f"{len(runs)} runs, {struck} struck, {acknowledged} inserts acknowledged meanwhile, 0 lost; errors {seen}")
    assert struck > len(runs) / 4


def suffer(fork_server: ForkServer, folder: Path, work: list[tuple[Kind, Any]], journal: str) -> list[dict[str, Any]]:
    """Fail at each of the places, one by one; returns all reports."""
    folder.mkdir()
    runs = []
    for (name, calls, error, times, allowed), places in work:
        for at in places:
            report = run(fork_server, folder, calls, at, times, error, journal)
            about = f"{name} at {at} ({journal})"
            assert set(report["during"]["errors"]) <= allowed, f"{about}: {report['during']['words']}"
            assert report["after"]["errors"] == [], f"{about}: {report['after']['words']}"
            runs.append(report)
            if len(places) > 2 and not report["struck"]:
                break
    return runs


@replaceable
@pytest.mark.spec("FAULT-23")
def test_opening_may_fail_and_be_tried_again(fork_server: ForkServer, tmp_path: Path, campaign: bool) -> None:
    failed = 0
    for calls, error in (
        (WRITES, "ENOSPC"),
        (WRITES, "EIO"),
        (READS, "EIO"),
        (("open",), "EMFILE"),
        (("mmap",), "ENOMEM"),
    ):
        for at in range(1, 40 if campaign else 3):
            report = run(fork_server, tmp_path, calls, at, 1, error, "wal", opening=True)
            failed += len(report["during"]["errors"])
            allowed = {
                "EngineUnavailable",
                "EngineFull",
                *([] if calls is READS else ["EngineReadOnly"]),
            }
            assert set(report["during"]["errors"]) <= allowed, report["during"]["words"]
            assert report["after"]["errors"] == []
    assert failed


def run(
    fork_server: ForkServer, folder: Path, calls: Any, at: int, times: int, error: str, journal: str, **more: Any
) -> dict[str, Any]:
    place = folder / "place"
    place.mkdir()
    report: dict[str, Any] = fork_server.call(
        use_failing_disk, folder=str(place), calls=list(calls), at=at, times=times, error=error, journal=journal, **more
    ).answer
    judge(place / "jobs.db", report["during"], report["after"])
    shutil.rmtree(place)
    return report


def judge(path: Path, *reports: dict[str, Any]) -> None:
    """Nothing acknowledged is lost, and the file is sound."""
    assert audit(path) == []
    inserted = {job for one in reports for job in one["inserted"]}
    done = {job for one in reports for job in one["done"]}
    assert inserted <= {job.hex() for job in stored_ids(path)}
    with closing(sqlite3.connect(path)) as connection:
        assert done <= {job.hex() for (job,) in connection.execute("SELECT id FROM stoker_done WHERE status = 3")}

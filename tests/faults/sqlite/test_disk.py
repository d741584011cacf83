"""Real faults of a real disk: syncs that fail, a file system that is full or turns read-only under an open engine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.engines.sqlite import SqliteEngine
from tests.faults.fork_server import ROOT
from tests.faults.sqlite.audit import audit, stored_ids
from tests.faults.sqlite.failing_disk import mounting
from tests.faults.sqlite.images import have_strace

pytestmark = pytest.mark.engine("sqlite")

WITHIN = 240.0


def acknowledged(folder: Path) -> tuple[set[str], list[str]]:
    """Return the acknowledged inserts and the errors of a `acknowledged_work` run."""
    lines = [line.split(" ") for line in (folder / "acknowledged").read_text().splitlines()]
    return {job for word, job in lines if word == "insert"}, [name for word, name in lines if word == "error"]


@pytest.mark.spec("FAULT-24")
@pytest.mark.parametrize(("journal", "when"), [("wal", "2"), ("wal", "3..6"), ("delete", "3"), ("delete", "3..6")])
async def test_a_sync_that_fails_is_an_error_and_never_an_acknowledgement(
    tmp_path: Path, journal: str, when: str
) -> None:
    if missing := have_strace():
        pytest.skip(
            f"syncs cannot be made to fail here, so acknowledgements on a failing disk are not shown: {missing}"
        )
    path = tmp_path / "jobs.db"
    await SqliteEngine(path, journal=journal).migrate()  # type: ignore[arg-type]
    command = [
        *("strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"),
        *("-e", f"inject=fdatasync,fsync:error=EIO:when={when}"),
        *(sys.executable, "-m", "tests.faults.sqlite.acknowledged_work", str(tmp_path), "12", "power", journal),
    ]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    inserted, errors = acknowledged(tmp_path)
    assert set(errors) == {"EngineUnavailable"}
    assert len(inserted) >= 12, "it goes on once the disk does"
    assert inserted <= {job.hex() for job in stored_ids(path)}
    assert audit(path) == []


MOUNTED = """
import asyncio, json, os, subprocess, sys, time
from pathlib import Path
from stoker.engines.sqlite import SqliteEngine
from stoker.model.ids import Mint
from tests.faults.sqlite.audit import audit, stored_ids
from tests.faults.sqlite.failing_disk import Log, use

def fill(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(fd, bytes(1024))
    except OSError:
        os.close(fd)

async def main(folder, how):
    mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
    engine = SqliteEngine(folder / "jobs.db", busy_timeout=2)
    await engine.open()
    before, during, after = Log(), Log(), Log()
    await use(engine, before, 2, mint)
    if how == "full":
        fill(folder / "ballast")
        await use(engine, during, 12, mint)
        (folder / "ballast").unlink()
    else:
        await engine.close()
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        await during.asking(engine.open())
        subprocess.run(["mount", "-o", "remount,bind,rw", str(folder)], check=True)
        await engine.open()
    await use(engine, after, 2, mint)
    await asyncio.wait_for(engine.close(), 60)
    stored = {job.hex() for job in stored_ids(folder / "jobs.db")}
    logs = [before, during, after]
    print(json.dumps({
        "errors": [sorted(set(log.errors)) for log in logs],
        "words": during.words[:1],
        "acknowledged": [len(log.inserted) for log in logs],
        "lost": sum(job not in stored for log in logs for job in log.inserted),
        "complaints": audit(folder / "jobs.db"),
    }))

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
asyncio.run(main(folder, sys.argv[2]))
"""


@pytest.mark.spec("FAULT-20", "FAULT-21")
@pytest.mark.parametrize(("how", "error"), [("full", "EngineFull"), ("read-only", "EngineReadOnly")])
def test_a_file_system_that_is_full_or_read_only_for_a_while(tmp_path: Path, how: str, error: str) -> None:
    way = mounting()
    if way is None:
        pytest.skip("no file system can be mounted here: a full disk is shown only by failing calls")
    done = subprocess.run(
        [*way, sys.executable, "-c", MOUNTED, str(tmp_path), how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(report)
    assert report["errors"] == [[], [error], []]
    assert report["lost"] == 0
    assert report["complaints"] == []
    assert report["acknowledged"][2] == 6

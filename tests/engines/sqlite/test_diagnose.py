"""What a check-up finds about a SQLite file, with each trouble provoked.

The engine sets `synchronous` on each of its connections, so a weaker one than was asked for cannot be provoked: its
rule is tested by facts. Which version SQLite has is not ours to choose.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.engines.sqlite.connection import VERSION
from stoker.engines.sqlite.file_checks import version_warning
from stoker.model.health import sqlite
from stoker.model.health.check import Check, Grade
from stoker.model.job import Draft
from tests.faults.sqlite.failing_disk import mounting

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.spec("HEALTH-03")]


async def complaints(engine: SqliteEngine) -> dict[str, Check]:
    facts = (await engine.diagnose()).sqlite
    assert facts is not None
    return {check.name: check for check in sqlite.judge(facts) if check.verdict is not Grade.OK}


async def test_the_version_rights_and_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    engine = SqliteEngine(path)
    await engine.open()
    try:
        known = version_warning(tuple(map(int, VERSION.split(".")))) is not None
        assert set(await complaints(engine)) == ({"version"} if known else set())
        path.chmod(0o644)
        assert (await complaints(engine))["file rights"].verdict is Grade.NOTE
        path.chmod(0o600)
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: 4_000_000_000)
            if os.getuid() != 0:
                assert "owned by" in (await complaints(engine))["file rights"].read
        monkeypatch.setattr(sqlite, "LONG_LOG", 1 << 20)
        reader = sqlite3.connect(path)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM stoker_body").fetchall()
        for n in range(8):
            await engine.jobs.insert([Draft(bytes([n + 1]) * 16, "work", b'"' + b"x" * (512 << 10) + b'"')])
        assert (await complaints(engine))["write-ahead log"].verdict is Grade.WARNING
        reader.close()
    finally:
        await engine.close()


FULL = """
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", sys.argv[1]], check=True)
url = f"sqlite:///{sys.argv[1]}/jobs.db"
make = "import asyncio, sys; from stoker import Stoker; app = Stoker(sys.argv[1]); app.run(app.open())"
subprocess.run([sys.executable, "-c", make, url], check=True)
sys.exit(subprocess.run(["stoker", "doctor", "--url", url, "--json"]).returncode)
"""


def test_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    way = mounting()
    if way is None:
        pytest.skip("no file system can be mounted here: a full disk is shown by its facts only")
    done = subprocess.run(
        [*way, sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    checks = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stderr
    assert checks["disk space"]["verdict"] == "wrong"

"""`stoker demo`, and `scripts/demo` which calls it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spec("DEMO-01", "DEMO-02")
def test_the_demo_ends_well_and_sums_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stoker", "demo", "--jobs", "1900"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in done.stdout.splitlines() if "  " in line)
    assert rows["jobs"] == "1,900"
    assert (rows["done"], rows["dead"], rows["canceled"], rows["retried"]) == ("1,898", "1", "1", "48")
    for name in ("enqueue to finish", "claim to finish"):
        assert re.fullmatch(r"p50 [\d.]+ m?s · p95 [\d.]+ m?s · p99 [\d.]+ m?s", rows[name])
    assert "jobs/s" in rows["speed"]
    assert "sqlite" in rows["store"]
    assert "demo.db" in rows["store"]
    assert rows["durability"]
    assert "\x1b" not in done.stdout
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"


def test_the_script_runs_the_demo() -> None:
    assert 'exec python -m stoker demo "$@"' in (ROOT / "scripts" / "demo").read_text()

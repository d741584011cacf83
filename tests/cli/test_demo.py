"""`stoker demo`, and `scripts/demo` which calls it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
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
    assert not done.stderr
    assert "WAL-reset" not in done.stdout
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"


def test_the_script_runs_the_demo() -> None:
    assert 'exec python -m stoker demo "$@"' in (ROOT / "scripts" / "demo").read_text()


def test_the_help_of_the_script_names_the_shop() -> None:
    done = subprocess.run([ROOT / "scripts" / "demo", "--help"], capture_output=True, text=True, check=True)
    assert "--jobs" in done.stdout
    assert "scripts/demo --serve [PORT]" in done.stdout


@pytest.mark.spec("DEMO-03")
def test_the_demo_shop_prints_the_address_with_its_key(tmp_path: Path) -> None:
    assert 'python scripts/shop.py "$folder/shop.db" --serve' in (ROOT / "scripts" / "demo").read_text()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(ROOT / "scripts" / "shop.py"), str(tmp_path / "shop.db"), "--serve", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shop:
        try:
            assert shop.stdout is not None
            said = shop.stdout.readline()
            found = re.search(rf"http://127\.0\.0\.1:{port}/\?key=([\w-]+)", said)
            assert found is not None, said
            assert _answer(f"http://127.0.0.1:{port}/", "") == 401
            assert _answer(f"http://127.0.0.1:{port}/", found[1]) == 200
            assert str(tmp_path / "shop.log") in shop.stdout.readline()
        finally:
            shop.send_signal(signal.SIGINT)
            rest = shop.communicate(timeout=90)
    assert rest == ("", ""), "nothing scrolls the address away"


def _answer(address: str, key: str) -> int:
    """The status of the answer, as soon as there is one."""
    until = time.monotonic() + 60
    while True:
        try:
            request = urllib.request.Request(address, headers={"Authorization": f"Bearer {key}"})
            with urllib.request.urlopen(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)

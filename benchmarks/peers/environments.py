"""An environment for each of the other systems, made once and kept in a cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.pins import NODE, PYTHON

LONGEST = 600.0
"""Seconds that an installation may take."""


class NotInstalled(Exception):
    """A system is left out, and the output says why."""


def cache() -> Path:
    """Where environments are kept."""
    given = os.environ.get("STOKER_BENCH_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "stoker-bench"


def environment(name: str) -> Path:
    """The program that runs this system's code, installed if need be."""
    if name == "stoker":
        return Path(sys.executable)
    pins = PYTHON.get(name) or NODE[name]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    mark = hashlib.sha256(repr((pins, version)).encode()).hexdigest()[:10]
    folder = cache() / f"{name}-{mark}"
    program = folder / "bin" / "python" if name in PYTHON else folder / "node_modules" / ".bin" / "node"
    done = folder / "complete"
    if not done.exists():
        print(f"stoker: installing {' '.join(pins)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in _commands(name, folder):
            _run(command, folder)
        done.touch()
    return program


def _commands(name: str, folder: Path) -> list[list[str]]:
    if name in PYTHON:
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        return [[sys.executable, "-m", "venv", str(folder)], [*pip, *PYTHON[name]]]
    if shutil.which("npm") is None:
        raise NotInstalled("there is no npm on this machine")
    return [["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error", *NODE[name]]]


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{command[0]} took longer than {LONGEST:.0f} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["no message"]
        raise NotInstalled(errors[-1].strip()[:300])

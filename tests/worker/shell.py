"""`stoker work` in a real process, and what tests want to know about it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.model.job import Job
from stoker.model.query import Query

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.worker.apps.marked:jobs"
PATIENCE = 90.0


def until(met: Callable[[], Any], limit: float = PATIENCE, what: str = "") -> Any:
    """Poll until `met` gives something true."""
    end = time.monotonic() + limit
    asked = time.monotonic()
    while not (found := met()):
        now = time.monotonic()
        if now > end:
            raise AssertionError(f"not within {limit:g} s: {what or met}")
        time.sleep(max(0.01, 2 * (now - asked)))  # a look that costs much leaves the machine to those it looks at
        asked = time.monotonic()
    return found


@dataclass(frozen=True)
class Mark:
    what: str
    kind: str
    job: str
    attempt: int
    pid: int
    at: float


class Deployment:
    """A store in a folder, the marks that handlers leave there, and commands that work on it."""

    def __init__(self, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.ready_file = folder / "ready"
        self.environ = {
            **environ,
            "STOKER_URL": self.url,
            "MARKS": str(folder / "marks"),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "default",
        }

    def move_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this very process be a part of the deployment: the app it imports next is the deployment's."""
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delitem(sys.modules, APP.partition(":")[0], raising=False)

    def marks(self, what: str | None = None) -> list[Mark]:
        path = self.folder / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [
            Mark(fields[0], fields[1], fields[2], int(fields[3]), int(fields[4]), float(fields[5]))
            for fields in map(str.split, lines)
        ]
        return [mark for mark in found if what is None or mark.what == what]

    def enqueue(self, kind: str, *payloads: dict[str, Any], **options: Any) -> list[str]:
        """Put jobs into the store by name, as another program would."""

        async def put() -> list[str]:
            jobs = Stoker(self.url)
            jobs.declare(kind)
            async with jobs:
                return [(await jobs.enqueue(jobs.draft(kind, payload, **options))).id for payload in payloads]

        return asyncio.run(put())

    def records(self) -> list[Job]:
        async def look() -> list[Job]:
            async with Stoker(self.url) as jobs:
                return (await (await jobs.engine()).operator.find(Query(limit=1000, order="oldest"))).jobs

        return asyncio.run(look())

    @contextmanager
    def command(self, *arguments: str, cwd: Path = ROOT, **environ: str) -> Iterator[Command]:
        log = (self.folder / f"log-{time.monotonic_ns()}").open("w+b")
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        command = Command(process, Path(log.name))
        try:
            yield command
        except BaseException as error:
            error.add_note(command.log)
            raise
        finally:
            command.end()
            log.close()

    def work(self, *options: str, app: str = APP, ready: bool = True, cwd: Path = ROOT, **environ: str) -> Any:
        """`stoker work`, at work when the block is entered."""
        arguments = ["-m", "stoker", "work", app, "--health-file", str(self.ready_file), *options]
        return self._when_ready(arguments, cwd, environ) if ready else self.command(*arguments, cwd=cwd, **environ)

    @contextmanager
    def _when_ready(self, arguments: list[str], cwd: Path, environ: dict[str, str]) -> Iterator[Command]:
        with self.command(*arguments, cwd=cwd, **environ) as command:
            until(lambda: self.ready_file.exists() or command.process.poll() is not None, what="ready")
            yield command


class Command:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.known: set[int] = set()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            found = [int(pid) for pid in path.read_text().split()]
        except OSError:
            found = []
        found = [pid for pid in found if alive(pid)]
        self.known.update(found)
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, limit: float = PATIENCE) -> int:
        return self.process.wait(limit)

    def end(self) -> None:
        _ = self.children
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.known:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Is there such a process, and is it more than a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

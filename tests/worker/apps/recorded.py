"""Handlers that leave a line when they start, end or are stopped, over an engine that writes its history."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.app import Stoker
from stoker.context import current
from stoker.model.retry import Fixed
from tests.worker.recording_engine import RecordingEngine

jobs = Stoker(RecordingEngine(os.environ["STORE"]), attempts=1_000, backoff=Fixed(0))


def mark(what: str) -> None:
    run = current()
    line = f"{what} {run.kind} {run.id} {run.attempt} {run.token} {os.getpid()} {run.worker} {time.monotonic()}\n"
    descriptor = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@contextmanager
def marked() -> Iterator[None]:
    mark("start")
    try:
        yield
    except asyncio.CancelledError:
        mark("stopped")
        raise
    mark("end")


@jobs.task(crashes=None)
async def nap(seconds: float) -> None:
    """Sleep; a second try is short, so that few jobs are hit again and again."""
    with marked():
        await asyncio.sleep(seconds if current().attempt == 1 else 0.01)


staying: dict[str, str] = {}
"""The job of each kind that stays in this process: one is enough, the others end at once."""


@contextmanager
def stays(flag: str) -> Iterator[Callable[[], bool]]:
    """Must this run stay? A first try does while there is a flag for this process."""
    run = current()
    mine = run.attempt == 1 and staying.setdefault(run.kind, run.id) == run.id
    try:
        yield lambda: mine and Path(f"{flag}-{os.getpid()}").exists()
    finally:
        if mine:
            del staying[run.kind]


@jobs.task(crashes=None)
async def wait(flag: str) -> None:
    with marked(), stays(flag) as must:
        while must():
            await asyncio.sleep(0.02)


@jobs.task(crashes=None)
def watch(flag: str) -> None:
    """The same in a thread, which learns from its token that it should stop."""
    mark("start")
    with stays(flag) as must:
        while must() and not current().cancel:
            time.sleep(0.02)
    mark("stopped" if current().cancel else "end")

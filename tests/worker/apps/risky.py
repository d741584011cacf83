"""Handlers that do to their process what no handler should; every one of them runs in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.app import Stoker
from stoker.context import current
from stoker.model.outcome import Reject, Retry, Snooze, Throttle
from stoker.model.retry import Fixed

tenant_in_scope: ContextVar[str | None] = ContextVar("tenant_in_scope", default=None)


@asynccontextmanager
async def tenant_scope(tenant: str) -> AsyncIterator[None]:
    token = tenant_in_scope.set(tenant)
    yield
    tenant_in_scope.reset(token)


jobs = Stoker("memory://", attempts=2, backoff=Fixed(0.01), tenant_scope=tenant_scope)


@jobs.lifespan
async def pool() -> AsyncIterator[int]:
    yield os.getpid()


@dataclass
class Point:
    x: int
    y: int


def surrounding(call: Callable[[Any], Any], context: Any) -> Any:
    """Plain middleware: runs where a plain handler runs."""
    if context.kind == "surrounded":
        context.metadata["middleware"] = f"{os.getpid()} {threading.get_ident()}"
    return call(context)


jobs.middleware.append(surrounding)


@jobs.task(isolation="process")
def surrounded() -> str:
    return f"{os.getpid()} {threading.get_ident()}"


@jobs.task(isolation="process")
def whoami() -> int:
    return os.getpid()


@jobs.task(isolation="process")
async def mirror(point: Point, *, twice: bool = False) -> Point:
    await asyncio.sleep(0)
    return Point(point.y, point.x) if not twice else point


@jobs.task(isolation="process")
def width(points: list[Point]) -> int:
    return max(point.x for point in points)


@jobs.task(isolation="process")
def chatty() -> dict[str, Any]:
    run = current()
    print('{"type":"ended","kind":"Done","outcome":{}}')
    print("not for the protocol", file=sys.stderr)
    run.progress(0.25)
    run.log("first line", "second line")
    run.metadata["seen"] = "yes"
    run.follow_up(mirror.draft(Point(1, 2)))
    run.logger.warning("from inside")
    return {"attempt": run.attempt, "token": run.token, "pool": pool.state, "pid": os.getpid(), "worker": run.worker}


@jobs.task(isolation="process")
def complains() -> None:
    try:
        raise LookupError("api_key=s3cret is gone")
    except LookupError:
        current().logger.exception("it goes on without it")


@jobs.task(isolation="process", queue="stops")
def saves(started: str) -> str:
    """Waits until it is told that the worker stops, and goes on in the next run."""
    run = current()
    if "page" not in run.metadata:
        run.metadata["page"] = "7"
        Path(started).touch()
        assert run.stopping.wait(60)
        raise Snooze(0)
    return run.metadata["page"]


@jobs.task(isolation="process")
def tenant_seen() -> list[str | None]:
    return [current().tenant, tenant_in_scope.get()]


@jobs.task(isolation="process")
def segfault() -> None:
    ctypes.string_at(0)


@jobs.task(isolation="process", crashes=2, attempts=9)
def leave(code: int) -> None:
    os._exit(code)


@jobs.task(isolation="process")
def abort() -> None:
    os.abort()


@jobs.task(isolation="process", attempts=5, queue="hogs")
def hog() -> int:
    held: list[bytearray] = []
    while len(held) < 64:
        held.append(bytearray(64 << 20))
    return len(held)


@jobs.task(isolation="process", timeout=3, attempts=1)
def stubborn(pids: str) -> None:
    """Swallows everything, and leaves one process in its group and one that detached itself."""
    near = subprocess.Popen(["sleep", "60"])
    far = subprocess.Popen(["sleep", "60"], start_new_session=True)
    Path(pids).write_text(f"{os.getpid()} {near.pid} {far.pid}", encoding="ascii")
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


@jobs.task(isolation="process", timeout=0.3, attempts=1)
async def blocking() -> None:
    time.sleep(60)


@jobs.task(isolation="process", timeout=0.3, attempts=3, give_up_on=TimeoutError)
def slow() -> None:
    time.sleep(60)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


@jobs.task(isolation="process", attempts=1)
def unprintable() -> None:
    raise Unprintable


@jobs.task(isolation="process")
def unencodable() -> object:
    return object()


@jobs.task(isolation="process", retry_on=KeyError)
def not_worth_it() -> None:
    raise ValueError("give up at once")


@jobs.task(isolation="process", retry_if=lambda error: isinstance(error, LookupError))
def worth_it() -> None:
    raise KeyError("again")


@jobs.task(isolation="process")
def leave_politely() -> None:
    sys.exit(3)


@jobs.task(isolation="process")
async def leave_through_a_task() -> None:
    async def goodbye() -> None:
        sys.exit(4)

    task = asyncio.create_task(goodbye())
    await asyncio.sleep(30)
    task.cancel()


@jobs.task(isolation="process", attempts=3)
def exits(which: str) -> None:
    run = current()
    if run.previous_error is not None or Path(os.environ["RISKY_MARK"]).exists():
        return
    if which in ("snooze", "throttle"):
        Path(os.environ["RISKY_MARK"]).touch()
    raise {
        "snooze": Snooze(0.01),
        "throttle": Throttle(0.01, queue=False),
        "retry": Retry("not yet", delay=0.01),
        "reject": Reject("never"),
    }[which]


@jobs.task(isolation="process")
async def wait_for_cancel() -> None:
    current().log("waiting")
    await asyncio.sleep(60)


@jobs.task(isolation="process")
def watch_token() -> str:
    current().log(str(os.getpid()))
    while not current().cancel:
        time.sleep(0.005)
    raise RuntimeError(f"stopped: {current().cancel.reason}")


@jobs.task(isolation="process")
def told_to_stop() -> tuple[int, bool]:
    return os.getpid(), bool(current().cancel)


@jobs.task(isolation="process")
def deaf() -> None:
    current().log(str(os.getpid()))
    while True:
        time.sleep(0.05)


@jobs.task(isolation="process")
def wander() -> int:
    os.chdir("/")
    return os.getpid()


@jobs.task(isolation="process")
def talk(level: int) -> None:
    logging.getLogger("risky").log(level, "a line \x1b[31mof log")


@jobs.task
def ordinary() -> int:
    return os.getpid()

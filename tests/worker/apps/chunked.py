"""Chunks whose handler leaves a line per job when it starts and when it ends, and may die half-way."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from stoker import Chunk, Context, Stoker, current
from stoker.model.retry import Fixed


async def whole(call: Callable[[Context], Awaitable[object]], run: Context) -> object:
    """A call returns the list of its jobs, also where a job runs alone in another process."""
    answer = await call(run)
    assert isinstance(answer, list)
    assert len(answer) == len(run.items)
    return answer


jobs = Stoker(backoff=Fixed(0.05), middleware=[whole])


def mark(what: str, item: Context) -> None:
    line = f"{what} {item.kind} {item.id} {item.attempt} {os.getpid()} {time.time()}\n"
    descriptor = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@jobs.task(chunk=Chunk(20, within=0.2))
async def index(names: list[str]) -> list[str | BaseException] | None:
    """A name that is a path holds up the call until the file is there."""
    for item in current().items:
        mark("start", item)
    for name in names:
        while name.startswith("/") and not Path(name).exists():
            await asyncio.sleep(0.01)
    for item in current().items:
        mark("end", item)
    return [name.upper() for name in names]


@jobs.task(chunk=Chunk(4, within=0.2))
def fragile(names: list[str]) -> list[str | BaseException] | None:
    """Dies with its process at the name `poison`."""
    for item in current().items:
        mark("start", item)
    if "poison" in names:
        os.kill(os.getpid(), signal.SIGKILL)
    return [name.upper() for name in names]

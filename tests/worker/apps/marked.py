"""Handlers that leave a line in a file when they start and when they end, so that tests can count runs."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
import time
from pathlib import Path

from stoker.app import Stoker
from stoker.context import current
from stoker.model.retry import Fixed

jobs = Stoker(backoff=Fixed(0.05))


def mark(what: str) -> None:
    run = current()
    line = f"{what} {run.kind} {run.id} {run.attempt} {os.getpid()} {time.time()}\n"
    descriptor = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@jobs.task
async def quick(n: int) -> int:
    mark("start")
    return n


@jobs.task
async def hold(flag: str) -> None:
    """Block the loop until the file is there; a later attempt does not."""
    mark("start")
    while current().attempt == 1 and not Path(flag).exists():
        time.sleep(0.005)


@jobs.task
async def rest(flag: str) -> None:
    """Wait until the file is there."""
    mark("start")
    while not Path(flag).exists():
        await asyncio.sleep(0.005)
    mark("end")


@jobs.task
async def nap(seconds: float) -> None:
    mark("start")
    await asyncio.sleep(seconds)
    mark("end")


@jobs.task
async def nap_once(seconds: float) -> None:
    mark("start")
    if current().attempt == 1:
        await asyncio.sleep(seconds)
    mark("end")


@jobs.task(isolation="process")
def nap_alone(seconds: float) -> None:
    mark("start")
    if current().attempt == 1:
        time.sleep(seconds)
    mark("end")


kept: list[bytearray] = []


@jobs.task
async def bloat(mib: int) -> None:
    """Hold on to memory for good."""
    mark("start")
    kept.append(bytearray(b"x") * (mib << 20))


@jobs.task(isolation="process")
def alone() -> None:
    mark("start")


@jobs.task
def segfault() -> None:
    mark("start")
    ctypes.string_at(0)


@jobs.task
def vanish() -> None:
    """End the process as if all were well, without a word to the supervisor."""
    mark("start")
    os._exit(0)


@jobs.task
async def block(seconds: float) -> None:
    mark("start")
    time.sleep(seconds)


@jobs.task(timeout=0.1, attempts=1)
def stuck(seconds: float) -> None:
    mark("start")
    time.sleep(seconds)


@jobs.task
async def leak_exit() -> None:
    mark("start")

    async def goodbye() -> None:
        sys.exit(5)

    task = asyncio.create_task(goodbye())
    await asyncio.sleep(0.3)
    task.cancel()
    mark("end")


@jobs.task
async def shout() -> None:
    current().logger.warning("red \x1b[31m alert\nstoker.worker: forged line")


@jobs.task
async def mutter() -> None:
    logging.getLogger("shop").info("an ordinary line")
    logging.getLogger("shop").debug("a line for the shop's own developers")

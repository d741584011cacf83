"""taskiq on Redis streams: the broker of it that acknowledges."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.peer import Ask, PythonPeer, ran, url

if TYPE_CHECKING:
    from taskiq import AsyncBroker


@cache
def made() -> AsyncBroker:
    from taskiq_redis import RedisStreamBroker

    found = RedisStreamBroker(url(), consumer_id="0")

    @found.task(task_name="noop")
    async def noop(n: int) -> None:
        ran(n)

    return found


def broker() -> AsyncBroker:
    """The broker; taskiq's command calls it, and insists on a plain function."""
    return made()


class TaskiqPeer(PythonPeer):
    name = "taskiq"
    environment = "taskiq"
    store = "redis"
    default = "`taskiq worker --workers 1`: 100 tasks at once, streams, uvloop"
    tuned = "the same with a prefetch of 100"
    bulk = "100 calls at once: it has no bulk call"
    finished = "acknowledged; its entry stays in the stream"
    jobs = (1_500, 1_500)
    chunk = 100
    delays = False

    async def open(self) -> None:
        self.broker = made()
        self.task = self.broker.find_task("noop")
        await self.broker.startup()

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        assert delay is None
        await self.task.kiq(number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await asyncio.gather(*(self.task.kiq(number) for number in numbers))

    async def close(self) -> None:
        await self.broker.shutdown()

    def work(self, *, tuned: bool) -> None:
        program = str(Path(sys.executable).with_name("taskiq"))
        prefetch = ["--max-prefetch", "100"] if tuned else []
        options = ["--workers", "1", "--log-level", "ERROR", *prefetch]
        os.execv(program, [program, "worker", f"{__name__}:broker", *options])

    def left(self, ask: Ask) -> int:
        return ask.size("taskiq")


PEERS = (TaskiqPeer(),)

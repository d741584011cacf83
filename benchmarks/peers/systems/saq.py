"""SAQ on Redis and on Postgres."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.peer import Ask, PythonPeer, Store, ran, url


async def noop(_context: dict[str, Any], *, n: int) -> None:
    """The job."""
    ran(n)


class SaqPeer(PythonPeer):
    name = "SAQ"
    environment = "saq"
    default = "concurrency 10, uvloop"
    tuned = "concurrency 50"
    bulk = "100 calls at once: it has no bulk call"
    finished = "kept for 10 minutes"
    chunk = 100

    def __init__(self, store: Store, jobs: tuple[int, int]) -> None:
        self.store = store
        self.jobs = jobs

    def prepare(self) -> None:
        async def connect() -> None:
            await self.open()
            await self.close()

        asyncio.run(connect())

    async def open(self) -> None:
        from saq import Queue

        self.queue = Queue.from_url(url())
        await self.queue.connect()

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        if delay is None:
            await self.queue.enqueue("noop", n=number)
        else:
            await self.queue.enqueue("noop", n=number, scheduled=time.time() + delay)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await asyncio.gather(*(self.queue.enqueue("noop", n=number) for number in numbers))

    async def close(self) -> None:
        await self.queue.disconnect()

    def work(self, *, tuned: bool) -> None:
        import uvloop
        from saq import Worker

        async def run() -> None:
            await self.open()
            await Worker(self.queue, functions=[noop], concurrency=50 if tuned else 10).start()

        uvloop.run(run())

    def left(self, ask: Ask) -> int:
        if self.store == "redis":
            return ask.size("saq:default:incomplete", "saq:default:active")
        return ask.sql("SELECT count(*) FROM saq_jobs WHERE status IN ('queued', 'active')")


PEERS = (SaqPeer("redis", (1_000, 1_000)), SaqPeer("postgres", (400, 400)))

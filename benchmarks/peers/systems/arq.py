"""arq on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.peer import Ask, PythonPeer, ran, url


async def noop(_context: dict[str, Any], n: int) -> None:
    """The job."""
    ran(n)


class ArqPeer(PythonPeer):
    name = "arq"
    environment = "arq"
    store = "redis"
    default = "`max_jobs=10`, `poll_delay=0.5`, uvloop"
    tuned = "`max_jobs=100`, `poll_delay=0.01`, results not kept"
    bulk = "100 calls at once: it has no bulk call"
    finished = "deleted; its result is kept for 1 hour"
    jobs = (200, 1_000)
    chunk = 100
    latency = "tuned"

    async def open(self) -> None:
        from arq import create_pool
        from arq.connections import RedisSettings

        self.pool = await create_pool(RedisSettings.from_dsn(url()))

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        await self.pool.enqueue_job("noop", number, _defer_by=delay)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await asyncio.gather(*(self.pool.enqueue_job("noop", number) for number in numbers))

    async def close(self) -> None:
        await self.pool.aclose()

    def work(self, *, tuned: bool) -> None:
        import uvloop
        from arq.connections import RedisSettings
        from arq.worker import Worker

        options: dict[str, Any] = {"max_jobs": 100, "poll_delay": 0.01, "keep_result": 0} if tuned else {}

        async def run() -> None:
            settings = RedisSettings.from_dsn(url())
            await Worker([noop], redis_settings=settings, handle_signals=False, **options).main()

        uvloop.run(run())

    def left(self, ask: Ask) -> int:
        return ask.size("arq:queue")


PEERS = (ArqPeer(),)

"""procrastinate on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Ask, Copy, PythonPeer, ran, url

if TYPE_CHECKING:
    from procrastinate import App


@cache
def app() -> tuple[App, Any]:
    """The app and its task."""
    from procrastinate import App, PsycopgConnector

    found = App(connector=PsycopgConnector(conninfo=url()))

    @found.task(name="noop")
    async def noop(n: int) -> None:
        ran(n)

    return found, noop


class ProcrastinatePeer(PythonPeer):
    name = "procrastinate"
    environment = "procrastinate"
    store = "postgres"
    default = "`procrastinate worker`: concurrency 1"
    tuned = "concurrency 50, finished jobs deleted"
    bulk = "`batch_defer_async` of 1,000"
    finished = "kept"
    jobs = (300, 400)
    history = (
        Copy("procrastinate_jobs", {"id": "1000000 + number"}),
        Copy("procrastinate_events", {"id": "nextval('procrastinate_events_id_seq')", "job_id": "1000000 + number"}),
    )

    def prepare(self) -> None:
        async def apply() -> None:
            async with app()[0].open_async() as opened:
                await opened.schema_manager.apply_schema_async()

        asyncio.run(apply())

    async def open(self) -> None:
        self.app, self.task = app()
        await self.app.open_async()

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        if delay is None:
            await self.task.defer_async(n=number)
        else:
            await self.task.configure(schedule_in={"milliseconds": round(delay * 1e3)}).defer_async(n=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self.task.batch_defer_async(*({"n": number} for number in numbers))

    async def close(self) -> None:
        await self.app.close_async()

    def work(self, *, tuned: bool) -> None:
        options: dict[str, Any] = {"concurrency": 50, "delete_jobs": "successful"} if tuned else {}

        async def run() -> None:
            async with app()[0].open_async() as opened:
                await opened.run_worker_async(**options)

        asyncio.run(run())

    def left(self, ask: Ask) -> int:
        return ask.sql("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")


PEERS = (ProcrastinatePeer(),)

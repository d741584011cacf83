"""DBOS Transact on Postgres: workflows in a queue, as jobs and with steps."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.peer import STEPS, Ask, Copy, DurablePeer, ran, url

QUEUE = "bench"


class DbosPeer(DurablePeer):
    name = "DBOS"
    environment = "dbos"
    store = "postgres"
    default = "a queue as registered by default: polled every second"
    tuned = "polled every 10 ms, `worker_concurrency=100`"
    bulk = "100 calls at once: it has no bulk call"
    finished = "kept"
    jobs = (600, 600)
    history = (Copy("dbos.workflow_status", {"workflow_uuid": "gen_random_uuid()::text"}),)
    stepped = 60
    chunk = 100
    latency = "tuned"

    def prepare(self) -> None:
        from dbos import DBOS

        self._register()
        DBOS.launch()
        DBOS.destroy()

    def _register(self) -> None:
        from dbos import DBOS

        DBOS(
            config={
                "name": "bench",
                "system_database_url": url(),
                "console_log_level": "ERROR",
                "application_version": "1",
                "executor_id": str(os.getpid()),
            }
        )

        @DBOS.workflow(name="noop")
        def noop(n: int) -> None:
            ran(n)

        @DBOS.step(name="step")
        def step(i: int) -> int:
            return i

        @DBOS.workflow(name="stepped")
        def stepped(n: int) -> None:
            for i in range(STEPS):
                step(i)
            ran(n)

    async def open(self) -> None:
        from dbos import DBOSClient

        self.client = DBOSClient(system_database_url=url(), application_name="bench")

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        options: dict[str, Any] = {"queue_name": QUEUE, "workflow_name": "noop"}
        if delay is not None:
            options["delay_seconds"] = delay
        self.client.enqueue(options, number)

    async def enqueue_many(self, numbers: Sequence[int], kind: str = "noop") -> None:
        options: Any = {"queue_name": QUEUE, "workflow_name": kind}
        await asyncio.gather(*(self.client.enqueue_async(options, number) for number in numbers))

    async def enqueue_stepped(self, numbers: Sequence[int]) -> None:
        await self.enqueue_many(numbers, "stepped")

    async def close(self) -> None:
        self.client.destroy()

    def work(self, *, tuned: bool) -> None:
        from dbos import DBOS

        self._register()
        DBOS.launch()
        options: dict[str, Any] = {"polling_interval_sec": 0.01, "worker_concurrency": 100} if tuned else {}
        DBOS.register_queue(QUEUE, **options)
        signal.pause()

    def left(self, ask: Ask) -> int:
        return ask.sql("SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')")


PEERS = (DbosPeer(),)

"""DBOS Transact on SQLite and Postgres: workflows in a queue, as jobs and with steps."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.peer import STEPS, Ask, Copy, DurablePeer, Store, ran, url

QUEUE = "bench"


class DbosPeer(DurablePeer):
    name = "DBOS"
    environment = "dbos"
    default = "a queue as registered by default: polled every second"
    tuned = "polled every 10 ms, `worker_concurrency=100`"
    bulk = "100 calls at once (SQLite: one after the other): it has no bulk call"
    finished = "kept"
    jobs = (600, 600)
    history = (Copy("dbos.workflow_status", {"workflow_uuid": "gen_random_uuid()::text"}),)
    stepped = 60
    chunk = 100
    latency = "tuned"

    def __init__(self, store: Store) -> None:
        self.store = store

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

        @DBOS.workflow(name="waiting")
        def waiting(n: int) -> None:
            DBOS.recv("answer")
            ran(n)

    async def open(self) -> None:
        from dbos import DBOSClient

        if self.store == "sqlite":  # a new file for every visit; on Postgres the schema is copied
            self.prepare()
        self.client = DBOSClient(system_database_url=url(), application_name="bench")

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        options: dict[str, Any] = {"queue_name": QUEUE, "workflow_name": "noop"}
        if delay is not None:
            options["delay_seconds"] = delay
        self.client.enqueue(options, number)

    async def enqueue_many(self, numbers: Sequence[int], kind: str = "noop") -> None:
        options: Any = {"queue_name": QUEUE, "workflow_name": kind}
        if self.store == "sqlite":  # calls at once fail: the database is locked
            for number in numbers:
                await self.client.enqueue_async(options, number)
        else:
            await asyncio.gather(*(self.client.enqueue_async(options, number) for number in numbers))

    async def enqueue_stepped(self, numbers: Sequence[int]) -> None:
        await self.enqueue_many(numbers, "stepped")

    async def enqueue_waiting(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            options: Any = {"queue_name": QUEUE, "workflow_name": "waiting", "workflow_id": f"waiting-{number}"}
            await self.client.enqueue_async(options, number)

    async def answer(self, number: int) -> None:
        await self.client.send_async(f"waiting-{number}", True, "answer")

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
        table = "workflow_status" if self.store == "sqlite" else "dbos.workflow_status"
        return ask.sql(f"SELECT count(*) FROM {table} WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')")


PEERS = (DbosPeer("sqlite"), DbosPeer("postgres"))

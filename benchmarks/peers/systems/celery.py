"""Celery on Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Ask, PythonPeer, ran, url

if TYPE_CHECKING:
    from celery import Celery


@cache
def app() -> tuple[Celery, Any]:
    """The app and its task."""
    from celery import Celery

    found = Celery("bench", broker=url())
    found.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )

    @found.task(name="noop")
    def noop(n: int) -> None:
        ran(n)

    return found, noop


class CeleryPeer(PythonPeer):
    name = "Celery"
    environment = "celery"
    store = "redis"
    default = "`celery worker -c 1`, `acks_late`, results ignored"
    tuned = "`--pool solo --without-gossip --without-mingle --without-heartbeat`, prefetch 64"
    bulk = "a loop on one producer: it has no bulk call"
    finished = "deleted"
    jobs = (500, 600)

    async def open(self) -> None:
        self.app, self.task = app()

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        self.task.apply_async((number,), countdown=delay)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        with self.app.producer_pool.acquire(block=True) as producer:
            for number in numbers:
                self.task.apply_async((number,), producer=producer)

    def work(self, *, tuned: bool) -> None:
        name = ["-n", f"bench-{os.getpid()}@localhost", "-l", "ERROR"]
        lean = ["--pool", "solo", "--prefetch-multiplier", "64", "--without-gossip", "--without-mingle"]
        app()[0].worker_main(["worker", *name, *([*lean, "--without-heartbeat"] if tuned else ["-c", "1"])])

    def left(self, ask: Ask) -> int:
        return ask.size("celery", "unacked")


PEERS = (CeleryPeer(),)

"""RQ on Redis."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from benchmarks.peers.peer import Ask, PythonPeer, ran, url


def noop(n: int) -> None:
    """The job; RQ finds it by its name."""
    ran(n)


class RqPeer(PythonPeer):
    name = "RQ"
    environment = "rq"
    store = "redis"
    default = "`rq worker --with-scheduler`: a fork for each job"
    tuned = "`SimpleWorker`: no fork"
    bulk = "`enqueue_many` of 1,000"
    finished = "kept for 500 s"
    jobs = (40, 200)
    latency = "tuned"

    async def open(self) -> None:
        from redis import Redis
        from rq import Queue

        self.queue = Queue("default", connection=Redis.from_url(url()))

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        if delay is None:
            self.queue.enqueue(noop, number)
        else:
            self.queue.enqueue_in(timedelta(seconds=delay), noop, number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        self.queue.enqueue_many([self.queue.prepare_data(noop, (number,)) for number in numbers])

    def work(self, *, tuned: bool) -> None:
        kind = "rq.worker.SimpleWorker" if tuned else "rq.worker.Worker"
        program = str(Path(sys.executable).with_name("rq"))
        options = ["-u", url(), "--worker-class", kind, "--with-scheduler", "--logging_level", "ERROR"]
        os.execv(program, [program, "worker", *options, "default"])

    def left(self, ask: Ask) -> int:
        return ask.size("rq:queue:default", "rq:wip:default")


PEERS = (RqPeer(),)

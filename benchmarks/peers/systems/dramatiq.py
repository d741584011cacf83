"""Dramatiq on Redis."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from benchmarks.peers.peer import Ask, PythonPeer, ran, url


@cache
def setup() -> Any:
    """Set the broker and return the actor; Dramatiq's command calls it as well."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=url()))

    @dramatiq.actor(actor_name="noop")
    def noop(n: int) -> None:
        ran(n)

    return noop


class DramatiqPeer(PythonPeer):
    name = "Dramatiq"
    environment = "dramatiq"
    store = "redis"
    default = "`dramatiq --processes 1`: 8 threads"
    tuned = "32 threads"
    bulk = "a loop: it has no bulk call"
    finished = "deleted"
    jobs = (1_500, 2_000)

    async def open(self) -> None:
        self.actor = setup()

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        if delay is None:
            self.actor.send(number)
        else:
            self.actor.send_with_options(args=(number,), delay=round(delay * 1e3))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.actor.send(number)

    def work(self, *, tuned: bool) -> None:
        threads = ["--threads", "32"] if tuned else []
        command = [sys.executable, "-m", "dramatiq", f"{__name__}:setup", "--processes", "1", "--skip-logging"]
        os.execv(sys.executable, [*command, *threads])

    def left(self, ask: Ask) -> int:
        return ask.size("dramatiq:default.msgs")


PEERS = (DramatiqPeer(),)

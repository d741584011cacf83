"""Stoker, with the command that its pages recommend."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import STEPS, Ask, Copy, DurablePeer, Store, ran, url

if TYPE_CHECKING:
    from stoker import Stoker

UNFINISHED = {
    "sqlite": "SELECT (SELECT count(*) FROM stoker_ready) + (SELECT count(*) FROM stoker_running)",
    "postgres": "SELECT (SELECT count(*) FROM stoker.ready)"
    " + (SELECT coalesce(sum(bit_count(open)), 0) FROM stoker.lease)",
}


FRESH = "('01900000-0000-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid"


def __getattr__(name: str) -> Any:
    """`stoker work …:jobs` finds the app here; the benchmark itself makes none."""
    if name != "jobs":
        raise AttributeError(name)
    return app()


@cache
def app() -> Stoker:
    """The app with its two tasks."""
    from stoker import Stoker, current

    jobs = Stoker(url())

    @jobs.task(name="noop")
    async def noop(n: int) -> None:
        ran(n)

    @jobs.task(name="stepped")
    async def stepped(n: int) -> None:
        async def step(i: int) -> int:
            return i

        run = current()
        for i in range(STEPS):
            await run.step(f"step-{i}", step, i)
        ran(n)

    @jobs.task(name="waiting")
    async def waiting(n: int) -> None:
        await current().wait("answer")
        ran(n)

    return jobs


class StokerPeer(DurablePeer):
    name = "Stoker"
    environment = "stoker"
    default = "`stoker work app:jobs`"
    tuned = "100 slots"
    bulk = "`enqueue_many` of 1,000"
    history = (Copy("stoker.job", {"id": FRESH}), Copy("stoker.done", {"id": FRESH}))
    stepped = 1_000
    finished = "kept for 7 days (Redis: 1 hour), with events for the dashboard"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.jobs = (60_000, 60_000)

    async def open(self) -> None:
        self.app = app()
        self.task = self.app.tasks["noop"]
        await self.app.open()

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        if delay is None:
            await self.task.enqueue(number)
        else:
            await self.task.using(delay=delay).enqueue(number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self.app.enqueue_many([self.task.draft(n) for n in numbers])

    async def enqueue_stepped(self, numbers: Sequence[int]) -> None:
        task = self.app.tasks["stepped"]
        await self.app.enqueue_many([task.draft(n) for n in numbers])

    async def enqueue_waiting(self, numbers: Sequence[int]) -> None:
        waiting = self.app.tasks["waiting"]
        self.waiting = {number: await waiting.enqueue(number) for number in numbers}

    async def answer(self, number: int) -> None:
        await self.waiting[number].signal("answer", True)

    async def close(self) -> None:
        await self.app.close()

    def work(self, *, tuned: bool) -> None:
        options = ["-q", "default:100"] if tuned else []
        command = [sys.executable, "-m", "stoker", "work", f"{__name__}:jobs", "--log-level", "error", *options]
        os.execv(sys.executable, command)

    @property
    def keeps(self) -> bool:
        return self.store != "redis"

    def left(self, ask: Ask) -> int:
        if self.store == "redis":
            return ask.size("{stoker}:wait:default", "{stoker}:held:*")
        return ask.sql(UNFINISHED[self.store])


PEERS = tuple(StokerPeer(store) for store in ("sqlite", "redis", "postgres"))

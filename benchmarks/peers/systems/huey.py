"""Huey on SQLite, Redis and Postgres."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Ask, PythonPeer, Store, ran, url

if TYPE_CHECKING:
    from huey import Huey


@cache
def app(store: Store) -> tuple[Huey, Any]:
    """The app on its store, and its task."""
    from huey import PostgresHuey, RedisHuey, SqliteHuey

    if store == "sqlite":
        huey = SqliteHuey("bench", filename=url().removeprefix("sqlite:///"))
    elif store == "redis":
        huey = RedisHuey("bench", url=url())
    else:
        huey = PostgresHuey("bench", dsn=url())

    @huey.task(name="noop")
    def noop(n: int) -> None:
        ran(n)

    return huey, noop


class HueyPeer(PythonPeer):
    name = "Huey"
    environment = "huey"
    default = "1 thread"
    tuned = "4 threads on Redis, else 1"
    bulk = "a loop: it has no bulk call"
    finished = "deleted when a worker takes it"

    def __init__(self, store: Store, jobs: int, unfinished: str) -> None:
        self.store = store
        self.jobs = (jobs, jobs)
        self._unfinished = unfinished

    def prepare(self) -> None:
        app(self.store)[0].storage.flush_all()

    async def open(self) -> None:
        self.prepare()
        self.task = app(self.store)[1]

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        if delay is None:
            self.task(number)
        else:
            self.task.schedule((number,), delay=delay)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.task(number)

    def work(self, *, tuned: bool) -> None:
        logging.getLogger("huey").setLevel(logging.ERROR)
        threads = 4 if tuned and self.store == "redis" else 1
        app(self.store)[0].create_consumer(workers=threads, worker_type="thread").run()

    def left(self, ask: Ask) -> int:
        return ask.size(self._unfinished) if self.store == "redis" else ask.sql(self._unfinished)


PEERS = (
    HueyPeer("sqlite", 2_000, "SELECT count(*) FROM task"),
    HueyPeer("redis", 1_500, "huey.redis.bench"),
    HueyPeer("postgres", 800, "SELECT count(*) FROM huey_task"),
)

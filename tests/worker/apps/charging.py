"""Handlers with blocks, each in a process of its own."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from stoker.app import Stoker
from stoker.context import current
from stoker.model.retry import Fixed

jobs = Stoker(os.environ.get("CHARGING_URL", "memory://"), attempts=3, backoff=Fixed(0.01))


@jobs.task(queue="later")
def ship(n: int) -> None:
    """No worker runs it."""


@jobs.task(isolation="process")
async def own(n: int) -> None:
    async with current().transaction() as tx:
        await tx.execute("insert into effects values (?)", n)
        await ship.enqueue(n)
        tx.result(os.getpid())
        if current().attempt == 1:
            raise ValueError("not yet")


@jobs.task(isolation="process")
def plain(n: int) -> None:
    with current().transaction(lambda: sqlite3.connect(os.environ["CHARGING_PATH"])) as db:
        db.execute("insert into effects values (?)", (n,))
        ship.enqueue_sync(n)


@jobs.task(isolation="process")
async def dies_after(n: int) -> None:
    async with current().transaction() as tx:
        await tx.execute("insert into effects values (?)", n)
        await ship.enqueue(n)
    os._exit(3)


@jobs.task(isolation="process")
async def dies_inside(n: int) -> None:
    async with current().transaction() as tx:
        await tx.execute("insert into effects values (?)", n)
        if current().attempt == 1:
            os._exit(3)
        await ship.enqueue(n)


@contextmanager
def cut(*, happened: bool) -> Iterator[sqlite3.Connection]:
    """A transaction whose commit happens or not, while its answer is lost."""
    db = sqlite3.connect(os.environ["CHARGING_PATH"])
    try:
        yield db
        (db.commit if happened else db.rollback)()
    finally:
        db.close()
    raise ConnectionResetError("the answer was lost")


@jobs.task(isolation="process")
def doubtful(n: int, happened: bool) -> str:
    if current().attempt > 1:
        plain(n)
        return "the second run"
    with suppress(ConnectionResetError), current().transaction(partial(cut, happened=happened)) as db:
        db.execute("insert into effects values (?)", (n,))
        ship.enqueue_sync(n)
    return "fine"


@jobs.task(isolation="process", attempts=1)
async def unshared() -> None:
    async with current().transaction():
        pass

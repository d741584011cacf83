"""What the processes of a storm do: producers, and workers inside a program of the user's own."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final

from lab.place import BACKLOG, CHILD_MEMORY, LEASE
from lab.workloads import WORKLOADS, Producer
from stoker import Worker
from stoker.errors import EngineError
from stoker.model.job import Status

AWAY: Final = 75
"""How a process ends that could not begin because its store was away."""

TASKS: Final = 4
"""Calls that a producer makes at the same time."""


async def produce(seed: int) -> None:
    """Put work for ever; it is killed."""
    app = importlib.import_module("lab.app")
    by = Producer(app, seed)
    chosen = [one for one in WORKLOADS if one.put and (app.PLACE.transactional or not one.transactional)]
    weights = [one.share for one in chosen]
    async with app.jobs, asyncio.TaskGroup() as tasks:
        by.spawn = tasks.create_task
        engine = await app.jobs.engine()

        async def put() -> None:
            while True:
                [workload] = by.chance.choices(chosen, weights)
                assert workload.put
                await workload.put(by)
                await asyncio.sleep(by.chance.uniform(0, 0.05))
                await pause(engine)

        for _ in range(TASKS):
            tasks.create_task(put())


async def pause(engine: Any) -> None:
    """Wait while there is more work than workers get done."""
    while True:
        try:
            counts = (await engine.operator.census()).by_status()
        except EngineError:
            return
        if counts[Status.PENDING] < BACKLOG:
            return
        await asyncio.sleep(0.2)


async def work(_seed: int) -> None:
    """A worker inside a program, for ever; it is killed."""
    app = importlib.import_module("lab.app")
    async with app.jobs, Worker(app.jobs, lease=LEASE, child_memory=CHILD_MEMORY):
        await asyncio.Event().wait()


def live(life: Callable[[int], Coroutine[Any, Any, None]], seed: int) -> None:
    """Be such a process, and end with `AWAY` if the store was away at its start."""
    logging.getLogger("stoker").setLevel(logging.ERROR)
    try:
        asyncio.run(life(seed))
    except BaseException as error:  # noqa: BLE001 - a process that ends says why
        if isinstance(error, EngineError) or (isinstance(error, ExceptionGroup) and not error.split(EngineError)[1]):
            os._exit(AWAY)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

"""A handler that emits until it is killed; the next run emits a little and ends."""

from __future__ import annotations

import asyncio

from stoker.app import Stoker
from stoker.context import current
from stoker.model.retry import Fixed

jobs = Stoker(backoff=Fixed(0.05))


@jobs.task(attempts=3)
async def talk() -> None:
    run = current()
    while True:
        run.emit(run.attempt)
        await asyncio.sleep(0.005)
        if run.attempt > 1 and run.elapsed > 0.2:
            return

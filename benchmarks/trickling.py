"""The app of the trickle rows: its one task notes how long it waited, and writes all of it when the worker ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.app import STAMP
from benchmarks.pace import trickle
from stoker import Stoker

jobs = Stoker()
waits = array("d")


@jobs.task(name=STAMP)
async def stamp(sent: int) -> None:
    waits.append((time.monotonic_ns() - sent) / 1e6)


@jobs.lifespan
async def noted() -> AsyncIterator[None]:
    """Where the store is this very process, produce here as well, and end the worker afterwards."""
    rate = os.environ.get("TRICKLE_RATE")
    producing = asyncio.create_task(_produce(float(rate))) if rate else None
    yield
    if producing is not None:
        await producing
    Path(os.environ["TRICKLE_WAITS"]).write_bytes(waits.tobytes())  # noqa: ASYNC240 - at the end


async def _produce(rate: float) -> None:
    await asyncio.sleep(0.5)
    await trickle(lambda: stamp.enqueue(sent=time.monotonic_ns()), rate, float(os.environ["TRICKLE_SECONDS"]))
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)

"""Handlers that say where they run."""

from __future__ import annotations

import os

from stoker.app import Stoker
from stoker.model.retry import Fixed

jobs = Stoker("memory://", attempts=9, backoff=Fixed(0))


@jobs.task
async def on_loop() -> int:
    return os.getpid()


@jobs.task
def in_thread() -> int:
    return os.getpid()

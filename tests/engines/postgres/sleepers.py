"""Engines that wait, and how long a test waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from stoker.engines.postgres import PostgresEngine

Make: TypeAlias = Callable[..., Awaitable[PostgresEngine]]

SOON = 60.0
"""Real seconds within which what was said has to arrive; never waited in full unless it is lost."""


async def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


async def woken(engine: PostgresEngine, *topics: str) -> frozenset[str]:
    return await asyncio.wait_for(engine.jobs.wait(topics, 2 * SOON), SOON)

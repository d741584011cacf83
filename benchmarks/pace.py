"""Calls at a given rate, as a trickle of users makes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import uniform


async def trickle(send: Callable[[], Awaitable[object]], rate: float, seconds: float) -> int:
    """Await `send` about so many times a second, at uneven distances; answers how often."""
    sent = 0
    due = time.monotonic()
    end = due + seconds
    while (due := due + uniform(0.5, 1.5) / rate) < end:
        await asyncio.sleep(due - time.monotonic())
        await send()
        sent += 1
    return sent

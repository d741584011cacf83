"""Makes the numbers of limits in Redis wrong, as a bug would."""

from __future__ import annotations

import struct
from typing import Any

from stoker.engines.base import Engine

_AT = 9
"""Where the number of running jobs stands in the state of a subqueue (FORMAT.md)."""


async def miscount(engine: Engine, queue: str, name: str, running: int) -> None:
    """Write a number over that of a stored state (`harness.Miscount`)."""
    store: Any = engine._store  # type: ignore[attr-defined]
    key = store.shard(queue).of_queue("subqueues", queue)
    state = await store.connection.call("HGET", key, name)
    await store.connection.call("HSET", key, name, state[:_AT] + struct.pack(">I", running) + state[_AT + 4 :])

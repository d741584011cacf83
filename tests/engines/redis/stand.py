"""What the tests of this room stand on: an engine with a clock that they set, and a look behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from stoker.engines.redis import RedisEngine
from stoker.model.ids import Mint
from stoker.testing.clock import VirtualClock

entropy = iter(range(1, 1 << 30))


class Stand:
    """An engine that is open, ids that ascend, and the way to the server."""

    def __init__(self, engine: RedisEngine, clock: VirtualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.mint = Mint(clock, lambda n: next(entropy).to_bytes(n))
        self.store = engine._store
        self.home = self.store.home
        self.call = self.store.connection.call

    @classmethod
    @asynccontextmanager
    async def on(cls, url: str, prefix: str, kind: type[RedisEngine] = RedisEngine) -> AsyncIterator[Self]:
        clock = VirtualClock(1_800_000_000_000_000)
        engine = kind(url, prefix=prefix, clock=clock)
        await engine.open()
        yield cls(engine, clock)
        await engine.close()

"""What waiters meet where the driver does not do what it is told."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from stoker.engines.redis import RedisEngine
from stoker.model.ids import Mint
from tests import services

pytestmark = pytest.mark.engine("redis")

PATIENCE = 30.0


@pytest.mark.spec("END-03")
async def test_a_driver_that_swallows_a_cancellation_does_not_hold_up_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so when it is canceled while it connects: it then takes the cancellation for its own time-out."""
    job = Mint(lambda: time.time_ns() // 1_000, os.urandom)()
    with services.redis_server(save="", appendonly="no") as server:
        engine = RedisEngine(server.url)
        await engine.open()
        connect, connecting = engine._store.connection.dedicated, asyncio.Event()

        async def stubborn(key: str) -> Any:
            if not connecting.is_set():
                connecting.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
            return await connect(key)

        monkeypatch.setattr(engine._store.connection, "dedicated", stubborn)
        waiter = asyncio.create_task(engine.jobs.ended(job, PATIENCE))
        async with asyncio.timeout(PATIENCE) as limit:
            await connecting.wait()
            await engine.close()
            assert not await waiter
        assert not limit.expired()

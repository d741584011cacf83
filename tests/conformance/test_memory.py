"""The conformance suite on the memory engine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.engines.base import Clock, Engine
from stoker.engines.memory import MemoryEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine, Miscount


@pytest.fixture
def make_engine() -> MakeEngine:
    made: list[MemoryEngine] = []

    def make(clock: Clock | None) -> MemoryEngine:
        made.append(made[0].for_loop() if made else MemoryEngine(clock))
        return made[-1]

    return make


@pytest.fixture
def miscount() -> Miscount:
    async def change(engine: Engine, queue: str, name: str, running: int) -> None:
        assert isinstance(engine, MemoryEngine)
        with engine._access.write as store:
            subqueues = store.subqueues[queue]
            subqueues.put(replace(subqueues.states[name], running=running), store.now())

    return change

"""The conformance suite on the memory engine."""

from __future__ import annotations

import pytest

from stoker.engines.base import Clock
from stoker.engines.memory import MemoryEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine


@pytest.fixture
def make_engine() -> MakeEngine:
    made: list[MemoryEngine] = []

    def make(clock: Clock | None) -> MemoryEngine:
        made.append(made[0].for_loop() if made else MemoryEngine(clock))
        return made[-1]

    return make

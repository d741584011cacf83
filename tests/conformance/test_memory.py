"""The memory engine keeps the contract."""

from __future__ import annotations

import pytest

from stoker.engines.base import Clock
from stoker.engines.memory import MemoryEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine


@pytest.fixture
def make_engine() -> MakeEngine:
    """Twins of one store: memory has no place where a second engine could find it."""
    engines: list[MemoryEngine] = []

    def make(clock: Clock | None) -> MemoryEngine:
        engines.append(engines[0].twin() if engines else MemoryEngine(clock))
        return engines[-1]

    return make

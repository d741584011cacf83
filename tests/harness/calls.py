"""What a test asks of a store, counted."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest

from stoker.engines.base import FACETS, Engine


def counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count every call of an engine's contract from now on, by the name of the method."""
    calls: Counter[str] = Counter()
    parts = [(engine, Engine), *((getattr(engine, facet), contract) for facet, contract in FACETS.items())]
    for part, contract in parts:
        for name, _ in inspect.getmembers(contract, inspect.iscoroutinefunction):
            if part is not None:
                monkeypatch.setattr(part, name, _counted(calls, name, getattr(part, name)))
    return calls


def _counted(calls: Counter[str], name: str, call: Any) -> Any:
    async def count(*given: Any, **more: Any) -> Any:
        calls[name] += 1
        return await call(*given, **more)

    return count

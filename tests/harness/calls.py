"""Calls of a store, counted or replaced."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
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


def replace(engine: Engine, names: Iterable[str], around: Callable[[str, Any], Any]) -> None:
    """Replace methods of an engine's facets, and of its twins made from now on, by `around(name, method)`."""
    for facet, contract in FACETS.items():
        part = getattr(engine, facet)
        for name in names:
            if hasattr(contract, name):
                setattr(part, name, around(name, getattr(part, name)))
    make = engine.for_loop

    def for_loop(**options: Any) -> Engine:
        twin = make(**options)
        replace(twin, names, around)
        return twin

    engine.for_loop = for_loop  # type: ignore[method-assign]


def _counted(calls: Counter[str], name: str, call: Any) -> Any:
    async def count(*given: Any, **more: Any) -> Any:
        calls[name] += 1
        return await call(*given, **more)

    return count

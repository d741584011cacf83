"""What a test asks of a store, counted."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest

from stoker.engines.base import Engine


def counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count every call of an engine's contract from now on."""
    calls: Counter[str] = Counter()
    for name, call in inspect.getmembers(engine, inspect.iscoroutinefunction):
        if not name.startswith("_"):

            async def count(*given: Any, call: Any = call, name: str = name, **more: Any) -> Any:
                calls[name] += 1
                return await call(*given, **more)

            monkeypatch.setattr(engine, name, count)
    return calls

"""A memory engine that a test makes fail, wait or count."""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace
from typing import Any, cast

from stoker.engines.base import FACETS, Engine
from stoker.engines.memory import MemoryEngine


class Double(MemoryEngine):
    """A memory engine, and its twins: methods of a subclass replace those of its facets with the same names.

    `real` has the facets as they are without that.
    """

    def _furnish(self, *given: Any) -> None:
        super()._furnish(*given)
        self.real = cast(Engine, SimpleNamespace(**{name: copy(getattr(self, name)) for name in FACETS}))
        for name, contract in FACETS.items():
            for method in vars(contract):
                if not method.startswith("_") and hasattr(type(self), method):
                    setattr(getattr(self, name), method, getattr(self, method))

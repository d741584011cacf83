"""The contract of `engines.base` as tests that any engine can run.

A third party's engine passes it with a five-line test module:

    import pytest
    from stoker.testing.conformance import *
    from my_package import MyEngine

    @pytest.fixture
    def make_engine(tmp_path): return lambda clock: MyEngine(tmp_path / "jobs", clock=clock)

Every case is an async function named `test_…`, cites the ids of `tests/spec.md` it proves, and moves time only through
the injected clock. The cases are grouped by what they are about, one module each.
"""

from __future__ import annotations

import importlib
import pkgutil

try:
    import pytest
except ImportError as error:
    raise ImportError("the conformance suite needs pytest: pip install 'stoker[conformance]'") from error

from stoker.testing.conformance import harness
from stoker.testing.conformance.harness import MakeEngine, Miscount, Store, clock, needs, store

_TOPICS = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.") if module.name != harness.__name__]
pytest.register_assert_rewrite(*_TOPICS)  # so that a failing case shows the values it compared
_CASES = {
    name: value
    for topic in _TOPICS
    for name, value in vars(importlib.import_module(topic)).items()
    if name.startswith("test_")
}
globals().update(_CASES)

__all__ = ["MakeEngine", "Miscount", "Store", "clock", "harness", "needs", "store", *_CASES]  # noqa: PLE0604 - computed on purpose

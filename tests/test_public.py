from __future__ import annotations

import subprocess
import sys

import pytest

import stoker

NAMES = (
    "Stoker Worker Task JobHandle current Unique Exponential Linear Fixed Never Snooze Throttle Retry Reject "
    "StokerError JobFailed JobCanceled JobGone Duplicate UnknownTask Raw Status"
)


@pytest.mark.spec("API-20")
def test_the_public_names_are_exactly_these() -> None:
    assert " ".join(stoker.__all__) == NAMES
    assert len(stoker.__all__) <= 24
    assert all(getattr(stoker, name) for name in stoker.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Wroker'"):
        stoker.Wroker  # type: ignore[attr-defined]


LIGHT = """
import sys, stoker
heavy = {"stoker.worker", "stoker.engines.sqlite", "stoker.engines.memory", "sqlite3", "click", "rich"}
found = heavy & set(sys.modules)
assert not found, found
from stoker import Worker
assert Worker.__module__ == "stoker.worker.worker"
"""


@pytest.mark.spec("API-20")
def test_importing_the_package_loads_neither_the_worker_nor_an_engine() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", LIGHT], check=True, timeout=30)

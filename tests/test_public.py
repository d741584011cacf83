from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

ROOT = Path(__file__).parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMES = (
    "Stoker Worker Outbox Inbox Task Chunk JobHandle Job Draft chain Receipt Schedule current Context Transition "
    "FailedRun Unique Limit Rate Curve Exponential Linear Fixed Never Snooze Throttle Retry Reject StokerError "
    "JobFailed JobCanceled GroupFailed GroupClosed ResultUnavailable NotFound Duplicate UnknownTask InvalidInput "
    "EngineError Raw Status"
)


@pytest.mark.spec("API-20")
def test_the_public_names_are_exactly_these() -> None:
    assert " ".join(stoker.__all__) == NAMES
    assert len(stoker.__all__) <= 45
    assert all(getattr(stoker, name) for name in stoker.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Wroker'"):
        stoker.Wroker  # type: ignore[attr-defined]


@pytest.mark.spec("API-22")
@pytest.mark.parametrize("name", stoker.__all__)
def test_every_public_name_is_used_in_a_how_to_page(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "howto").glob("*.md")]
    assert any(re.search(rf"\b{name}\b", block) for page in pages for block in PYTHON.findall(page))


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
    subprocess.run([sys.executable, "-W", "error", "-c", LIGHT], check=True, timeout=240)

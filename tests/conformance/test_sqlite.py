"""The contract on SQLite: a file of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    return lambda clock: SqliteEngine(tmp_path / "jobs.db", clock=clock)

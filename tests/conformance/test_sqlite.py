"""The contract on SQLite: a file of the test's own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine, Miscount


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    return lambda clock: SqliteEngine(tmp_path / "jobs.db", clock=clock)


@pytest.fixture
def miscount(tmp_path: Path) -> Miscount:
    async def change(_: Engine, queue: str, name: str, running: int) -> None:
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
            changed = connection.execute(
                "UPDATE stoker_subqueues SET running = ? WHERE name = ?"
                " AND qid = (SELECT qid FROM stoker_queues WHERE name = ?)",
                (running, name, queue),
            )
            assert changed.rowcount == 1

    return change

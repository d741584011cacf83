"""Streams under kill -9: nothing is skipped, overtaken or done twice."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.seeded_streams import BUGS, SERVER
from tests.faults.streams import judge, storm

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(1_100)]


@pytest.mark.spec("OUTBOX-14", "OUTBOX-41", "OUTBOX-50", "OUTBOX-54")
def test_streams_survive_kills_and_frozen_consumers(fork_server: ForkServer, tmp_path: Path, campaign: bool) -> None:
    """First deliveries are in the order of the commits, and effects in the advance's transaction happen once."""
    seed = secrets.randbits(32)
    path = tmp_path / "shop.db"
    messages, faults = (100_000, 500) if campaign else (10_000, 60)
    arguments = {"url": f"sqlite:///{path}", "folder": str(tmp_path), "messages": messages, "seed": seed}
    tally = fork_server.call(storm, within=1_000, faults=faults, **arguments).answer
    with closing(sqlite3.connect(path)) as connection:
        figures, complaints = judge(tmp_path, lambda text: connection.execute(text).fetchall())
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    print(f"seed {seed}: {figures}, {tally}")
    assert not complaints, (seed, complaints[:10])
    assert figures["sent"] >= messages


@pytest.mark.spec("OUTBOX-66")
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in SERVER])
def test_a_planted_bug_is_found_out(fork_server: ForkServer, tmp_path: Path, bug: str) -> None:
    """Those of the numbering cannot exist here: the append numbers, and there is one writer."""
    seed = secrets.randbits(32)
    path = tmp_path / "shop.db"
    freezing = 0.7 if bug == "no fence" else 0.1
    calm = {"messages": 100_000, "freezing": freezing, "writer_count": 2, "lull": 0.45}
    arguments = {"url": f"sqlite:///{path}", "folder": str(tmp_path), **calm}
    fork_server.call(storm, within=900, seed=seed, bug=bug, **arguments)
    with closing(sqlite3.connect(path)) as connection:
        figures, complaints = judge(tmp_path, lambda text: connection.execute(text).fetchall())
    print(f"seed {seed}: {bug}: {figures}, {len(complaints)} complaints: {complaints[:5]}")
    assert any(" came after " in one or " came again " in one for one in complaints)

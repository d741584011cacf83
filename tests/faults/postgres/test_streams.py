"""Streams under kill -9 and late commits: nothing is skipped, overtaken or done twice."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.seeded_streams import BUGS
from tests.faults.streams import judge, storm

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(1_500)]


def judged(url: str, schema: str, folder: Path) -> tuple[dict[str, int], list[str]]:
    with psycopg.connect(url, options=f"-csearch_path={schema}") as connection:
        return judge(folder, lambda text: connection.execute(text.encode()).fetchall())


@pytest.mark.spec("OUTBOX-14", "OUTBOX-41", "OUTBOX-50", "OUTBOX-54")
def test_streams_survive_kills_and_late_commits(
    fork_server: ForkServer, tmp_path: Path, campaign: bool, postgres_url: str, postgres_schema: str
) -> None:
    """First deliveries are in the order of the commits, and effects in the advance's transaction happen once."""
    seed = secrets.randbits(32)
    messages = 100_000 if campaign else 10_000
    arguments: dict[str, Any] = {"url": postgres_url, "schema": postgres_schema, "folder": str(tmp_path)}
    writer_count, latest, faults, keys = (64, 1.5, 500, 2_000) if campaign else (64, 0.4, 120, 1_000)
    tally = fork_server.call(
        storm,
        within=1_400,
        seed=seed,
        messages=messages,
        latest=latest,
        writer_count=writer_count,
        faults=faults,
        keys=keys,
        freezing=0.3,
        **arguments,
    ).answer
    figures, complaints = judged(postgres_url, postgres_schema, tmp_path)
    print(f"seed {seed}: {figures}, {tally}")
    assert not complaints, (seed, complaints[:10])
    assert figures["sent"] >= messages


@pytest.mark.spec("OUTBOX-66")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_out(
    fork_server: ForkServer, tmp_path: Path, bug: str, postgres_url: str, postgres_schema: str
) -> None:
    seed = secrets.randbits(32)
    place = {"url": postgres_url, "schema": postgres_schema, "folder": str(tmp_path)}
    freezing = 0.7 if bug == "no fence" else 0.1
    wild = {"messages": 100_000, "latest": 0.3, "writer_count": 8, "lull": 0.25, "freezing": freezing}
    fork_server.call(storm, within=900, seed=seed, bug=bug, **place, **wild)
    figures, complaints = judged(postgres_url, postgres_schema, tmp_path)
    print(f"seed {seed}: {bug}: {figures}, {len(complaints)} complaints: {complaints[:5]}")
    assert any(" came after " in one or " came again " in one for one in complaints)

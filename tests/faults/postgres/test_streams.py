"""Streams under kill -9 and late commits: nothing is skipped, overtaken or done twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.faults.streams import judge, storm
from tests.faults.zygote import Zygote

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    made = Zygote("tests.faults.streams")
    yield made
    made.close()


@pytest.mark.spec("OUTBOX-14", "OUTBOX-41", "OUTBOX-50")
def test_streams_survive_kills_and_late_commits(
    zygote: Zygote, tmp_path: Path, campaign: bool, postgres_url: str, postgres_schema: str
) -> None:
    """First deliveries are in the order of the commits, and effects in the advance's transaction happen once."""
    seed = secrets.randbits(32)
    messages = 20_000 if campaign else 2_000
    arguments = {"url": postgres_url, "schema": postgres_schema, "folder": str(tmp_path), "messages": messages}
    crowd, latest, calm = (32, 1.5, 1.0) if campaign else (8, 0.4, 0.0)
    tally = zygote.call(
        storm, within=800 if campaign else 100, seed=seed, latest=latest, crowd=crowd, calm=calm, **arguments
    ).answer
    with psycopg.connect(postgres_url, options=f"-csearch_path={postgres_schema}") as connection:
        figures, complaints = judge(tmp_path, lambda text: connection.execute(text.encode()).fetchall())
    print(f"seed {seed}: {figures}, {tally}")
    assert not complaints, (seed, complaints[:10])
    assert figures["sent"] >= messages

"""Blocks under kill -9 on one file: every job has its effect exactly once."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.faults.blocks import Site, judge, storm
from tests.faults.fork_server import ForkServer

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(1_800)]


@pytest.mark.spec("BLOCK-17")
def test_effects_are_exactly_once_under_kills(fork_server: ForkServer, tmp_path: Path, campaign: bool) -> None:
    seed, jobs = secrets.randbits(32), 10_000 if campaign else 500
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    found = fork_server.call(storm, within=1_500 if campaign else 900, url=url, jobs=jobs, seed=seed).answer
    print(f"seed {seed}: {found}")
    site = Site(url)
    assert judge(site.rows, site.table, found, jobs) == [], seed
    assert found["killed"] >= 5
    assert site.rows("pragma integrity_check") == [("ok",)]

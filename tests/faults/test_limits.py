"""Limits whose workers are killed at any instant: never more runs of a key than allowed, and no job left behind."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import limits
from tests.faults.fork_server import ForkServer

pytestmark = pytest.mark.timeout(3_600)

ENGINES = [
    *(pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres", "redis")),
    pytest.param("redis-cluster", marks=[pytest.mark.engine("redis-cluster"), pytest.mark.variant]),
]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    found = ForkServer(
        "tests.faults.limits", "stoker.engines.sqlite", "stoker.engines.postgres", "stoker.engines.redis"
    )
    yield found
    found.close()


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    of = request.getfixturevalue
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'jobs.db'}"
        case "postgres":
            base = of("postgres_url")
            return f"{base}{'&' if '?' in base else '?'}schema={of('postgres_schema')}"
        case "redis":
            return f"{of('redis_url')}?prefix={of('redis_prefix')}"
        case _:
            return f"{of('redis_cluster_url')}?prefix={of('redis_cluster_prefix')}"


@pytest.mark.spec("LIMIT-43")
def test_a_storm_of_kills_never_exceeds_a_limit(
    url: str, tmp_path: Path, fork_server: ForkServer, campaign: bool
) -> None:
    """Also with slow and rolled-back transactions; jobs of a key that holds its slot run in order."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    counts = (
        {"jobs": 100_000, "keys": 50, "kills": 200, "workers": 4, "call": 50}
        if campaign
        else {"jobs": 400, "keys": 20, "kills": 8, "workers": 2, "call": 3}
    )
    path = str(tmp_path / "runs.jsonl")
    ended = fork_server.call(limits.storm, within=3_000 if campaign else 600, url=url, path=path, seed=seed, **counts)
    print(ended.answer)
    assert ended.answer["wrong"] == []
    assert ended.answer["runs"] >= ended.answer["stored"] > 0

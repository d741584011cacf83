"""Groups whose workers are killed at any instant: each closes once, and never before its members."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import groups
from tests.faults.fork_server import ForkServer

pytestmark = pytest.mark.timeout(3_600)

ENGINES = [
    *(pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres", "redis")),
    pytest.param("redis-cluster", marks=[pytest.mark.engine("redis-cluster"), pytest.mark.variant]),
]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    found = ForkServer(
        "tests.faults.groups", "stoker.engines.sqlite", "stoker.engines.postgres", "stoker.engines.redis"
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


@pytest.mark.spec("GROUP-29")
def test_a_storm_of_kills_closes_every_group_once(url: str, fork_server: ForkServer, campaign: bool) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    counts = (
        {"groups": 2_000, "largest": 200, "kills": 200, "workers": 4}
        if campaign
        else {"groups": 30, "largest": 20, "kills": 8, "workers": 2}
    )
    ended = fork_server.call(groups.storm, within=3_000 if campaign else 600, url=url, seed=seed, **counts)
    print(ended.answer)
    assert not ended.answer["wrong"], "\n".join(ended.answer["wrong"])
    assert ended.answer["groups"] == counts["groups"]

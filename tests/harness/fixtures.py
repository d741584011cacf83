"""Fixtures over real servers. A server starts when the first test asks for it and ends with the run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
import redis

from tests import services
from tests.services.clusters import Cluster


@pytest.fixture(scope="session")
def campaign(request: pytest.FixtureRequest) -> bool:
    """Whether the run is a long one; tests with counts of their own multiply them."""
    return bool(request.config.getoption("--campaign"))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with services.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with services.redis() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_pooler_url(postgres_url: str) -> Iterator[str]:
    """The same databases behind a transaction pooler with three sessions, which change hands after each transaction."""
    with services.pooler(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def redis_always_url() -> Iterator[str]:
    """A Redis that syncs before it answers."""
    with services.redis_server(appendfsync="always") as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    """Three masters with a replica each; a test that kills a node starts it again."""
    with services.cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_cluster_url(redis_cluster: Cluster) -> str:
    return redis_cluster.url


@pytest.fixture
def postgres_schema(postgres_url: str) -> Iterator[str]:
    """An empty schema of the test's own; a database of its own would cost ten times as much."""
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create schema {name}".encode())
    yield name
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("set lock_timeout = '10s'")
        connection.execute(f"drop schema {name} cascade".encode())


@pytest.fixture
def redis_prefix(redis_url: str) -> Iterator[str]:
    """A key prefix of the test's own; whatever the test stored under it is removed."""
    name = new_prefix()
    yield name
    clean(redis_url, name)


@pytest.fixture
def redis_always_prefix(redis_always_url: str) -> Iterator[str]:
    name = new_prefix()
    yield name
    clean(redis_always_url, name)


@pytest.fixture
def redis_cluster_prefix(redis_cluster: Cluster) -> Iterator[str]:
    name = new_prefix()
    yield name
    for node in redis_cluster.masters:
        clean(node.server.url, name)


def new_prefix() -> str:
    return f"t{uuid.uuid4().hex}"


def clean(url: str, name: str) -> None:
    with redis.Redis.from_url(url) as client:
        # The prefix may stand in braces or behind a channel name: match it anywhere.
        for keys in batches(client, f"*{name}*"):
            with client.pipeline(transaction=False) as pipeline:  # key by key: a cluster node serves one slot at a time
                for key in keys:
                    pipeline.unlink(key)
                pipeline.execute()


def batches(client: redis.Redis, pattern: str, size: int = 500) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for key in client.scan_iter(match=pattern, count=size):
        batch.append(key)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def drop_schema(server: str, name: str) -> None:
    """Drop a schema with all that is in it."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop schema {name} cascade".encode())

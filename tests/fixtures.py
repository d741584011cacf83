"""Fixtures over real servers. A server starts when the first test asks for it and ends with the run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
import redis

from tests import services


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
    name = f"t{uuid.uuid4().hex}"
    yield name
    with redis.Redis.from_url(redis_url) as client:
        # The prefix may stand in braces or behind a channel name: match it anywhere.
        for keys in batches(client, f"*{name}*"):
            client.unlink(*keys)


def batches(client: redis.Redis, pattern: str, size: int = 500) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for key in client.scan_iter(match=pattern, count=size):
        batch.append(key)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from stoker.engines.redis import RedisEngine, leases
from tests import services
from tests.faults.network import Attempt
from tests.faults.redis.trials import IMPATIENT, Make, trial
from tests.faults.trial import SOON
from tests.harness.proxy import Proxy


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, campaign: bool) -> None:
    """Calls take a second at most here, so claims whose answer was lost may come back sooner than after five."""
    if not campaign:
        monkeypatch.setattr(leases, "ORPHANED_AFTER", SOON)


@pytest.fixture
def server() -> Iterator[services.RedisServer]:
    """A Redis to be hurt; it syncs every second."""
    with services.redis_server() as found:
        yield found


@pytest.fixture
def client(server: services.RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as found:
        yield found


@pytest.fixture
def proxy(server: services.RedisServer) -> Iterator[Proxy]:
    with Proxy(server.url) as found:
        yield found


@pytest.fixture
def make(server: services.RedisServer) -> Make:
    def engine(url: str | None = None, **options: Any) -> RedisEngine:
        return RedisEngine(url or server.url, **{**IMPATIENT, **options})

    return engine


@pytest.fixture
def attempt(make: Make, proxy: Proxy) -> Attempt:
    return functools.partial(trial, make, proxy.url)

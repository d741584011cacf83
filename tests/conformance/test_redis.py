"""The contract on Redis: a key prefix of the test's own on a server that syncs its log every second."""

from __future__ import annotations

import pytest

from stoker.engines.redis import RedisEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine, Miscount
from tests.harness import redis_limits


@pytest.fixture
def make_engine(redis_url: str, redis_prefix: str) -> MakeEngine:
    return lambda clock: RedisEngine(redis_url, prefix=redis_prefix, clock=clock)


@pytest.fixture
def miscount() -> Miscount:
    return redis_limits.miscount

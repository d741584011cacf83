"""The contract on a Redis that syncs every write before it answers."""

from __future__ import annotations

import pytest

from stoker.engines.redis import RedisEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine, Miscount
from tests.harness import redis_limits

pytestmark = [pytest.mark.engine("redis"), pytest.mark.variant]


@pytest.fixture
def make_engine(redis_always_url: str, redis_always_prefix: str) -> MakeEngine:
    return lambda clock: RedisEngine(redis_always_url, prefix=redis_always_prefix, clock=clock)


@pytest.fixture
def miscount() -> Miscount:
    return redis_limits.miscount

"""The contract on a Redis Cluster of three masters with a replica each."""

from __future__ import annotations

import pytest

from stoker.engines.redis import RedisClusterEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine, Miscount
from tests.harness import redis_limits

pytestmark = [pytest.mark.engine("redis-cluster"), pytest.mark.variant]


@pytest.fixture
def make_engine(redis_cluster_url: str, redis_cluster_prefix: str) -> MakeEngine:
    return lambda clock: RedisClusterEngine(redis_cluster_url, prefix=redis_cluster_prefix, clock=clock)


@pytest.fixture
def miscount() -> Miscount:
    return redis_limits.miscount

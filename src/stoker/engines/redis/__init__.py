"""Redis and Redis Cluster: jobs in a server many shops run already, with the same contract as everywhere."""

from stoker.engines.redis.engine import RedisClusterEngine, RedisEngine

__all__ = ["RedisClusterEngine", "RedisEngine"]

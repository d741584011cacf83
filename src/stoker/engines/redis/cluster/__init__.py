"""What only a Redis Cluster needs: calls to every shard, and jobs that cross shards."""

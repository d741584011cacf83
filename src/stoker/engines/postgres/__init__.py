"""Jobs in Postgres, for any number of processes on any number of hosts."""

from stoker.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]

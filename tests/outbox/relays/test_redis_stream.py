"""Messages into a stream of a real Redis."""

from __future__ import annotations

import pytest
import redis

from stoker.model.errors import InvalidInput, InvalidOption
from stoker.outbox import ToRedisStream
from tests import services
from tests.outbox.relays.conftest import Make


@pytest.mark.spec("RELAY-06")
async def test_headers_and_payload_are_the_fields_of_an_entry(redis_url: str, redis_prefix: str, make: Make) -> None:
    relay = ToRedisStream(redis_url, redis_prefix)
    messages = [make("ä", b"\0\xff", raw=True, headers={"traceparent": "00-1"}), *(make() for _ in range(499))]
    await relay.publish(messages)
    await relay.publish(messages[:1])
    await relay.close()
    with redis.Redis.from_url(redis_url) as client:
        entries = [fields for _, fields in client.xrange(redis_prefix)]
    assert [fields[b"stoker-id"].decode() for fields in entries] == [one.id for one in (*messages, messages[0])]
    assert entries[0] == entries[-1]
    assert (entries[0][b"payload"], entries[0][b"stoker-key"]) == (b"\0\xff", "ä".encode())
    assert entries[0][b"traceparent"] == b"00-1"


@pytest.mark.spec("RELAY-06")
async def test_the_stream_is_trimmed_to_about_so_many_entries(redis_url: str, redis_prefix: str, make: Make) -> None:
    relay = ToRedisStream(redis_url, redis_prefix, maxlen=10)
    await relay.open()
    await relay.publish([make() for _ in range(1_000)])
    await relay.close()
    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(redis_prefix) < 500


@pytest.mark.spec("RELAY-06")
async def test_of_what_the_server_refuses_nothing_is_stored(redis_url: str, redis_prefix: str, make: Make) -> None:
    relay = ToRedisStream(redis_url, redis_prefix)
    with redis.Redis.from_url(redis_url) as client:
        client.set(redis_prefix, "no stream")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await relay.publish([make(), make()])
    await relay.close()


@pytest.mark.spec("RELAY-06")
async def test_a_server_that_was_away_gets_what_comes_next(make: Make) -> None:
    with services.redis_server(appendfsync="always") as server:
        relay = ToRedisStream(server.url, "orders")
        await relay.publish([make()])
        server.kill()
        with pytest.raises(redis.ConnectionError):
            await relay.publish([make()])
        server.start()
        await relay.publish([make()])
        await relay.close()
        with redis.Redis.from_url(server.url) as client:
            assert [fields[b"stoker-number"] for _, fields in client.xrange("orders")] == [b"1", b"3"]


@pytest.mark.spec("RELAY-03")
def test_options_are_checked_where_they_are_written() -> None:
    with pytest.raises(InvalidOption, match="redis://"):
        ToRedisStream("redis+cluster://127.0.0.1", "orders")
    with pytest.raises(InvalidInput, match="name"):
        ToRedisStream("redis://127.0.0.1", "")
    with pytest.raises(InvalidOption, match="maxlen"):
        ToRedisStream("redis://127.0.0.1", "orders", maxlen=0)
    assert repr(ToRedisStream("redis://:secret@127.0.0.1", "orders")) == "<ToRedisStream orders>"

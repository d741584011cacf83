"""Messages into an exchange of a real RabbitMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from stoker.model.errors import InvalidOption, StokerError
from stoker.model.outcome import Reject
from stoker.outbox import Partial, ToRabbit
from tests.outbox.relays.conftest import Make
from tests.services import Server


@pytest.fixture
async def channel(rabbitmq: Server) -> AsyncIterator[AbstractChannel]:
    """A channel, on a server whose exchange `orders` feeds the queue `all` by the key `a`."""
    async with await aio_pika.connect(rabbitmq.url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("orders", "topic", durable=True)
        queue = await channel.declare_queue("all", durable=True)
        await queue.bind(exchange, "#")
        yield channel
        await channel.queue_delete("all")
        await channel.exchange_delete("orders")


async def read(channel: AbstractChannel) -> list[AbstractIncomingMessage]:
    """Every message of the queue."""
    queue = await channel.get_queue("all")
    found = []
    while (one := await queue.get(fail=False, no_ack=True)) is not None:
        found.append(one)
    return found


@pytest.mark.spec("RELAY-07")
async def test_messages_are_persistent_confirmed_and_in_order_of_their_key(
    rabbitmq: Server, channel: AbstractChannel, make: Make
) -> None:
    relay = ToRabbit(rabbitmq.url, "orders")
    messages = [make(f"k{n % 5}", headers={"traceparent": "00-1"}) for n in range(200)]
    await relay.open()
    await relay.publish(messages)
    await relay.publish(messages[:1])
    await relay.close()
    found = await read(channel)
    assert sorted(one.message_id or "" for one in found) == sorted(one.id for one in (*messages, messages[0]))
    for key in {one.key for one in messages}:
        numbers = [int(str(one.headers["stoker-number"])) for one in found[:-1] if one.routing_key == key]
        assert numbers == sorted(numbers)
    first = found[0]
    assert first.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert (first.content_type, first.timestamp) == ("application/json", messages[0].created)
    assert (first.headers["stoker-id"], first.headers["traceparent"]) == (first.message_id, "00-1")


@pytest.mark.spec("RELAY-07")
async def test_a_message_that_no_queue_receives_is_an_error(
    rabbitmq: Server, channel: AbstractChannel, make: Make
) -> None:
    queue = await channel.get_queue("all")
    await queue.unbind("orders", "#")
    await queue.bind("orders", "a")
    messages = [make("a"), make("b"), make("a")]
    relay, careless = ToRabbit(rabbitmq.url, "orders"), ToRabbit(rabbitmq.url, "orders", mandatory=False)
    with pytest.raises(StokerError, match="no queue for the routing key 'b'"):
        await relay.publish(messages[1:])
    with pytest.raises(Partial) as partial:
        await relay.publish(messages)
    assert partial.value.n == 1
    await careless.publish(messages)
    await relay.close()
    await careless.close()


@pytest.mark.spec("RELAY-07")
async def test_a_refused_publish_is_not_taken_for_accepted(
    rabbitmq: Server, channel: AbstractChannel, make: Make
) -> None:
    full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await channel.declare_queue("full", arguments=full)
    relay = ToRabbit(rabbitmq.url, "")
    await relay.publish([make("full")])
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await relay.publish([make("full")])
    await relay.close()
    assert (await queue.delete(if_empty=False)).message_count == 1


@pytest.mark.spec("RELAY-07")
async def test_a_key_that_amqp_cannot_carry_is_rejected(rabbitmq: Server, channel: AbstractChannel, make: Make) -> None:
    relay = ToRabbit(rabbitmq.url, "orders")
    await relay.publish([make("k" * 255)])
    for bad in ({"key": "k" * 256}, {"headers": {"h" * 256: ""}}):
        given: dict[str, Any] = bad
        with pytest.raises(Reject, match="255 bytes"):
            await relay.publish([make(**given)])
    await relay.close()


@pytest.mark.spec("RELAY-07")
async def test_an_exchange_that_does_not_exist_is_an_error(rabbitmq: Server, make: Make) -> None:
    relay = ToRabbit(rabbitmq.url, "no-such")
    for _ in range(2):
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity, match="no-such"):
            await relay.publish([make()])
    await relay.close()


@pytest.mark.spec("RELAY-03")
def test_options_are_checked_where_they_are_written() -> None:
    with pytest.raises(InvalidOption, match="amqp://"):
        ToRabbit("http://127.0.0.1", "orders")
    assert repr(ToRabbit("amqp://u:pw@127.0.0.1", "")) == "<ToRabbit (default)>"

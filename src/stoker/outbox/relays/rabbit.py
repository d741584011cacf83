"""Relay messages to an exchange of RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from stoker.model.errors import InvalidOption, StokerError
from stoker.model.outcome import Reject
from stoker.model.time import Seconds
from stoker.outbox.message import Message
from stoker.outbox.relays.headers import content_type, headers_of
from stoker.outbox.relays.in_key_order import publish_in_key_order
from stoker.outbox.relays.library import needs, seconds

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange

AT_ONCE: Final = 100
LONGEST: Final = 255
"""Bytes of a routing key and of a header's name in AMQP."""


class ToRabbit:
    """Publishes each message to an exchange, with its key as routing key, and waits until the server confirms it.

    Messages are persistent and carry the message's id as `message_id`. A message that no queue receives is an error,
    and is tried again; `mandatory=False` lets the server drop it. `timeout`: seconds for a confirm. The exchange must
    exist; "" is the default one.
    """

    def __init__(self, url: str, exchange: str, *, mandatory: bool = True, timeout: Seconds = 5) -> None:
        needs(self, "aio_pika", "rabbit")
        if not isinstance(url, str) or not url.startswith(("amqp://", "amqps://")):
            raise InvalidOption("url", url, "must begin with amqp:// or amqps://")
        self._url = url
        self._exchange = exchange
        self._mandatory = mandatory
        self._timeout = seconds(timeout)
        self._connecting = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._target: AbstractExchange | None = None

    def __repr__(self) -> str:
        return f"<ToRabbit {self._exchange or '(default)'}>"

    async def open(self) -> None:
        """Connect, and find the exchange."""
        import aio_pika

        async with self._connecting:
            if self._channel is not None and not self._channel.is_closed:
                return
            await self._disconnect()
            connection = self._connection = await aio_pika.connect(self._url, timeout=self._timeout)
            channel = self._channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            if self._exchange:
                self._target = await channel.get_exchange(self._exchange)
            else:
                self._target = channel.default_exchange

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        """Publish, and wait for the confirms; connects again if the connection is lost."""
        await self.open()
        await publish_in_key_order(messages, self._send, at_once=AT_ONCE)

    async def _send(self, message: Message[Any]) -> None:
        import aio_pika

        headers = headers_of(message)
        if any(len(one.encode()) > LONGEST for one in (message.key, *headers)):
            raise Reject(f"message {message.id}: AMQP has no key and no name of a header above {LONGEST} bytes")
        body = aio_pika.Message(
            message.payload,
            headers={**headers},
            content_type=content_type(message),
            message_id=message.id,
            timestamp=message.created,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        assert self._target is not None, "a relay is opened first"
        try:
            await self._target.publish(body, message.key, mandatory=self._mandatory, timeout=self._timeout)
        except aio_pika.exceptions.PublishError:
            raise StokerError(
                f"message {message.id}: exchange {self._exchange!r} has no queue for the routing key {message.key!r}. "
                "It is tried again. Bind a queue, or drop such messages: ToRabbit(..., mandatory=False)"
            ) from None

    async def close(self) -> None:
        """Disconnect."""
        async with self._connecting:
            await self._disconnect()

    async def _disconnect(self) -> None:
        connection = self._connection
        self._connection = self._channel = self._target = None
        if connection is not None:
            await connection.close()

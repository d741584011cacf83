"""Relay messages to a subject of NATS JetStream."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from stoker.model.errors import InvalidOption, StokerError
from stoker.model.time import Seconds
from stoker.outbox.message import Message
from stoker.outbox.relays.headers import ascii_headers, content_type
from stoker.outbox.relays.in_key_order import publish_in_key_order
from stoker.outbox.relays.library import needs, seconds

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

logger = logging.getLogger("stoker.outbox")

AT_ONCE: Final = 100


class ToNats:
    """Publishes each message to a subject and waits until JetStream has stored it.

    The header `Nats-Msg-Id` is the message's id: JetStream drops one that comes again within the stream's duplicate
    window. A stream must listen to the subject. `timeout`: seconds for an answer.
    """

    def __init__(self, url: str, subject: str, *, timeout: Seconds = 5) -> None:
        needs(self, "nats", "nats")
        if not isinstance(url, str) or not url.startswith(("nats://", "tls://", "ws://", "wss://")):
            raise InvalidOption("url", url, "must begin with nats:// or tls://")
        if not isinstance(subject, str) or not subject.isprintable() or set(subject) & set(" *>") or not subject:
            raise InvalidOption("subject", subject, "must be a subject without spaces and wildcards")
        self._url = url
        self._subject = subject
        self._timeout = seconds(timeout)
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None

    def __repr__(self) -> str:
        return f"<ToNats {self._subject}>"

    async def open(self) -> None:
        """Connect. A connection that is lost is not kept: the next publish makes another."""
        import nats
        from nats.errors import NoServersError

        causes: list[Exception] = []

        async def note(error: Exception) -> None:
            causes[:] = [error]
            logger.debug("NATS: %r", error)

        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self._disconnect()
                try:
                    self._client = await nats.connect(
                        self._url,
                        allow_reconnect=False,
                        max_reconnect_attempts=1,  # the library goes on trying for minutes otherwise
                        reconnect_time_wait=0,
                        connect_timeout=math.ceil(self._timeout),
                        error_cb=note,
                    )
                except NoServersError as error:
                    raise StokerError(f"NATS does not answer: {causes[0] if causes else error}") from error
                self._stream = self._client.jetstream(timeout=self._timeout)

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        """Publish, and wait until all are stored; connects again if the connection is lost."""
        await self.open()
        await publish_in_key_order(messages, self._send, at_once=AT_ONCE)

    async def _send(self, message: Message[Any]) -> None:
        from nats.js.errors import NoStreamResponseError

        assert self._stream is not None, "a relay is opened first"
        headers = ascii_headers(message, without=("nats-", "content-type"))
        headers |= {"Nats-Msg-Id": message.id, "Content-Type": content_type(message)}
        try:
            await self._stream.publish(self._subject, message.payload, timeout=self._timeout, headers=headers)
        except NoStreamResponseError:
            raise StokerError(
                f"message {message.id}: no stream of JetStream listens to subject {self._subject!r}. It is tried "
                "again. Create the stream, or correct the subject of ToNats"
            ) from None

    async def close(self) -> None:
        """Disconnect."""
        async with self._connecting:
            await self._disconnect()

    async def _disconnect(self) -> None:
        client, self._client, self._stream = self._client, None, None
        if client is not None and not client.is_closed:
            await client.close()

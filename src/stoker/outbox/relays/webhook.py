"""Relay messages to a webhook, signed as Standard Webhooks are, and never into a private network by mistake."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from stoker.model.errors import StokerError
from stoker.model.outbox import webhook as rules
from stoker.model.outcome import Reject, Retry
from stoker.model.time import SECOND, Seconds
from stoker.outbox.message import Message
from stoker.outbox.relays.headers import ascii_headers, content_type
from stoker.outbox.relays.in_key_order import publish_in_key_order
from stoker.outbox.relays.library import needs, seconds

if TYPE_CHECKING:
    import httpcore2

AT_ONCE: Final = 8

OURS: Final = (
    *("webhook-", "proxy-", "content-", "host", "connection", "keep-alive", "te", "trailer", "transfer-encoding"),
    *("upgrade", "expect", "user-agent", "accept-encoding", "authorization", "cookie"),
)
"""Headers that the request itself needs or must not have; those of a message do not set them."""


class ToWebhook:
    """Posts each message to a URL, signed, with its id in `webhook-id`; those of one key one after the other.

    `secrets`: one `whsec_…`, or two while the receiver exchanges one. 2xx accepts; 408, 429, 5xx and no answer within
    `timeout` seconds are tried again, after `Retry-After` if there is one; other 4xx reject the message. The host's
    name is resolved once for each connection, and every address of it must be public; `allow` names networks that are
    not, and may be reached. Redirects are not followed.
    """

    def __init__(
        self,
        url: str,
        secrets: str | Sequence[str],
        *,
        timeout: Seconds = 5,
        allow: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        needs(self, "httpcore2", "webhook")
        self._endpoint = rules.endpoint(url, allow)
        self._keys = rules.secrets(secrets)
        self._timeout = seconds(timeout)
        self._tls = tls
        self._pool: httpcore2.AsyncConnectionPool | None = None

    def __repr__(self) -> str:
        return f"<ToWebhook {self._endpoint.host}>"

    async def open(self) -> None:
        """Make the pool of connections; it connects when it is used."""
        from stoker.outbox.relays.webhook_connection import pool

        self._pool = pool(self._endpoint, self._tls or ssl.create_default_context(), 4 * AT_ONCE)

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        """Post the messages."""
        if self._pool is None:
            await self.open()
        await publish_in_key_order(messages, self._send, at_once=AT_ONCE)

    async def _send(self, message: Message[Any]) -> None:
        from stoker.outbox.relays.webhook_connection import post

        assert self._pool is not None, "a relay is opened first"
        now = int(time.time())
        headers = {
            **ascii_headers(message, without=OURS),
            "content-type": content_type(message),
            "user-agent": "Stoker",
            rules.ID: message.id,
            rules.TIMESTAMP: str(now),
            rules.SIGNATURE: rules.sign(self._keys, message.id, now, message.payload),
        }
        try:
            async with asyncio.timeout(self._timeout):
                status, after, text = await post(self._pool, self._endpoint, headers, message.payload)
        except TimeoutError:
            raise StokerError(f"the webhook {self._endpoint.shown} did not answer in {self._timeout:g} s") from None
        meaning = rules.answer(status)
        if meaning == "accepted":
            return
        why = f"the webhook {self._endpoint.shown} answered {status} to message {message.id}: {text!r}"
        if meaning == "never":
            raise Reject(why)
        pause = rules.pause(after, now * SECOND)
        raise Retry(why, delay=None if pause is None else pause / SECOND)

    async def close(self) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

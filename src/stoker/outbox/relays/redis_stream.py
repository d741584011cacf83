"""Relay messages to a stream of Redis or Valkey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from stoker.model.errors import InvalidOption
from stoker.model.time import Seconds
from stoker.model.unique import check_text
from stoker.outbox.message import Message
from stoker.outbox.relays.headers import headers_of
from stoker.outbox.relays.library import needs, seconds

if TYPE_CHECKING:
    from redis.asyncio import Redis

SCHEMES: Final = ("redis://", "rediss://", "unix://")


class ToRedisStream:
    """Adds each message to a stream (`XADD`): its headers as fields, and the field `payload`.

    The messages of a call are added all or none, in order. `maxlen` trims the stream to about so many entries,
    `timeout` limits the wait for an answer. The server is a single one; a cluster is not supported.
    """

    def __init__(self, url: str, name: str, *, maxlen: int | None = None, timeout: Seconds = 5) -> None:
        needs(self, "redis", "redis")
        if not isinstance(url, str) or not url.startswith(SCHEMES):
            raise InvalidOption("url", url, f"must begin with one of {', '.join(SCHEMES)}")
        check_text("name", name)
        if maxlen is not None and (type(maxlen) is not int or maxlen < 1):
            raise InvalidOption("maxlen", maxlen, "must be at least 1, or None for no limit")
        self._url = url
        self._name = name
        self._maxlen = maxlen
        self._timeout = seconds(timeout)
        self._client: Redis | None = None

    def __repr__(self) -> str:
        return f"<ToRedisStream {self._name}>"

    async def open(self) -> None:
        """Make the client; it connects when it is used, and again after an error."""
        from redis.asyncio import Redis

        self._client = Redis.from_url(self._url, socket_timeout=self._timeout, socket_connect_timeout=self._timeout)

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        """Add all messages in one transaction."""
        if self._client is None:
            await self.open()
            assert self._client is not None
        async with self._client.pipeline(transaction=True) as pipeline:
            for one in messages:
                fields: dict[Any, Any] = {**headers_of(one), "payload": one.payload}
                pipeline.xadd(self._name, fields, maxlen=self._maxlen, approximate=True)
            await pipeline.execute()

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

"""A message as handlers and relays get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr

from stoker.model.ids import text
from stoker.model.outbox import stream as stored
from stoker.model.time import moment

T_co = TypeVar("T_co", covariant=True)

Reader: TypeAlias = Callable[[bytes, str, bool], Any]
"""Decodes a payload, given its type and whether it is raw bytes."""


def unread(payload: bytes, kind: str, raw: bool) -> Any:  # noqa: ARG001 - a `Reader`
    """A body without a hint: bytes as they are, anything else as plain JSON."""
    return payload if raw else msgspec.json.decode(payload)


class Message(msgspec.Struct, Generic[T_co], frozen=True, weakref=False):
    """One message of a stream.

    `id` is the idempotency key: it stays the same whenever the message is delivered, also after a restored backup,
    where numbers may be given again. `attempts` are earlier deliveries. `raw`: the payload is the bytes that were
    appended, not JSON. Its body is not missing: such messages become letters.
    """

    # A batch may have hundreds of them, so whatever a handler may not ask for is made when it asks.
    _stored: stored.Message
    stream: str
    _read: Reader = unread
    _body: Any = UNSET

    @property
    def id(self) -> str:
        """The message's UUID."""
        return text(self._stored.id)

    @property
    def key(self) -> str:
        """What the message belongs to: messages of one key arrive in order."""
        return self._stored.key

    @property
    def payload(self) -> bytes:
        """The bytes of the body."""
        found = self._stored.payload
        assert found is not None
        return found

    @property
    def type(self) -> str:
        """What kind of message it is."""
        return self._stored.type

    @property
    def partition(self) -> int:
        """The partition of its key."""
        return self._stored.partition

    @property
    def number(self) -> int:
        """Its place in the partition, from 1 on."""
        return self._stored.number

    @property
    def created(self) -> datetime:
        """When it was appended."""
        return moment(self._stored.created)

    @property
    def headers(self) -> Mapping[str, str]:
        """What the producer added, by name."""
        return self._stored.headers

    @property
    def attempts(self) -> int:
        """Earlier deliveries."""
        return self._stored.attempts

    @property
    def raw(self) -> bool:
        """Whether the payload is the caller's own bytes, not JSON."""
        return self._stored.raw

    @property
    def body(self) -> T_co:
        """The payload as the handler's type hint wants it, decoded on first use; raises `InvalidPayload` if it cannot.

        Of a union it is the member whose name is the message's `type`, else whatever msgspec makes of it.
        """
        if self._body is UNSET:
            force_setattr(self, "_body", self._read(self.payload, self.type, self.raw))
        found: T_co = self._body
        return found

    def __repr__(self) -> str:
        place = f"{self.stream}/{self.partition}:{self.number}"
        return f"<Message {place} {self.id} key={self.key!r} type={self.type!r}>"

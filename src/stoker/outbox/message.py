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
    appended, not JSON.
    """

    id: str
    key: str
    payload: bytes
    type: str
    stream: str
    partition: int
    number: int
    created: datetime
    headers: Mapping[str, str] = {}
    attempts: int = 0
    raw: bool = False
    _read: Reader = unread
    _body: Any = UNSET

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


def message(found: stored.Message, stream: str, read: Reader = unread) -> Message[Any]:
    """A stored message as a handler gets it; its body must not be missing."""
    assert found.payload is not None, "messages without a body become letters"
    return Message(
        text(found.id),
        found.key,
        found.payload,
        found.type,
        stream,
        found.partition,
        found.number,
        moment(found.created),
        found.headers,
        found.attempts,
        found.raw,
        read,
    )

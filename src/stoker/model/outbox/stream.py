"""Streams: what may be appended, to which partition, and under which number it is delivered.

Called by the outbox before anything is stored, and by engines. The rule it keeps: inside one partition numbers start at
1 and have neither gap nor repetition, and one key always meets the same partition, so what was committed for a key is
delivered in that order. What delivery decides is in `delivery`, how much at once in `batch_size`, and where the
undeliverable goes in `letters`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stoker.model.errors import InvalidInput, InvalidOption, PayloadTooLarge
from stoker.model.job import check_name, check_span, check_text_map
from stoker.model.time import Instant, Span
from stoker.model.unique import check_text, keep_plain, plain

MOST_PARTITIONS = 64
LARGEST_MESSAGE = 64 << 10
LARGEST_HEADERS = 8 << 10
LONGEST_TYPE = 1_024

TOPIC = "~"
"""Before the name of a stream it makes the topic of its wake-ups: no queue's name has it."""

MessageId: TypeAlias = bytes
"""Sixteen bytes, a UUIDv7: what a receiver recognises a repeated message by. Numbers may be given again after a backup
was restored."""


class Stream(msgspec.Struct, frozen=True):
    """A named log, split into partitions that are delivered independently of one another.

    `keep`: how long messages stay after every consumer has passed them.
    """

    name: str
    partitions: int = 1
    keep: Span = 0

    def __post_init__(self) -> None:
        keep_plain(self, name=check_name("stream", self.name))
        count = self.partitions
        if type(count) is not int or not 1 <= count <= MOST_PARTITIONS or count & (count - 1):
            raise InvalidOption("partitions", count, f"must be a power of two between 1 and {MOST_PARTITIONS}")
        check_span("keep", self.keep)


def register(stored: Stream | None, wanted: Stream) -> Stream:
    """Registering again only sets `keep`; another count is refused, for keys would change their partitions."""
    if stored is not None and stored.partitions != wanted.partitions:
        why = f"stream {stored.name!r} has {stored.partitions} already and keys must stay where they are"
        raise InvalidOption("partitions", wanted.partitions, why)
    return wanted


def topic(stream: str) -> str:
    """What a process waits for to learn of new messages of a stream."""
    return TOPIC + stream


def partition_of(key: str, partitions: int) -> int:
    """Where a key belongs: the low bits of the first byte of its SHA-256.

    Every language and Postgres itself can compute that; `hash()` differs from process to process.
    """
    return hashlib.sha256(key.encode()).digest()[0] & (partitions - 1)


class Entry(msgspec.Struct, frozen=True):
    """A message that has no number yet. Checked when made: of a list with one bad message nothing is stored.

    `raw`: the payload is the caller's own bytes, not JSON.
    """

    id: MessageId
    key: str
    partition: int
    payload: bytes
    type: str
    headers: dict[str, str] = {}
    raw: bool = False

    def __post_init__(self) -> None:
        keep_plain(self, key=check_text("key", self.key))
        if not isinstance(self.payload, bytes):
            raise InvalidInput("payload", self.payload, "must be bytes")
        if len(self.payload) > LARGEST_MESSAGE:
            why = f"must be at most {LARGEST_MESSAGE} bytes; store the data elsewhere and append a reference"
            raise PayloadTooLarge("payload", f"{len(self.payload)} bytes", why)
        check_type(self.type)
        keep_plain(self, type=plain(self.type))
        if self.headers:
            keep_plain(self, headers=check_text_map("headers", self.headers, LARGEST_HEADERS))


def entry(
    stream: Stream,
    key: str,
    payload: bytes,
    type: str,  # noqa: A002 - the field's name
    *,
    id: MessageId,  # noqa: A002 - the field's name
    partition: int | None = None,
    headers: dict[str, str] | None = None,
    raw: bool = False,
) -> Entry:
    """Address a message: by its key, or straight to a partition."""
    check_text("key", key)
    if partition is None:
        partition = partition_of(key, stream.partitions)
    made = Entry(id, key, partition, payload, type, headers or {}, raw)
    check_entries(stream, [made])
    return made


def check_entries(stream: Stream, entries: Sequence[Entry]) -> None:
    """Refuse entries for partitions that the stream does not have."""
    for one in entries:
        if type(one.partition) is not int or not 0 <= one.partition < stream.partitions:
            raise InvalidInput("partition", one.partition, f"stream {stream.name!r} has 0 to {stream.partitions - 1}")


def check_type(value: str) -> None:
    """A payload type travels in headers of other systems, so it is plain."""
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_TYPE:
        raise InvalidInput("payload type", value, f"must be text of 1 to {LONGEST_TYPE} characters")
    if not (value.isascii() and value.isprintable()):
        raise InvalidInput("payload type", value, "must be printable ASCII")


def check_received(source: str, ids: Sequence[str]) -> None:
    """Check what an inbox is to remember."""
    check_text("source", source)
    for one in ids:
        check_text("id", one)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A numbered message as it is read for delivery. The payload is None only where the stored body is missing.

    `attempts` are earlier deliveries. It refers to nothing that could refer to it, so the collector skips it.
    """

    id: MessageId
    key: str
    partition: int
    number: int
    payload: bytes | None
    type: str
    created: Instant
    headers: dict[str, str] = {}
    raw: bool = False
    attempts: int = 0


def numbered(entry: Entry, number: int, created: Instant) -> Message:
    """The message that an entry becomes when it gets its number."""
    return Message(
        entry.id,
        entry.key,
        entry.partition,
        number,
        entry.payload,
        entry.type,
        created,
        entry.headers,
        entry.raw,
    )


def numbers(last: int, count: int) -> range:
    """The next `count` numbers of a partition whose highest number is `last` (0 at first)."""
    return range(last + 1, last + 1 + count)


class Vacuumed(msgspec.Struct, frozen=True):
    """What one step of the vacuum deleted, and whether the next one has something to do."""

    deleted: int = 0
    more: bool = False

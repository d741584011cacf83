"""Streams: what may be appended, to which partition, and under which number it is delivered.

Called by the outbox before anything is stored, by the sequencer, and by the vacuum. The rule it keeps: inside one
partition numbers start at 1 and have neither gap nor repetition, and one key always meets the same partition, so what
was committed for a key is delivered in that order. What delivery decides is in `delivery`, when it happens in
`pacing`, and where the undeliverable goes in `letters`.
"""

from __future__ import annotations

import enum
import hashlib

import msgspec

from stoker.model.errors import InvalidInput, InvalidOption, NotFound, PayloadTooLarge
from stoker.model.job import check_name
from stoker.model.time import Instant
from stoker.model.unique import check_text

MOST_PARTITIONS = 64
LARGEST_MESSAGE = 64 << 10
LONGEST_TYPE = 1_024

SEQUENCE_BATCH = 1_000
"""Messages numbered in one transaction."""

SEQUENCE_STEPS = 8
"""Transactions on one partition before the next partition has its turn."""

VACUUM_BATCH = 10_000
"""Messages deleted in one transaction."""


class Stream(msgspec.Struct, frozen=True):
    """A named log, split into partitions that are delivered independently of one another."""

    name: str
    partitions: int = 1

    def __post_init__(self) -> None:
        check_name("stream", self.name)
        count = self.partitions
        if type(count) is not int or not 1 <= count <= MOST_PARTITIONS or count & (count - 1):
            raise InvalidOption("partitions", count, f"must be a power of two between 1 and {MOST_PARTITIONS}")


def register(stored: Stream | None, wanted: Stream) -> Stream:
    """Registering again is free; with another count it is refused, for a key would change its partition."""
    if stored is not None and stored != wanted:
        why = f"stream {stored.name!r} has {stored.partitions} already and keys must stay where they are"
        raise InvalidOption("partitions", wanted.partitions, why)
    return wanted


def known(stored: Stream | None, name: str) -> Stream:
    """The stream, or an error that names the way to get one."""
    if stored is None:
        raise NotFound(f"stream {name!r} is not registered. Nothing was stored. Open an Outbox for it first.")
    return stored


def partition_of(key: str, partitions: int) -> int:
    """Where a key belongs: the low bits of the first byte of its SHA-256.

    Every language and Postgres itself can compute that; `hash()` differs from process to process.
    """
    return hashlib.sha256(key.encode()).digest()[0] & (partitions - 1)


class Entry(msgspec.Struct, frozen=True):
    """A message that has no number yet. Checked when made: of a list with one bad message nothing is stored."""

    stream: str
    partition: int
    payload: bytes
    payload_type: str

    def __post_init__(self) -> None:
        if not isinstance(self.payload, bytes):
            raise InvalidInput("payload", self.payload, "must be bytes")
        if len(self.payload) > LARGEST_MESSAGE:
            why = f"must be at most {LARGEST_MESSAGE} bytes; store the data elsewhere and append a reference"
            raise PayloadTooLarge("payload", f"{len(self.payload)} bytes", why)
        check_type(self.payload_type)


def entry(stream: Stream, key: str, payload: bytes, payload_type: str, partition: int | None = None) -> Entry:
    """Address a message: by its key, or straight to a partition."""
    check_text("key", key)
    if partition is None:
        partition = partition_of(key, stream.partitions)
    elif type(partition) is not int or not 0 <= partition < stream.partitions:
        raise InvalidInput("partition", partition, f"stream {stream.name!r} has 0 to {stream.partitions - 1}")
    return Entry(stream.name, partition, payload, payload_type)


def check_type(value: str) -> None:
    """A payload type travels in headers of other systems, so it is plain."""
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_TYPE:
        raise InvalidInput("payload type", value, f"must be text of 1 to {LONGEST_TYPE} characters")
    if not (value.isascii() and value.isprintable()):
        raise InvalidInput("payload type", value, "must be printable ASCII")


class Message(msgspec.Struct, frozen=True):
    """A numbered message as it is read for delivery. The payload is None only where the stored body is missing."""

    stream: str
    partition: int
    number: int
    payload: bytes | None
    payload_type: str
    created: Instant
    attempts: int = 0


# --- sequencing -----------------------------------------------------------------------------------------------------


class Turn(enum.Enum):
    """What the sequencer does with a partition after one step."""

    AGAIN = "another step at once"
    REQUEUE = "back of the line, there is more"
    DRAINED = "nothing left"


def numbers(last: int, count: int) -> range:
    """The next `count` numbers of a partition whose highest number is `last` (0 at first)."""
    return range(last + 1, last + 1 + count)


def after_step(taken: int, steps: int, batch: int = SEQUENCE_BATCH) -> Turn:
    """Judge a step that numbered `taken` messages, the `steps`-th of this turn: a full step means more may wait."""
    if taken < batch:
        return Turn.DRAINED
    return Turn.AGAIN if steps < SEQUENCE_STEPS else Turn.REQUEUE


# --- counters -------------------------------------------------------------------------------------------------------


def lowered(counter: int, seen: int) -> int:
    """Take away what a finished sweep saw at its start; what was added meanwhile stays, and zero is the floor.

    Used for the vacuum's counter and for the sequencer's marks. A turn that was cut short or failed lowers nothing.
    """
    return max(counter - seen, 0)


def sweepable(counter: int, position: int) -> int:
    """The highest number the vacuum may delete in a partition; 0 means none."""
    return position if counter > 0 else 0

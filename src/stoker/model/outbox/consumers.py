"""Steering: what users change about a consumer, and what they see of a stream."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.outbox.cursor import Cursor, Start, check_start
from stoker.model.outbox.stream import Stream
from stoker.model.time import Instant
from stoker.model.unique import check_text, keep_plain

# --- changes --------------------------------------------------------------------------------------------------------


class Seek(msgspec.Struct, frozen=True):
    """Move the cursors: all of them to a start, or those named to be behind a number."""

    to: Start | dict[int, int]

    def __post_init__(self) -> None:
        if not isinstance(self.to, dict):
            check_start(self.to)
            return
        for number in (*self.to, *self.to.values()):
            if type(number) is not int or number < 0:
                raise InvalidInput("seek", self.to, "must map partitions to numbers of messages")


class Pause(msgspec.Struct, frozen=True):
    """Lease no more; a turn under way goes on."""


class Resume(msgspec.Struct, frozen=True):
    """Lease again."""


class Release(msgspec.Struct, frozen=True):
    """Deliver the letters of a parked key, in order, and then its newer messages."""

    key: str

    def __post_init__(self) -> None:
        keep_plain(self, key=check_text("key", self.key))


class Drop(msgspec.Struct, frozen=True):
    """Forget the consumer with its cursors, letters and parked keys."""


Steering: TypeAlias = Seek | Pause | Resume | Release | Drop


def landing(
    to: Start | dict[int, int], partition: int, *, swept: int, last: int, first: int | None = None
) -> int | None:
    """The position for a start or a seek; None: this partition is not meant.

    `swept` and `last` are the highest deleted and the highest number of the partition, `first` the lowest number of a
    message that was appended at the instant or later.
    """
    if isinstance(to, dict):
        return min(max(to[partition], swept), last) if partition in to else None
    if to == "beginning":
        return swept
    return last if to == "end" or first is None else first - 1


def sought(cursor: Cursor, position: int) -> Cursor:
    """The cursor at another position. Its lease is gone, so the turn under way will be refused."""
    return msgspec.structs.replace(
        cursor,
        position=position,
        attempts=0,
        last_error=None,
        holder=None,
        until=None,
        due=0,
        size=None,
        failures=0,
    )


# --- what users see -------------------------------------------------------------------------------------------------


class CursorState(msgspec.Struct, frozen=True):
    """A cursor, how many messages are behind it, and when the first of them was appended."""

    cursor: Cursor
    waiting: int = 0
    oldest: Instant | None = None


class StreamState(msgspec.Struct, frozen=True):
    """A stream: the highest number of each partition, and its cursors by consumer and partition."""

    stream: Stream
    last: tuple[int, ...]
    cursors: tuple[CursorState, ...] = ()

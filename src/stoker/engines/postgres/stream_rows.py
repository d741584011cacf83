"""Where cursors, messages and letters are stored; `sql.stream_rows` says how.

A partition has the number `pid`, sid * 64 + partition.
"""

from __future__ import annotations

from typing import NamedTuple

from stoker.engines.sql import stream_rows
from stoker.engines.sql.exchanges import Row
from stoker.engines.sql.stream_rows import PARTITION, cursor_values, letter_values
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.letters import Letter
from stoker.model.time import Instant


class Place(NamedTuple):
    """Where a cursor is stored: the numbers of its consumer and of its partition, and of its version."""

    rid: int
    pid: int
    turn: int


class Shown(NamedTuple):
    """A cursor as it is stored now, and what decides whether it may be leased.

    `holder_until` and `worker_until` end the own leases of its holder and of the worker that asks. `oldest` is when the
    first message behind it was appended.
    """

    place: Place
    cursor: Cursor
    holder_until: Instant
    now: Instant
    worker_until: Instant
    released: bool
    due: bool
    oldest: Instant | None

    @property
    def ready(self) -> bool:
        """Whether the partition has something to deliver."""
        return self.released or self.due or self.oldest is not None


def read_cursor(stream: str, row: Row) -> Shown:
    """Return a row of `outbox_cursors`."""
    rid, consumer, pid, turn = row[:4]
    cursor = stream_rows.read_cursor(stream, consumer, pid, row[4:16])
    holder_until, now, worker_until, released, letter_due, oldest = row[16:]
    held, asked = (-1 if one is None else one for one in (holder_until, worker_until))
    return Shown(Place(rid, pid, turn), cursor, held, now, asked, released, letter_due, oldest)


def turn_row(place: Place, cursor: Cursor, *, limit: int = 0, lax: bool = True) -> Row:
    """Return the values with which `outbox_turn` writes a cursor in place of a version, and reads behind it."""
    return (*place, *cursor_values(cursor), limit, lax, False, None)


def next_turn_row(place: Place, cursor: Cursor, limit: int, clock: Instant | None) -> Row:
    """Return the values with which `outbox_turn` leases a cursor anew: its instants are counted from now."""
    return (*place, *cursor_values(cursor), limit, True, True, clock)


def letter_row(letter: Letter) -> Row:
    """Return a letter as a row, without its place. The payload is no `bytes`: users' handles take those for ids."""
    return (letter.number, *letter_values(letter), bytearray(letter.payload))


def read_letter(stream: str, consumer: str, row: Row) -> Letter:
    """Return what `letter_row` wrote, behind the number of its partition."""
    return stream_rows.read_letter(stream, consumer, row[0] & PARTITION, row[1], row[2:])

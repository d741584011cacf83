"""Where cursors, messages and letters are stored; `sql.stream_rows` says how.

A partition has the number `pid`, a message of it the place `pid << 40 | number`.
"""

from __future__ import annotations

from typing import NamedTuple

from stoker.engines.sql import stream_rows
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.stream_rows import PARTITION, cursor_values, letter_values
from stoker.engines.sqlite.statements import sql
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.letters import Letter

NUMBERS = 40
"""Bits of a message's place that are its number; those above are its partition."""

_CURSOR_WRITE = sql("outbox_cursor_write")


class Place(NamedTuple):
    """Where a cursor is stored: the numbers of its consumer and of its partition."""

    rid: int
    pid: int

    @property
    def base(self) -> int:
        """The place below the first message of the partition."""
        return self.pid << NUMBERS

    @property
    def end(self) -> int:
        """The place behind every message of the partition."""
        return (self.pid + 1) << NUMBERS


def _parted(at: int) -> tuple[int, int]:
    """Return the partition and the number of a message by its place."""
    return at >> NUMBERS & PARTITION, at & ((1 << NUMBERS) - 1)


def read_cursor(stream: str, row: Row) -> tuple[Place, Cursor]:
    """Return a cursor, and where it is stored."""
    rid, consumer, pid = row[:3]
    return Place(rid, pid), stream_rows.read_cursor(stream, consumer, pid, row[3:15])


def write_cursor(place: Place, cursor: Cursor) -> Exchange[None]:
    """Store a cursor."""
    yield _CURSOR_WRITE, (*place, *cursor_values(cursor), cursor.parked)


def letter_row(rid: int, at: int, letter: Letter) -> Row:
    """Return a letter as a row."""
    return (rid, at, *letter_values(letter), letter.payload)


def read_letter(stream: str, consumer: str, row: Row) -> Letter:
    """Return what `letter_row` wrote."""
    return stream_rows.read_letter(stream, consumer, *_parted(row[1]), row[2:])

"""How cursors, messages and letters are stored as rows.

A partition has the number `pid`, a message of it the place `pid << 40 | number`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stoker.engines.sql.packing import encode
from stoker.engines.sql.steps import Row, Steps
from stoker.engines.sqlite.statements import sql
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.letters import Letter, LetterStatus
from stoker.model.outbox.stream import Message

NUMBERS = 40
"""Bits of a message's place that are its number; those above are its partition."""

_CURSOR_WRITE = sql("outbox_cursor_write")
_headers = msgspec.json.Decoder(dict[str, str]).decode


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


def pack_headers(headers: dict[str, str]) -> str | None:
    """Headers as a column."""
    return encode(headers).decode() if headers else None


def read_headers(stored: str | None) -> dict[str, str] | None:
    """What `pack_headers` wrote; None if it cannot be read."""
    try:
        return {} if stored is None else _headers(stored)
    except (msgspec.MsgspecError, TypeError):
        return None


def read_message(row: Row, attempts: int) -> Message:
    """A message of the log. One that cannot be read has no payload: it becomes a letter, and the others go on."""
    at, id_, created, raw, key, type_, stored, payload = row
    headers = read_headers(stored)
    return Message(
        id=id_,
        key=key,
        partition=at >> NUMBERS & 63,
        number=at & ((1 << NUMBERS) - 1),
        payload=payload if isinstance(payload, bytes) and headers is not None else None,
        type=type_,
        created=created,
        headers=headers or {},
        raw=bool(raw),
        attempts=attempts,
    )


def read_cursor(stream: str, row: Row) -> tuple[Place, Cursor]:
    """A cursor, and where it is stored."""
    rid, consumer, pid, position, attempts, last_error, holder, token, until, due, served, size = row[:12]
    failures, parked, paused = row[12:15]
    cursor = Cursor(
        stream=stream,
        consumer=consumer,
        partition=pid & 63,
        position=position,
        attempts=attempts,
        last_error=last_error,
        holder=holder,
        token=token,
        until=until,
        due=due,
        served=served,
        size=size,
        failures=failures,
        parked=parked,
        paused=bool(paused),
    )
    return Place(rid, pid), cursor


def write_cursor(place: Place, cursor: Cursor) -> Steps[None]:
    """Store a cursor."""
    values = (
        *place,
        cursor.position,
        cursor.attempts,
        cursor.last_error,
        cursor.holder,
        cursor.token,
        cursor.until,
        cursor.due,
        cursor.served,
        cursor.size,
        cursor.failures,
        cursor.parked,
    )
    yield _CURSOR_WRITE, values


def letter_row(rid: int, at: int, letter: Letter) -> Row:
    """A letter as a row."""
    return (
        rid,
        at,
        letter.failed,
        letter.status.value,
        letter.due,
        letter.attempts,
        letter.holder,
        letter.token,
        letter.until,
        letter.ended,
        letter.id,
        letter.created,
        letter.raw,
        letter.key,
        letter.type,
        pack_headers(letter.headers),
        letter.reason,
        letter.payload,
    )


def read_letter(stream: str, consumer: str, row: Row) -> Letter:
    """What `letter_row` wrote."""
    at, failed, status, due, attempts, holder, token, until, ended, id_, created, raw = row[1:13]
    key, type_, headers, reason, payload = row[13:]
    return Letter(
        id=id_,
        stream=stream,
        consumer=consumer,
        partition=at >> NUMBERS & 63,
        number=at & ((1 << NUMBERS) - 1),
        key=key,
        payload=payload,
        type=type_,
        headers=read_headers(headers) or {},
        raw=bool(raw),
        created=created,
        reason=reason,
        attempts=attempts,
        failed=failed,
        status=LetterStatus(status),
        due=bool(due),
        holder=holder,
        token=token,
        until=until,
        ended=ended,
    )

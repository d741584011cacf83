"""How cursors, messages and letters are stored as rows. A partition has the number `pid`, sid * 64 + partition."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stoker.engines.sql.packing import encode
from stoker.engines.sql.steps import Row
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.letters import Letter, LetterStatus
from stoker.model.outbox.stream import Message
from stoker.model.time import Instant

_headers = msgspec.json.Decoder(dict[str, str]).decode


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
    """A row of `outbox_cursors`."""
    rid, consumer, pid, turn, position, attempts, last_error, holder, token, until, due, served, size = row[:13]
    failures, parked, paused, holder_until, now, worker_until, released, letter_due, oldest = row[13:]
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
        paused=paused,
    )
    ends = (-1 if one is None else one for one in (holder_until, worker_until))
    held, asked = ends
    return Shown(Place(rid, pid, turn), cursor, held, now, asked, released, letter_due, oldest)


def cursor_row(place: Place, cursor: Cursor) -> Row:
    """The values that write a cursor in place of a version."""
    return (
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
    )


def pack_headers(headers: dict[str, str]) -> str | None:
    """Headers as a column."""
    return encode(headers).decode() if headers else None


def read_headers(stored: str | None) -> dict[str, str] | None:
    """What `pack_headers` wrote; None if it cannot be read."""
    try:
        return {} if stored is None else _headers(stored)
    except msgspec.MsgspecError:
        return None


def read_message(partition: int, row: Row, attempts: int) -> Message:
    """A message of the log. One that cannot be read has no payload: it becomes a letter, and the others go on."""
    number, id_, created, raw, key, type_, stored, payload = row[:8]
    headers = read_headers(stored)
    return Message(
        id=id_,
        key=key,
        partition=partition,
        number=number,
        payload=None if payload is None or headers is None else bytes(payload),
        type=type_,
        created=created,
        headers=headers or {},
        raw=raw,
        attempts=attempts,
    )


def letter_row(letter: Letter) -> Row:
    """A letter as a row, without its place. The payload is no `bytes`: users' handles take those for ids."""
    return (
        letter.number,
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
        bytearray(letter.payload),
    )


def read_letter(stream: str, consumer: str, row: Row) -> Letter:
    """What `letter_row` wrote, behind the number of its partition."""
    pid, number, failed, status, due, attempts, holder, token, until, ended, id_, created, raw = row[:13]
    key, type_, headers, reason, payload = row[13:]
    return Letter(
        id=id_,
        stream=stream,
        consumer=consumer,
        partition=pid & 63,
        number=number,
        key=key,
        payload=bytes(payload),
        type=type_,
        headers=read_headers(headers) or {},
        raw=raw,
        created=created,
        reason=reason,
        attempts=attempts,
        failed=failed,
        status=LetterStatus(status),
        due=due,
        holder=holder,
        token=token,
        until=until,
        ended=ended,
    )

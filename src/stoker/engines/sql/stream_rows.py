"""How SQL engines store cursors, messages and letters; where each of them is stored is the engine's own."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stoker.engines.sql.exchanges import Row
from stoker.engines.sql.packing import encode
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.letters import Letter, LetterStatus
from stoker.model.outbox.stream import Message

PARTITION = 63
"""The bits of a `pid`, sid * 64 + partition, that are the partition."""

_headers = msgspec.json.Decoder(dict[str, str]).decode


def pack_headers(headers: dict[str, str]) -> str | None:
    """Return headers as a column."""
    return encode(headers).decode() if headers else None


def read_headers(stored: str | None) -> dict[str, str] | None:
    """Return what `pack_headers` wrote; None if it cannot be read."""
    try:
        return {} if stored is None else _headers(stored)
    except (msgspec.MsgspecError, TypeError):
        return None


def read_messages(partition: int, rows: Iterable[Row], attempts: int, base: int = 0) -> list[Message]:
    """Return messages of the log, by rows that begin with their places behind `base`."""
    return [
        Message(id_, key, partition, place - base, payload, type_, created, {}, bool(raw), attempts)
        if headers is None and type(payload) is bytes
        else _read_message(partition, place - base, (id_, created, raw, key, type_, headers, payload), attempts)
        for place, id_, created, raw, key, type_, headers, payload in rows
    ]


def _read_message(partition: int, number: int, row: Row, attempts: int) -> Message:
    """Return a message with headers. One that cannot be read has no payload: it becomes a letter, and others go on."""
    id_, created, raw, key, type_, stored, payload = row
    headers = read_headers(stored)
    readable = isinstance(payload, bytes | bytearray | memoryview) and headers is not None
    body = bytes(payload) if readable else None
    return Message(id_, key, partition, number, body, type_, created, headers or {}, bool(raw), attempts)


def cursor_values(cursor: Cursor) -> Row:
    """Return the columns of a cursor that a turn changes."""
    return (
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


def read_cursor(stream: str, consumer: str, pid: int, row: Row) -> Cursor:
    """Return what `cursor_values` wrote, behind it the number of parked keys and whether the consumer is paused."""
    position, attempts, last_error, holder, token, until, due, served, size, failures, parked, paused = row
    return Cursor(
        stream=stream,
        consumer=consumer,
        partition=pid & PARTITION,
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


def letter_values(letter: Letter) -> Row:
    """Return a letter's columns without its place and its payload. The first eight change with its state."""
    return (
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
    )


def read_letter(stream: str, consumer: str, partition: int, number: int, row: Row) -> Letter:
    """Return what `letter_values` wrote, behind it the payload."""
    failed, status, due, attempts, holder, token, until, ended, id_, created, raw = row[:11]
    key, type_, headers, reason, payload = row[11:]
    return Letter(
        id=id_,
        stream=stream,
        consumer=consumer,
        partition=partition,
        number=number,
        key=key,
        payload=bytes(payload),
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

"""A stored job in bytes: the body that the client wrote once, and the small state that scripts change.

`state` holds what changes; a job that nobody touched has none. Scripts read and write states with the same formats (see
`lua/_head.lua`).
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from stoker.engines.base import CORRUPT
from stoker.engines.redis.bodies import (
    CHARS,
    HIGHEST,
    NONE,
    ODD,
    STATUSES,
    Row,
    body,
    eight,
    read_body,
    read_plain,
    tail,
)
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId, text
from stoker.model.job import LONGEST_HISTORY, Failure, Job, Status, shown_error
from stoker.model.record import Record
from stoker.model.time import Instant

__all__ = [
    "CHARS", "HIGHEST", "NONE", "NO_NOTES", "ODD", "STATED", "STATUSES", "Notes", "Row", "apply_state", "as_job",
    "as_record", "body", "eight", "fence", "history", "failure", "notes_of", "place", "read_body", "read_failure",
    "ids_of", "read_notes", "read_plain", "salvaged", "state", "tail", "write_notes",
]  # fmt: skip

_FENCE = struct.Struct(">cQH")
_STATE = struct.Struct(">cIIIIIIQcHQ")
_END = struct.Struct(">QQ")
_FAILURE = struct.Struct(">QI")
_U2, _U8 = struct.Struct(">H"), struct.Struct(">Q")


class Notes(msgspec.Struct, array_like=True, frozen=True):
    """What runs noted on a job. `asked` is when it was asked to stop."""

    progress: float | None = None
    metadata: dict[str, str] = {}
    log: tuple[str, ...] = ()
    asked: Instant | None = None


NO_NOTES = Notes()
STATED = b"+"
"""How the place of a job ends that has a state."""

_write_notes = msgspec.json.Encoder().encode
_read_notes = msgspec.json.Decoder(Notes).decode


# --- states -----------------------------------------------------------------------------------------------------


def state(record: Record, *, errors: int, version: int) -> bytes:
    """A record's state as scripts read it."""
    worker = (record.worker or "").encode()
    end = b""
    if record.finished_at is not None:
        end = _END.pack(record.finished_at, record.expires_at or 0) + (record.successor or b"")
    elif record.former is not None:
        end = eight(record.former_at or 0) + record.former.encode()
    return b"".join(
        (
            _FENCE.pack(CHARS[record.status], record.token, len(worker)),
            worker,
            _STATE.pack(
                b"1" if record.cancel_requested else b"0",
                record.attempts,
                record.base,
                record.crashes,
                record.throttles,
                errors,
                version,
                record.started_at or 0,
                NONE if record.settled is None else CHARS[record.settled],
                record.priority + HIGHEST,
                record.scheduled_at,
            ),
            end,
        )
    )


def apply_state(record: Row, raw: bytes | None) -> Row:
    """Write a state on the record its body made."""
    record.raw = raw
    if raw is None:
        return record
    try:
        char, record.token, size = _FENCE.unpack_from(raw)
        at = _FENCE.size + size
        record.worker = raw[_FENCE.size : at].decode() or None
        (
            cancel,
            record.attempts,
            record.base,
            record.crashes,
            record.throttles,
            record.errors,
            record.version,
            started,
            record.settled,
            priority,
            record.scheduled_at,
        ) = _STATE.unpack_from(raw, at)
        record.status = STATUSES[char]
        record.priority = priority - HIGHEST
        record.cancel_requested = cancel == b"1"
        record.started_at = started or None
        end = raw[at + _STATE.size :]
        if record.status is Status.RUNNING:
            if end:
                record.former_at, record.former = _U8.unpack_from(end)[0], end[8:].decode()
        elif end:
            record.finished_at, record.expires_at = _END.unpack_from(end)
            record.successor = end[16:] or None
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"the state of job {text(record.id)} cannot be read: {error}") from error
    return record


def fence(worker: str, token: int) -> bytes:
    """How the state of a job begins that runs under this worker and token."""
    name = worker.encode()
    return _FENCE.pack(b"r", max(token, 0), len(name)) + name


# --- small things -----------------------------------------------------------------------------------------------


def place(record: Record | Row, *, stated: bool) -> bytes:
    """Where a waiting record stands in its queue's line; lines are in byte order. `stated`: it has a state."""
    place = _U2.pack(record.priority + HIGHEST) + _U8.pack(record.scheduled_at) + record.id
    return place + STATED if stated else place


def ids_of(lot: bytes) -> list[JobId]:
    """The jobs of a lot: those that came, were claimed or ended in the same step (see `lua/_lots.lua`)."""
    return [lot[at : at + 16] for at in range(0, len(lot), 16)]


def read_failure(stored: bytes) -> Failure:
    """One entry of the ring of errors."""
    at, attempt = _FAILURE.unpack_from(stored)
    return Failure(at, attempt, stored[_FAILURE.size :].decode(errors="replace"))


def failure(at: Instant, attempt: int, error: str) -> bytes:
    """What `read_failure` reads."""
    return _FAILURE.pack(at, attempt) + error.encode()


def history(count: int, ring: list[bytes | None]) -> tuple[Failure, ...]:
    """The ring in the order things happened."""
    first = max(count - LONGEST_HISTORY, 0)
    entries = (ring[place % LONGEST_HISTORY] for place in range(first, count))
    return tuple(read_failure(entry) for entry in entries if entry is not None)


def read_notes(stored: bytes | None) -> Notes:
    """What runs noted. Raises `CorruptRecord` when it cannot be read."""
    try:
        return NO_NOTES if stored is None else _read_notes(stored)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptRecord(f"the notes cannot be read: {error}") from error


def salvaged(stored: bytes | None) -> Notes:
    """What runs noted, as far as it can be read: a run must be able to end whatever stands there."""
    try:
        return read_notes(stored)
    except CorruptRecord:
        return NO_NOTES


def write_notes(notes: Notes) -> bytes:
    return _write_notes(notes)


_SAME = tuple(name for name in Job.__struct_fields__ if name in Row.__struct_fields__)


def as_job(record: Row) -> Job:
    """The record as an operator sees it; what cannot be read is left out and said so, so that it can be removed."""
    fields: dict[str, Any] = {name: getattr(record, name) for name in _SAME}
    notes, broken = NO_NOTES, record.corrupt
    try:
        notes = read_notes(record.notes)
    except CorruptRecord as error:
        broken = str(error)
    metadata = dict(notes.metadata) if broken is None else {**notes.metadata, CORRUPT: broken}
    fields["last_error"] = shown_error(record.status, record.last_error)
    asked = notes.asked if record.cancel_requested else None
    return Job(progress=notes.progress, metadata=metadata, log=notes.log, cancel_requested_at=asked, **fields)


_RECORD = tuple(
    name for name in Record.__struct_fields__ if name in Row.__struct_fields__ and name not in ("settled", "notes")
)


def as_record(row: Row) -> Record:
    """The stored job as the model changes it, with what runs noted if that was read."""
    fields: dict[str, Any] = {name: getattr(row, name) for name in _RECORD}
    notes = salvaged(row.notes)
    return Record(
        progress=notes.progress,
        metadata=notes.metadata,
        log=notes.log,
        cancel_requested_at=notes.asked,
        settled=None if row.settled == NONE else STATUSES.get(row.settled),
        unreadable=row.corrupt if row.aside or row.broken else None,
        **fields,
    )


def notes_of(record: Record) -> Notes:
    """What runs noted on a job, and when it was asked to stop."""
    return Notes(record.progress, record.metadata, record.log, record.cancel_requested_at)

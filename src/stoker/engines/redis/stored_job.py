"""A job as it was read from Redis: its record, and the notes that handlers left on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stoker.engines.base import CORRUPT
from stoker.model.errors import CorruptRecord
from stoker.model.job import Job, shown_error
from stoker.model.record import Record
from stoker.model.time import Instant


class StoredJob(msgspec.Struct, gc=False, eq=False):
    """A record, and what Redis stores with it.

    `raw` is the state as it was read; None for a job without one. `errors` counts all failures, `version` all changes
    by a unit of work. `corrupt` says what cannot be read: with `broken` the body or the whole state, with `aside` the
    job is dead already and its payload is the raw text.
    """

    record: Record
    raw: bytes | None = None
    errors: int = 0
    version: int = 0
    notes: bytes | None = None
    corrupt: str | None = None
    aside: bool = False
    broken: bool = False

    def change(self, **fields: Any) -> None:
        """Give the record other values."""
        self.record = msgspec.structs.replace(self.record, **fields)


class Notes(msgspec.Struct, array_like=True, frozen=True):
    """What handlers noted on a job. `asked` is when a running job was asked to stop."""

    progress: float | None = None
    metadata: dict[str, str] = {}
    log: tuple[str, ...] = ()
    asked: Instant | None = None


NO_NOTES = Notes()
write_notes: Callable[[Notes], bytes] = msgspec.json.Encoder().encode
_read_notes = msgspec.json.Decoder(Notes).decode


def read_notes(stored: bytes | None) -> Notes:
    """Stored notes. Raises `CorruptRecord` when they cannot be read."""
    try:
        return NO_NOTES if stored is None else _read_notes(stored)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptRecord(f"the notes cannot be read: {error}") from error


def salvaged(stored: bytes | None) -> Notes:
    """Stored notes, or none where they cannot be read: every run must be able to end."""
    try:
        return read_notes(stored)
    except CorruptRecord:
        return NO_NOTES


def notes_of(record: Record) -> Notes:
    """The notes of a record."""
    return Notes(record.progress, record.metadata, record.log, record.cancel_requested_at)


def as_record(job: StoredJob) -> Record:
    """The record as the model changes it, with the notes as far as they can be read."""
    notes = salvaged(job.notes)
    return msgspec.structs.replace(
        job.record,
        progress=notes.progress,
        metadata=notes.metadata,
        log=notes.log,
        cancel_requested_at=notes.asked,
        unreadable=job.corrupt if job.aside or job.broken else None,
    )


def as_job(job: StoredJob) -> Job:
    """The job as an operator sees it; `metadata` names what of it cannot be read."""
    record, broken = as_record(job), job.corrupt
    try:
        read_notes(job.notes)
    except CorruptRecord as error:
        broken = str(error)
    return record.as_job(
        metadata=dict(record.metadata) if broken is None else {**record.metadata, CORRUPT: broken},
        cancel_requested_at=record.cancel_requested_at if record.cancel_requested else None,
        last_error=shown_error(record.status, record.last_error),
    )

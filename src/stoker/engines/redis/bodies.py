"""A stored job: the record as modules change it, and the body, which the client writes once.

`jobs` holds bodies: id, creation, first due time, priority, then everything a draft says. No script looks further into
one than its kind and queue.
"""

from __future__ import annotations

import struct

import msgspec

from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import PLAIN, Draft, Failure, Options, Status, pack, unpack
from stoker.model.record import Record
from stoker.model.time import Instant
from stoker.model.unique import TRAITS, Unique

CHARS: dict[Status, bytes] = {
    Status.PENDING: b"p",
    Status.RUNNING: b"r",
    Status.RETRYING: b"a",
    Status.DONE: b"d",
    Status.DEAD: b"x",
    Status.CANCELED: b"c",
    Status.DISCARDED: b"i",
    Status.RETRIED: b"t",
}
STATUSES = {char: status for status, char in CHARS.items()}
ODD = frozenset({Status.RETRYING, Status.DEAD, Status.CANCELED, Status.DISCARDED, Status.RETRIED})
"""Statuses that most jobs are not in, and people look for: they have an index of their own."""

HIGHEST = 1000
NONE = b"-"


class Row(msgspec.Struct, gc=False, eq=False):
    """One stored job as its bytes say. `raw` is its state as it was read; None for a job that was never touched.

    `corrupt` says what of it cannot be read. `broken`: its body or its state as a whole. `aside`: it was found out, and
    is an ordinary dead job now whose payload is the raw text.
    """

    id: JobId
    kind: str
    queue: str
    payload: bytes
    priority: int
    budget: int
    created_at: Instant
    scheduled_at: Instant
    options: Options = PLAIN
    unique: Unique | None = None
    tenant: str | None = None
    status: Status = Status.PENDING
    attempts: int = 0
    base: int = 0
    crashes: int = 0
    throttles: int = 0
    errors: int = 0
    version: int = 0
    worker: str | None = None
    token: int = 0
    started_at: Instant | None = None
    settled: bytes = NONE
    finished_at: Instant | None = None
    expires_at: Instant | None = None
    cancel_requested: bool = False
    last_error: str | None = None
    successor: JobId | None = None
    former: str | None = None
    former_at: Instant | None = None
    history: tuple[Failure, ...] = ()
    result: bytes | None = None
    notes: bytes | None = None
    raw: bytes | None = None
    corrupt: str | None = None
    aside: bool = False
    broken: bool = False


_BODY = struct.Struct(">16sQQH")
_U1, _U2, _U4 = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I")
_KEYED, _TENANT, _OPTIONS = 1, 2, 4


# --- bodies -----------------------------------------------------------------------------------------------------


def tail(draft: Draft | Record | Row, budget: int) -> bytes:
    """The part of a body that the client makes: priority and everything the draft says."""
    kind, queue = draft.kind.encode(), draft.queue.encode()
    flags, more = 0, b""
    if draft.unique is not None:
        key, traits = draft.unique.key.encode(), draft.unique
        flags |= _KEYED
        more += _U2.pack(len(key)) + key
        more += _U1.pack(TRAITS.index((traits.scope, traits.mode, traits.hold)))
    if draft.tenant is not None:
        flags |= _TENANT
        tenant = draft.tenant.encode()
        more += _U2.pack(len(tenant)) + tenant
    options = None if draft.options is PLAIN else pack(draft.options)
    if options is not None:
        flags |= _OPTIONS
        more += _U4.pack(len(options)) + options
    return b"%b%c%b%c%b%b%c%b%b" % (
        _U2.pack(draft.priority + HIGHEST),
        len(kind),
        kind,
        len(queue),
        queue,
        _U4.pack(budget),
        flags,
        more,
        draft.payload,
    )


def body(record: Record | Row) -> bytes:
    """The whole body of a record."""
    return record.id + eight(record.created_at) + eight(record.scheduled_at) + tail(record, record.budget)


def read_body(stored: bytes) -> Row:
    """What `body` (or the insert script) wrote. Raises `CorruptRecord` when it is not that."""
    try:
        job, created, due, priority = _BODY.unpack_from(stored)
        (kind, queue, budget, flags), at = read_label(stored)
        record = Row(job, kind, queue, b"", priority - HIGHEST, budget, created, due)
        if flags:
            at = _read_more(record, stored, at, flags)
        record.payload = stored[at:]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"the body of job {stored[:16].hex()} cannot be read: {error}") from error
    return record


_labels: dict[bytes, tuple[str, str, int, int]] = {}
_MOST_LABELS = 10_000


def read_label(stored: bytes) -> tuple[tuple[str, str, int, int], int]:
    """Kind, queue, budget and flags of a body, and where they end. There are few of them, so they are read once."""
    start = _BODY.size
    kind = stored[start]
    end = start + 7 + kind + stored[start + 1 + kind]
    text = stored[start:end]
    found = _labels.get(text)
    if found is None:
        name, at = _short(stored, start)
        queue, at = _short(stored, at)
        found = (name, queue, _U4.unpack_from(stored, at)[0], stored[at + 4])
        if len(_labels) < _MOST_LABELS:
            _labels[text] = found
    return found, end


def read_plain(stored: bytes) -> tuple[JobId, str, bytes, int, Instant, Instant, int] | None:
    """Id, kind, payload, budget, creation, due time and priority of a body that has nothing else; None if it has."""
    try:
        (kind, _, budget, flags), at = read_label(stored)
        job, created, due, priority = _BODY.unpack_from(stored)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    return None if flags else (job, kind, stored[at:], budget, created, due, priority - HIGHEST)


def _short(stored: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + stored[at]
    if end > len(stored):
        raise IndexError("a name ends beyond the record")
    return stored[at + 1 : end].decode(), end


def _read_more(record: Row, stored: bytes, at: int, flags: int) -> int:
    """Key, tenant and options; what cannot be read is left out and said so."""
    if flags & _KEYED:
        end = at + 2 + _U2.unpack_from(stored, at)[0]
        key = stored[at + 2 : end].decode()
        try:
            record.unique = Unique(key, *TRAITS[stored[end]])
        except (IndexError, ValueError) as error:
            record.corrupt = f"the unique key cannot be read: {error}"
        at = end + 1
    if flags & _TENANT:
        end = at + 2 + _U2.unpack_from(stored, at)[0]
        record.tenant = stored[at + 2 : end].decode()
        at = end
    if flags & _OPTIONS:
        end = at + 4 + _U4.unpack_from(stored, at)[0]
        try:
            record.options = unpack(stored[at + 4 : end])
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            record.corrupt = f"the options cannot be read: {error}"
        at = end
    return at


def eight(value: int) -> bytes:
    """A number whose bytes sort like itself."""
    return value.to_bytes(8)

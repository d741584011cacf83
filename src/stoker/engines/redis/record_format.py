"""The bytes of a stored job: how a record becomes a body and a state, and back.

A job's *body* is what the caller enqueued; the client writes it once. Its *state* is what changes afterwards; a job
that was never claimed or altered has none. `PARTS` and `STATE` declare their fields; scripts take the format of a state
from here (`scripts.py`). FORMAT.md explains all that is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from stoker.engines.redis.stored_job import StoredJob
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId, text
from stoker.model.job import FIRST, LONGEST_HISTORY, PLAIN, Draft, Failure, Status, pack, salvaged, unpack
from stoker.model.record import Record
from stoker.model.steps import Step, StepState, Wakes
from stoker.model.time import SECOND, Instant, span
from stoker.model.unique import TRAITS, Kept, Unique

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

_SETTLED: dict[Status | Wakes, bytes] = {Wakes.ANY: b"s", Wakes.ALL: b"S"} | dict(CHARS.items())
_ENDINGS = {char: ending for ending, char in _SETTLED.items()}
"""How a run ended: by its letter."""

OFFSET = -FIRST
"""Added to a priority, so that its bytes are never negative."""

HAS_STATE = b"+"
"""Ends the waiting entry of a job that has a state."""

_U1, _U2, _U4, _U8 = (struct.Struct(f">{code}") for code in "BHIQ")
_BODY = struct.Struct(">16sQQH")
_FENCE = struct.Struct(">cQH")
_END = struct.Struct(">QQ")
_FAILURE = struct.Struct(">QII")

STEP_HEAD = struct.Struct(">cQQQ")
"""How a row of a step begins: state, token, when it was stored, and when its wait ends."""

_ENDLESS = (1 << 64) - 1


# --- bodies -----------------------------------------------------------------------------------------------------


class Part(msgspec.Struct, frozen=True):
    """An optional part of a body: its size, then its content. `write` returns None for a value that needs no part.

    `uncounted` are the bytes at the end of the content that the size leaves out.
    """

    field: str
    name: str
    flag: int
    absent: Any
    size: struct.Struct
    write: Callable[[Any], bytes | None]
    read: Callable[[bytes], Any]
    uncounted: int = 0


def _write_unique(unique: Unique) -> bytes:
    held = b"" if unique.for_ is None else b"\0" + eight(span(unique.for_))
    return unique.key.encode() + held + _U1.pack(TRAITS.index((unique.scope, unique.mode, unique.hold)))


def _read_unique(content: bytes) -> Unique:
    key, _, held = content[:-1].partition(b"\0")  # no key has this byte
    return Unique(key.decode(), *TRAITS[content[-1]], for_=int.from_bytes(held) / SECOND if held else None)


def kept_key(kept: Kept) -> bytes:
    """A key in `keys` that is kept for a time: an active holder is there with its id alone."""
    return kept.job + eight(kept.until)


def read_hold(stored: bytes | None) -> JobId | Kept | None:
    """Who has a key, from its entry in `keys`."""
    return stored if stored is None or len(stored) == 16 else Kept(stored[:16], int.from_bytes(stored[16:]))


PARTS = (
    Part("unique", "unique key", 1, None, _U2, _write_unique, _read_unique, uncounted=1),
    Part("tenant", "tenant", 2, None, _U2, str.encode, bytes.decode),
    Part("options", "options", 4, PLAIN, _U4, pack, unpack),
)
"""In the order in which a body holds them. `lua/expire.lua` reads the unique key, the first one."""


def tail(draft: Draft | Record, budget: int) -> bytes:
    """The part of a body that does not depend on when and under which id the job is stored."""
    kind, queue = draft.kind.encode(), draft.queue.encode()
    flags, more = 0, b""
    for part in PARTS:
        value = getattr(draft, part.field)
        if value is not part.absent and (content := part.write(value)) is not None:
            flags |= part.flag
            more += part.size.pack(len(content) - part.uncounted) + content
    return b"%b%c%b%c%b%b%c%b%b" % (
        _U2.pack(draft.priority + OFFSET),
        len(kind),
        kind,
        len(queue),
        queue,
        _U4.pack(budget),
        flags,
        more,
        draft.payload,
    )


def body(record: Record) -> bytes:
    """The whole body of a record."""
    return record.id + eight(record.created_at) + eight(record.scheduled_at) + tail(record, record.budget)


def read_body(stored: bytes) -> StoredJob:
    """The job of a body, without its state. Raises `CorruptRecord` when the bytes are no body."""
    try:
        job, created, due, priority = _BODY.unpack_from(stored)
        (kind, queue, budget, flags), at = read_label(stored)
        parts, corrupt, at = _read_parts(stored, at, flags) if flags else ({}, None, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"the body of job {stored[:16].hex()} cannot be read: {error}") from error
    record = Record(
        id=job,
        kind=kind,
        queue=queue,
        payload=stored[at:],
        priority=priority - OFFSET,
        budget=budget,
        created_at=created,
        scheduled_at=due,
        **parts,
    )
    return StoredJob(record, corrupt=corrupt)


def _read_parts(stored: bytes, at: int, flags: int) -> tuple[dict[str, Any], str | None, int]:
    """The optional parts by field, what of them cannot be read, and where they end."""
    found: dict[str, Any] = {}
    corrupt = None
    for part in PARTS:
        if not flags & part.flag:
            continue
        start = at + part.size.size
        at = start + part.size.unpack_from(stored, at)[0] + part.uncounted
        if at > len(stored):
            raise IndexError(f"the {part.name} ends beyond the body")
        try:
            found[part.field] = part.read(stored[start:at])
        except (msgspec.MsgspecError, IndexError, ValueError, TypeError) as error:
            corrupt = f"the {part.name} cannot be read: {error}"
            if part.field == "options":
                found["options"] = salvaged(stored[start:at])
    return found, corrupt, at


_SIZES = tuple(
    tuple((part.size.unpack_from, part.size.size + part.uncounted) for part in PARTS if flags & part.flag)
    for flags in range(2 ** len(PARTS))
)
"""By flags: how the size of each part is read, and what it leaves out."""


def check_parts(stored: bytes, at: int, flags: int) -> None:
    """Raise `struct.error` or `IndexError` where `read_body` would: the optional parts end beyond the body."""
    for read, more in _SIZES[flags % len(_SIZES)]:
        at += read(stored, at)[0] + more
    if at > len(stored):
        raise IndexError(at)


_labels: dict[bytes, tuple[str, str, int, int]] = {}
_MOST_LABELS = 10_000


def read_label(stored: bytes) -> tuple[tuple[str, str, int, int], int]:
    """Kind, queue, budget and flags of a body, and where they end. Few differ, so each is decoded once."""
    start = _BODY.size
    kind = stored[start]
    end = start + 7 + kind + stored[start + 1 + kind]
    label = stored[start:end]
    found = _labels.get(label)
    if found is None:
        name, at = _short(stored, start)
        queue, at = _short(stored, at)
        found = (name, queue, _U4.unpack_from(stored, at)[0], stored[at + 4])
        if len(_labels) < _MOST_LABELS:
            _labels[label] = found
    return found, end


def read_plain(stored: bytes) -> tuple[JobId, str, bytes, int, Instant, Instant, int] | None:
    """Id, kind, payload, budget, creation, due time and priority of a body without parts; None for another."""
    try:
        (kind, _, budget, flags), at = read_label(stored)
        job, created, due, priority = _BODY.unpack_from(stored)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    return None if flags else (job, kind, stored[at:], budget, created, due, priority - OFFSET)


def _short(stored: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + stored[at]
    if end > len(stored):
        raise IndexError("a name ends beyond the body")
    return stored[at + 1 : end].decode(), end


# --- states -----------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


class Field(msgspec.Struct, frozen=True):
    """A field of fixed size in a state: its name, its `struct` code, and its value in bytes and in a record."""

    name: str
    code: str
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same


STATE = (
    Field("cancel_requested", "c", lambda asked: b"1" if asked else b"0", lambda char: char == b"1"),
    Field("attempts", "I"),
    Field("base", "I"),
    Field("crashes", "I"),
    Field("throttles", "I"),
    Field("errors", "I"),
    Field("version", "I"),
    Field("started_at", "Q", lambda at: at or 0, lambda at: at or None),
    Field("settled", "c", lambda ending: _SETTLED.get(ending, b"-"), _ENDINGS.get),
    Field("priority", "H", lambda priority: priority + OFFSET, lambda stored: stored - OFFSET),
    Field("scheduled_at", "Q"),
)
"""What stands between the worker's name and the end of a state. Scripts know each field by the same name."""

STATE_FORMAT = struct.Struct(">" + "".join(field.code for field in STATE))


def state(record: Record, *, errors: int, version: int) -> bytes:
    """A record's state."""
    worker = (record.worker or "").encode()
    if record.finished_at is not None and record.origin:
        worker = _U4.pack(record.origin)
    beside = {"errors": errors, "version": version}
    values = [
        field.write(beside[field.name] if field.name in beside else getattr(record, field.name)) for field in STATE
    ]
    end = b""
    if record.finished_at is not None:
        end = _END.pack(record.finished_at, record.expires_at or 0) + (record.successor or b"")
    elif record.former is not None:
        end = eight(record.former_at or 0) + record.former.encode()
    head = _FENCE.pack(CHARS[record.status], record.token, len(worker))
    return head + worker + STATE_FORMAT.pack(*values) + end


def apply_state(job: StoredJob, raw: bytes | None, **more: Any) -> StoredJob:
    """Write a state, and more fields of the record, on the job that its body made."""
    job.raw = raw
    if raw is not None:
        more |= _read_state(job, raw)
    if more:
        job.change(**more)
    return job


def _read_state(job: StoredJob, raw: bytes) -> dict[str, Any]:
    try:
        char, token, size = _FENCE.unpack_from(raw)
        at = _FENCE.size + size
        stored = zip(STATE, STATE_FORMAT.unpack_from(raw, at), strict=True)
        found: dict[str, Any] = {field.name: field.read(value) for field, value in stored}
        found |= {"status": STATUSES[char], "token": token}
        worker, end = raw[_FENCE.size : at], raw[at + STATE_FORMAT.size :]
        if char == b"r":
            found["worker"] = worker.decode() or None
        else:
            found["origin"] = int.from_bytes(worker)
        if end and found["status"] is Status.RUNNING:
            found |= {"former_at": _U8.unpack_from(end)[0], "former": end[8:].decode()}
        elif end:
            finished, expires = _END.unpack_from(end)
            found |= {"finished_at": finished, "expires_at": expires, "successor": end[16:] or None}
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"the state of job {text(job.record.id)} cannot be read: {error}") from error
    job.errors, job.version = found.pop("errors"), found.pop("version")
    return found


def end_of(raw: bytes) -> Instant:
    """When the job of a state ended; 0 for one that did not, or whose state cannot be read."""
    try:
        _, _, size = _FENCE.unpack_from(raw)
        finished: Instant = _END.unpack_from(raw, _FENCE.size + size + STATE_FORMAT.size)[0]
    except struct.error:
        return 0
    return finished


def fence(worker: str, token: int) -> bytes:
    """How the state of a job begins that runs under this worker and token."""
    name = worker.encode()
    return _FENCE.pack(b"r", max(token, 0), len(name)) + name


# --- steps ------------------------------------------------------------------------------------------------------


def step(row: Step) -> bytes:
    """A row of a job."""
    until = _ENDLESS if row.until is None else row.until
    head = STEP_HEAD.pack(b"%d" % row.state, row.token, row.at, until)
    return head if row.value is None else b"%b=%b" % (head, row.value)


def step_end(row: Step) -> bytes:
    """What a row ends with, behind the time at which a script stores it."""
    until = eight(_ENDLESS if row.until is None else row.until)
    return until if row.value is None else b"%b=%b" % (until, row.value)


def read_step(name: str, stored: bytes) -> Step:
    """A row of a job; of its head alone, the row without its value."""
    try:
        state, token, at, until = STEP_HEAD.unpack_from(stored)
        value = stored[STEP_HEAD.size + 1 :] if len(stored) > STEP_HEAD.size else None
        return Step(name, StepState(int(state)), value, None if until == _ENDLESS else until, token, at)
    except (struct.error, ValueError) as error:
        raise CorruptRecord(f"step {name} cannot be read: {error}") from error


# --- entries ----------------------------------------------------------------------------------------------------


def waiting_entry(record: Record, *, has_state: bool) -> bytes:
    """The entry of a waiting job in its queue's set, which the server keeps in byte order."""
    entry = _U2.pack(record.priority + OFFSET) + eight(record.scheduled_at) + record.id
    return entry + HAS_STATE if has_state else entry


def ids_of(packed: bytes) -> list[JobId]:
    """The whole ids of packed ones: jobs that were inserted, claimed or ended in the same step share one entry."""
    return [packed[at : at + 16] for at in range(0, len(packed) - 15, 16)]


def is_entry(entry: bytes) -> bool:
    """Are these bytes a waiting entry (`is_entry` of `lua/_head.lua`)?"""
    size = len(entry)
    return size >= 26 and (size % 16 == 10 or size == 27) and entry[0] < 8


def ids_in_subqueue_entry(member: bytes) -> list[JobId]:
    """The ids of an entry of a subqueue."""
    return ids_of(member.partition(b"\0")[2][10:])


def eight(value: int) -> bytes:
    """A number as eight bytes, which sort as the numbers do."""
    return value.to_bytes(8)


def failure(one: Failure) -> bytes:
    """One entry of a job's ring of errors."""
    return _FAILURE.pack(one.at, one.attempt, one.origin) + one.error.encode()


def history(count: int, ring: list[bytes | None]) -> tuple[Failure, ...]:
    """The ring's failures, oldest first."""
    first = max(count - LONGEST_HISTORY, 0)
    entries = (ring[number % LONGEST_HISTORY] for number in range(first, count))
    return tuple(_read_failure(entry) for entry in entries if entry is not None)


def _read_failure(stored: bytes) -> Failure:
    at, attempt, origin = _FAILURE.unpack_from(stored)
    return Failure(at, attempt, stored[_FAILURE.size :].decode(errors="replace"), origin)

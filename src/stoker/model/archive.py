"""Jobs as lines of an archive: written by `stoker export`, put into another store by `stoker import`.

A line is one JSON object with everything the store knows of a job: its history, log, metadata, steps and emitted values
too. Instants are whole microseconds since 1970, as in the store, so that nothing is rounded. Payload, result and step
values stand in the line as the JSON they are; what is no JSON in one line stands there as base64, so that it comes back
byte by byte.

What is not carried: events of the timeline, settings of queues, schedules, streams, and groups. A member comes back
without its group. A job that runs is written as pending, as if its worker had handed it back.
"""

from __future__ import annotations

import binascii
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stoker.model import ids
from stoker.model.errors import InvalidInput
from stoker.model.job import PLAIN, Failure, Job, Options, Status
from stoker.model.record import Record
from stoker.model.steps import Step, StepState, Wakes
from stoker.model.time import Instant
from stoker.model.unique import Unique

VERSION = 1

BASE64 = b'{"$base64":"'
"""How a value begins that is no JSON in one line."""


class UnreadableLine(InvalidInput):
    """A line that is no archived job. An import stores a file in pages, so earlier ones are stored already."""

    aftermath = (
        "Jobs of earlier lines may be stored. Mend or remove this line and import the file again: "
        "jobs that are stored are left as they are."
    )


class Archived(NamedTuple):
    """A job of another store with its steps."""

    record: Record
    steps: Sequence[Step] = ()


class Put(enum.StrEnum):
    """What became of a job that was put into a store. `blocked`: another active job has its unique key."""

    STORED = "stored"
    EXISTING = "existing"
    BLOCKED = "blocked"


class _Step(msgspec.Struct, omit_defaults=True):
    name: str
    state: StepState = StepState.DONE
    value: Raw | UnsetType = UNSET
    until: Instant | None = None
    token: int = 0
    at: Instant = 0


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line. Fields of a newer version are ignored, absent ones take their default."""

    stoker: int = 0
    id: str
    kind: str
    queue: str
    status: Status
    payload: Raw
    priority: int = 0
    budget: int
    created_at: Instant
    scheduled_at: Instant
    attempts: int = 0
    base: int = 0
    crashes: int = 0
    throttles: int = 0
    options: Options = PLAIN
    unique: Unique | None = None
    tenant: str | None = None
    token: int = 0
    started_at: Instant | None = None
    finished_at: Instant | None = None
    expires_at: Instant | None = None
    last_error: str | None = None
    history: list[Failure] = []
    result: Raw | UnsetType = UNSET
    progress: float | None = None
    metadata: dict[str, str] = {}
    log: list[str] = []
    successor: str | None = None
    settled: str | None = None
    origin: int = 0
    steps: list[_Step] = []


_SAME = frozenset(_Line.__struct_fields__) - {"stoker", "id", "payload", "result", "successor", "settled", "steps"}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


def written(job: Job, steps: Sequence[Step] = ()) -> bytes:
    """A job as a line, without its end. One that runs is pending, without the attempt that has not ended."""
    if job.status is Status.RUNNING:
        attempts = max(0, job.attempts - 1)
        job = msgspec.structs.replace(job, status=Status.PENDING, attempts=attempts, started_at=None, settled=None)
    same: dict[str, Any] = {name: getattr(job, name) for name in _SAME}
    same |= {"history": list(job.history), "log": list(job.log)}
    line = _Line(
        **same,
        stoker=VERSION,
        id=ids.text(job.id),
        payload=_raw(job.payload),
        result=UNSET if job.result is None else _raw(job.result),
        successor=None if job.successor is None else ids.text(job.successor),
        settled=None if job.settled is None else job.settled.value,
        steps=[
            _Step(one.name, one.state, UNSET if one.value is None else _raw(one.value), one.until, one.token, one.at)
            for one in steps
        ],
    )
    return _encode(line)


def read(line: bytes, number: int) -> Archived:
    """The job of a line; refuses what is none, with the number of the line."""
    try:
        found = _decode(line)
        if not 1 <= found.stoker <= VERSION:
            raise InvalidInput("stoker", found.stoker, f"must be {VERSION}: a newer release wrote it")
        same: dict[str, Any] = {name: getattr(found, name) for name in _SAME}
        same |= {"history": tuple(found.history), "log": tuple(found.log)}
        if found.options.group is not None:
            same["options"] = msgspec.structs.replace(found.options, group=None)
        if found.status is Status.RUNNING:
            raise InvalidInput("status", "running", "cannot be put into a store")
        record = Record(
            **same,
            id=ids.parse(found.id),
            payload=_bytes(found.payload) or b"",
            result=_bytes(found.result),
            successor=None if found.successor is None else ids.parse(found.successor),
            settled=None if found.settled is None else _settled(found.settled),
        )
        steps = [Step(one.name, one.state, _bytes(one.value), one.until, one.token, one.at) for one in found.steps]
    except (msgspec.MsgspecError, InvalidInput, ValueError) as error:
        why = f"is no job that stoker export wrote: {str(error).removesuffix(InvalidInput.aftermath).rstrip('. ')}"
        raise UnreadableLine(f"line {number}", line[:80].decode(errors="replace"), why) from None
    return Archived(record, steps)


def was_member(line: bytes) -> bool:
    """Was the job of a line, which could be read, a member of a group?"""
    return _decode(line).options.group is not None


def _settled(text: str) -> Status | Wakes:
    return Wakes(text) if text in set(Wakes) else Status(text)


def _raw(value: bytes) -> Raw:
    """A value as the line has it."""
    try:
        if value == value.strip() and b"\n" not in value and b"\r" not in value and not value.startswith(BASE64):
            msgspec.json.decode(value)
            return Raw(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return Raw(BASE64 + binascii.b2a_base64(value, newline=False) + b'"}')


def _bytes(raw: Raw | UnsetType) -> bytes | None:
    if raw is UNSET:
        return None
    value = bytes(raw)
    return binascii.a2b_base64(value[len(BASE64) : -2]) if value.startswith(BASE64) else value

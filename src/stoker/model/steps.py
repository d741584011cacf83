"""Steps: what a job has finished and what it waits for, by name, as stores keep it.

A handler runs again from its beginning after a wait, a failure or a death; a step that is stored is not run again. One
small row serves everything: a finished step, a sleep, a wait for a signal, a called job, a signal that came early. Rows
are found by name, not by order. Every rule about them is here, without clock, engine or randomness: how a row is named,
what it becomes when a run or a signal meets it, which row a signal means, and when a suspended job runs again.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from stoker.model import json_schema
from stoker.model.errors import InvalidInput, InvalidName, InvalidPayload, PayloadTooLarge
from stoker.model.ids import JobId, parse
from stoker.model.time import LATEST, Instant
from stoker.model.unique import plain

if TYPE_CHECKING:
    from stoker.model.job import Draft

LONGEST_NAME = 100
"""Characters of the name of a step or wait, as the handler gives it."""

LONGEST_KEY = 200
"""Bytes of a step's key."""

LONGEST_ROW = 500
"""Characters of the whole name of a row."""

LARGEST_VALUE = 1 << 20
"""Bytes of one value."""

LARGEST_VALUES = 64 << 20
"""Bytes of all values of a job."""

MOST_STEPS = 10_000
"""Rows of a job."""

MOST_EARLY = 1_000
"""Signals that a store keeps for a job before it waits for them."""

MOST_CALLED = 1_000
"""Jobs that are called in one write."""

MOST_BROUGHT, LARGEST_BROUGHT = 50, 64 << 10
"""Rows of a suspended job that come with its claim, and bytes of their values. Of a job with more none come."""

NEVER: Instant = LATEST
"""When a job is due that waits without a deadline."""

GROUP_WAIT = "calls:"
"""How the row begins that waits for a group of called jobs."""

PAGE_NAMES = "!"
"""How the rows begin that are pages of emitted values (`model.emitted`), before the names of all steps."""

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_NAME}}}")
_USE = re.compile(r"#[1-9][0-9]*$")
_BOX = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_NAME}}}(#[1-9][0-9]{{0,9}})?")


class StepState(enum.IntEnum):
    """What a row is.

    `WAITING`: a sleep, a wait or the end of called jobs, still open. `EARLY`: a signal that no run waits for yet.
    `CALLED`: a job that was called, and whose end is not stored here yet.
    """

    DONE = 0
    FAILED = 1
    WAITING = 2
    EARLY = 3
    CALLED = 4


class Wakes(enum.StrEnum):
    """What makes a suspended job due before its deadline: the answer to any of its open waits, or to all of them."""

    ANY = "any"
    ALL = "all"


class Step(msgspec.Struct, frozen=True, gc=False):
    """One row. Checked when made, so that engines never see an impossible one.

    `value` is JSON: a result, an answer, the error of a failure, or what a wait asks for. `until` is when a wait ends
    by itself. `token` is that of the run that wrote a finished step, or that suspended on a wait; `at` is when it was
    stored, and for an open wait when it was opened. The store sets both.
    """

    name: str
    state: StepState = StepState.DONE
    value: bytes | None = None
    until: Instant | None = None
    token: int = 0
    at: Instant = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= LONGEST_ROW or "\0" in self.name:
            raise InvalidName("step", self.name, f"must be a text of 1 to {LONGEST_ROW} characters without NUL")
        if self.value is not None:
            check_value(self.name, self.value)


class Save(msgspec.Struct, frozen=True, gc=False):
    """Rows of a running job, and the jobs that it calls, fenced like a settlement. All of it is stored, or nothing.

    `groups` are the ids of new groups that the called jobs are members of (`groups.called_group`).
    """

    id: JobId
    worker: str
    token: int
    steps: tuple[Step, ...] = ()
    drafts: tuple[Draft, ...] = ()
    groups: tuple[JobId, ...] = ()
    ref: Any = None


class Signal(msgspec.Struct, frozen=True, gc=False):
    """A value for a job's wait. `append` takes the next free number of the name; `again` overwrites an answer."""

    id: JobId
    name: str
    value: bytes = b"null"
    append: bool = False
    again: bool = False

    def __post_init__(self) -> None:
        check_value(self.name, self.value)


class Signaled(enum.StrEnum):
    """What became of a signal.

    `taken`: it answered an open wait. `early`: it is kept until the job waits. The others changed nothing: `answered`,
    the wait has its answer; `ended`, the job has; `missing`, there is no such job; `full`, it has `MOST_EARLY` signals
    that it did not wait for yet; `unfit`, the value is not what the open wait asks for.
    """

    TAKEN = "taken"
    EARLY = "early"
    ANSWERED = "answered"
    ENDED = "ended"
    MISSING = "missing"
    FULL = "full"
    UNFIT = "unfit"


ACCEPTED = frozenset({Signaled.TAKEN, Signaled.EARLY})
"""The signal is stored."""

Rows: TypeAlias = Mapping[str, Step]
"""Rows of one job by name."""


# --- names ------------------------------------------------------------------------------------------------------


def check_step(name: str) -> str:
    """Check the name of a step or wait; returns it as a plain `str`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName("step", name, f"must be 1-{LONGEST_NAME} of letters, digits, _ . -")
    return plain(name)


def check_box(name: str) -> str:
    """Check the name that a caller signals: that of a wait, or of its n-th use, such as `approval#2`."""
    if not isinstance(name, str) or not _BOX.fullmatch(name):
        raise InvalidName(
            "signal", name, f"must be 1-{LONGEST_NAME} of letters, digits, _ . -, or that and # and a number"
        )
    return plain(name)


def box_of(name: str) -> str:
    """The name of a row without the number of its use."""
    return _USE.sub("", name)


def check_key(key: str) -> str:
    """Check the key of a step; returns it as a plain `str`."""
    if not isinstance(key, str) or not key or "\0" in key:
        raise InvalidInput("key", key, "must be a non-empty text without NUL")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput("key", key, "must not contain lone surrogates") from error
    if size > LONGEST_KEY:
        raise InvalidInput("key", key, f"must be at most {LONGEST_KEY} bytes")
    return plain(key)


def check_value(name: str, value: bytes) -> None:
    """Check the value of a row."""
    if not isinstance(value, bytes):
        raise InvalidPayload(f"step {name}", value, "must be JSON bytes")
    if len(value) > LARGEST_VALUE:
        raise PayloadTooLarge(f"step {name}", f"{len(value)} bytes", f"must be at most {LARGEST_VALUE} bytes")


class RowNames:
    """Names the rows of one run: the n-th use of a name is `name#n`, one with a key is `name:key`."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()

    def step(self, name: str, key: str | None = None) -> str:
        """The row of the next use of a step, sleep or wait."""
        return self._next(check_step(name), key)

    def call(self, kind: str, key: str | None = None) -> str:
        """The row of the next call of a job of this kind."""
        return self._next(f"call:{kind}", key)

    def _next(self, base: str, key: str | None) -> str:
        if key is None:
            self._uses[base] += 1
            return numbered(base, self._uses[base])
        row = f"{base}:{check_key(key)}"
        if row in self._uses:
            raise InvalidInput("key", key, f"must be used once in a run, and {base} was called with it before")
        self._uses[row] += 1
        return row


def numbered(base: str, n: int) -> str:
    """The row of the n-th use of a name."""
    return base if n == 1 else f"{base}#{n}"


def group_wait(group: JobId) -> str:
    """The row that waits for the end of a group of called jobs."""
    return GROUP_WAIT + group.hex()


def is_page(name: str) -> bool:
    """Is the row of this name a page of emitted values?"""
    return name.startswith(PAGE_NAMES)


# --- rows -------------------------------------------------------------------------------------------------------


def is_open(step: Step) -> bool:
    """Is it a wait without an answer?"""
    return step.state is StepState.WAITING


def stored(before: Step | None, step: Step, token: int, now: Instant) -> Step | None:
    """The row after a run wrote `step` over what was stored; None: the row has an answer that the run does not know.

    A run that ends a wait as failed (its time is over) must not overwrite the answer that came meanwhile. An open wait
    that has its answer keeps it, and an early signal is its answer; else the newer row counts.
    """
    if before is not None and step.state is StepState.WAITING:
        if before.state is StepState.EARLY:
            return replace(before, state=StepState.DONE, until=step.until, token=token)
        if before.state in (StepState.DONE, StepState.FAILED):
            return replace(before, token=token)
        if before.state is StepState.WAITING:
            return replace(step, token=token, at=before.at)
    if before is not None and step.state is StepState.FAILED and before.state in (StepState.DONE, StepState.EARLY):
        return None
    return replace(step, token=token, at=now)


def answered(before: Step | None, name: str, value: bytes, now: Instant) -> Step:
    """The row after a signal: the answer of a wait, or an early signal where there is no row."""
    if before is None or before.state is StepState.EARLY:
        return Step(name, StepState.EARLY, value, at=now)
    return replace(before, state=StepState.DONE, value=value, at=now)


def misfit(wait: Step | None, value: bytes) -> str | None:
    """Why a value is not what an open wait asks for: its row may hold a JSON Schema. None: it may answer it."""
    schema = None if wait is None or not is_open(wait) else about(wait).schema
    return None if schema is None else json_schema.misfit(schema, msgspec.json.decode(value))


def target(rows: Rows, signal: Signal) -> str | None:
    """The row that a signal means; None: what it means has its answer.

    A name goes to the first open wait of that name (`approval#2` in a loop), else to `approval` itself if it was never
    answered. With `append` it goes to the first free one of `message`, `message#2`, and so on. A name with a number or
    a key means that very row. `again` means the row that was answered last, if none is open. `rows` hold all of the
    name, and all that are open.
    """
    name = signal.name
    if "#" in name or ":" in name:
        return name if _free(rows, name) or signal.again else None
    uses = [numbered(name, n) for n in _numbers(rows, name)]
    if signal.append:
        return next(row for n in range(1, len(uses) + 2) if _free(rows, row := numbered(name, n)))
    for row in uses:
        if is_open(rows[row]):
            return row
    if _free(rows, name):
        return name
    return max(uses, key=lambda row: rows[row].at) if signal.again else None


def _free(rows: Rows, name: str) -> bool:
    return name not in rows or is_open(rows[name])


def _numbers(rows: Rows, name: str) -> list[int]:
    """Which uses of a name have a row, in their order."""
    found = [1] if name in rows else []
    for row in rows:
        base, _, n = row.partition("#")
        if base == name and n.isdecimal() and n.isascii():
            found.append(int(n))
    return sorted(found)


def span_of(name: str) -> tuple[str, str]:
    """Between which texts the numbered rows of a name lie, in the order of their bytes: `name#`, and `name$` behind."""
    return f"{name}#", f"{name}$"


def brought(rows: Iterable[Step]) -> tuple[Step, ...] | None:
    """The rows that come with the claim of a suspended job; None: they are to be read. Engines repeat this rule."""
    found = tuple(row for row in rows if not is_page(row.name))
    few = len(found) <= MOST_BROUGHT and sum(len(row.value or b"") for row in found) <= LARGEST_BROUGHT
    return found if found and few else None


# --- when a job runs again --------------------------------------------------------------------------------------


def due(waits: Iterable[Step]) -> Instant:
    """When a job that waits for these is due at the latest: at the first deadline."""
    return min((one.until for one in waits if is_open(one) and one.until is not None), default=NEVER)


def due_at_once(wakes: Wakes, opened: Iterable[Step]) -> bool:
    """Whether a run that suspends on these waits, as they are stored now, has what it waits for already."""
    still = [is_open(row) for row in opened]
    return not any(still) if wakes is Wakes.ALL else not all(still)


def lets_run(wakes: Wakes, token: int, row: Step, others: Iterable[Step]) -> bool:
    """Whether the answer to `row` makes a job due that suspended under `token`.

    Only rows of that very suspension count: one that an earlier run waited for, or that the run had given up, wakes
    no job. `others` are the job's other rows.
    """
    if row.token != token:
        return False
    return wakes is Wakes.ANY or not any(is_open(one) and one.token == token for one in others)


def kept_by_copy(rows: Mapping[str, Step], after: str | None) -> dict[str, Step]:
    """The rows that a copy of a job gets: all, or the finished ones stored no later than the row named `after`.

    Never what the job has emitted.
    """
    rows = {name: row for name, row in rows.items() if not is_page(name)}
    if after is None:
        return rows
    last = rows[after].at if after in rows else -1
    finished = StepState.DONE, StepState.FAILED
    return {name: row for name, row in rows.items() if row.state in finished and row.at <= last}


def check_fork(after: str, rows: Iterable[Step], job: str) -> None:
    """Refuse a fork behind a step that the job has not finished."""
    finished = [row.name for row in rows if row.state in (StepState.DONE, StepState.FAILED)]
    if after not in finished:
        known = f"its finished steps are {', '.join(finished)}" if finished else "it has none"
        raise InvalidInput("after", after, f"is no finished step of job {job}: {known}")


# --- what people see --------------------------------------------------------------------------------------------


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the value of a row tells that holds no result.

    The question of a wait: `ask`, `schema`. The failure of a step: `kind`, `error`, and `tries` of one that is tried
    again. The `job` that was called and the `group` whose end it waits for; of one that ended badly its `status`,
    `attempt` and `error`.
    """

    ask: str | None = None
    schema: Any = None
    kind: str | None = None
    error: str | None = None
    tries: int = 0
    job: str | None = None
    group: str | None = None
    status: str | None = None
    attempt: int = 0


NOTHING = About()
_read_about = msgspec.json.Decoder(About).decode
_encode = msgspec.json.Encoder().encode


def told(**fields: Any) -> bytes:
    """The value of a row that tells this."""
    return _encode(About(**fields))


def about(row: Step) -> About:
    """What a row tells beside its state; nothing of one that holds a value."""
    if row.value is None or row.state in (StepState.DONE, StepState.EARLY):
        return NOTHING
    try:
        return _read_about(row.value)
    except msgspec.MsgspecError:
        return NOTHING


def called_job(row: Step) -> JobId | None:
    """The job that a row calls, or whose failure it holds."""
    job = about(row).job
    return None if job is None else parse(job)


def waits_for(row: Step) -> str | None:
    """What ends an open row: `signal`, `time`, the next `try` of a step, the end of a called `job`; None: it is closed.

    The row that wakes a job when those that it called have ended is not shown to people.
    """
    if row.state is StepState.CALLED:
        return "job"
    if row.state is not StepState.WAITING or row.name.startswith(GROUP_WAIT):
        return None
    if row.value is None:
        return "time"
    return "signal" if about(row).kind is None else "try"


def asks(row: Step) -> bool:
    """May a row be a wait for a signal? Engines repeat this rule in the index of such rows.

    A sleep has no value, and that of a step that is tried again begins with its `kind`. Where values are sealed, an
    engine takes every row with one.
    """
    if row.state is not StepState.WAITING or row.name.startswith(GROUP_WAIT):
        return False
    return row.value is not None and not row.value.startswith(b'{"kind":')


def shown(rows: Iterable[Step]) -> list[Step]:
    """The rows that people see, by time; what is open comes behind what was stored at the same moment."""
    seen = [row for row in rows if not row.name.startswith(GROUP_WAIT)]
    return sorted(seen, key=lambda row: (row.at, row.state in (StepState.WAITING, StepState.CALLED)))

"""Every error Stoker raises, in one tree under `StokerError`.

A message says what happened, to which job, what Stoker does next and what the reader can do. Drivers' errors are
translated into this tree once, in an engine's `connection.py`; nothing above an engine ever sees a driver's class.
The exits a handler raises (`Snooze`, `Throttle`, `Retry`, `Reject`) are not errors and live in `outcome`.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self


class StokerError(Exception):
    """The root: `except StokerError` catches everything Stoker raises on purpose. Errors travel between processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in vars(self).items() if name != "handle"}
        return _rebuilt, (type(self), self.args, state)


def _rebuilt(cls: type[StokerError], args: tuple[Any, ...], state: dict[str, Any]) -> StokerError:
    """The error again, without asking for the arguments it was once made from."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


# --- what the caller gave ---------------------------------------------------------------------------------------


class InvalidInput(StokerError, ValueError):
    """A value that Stoker refuses before anything is stored. It names the field and shows the value."""

    aftermath = "Nothing was stored."

    def __init__(self, field: str, value: Any, why: str) -> None:
        self.field = field
        self.value = value
        self.why = why
        got = "" if ", got `" in why else f"; got {self.got(value)}"  # msgspec's own text says it
        super().__init__(f"{cut(field)}: {cut(why)}{got}. {self.aftermath}".rstrip())

    def got(self, value: Any) -> str:
        """Return how the message shows the value."""
        return shown(value)

    def named(self, field: str) -> Self:
        """The same refusal, for a reader who knows the field by another name."""
        return type(self)(field, self.value, self.why)


class InvalidArgument(InvalidInput):
    """An argument of a call that stores nothing: an id, a page, a window, a time to wait, what a test asks for."""

    aftermath = ""


class InvalidName(InvalidInput):
    """A kind, queue, stream, lock or budget name outside the alphabet every engine can carry."""


class InvalidPayload(InvalidInput):
    """Arguments or a result that JSON on every engine cannot carry: NaN, NUL, lone surrogates, too deep.

    The message names the type and not the value: it is stored and logged when a handler raises it.
    """

    def got(self, value: Any) -> str:
        """Return the type of the value."""
        return type(value).__name__


class PayloadMismatch(InvalidPayload):
    """A stored payload or result that does not fit the task's type hints."""

    aftermath = "What is stored is unchanged."

    def got(self, value: Any) -> str:
        """Return the type of the value, of JSON that of its content."""
        if not isinstance(value, bytes):
            return super().got(value)
        return _FORMS.get(value.lstrip()[:1], "a number") if value else "nothing"


_FORMS = {b"{": "an object", b"[": "a list", b'"': "text", b"t": "a boolean", b"f": "a boolean", b"n": "null"}


class SealedValue(InvalidPayload):
    """A stored value that is sealed, and that this process cannot open: it lacks the key, or the value was changed."""

    aftermath = "What is stored is unchanged."

    def __init__(self, field: str, value: Any, why: str) -> None:
        super().__init__(field, value, why)
        self.args = (f"{cut(field)}: {why}. {self.aftermath}",)


class PayloadTooLarge(InvalidPayload):
    """A payload above the size limit; store the data elsewhere and enqueue a reference to it."""

    def got(self, value: Any) -> str:
        """Return the size."""
        return shown(value)


class InvalidOption(InvalidInput):
    """An option that does not exist or cannot have that value; the message lists the known ones."""


class UnknownOption(InvalidOption, TypeError):
    """A keyword that is no option here. A `TypeError` too, as for every keyword that a function does not take."""


class InvalidSchedule(InvalidInput):
    """A cron expression, zone or interval that never fires or cannot be read."""


class InvalidTransition(StokerError):
    """A change of status outside the table in `lifecycle`; the record is unchanged."""

    def __init__(self, before: str, after: str, whose: str | None = None) -> None:
        self.before = before
        self.after = after
        self.whose = whose
        subject = f"job {whose}" if whose else "a job"
        super().__init__(f"{subject} cannot go from {before} to {after}. The record is unchanged.")


class WrongStatus(InvalidTransition):
    """An operator's action that the status of the job does not allow; the record is unchanged."""

    def __init__(self, job_id: str, status: str, action: str) -> None:
        super().__init__(status, action, job_id)
        self.job_id = job_id
        self.status = status
        self.action = action
        self.args = (f"job {job_id} is {status}, which {action!r} does not apply to. The record is unchanged.",)


class WrongState(StokerError):
    """An action that the state of a thing other than a job does not allow; nothing was changed."""

    def __init__(self, what: str, state: str, action: str) -> None:
        self.what = what
        self.state = state
        self.action = action
        super().__init__(f"{what} is {state}, which {action!r} does not apply to. Nothing was changed.")


class KeyHeld(StokerError):
    """An operator's action that would make a job active while another one holds its unique key."""

    def __init__(self, job_id: str, action: str, key: str | None) -> None:
        self.job_id = job_id
        self.key = key
        super().__init__(
            f"job {job_id} cannot be made active by {action!r}: another job holds its unique key {key!r}. "
            "The record is unchanged. Try again when that job has ended, or cancel it first; one that is done and "
            "keeps the key for a time can be deleted."
        )


class Forbidden(StokerError):
    """A question or action that the role of the asker does not include; nothing was done."""

    def __init__(self, what: str, role: str, has: str) -> None:
        self.role = role
        super().__init__(f"{what} needs the role {role}, and this is {has}. Nothing was done.")


class UnknownTask(StokerError, LookupError):
    """A kind that is neither registered nor declared in this app."""

    def __init__(self, kind: str, known: tuple[str, ...] = ()) -> None:
        self.kind = kind
        name, listed = shown(kind), ", ".join(sorted(known)) or "none"
        near = nearest(name.strip("'"), known)
        super().__init__(
            f"task {name} is neither registered nor declared in this app (known: {listed}). "
            f"{f'{near} ' if near else ''}Nothing was stored. "
            f"Register it with @jobs.task, or jobs.declare({name}) if it runs elsewhere."
        )


class DuplicateTask(StokerError):
    """Two tasks under one name: it is undefined which of them would run, so the app refuses to start."""

    def __init__(self, kind: str, first: str, second: str) -> None:
        self.kind = kind
        super().__init__(f"task {kind!r} is registered twice: {first} and {second}. Give one of them another name=.")


class DuplicateSchedule(StokerError):
    """Two declarations of one schedule: it is undefined which of them would fire, so the app refuses to start."""

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name = name
        super().__init__(f"schedule {name!r} is declared twice: at {first} and at {second}. Give one another name=.")


class Duplicate(StokerError):
    """`mode="raise"` met an active holder of the unique key; nothing of the call was stored.

    `job_id` is the holder's id as text, `handle` its `JobHandle` where an app raised the error.
    """

    handle: Any = None

    def __init__(self, key: str, holder: bytes) -> None:
        self.key = key
        self.holder = holder
        self.job_id = str(uuid.UUID(bytes=holder))
        super().__init__(
            f"unique key {key!r} is held by job {self.job_id}. Nothing of this call was stored. "
            'Use mode="existing" to get that job instead, or mode="replace" to overwrite it while it waits.'
        )


# --- what became of a job ---------------------------------------------------------------------------------------


class NotFound(StokerError, LookupError):
    """The job (`job_id`) or other record is not, or no longer, in the store."""

    job_id: str | None = None

    @classmethod
    def job(cls, job_id: str) -> Self:
        """The error for a job without a record."""
        error = cls(
            f"job {job_id} is not in the store: deleted, its retention (keep=) has passed, or the transaction it was "
            "enqueued in has not been committed"
        )
        error.job_id = job_id
        return error

    @classmethod
    def behind(cls, job_id: str, before: str, kind: str, status: str) -> Self:
        """The error for a job that is not stored before another one succeeds."""
        error = cls(f"job {job_id} is waiting behind job {before} ({kind}, {status}): its success stores it")
        error.job_id = job_id
        return error

    @classmethod
    def behind_group(cls, job_id: str, group: str, counts: str) -> Self:
        """The error for a callback that is not stored before its group closes."""
        error = cls(f"job {job_id} is waiting behind group {group} ({counts}): its closing stores it")
        error.job_id = job_id
        return error

    @classmethod
    def not_called(cls, job_id: str, group: str, callback: str, state: str) -> Self:
        """The error for a callback that the end of its group did not call for."""
        error = cls(
            f"job {job_id} was not stored: it is {callback} of group {group}, or behind that, and the group is {state}"
        )
        error.job_id = job_id
        return error

    @classmethod
    def group(cls, group: bytes) -> Self:
        """The error for a group without a record."""
        return cls(
            f"group {uuid.UUID(bytes=group)} is not in this store: it belongs to another store, its retention has "
            "passed, or the transaction that makes it has not been committed. Nothing was stored."
        )


class ChunkMismatch(StokerError):
    """A handler of a chunk returned neither None nor a list with one value per job: each of these jobs failed."""

    def __init__(self, kind: str, returned: str, jobs: int) -> None:
        self.kind = kind
        self.jobs = jobs
        super().__init__(
            f"{kind}() returned {returned} for a chunk of {jobs} {'job' if jobs == 1 else 'jobs'}. Every job of it "
            "counts as failed. "
            "Return None, or a list with one value per job, in their order."
        )


class JobFailed(StokerError):
    """`result()` of a job that is dead. `error` is its last one, `attempt` how often it was started."""

    def __init__(self, job_id: str, kind: str, status: str, attempt: int, error: str | None) -> None:
        self.job_id = job_id
        self.kind = kind
        self.status = status
        self.attempt = attempt
        self.error = error
        super().__init__(f"job {job_id} ({kind}) is {status}: {error or 'no error recorded'}")


class JobCanceled(StokerError):
    """`result()` of a job that was canceled. `error` is the reason, `attempt` how often it had been started."""

    def __init__(self, job_id: str, kind: str, attempt: int, error: str | None) -> None:
        self.job_id = job_id
        self.kind = kind
        self.attempt = attempt
        self.error = error
        super().__init__(f"job {job_id} ({kind}) was canceled: {error or 'no reason given'}")


class StepFailed(StokerError):
    """A step of this run raised, now or in an earlier run. `kind` is the name of the error's class.

    On the run in which it happened, the error itself is `__cause__`.
    """

    def __init__(self, step: str, kind: str, error: str) -> None:
        self.step = step
        self.kind = kind
        self.error = error
        super().__init__(f"step {step} failed: {error.splitlines()[0] if error else kind}")


class ResultUnavailable(StokerError):
    """`result()` of a job that is done and whose result could not be stored. `why` is the reason."""

    def __init__(self, job_id: str, kind: str, attempt: int, why: str) -> None:
        self.job_id = job_id
        self.kind = kind
        self.attempt = attempt
        self.why = why
        super().__init__(f"job {job_id} ({kind}) is done, but its result could not be stored: {why}")


class LostClaim(StokerError):
    """The work of a block passed to another worker, or was taken away; nothing of the block was stored."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is no longer this worker's: its lease lapsed and another worker has it, or it was canceled by "
            "force. Nothing of this block was stored."
        )


class LockLost(StokerError):
    """A block outlasted the lease of its lock, and another process may have held the lock meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"lock {name!r} was no longer held when its block ended: the lease lapsed, and another process may have "
            "held the lock meanwhile. What the block did stays. Give jobs.lock a longer lease=, or call extend() in it."
        )


class GroupFailed(StokerError):
    """`wait()` of a group that closed with members dead or canceled, or that its maker abandoned.

    `job_id` and `kind` name its first dead member, else its first canceled one, as far as it is known, and `error` is
    that job's last error.
    """

    def __init__(
        self,
        group_id: str,
        counts: str,
        job_id: str | None = None,
        kind: str | None = None,
        error: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.job_id = job_id
        self.kind = kind
        self.error = error
        first = "" if job_id is None else f"; job {job_id} ({kind}): {error or 'no error recorded'}"
        super().__init__(f"group {group_id} failed: {counts}{first}")


class GroupClosed(StokerError):
    """A job for a group that is closed: its callbacks are stored. Nothing of the call was stored."""

    def __init__(self, group: bytes) -> None:
        self.group_id = str(uuid.UUID(bytes=group))
        super().__init__(
            f"group {self.group_id} is closed: all its members are finished, and what follows them is stored. Nothing "
            "of this call was stored. Enqueue the job without the group, or make a new group."
        )


# --- errors of the store ----------------------------------------------------------------------------------------


class EngineError(StokerError):
    """The store failed. Nothing acknowledged is lost; what was not acknowledged may be repeated safely."""


class EngineUnavailable(EngineError):
    """The store cannot be reached now; workers log it and keep trying, callers may try again."""


class EngineBusy(EngineError):
    """Another process held the store longer than Stoker waits; nothing was written, and the call may be repeated."""


class EngineSlow(EngineBusy):
    """A call that reads took longer than it may and was stopped in the store; ask for less, or try again."""


class EngineFull(EngineError):
    """No room: the disk, the memory limit or the configured capacity is used up; nothing was stored."""


class EngineReadOnly(EngineError):
    """The store refuses writes: a read-only file, directory, file system or standby."""


class EngineClosed(EngineError):
    """Use of an engine before `open` or after `close`."""


class EngineRefused(EngineError):
    """The store is not one Stoker may use: a network file system, a foreign handle, unsafe settings."""


class CorruptRecord(EngineError):
    """A stored value outside everything Stoker writes; the record is set aside, other jobs are unaffected."""


class SchemaMismatch(EngineError):
    """The schema is older or newer than this code; the message names both and the command to run."""


AWAY = (EngineUnavailable, EngineBusy, EngineFull, EngineReadOnly, EngineClosed, EngineRefused, SchemaMismatch)
"""Errors of a store that would refuse any call at this moment."""

PASSING = (EngineUnavailable, EngineBusy)
"""Those that pass by themselves: a worker that drains tries again before it takes its work for done."""


def shown(value: Any, limit: int = 80) -> str:
    """Show a refused value on one line, without control characters; never raises."""
    try:
        text = str(value) if isinstance(value, timedelta) else ascii(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not hide the real error
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def sentence(error: object) -> str:
    """What an error says, with a full stop at its end, so that a line of the log can go on after it."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


LONGEST_PART = 2_000
"""Characters of the field, and of the reason, that an error shows."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A question after the name that was probably meant; empty when none is near."""
    near = nearest_name(name, known)
    return "" if near is None else f"Did you mean {near}?"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant; None when none is near."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)


def cut(text: str) -> str:
    """Return the beginning of a text that an error quotes: a caller's name in it may have a million characters."""
    return text if len(text) <= LONGEST_PART else text[: LONGEST_PART - 1] + "…"

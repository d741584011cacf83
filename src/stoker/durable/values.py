"""How results, failures and called jobs are kept in rows, and read back."""

from __future__ import annotations

import functools
import inspect
import typing
import weakref
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import msgspec

from stoker.codec.to_json import encode_value, reason, revive, schema_of_model
from stoker.model.errors import JobCanceled, JobFailed, NotFound, StepFailed, StokerError
from stoker.model.job import Status
from stoker.model.outcome import leaves
from stoker.model.steps import LARGEST_VALUE, Step, StepState, about

LARGEST_SCHEMA = 16 << 10
"""Bytes of the JSON Schema that an open wait keeps."""


def done(row: str, value: Any) -> Step:
    """The row of a step whose function returned this."""
    return Step(row, StepState.DONE, encode_value(value, (value,), f"step {row}", LARGEST_VALUE))


_hints: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def hint_of(fn: Any) -> Any:
    """The type of what a step's function returns, awaited; Any where none can be read. A class returns its own."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type) or typing.get_origin(fn) is not None:
        return _awaited(fn)
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if not inspect.isroutine(fn):  # an instance that can be called
        fn = inspect.unwrap(type(fn).__call__)
    try:
        return _hints[fn]
    except (KeyError, TypeError):
        pass
    try:
        found = _awaited(typing.get_type_hints(fn, include_extras=True).get("return", Any))
    except Exception:  # noqa: BLE001 - a name that is not there, and whatever users' classes raise
        found = Any
    with suppress(TypeError):  # no weak reference to it can be made: it is read again each time
        _hints[fn] = found
    return found


def _awaited(hint: Any) -> Any:
    """The type of what an awaitable gives: the last of its parameters; every other type as it is."""
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or not issubclass(kind, Awaitable):
        return hint
    return (typing.get_args(hint) or (Any,))[-1]


OF_STEP = "Accept both forms, give the step another name, or fork the job."
OF_SIGNAL = "Send another value: stoker jobs signal --replace, as long as the job has not ended. Or accept both forms."
"""What helps if a stored value does not fit its type."""


def value_of(row: str, value: bytes | None, hint: Any, advice: str = OF_STEP) -> Any:
    """A stored value as its type wants it, on the first run too."""
    try:
        return msgspec.json.decode(value or b"null", type=hint, dec_hook=revive)
    except Exception as error:  # noqa: BLE001 - what users' types raise; a cause would show the value
        raise StepFailed(
            row,
            type(error).__name__,
            f"its stored value does not fit {_name_of(hint)}: {reason(error)}. {advice}",
        ) from None


def _name_of(hint: Any) -> str:
    """A type as code names it: `Approval`, `list[int]`."""
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def schema_of(kind: Any) -> Any:
    """The JSON Schema of what a wait expects; None where there is none, or only a large one."""
    try:
        found = schema_of_model(kind) or msgspec.json.schema(kind)
    except Exception:  # noqa: BLE001 - a type that has no schema
        return None
    return found if found and len(msgspec.json.encode(found)) <= LARGEST_SCHEMA else None


# --- failures ---------------------------------------------------------------------------------------------------


def failed_step(found: Step) -> StepFailed:
    """What a handler gets for a step that failed, now or in an earlier run."""
    failure = about(found)
    return StepFailed(found.name, failure.kind or "", failure.error or "")


def failed_call(found: Step) -> StokerError:
    """What a handler gets for a called job that did not end well."""
    failure = about(found)
    job, error = failure.job or "", failure.error or ""
    if failure.status is None:
        return NotFound.job(job)
    if failure.status == Status.CANCELED.value:
        return JobCanceled(job, failure.kind or "", failure.attempt, error)
    return JobFailed(job, failure.kind or "", failure.status, failure.attempt, error)


def let_out(error: BaseException) -> set[str]:
    """The steps whose failure is what ends the run, as it is or as the reason of another error."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [*leaves(one), *(more for more in (one.__cause__, one.__context__) if more is not None)]
        if isinstance(one, StepFailed):
            found.add(one.step)
    return found

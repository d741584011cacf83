"""The options of a job, once: their types for callers, how they are read, and how the job stores them.

To add an option, declare it in `TaskOptions` or `CallOptions`, where type checkers and `parse` find it, and in
`model.job.Options`, which travels with the job; an option that engines search is a field of `JobOptions` and a column
instead.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar

import msgspec

from stoker.key_function import KeyFunction
from stoker.limits import LimitOption, check_limit
from stoker.model.errors import InvalidInput
from stoker.model.job import PLAIN, Draft, Isolation, Options, check_name
from stoker.model.label import Label
from stoker.model.retry import Backoff
from stoker.model.time import Instant, Seconds, Span, instant, span
from stoker.model.unique import Unique
from stoker.settings import check_known

KeyFunctionT = TypeVar("KeyFunctionT")


class TaskOptions(TypedDict, Generic[KeyFunctionT], total=False):
    """What a task declares for its jobs, as a caller writes it."""

    queue: str | None
    priority: int | None
    attempts: int | None
    backoff: Backoff | None
    timeout: Seconds | None
    unique: str | Unique | KeyFunctionT | bool | None
    expires: Seconds | None
    keep: Seconds | None
    metadata: Mapping[str, str] | None
    isolation: Isolation | None
    limit: LimitOption | None
    label: str | None


class CallOptions(TaskOptions[KeyFunctionT], Generic[KeyFunctionT], total=False):
    """What a single call may give too."""

    delay: Seconds | None
    at: datetime | None
    tenant: str | None


class JobOptions(Options, frozen=True, kw_only=True, gc=True):
    """Options that were read and checked; None leaves an option to the task, the queue or the app.

    `unique` is False where a call has no key, whatever its task says. `label` is a template.
    """

    queue: str | None = None
    priority: int | None = None
    delay: Span | None = None
    at: Instant | None = None
    attempts: int | None = None
    unique: Unique | KeyFunction | Literal[False] | None = None
    tenant: str | None = None
    limit: LimitOption | None = None  # type: ignore[assignment]  # each draft computes its own `Slot` of it

    def over(self, base: JobOptions) -> JobOptions:
        """These options before those of `base`: metadata adds up, a delay and a moment replace each other."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if self.delay is not None or self.at is not None:
            given |= {"delay": self.delay, "at": self.at}
        if self.metadata and base.metadata:
            given["metadata"] = {**base.metadata, **self.metadata}
        return msgspec.structs.replace(base, **given)

    def to_stored(self) -> Options:
        """The options that travel with the job as one value; most jobs have none."""
        kept = (name for name in Options.__struct_fields__ if name not in PER_CALL)
        options = Options(**{name: getattr(self, name) for name in kept})
        return PLAIN if options == PLAIN else options


PER_CALL: Final = frozenset({"limit", "label"})
"""Options of which each job stores what they mean for its own arguments."""

_HINTS: Final = typing.get_type_hints(CallOptions)
_SPANS: Final = tuple(name for name, hint in _HINTS.items() if timedelta in typing.get_args(hint))

OPTIONS: Final = tuple(_HINTS)
"""The names of all options."""


def parse(options: Mapping[str, Any], more: tuple[str, ...] = ()) -> JobOptions:
    """Read options as a caller writes them; raises `InvalidInput` naming the first that is wrong.

    `more` are keywords that the caller of this function has read already: an error about an unknown one lists them.
    """
    check_known(options, (*OPTIONS, *more), "the job option")
    given = {name: value for name, value in options.items() if value is not None}
    if "queue" in given:
        given["queue"] = check_name("queue", given["queue"])
    if "delay" in given and "at" in given:
        raise InvalidInput("at", given["at"], "cannot be combined with a delay")
    unique = given.get("unique")
    if isinstance(unique, str):
        given["unique"] = Unique(unique)
    elif unique is True:
        given["unique"] = Unique()
    elif unique not in (None, False) and not isinstance(unique, Unique) and not callable(unique):
        why = "must be a key, a Unique, a function of the task's arguments, True for all of them, or False for no key"
        raise InvalidInput("unique", unique, why)
    if "backoff" in given and not isinstance(given["backoff"], Backoff):
        raise InvalidInput("backoff", given["backoff"], "must be Exponential, Linear, Fixed, Delays or Never")
    if "limit" in given:
        check_limit(given["limit"])
    if "label" in given:
        Label(given["label"])
    if "at" in given:
        given["at"] = instant(given["at"])
    if "metadata" in given:
        if not isinstance(given["metadata"], Mapping):
            raise InvalidInput("metadata", given["metadata"], "must map text to text, as in {'order': '7'}")
        given["metadata"] = dict(given["metadata"])
    for name in _SPANS:
        if name in given:
            given[name] = span(given[name], name)
    parsed = JobOptions(**given)
    _check(parsed)
    return parsed


def _check(options: JobOptions) -> None:
    """Raise where the option was written, by the checks of a draft."""
    attempts = 1 if options.attempts is None else options.attempts
    Draft(bytes(16), "probe", priority=options.priority or 0, attempts=attempts, tenant=options.tenant)

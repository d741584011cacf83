"""Settings: one frozen dataclass per area, and how their values are found.

`Stoker`, `Worker` and the engines call `resolve` with what they were given. The rule kept here: a keyword beats the URL
query, the query beats the environment variable `STOKER_<NAME>`, that beats the default; there is one spelling for each
option, an unknown one is an error that lists those there are, and a bad value is refused with the place it came from.

A field's type decides how its text is read: int, float, bool, str, Literal, a mapping of queues to slots, and each of
them or None. Metadata refines it: `span` marks a duration kept in microseconds, `low` and `high` are bounds in the unit
of the field. Any dataclass will do, so an engine declares its options without importing this module.
"""

# ruff: noqa: RUF009 - `duration` and `whole` make dataclass fields, as `field` does
from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from stoker import other_systems
from stoker.model.errors import InvalidInput, InvalidOption, UnknownOption
from stoker.model.job import LEASE
from stoker.model.scale import LONGEST_TARGET, TARGET_WAIT
from stoker.model.time import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Span, seconds, span

PREFIX: Final = "STOKER_"

SettingsT = TypeVar("SettingsT")


def duration(default: Span | None, low: Span = 0, high: Span | None = None) -> Any:
    """A field given in seconds or as a timedelta, kept in microseconds; bounds are spans."""
    return dataclasses.field(default=default, metadata={"span": True, "low": low, "high": high})


def whole(default: int | None, low: int = 0, high: int | None = None) -> Any:
    """A field holding a whole number between two bounds."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


# --- the settings --------------------------------------------------------------------------------------------------


MOST_SLOTS: Final = 10_000
"""Slots of one queue in one worker process."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker claims, runs and releases jobs."""

    queues: Mapping[str, int | None] | None = None
    """Slots by queue, in text `mail:5,default:20` or `mail`; None: the queues of the registered tasks, `slots` each."""

    slots: int = whole(10, low=1, high=MOST_SLOTS)
    """Slots of a queue that was named without a number."""

    lease: Span = duration(LEASE, low=SECOND, high=HOUR)
    """How long a worker that does not renew its lease keeps its jobs."""

    shutdown_grace: Span = duration(30 * SECOND)
    """How long running handlers may finish after a stop; then their jobs are released."""

    poll: Span = duration(SECOND, low=10 * MILLISECOND, high=HOUR)
    """How often an idle worker polls for jobs without a wake-up or a known due time."""

    claim_batch: int | None = whole(None, low=1, high=1_000)
    """Most jobs in one claim; None: 100, and up to 500 while jobs are quick and many wait."""

    settle_batch: int | None = whole(None, low=1, high=1_000)
    """Outcomes that are written at once; a smaller batch waits a few milliseconds. None: as `claim_batch`."""

    reap_batch: int = whole(100, low=1, high=1_000)
    """Most lapsed claims reclaimed at once."""

    unknown_task_grace: Span = duration(HOUR)
    """How long a job of an unknown task is put back before it is dead; 0: dead at once."""

    target_wait: Span = duration(TARGET_WAIT, high=LONGEST_TARGET)
    """How long due jobs may wait before `--processes auto` starts more processes."""

    shrink_after: Span = duration(MINUTE, high=HOUR)
    """How long fewer processes must be enough before `--processes auto` lets some finish."""

    long_running: Span = duration(5 * MINUTE, low=SECOND)
    """Running time after which a job is reported as long-running."""

    child_memory: int | None = whole(None, low=16)
    """Memory of a handler's own process (`isolation="process"`) in MiB of address space; None: as much as there is."""

    child_jobs: int = whole(1_000, low=1)
    """Jobs after which a handler's own process is replaced by a fresh one."""

    @property
    def renew_every(self) -> Span:
        """A third of the lease, so that two renewals may fail before it lapses."""
        return self.lease // 3


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineSettings:
    """How events are buffered and written to the store."""

    event_buffer: int = whole(50_000, low=1, high=10_000_000)
    """Events buffered while the store is slow; further ones are dropped and counted."""

    event_flush: Span = duration(2 * SECOND, low=10 * MILLISECOND, high=HOUR)
    """Longest time an event waits to be written."""

    event_chunk: int = whole(2_000, low=1, high=10_000)
    """Most events in one write."""


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long events, points and the audit log are kept; 0 removes them with the next cleaning."""

    keep_events: Span = duration(30 * DAY)
    """The timeline's events."""

    keep_points: Span = duration(30 * DAY)
    """The timeline's points, one per minute; those of kinds for a day at most, then by the hour for seven."""

    keep_audit: Span = duration(90 * DAY)
    """The audit log's entries."""

    clean_every: Span = duration(5 * MINUTE, low=SECOND)
    """How often the janitor removes expired jobs, events and points."""


# --- finding a value --------------------------------------------------------------------------------------------


def resolve(
    cls: type[SettingsT],
    keywords: Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> SettingsT:
    """Build `cls` from keywords, else the URL's query, else `STOKER_<NAME>`, else defaults.

    Pure: the environment comes in as an argument. A keyword None means "not given"; so does an empty variable.
    """
    keywords, query, environ = keywords or {}, query or {}, environ or {}
    options = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    check_known(keywords, options, "the keyword")
    check_known(query, options, "the URL query option")
    hints = typing.get_type_hints(cls)
    found = {}
    for name, field in options.items():
        variable = PREFIX + name.upper()
        if keywords.get(name) is not None:
            given, where = keywords[name], f"the keyword {name}"
        elif name in query:
            given, where = query[name], f"the URL query option {name}"
        elif environ.get(variable):
            given, where = environ[variable], f"the environment variable {variable}"
        else:
            continue
        try:
            found[name] = _read(given, hints[name], field.metadata)
        except ValueError as error:
            why = error.why if isinstance(error, InvalidInput) else str(error)
            raise InvalidOption(where, given, why) from None
    return cls(**found)


def check_known(given: Iterable[str], known: Iterable[str], where: str = "the option") -> None:
    """Raise for an unknown option, with the known ones and a guess."""
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        raise UnknownOption(
            where, name, f"there is no such option{_hint(name, names)}; known are {', '.join(names) or 'none'}"
        )


def _hint(name: str, known: Sequence[str]) -> str:
    """A guess: a similar spelling, or the name another job system uses."""
    if name in other_systems.OPTIONS:
        return f" (what you may know as {name} is {other_systems.OPTIONS[name]})"
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _read(given: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """One value converted to its field's type; raises a ValueError with what is expected."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        if isinstance(given, str) and given.strip().lower() == "none":
            return None
        (hint,) = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    if metadata.get("span"):
        return _bounded(read_span(given), metadata, lambda bound: f"{seconds(bound):g} s")
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return _choice(given, typing.get_args(hint))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _queues(given)
    if origin is bool:
        return _flag(given)
    if origin is int:
        return _bounded(_whole(given), metadata, str)
    if origin is float:
        return _bounded(_number(given), metadata, str)
    if not isinstance(given, origin):
        raise ValueError(f"must be {'text' if origin is str else origin.__name__}")  # noqa: TRY004 - a bad value, to us
    return given


def _bounded(value: Any, metadata: Mapping[str, Any], show: Callable[[Any], str]) -> Any:
    low, high = metadata.get("low"), metadata.get("high")
    if low is not None and value < low:
        raise ValueError(f"must be at least {show(low)}")
    if high is not None and value > high:
        raise ValueError(f"must be at most {show(high)}")
    return value


_UNITS: Final = {"": SECOND, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", re.ASCII)


def read_span(given: Any) -> Span:
    """A duration: seconds, a timedelta, or text such as `30s` or `2.5m`."""
    if not isinstance(given, str):
        return span(given)
    if (match := _DURATION.fullmatch(given)) is None:
        raise ValueError("must be seconds, or a number with one of the units ms, s, m, h, d")
    return span(timedelta(microseconds=min(float(match[1]) * _UNITS[match[2]], 1e18)))


def _whole(given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", given, re.ASCII):
        return int(given)
    raise ValueError("must be a whole number")


def _number(given: Any) -> float:
    if isinstance(given, int | float | str) and not isinstance(given, bool):
        try:
            number = float(given)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ValueError("must be a number")


_FLAGS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _flag(given: Any) -> bool:
    flag = given if isinstance(given, bool) else _FLAGS.get(given.strip().lower()) if isinstance(given, str) else None
    if flag is None:
        raise ValueError("must be one of true, false, yes, no, on, off, 1, 0")
    return flag


def _choice(given: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if given == choice:
            return choice
    raise ValueError(f"must be one of {', '.join(map(str, choices))}")


def _queues(given: Any) -> Mapping[str, int | None]:
    """Slots by queue: a mapping, or text like `mail:5,default:20`. None: a queue that was named without a number."""
    if isinstance(given, str):
        given = dict(_queue(entry.strip()) for entry in given.split(",") if entry.strip())
    if not isinstance(given, Mapping) or not given:
        raise ValueError("must be queues with their slots, as in mail:5,default:20")
    for name, slots in given.items():
        if not name or not isinstance(name, str) or (slots is not None and not 1 <= _whole(slots) <= MOST_SLOTS):
            raise ValueError(f"must be queues with 1 to {MOST_SLOTS:,} slots, as in mail:5,default:20")
    return types.MappingProxyType(dict(given))


def _queue(entry: str) -> tuple[str, int | None]:
    name, colon, number = entry.rpartition(":")
    return (name.strip(), _whole(number)) if colon else (number, None)

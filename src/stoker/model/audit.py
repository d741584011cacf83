"""The audit log: who changed what, when, how and why.

An entry is written in the step that makes the change, so there is none without the other. It never holds payloads,
results or metadata of jobs. Changes by code (a worker's own, a declaration) write none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import msgspec

from stoker.model import ids
from stoker.model.actions import ACTIONS, action_of
from stoker.model.budgets import Budget
from stoker.model.control import Queue
from stoker.model.errors import InvalidArgument, InvalidInput
from stoker.model.findings import Acknowledgement
from stoker.model.humanize import UNKNOWN, span
from stoker.model.operations import Operation
from stoker.model.outbox.consumers import Steering
from stoker.model.outbox.letters import Count, LetterAction, LetterFilter, Letters
from stoker.model.query import Change, Edit, Former, Reseal, Selection, Tally
from stoker.model.schedule import Schedule
from stoker.model.steps import ACCEPTED, Signal, Signaled
from stoker.model.throttle import Rate
from stoker.model.time import Instant, instant, moment, rfc3339
from stoker.model.tokens import AccessToken

Way: TypeAlias = Literal["code", "command line", "page", "token"]
WAYS: Final[tuple[Way, ...]] = ("code", "command line", "page", "token")

LONGEST = 1_000
"""Characters of a name or a reason."""

HIDDEN: Final = frozenset({"payload", "result", "metadata", "options", "declared"})
"""Fields of stored values that no entry shows."""


class By(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who makes a change, through what, why, and the id of the request, if there is one."""

    who: str
    way: Way = "code"
    reason: str | None = None
    request: str | None = None

    def __post_init__(self) -> None:
        for name in ("who", "reason", "request"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= LONGEST or "\0" in value):
                raise InvalidInput(name, value, f"must be a text of 1 to {LONGEST:,} characters without NUL")
        if self.way not in WAYS:
            raise InvalidInput("way", self.way, f"must be one of {', '.join(WAYS)}")


class Deed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done: an action such as `jobs.cancel`, to what, how often, and what differs afterwards."""

    action: str
    target: str
    count: int = 1
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    former: tuple[Former, ...] = ()
    """The changed jobs as they were, so that a cancel or a discard can be undone."""


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry as stored; `at` is the store's time."""

    at: Instant
    by: By
    deed: Deed

    @property
    def id(self) -> str:
        """What names the entry: its time and a digest of the rest; equal entries of one instant have the same."""
        return f"{self.at:0{_TIME_DIGITS}x}{hashlib.sha256(pack(self)).hexdigest()[:_DIGEST_DIGITS]}"


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries: at or after `since`, strictly before `until`; None: any."""

    since: Instant = 0
    until: Instant | None = None
    who: str | None = None
    action: str | None = None
    target: str | None = None
    limit: int = 100

    def matches(self, entry: AuditEntry) -> bool:
        """Does it ask for this entry? An action ending in a dot means all that begin so."""
        return (
            entry.at >= self.since
            and (self.until is None or entry.at < self.until)
            and (self.who is None or entry.by.who == self.who)
            and (self.target is None or entry.deed.target == self.target)
            and (self.action is None or _means(self.action, entry.deed.action))
        )


def _means(asked: str, action: str) -> bool:
    return action.startswith(asked) if asked.endswith(".") else action == asked


_TIME_DIGITS, _DIGEST_DIGITS = 14, 10

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditEntry).decode


def pack(entry: AuditEntry) -> bytes:
    """An entry as stores keep it."""
    return _encode(entry)


def unpack(stored: bytes | str) -> AuditEntry:
    """What `pack` wrote."""
    return _decode(stored)


def line(entry: AuditEntry) -> str:
    """An entry as one line of text, `name=value` with JSON values; what is not set is left out."""
    told: dict[str, Any] = {"at": rfc3339(entry.at)}
    told |= {name: getattr(entry.by, name) for name in ("who", "way", "reason", "request")}
    told |= {name: getattr(entry.deed, name) for name in ("action", "target", "count")}
    told |= {name: readable(getattr(entry.deed, name)) for name in ("before", "after")}
    return " ".join(
        f"{name}={json.dumps(value, default=_in_text)}" for name, value in told.items() if value not in (None, {})
    )


def of_alter(selection: Selection, change: Change, tally: Tally) -> Deed | None:
    """A change of jobs; None when nothing changed. Values in another form are no change of a job's own."""
    count = tally.changed + tally.cancel_requested
    if not count or isinstance(change, Reseal):
        return None
    action = action_of(change)
    names = {one.name for one in action.parameters}
    after = {name: value for name, value in msgspec.to_builtins(change).items() if name in names}
    if isinstance(change, Edit):
        named = {name: getattr(change, name) for name in ("priority", "at", "attempts")}
        after = {name: value for name, value in named.items() if value is not None}
        if change.payload is not None:
            after["payload"] = f"{len(change.payload)} bytes"
    single = len(selection.ids) == 1
    target = f"job {ids.text(selection.ids[0])}" if single else f"{len(selection.ids)} jobs"
    return Deed(action=action.deed, target=target, count=count, after=after, former=tally.former)


def instant_of(entry: str) -> Instant:
    """The time of the entry with this id."""
    if len(entry) != _TIME_DIGITS + _DIGEST_DIGITS or not set(entry) <= set("0123456789abcdef"):
        raise InvalidArgument("entry", entry, "must be the id of an entry of the audit log, as `stoker audit` shows it")
    return int(entry[:_TIME_DIGITS], 16)


_PAST: Final = {
    **{one.method: one.past for one in ACTIONS.values()},
    "acknowledge": "Acknowledged",
    "change": "Changed",
    "create": "Created",
    "drain": "Drained",
    "drop": "Dropped",
    "enqueue": "Enqueued",
    "export": "Exported",
    "import": "Imported",
    "pause": "Paused",
    "put": "Changed",
    "quiet": "Quieted",
    "release": "Released a key of",
    "replace": "Replaced",
    "replay": "Replayed",
    "resolve": "Resolved",
    "resume": "Resumed",
    "reveal": "Looked into",
    "revoke": "Revoked",
    "run": "Ran",
    "search": "Searched payloads of",
    "seek": "Moved",
    "signal": "Signaled",
    "stack": "Asked for the stacks of",
    "start": "Started",
    "stop": "Stopped",
    "take_back": "Took back the jobs of",
    "tune": "Tuned",
    "withdraw": "Withdrew the acknowledgement of",
}
"""What was done, by the verb of an action."""


def in_words(action: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """The action as a verb phrase, as in `Paused`; falls back to its stored name."""
    if action == "queues.tune" and "pause" in {*before, *after}:
        return "Paused" if after.get("pause") else "Resumed"
    if action == "schedules.put" and not before:
        return "Created"
    if action == "schedules.put" and "enabled" in after:
        return "Resumed" if after["enabled"] else "Paused"
    return _PAST.get(action.rpartition(".")[2], action)


MOMENTS: Final = frozenset({"at", "changed_at", "last_fire", "next_fire", "until"})
LENGTHS: Final = frozenset({"base", "delay", "grace", "jitter", "keep_dead", "keep_done", "max"})
"""Fields that are stored in microseconds: points in time, and spans."""


def readable(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of an entry as views have them: datetimes, timedeltas, the rate of a bucket, and no curve that is off."""
    return dict(_readable(name, value) for name, value in fields.items())


def _readable(name: str, value: Any) -> tuple[str, Any]:
    if name == "bucket":
        return "rate", None if value is None else Rate(**value["rate"])
    if name == "curve":
        return name, readable({end: value[end] for end in ("base", "max")}) if value["on"] else None
    if isinstance(value, dict):
        return name, readable(value)
    if isinstance(value, int) and name in MOMENTS:
        return name, moment(value)
    return name, timedelta(microseconds=value) if isinstance(value, int) and name in LENGTHS else value


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What an entry changed, of its readable fields, as in `workers 4 → 6`."""
    told = {name: _in_text(after.get(name)) for name in sorted({*before, *after})}
    if before:
        told = {name: f"{_in_text(before.get(name))} → {new}" for name, new in told.items()}
    return "; ".join(f"{name} {text}" for name, text in told.items())


def _in_text(value: Any) -> str:
    if value in (None, [], {}):
        return UNKNOWN
    match value:
        case bool():
            return "yes" if value else "no"
        case datetime():
            return rfc3339(instant(value))
        case timedelta():
            return span(value)
        case Rate():
            return value.in_words
        case dict():
            return ", ".join(f"{name} {_in_text(one)}" for name, one in value.items() if one is not None) or "yes"
        case list():
            return ", ".join(" ".join(map(str, one)) if isinstance(one, list) else str(one) for one in value)
        case _:
            return str(value)


def of_signal(signal: Signal, answer: Signaled) -> Deed | None:
    """An answer to a job's wait; None when it was not stored. The value is not shown."""
    if answer not in ACCEPTED:
        return None
    return Deed(action="jobs.signal", target=f"job {ids.text(signal.id)}", after={"name": signal.name})


def of_token(before: AccessToken | None, after: AccessToken) -> Deed:
    """A new token, or a change of one; its digest is not shown."""
    action = "tokens.create" if before is None else "tokens.revoke" if after.revoked is not None else "tokens.change"
    shown = {"role": after.role, "queues": list(after.queues)}
    return Deed(action=action, target=f"token {after.name}", after=shown if before is None else {})


def of_operation(before: Operation | None, after: Operation) -> Deed:
    """A bulk action that begins, is to stop, or goes on."""
    if before is None:
        told = {"action": after.action, "filter": after.shown_filter, **after.change}
        return Deed(action="operations.start", target=f"operation {after.id}", after=told)
    action = "operations.stop" if after.state in ("stopping", "stopped") else "operations.resume"
    return Deed(
        action=action, target=f"operation {after.id}", before={"state": before.state}, after={"state": after.state}
    )


def of_acknowledgement(finding: str, before: Acknowledgement | None, after: Acknowledgement | None) -> Deed:
    """A finding that a person knows of, or does not want to leave any more."""
    if after is None:
        return Deed(action="findings.withdraw", target=f"finding {finding}")
    told = {"reason": after.reason, "until": after.until}
    former = {} if before is None else {"until": before.until}
    return Deed(action="findings.acknowledge", target=f"finding {finding}", before=former, after=told)


def of_letters(chosen: LetterFilter, action: LetterAction | None, found: Letters) -> Deed | None:
    """An action on letters of a stream; None for a question, and when none was changed."""
    if action is None or isinstance(action, Count) or not found.n:
        return None
    target = f"letters of {chosen.stream or 'all streams'}"
    return Deed(action=f"letters.{type(action).__name__.lower().removesuffix('letters')}", target=target, count=found.n)


def of_steer(stream: str, consumer: str, change: Steering, *, done: bool) -> Deed | None:
    """A change of a consumer; None when there was nothing to change."""
    name = type(change).__name__.lower()
    return Deed(action=f"outbox.{name}", target=f"consumer {consumer} of {stream}") if done else None


def of_setting(
    action: str, target: str, before: Queue | Budget | Schedule | None, after: Queue | Budget | Schedule | None
) -> Deed | None:
    """A change of a queue, budget or schedule: the fields that differ; None when none does."""
    old, new = _shown(before), _shown(after)
    differ = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if not differ and (before is None) == (after is None):
        return None
    return Deed(
        action=action,
        target=target,
        before={name: old[name] for name in differ if name in old},
        after={name: new[name] for name in differ if name in new},
    )


def _shown(value: Queue | Budget | Schedule | None) -> dict[str, Any]:
    if value is None:
        return {}
    shown: dict[str, Any] = _without_secrets(msgspec.to_builtins(value, builtin_types=(bytes,)))
    return shown


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(one) for name, one in value.items() if name not in HIDDEN}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def latest(entries: Sequence[AuditEntry], query: AuditQuery) -> list[AuditEntry]:
    """The entries that a query matches, latest first."""
    found = sorted((entry for entry in entries if query.matches(entry)), key=lambda entry: entry.at, reverse=True)
    return found[: max(query.limit, 0)]

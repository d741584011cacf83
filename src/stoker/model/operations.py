"""Operations: bulk actions of people as records in the store, so that any process shows, stops and resumes them.

The process that walks writes the record after each page, by compare-and-set. Asking for a stop is a write too: the
walker's next write then fails, it reads the record again and ends. One whose process died is not written any more, and
is shown as interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.filter import Filter, InvalidFilter
from stoker.model.job import Status
from stoker.model.time import LATEST, MINUTE, SECOND, Instant, Span, rfc3339

State: TypeAlias = Literal["running", "stopping", "stopped", "done", "failed"]

SILENT_AFTER: Span = 30 * SECOND
"""A walk that has not written for longer is interrupted."""

CLOCKS_APART: Span = MINUTE
"""By so much the servers of a cluster may disagree about the time."""

INTERRUPTED: Final = "interrupted"
"""How a running operation is shown whose process has fallen silent."""

RESEAL: Final = "reseal"
"""The operation that seals what is stored with the current key."""

GONE: Final = "changed before their turn"
"""What became of those that were counted and not met."""

ENDED: Final = frozenset({"stopped", "done", "failed"})


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bulk action and how far it came.

    `action` and `change` say what is done: the action's name, and what it needs as JSON (a queue, a priority). `filter`
    is the text of the jobs that are meant, `bound` the one moment of the action (`bound_of`): jobs that were created or
    ended after it are not touched. `cursor` is the place from which the walk goes on, `seen` the store's time of the
    last write. `later` is how many jobs its filter means at its end that were left because they came after its moment;
    None: not counted. `total` is how many its preview counted; None: not known. `begun` is when its present walk began,
    at its start or when it was resumed, and `before` how many had been looked at by then.
    """

    id: str
    who: str
    action: str
    filter: str
    change: dict[str, str | int | float | bool | None] = {}
    bound: Instant
    started: Instant
    total: int | None = None
    begun: Instant = 0
    before: int = 0
    seen: Instant = 0
    state: State = "running"
    cursor: str | None = None
    changed: int = 0
    cancel_requested: int = 0
    missing: int = 0
    blocked: int = 0
    refused: dict[Status, int] = {}
    later: int | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        """Has it come to its end? One that is not, and is interrupted, can be resumed."""
        return self.state in ENDED

    @property
    def looked_at(self) -> int:
        """How many it has come past."""
        return self.changed + self.cancel_requested + self.missing + self.blocked + sum(self.refused.values())

    @property
    def rate(self) -> float | None:
        """How many it comes past in a second, in its present walk; None: not known yet."""
        took = self.seen - max(self.begun, self.started)
        return (self.looked_at - self.before) * SECOND / took if took > 0 and self.looked_at > self.before else None

    @property
    def lasts(self) -> Span | None:
        """How long it still takes at its rate; None: not known, or it has ended."""
        if self.ended or self.total is None or self.rate is None:
            return None
        return round(max(self.total - self.looked_at, 0) / self.rate * SECOND)

    @property
    def fates(self) -> dict[str, int]:
        """What became of those it came past, by a word for each class that there is, the changed ones first.

        When it is done, those that were counted and that it did not meet had changed before their turn.
        """
        gone = self.total - self.looked_at if self.total is not None and self.state == "done" else 0
        found = {
            "changed": self.changed,
            "asked to stop": self.cancel_requested,
            "cannot be opened" if self.action == RESEAL else "key taken": self.blocked,
            "no longer there": self.missing,
            **{f"left: {status.value}": n for status, n in sorted(self.refused.items())},
            GONE: max(gone, 0),
            "came later": self.later or 0,
        }
        return {name: n for name, n in found.items() if n or name == "changed"}

    @property
    def shown_filter(self) -> str:
        """Its filter as other users may read it; a filter of letters never has payloads."""
        try:
            return str(Filter.parse(self.filter).without_payload)
        except InvalidFilter:
            return self.filter

    def interrupted(self, now: Instant) -> bool:
        """Has its process fallen silent?"""
        return not self.ended and now - self.seen > SILENT_AFTER

    def shown_state(self, now: Instant) -> str:
        """Its state as people read it."""
        return INTERRUPTED if self.interrupted(now) else self.state


def bound_of(counted_at: Instant | None, now: Instant) -> Instant:
    """The moment of a bulk action: that of its preview, else of its start, by the store's clock."""
    if counted_at is None:
        return now
    if not 0 <= counted_at <= now + CLOCKS_APART:
        shown = rfc3339(counted_at) if 0 <= counted_at <= LATEST else f"{counted_at / SECOND:.0f} s from 1970"
        raise InvalidInput("counted_at", shown, "must be the moment of a preview, since 1970 and not later than now")
    return min(counted_at, now)


def written_before(stored: Iterable[bytes], at: Instant) -> list[tuple[str, bytes]]:
    """Of the stored documents those that no call has written since an instant: each one's id, and as it is stored."""
    read = [(msgspec.json.decode(raw, type=Operation), raw) for raw in stored]
    return [(one.id, raw) for one, raw in read if one.seen < at]

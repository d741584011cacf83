"""How a run can end, and the signals a handler raises to say so.

An `Outcome` is what the runner, the keeper or the reaper saw; `lifecycle.conclude` turns it into a settlement. Signals
derive from BaseException so that a stray `except Exception` in a handler cannot eat them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from stoker.model.job import Draft
from stoker.model.time import Instant, Seconds, Span, instant, span

# --- signals ----------------------------------------------------------------------------------------------------


class Signal(BaseException):
    """Root of the four things a handler can say instead of returning or failing."""


class Snooze(Signal):
    """Run me again later, free of charge: `raise Snooze(60)`."""

    def __init__(self, delay: Seconds) -> None:
        self.after: Span = span(delay, "Snooze")
        super().__init__(f"snoozed for {self.after / 1e6:g} s")


class Throttle(Signal):
    """The other side refused: run me later, free of charge, and cool the whole queue (`queue=False`: only me)."""

    def __init__(self, retry_after: Seconds | None = None, *, queue: bool = True) -> None:
        self.retry_after: Span | None = None if retry_after is None else span(retry_after, "Throttle")
        self.queue = queue
        super().__init__("throttled")


class Retry(Signal):
    """Count this run as failed and run me again at my own time: `raise Retry("not yet", delay=5)`."""

    def __init__(
        self, why: str = "asked for a retry", *, delay: Seconds | None = None, at: datetime | None = None
    ) -> None:
        self.why = why
        self.after: Span | None = None if delay is None else span(delay, "Retry")
        self.at: Instant | None = None if at is None else instant(at, "Retry")
        super().__init__(why)


class Reject(Signal):
    """This job can never succeed: dead at once, whatever budget is left."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


_RANK = (Reject, Retry, Throttle, Snooze)


def loudest(error: BaseException) -> BaseException:
    """What an exception (group) means: ordinary errors win; of several signals the gravest speaks."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    members = leaves(error)
    if any(not isinstance(leaf, Signal) for leaf in members):
        return error
    return min(members, key=lambda leaf: _RANK.index(_rank_of(leaf)))


def _rank_of(signal: BaseException) -> type[Signal]:
    return next((kind for kind in _RANK if isinstance(signal, kind)), Snooze)


def leaves(error: BaseException) -> list[BaseException]:
    """What an exception consists of: the members of a group and of the groups in it, or itself."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(reversed(error.exceptions))
        else:
            found.append(error)
    return found


# --- outcomes ---------------------------------------------------------------------------------------------------


class Done(msgspec.Struct, frozen=True, gc=False):
    """The handler returned. `warning` says why a result could not be kept."""

    result: bytes | None = None
    warning: str | None = None
    followups: tuple[Draft, ...] = ()


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The handler raised. `after` or `at` is its own wish for the next run; `retry` is the policy's verdict.

    `ran` is how long the run took: an `at` is counted from where the store's clock stands now.
    """

    error: str
    retry: bool = True
    after: Span | None = None
    at: Instant | None = None
    ran: Span = 0


class TimedOut(msgspec.Struct, frozen=True, gc=False):
    """The run exceeded its limit. `retry` is the policy's verdict; `remark` says why it could not be asked."""

    limit: Span
    retry: bool = True
    remark: str | None = None


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The handler said that it can never succeed."""

    why: str


class Panicked(msgspec.Struct, frozen=True, gc=False):
    """SystemExit, GeneratorExit or another BaseException: nothing a retry can be trusted with."""

    error: str


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """Later, free of charge; also a refused rate budget."""

    after: Span


class Throttled(msgspec.Struct, frozen=True, gc=False):
    """A limiter refused."""

    retry_after: Span | None = None
    queue: bool = True


class HandedBack(msgspec.Struct, frozen=True, gc=False):
    """Never (fully) run here: shutdown, or an orphan whose claim reply was lost. Free of charge."""


class Lost(msgspec.Struct, frozen=True, gc=False):
    """The worker's lease lapsed; nobody knows how far the run came."""


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """A supervisor saw the process die under the job: signal, exit code, out of memory."""

    detail: str


class Canceled(msgspec.Struct, frozen=True, gc=False):
    """The handler stopped because it was asked to."""

    why: str = "canceled while running"


class Expired(msgspec.Struct, frozen=True, gc=False):
    """Claimed after the moment by which it had to be started."""


class Unfit(msgspec.Struct, frozen=True, gc=False):
    """No task of that name here, or arguments that do not fit its signature: perhaps a rolling deployment."""

    why: str


Outcome: TypeAlias = (
    Done
    | Failed
    | TimedOut
    | Rejected
    | Panicked
    | Snoozed
    | Throttled
    | HandedBack
    | Lost
    | Crashed
    | Canceled
    | Expired
    | Unfit
)

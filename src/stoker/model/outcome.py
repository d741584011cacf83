"""How a run can end, and the exits by which a handler ends it.

A worker turns each run into an `Outcome`, and `lifecycle.conclude` turns that into a settlement. An exit knows its own
outcome. To add one, write its class here and, if it needs a new outcome, that class, its entry in `Outcome` and its arm
of `conclude`: mypy reports what is missing, and every executor can carry what is in `Outcome`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar, TypeAlias

import msgspec

from stoker.model.errors import InvalidInput, shown
from stoker.model.ids import JobId
from stoker.model.job import Draft
from stoker.model.steps import Step, Wakes
from stoker.model.time import MINUTE, Instant, Seconds, Span, instant, span

INSTEAD: Span = MINUTE
"""The delay of a `Snooze` or `Throttle` whose own delay is impossible."""

# --- exits ------------------------------------------------------------------------------------------------------


class Exit(BaseException, ABC):
    """Base of what a handler raises to end its run in another way than returning or failing.

    Exits derive from BaseException so that an `except Exception` in a handler does not catch them.
    """

    gravity: ClassVar[int] = 0
    """Of several exits in an exception group the one with the highest gravity decides."""

    warning: str | None = None
    """What was wrong with the exit's arguments, and what Stoker does instead."""

    @abstractmethod
    def outcome(self, ran: Span, text: Callable[[object], str]) -> Outcome:
        """The outcome of a run that raised this exit after `ran`.

        `text` turns what the handler wrote into text that can be stored, and an exit into its traceback. An exit of
        unknown meaning is a panic.
        """
        return Panicked(text(self))


class Snooze(Exit):
    """Run the job again later, without using an attempt: `raise Snooze(60)`."""

    def __init__(self, delay: Seconds) -> None:
        self.after, self.warning = _delay(delay, "Snooze")
        super().__init__(f"snoozed for {self.after / 1e6:g} s")

    def outcome(self, ran: Span, text: Callable[[object], str]) -> Outcome:  # noqa: ARG002 - the signature of all exits
        return Snoozed(self.after, warning=self.warning)


class OutOfTokens(Snooze):
    """A budget refused tokens to a run: the job asks again after the delay."""

    def __init__(self, delay: Seconds, held: Held) -> None:
        super().__init__(delay)
        self.held = held

    def outcome(self, ran: Span, text: Callable[[object], str]) -> Outcome:  # noqa: ARG002
        return Snoozed(self.after, self.held)


class Throttle(Exit):
    """A service refused: run the job later, without using an attempt, and cool its queue down.

    `queue=False` leaves the queue as it is.
    """

    gravity = 1

    def __init__(self, retry_after: Seconds | None = None, *, queue: bool = True) -> None:
        self.retry_after: Span | None = None
        if retry_after is not None:
            self.retry_after, self.warning = _delay(retry_after, "Throttle")
        self.queue = queue
        super().__init__("throttled")

    def outcome(self, ran: Span, text: Callable[[object], str]) -> Outcome:  # noqa: ARG002
        return Throttled(self.retry_after, self.queue, self.warning)


class Retry(Exit):
    """Count this run as failed and run the job again at a given time: `raise Retry("not yet", delay=5)`."""

    gravity = 2

    def __init__(
        self, why: str = "asked for a retry", *, delay: Seconds | None = None, at: datetime | None = None
    ) -> None:
        self.why = why
        self.after: Span | None = None
        self.at: Instant | None = None
        try:
            self.after = None if delay is None else span(delay, "Retry")
            self.at = None if at is None else instant(at, "Retry")
        except InvalidInput as error:
            self.warning = f"{_mistake(error)} Stoker waits as long as the backoff says."
        super().__init__(why)

    def outcome(self, ran: Span, text: Callable[[object], str]) -> Outcome:
        return Failed(text(self.why), retry=True, after=self.after, at=self.at, ran=ran, warning=self.warning)


class Reject(Exit):
    """End the job permanently, without retries: it is dead, whatever attempts are left."""

    gravity = 3

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)

    def outcome(self, ran: Span, text: Callable[[object], str]) -> Outcome:  # noqa: ARG002
        return Rejected(text(self.why))


def _delay(given: Seconds, field: str) -> tuple[Span, str | None]:
    """A delay as the handler gave it; `INSTEAD` of an impossible one, and a warning."""
    try:
        return span(given, field), None
    except InvalidInput as error:
        return INSTEAD, f"{_mistake(error)} Stoker waits {INSTEAD / 1e6:g} s instead."


def _mistake(error: InvalidInput) -> str:
    return f"{error.field}: {error.why}; got {shown(error.value)}."


def gravest(error: BaseException) -> BaseException:
    """The exception that decides: the gravest of a group of exits alone, else the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    members = leaves(error)
    exits = [leaf for leaf in members if isinstance(leaf, Exit)]
    return max(exits, key=lambda one: one.gravity) if len(exits) == len(members) else error


def leaves(error: BaseException) -> list[BaseException]:
    """The members of a group and of the groups in it; of any other exception itself."""
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
    """The handler returned. `warning`: why its result could not be stored."""

    result: bytes | None = None
    warning: str | None = None
    followups: tuple[Draft, ...] = ()


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The handler raised. `after` or `at`: when the handler wants the next run. `retry`: the policy allows one.

    `ran` is how long the run took: `conclude` needs it to count `at` from the end of the run.
    """

    error: str
    retry: bool = True
    after: Span | None = None
    at: Instant | None = None
    ran: Span = 0
    warning: str | None = None


class TimedOut(msgspec.Struct, frozen=True, gc=False):
    """The run exceeded its limit. `retry`: the policy allows another; `remark`: why the policy could not be asked."""

    limit: Span
    retry: bool = True
    remark: str | None = None


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The handler ended the job permanently."""

    why: str


class Panicked(msgspec.Struct, frozen=True, gc=False):
    """The handler raised SystemExit, GeneratorExit or another BaseException: it is not retried."""

    error: str


class Held(msgspec.Struct, frozen=True, gc=False):
    """The budget that refused a run its tokens. `why`: why no wait helps while its rate stays; None: waiting helps."""

    budget: str
    tokens: int
    why: str | None = None


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """The job runs again later, without using an attempt; `held` by a budget, or because the handler asked for it."""

    after: Span
    held: Held | None = None
    warning: str | None = None


class Throttled(msgspec.Struct, frozen=True, gc=False):
    """A rate limit refused the run."""

    retry_after: Span | None = None
    queue: bool = True
    warning: str | None = None


class Suspended(msgspec.Struct, frozen=True, gc=False):
    """The run only waits, for those of its `steps` that are open: the job runs again when any or all are answered.

    `after` is the time until the first deadline, None without one; `due` is that deadline, if it was given as a moment
    and not as a time from now. `called` are the jobs that the run calls, members of the new `groups`.
    """

    steps: tuple[Step, ...]
    after: Span | None = None
    wakes: Wakes = Wakes.ANY
    called: tuple[Draft, ...] = ()
    groups: tuple[JobId, ...] = ()
    due: Instant | None = None


class HandedBack(msgspec.Struct, frozen=True, gc=False):
    """The worker did not run the job to its end (shutdown, or a lost claim reply). It uses no attempt."""


class Lost(msgspec.Struct, frozen=True, gc=False):
    """The worker's lease lapsed; how far the run came is unknown."""


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """The process died while it ran the job: signal, exit code, out of memory.

    `shared`: it ran other jobs too, so it is unknown which of them is to blame.
    """

    detail: str
    shared: bool = False


class Canceled(msgspec.Struct, frozen=True, gc=False):
    """The handler stopped because it was asked to."""

    why: str = "canceled while running"


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The job was claimed after the time by which it had to be started."""


class Unfit(msgspec.Struct, frozen=True, gc=False):
    """The worker has no such task, or its signature does not take the arguments: perhaps during a deployment.

    `sealed`: it cannot open what is stored, which another worker may be able to, however long that takes.
    """

    why: str
    sealed: bool = False


Outcome: TypeAlias = (
    Done
    | Failed
    | TimedOut
    | Rejected
    | Panicked
    | Snoozed
    | Throttled
    | Suspended
    | HandedBack
    | Lost
    | Crashed
    | Canceled
    | Expired
    | Unfit
)

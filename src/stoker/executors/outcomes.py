"""Decides what came of a run: a returned value or a raised exception becomes an outcome.

The rules, in this order: an exit means its outcome; a CancelledError that Stoker itself caused (timeout, cancel,
shutdown, lost claim) means that outcome, any other one is an ordinary failure; KeyboardInterrupt stops the worker and
hands the job back; any other exception beyond Exception is a panic: the job is dead, the worker lives. The worker and
its child processes both decide by this module.
"""

from __future__ import annotations

import asyncio
import enum
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stoker.codec.error_text import describe_error, forget_own_frames, inside, text_of
from stoker.context import Context
from stoker.model import outcome as ends
from stoker.model.errors import InvalidPayload, SealedValue, StepFailed
from stoker.model.job import LARGEST_ERROR, Claim
from stoker.model.outcome import Exit, Outcome, gravest, leaves
from stoker.model.retry import worth_retrying
from stoker.model.time import SECOND, Span, span

if TYPE_CHECKING:
    from stoker.task import Task


class Cause(enum.Enum):
    """Why Stoker itself interrupted a run."""

    TIMEOUT = "timeout"
    CANCEL = "cancel requested"
    SHUTDOWN = "shutdown"
    LOST = "claim lost"
    SUSPEND = "suspended"


class ProcessDied(Exception):
    """An executor's child process died under the job; its text says how."""


class DecidedInChild(Exception):
    """A failure that was judged already, in the child process where its class exists."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        self.outcome = outcome
        super().__init__(text)


def outcome_of_result(task: Task[..., Any], value: Any, context: Context) -> ends.Done:
    """The handler returned."""
    if value is None:
        warning = context.result_warning
        if warning is None and not context.followups:
            return NOTHING
        return ends.Done(None, warning, tuple(context.followups))
    result, warning = task.signature.encode_result(value)
    return ends.Done(result, None if warning is None else text_of(warning), tuple(context.followups))


NOTHING = ends.Done()


def outcome_of_error(
    error: BaseException, task: Task[..., Any] | None, cause: Cause | None, limit: float | None, ran: Span = 0
) -> Outcome:
    """What an exception that left the handler (or its middleware) means. Never raises, whatever the exception does.

    Without its task no rule says whether a retry is worth it.
    """
    try:
        return _decide(error, task, cause, limit, ran)
    except BaseException as broken:  # noqa: BLE001 - an exception may override anything that is read here
        return ends.Failed(f"{describe_error(error)}\nThis error cannot be judged: {text_of(broken)}")


def _decide(
    error: BaseException, task: Task[..., Any] | None, cause: Cause | None, limit: float | None, ran: Span
) -> Outcome:
    error = gravest(error)
    if isinstance(error, DecidedInChild):
        return error.outcome
    forget_own_frames(error)
    if isinstance(error, Exit):
        return _outcome_of_exit(error, ran)
    members = leaves(error)
    if cause is not None and all(isinstance(member, asyncio.CancelledError) for member in members):
        return outcome_of_interruption(cause, limit, task)
    if isinstance(error, SealedValue):
        return ends.Unfit(str(error), sealed=True)
    if isinstance(error, ProcessDied):
        return ends.Crashed(str(error))
    if any(isinstance(member, Exception | asyncio.CancelledError) for member in members):
        return _failed(error, [member for member in members if not isinstance(member, Exit)], task)
    if any(isinstance(member, KeyboardInterrupt) for member in members):
        return ends.HandedBack()
    return ends.Panicked(describe_error(error))


def outcome_after_block(context: Context, outcome: Outcome) -> Outcome:
    """The outcome of a run that opened a block and is not settled by it.

    A commit that may have happened is never a success: if it happened, this outcome is refused by the store, and if
    not, the job runs again.
    """
    doubt = None if context.commit is None else context.commit.doubt
    return outcome if doubt is None else ends.Failed(doubt)


def outcome_of_interruption(
    cause: Cause, limit: float | None, task: Task[..., Any] | None, why: str | None = None
) -> Outcome:
    """The outcome of a run that Stoker stopped; `why` is the reason the canceling caller gave."""
    if cause is Cause.TIMEOUT:
        worth, remark = _worth([TimeoutError(f"ran longer than {limit or 0:g} s")], task)
        return ends.TimedOut(round((limit or 0) * SECOND), worth, remark)
    if cause is Cause.CANCEL:
        return ends.Canceled() if why is None else ends.Canceled(why)
    return ends.HandedBack()


def _outcome_of_exit(raised: Exit, ran: Span) -> Outcome:
    def text(value: object) -> str:
        return describe_error(raised) if value is raised else inside(text_of(value, LARGEST_ERROR))

    return raised.outcome(ran, text)


def _failed(error: BaseException, members: list[BaseException], task: Task[..., Any] | None) -> ends.Failed:
    """A group is worth a retry when each of its members is; the longest wish of theirs counts."""
    text = describe_error(error)
    members = [_of_step(one) for one in members]
    worth, remark = _worth(members, task)
    if remark is not None:
        return ends.Failed(f"{text}\n{remark}")
    return ends.Failed(text, worth, after=max(filter(None, map(_retry_after, members)), default=None))


def _of_step(error: BaseException) -> BaseException:
    """The error by which a failure is judged: of a step, what its function raised."""
    return error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error


def _worth(errors: list[BaseException], task: Task[..., Any] | None) -> tuple[bool, str | None]:
    """Does the policy retry all of these errors? The text says why it could not be asked; then it does."""
    if task is None:
        return True, None
    try:
        return all(worth_retrying(one, task.policy, task.app.policy) for one in errors), None
    except BaseException as broken:  # noqa: BLE001 - a broken predicate must not decide over the job
        return True, f"retry_if itself raised: {text_of(broken)}"


def _retry_after(error: BaseException) -> Span | None:
    """An error may carry its own wish, as HTTP clients do: seconds or a timedelta named `retry_after`."""
    try:
        request = getattr(error, "retry_after", None)
        return span(request) if isinstance(request, int | float | timedelta) else None
    except Exception:  # noqa: BLE001 - nonsense, or a property that fails: no wish
        return None


def outcome_of_unfit(claim: Claim, error: InvalidPayload | None) -> ends.Unfit:
    """No such task here, or arguments that do not fit it: perhaps this worker is older or newer than the job."""
    if isinstance(error, SealedValue):
        return ends.Unfit(str(error), sealed=True)
    if error is None:
        return ends.Unfit(f"no task named {claim.kind!r} is registered in this worker")
    return ends.Unfit(f"the arguments do not fit task {claim.kind!r}: {error}")

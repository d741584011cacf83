"""Runs one job: decode, middleware, handler, and the judgement of what came of it.

The order of judgement: signals; then a CancelledError that Stoker itself caused (timeout, cancel, shutdown, lost
claim) means that outcome, any other is an ordinary failure; KeyboardInterrupt asks the worker to stop and hands the job
back; what remains beyond Exception is a panic: dead, and the worker lives.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from stoker.context import Context
from stoker.failure import describe_error, text_of
from stoker.hooks import compose
from stoker.model import outcome as ends
from stoker.model.errors import InvalidPayload
from stoker.model.job import LARGEST_ERROR, Claim
from stoker.model.lifecycle import Rules
from stoker.model.outcome import Outcome, Reject, Retry, Signal, Snooze, Throttle, loudest
from stoker.model.retry import worth_retrying
from stoker.model.time import SECOND, Span

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.task import Task
    from stoker.worker.executors import Executors


class Cause(enum.Enum):
    """Why Stoker itself interrupted a run."""

    TIMEOUT = "timeout"
    CANCEL = "cancel requested"
    SHUTDOWN = "shutdown"
    LOST = "claim lost"


class ProcessDied(Exception):
    """An executor's child process died under the job; its text says how."""


class Plan:
    """What running jobs of one kind takes, worked out once."""

    __slots__ = ("call", "on_loop", "rules", "task", "timeout")

    def __init__(self, app: Stoker, task: Task[..., Any], executors: Executors, unfit_grace: Span) -> None:
        self.task = task
        self.rules = Rules(
            backoff=task.options.backoff,
            default=app.backoff,
            keep=task.options.keep if task.options.keep is not None else app.defaults.keep,
            crash_limit=task.crashes,
            unfit_grace=unfit_grace,
        )
        self.timeout = task.options.timeout if task.options.timeout is not None else app.defaults.timeout
        self.on_loop = task.is_async and task.options.isolation is None
        innermost = _on_loop(task.fn) if self.on_loop else executors.call_of(task)
        self.call: Callable[[Context], Awaitable[Any]] = compose(app.middleware, app.scoped(innermost))

    def limit(self, claim: Claim) -> float | None:
        """The run's timeout in seconds: the job's own, else the task's, else the app's."""
        own = claim.options.timeout
        span = self.timeout if own is None else own
        return None if span is None else span / SECOND


def _on_loop(fn: Callable[..., Any]) -> Callable[[Context], Awaitable[Any]]:
    def call(context: Context) -> Awaitable[Any]:
        args, kwargs = context.call
        awaitable: Awaitable[Any] = fn(*args, **kwargs)
        return awaitable

    return call


def done(task: Task[..., Any], value: Any, context: Context) -> ends.Done:
    """The handler returned."""
    followups = tuple(context.followups)
    if value is None:
        return ends.Done(None, None, followups) if followups else NOTHING
    result, warning = task.signature.encode_result(value)
    return ends.Done(result, warning, followups)


NOTHING = ends.Done()


def judge(error: BaseException, task: Task[..., Any], cause: Cause | None, limit: float | None) -> Outcome:
    """What an exception that left the handler (or its middleware) means."""
    error = loudest(error)
    _forget_own_frames(error)
    if isinstance(error, Signal):
        return _signal(error)
    if isinstance(error, asyncio.CancelledError) and cause is not None:
        return interrupted(cause, limit)
    if isinstance(error, ProcessDied):
        return ends.Crashed(str(error))
    if isinstance(error, Exception | asyncio.CancelledError):
        return _failed(error, task)
    if isinstance(error, KeyboardInterrupt):
        return ends.HandedBack()
    if isinstance(error, BaseExceptionGroup):
        ordinary = error.subgroup(lambda leaf: isinstance(leaf, Exception))
        if ordinary is not None:
            return _failed(error, task)
    return ends.Panicked(describe_error(error))


def _forget_own_frames(error: BaseException) -> None:
    """A traceback begins in the user's code: how Stoker came to call it tells him nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("stoker."):
        trace = trace.tb_next
    if trace is not None:
        error.__traceback__ = trace


def interrupted(cause: Cause, limit: float | None) -> Outcome:
    """The outcome of a run that Stoker stopped."""
    if cause is Cause.TIMEOUT:
        return ends.TimedOut(round((limit or 0) * SECOND))
    if cause is Cause.CANCEL:
        return ends.Canceled()
    return ends.HandedBack()


def _signal(signal: Signal) -> Outcome:
    if isinstance(signal, Reject):
        return ends.Rejected(text_of(signal.why, LARGEST_ERROR))
    if isinstance(signal, Retry):
        return ends.Failed(text_of(signal.why, LARGEST_ERROR), True, signal.after, signal.at)
    if isinstance(signal, Throttle):
        return ends.Throttled(signal.retry_after, signal.queue)
    if isinstance(signal, Snooze):
        return ends.Snoozed(signal.after)
    return ends.Panicked(describe_error(signal))


def _failed(error: BaseException, task: Task[..., Any]) -> ends.Failed:
    text = describe_error(error)
    try:
        worth = worth_retrying(error, retry_on=task.retry_on, give_up_on=task.give_up_on, predicate=task.retry_if)
    except Exception as broken:  # noqa: BLE001 - a broken predicate must not decide over the job
        return ends.Failed(f"{text}\nretry_if itself raised: {text_of(broken)}")
    return ends.Failed(text, worth, after=_retry_after(error))


def _retry_after(error: BaseException) -> Span | None:
    """An error may carry its own wish, as HTTP clients do: a number of seconds named `retry_after`."""
    wish = getattr(error, "retry_after", None)
    if isinstance(wish, bool) or not isinstance(wish, int | float) or not 0 <= wish < 3.2e8:
        return None
    return round(wish * SECOND)


def unfit(claim: Claim, error: InvalidPayload | None) -> ends.Unfit:
    """No such task here, or arguments that do not fit it: perhaps this worker is older or newer than the job."""
    if error is None:
        return ends.Unfit(f"no task named {claim.kind!r} is registered in this worker")
    return ends.Unfit(f"the arguments do not fit task {claim.kind!r}: {error}")

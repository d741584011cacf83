"""What a handler raised, as the outcome of its batch."""

from __future__ import annotations

import time
from typing import Any

from stoker.codec.error_text import describe_error, forget_own_frames, inside, one_line, text_of
from stoker.model.outbox.delivery import BatchOutcome, Rejected, RetryLater
from stoker.model.outcome import Reject, Retry, Snooze, Throttle, gravest
from stoker.model.time import SECOND, Span
from stoker.outbox.batch import Batch

LARGEST_REASON = 8 << 10
"""Bytes of the text about a failure."""

STOPPED = "the worker stopped before the batch was finished"


def outcome_of_error(error: BaseException, batch: Batch[Any], retry_base: Span) -> BatchOutcome:
    """What an exception that left the handler means for its batch."""
    why = reason_of(error)
    done, rejections, unit = batch.processed, batch.rejections, batch.in_hand
    match gravest(error):
        case Retry() as raised:
            return RetryLater(why, done, rejections, unit, after=_wish(raised))
        case Reject():
            return Rejected(why, done, rejections)
        case Snooze() as raised:
            return RetryLater(why, done, rejections, unit, free=True, after=raised.after)
        case Throttle() as raised:
            after = retry_base if raised.retry_after is None else raised.retry_after
            return RetryLater(why, done, rejections, unit, free=True, after=after)
        case _:
            return RetryLater(why, done, rejections, unit)


def outcome_of_stop(batch: Batch[Any]) -> RetryLater:
    """The worker stopped: what is finished stays so, the rest comes again, and no attempt is counted."""
    return RetryLater(STOPPED, batch.processed, batch.rejections, batch.in_hand, free=True)


def reason_of(error: BaseException) -> str:
    """Why something was not delivered, as text."""
    raised = gravest(error)
    if isinstance(raised, Retry | Reject | Snooze | Throttle):
        why = inside(text_of(raised.why if isinstance(raised, Retry | Reject) else raised, LARGEST_REASON))
        return why if raised.warning is None else f"{why} ({raised.warning})"
    forget_own_frames(raised)
    return describe_error(raised, LARGEST_REASON)


def first_line(reason: str) -> str:
    """What a line of the log says about a failure; the rest is in the store."""
    return one_line(reason.strip().partition("\n")[0])


def _wish(raised: Retry) -> Span | None:
    """The delay that a handler asks for."""
    if raised.at is not None:
        return max(raised.at - round(time.time() * SECOND), 0)
    return raised.after

"""Delivery: what a handler's outcome does to the cursor of its partition.

The story of a batch. A processor takes the partition (see `cursor`) and reads the messages behind its position.
`readable` sets aside those whose body is gone, the handler gets the rest, and `conclude_batch` turns its outcome into
an `Advance`: a new position, attempts, an error, letters. The engine stores the advance in one step and only while
`applies` holds; a processor that lost its lease changes nothing, neither cursor nor letters nor counters.

Rules: only a prefix of a batch is ever done, so a position is enough to know what is done. The cursor passes a message
exactly when it was delivered or has a letter. Every advance releases the lease. A transactional handler that retries
gets its whole batch again, also what it finished, because the batch is one transaction.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias, assert_never

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.outbox.cursor import Cursor, Strategy, attempts_seen
from stoker.model.outbox.letters import Letter, write
from stoker.model.outbox.stream import Message
from stoker.model.time import Instant

EXPIRED = "the lease ran out while the handler was at work"
NOTHING_DONE = "the handler reported success but processed no message"
BODY_MISSING = "the body of message {number} is missing in {stream} partition {partition}"


# --- outcomes -------------------------------------------------------------------------------------------------------


class Rejection(msgspec.Struct, frozen=True):
    """One message the handler refused for good; it counts as processed."""

    number: int
    reason: str


class Delivered(msgspec.Struct, frozen=True):
    """Success. `processed` is the length of the finished prefix; None, from handlers that do not count, means all."""

    processed: int | None = None
    rejections: tuple[Rejection, ...] = ()


class RetryLater(msgspec.Struct, frozen=True):
    """Not now. None means that the handler does not know how far it came."""

    reason: str
    processed: int | None = None
    rejections: tuple[Rejection, ...] = ()


class Rejected(msgspec.Struct, frozen=True):
    """Never. What follows the processed prefix becomes letters."""

    reason: str
    processed: int | None = None
    rejections: tuple[Rejection, ...] = ()


BatchOutcome: TypeAlias = Delivered | RetryLater | Rejected


class Progress(msgspec.Struct, frozen=True):
    """What a handler has finished of its batch, always a prefix: messages are done in order or not at all."""

    numbers: tuple[int, ...]
    processed: int = 0
    rejections: tuple[Rejection, ...] = ()

    def done(self, number: int) -> Progress:
        """Finish everything up to and with `number`, one message or a chunk of them."""
        if number not in self.numbers[self.processed :]:
            raise InvalidInput("message", number, "must be a message of this batch that is not done yet")
        return msgspec.structs.replace(self, processed=self.numbers.index(number) + 1)

    def reject(self, number: int, reason: str) -> Progress:
        """Refuse the next message; those before it must be done first, or their letters would go astray."""
        if self.numbers[self.processed : self.processed + 1] != (number,):
            raise InvalidInput("message", number, "can be rejected only when all before it are done")
        refused = (*self.rejections, Rejection(number, reason))
        return msgspec.structs.replace(self, processed=self.processed + 1, rejections=refused)


def cut_short(progress: Progress) -> RetryLater:
    """The outcome of a handler that was stopped at its deadline: what it finished stays finished."""
    return RetryLater(EXPIRED, progress.processed, progress.rejections)


# --- concluding -----------------------------------------------------------------------------------------------------


class Ending(enum.StrEnum):
    """What a turn on a partition came to, for pacing and reports."""

    IDLE = "idle"
    DELIVERED = "delivered"
    RETRY = "retry"
    REJECTED = "rejected"


class Advance(msgspec.Struct, frozen=True):
    """What to store. `holder`, `token` and `before` guard it; `report` keeps the reason even where the cursor moved on
    and carries no error; `processed` is None where the handler did not count.
    """

    before: int
    holder: str | None
    token: int
    ending: Ending
    position: int
    attempts: int = 0
    last_error: str | None = None
    letters: tuple[Letter, ...] = ()
    report: str | None = None
    processed: int | None = None

    @property
    def vacuum(self) -> int:
        """One per batch that moved the cursor, however long the batch."""
        return int(self.position > self.before)


def readable(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Split off the front of a batch: either messages without body, to quarantine, or the run the handler gets.

    One of the two is empty; what follows the run is read again in the next turn.
    """
    missing = [message.payload is None for message in messages]
    if missing[:1] == [True]:
        return messages[: [*missing, False].index(False)], ()
    return (), messages[: [*missing, True].index(True)]


def idle(cursor: Cursor) -> Advance:
    """Nothing to deliver: the lease is released and an idle poll is no attempt."""
    return _advance(cursor, Ending.IDLE, cursor.position, last_error=cursor.last_error)


def quarantine(cursor: Cursor, missing: Sequence[Message], strategy: Strategy, now: Instant) -> Advance:
    """Turn messages without a body into letters and go on: a gap must be visible and must not block."""
    reasons = {
        one.number: BODY_MISSING.format(number=one.number, stream=one.stream, partition=one.partition)
        for one in missing
    }
    letters = _letters(cursor, missing, reasons, strategy, now)
    report = letters[0].reason
    return _advance(cursor, Ending.REJECTED, missing[-1].number, letters=letters, report=report)


def conclude_batch(
    cursor: Cursor, messages: Sequence[Message], outcome: BatchOutcome, strategy: Strategy, now: Instant
) -> Advance:
    """Turn the outcome of a batch (not empty) into what is stored."""
    size = len(messages)
    counted = outcome.processed
    # A count above the batch is a handler's mistake: to trust it would skip messages that were never delivered.
    prefix = 0 if counted is None or not 0 <= counted <= size else counted
    match outcome:
        case Delivered(processed=None):
            return _passed(cursor, messages, size, outcome, strategy, now)
        case Delivered() if prefix:
            return _passed(cursor, messages, prefix, outcome, strategy, now)
        case Delivered():
            return _kept(cursor, NOTHING_DONE, 0, strategy)
        case RetryLater() if prefix and strategy == "leased":
            return _passed(cursor, messages, prefix, outcome, strategy, now)
        case RetryLater(reason=reason):
            return _kept(cursor, reason, counted, strategy)
        case Rejected():
            return _rejected(cursor, messages, outcome, strategy, now)
        case _:
            assert_never(outcome)


def _passed(
    cursor: Cursor,
    messages: Sequence[Message],
    prefix: int,
    outcome: BatchOutcome,
    strategy: Strategy,
    now: Instant,
) -> Advance:
    """Move behind the finished prefix; rejections outside it come again with their messages."""
    reasons = {one.number: one.reason for one in outcome.rejections}
    letters = _letters(cursor, messages[:prefix], reasons, strategy, now)
    retry = isinstance(outcome, RetryLater)
    return _advance(
        cursor,
        Ending.RETRY if retry else Ending.DELIVERED,
        messages[prefix - 1].number,
        letters=letters,
        report=outcome.reason if isinstance(outcome, RetryLater) else None,
        processed=prefix,
    )


def _kept(cursor: Cursor, reason: str, processed: int | None, strategy: Strategy) -> Advance:
    """Stay, with the reason. A lease has counted this attempt already, a transaction counts it now."""
    attempts = cursor.attempts if strategy == "leased" else cursor.attempts + 1
    return _advance(
        cursor,
        Ending.RETRY,
        cursor.position,
        attempts=attempts,
        last_error=reason,
        report=reason,
        processed=processed,
    )


def _rejected(
    cursor: Cursor, messages: Sequence[Message], outcome: Rejected, strategy: Strategy, now: Instant
) -> Advance:
    """Pass the whole batch. A transaction is one piece, so all of it becomes letters; a lease keeps its prefix."""
    prefix = min(max(outcome.processed or 0, 0), len(messages)) if strategy == "leased" else 0
    reasons = {one.number: one.reason for one in outcome.rejections}
    reasons |= {one.number: reasons.get(one.number, outcome.reason) for one in messages[prefix:]}
    letters = _letters(cursor, messages, reasons, strategy, now)
    return _advance(
        cursor,
        Ending.REJECTED,
        messages[-1].number,
        letters=letters,
        report=outcome.reason,
        processed=outcome.processed,
    )


def _letters(
    cursor: Cursor, messages: Sequence[Message], reasons: dict[int, str], strategy: Strategy, now: Instant
) -> tuple[Letter, ...]:
    attempts = attempts_seen(cursor, strategy) + 1
    return tuple(write(one, reasons[one.number], attempts, now) for one in messages if one.number in reasons)


def _advance(
    cursor: Cursor,
    ending: Ending,
    position: int,
    *,
    attempts: int = 0,
    last_error: str | None = None,
    letters: tuple[Letter, ...] = (),
    report: str | None = None,
    processed: int | None = None,
) -> Advance:
    return Advance(
        cursor.position,
        cursor.holder,
        cursor.token,
        ending,
        position,
        attempts,
        last_error,
        letters,
        report,
        processed,
    )


# --- storing an advance ---------------------------------------------------------------------------------------------


def applies(stored: Cursor, advance: Advance) -> bool:
    """Whether holder and token are still the same; a lease past its end counts until it is taken over."""
    found = (stored.holder, stored.token, stored.position)
    return found == (advance.holder, advance.token, advance.before)


def advanced(stored: Cursor, advance: Advance) -> Cursor | None:
    """The cursor once the advance is stored, or None if it does not apply: then nothing of it is."""
    if not applies(stored, advance):
        return None
    return msgspec.structs.replace(
        stored,
        position=advance.position,
        attempts=advance.attempts,
        last_error=advance.last_error,
        holder=None,
        until=None,
        vacuum=stored.vacuum + advance.vacuum,
    )

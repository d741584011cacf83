"""Delivery: what a handler's outcome does to the cursor of its partition.

The story of a turn. A worker leases a partition (see `cursor`) with the messages behind its position. `readable` sets
aside those whose body is gone, the handler gets the rest but for parked keys, and `conclude_batch` turns its outcome
into an `Advance`: a new position, attempts, an error, the next due time and size, letters, parked keys. The engine
stores the advance in one step and only while `applies` holds; a worker that lost its lease changes nothing.

Rules: only a prefix of a batch is ever done, so a position is enough to know what is done. The cursor passes a message
exactly when it was delivered or has a letter. Every advance releases the lease. A transactional handler that retries
gets its whole batch again, also what it finished, because the batch is one transaction. A turn that delivers letters
leaves the position where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, assert_never, get_args

import msgspec

from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.outbox.batch_size import Ending, Pace, Size, resized, rest
from stoker.model.outbox.cursor import Cursor, Lease, LeaseRequest, attempts_seen
from stoker.model.outbox.letters import Letter, LetterStatus, write
from stoker.model.outbox.stream import Message
from stoker.model.time import Instant, Span

EXPIRED = "the lease ran out while the handler was at work"
NOTHING_DONE = "the handler reported success but processed no message"
BODY_MISSING = "the body of message {number} is missing in {stream} partition {partition}"
KEY_PARKED = "the key is parked since an earlier message of it could not be delivered"
CRASHED = "processes that were delivering it died or lost their lease, {n} times in a row"

LETTER_CRASHES = 3
"""After how many crashes letters are set aside again: they come first, and would hold up the partition."""

Mode: TypeAlias = Literal["leased", "transactional"]
Then: TypeAlias = Literal["letter", "park"]


class Rules(msgspec.Struct, frozen=True):
    """What a consumer has decided about its deliveries.

    `attempts`: failures after which the first message is given up, None for never. `then`: whether only that message
    becomes a letter, or its key is parked with it.
    """

    mode: Mode = "leased"
    attempts: int | None = None
    then: Then = "letter"
    pace: Pace = Pace()

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise InvalidOption("mode", self.mode, f"must be one of {', '.join(get_args(Mode))}")
        if self.then not in get_args(Then):
            raise InvalidOption("then", self.then, f"must be one of {', '.join(get_args(Then))}")
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise InvalidOption("attempts", self.attempts, "must be at least 1, or None for no limit")


PLAIN_RULES = Rules()


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
    """Not now. `processed=None` means that the handler does not know how far it came.

    `unit`: messages that the handler had in hand when it failed, where it counts. `free`: the attempt is given back.
    `after`: the handler's own delay in place of the pace's.
    """

    reason: str
    processed: int | None = None
    rejections: tuple[Rejection, ...] = ()
    unit: int = 1
    free: bool = False
    after: Span | None = None


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
        return self.through(self.numbers.index(number) + 1)

    def through(self, count: int) -> Progress:
        """Finish the first `count` messages, if they are not finished yet."""
        return self if count <= self.processed else Progress(self.numbers, count, self.rejections)

    def reject(self, number: int, reason: str) -> Progress:
        """Refuse the next message; those before it must be done first, or their letters would go astray."""
        if self.numbers[self.processed : self.processed + 1] != (number,):
            raise InvalidInput("message", number, "can be rejected only when all before it are done")
        refused = (*self.rejections, Rejection(number, reason))
        return msgspec.structs.replace(self, processed=self.processed + 1, rejections=refused)


def cut_short(progress: Progress) -> RetryLater:
    """The outcome of a handler that was stopped at its deadline: what it finished stays finished."""
    return RetryLater(EXPIRED, progress.processed, progress.rejections)


# --- what is stored -------------------------------------------------------------------------------------------------


class Park(msgspec.Struct, frozen=True):
    """A key whose later messages are set aside from now on, and why."""

    key: str
    reason: str


class Advance(msgspec.Struct, frozen=True):
    """What to store after a turn. `holder`, `token` and `before` guard it.

    `after`: the partition is due so long after the advance; at once is no instant, so a clock that is set back delays
    nothing. `letters` are new; `resolved` are numbers of letters that were delivered after all, `returned` those that
    failed again. `parks` are keys to park. `released` is a parked key whose letters were delivered: it is parked no
    longer once none of its letters is. `report` keeps the reason even where the cursor moved on and carries no error;
    `processed` is None where the handler did not count. `ref` is that of the lease.
    """

    stream: str
    consumer: str
    partition: int
    before: int
    holder: str | None
    token: int
    ending: Ending
    position: int
    attempts: int = 0
    last_error: str | None = None
    after: Span = 0
    size: int | None = None
    failures: int = 0
    letters: tuple[Letter, ...] = ()
    parks: tuple[Park, ...] = ()
    resolved: tuple[int, ...] = ()
    returned: tuple[Rejection, ...] = ()
    released: str | None = None
    report: str | None = None
    processed: int | None = None
    ref: Any = None


class Advanced(msgspec.Struct, frozen=True):
    """Whether an advance applied, and the next lease of the same partition where one was wanted and there is more."""

    applied: bool
    lease: Lease | None = None


def check_request(advance: Advance, request: LeaseRequest | None, *, joined: bool) -> None:
    """Check that an advance may be followed by a lease; `joined`: it is part of a transaction."""
    if request is None:
        return
    if joined:
        raise InvalidInput("request", request, "cannot go with tx=: a lease must not depend on a later commit")
    if (request.stream, request.consumer) != (advance.stream, advance.consumer):
        raise InvalidInput("request", request, f"must be for {advance.consumer!r} of stream {advance.stream!r}")


def applies(stored: Cursor, advance: Advance) -> bool:
    """Whether holder and token are still the same; a lease past its end counts until it is taken over."""
    found = (stored.holder, stored.token, stored.position)
    return found == (advance.holder, advance.token, advance.before)


def advanced(stored: Cursor, advance: Advance, now: Instant) -> Cursor | None:
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
        due=now + advance.after if advance.after else 0,
        size=advance.size,
        failures=advance.failures,
    )


# --- concluding -----------------------------------------------------------------------------------------------------


def readable(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Split off the front of a batch: either messages without body, to quarantine, or the run the handler gets.

    One of the two is empty; what follows the run is read again in the next turn.
    """
    missing = [message.payload is None for message in messages]
    if missing[:1] == [True]:
        return messages[: [*missing, False].index(False)], ()
    return (), messages[: [*missing, True].index(True)]


def handed_out(lease: Lease) -> tuple[Message, ...]:
    """The messages that the handler gets: those of parked keys wait until a user releases them."""
    if not lease.parked:
        return lease.messages
    return tuple(message for message in lease.messages if message.key not in lease.parked)


def quarantine(lease: Lease, missing: Sequence[Message], now: Instant) -> Advance:
    """Turn messages without a body into letters and go on: a gap must be visible and must not block."""
    cursor = lease.cursor
    reasons = {
        one.number: BODY_MISSING.format(number=one.number, stream=cursor.stream, partition=one.partition)
        for one in missing
    }
    letters = _letters(lease, missing, reasons, now)
    return msgspec.structs.replace(
        _stay(lease, Ending.REJECTED),
        position=missing[-1].number,
        attempts=0,
        last_error=None,
        letters=letters,
        report=letters[0].reason,
        processed=len(missing),
    )


def crashes(cursor: Cursor) -> int:
    """Leases since the cursor last moved that ended without an outcome: their process died, or lost the lease."""
    seen = attempts_seen(cursor)
    return seen if cursor.last_error is None else max(seen - cursor.failures, 0)


def after_crash(lease: Lease, now: Instant, rules: Rules = PLAIN_RULES) -> Lease | Advance:
    """What to do with a lease if earlier ones ended without an outcome: its first message may be what kills.

    It is delivered alone, and batches grow again from one. When its attempts are used up it is given up without another
    delivery, and a letter that a user wants delivered again is set aside after `LETTER_CRASHES`.
    """
    n = crashes(lease.cursor)
    if not n:
        return lease
    alone = msgspec.structs.replace(
        lease, cursor=msgspec.structs.replace(lease.cursor, size=1), messages=lease.messages[:1], more=True
    )
    killed = RetryLater(CRASHED.format(n=n), 0)
    if lease.released is not None or lease.replayed:
        # The crashes are not those of the messages behind the cursor, so these begin without them.
        return msgspec.structs.replace(_redelivered(alone, killed, rules), attempts=0) if n >= LETTER_CRASHES else alone
    used_up = rules.attempts is not None and attempts_seen(lease.cursor) >= rules.attempts
    return conclude_batch(alone, killed, now, rules) if used_up else alone


def conclude_batch(lease: Lease, outcome: BatchOutcome, now: Instant, rules: Rules = PLAIN_RULES) -> Advance:
    """Decide what a handler's outcome does to its partition. Counts of messages are of those handed out."""
    if lease.released is not None or lease.replayed:
        return _redelivered(lease, outcome, rules)
    messages = handed_out(lease)
    if not messages:
        return _passed(lease, 0, Delivered(), now, rules)
    prefix = _prefix(outcome.processed, len(messages))
    match outcome:
        case Delivered(processed=None):
            return _passed(lease, len(messages), outcome, now, rules)
        case Delivered() if prefix:
            return _passed(lease, prefix, outcome, now, rules)
        case Delivered():
            return _failed(lease, RetryLater(NOTHING_DONE, 0), now, rules)
        case RetryLater() if prefix and rules.mode == "leased":
            return _passed(lease, prefix, outcome, now, rules)
        case RetryLater():
            return _failed(lease, outcome, now, rules)
        case Rejected():
            return _rejected(lease, outcome, now, rules)
        case _:
            assert_never(outcome)


def _prefix(processed: int | None, length: int) -> int:
    """A count that cannot be right counts as none."""
    return processed if processed is not None and 0 <= processed <= length else 0


def _passed(lease: Lease, prefix: int, outcome: Delivered | RetryLater, now: Instant, rules: Rules) -> Advance:
    """Move behind the finished prefix; rejections outside it come again with their messages."""
    messages = handed_out(lease)
    behind = lease.messages.index(messages[prefix]) if prefix < len(messages) else len(lease.messages)
    passed = lease.messages[:behind]
    letters = _letters(lease, passed, {one.number: one.reason for one in outcome.rejections}, now)
    ending = Ending.RETRY if isinstance(outcome, RetryLater) else Ending.DELIVERED
    report = outcome.reason if isinstance(outcome, RetryLater) else None
    made = msgspec.structs.replace(
        _stay(lease, ending),
        position=passed[-1].number,
        attempts=0,
        last_error=None,
        letters=letters,
        report=report,
        processed=prefix,
    )
    return _paced(made, lease, outcome, rules)


def _failed(lease: Lease, outcome: RetryLater, now: Instant, rules: Rules) -> Advance:
    """Stay, with the reason, unless it is time to give up. The lease has counted this attempt already."""
    cursor, messages = lease.cursor, handed_out(lease)
    first_alone = len(messages) == 1 or (outcome.processed == 0 and outcome.unit == 1)
    if rules.attempts is not None and cursor.attempts >= rules.attempts and first_alone and not outcome.free:
        return _given_up(lease, outcome, now, rules)
    made = msgspec.structs.replace(
        _stay(lease, Ending.RETRY),
        attempts=max(cursor.attempts - outcome.free, 0),
        last_error=outcome.reason,
        report=outcome.reason,
        processed=outcome.processed,
    )
    return _paced(made, lease, outcome, rules)


def _given_up(lease: Lease, outcome: RetryLater, now: Instant, rules: Rules) -> Advance:
    """Pass the first message: it becomes a letter, and its key is parked if the consumer wants that."""
    first = handed_out(lease)[0]
    passed = lease.messages[: lease.messages.index(first) + 1]
    parks = (Park(first.key, outcome.reason),) if rules.then == "park" else ()
    letters = _letters(lease, passed, {first.number: outcome.reason}, now)
    if parks:
        letters = (*letters[:-1], msgspec.structs.replace(letters[-1], status=LetterStatus.PARKED))
    made = msgspec.structs.replace(
        _stay(lease, Ending.REJECTED),
        position=first.number,
        attempts=0,
        last_error=None,
        letters=letters,
        parks=parks,
        report=outcome.reason,
        processed=outcome.processed,
    )
    return _paced(made, lease, outcome, rules)


def _rejected(lease: Lease, outcome: Rejected, now: Instant, rules: Rules) -> Advance:
    """Pass the whole batch. A transaction is one piece, so all of it becomes letters; a lease keeps its prefix."""
    messages = handed_out(lease)
    prefix = min(max(outcome.processed or 0, 0), len(messages)) if rules.mode == "leased" else 0
    reasons = {one.number: one.reason for one in outcome.rejections}
    reasons |= {one.number: reasons.get(one.number, outcome.reason) for one in messages[prefix:]}
    made = msgspec.structs.replace(
        _stay(lease, Ending.REJECTED),
        position=lease.messages[-1].number,
        attempts=0,
        last_error=None,
        letters=_letters(lease, lease.messages, reasons, now),
        report=outcome.reason,
        processed=outcome.processed,
    )
    return _paced(made, lease, outcome, rules)


def _redelivered(lease: Lease, outcome: BatchOutcome, rules: Rules) -> Advance:
    """Judge a turn over letters: the first that fails again ends it, and a released key is parked again."""
    numbers = tuple(message.number for message in lease.messages)
    done, reason = _redone(numbers, outcome, rules.mode)
    returned = (Rejection(numbers[done], reason),) if reason is not None and done < len(numbers) else ()
    parks = tuple(Park(lease.released, one.reason) for one in returned if lease.released is not None)
    return msgspec.structs.replace(
        _stay(lease, Ending.RETRY if done < len(numbers) else Ending.DELIVERED),
        after=(outcome.after or 0) if isinstance(outcome, RetryLater) else 0,
        resolved=numbers[:done],
        returned=returned,
        parks=parks,
        released=None if parks else lease.released,
        report=reason or (None if isinstance(outcome, Delivered) else outcome.reason),
        processed=outcome.processed,
    )


def _redone(numbers: Sequence[int], outcome: BatchOutcome, mode: Mode) -> tuple[int, str | None]:
    """How many letters were delivered, and why the next one was not; None: it only comes later."""
    done, reason = _prefix(outcome.processed, len(numbers)), None
    match outcome:
        case Delivered(processed=None):
            done = len(numbers)
        case Delivered():
            reason = None if done else NOTHING_DONE
        case RetryLater() | Rejected():
            done = done if mode == "leased" else 0
            reason = None if isinstance(outcome, RetryLater) and outcome.free else outcome.reason
        case _:
            assert_never(outcome)
    for one in outcome.rejections:  # they come in the order of their messages
        if one.number in numbers[:done]:
            return numbers.index(one.number), one.reason
    return done, reason


def _letters(lease: Lease, passed: Sequence[Message], reasons: Mapping[int, str], now: Instant) -> tuple[Letter, ...]:
    """Letters for what is passed without delivery: messages with a reason, and those of parked keys."""
    if not reasons and not lease.parked:
        return ()
    cursor = lease.cursor
    found = []
    for one in passed:
        if one.key in lease.parked:
            parked = write(one, cursor, KEY_PARKED, 0, now)
            found.append(msgspec.structs.replace(parked, status=LetterStatus.PARKED))
        elif one.number in reasons:
            found.append(write(one, cursor, reasons[one.number], max(cursor.attempts, 1), now))
    return tuple(found)


def _stay(lease: Lease, ending: Ending) -> Advance:
    """An advance that gives the lease and its attempt back and changes nothing else."""
    cursor = lease.cursor
    return Advance(
        cursor.stream,
        cursor.consumer,
        cursor.partition,
        cursor.position,
        cursor.holder,
        cursor.token,
        ending,
        cursor.position,
        max(cursor.attempts - 1, 0),
        cursor.last_error,
        size=cursor.size,
        failures=cursor.failures,
        ref=lease.ref,
    )


def _paced(advance: Advance, lease: Lease, outcome: BatchOutcome, rules: Rules) -> Advance:
    """Add the size of the next turn and the time until then."""
    pace, cursor = rules.pace, lease.cursor
    own = outcome.after if isinstance(outcome, RetryLater) and advance.ending is Ending.RETRY else None
    if isinstance(outcome, RetryLater) and outcome.free:
        return msgspec.structs.replace(advance, after=own or 0)
    size = Size(pace.batch if cursor.size is None else cursor.size, cursor.failures)
    after = resized(size, advance.ending, advance.processed, len(handed_out(lease)), pace)
    return msgspec.structs.replace(
        advance,
        size=None if after.current >= pace.batch else after.current,
        failures=after.failures,
        after=rest(advance.ending, after.failures, pace) if own is None else own,
    )

"""Letters: messages that could not be delivered, kept in full until a user decides.

A letter is written in the same step that moves the cursor past its message, so no message is ever both skipped and
gone. `delivery` writes them; users list, replay and end them by the actions below, each judged by the letter's
status inside the write.

A user has a pending letter delivered again in one of two ways. *Replay* marks it due: the consumer delivers it in its
next turn on the partition, under that lease. *Claim* takes it out of the consumers' reach until a deadline, to be
delivered by the claimer; it is fenced by holder and token as every other claim. *Parked* letters belong to a parked
key and are delivered, in order, when the key is released.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias, assert_never

import msgspec

from stoker.model.errors import InvalidArgument, InvalidInput
from stoker.model.job import check_span
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.stream import Message, MessageId
from stoker.model.time import Instant, Span

DEFAULT_PAGE = 100
LARGEST_PAGE = 1_000


class LetterStatus(enum.StrEnum):
    """Where a letter is."""

    PENDING = "pending"
    PARKED = "parked"
    REPROCESSING = "reprocessing"
    RESOLVED = "resolved"
    DISCARDED = "discarded"


ENDED = frozenset({LetterStatus.RESOLVED, LetterStatus.DISCARDED})
"""Nothing happens to these any more; only they are cleaned up."""


class LetterPlace(NamedTuple):
    """Where a letter is in a listing: latest failure first, then by name and number, so that pages are stable."""

    failed: Instant
    stream: str
    consumer: str
    partition: int
    number: int

    @property
    def order(self) -> tuple[int, str, str, int, int]:
        return (-self.failed, self.stream, self.consumer, self.partition, self.number)


class Letter(msgspec.Struct, frozen=True):
    """A full copy of the message and what is known about its failure. `payload` is empty where the body was missing.

    `due`: the consumer is to deliver it again. `ended`: when it was resolved or discarded.
    """

    id: MessageId
    stream: str
    consumer: str
    partition: int
    number: int
    key: str
    payload: bytes
    type: str
    headers: dict[str, str]
    raw: bool
    created: Instant
    reason: str
    attempts: int
    failed: Instant
    status: LetterStatus = LetterStatus.PENDING
    due: bool = False
    holder: str | None = None
    token: int = 0
    until: Instant | None = None
    ended: Instant | None = None

    @property
    def place(self) -> LetterPlace:
        """Where a listing goes on after this letter."""
        return LetterPlace(self.failed, self.stream, self.consumer, self.partition, self.number)


def write(message: Message, cursor: Cursor, reason: str, attempts: int, now: Instant) -> Letter:
    """The letter for a message that will not be delivered."""
    return Letter(
        id=message.id,
        stream=cursor.stream,
        consumer=cursor.consumer,
        partition=message.partition,
        number=message.number,
        key=message.key,
        payload=message.payload or b"",
        type=message.type,
        headers=message.headers,
        raw=message.raw,
        created=message.created,
        reason=reason,
        attempts=attempts,
        failed=now,
    )


def message_of(letter: Letter) -> Message:
    """The message of a letter, to be delivered again. One that was never delivered has no attempts."""
    return Message(
        id=letter.id,
        key=letter.key,
        partition=letter.partition,
        number=letter.number,
        payload=letter.payload,
        type=letter.type,
        created=letter.created,
        headers=letter.headers,
        raw=letter.raw,
        attempts=0 if letter.status is LetterStatus.PARKED else letter.attempts,
    )


# --- what an advance does to letters --------------------------------------------------------------------------------


def merge(stored: Letter | None, new: Letter) -> Letter:
    """The letter to store where the message may have one already, because a user moved the cursor back.

    One that is ended is replaced; any other gets the new reason and one attempt more.
    """
    if stored is None or stored.status in ENDED:
        return new
    parked = new.status is LetterStatus.PARKED and stored.status is LetterStatus.PENDING
    return msgspec.structs.replace(
        stored,
        reason=new.reason,
        failed=new.failed,
        attempts=stored.attempts + 1,
        status=LetterStatus.PARKED if parked else stored.status,
        due=stored.due and not parked,
    )


def redelivered(letter: Letter, now: Instant) -> Letter:
    """A turn over letters delivered it. A letter that a user ended meanwhile stays as it is."""
    return letter if letter.status not in _IN_TURN else _ended(letter, LetterStatus.RESOLVED, now)


def failed_again(letter: Letter, reason: str, now: Instant) -> Letter:
    """Not delivered this time either, by a turn over letters: one attempt more, and the newest reason."""
    if letter.status not in _IN_TURN:
        return letter
    return msgspec.structs.replace(letter, reason=reason, attempts=letter.attempts + 1, failed=now, due=False)


_IN_TURN = frozenset({LetterStatus.PENDING, LetterStatus.PARKED})


# --- what users do --------------------------------------------------------------------------------------------------


class Count(msgspec.Struct, frozen=True):
    """Count the letters; nothing changes."""


class Replay(msgspec.Struct, frozen=True):
    """Have the consumer deliver pending letters again."""


class ClaimLetters(msgspec.Struct, frozen=True):
    """Take letters to deliver them oneself, for so long."""

    holder: str
    span: Span

    def __post_init__(self) -> None:
        check_span("span", self.span)
        if not self.span:
            raise InvalidInput("span", self.span, "must be longer than nothing")


class Resolve(msgspec.Struct, frozen=True):
    """The claimer delivered a letter."""

    holder: str
    token: int


class GiveBack(msgspec.Struct, frozen=True):
    """The claimer could not deliver a letter: it is pending again, with one attempt more and the newest reason."""

    holder: str
    token: int
    reason: str


class DiscardLetters(msgspec.Struct, frozen=True):
    """Give pending and parked letters up."""


class ResolveLetters(msgspec.Struct, frozen=True):
    """A user has dealt with pending and parked letters in another way."""


class RestoreLetters(msgspec.Struct, frozen=True):
    """Undo: letters that were resolved or discarded at this instant are pending again; None: those to be replayed are
    not to be.
    """

    ended: Instant | None = None


class Clean(msgspec.Struct, frozen=True):
    """Delete letters that were resolved or discarded so long ago."""

    older: Span


LetterAction: TypeAlias = (
    Count | Replay | ClaimLetters | Resolve | GiveBack | DiscardLetters | ResolveLetters | RestoreLetters | Clean
)


class LetterFilter(msgspec.Struct, frozen=True):
    """Which letters a user means; listing, counting and changing use the same one. None means any.

    `ids` are ids of messages. `limit` bounds how many are listed or changed in one step; `before` is the place of the
    last letter of the page before.
    """

    stream: str | None = None
    consumer: str | None = None
    status: LetterStatus | None = LetterStatus.PENDING
    key: str | None = None
    partition: int | None = None
    type: str | None = None
    ids: tuple[MessageId, ...] | None = None
    limit: int = DEFAULT_PAGE
    before: LetterPlace | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= LARGEST_PAGE:
            raise InvalidArgument("limit", self.limit, f"must be between 1 and {LARGEST_PAGE}")

    def matches(self, letter: Letter) -> bool:
        wanted = (self.stream, self.consumer, self.status, self.key, self.partition, self.type)
        given = (letter.stream, letter.consumer, letter.status, letter.key, letter.partition, letter.type)
        return (
            all(want is None or want == have for want, have in zip(wanted, given, strict=True))
            and (self.ids is None or letter.id in self.ids)
            and (self.before is None or letter.place.order > self.before.order)
        )


class Letters(msgspec.Struct, frozen=True):
    """The letters of a page, or those that were changed, as they are now; `n`: how many were counted or changed."""

    n: int
    letters: tuple[Letter, ...] = ()


def applicable(action: LetterAction | None) -> frozenset[LetterStatus]:
    """The statuses of letters that an action can apply to, or that are listed: `act` decides in the end."""
    match action:
        case Replay() | ClaimLetters():
            return frozenset({LetterStatus.PENDING, LetterStatus.REPROCESSING})
        case Resolve() | GiveBack():
            return frozenset({LetterStatus.REPROCESSING})
        case DiscardLetters() | ResolveLetters():
            return _IN_TURN
        case RestoreLetters(ended):
            return frozenset({LetterStatus.PENDING}) if ended is None else ENDED
        case Clean():
            return ENDED
        case Count() | None:
            return frozenset(LetterStatus)
        case _:
            assert_never(action)


def act(letter: Letter, action: LetterAction, now: Instant) -> Letter | None:
    """The letter after an action; None when the action does not apply to it."""
    match action:
        case Count():
            return letter
        case Replay() if _claimable(letter, now):
            return msgspec.structs.replace(letter, status=LetterStatus.PENDING, due=True, holder=None, until=None)
        case ClaimLetters(holder, span) if _claimable(letter, now):
            return msgspec.structs.replace(
                letter,
                status=LetterStatus.REPROCESSING,
                holder=holder,
                token=max(now, letter.token + 1),
                until=now + span,
            )
        case Resolve() if _held(letter, action):
            return _ended(letter, LetterStatus.RESOLVED, now)
        case GiveBack() if _held(letter, action):
            pending = msgspec.structs.replace(letter, status=LetterStatus.PENDING, holder=None, until=None)
            return failed_again(pending, action.reason, now)
        case DiscardLetters() if letter.status in _IN_TURN:
            return _ended(letter, LetterStatus.DISCARDED, now)
        case ResolveLetters() if letter.status in _IN_TURN:
            return _ended(letter, LetterStatus.RESOLVED, now)
        case RestoreLetters(None) if letter.due:
            return msgspec.structs.replace(letter, due=False)
        case RestoreLetters(int(ended)) if letter.ended == ended:
            return msgspec.structs.replace(letter, status=LetterStatus.PENDING, ended=None)
        case Clean(older) if letter.ended is not None and letter.ended + older <= now:
            return letter
        case Replay() | ClaimLetters() | Resolve() | GiveBack() | Clean():
            return None
        case DiscardLetters() | ResolveLetters() | RestoreLetters():
            return None
        case _:
            assert_never(action)


def _claimable(letter: Letter, now: Instant) -> bool:
    """Pending letters that no turn delivers, and those whose claimer let its deadline pass."""
    if letter.status is LetterStatus.REPROCESSING:
        return letter.until is None or letter.until <= now
    return letter.status is LetterStatus.PENDING and not letter.due


def _held(letter: Letter, claim: Resolve | GiveBack) -> bool:
    """This claim is still the letter's."""
    same = (letter.holder, letter.token) == (claim.holder, claim.token)
    return letter.status is LetterStatus.REPROCESSING and same


def _ended(letter: Letter, status: LetterStatus, now: Instant) -> Letter:
    return msgspec.structs.replace(letter, status=status, due=False, holder=None, until=None, ended=now)

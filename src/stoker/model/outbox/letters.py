"""Letters: messages that could not be delivered, kept in full until an operator decides.

A letter is written in the same step that moves the cursor past its message, so no message is ever both skipped and
gone. Called by `delivery` (which writes them) and by operators (who read, repeat and end them). Every
change of status is decided here, by the table below; a claim to reprocess is fenced by holder and token as every other
claim.
"""

from __future__ import annotations

import enum

import msgspec

from stoker.model.errors import InvalidInput, InvalidTransition
from stoker.model.outbox.stream import Message
from stoker.model.time import Instant

DEFAULT_PAGE = 100


class LetterStatus(enum.StrEnum):
    """Where a letter is."""

    PENDING = "pending"
    REPROCESSING = "reprocessing"
    RESOLVED = "resolved"
    DISCARDED = "discarded"


TABLE: dict[LetterStatus, frozenset[LetterStatus]] = {
    LetterStatus.PENDING: frozenset({LetterStatus.REPROCESSING, LetterStatus.DISCARDED}),
    LetterStatus.REPROCESSING: frozenset({LetterStatus.REPROCESSING, LetterStatus.RESOLVED, LetterStatus.PENDING}),
    LetterStatus.RESOLVED: frozenset(),
    LetterStatus.DISCARDED: frozenset(),
}
"""From reprocessing to reprocessing is a lapsed claim taken over."""


class Letter(msgspec.Struct, frozen=True):
    """A full copy of the message and what is known about its failure. `payload` is empty where the body was missing."""

    stream: str
    partition: int
    number: int
    payload: bytes
    payload_type: str
    created: Instant
    reason: str
    attempts: int
    failed: Instant
    status: LetterStatus = LetterStatus.PENDING
    holder: str | None = None
    token: int = 0
    until: Instant | None = None

    @property
    def label(self) -> str:
        """How errors and operators name it."""
        return f"{self.stream}/{self.partition}/{self.number}"


def write(message: Message, reason: str, attempts: int, now: Instant) -> Letter:
    """The letter for a message that will not be delivered."""
    return Letter(
        message.stream,
        message.partition,
        message.number,
        message.payload or b"",
        message.payload_type,
        message.created,
        reason,
        attempts,
        now,
    )


def claimable(letter: Letter, now: Instant) -> bool:
    """Pending letters, and those whose reprocessor let its deadline pass."""
    if letter.status is LetterStatus.REPROCESSING:
        return letter.until is None or letter.until <= now
    return letter.status is LetterStatus.PENDING


def claim(letter: Letter, holder: str, until: Instant, now: Instant) -> Letter:
    """Take a letter to try again until a deadline, under a token that only grows."""
    if not claimable(letter, now):
        raise _refused(letter, LetterStatus.REPROCESSING)
    if until <= now:
        raise InvalidInput("until", until, "must lie in the future")
    return msgspec.structs.replace(
        _to(letter, LetterStatus.REPROCESSING), holder=holder, token=max(now, letter.token + 1), until=until
    )


def held(letter: Letter, holder: str, token: int) -> bool:
    """The guard of `resolve` and `give_back`: this claim is still the letter's."""
    return letter.status is LetterStatus.REPROCESSING and (letter.holder, letter.token) == (holder, token)


def resolve(letter: Letter) -> Letter:
    """Delivered after all."""
    return _to(letter, LetterStatus.RESOLVED)


def give_back(letter: Letter, reason: str, now: Instant) -> Letter:
    """Not delivered this time either: one attempt more, and the newest reason."""
    back = _to(letter, LetterStatus.PENDING)
    return msgspec.structs.replace(back, reason=reason, attempts=letter.attempts + 1, failed=now)


def discard(letter: Letter) -> Letter:
    """Given up by an operator."""
    return _to(letter, LetterStatus.DISCARDED)


def removable(letter: Letter) -> bool:
    """Whether cleanup may delete it: only what an operator ended."""
    return not TABLE[letter.status]


def _to(letter: Letter, status: LetterStatus) -> Letter:
    if status not in TABLE[letter.status]:
        raise _refused(letter, status)
    return msgspec.structs.replace(letter, status=status, holder=None, until=None)


def _refused(letter: Letter, status: LetterStatus) -> InvalidTransition:
    return InvalidTransition(letter.status, status, letter.label, noun="letter")


class LetterFilter(msgspec.Struct, frozen=True):
    """Which letters an operator means; listing and counting use the same one. `status=None` means any."""

    stream: str | None = None
    partition: int | None = None
    payload_type: str | None = None
    status: LetterStatus | None = LetterStatus.PENDING
    limit: int = DEFAULT_PAGE

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise InvalidInput("limit", self.limit, "must be at least 1")

    def matches(self, letter: Letter) -> bool:
        wanted = (self.stream, self.partition, self.payload_type, self.status)
        given = (letter.stream, letter.partition, letter.payload_type, letter.status)
        return all(want is None or want == have for want, have in zip(wanted, given, strict=True))


def newest_first(letter: Letter) -> tuple[int, str, int, int]:
    """Sort key of a listing: latest failure first, then by place, so that pages are stable."""
    return (-letter.failed, letter.stream, letter.partition, letter.number)

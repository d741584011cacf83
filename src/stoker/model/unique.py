"""Unique keys: at most one active job per key.

The key is held by its pending or running job. While that job waits for a retry it holds the key *weakly*: a newcomer
ends it dead ("superseded") and takes the key, in one step. `hold="retrying"` makes the wait strong as well. Every step
that makes a keyed job active (insert, requeue, clone, schedule, move) calls `meet`, so a claim never has to.

With `for_` the success of a job keeps its key until so long after its enqueue. The key is then `Kept`: it needs no job
any more, and lapses by the store's clock.
"""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.time import SECOND, Instant, Seconds, span

Scope: TypeAlias = Literal["kind", "global"]
Mode: TypeAlias = Literal["existing", "replace", "raise"]
Hold: TypeAlias = Literal["active", "retrying"]

TRAITS = tuple((scope, mode, hold) for scope in get_args(Scope) for mode in get_args(Mode) for hold in get_args(Hold))
"""Every way a key can be meant. Stores write a way's place in this list, so nothing in it ever changes its place."""

LONGEST_KEY = 512
ALL_ARGUMENTS = "arguments:"
"""The key of a `Unique` without one, and the beginning of each key that is made of all arguments of a call."""

SUPERSEDED = "superseded by a newer job with the same unique key"


class Unique(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A key and what to do when it is taken. Without a key all arguments of the call are one (`of_arguments`).

    `existing` returns the holder's id, `replace` overwrites a holder that is still pending, `raise` refuses the
    whole call. With `longest` a draft that replaces may push the holder's due time to so many seconds after its
    enqueue, and no further; it is not stored with the job. `for_` seconds from the enqueue the key is held at least if
    the job succeeds, so that no other one runs meanwhile. With `digest` the store of a sealed app gets a keyed digest
    in place of the key.
    """

    key: str = ALL_ARGUMENTS
    scope: Scope = "kind"
    mode: Mode = "existing"
    hold: Hold = "active"
    longest: Seconds | None = None
    for_: Seconds | None = msgspec.field(default=None, name="for")
    digest: bool = False

    def __post_init__(self) -> None:
        given: object = self.key
        if given is True:
            raise InvalidInput("unique key", given, "is left out for all arguments, as in Unique(for_=3600)")
        keep_plain(self, key=check_text("unique key", self.key))
        for name, value, known in (
            ("scope", self.scope, get_args(Scope)),
            ("mode", self.mode, get_args(Mode)),
            ("hold", self.hold, get_args(Hold)),
        ):
            if value not in known:
                raise InvalidInput(f"Unique.{name}", value, f"must be one of {', '.join(known)}")
        for name in ("longest", "for_"):
            if (value := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, _positive(f"Unique.{name}", value))
        if self.longest is not None and self.mode != "replace":
            raise InvalidInput("Unique.longest", self.longest, 'needs mode="replace": only a replaced job waits longer')

    @property
    def is_of_arguments(self) -> bool:
        """Does it stand for all arguments of a call, which are not known yet?"""
        return self.key == ALL_ARGUMENTS

    def of_arguments(self, fingerprint: str) -> Unique:
        """The key of a call whose arguments have this fingerprint."""
        return msgspec.structs.replace(self, key=f"{ALL_ARGUMENTS}{fingerprint}")

    def slot(self, kind: str) -> str:
        """The one text under which engines store the key: no kind contains a slash, so scopes never collide."""
        return f"/{self.key}" if self.scope == "global" else f"{kind}/{self.key}"

    @property
    def stored(self) -> Unique:
        """The key as its job keeps it."""
        return self if self.longest is None else msgspec.structs.replace(self, longest=None)

    def kept_until(self, enqueued: Instant) -> Instant | None:
        """Until when the success of a job keeps the key; None: no longer than the job is active."""
        return None if self.for_ is None else enqueued + span(self.for_)

    def latest(self, due: Instant, first: Instant, before: Instant, now: Instant) -> Instant:
        """Due time of a job, stored at `first` and due at `before`, after a draft that asks for `due` replaces it.

        An overdue job keeps its place; no other one is moved into the past.
        """
        return due if self.longest is None else min(due, max(first + span(self.longest), min(before, now)))


def not_hidden(kind: str) -> InvalidInput:
    """The refusal of a key that cannot be hidden."""
    why = (
        "with digest=True needs the keys of a sealed app, Stoker(..., seal=Seal(...)); the key would be stored as it is"
    )
    return InvalidInput("unique", kind, why)


def _positive(field: str, value: Seconds) -> float:
    """Check a duration longer than nothing; returns it in seconds."""
    if not (micros := span(value, field)):
        raise InvalidInput(field, value, "must be longer than nothing")
    return micros / SECOND


def check_text(field: str, value: str) -> str:
    """Check a key or tenant, any text every engine can store, up to 512 bytes; returns it as a plain `str`."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(field, value, "must be a non-empty text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(field, value, "must not contain lone surrogates") from error
    if "\0" in value:
        raise InvalidInput(field, value, "must not contain NUL")
    if size > LONGEST_KEY:
        raise InvalidInput(field, value, f"must be at most {LONGEST_KEY} bytes")
    return plain(value)


def plain(text: str) -> str:
    """Return a text without its subclass, such as Django's `SafeString`: encoders refuse those."""
    return text if type(text) is str else str.__str__(text)


def keep_plain(struct: msgspec.Struct, **texts: object) -> None:
    """Store checked texts in a frozen struct that is being made, where they differ from what it was given."""
    for field, text in texts.items():
        if getattr(struct, field) is not text:
            msgspec.structs.force_setattr(struct, field, text)


class Kept(NamedTuple):
    """A key that a job which succeeded keeps for a time; it may be gone by now."""

    job: JobId
    until: Instant


class Holder(enum.Enum):
    """The state of the job that holds the key now."""

    NONE = "none"
    PENDING = "pending"
    RUNNING = "running"
    WEAK = "retrying, weak"
    STRONG = "retrying, strong"
    KEPT = "done, for a time"


class Meeting(enum.Enum):
    """What a draft does about the holder of its key."""

    TAKE = "take the key"
    SUPERSEDE = "end the holder and take the key"
    EXISTING = "keep the holder and return its id"
    REPLACE = "overwrite the holder"
    REFUSE = "raise Duplicate"


def meet(holder: Holder, mode: Mode) -> Meeting:
    """Decide for a draft that wants the key."""
    if holder is Holder.NONE:
        return Meeting.TAKE
    if holder is Holder.WEAK:
        return Meeting.SUPERSEDE
    if mode == "raise":
        return Meeting.REFUSE
    if mode == "replace" and holder is Holder.PENDING:
        return Meeting.REPLACE
    return Meeting.EXISTING

"""Job ids: UUIDv7 as 16 bytes, minted by the caller so that a repeated enqueue is the same job.

An id sorts by the millisecond it was minted in and, inside one process, strictly in minting order; a claim's last
tie-break rests on that. The mint is injected: production uses a compiled one, tests use `Mint` below, which is pure
because its clock and its entropy are arguments.

Some ids are not minted but derived, so that every process makes the same one: that of a schedule's `occurrence`, of a
`link` behind it. They can be foreseen, so they are UUIDs of version 8, in the same layout, and callers may not use
that version: a caller who took the id first would keep the schedule from its job.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from stoker.model.errors import InvalidArgument
from stoker.model.time import MILLISECOND, Instant

JobId: TypeAlias = bytes
"""Sixteen bytes; `text` shows them as a UUID."""

MINTED, DERIVED = 7, 8
"""The versions of minted and of derived ids."""

LEAST_DIGITS = 8
"""The fewest digits that name an id, if no other id begins with them."""

_COUNTER_BITS = 74
_COUNTER_TOP = 1 << _COUNTER_BITS


class Mint:
    """Makes strictly increasing UUIDv7s, also many in one millisecond and when the clock steps back.

    The 74 bits after the time start at a random value with the top bit clear and then count upwards, so ids of one
    millisecond keep their order; if they ever ran out, the mint borrows the next millisecond.
    """

    def __init__(self, clock: Callable[[], Instant], entropy: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._entropy = entropy
        self._last = (0, 0)

    def __call__(self) -> JobId:
        milli = self._clock() // MILLISECOND
        last_milli, last_count = self._last
        if milli > last_milli:
            count = int.from_bytes(self._entropy(10)) >> (80 - _COUNTER_BITS + 1)
        else:
            milli, count = last_milli, last_count + 1
            if count == _COUNTER_TOP:
                milli, count = milli + 1, 0
        self._last = (milli, count)
        return compose(milli, count)


def compose(milli: int, tail: int, version: int = MINTED) -> JobId:
    """Lay a millisecond and a 74-bit tail out as a UUID of variant 1."""
    high, low = tail >> 62, tail & ((1 << 62) - 1)
    return ((milli << 80) | (version << 76) | (high << 64) | (2 << 62) | low).to_bytes(16)


def occurrence(schedule: str, at: Instant) -> JobId:
    """The id of a schedule's job for one instant: the same in every process, however often it is made."""
    return compose(at // MILLISECOND, _tail(f"{schedule}@{at}".encode()), DERIVED)  # no name contains an @


def derived(job: JobId, label: str) -> JobId:
    """The id of what belongs to a job under this label: the same whenever it is made, of the same millisecond."""
    return compose(int.from_bytes(job[:6]), _tail(job + label.encode()), DERIVED)


def link(job: JobId, n: int) -> JobId:
    """The id of the `n`-th draft behind a job that a schedule makes."""
    return derived(job, f"then {n}")


def is_derived(job: JobId) -> bool:
    """Is it of the version that Stoker keeps for ids it derives?"""
    return job[6] >> 4 == DERIVED


def _tail(source: bytes) -> int:
    return int.from_bytes(hashlib.sha256(source).digest()) >> (256 - _COUNTER_BITS)


def minted_at(job: JobId) -> Instant:
    """The instant inside an id, to the millisecond: a time window over ids needs no other index."""
    return int.from_bytes(job[:6]) * MILLISECOND


def floor(at: Instant) -> JobId:
    """The smallest id that can have been minted at or after `at`'s millisecond."""
    return (max(at, 0) // MILLISECOND << 80).to_bytes(16)


def text(job: JobId) -> str:
    """An id as text, in the usual form of a UUID."""
    digits = job.hex()  # five times as fast as going through `uuid.UUID`, and every receipt passes here
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Shortened(NamedTuple):
    """What is known of an id that was cut: its first digits and perhaps its last."""

    head: str
    tail: str

    @property
    def first(self) -> JobId:
        """The smallest id that begins so."""
        return bytes.fromhex(self.head.ljust(32, "0"))

    def begins(self, job: JobId) -> bool:
        """Does an id begin so?"""
        return job.hex().startswith(self.head)

    def fits(self, job: JobId) -> bool:
        """Does an id begin and end so?"""
        return self.begins(job) and job.hex().endswith(self.tail)


_SHORTENED = re.compile(r"([0-9a-f-]+)(?:(?:…|\.\.\.)([0-9a-f-]*))?")


def shortened(value: str) -> Shortened | None:
    """Read an id as people write one: its first digits, eight at least, or `0190f3c2…9f1a`; None: it is none."""
    found = _SHORTENED.fullmatch(value.lower())
    if found is None:
        return None
    head, tail = (part.replace("-", "") for part in (found[1], found[2] or ""))
    return Shortened(head, tail) if len(head) >= LEAST_DIGITS and len(head) + len(tail) < 32 else None


def short(value: str) -> str:
    """An id as lists show it, `0190f3c2…9f1a`, which `shortened` reads."""
    return f"{value[:LEAST_DIGITS]}…{value[-4:]}"


SHORT = LEAST_DIGITS + 5
"""The length of such an id."""


def parse(value: str | uuid.UUID, what: str = "job id", why: str = "must be a UUID") -> JobId:
    """Read what `text` wrote (any spelling `uuid` knows); `what` it is and `why` it is refused, for the error."""
    try:
        return value.bytes if isinstance(value, uuid.UUID) else uuid.UUID(value).bytes
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(what, value, why) from error

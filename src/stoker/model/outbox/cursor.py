"""Cursors: how far each partition is delivered, and which processor may deliver it.

Two strategies take a partition. *Leased* writes a holder and a token into the cursor, commits, and lets the handler
work outside any transaction until a deadline; *transactional* keeps the cursor's row locked while the handler works.
Attempts count deliveries since the cursor last moved. A lease counts at its start, so that a crash is counted too; a
transaction counts at its end. What an outcome does to the cursor is decided in `delivery`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from stoker.model.errors import InvalidOption
from stoker.model.time import LONGEST, SECOND, Instant, Span

Strategy: TypeAlias = Literal["transactional", "leased"]


class Cursor(msgspec.Struct, frozen=True):
    """How far a partition is delivered, and by which processor. `vacuum` counts advances since the last sweep."""

    stream: str
    partition: int
    position: int = 0
    attempts: int = 0
    last_error: str | None = None
    holder: str | None = None
    token: int = 0
    until: Instant | None = None
    vacuum: int = 0


class Terms(msgspec.Struct, frozen=True):
    """How long a lease lasts, and how much of it is kept back to store the outcome in time."""

    lease: Span = 30 * SECOND
    headroom: Span = 2 * SECOND

    def __post_init__(self) -> None:
        if not 0 < self.lease <= LONGEST:
            raise InvalidOption("lease", self.lease, "must be longer than nothing and at most ten years")
        if not 0 <= self.headroom < self.lease:
            raise InvalidOption("headroom", self.headroom, f"must be less than the lease of {self.lease} µs")


def may_lease(cursor: Cursor, now: Instant) -> bool:
    """Whether the cursor is free: no holder, or its lease is over. The holder itself cannot take it sooner."""
    return cursor.holder is None or cursor.until is None or cursor.until <= now


def leased(cursor: Cursor, holder: str, now: Instant, terms: Terms) -> Cursor:
    """The cursor under a new lease, one attempt further, with a token that only grows."""
    return msgspec.structs.replace(
        cursor,
        holder=holder,
        token=max(now, cursor.token + 1),
        until=now + terms.lease,
        attempts=cursor.attempts + 1,
    )


def deadline(before: Instant, terms: Terms) -> Instant:
    """When the handler must be done.

    It is counted from before the lease was requested: a slow reply shortens the handler's time, not the safety margin.
    """
    return before + terms.lease - terms.headroom


def remaining(end: Instant, now: Instant) -> Span:
    """Time left for the handler. At zero no further message is started and the handler is stopped."""
    return max(end - now, 0)


def attempts_seen(cursor: Cursor, strategy: Strategy) -> int:
    """Earlier deliveries of this batch, as the handler sees them: the present lease does not count."""
    return max(cursor.attempts - 1, 0) if strategy == "leased" else cursor.attempts

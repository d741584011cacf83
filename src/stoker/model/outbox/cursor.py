"""Cursors: how far each partition is delivered to a consumer, and which worker may deliver it.

A worker takes a partition by a lease: holder and token are written into the cursor, the messages behind its position
are read in the same step, and the handler works outside any transaction of the engine's until a deadline. A handler
that writes in a transaction of its own advances the cursor in that transaction; the lease is the same.

Attempts count leases since the cursor last moved, so a crash is counted too. What an outcome does to the cursor is
decided in `delivery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from stoker.model.errors import InvalidInput, InvalidOption, NotFound
from stoker.model.job import check_name
from stoker.model.outbox.stream import Message
from stoker.model.time import LONGEST, SECOND, Instant, Span
from stoker.model.unique import keep_plain

LARGEST_BATCH = 10_000
LARGEST_READ = 4 << 20
"""Bytes of payload in one lease, at most; one message is always read."""

Start: TypeAlias = Literal["beginning", "end"] | Instant
"""Where a consumer begins: with all messages that are kept, with none of them, or with those of an instant."""


class Consumer(msgspec.Struct, frozen=True):
    """A named reader of a stream. `start` matters only when the store does not know it yet."""

    name: str
    start: Start = "beginning"

    def __post_init__(self) -> None:
        keep_plain(self, name=check_name("consumer", self.name))
        check_start(self.start)


def check_start(value: Start) -> None:
    """Check where a consumer is to begin."""
    if value not in ("beginning", "end") and (type(value) is not int or value < 0):
        raise InvalidInput("start", value, "must be 'beginning', 'end' or an instant")


class Cursor(msgspec.Struct, frozen=True):
    """How far a partition is delivered to a consumer, and by which worker.

    `due`: no lease before this instant. `served`: when it was leased last. `size`: messages in the next lease, None for
    as many as the worker wants. `failures` in a row. `parked`: how many keys of the partition are parked.
    """

    stream: str
    consumer: str
    partition: int
    position: int = 0
    attempts: int = 0
    last_error: str | None = None
    holder: str | None = None
    token: int = 0
    until: Instant | None = None
    due: Instant = 0
    served: Instant = 0
    size: int | None = None
    failures: int = 0
    parked: int = 0
    paused: bool = False


class Terms(msgspec.Struct, frozen=True):
    """How long a lease lasts, and how much of it is kept back to store the outcome in time."""

    lease: Span = 30 * SECOND
    headroom: Span = 2 * SECOND

    def __post_init__(self) -> None:
        if not 0 < self.lease <= LONGEST:
            raise InvalidOption("lease", self.lease, "must be longer than nothing and at most ten years")
        if not 0 <= self.headroom < self.lease:
            raise InvalidOption("headroom", self.headroom, f"must be less than the lease of {self.lease} µs")


class LeaseRequest(msgspec.Struct, frozen=True):
    """A request for a partition of a consumer, with the most messages and bytes."""

    stream: str
    consumer: str
    worker: str
    limit: int
    terms: Terms = Terms()
    bytes: int = LARGEST_READ

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= LARGEST_BATCH:
            raise InvalidInput("limit", self.limit, f"must be between 1 and {LARGEST_BATCH}")


class Lease(msgspec.Struct, frozen=True):
    """A partition in the hands of a worker, with what it is to deliver.

    Usually the messages behind the cursor; `parked` are keys among them whose messages must not reach the handler.
    With `released` they are the parked letters of that key, in order (none: all were discarded). With `replayed` it is
    one letter that a user wants delivered again. `more`: there is something behind these. `ref` is private to the
    engine, which finds the cursor by it.
    """

    cursor: Cursor
    messages: tuple[Message, ...]
    parked: frozenset[str] = frozenset()
    released: str | None = None
    replayed: bool = False
    more: bool = False
    ref: Any = None


class NothingDue(msgspec.Struct, frozen=True):
    """There is nothing to lease now. `after`: a partition becomes free or due then, whatever happens meanwhile.

    `numbering`: another session gives messages their numbers at this moment, so there may be more: look again soon.
    """

    after: Span | None = None
    numbering: bool = False


def free_at(cursor: Cursor, *, alive: bool) -> Instant:
    """When the cursor may be leased: not before it is due, nor before its lease ends while its holder is `alive`.

    The holder itself cannot take it sooner.
    """
    held = alive and cursor.holder is not None and cursor.until is not None
    return max(cursor.due, cursor.until or 0) if held else cursor.due


def may_lease(cursor: Cursor, now: Instant, *, alive: bool) -> bool:
    """Whether the cursor is free: not paused, due, and without a living holder whose lease goes on."""
    return not cursor.paused and free_at(cursor, alive=alive) <= now


def choose(ready: Iterable[Cursor], now: Instant, alive: Callable[[str], bool]) -> Cursor | NothingDue:
    """Of cursors that have something to deliver the free one that was served least recently.

    `alive`: whether a worker's own lease goes on.
    """
    best: Cursor | None = None
    soonest: Instant | None = None
    for cursor in ready:
        if cursor.paused:
            continue
        at = free_at(cursor, alive=cursor.holder is not None and alive(cursor.holder))
        if at > now:
            soonest = at if soonest is None else min(soonest, at)
        elif best is None or (cursor.served, cursor.partition) < (best.served, best.partition):
            best = cursor
    return best or NothingDue(None if soonest is None else soonest - now)


def leased(cursor: Cursor, holder: str, now: Instant, terms: Terms) -> Cursor:
    """The cursor under a new lease, one attempt further, with a token that only grows."""
    return msgspec.structs.replace(
        cursor,
        holder=holder,
        token=max(now, cursor.token + 1),
        until=now + terms.lease,
        attempts=cursor.attempts + 1,
        served=now,
    )


def wanted(cursor: Cursor, request: LeaseRequest) -> int:
    """How many messages a lease reads at most."""
    return request.limit if cursor.size is None else min(request.limit, cursor.size)


def fitting(sizes: Iterable[int], most: int) -> int:
    """How many payloads of these sizes fit into `most` bytes; the first one always does."""
    total = count = 0
    for size in sizes:
        total += size
        if count and total > most:
            break
        count += 1
    return count


def within(messages: Sequence[Message], most: int) -> tuple[Message, ...]:
    """The first messages whose payloads fit into `most` bytes."""
    sizes = [len(message.payload or b"") for message in messages]
    return tuple(messages if sum(sizes) <= most else messages[: fitting(sizes, most)])


def unregistered(request: LeaseRequest) -> NotFound:
    """The error of a lease for a consumer that the store does not know."""
    return NotFound(
        f"consumer {request.consumer!r} of stream {request.stream!r} is not registered, or was dropped. Nothing is "
        "delivered to it. Register it first."
    )


def deadline(before: Instant, terms: Terms) -> Instant:
    """When the handler must be done.

    It is counted from before the lease was requested: a slow reply shortens the handler's time, not the safety margin.
    """
    return before + terms.lease - terms.headroom


def remaining(end: Instant, now: Instant) -> Span:
    """Time left for the handler. At zero no further message is started and the handler is stopped."""
    return max(end - now, 0)


def attempts_seen(cursor: Cursor) -> int:
    """Earlier deliveries of this batch, as the handler sees them: the present lease does not count."""
    return max(cursor.attempts - 1, 0)

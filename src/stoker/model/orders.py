"""Orders to a worker from afar: claim no more, claim again, stop, tell where its handlers stand.

The store keeps what a worker was told as one document under its id, and each renewal of the worker's lease returns it:
an order needs no connection to the worker, and one whose reply was lost comes again with the next renewal. The worker
tells a new order from one that it has taken by its instant. A worker that is taken for dead gets another id, so its
orders are dropped with it. An order that a frozen worker does not take in time lapses: who gave it has long since acted
in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from stoker.model.control import STOPPED, Presence, is_silent
from stoker.model.errors import InvalidArgument, NotFound, WrongState, shown
from stoker.model.humanize import span
from stoker.model.time import MINUTE, SECOND, Instant, Span

Work: TypeAlias = Literal["quiet", "resume", "stop"]
Verb: TypeAlias = Literal[Work, "stack"]
VERBS: Final[tuple[Verb, ...]] = ("quiet", "resume", "stop", "stack")

LARGEST_STACK: Final = 16 * 1024
LARGEST_REPORT: Final = 128 * 1024
"""Bytes of the stack of one handler, and of those of all handlers of a worker."""

KEPT: Final[Span] = 10 * MINUTE
"""How long a report stays in the store."""

LAPSES: Final[Span] = 10 * MINUTE
"""How long after it was given a worker takes an order."""


class Orders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker was told last about its work, and when it was asked for its stacks last."""

    worker: str
    work: Work | None = None
    work_at: Instant = 0
    stack_at: Instant = 0


class Stand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a handler stands. `place` says what runs it, `more` counts further jobs of its chunk."""

    job: str
    kind: str
    place: str
    stack: str
    elapsed: Span = 0
    more: int = 0


class StackReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the handlers of a worker stood at an instant, in answer to the question of the instant `asked`."""

    worker: str
    asked: Instant
    at: Instant
    stands: tuple[Stand, ...] = ()
    left_out: int = 0


encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Orders).decode


def read(stored: bytes | str | None) -> Orders | None:
    """Return the orders that a renewal brought; None: there are none, or they cannot be read."""
    try:
        return None if stored is None else _read(stored)
    except msgspec.MsgspecError:
        return None


def ordered(before: Orders | None, worker: str, verb: Verb, now: Instant) -> Orders:
    """Return the orders of a worker with one more. Raises `WrongState` after a stop."""
    before = before or Orders(worker=worker)
    if verb == "stack":
        return replace(before, stack_at=max(now, before.stack_at + 1))
    if before.work == "stop" and not lapsed(before.work_at, now):
        raise WrongState(f"worker {worker}", "stopping", verb)
    return replace(before, work=verb, work_at=max(now, before.work_at + 1))


def lapsed(given: Instant, now: Instant) -> bool:
    """Whether an order that was not taken yet is taken no more."""
    return now - given > LAPSES


def new_work(orders: Orders, taken: Orders | None, now: Instant) -> Work | None:
    """Return what a worker has to do that has taken some orders already; None: nothing new."""
    new = taken is None or orders.work_at != taken.work_at
    return orders.work if new and not lapsed(orders.work_at, now) else None


def new_stack(orders: Orders, taken: Orders | None, now: Instant) -> Instant | None:
    """Return the instant of a question for stacks that was not answered yet."""
    before = 0 if taken is None else taken.stack_at
    return orders.stack_at if orders.stack_at != before and not lapsed(orders.stack_at, now) else None


def report(worker: str, asked: Instant, at: Instant, stands: Sequence[Stand]) -> StackReport:
    """Return a report that a store can take: of too many stacks it counts the last ones only."""
    room, kept = LARGEST_REPORT, list[Stand]()
    for one in stands:
        room -= len(encode(one))
        if room < 0:
            break
        kept.append(one)
    return StackReport(worker=worker, asked=asked, at=at, stands=tuple(kept), left_out=len(stands) - len(kept))


def outdated(reports: Sequence[StackReport], now: Instant) -> list[StackReport]:
    """Return the reports that have been kept for long enough."""
    return [one for one in reports if now - one.at > KEPT]


def find(given: str, presences: Sequence[Presence]) -> Presence:
    """Return the worker that is meant by an id, or by as much of it as fits one worker alone.

    That is its beginning, the beginning of the part behind the id of its supervisor, or both ends with `…` between.
    Raises `NotFound` and `InvalidArgument`.
    """
    exact = [one for one in presences if one.worker == given]
    head, _, tail = given.partition("…")
    found = exact or [one for one in presences if head and one.worker.endswith(tail) and _begins(one.worker, head)]
    if not found:
        raise NotFound(f"worker {shown(given)} is not in the store: `stoker workers` lists those that are known")
    if len(found) > 1:
        names = ", ".join(one.worker for one in found[:3])
        why = f"fits {len(found):,} workers, such as {names}; type more of it"
        raise InvalidArgument("worker", given, why)
    return found[0]


def _begins(worker: str, head: str) -> bool:
    return worker.startswith(head) or worker.rpartition(".")[2].startswith(head)


def check_takes(one: Presence, verb: Verb) -> None:
    """Refuse an order to a worker that has stopped: it will not renew its lease again."""
    if one.state == STOPPED:
        raise WrongState(f"worker {one.worker}", "stopped", verb)


def outlook(one: Presence, now: Instant) -> str:
    """Say what becomes of an order to a worker that has not shown itself lately; empty: it takes it at once."""
    if not is_silent(one, now):
        return ""
    ago = span((now - one.seen_at) // SECOND * SECOND)
    return (
        f"Worker {one.worker} has not shown itself for {ago}: it is frozen, dead or cut off from the store, or a "
        f"handler blocks its event loop. It takes the order when it renews its lease within {span(LAPSES)}, and not "
        "later. If another worker takes over its "
        f"jobs before, which it may after the lease of {span(one.lease)}, the order is dropped."
    )

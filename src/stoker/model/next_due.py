"""When waiting jobs can be claimed, and which of them are worth a wake-up now.

A worker that has nothing to do sleeps until the next job of its queues is due. It learns that time from the store
with every look, at least once per `SOON`. A job that becomes due sooner than that may be stored between two looks, so
storing it wakes a worker, which then learns the new time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stoker.model.control import Pause
from stoker.model.steps import NEVER
from stoker.model.throttle import Bucket, until_token
from stoker.model.time import SECOND, Instant, Span

SOON: Span = 2 * SECOND
"""A new job that is due within this time wakes a worker; one that is due later is found by the next look."""


class NextDue(NamedTuple):
    """What some queues hand out: which are open now, and how long until the next job or opening (None: unknown).

    `later`: when `wait` is 0, how long until the next job or opening behind what is due already.
    """

    open: frozenset[str]
    wait: Span | None
    later: Span | None = None


class Gate(NamedTuple):
    """One queue as the store has it: its pause, the end of its cool-down, its first due time and its tokens."""

    queue: str
    pause: Pause | None = None
    until: Instant | None = None
    due: Instant | None = None
    bucket: Bucket | None = None


def wakes(due: Instant, now: Instant) -> bool:
    """Does storing a job that is due then wake a worker?"""
    return due <= now + SOON


def next_due_of(gates: Iterable[Gate], now: Instant) -> NextDue:
    """What workers of these queues wait for.

    A paused queue opens at its end or by a wake-up, a cooling one at its deadline, one without tokens at the next.
    """
    hands_out: set[str] = set()
    waits: list[Span] = []
    for queue, pause, until, due, bucket in gates:
        if pause is not None and pause.lasts(now):
            if pause.until is not None:
                waits.append(pause.until - now)
            continue
        if until is not None and until > now:
            waits.append(until - now)
            continue
        token = 0 if bucket is None else until_token(bucket, now)
        if token == 0:
            hands_out.add(queue)
        if due is not None and due != NEVER:
            waits.append(max(token, due - now))
    return _of(hands_out, waits)


def together(parts: Sequence[NextDue]) -> NextDue:
    """What all these queues hand out, asked of several servers."""
    waits = [wait for one in parts for wait in (one.wait, one.later) if wait is not None]
    return _of(frozenset().union(*(one.open for one in parts)), waits)


def _of(hands_out: Iterable[str], waits: list[Span]) -> NextDue:
    first = min(waits, default=None)
    later = min((wait for wait in waits if wait > 0), default=None) if first == 0 else None
    return NextDue(frozenset(hands_out), first, later)

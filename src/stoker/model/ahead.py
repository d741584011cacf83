"""When waiting jobs can be claimed, and which of them are worth a wake-up now.

A worker that has nothing to do sleeps until the next job of its queues is due. It learns that time from the store
with every look, at least once per `SOON`. A job that becomes due sooner than that may be stored between two looks, so
storing it wakes a worker, which then learns the new time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stoker.model.time import SECOND, Instant, Span

SOON: Span = 2 * SECOND
"""A new job that is due within this time wakes a worker; one that is due later is found by the next look."""


class Ahead(NamedTuple):
    """What some queues hand out: which are open now, and how long until the next job or opening (None: unknown)."""

    open: frozenset[str]
    wait: Span | None


class Gate(NamedTuple):
    """One queue as the store has it: is it paused, until when does it cool down, when is its first job due."""

    queue: str
    paused: bool
    until: Instant | None
    due: Instant | None


def wakes(due: Instant, now: Instant) -> bool:
    """Does storing a job that is due then wake a worker?"""
    return due <= now + SOON


def look_ahead(gates: Iterable[Gate], now: Instant) -> Ahead:
    """What workers of these queues wait for. A paused queue opens by a wake-up, a cooling one at its deadline."""
    hands_out: set[str] = set()
    waits: list[Span] = []
    for gate in gates:
        if gate.paused:
            continue
        if gate.until is not None and gate.until > now:
            waits.append(gate.until - now)
            continue
        hands_out.add(gate.queue)
        if gate.due is not None:
            waits.append(max(0, gate.due - now))
    return Ahead(frozenset(hands_out), min(waits, default=None))

"""The life of a job as parts of a bar: in line, running, between attempts, suspended.

Made from the job's record and its events. Events expire before records and may lack a part; what is missing is then
drawn from the record alone, and time never runs backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from stoker.model.events import ENDS_A_RUN, Event, EventType
from stoker.model.job import ACTIVE, Job, Status
from stoker.model.time import Instant, Span

Phase: TypeAlias = Literal["waiting", "running", "between", "suspended", "died", "left_out"]

MOST_PARTS = 60
"""A bar has no more parts; the middle ones become one that says how many attempts it stands for."""

ENDS: Final = ENDS_A_RUN | {EventType.CANCELED}


class Part(msgspec.Struct, frozen=True):
    """A stretch of a job's life. `attempts` is how many it stands for where some are left out."""

    phase: Phase
    since: Instant
    until: Instant
    attempt: int = 0
    attempts: int = 0

    @property
    def length(self) -> Span:
        """How long it lasted."""
        return self.until - self.since


def life(job: Job, events: Sequence[Event], now: Instant) -> list[Part]:
    """The parts of a job's life up to now, oldest first, without those of no length."""
    parts: list[Part] = []
    at, attempt, running, suspended = job.created_at, 0, False, False

    def go(phase: Phase, until: Instant) -> None:
        nonlocal at
        if until > at:
            parts.append(Part(phase, at, until, attempt))
            at = until

    def rest(until: Instant) -> None:
        """What lies between two runs, or before the first one."""
        go("suspended" if suspended else "between" if attempt else "waiting", until)

    for event in sorted(events, key=lambda one: one.at):
        if event.type is EventType.STARTED:
            rest(event.at)
            attempt, running = event.attempt or attempt + 1, True
        elif event.type in ENDS and (running or event.duration is not None):
            if not running:  # its start is not kept
                rest(event.at - (event.duration or 0))
                attempt = event.attempt or attempt + 1
            go("died" if event.type is EventType.FAILED else "running", event.at)
            running, suspended = False, event.type is EventType.WAITING
    if job.status is Status.RUNNING:
        if not running and job.started_at is not None:
            rest(job.started_at)
            attempt = job.attempts
        go("running", now)
    elif job.suspended:
        go("waiting", job.started_at or at)
        go("suspended", min(job.scheduled_at, now))
        go("waiting", now)
    elif job.status in ACTIVE:
        go("between" if attempt or job.attempts else "waiting", now)
    elif job.finished_at is not None:
        if job.started_at is not None and job.started_at >= at and not running:
            rest(job.started_at)
            attempt, running = job.attempts, True
        if running:
            go("died" if job.status is Status.DEAD else "running", job.finished_at)
        else:
            rest(job.finished_at)
    return _bounded(parts)


def _bounded(parts: list[Part]) -> list[Part]:
    if len(parts) <= MOST_PARTS:
        return parts
    half = MOST_PARTS // 2
    middle = parts[half:-half]
    runs = sum(part.phase in {"running", "died"} for part in middle)
    return [*parts[:half], Part("left_out", middle[0].since, middle[-1].until, attempts=runs), *parts[-half:]]


def sums(parts: Sequence[Part]) -> dict[Phase, Span]:
    """How long each phase lasted in all; a run that died counts as running."""
    found: dict[Phase, Span] = {}
    for part in parts:
        phase: Phase = "running" if part.phase == "died" else part.phase
        found[phase] = found.get(phase, 0) + part.length
    return found

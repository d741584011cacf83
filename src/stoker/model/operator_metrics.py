"""What operators read that no store keeps: slots, how soon a queue is clear, keys that are taken.

Derived here once, from values that engines return, so that the command line, pages and metrics agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from stoker.model.control import Presence, live
from stoker.model.findings import Delivery
from stoker.model.job import Job, Status
from stoker.model.outbox.consumers import StreamState
from stoker.model.query import Census
from stoker.model.time import MINUTE, Instant, Span

K = TypeVar("K")

LONG_RUN: Span = 5 * MINUTE
"""A run without a timeout that takes longer is marked."""

# --- workers and slots ----------------------------------------------------------------------------------------------


def slots(queue: str, presences: Sequence[Presence], now: Instant) -> int:
    """How many jobs of a queue live workers can run at once."""
    return sum(one.queues.get(queue, 0) for one in live(presences, now))


def runs_long(job: Job, now: Instant) -> bool:
    """Whether a job without a timeout has been running for a long time."""
    started = job.started_at
    return job.status is Status.RUNNING and job.options.timeout is None and now - (started or now) > LONG_RUN


def became(job: Job | None, worker: str, now: Instant) -> str:
    """What became of a job that a worker ran when it was seen last: it still holds it, another one runs it, or its
    status since; `gone` where there is no record of it any more.
    """
    if job is None:
        return "gone"
    if job.status is not Status.RUNNING:
        return job.view(now)
    return "held" if job.worker == worker else "taken over"


# --- queues ---------------------------------------------------------------------------------------------------------


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What went in and out of a queue during some closed minutes that were counted; none: nothing is known yet."""

    minutes: int
    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0

    @property
    def growing(self) -> bool:
        """Whether more came in than went out."""
        return self.enqueued > self.completed + self.failed

    def clear_in(self, ready: int) -> Span | None:
        """How long the due jobs take at this rate; None: nothing ran, or it is not counted yet."""
        if not ready:
            return 0
        return None if not self.completed or not self.minutes else ready * self.minutes * MINUTE // self.completed

    def per_minute(self, n: int) -> float | None:
        """Divide a number by the minutes that were counted; None: none was yet."""
        return n / self.minutes if self.minutes else None


# --- streams --------------------------------------------------------------------------------------------------------


def deliveries(streams: Iterable[StreamState], now: Instant) -> list[Delivery]:
    """How long the oldest message of each consumer has waited, and its parked keys; a pause is no delay."""
    found: dict[tuple[str, str], Delivery] = {}
    for state in streams:
        for one in state.cursors:
            cursor = one.cursor
            place = state.stream.name, cursor.consumer
            before = found.get(place, Delivery(*place))
            waits = 0 if one.oldest is None or not one.waiting or cursor.paused else max(now - one.oldest, 0)
            found[place] = Delivery(
                *place,
                waits=max(before.waits, waits),
                parked=before.parked + cursor.parked,
                waiting=before.waiting + one.waiting,
            )
    return [found[place] for place in sorted(found)]


def per_second(before: Mapping[K, int], now: Mapping[K, int], seconds: float) -> dict[K, float]:
    """Growth per second of each counter in both readings; 0 for one that was set back, as a cursor may be."""
    return {key: max(now[key] - before[key], 0) / seconds for key in now if key in before}


# --- jobs -----------------------------------------------------------------------------------------------------------


def later_of(census: Census, kind: str, queues: Collection[str] = ()) -> int | None:
    """Pending jobs of a kind (in these queues) that are not due; None where the census does not tell them apart.

    The census counts such jobs by queue. What a kind has of them is known where a queue has none, where all that
    is pending in it is not due, or where no other kind waits in it.
    """
    pending: dict[str, dict[str, int]] = {}
    for one in census.counts:
        if one.status is Status.PENDING and (not queues or one.queue in queues):
            pending.setdefault(one.queue, {})[one.kind] = one.n
    found = 0
    for queue, kinds in pending.items():
        later = census.later.get(queue, 0)
        if kind not in kinds or not later:
            continue
        if later < sum(kinds.values()) and len(kinds) > 1:
            return None
        found += min(later, kinds[kind])
    return found


def keys_taken(wanted: Iterable[Job], active: Iterable[Job]) -> int:
    """How many of the wanted jobs cannot become active, because another job has their unique key.

    `active` are jobs that may hold keys. Of several wanted jobs with one key the first one gets it. A job that waits
    for a retry loses its key to another, unless its key is held while retrying.
    """
    held: dict[str, bytes] = {}
    for job in active:
        if job.unique is not None and (job.status is not Status.RETRYING or job.unique.hold == "retrying"):
            held[job.unique.slot(job.kind)] = job.id
    keyed = [(job.id, job.unique.slot(job.kind)) for job in wanted if job.unique is not None]
    return sum(held.setdefault(slot, id_) != id_ for id_, slot in keyed)

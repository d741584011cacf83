"""What an operator tunes and watches: queues, budgets, named locks, presences.

A tuning is a patch: None leaves a field as it is. Values out of range are pulled in where the meaning is plain (worker
counts, curves, retention) and refused where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stoker.model.job import check_name
from stoker.model.lifecycle import KEEP_DEAD, KEEP_DONE
from stoker.model.retry import OFF, Curve, clamped_curve
from stoker.model.throttle import OPEN, Bucket, Cooldown
from stoker.model.time import LONGEST, SECOND, Instant, Span

MOST_WORKERS = 64
SHOWN_WITHIN: Span = 20 * SECOND
"""A worker that has not shown itself for longer has no share of a limited queue."""

STOPPED = "stopped"
"""The state of a presence that will not come back."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a queue. `workers` is the cluster-wide number of slots; None there means: whatever workers bring."""

    paused: bool | None = None
    workers: int | None = None
    keep_done: Span | None = None
    keep_dead: Span | None = None
    curve: Curve | None = None


class Rate(msgspec.Struct, frozen=True):
    """Settings of a budget: at most `capacity` at once, `rate` per second in the long run."""

    capacity: float
    rate: float


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as stored. One that was never tuned acts like `Queue(name=…)`."""

    name: str
    paused: bool = False
    workers: int | None = None
    keep_done: Span = KEEP_DONE
    keep_dead: Span = KEEP_DEAD
    curve: Curve = OFF
    cooldown: Cooldown = OPEN


class Budget(msgspec.Struct, frozen=True):
    """A budget as stored."""

    name: str
    bucket: Bucket


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports about itself, for operators and for counting slots. Its lease decides whether it lives.

    `kinds` maps each kind the worker can run to the path of its function: module and name.
    """

    worker: str
    host: str
    pid: int
    queues: dict[str, int]
    kinds: dict[str, str] = {}
    running: int = 0
    version: str = ""
    state: str = "running"
    seen_at: Instant = 0


class NamedLock(msgspec.Struct, frozen=True, gc=False):
    """A named lock as stored: the owner has it until `until`."""

    owner: str
    until: Instant


def guardian_of(worker: str) -> str | None:
    """The supervisor of a worker, read from its id `supervisor.worker`; None: it has none.

    A supervisor sees how its workers die and reports it, so other workers do not reap them while the supervisor lives.
    """
    guardian, _, _ = worker.rpartition(".")
    return guardian or None


def tuned(queue: Queue, tuning: Tuning) -> Queue:
    """The queue after the patch, every value within its bounds."""
    check_name("queue", queue.name)
    changes: dict[str, object] = {}
    if tuning.paused is not None:
        changes["paused"] = tuning.paused
    if tuning.workers is not None:
        changes["workers"] = min(max(tuning.workers, 0), MOST_WORKERS)
    if tuning.keep_done is not None:
        changes["keep_done"] = min(max(tuning.keep_done, 0), LONGEST)
    if tuning.keep_dead is not None:
        changes["keep_dead"] = min(max(tuning.keep_dead, 0), LONGEST)
    if tuning.curve is not None:
        changes["curve"] = clamped_curve(tuning.curve)
    return msgspec.structs.replace(queue, **changes)


def may_take(lock: NamedLock | None, owner: str, now: Instant) -> bool:
    """Whether a lock can be taken: it is free, lapsed, or held by `owner`, who extends it."""
    return lock is None or lock.until <= now or lock.owner == owner


def may_release(lock: NamedLock | None, owner: str) -> bool:
    """Whether `owner` holds the lock and so may release it."""
    return lock is not None and lock.owner == owner


def shares(total: int, hosts: list[str]) -> dict[str, int]:
    """Split a queue's slots among the hosts that serve it: 10 over 3 gives 4, 3, 3 in host order."""
    if not hosts:
        return {}
    each, rest = divmod(max(total, 0), len(hosts))
    return {host: each + (index < rest) for index, host in enumerate(sorted(hosts))}


def share_of(worker: str, queue: Queue, presences: Sequence[Presence]) -> int | None:
    """How many slots of a queue are this worker's by `Tuning.workers`; None: the queue is not limited.

    A worker that serves the queue reports itself every few seconds; one that no longer does has no share.
    """
    if queue.workers is None:
        return None
    serving = [one.worker for one in live(presences) if queue.name in one.queues]
    return shares(queue.workers, serving).get(worker, 0)


def live(presences: Sequence[Presence]) -> list[Presence]:
    """The workers that reported themselves lately and have not stopped."""
    newest = max((one.seen_at for one in presences), default=0)
    return [one for one in presences if one.state != STOPPED and newest - one.seen_at <= SHOWN_WITHIN]


class Clash(msgspec.Struct, frozen=True):
    """Two workers run different functions under one kind: `here` is the own one, `there` the one of `worker`."""

    kind: str
    here: str
    there: str
    worker: str
    host: str


def clashes(kinds: Mapping[str, str], presences: Sequence[Presence]) -> list[Clash]:
    """What live workers run under a kind of these, but from another place; one for each kind and place."""
    found: dict[tuple[str, str], Clash] = {}
    for other in live(presences):
        for kind, there in other.kinds.items():
            here = kinds.get(kind, there)
            if here != there:
                found.setdefault((kind, there), Clash(kind, here, there, other.worker, other.host))
    return list(found.values())

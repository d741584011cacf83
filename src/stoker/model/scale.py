"""How many worker processes the work of some queues needs, and how a supervisor follows that number.

Jobs count that can start within the target wait once there are slots enough. Those that are not due, and those that a
pause, a cool-down, a rate or a limit holds for longer, need no process: it would have nothing to claim.

*Slots.* A slot starts a job at once and the next one when that has run, so within a wait `w` it starts `(w + d) / d`
jobs of run time `d`. A queue with `c` such jobs, of which `r` more run, needs `(r + c) * d / (w + d)` slots, and never
fewer than run now. Jobs that take long need a slot each; quick ones share.

*Run times* are measured when runs end, so a few quick ones are known long before the first slow one. What runs now
counts, too: the longest run as one more measurement, and as one for each that runs while fewer have ended.

*Following.* A supervisor grows to a larger number at once. It shrinks to the largest number of the last while, so that
a queue which empties and fills again keeps its processes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from stoker.model.control import Queue
from stoker.model.errors import InvalidInput
from stoker.model.events import Point
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Bucket, level
from stoker.model.time import HOUR, SECOND, Instant, Span

TARGET_WAIT: Span = 10 * SECOND
LONGEST_TARGET: Span = HOUR

UNMEASURED: Span = SECOND
"""The run time of a job is taken to be this, or as long as the longest run so far, until one has been measured."""

MOST_PROCESSES = 256

Holder: TypeAlias = Literal["pause", "cooldown", "workers", "rate", "limit"]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a queue at one instant.

    `due` are the waiting jobs whose time has come, retries included. `run_time` is the mean of `measured` runs of the
    kinds that wait; None: there was none. `oldest` is how long the longest run has lasted. `subqueues` are those of the
    queue, counted. `slots` is how many jobs of the queue one process runs at once.
    """

    queue: Queue
    due: int = 0
    running: int = 0
    run_time: Span | None = None
    measured: int = 0
    oldest: Span = 0
    subqueues: Sequence[SubqueueView] = ()
    slots: int = 10


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What the work of a queue needs: so many slots, hence so many processes.

    `claimable` are its due jobs that nothing holds: the queue is open, a place of their limit is free, and there is a
    token for them within the target wait. The others are `held`, because of `held_by`.
    """

    queue: str
    processes: int
    slots_needed: int
    slots: int
    claimable: int
    held: int
    running: int
    run_time: Span
    held_by: tuple[Holder, ...] = ()


def need(work: Work, now: Instant, wait: Span = TARGET_WAIT) -> Need:
    """What a queue needs so that its jobs start within `wait`. 0 only if none is claimable or runs."""
    run = _run(work)
    claimable, held_by = _starts(work, now, run, 0, wait)
    starts, _ = _starts(work, now, run, wait, wait)
    slots_needed = max(work.running, -(-(work.running + starts) * run // (wait + run)))
    return Need(
        queue=work.queue.name,
        processes=-(-slots_needed // work.slots),
        slots_needed=slots_needed,
        slots=work.slots,
        claimable=claimable,
        held=work.due - claimable,
        running=work.running,
        run_time=run,
        held_by=held_by,
    )


def _run(work: Work) -> Span:
    """How long a run of the queue is expected to take: what was measured, and what runs now."""
    if work.run_time is None:
        return max(UNMEASURED, work.oldest)
    weight = 1 if work.measured >= work.running else work.running
    mixed = (work.run_time * work.measured + work.oldest * weight) // (work.measured + weight)
    return max(work.run_time, mixed, 1)


def _starts(work: Work, now: Instant, run: Span, places: Span, tokens: Span) -> tuple[int, tuple[Holder, ...]]:
    """How many due jobs can start, and what holds the others.

    Places of limits count that become free within `places`, and tokens of rates that come within `tokens`.
    """
    queue = work.queue
    if queue.is_paused(now):
        return 0, ("pause",) if work.due else ()
    if queue.cooldown.shut(now):
        return 0, ("cooldown",) if work.due else ()
    found = max(work.due - sum(one.waiting or 0 for one in work.subqueues), 0)  # the main line
    for one in work.subqueues:
        bounds = _within_limit(one.most, one.running, run, places), _within_rate(one.bucket, now, tokens)
        found += min(one.waiting or 0, *bounds)
    held_by: list[Holder] = ["limit"] if found < work.due else []
    holders: dict[Holder, int] = {
        "workers": _within_limit(queue.workers, work.running, run, places),
        "rate": _within_rate(queue.bucket, now, tokens),
    }
    for holder, bound in holders.items():
        if bound < found:
            found = bound
            held_by.append(holder)
    return min(found, work.due), tuple(held_by)


ANY_NUMBER = 1 << 62


def _within_limit(most: int | None, running: int, run: Span, wait: Span) -> int:
    """How many jobs start within `wait` where at most so many run at once: now, and again whenever one has run."""
    return ANY_NUMBER if most is None else max(most * (wait + run) // run - running, 0)


def _within_rate(bucket: Bucket | None, now: Instant, wait: Span) -> int:
    """How many whole tokens there are within `wait`: those at hand, and those that come."""
    if bucket is None:
        return ANY_NUMBER
    return max(math.floor(level(bucket, now) + bucket.rate.refill * wait / SECOND), 0)


def processes(needs: Iterable[Need], *, shared: int | None = None, awaited: bool = False) -> int:
    """How many processes serve all these queues, each with slots of its own, or with `shared` slots for all.

    `awaited`: a schedule is due or a message waits, which take one process, with whatever slots.
    """
    if shared is None:
        found = max((one.processes for one in needs), default=0)
    else:
        found = -(-sum(one.slots_needed for one in needs) // shared)
    return max(found, int(awaited))


class Measured(NamedTuple):
    """A mean run time, and of how many runs it is."""

    mean: Span
    runs: int


def run_times(points: Iterable[Point]) -> dict[str, Measured]:
    """The mean of some measured times, by what the points are of."""
    sums: dict[str, tuple[float, int]] = {}
    for one in points:
        total, n = sums.get(one.queue, (0.0, 0))
        sums[one.queue] = total + one.sum, n + one.count
    return {name: Measured(round(total / n), n) for name, (total, n) in sums.items() if n}


def expected_run(jobs: Mapping[str, int], known: Mapping[str, Measured]) -> Measured | None:
    """The mean run time of so many jobs of each kind; kinds that were never measured do not count. None: none was."""
    measured = {kind: n for kind, n in jobs.items() if kind in known and n > 0}
    total = sum(measured.values())
    if not total:
        return None
    mean = round(sum(known[kind].mean * n for kind, n in measured.items()) / total)
    return Measured(mean, sum(known[kind].runs for kind in measured))


# --- following ------------------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """Between how many processes a supervisor follows the work."""

    least: int
    most: int

    def pull(self, wanted: int) -> int:
        """The number within the bounds that is next to the one that is wanted."""
        return min(max(wanted, self.least), self.most)


def read_bounds(text: str) -> Bounds:
    """Read `auto:1-8`; refuses what is none."""
    match = re.fullmatch(r"auto:(\d{1,3})-(\d{1,3})", text, re.ASCII)
    found = Bounds(0, 0) if match is None else Bounds(int(match[1]), int(match[2]))
    if not 1 <= found.least <= found.most <= MOST_PROCESSES:
        raise InvalidInput("processes", text, f"must be 1 to {MOST_PROCESSES}, or bounds as in auto:1-8")
    return found


def share(wanted: int, hosts: int) -> int:
    """How many of the wanted processes one of some hosts runs."""
    return -(-wanted // max(hosts, 1))


def next_size(size: int, wishes: Sequence[int], bounds: Bounds) -> int:
    """The number of processes after some wishes, the latest of which is the last: those of the last while.

    It grows to the latest wish at once, and shrinks to the largest of them all.
    """
    latest = bounds.pull(wishes[-1])
    return latest if latest >= size else min(size, bounds.pull(max(wishes)))

"""What a worker is and holds at the moment: id, phase, claims, unwritten outcomes; its parts share it as a context."""

from __future__ import annotations

import functools
import os
import resource
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stoker.model import ids
from stoker.model.control import MOST_SHOWN, QUIET, Presence
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Claim, Settlement, Status
from stoker.model.time import SECOND
from stoker.release import release
from stoker.worker.fetcher import SMALLEST

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine
    from stoker.model.measures import Recorder
    from stoker.outage import Outage
    from stoker.settings import WorkerSettings
    from stoker.worker.due_timer import DueTimer
    from stoker.worker.emit_buffer import EmitBuffer
    from stoker.worker.event_publisher import EventPublisher
    from stoker.worker.failures import FailureLog
    from stoker.worker.fetcher import Fetcher
    from stoker.worker.progress_buffer import ProgressBuffer
    from stoker.worker.running import RunningJobs
    from stoker.worker.task_runners import TaskRunners

lease_clock: Callable[[], float] = functools.partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Returns seconds of a clock that also runs while the machine sleeps, as leases do; where there is one."""


class WorkerState:
    """The parts of a worker share it; they read it on the worker's loop, the lease keeper reads `id` in its thread.

    `phase` is new, starting, running, stopping or stopped. `healthy`: the lease holds. `quiet`: a user asked to claim
    no more. `lost` counts outcomes that the store refused because their claim had passed on. `hour` is how many runs
    succeeded and failed in each of the last minutes. `heard`: the store's time of the last claim, and when the
    worker heard of it, by the monotonic clock.
    """

    def __init__(self, *, draining: bool) -> None:
        self._supervisor: str | None = None
        self.id = self.next_id()
        self.phase = "new"
        self.healthy = False
        self.quiet = False
        self.draining = draining
        self.counts = dict.fromkeys(Status, 0)
        self.began = time.monotonic()
        self.hour: deque[tuple[int, int]] = deque(maxlen=60)
        self.lost = 0
        self.heard = (0, 0.0)
        self.on_identity: Callable[[str], object] = lambda _worker: None

    @property
    def running(self) -> bool:
        """Has the worker started, and has no stop begun?"""
        return self.phase == "running"

    @property
    def taking(self) -> bool:
        """May the worker claim?"""
        return self.healthy and self.phase == "running" and not self.quiet

    def next_id(self) -> str:
        """Return a fresh random id: no id is used twice, not even by the same process after a lapse."""
        return uuid.uuid4().hex if self._supervisor is None else f"{self._supervisor}.{uuid.uuid4().hex}"

    def supervised_by(self, supervisor: str | None) -> None:
        """Make the id of a supervisor a part of every id of this worker."""
        self._supervisor = supervisor
        self.id = self.next_id()

    def rename(self, fresh: str) -> None:
        """Continue under a new id: the lease of the old one was lost."""
        self.id = fresh
        self.healthy = False
        self.on_identity(fresh)


class HeldClaims:
    """The claims of a worker, and until when its lease makes them safe.

    `tokens`: every claim of this worker, running or prefetched: its fence by job.

    `safe_until`: the end of the current lease by `lease_clock`; written by the lease keeper.
    `unstarted`: the claims that were handed back when the lease had passed.
    """

    def __init__(self) -> None:
        self.tokens: dict[JobId, int] = {}
        self.safe_until = inf
        self.unstarted: frozenset[tuple[JobId, int]] = frozenset()


class Reason(Enum):
    """Why an outcome is set aside."""

    HELD = auto()
    """Another transaction holds the unique key of a follow-up."""
    REJECTED = auto()
    """The store accepts it in no form."""


class SetAside(NamedTuple):
    """An outcome that does not go with the next call, and why."""

    claim: Claim
    settlement: Settlement
    reason: Reason


class UnwrittenOutcomes:
    """Outcomes that are decided but not written. `most`: with so many buffered ones the slots pause.

    Buffered ones go with the next call. They are two lists, because an engine takes settlements as a list; both are
    never replaced: the slots keep references to them. Those in `aside` wait for a reason; the resender sends them.
    `flying` are the claims of each write that is under way.
    """

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch or SMALLEST
        self.most = 20 * self.batch
        self._adapts = batch is None
        self.claims: list[Claim] = []
        self.settlements: list[Settlement] = []
        self.aside: list[SetAside] = []
        self.flying: list[list[Claim]] = []

    def follow(self, batch: int) -> None:
        """Set the batch size, unless a setting fixes it."""
        if self._adapts:
            self.batch = batch

    def __len__(self) -> int:
        return len(self.settlements)

    @property
    def full(self) -> bool:
        """Is there a whole batch?"""
        return len(self.settlements) >= self.batch

    def put(self, claim: Claim, settlement: Settlement) -> None:
        """Buffer one outcome."""
        self.claims.append(claim)
        self.settlements.append(settlement)

    def take(self) -> tuple[list[Claim], list[Settlement]]:
        """Remove and return as many buffered outcomes as one atomic write may hold."""
        taken = self.claims[:LARGEST_BATCH], self.settlements[:LARGEST_BATCH]
        del self.claims[:LARGEST_BATCH]
        del self.settlements[:LARGEST_BATCH]
        return taken

    def put_back(self, claims: list[Claim], settlements: list[Settlement]) -> None:
        """Put outcomes back after a failed write; they go first next time."""
        self.claims[:0] = claims
        self.settlements[:0] = settlements

    def landed(self, claims: list[Claim]) -> None:
        """Forget a write that was put into `flying`: it is over."""
        self.flying[:] = [others for others in self.flying if others is not claims]

    @property
    def in_flight(self) -> frozenset[JobId]:
        """The jobs whose settlement is being written."""
        return frozenset([claim.id for claims in self.flying for claim in claims])

    def set_aside(self, claim: Claim, settlement: Settlement, reason: Reason) -> None:
        """Keep an outcome out of the next calls."""
        self.aside.append(SetAside(claim, settlement, reason))

    def take_up(self, outcomes: Sequence[SetAside]) -> None:
        """Remove outcomes that were set aside: they are written, or buffered again."""
        gone = {id(one) for one in outcomes}
        self.aside[:] = [one for one in self.aside if id(one) not in gone]

    @property
    def held(self) -> list[SetAside]:
        """Those that wait for another transaction, the first first."""
        return [one for one in self.aside if one.reason is Reason.HELD]

    @property
    def rejected(self) -> list[SetAside]:
        """Those that the store rejects, the first first."""
        return [one for one in self.aside if one.reason is Reason.REJECTED]


@cache
def version() -> str:
    """Return Stoker's version. Read when shown: a process that only runs handlers never needs it."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("stoker")
    except PackageNotFoundError:  # running from a bare checkout
        return "unknown"


def kinds(app: Stoker) -> dict[str, str]:
    """Return the kinds that workers of an app can run, each with the path of its function."""
    return {kind: task.path for kind, task in app.tasks.items()}


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What the parts of a worker share between a start and the stop that follows."""

    app: Stoker
    engine: Engine
    settings: WorkerSettings
    state: WorkerState
    claims: HeldClaims
    fetcher: Fetcher
    running_jobs: RunningJobs
    outcomes: UnwrittenOutcomes
    task_runners: TaskRunners
    progress: ProgressBuffer
    emits: EmitBuffer
    publisher: EventPublisher
    due_timer: DueTimer
    failures: FailureLog
    outage: Outage
    recorder: Recorder | None

    def presence(self) -> Presence:
        """Return what the worker shows of itself in the store, as it is now."""
        timeline = self.app.timeline
        return Presence(
            worker=self.state.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues={queue: lane.slots for lane in self.fetcher.lanes for queue in lane.queues},
            kinds=kinds(self.app),
            running=len(self.running_jobs.runs),
            jobs=tuple(map(ids.text, islice(list(self.running_jobs.runs), MOST_SHOWN))),
            uptime=round((time.monotonic() - self.state.began) * SECOND),
            memory=resident(),
            hour=tuple(self.state.hour),
            version=version(),
            release=release(),
            state=QUIET if self.state.running and self.state.quiet else self.state.phase,
            held=self.failures.held,
            lease=self.settings.lease,
            dropped=0 if timeline is None else timeline.lost,
        )


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except OSError:  # not Linux: the peak, which macOS counts in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

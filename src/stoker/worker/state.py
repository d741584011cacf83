"""What a worker is at the moment: id, phase, what it holds and counts, and the presence that it shows in the store."""

from __future__ import annotations

import functools
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import TYPE_CHECKING

from stoker.model.control import Presence
from stoker.model.ids import JobId
from stoker.model.job import Status

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine
    from stoker.model.measures import Recorder
    from stoker.settings import WorkerSettings
    from stoker.worker.due_timer import DueTimer
    from stoker.worker.event_publisher import EventPublisher
    from stoker.worker.failures import FailureLog
    from stoker.worker.fetcher import Fetcher
    from stoker.worker.outage import Outage
    from stoker.worker.progress_buffer import ProgressBuffer
    from stoker.worker.running import RunningJobs
    from stoker.worker.store_loop import OutcomeBuffer
    from stoker.worker.task_runners import TaskRunners

lease_clock: Callable[[], float] = functools.partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Returns seconds of a clock that also runs while the machine sleeps, as leases do; where there is one."""


class WorkerState:
    """The parts of a worker share it; they read it on the worker's loop, the lease keeper reads `id` in its thread.

    `phase` is new, starting, running, stopping or stopped. `healthy`: the lease holds. `quiet`: a user asked to claim
    no more. `lost` counts outcomes that the store refused because their claim had passed on.
    """

    def __init__(self, *, draining: bool) -> None:
        self._supervisor: str | None = None
        self.id = self.next_id()
        self.phase = "new"
        self.healthy = False
        self.quiet = False
        self.draining = draining
        self.counts = dict.fromkeys(Status, 0)
        self.lost = 0
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
    outcomes: OutcomeBuffer
    task_runners: TaskRunners
    progress: ProgressBuffer
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
            version=version(),
            state=self.state.phase,
            held=self.failures.held,
            lease=self.settings.lease,
            dropped=0 if timeline is None else timeline.lost,
        )

"""What a worker is at the moment: id, phase, what it holds and counts, and the presence that it shows in the store."""

from __future__ import annotations

import functools
import os
import socket
import time
import uuid
from collections.abc import Callable
from functools import cache
from math import inf
from typing import TYPE_CHECKING

from stoker.model.control import Presence
from stoker.model.ids import JobId
from stoker.model.job import Status

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.worker.worker import Worker

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


def presence(worker: Worker) -> Presence:
    """Return the presence of a worker as it is now."""
    return Presence(
        worker=worker.id,
        host=socket.gethostname(),
        pid=os.getpid(),
        queues={queue: lane.slots for lane in worker.lanes for queue in lane.queues},
        kinds=kinds(worker.app),
        running=worker.runs,
        version=version(),
        state=worker.state,
        held=worker.failures.held,
        lease=worker.settings.lease,
        dropped=0 if worker.app.timeline is None else worker.app.timeline.lost,
    )

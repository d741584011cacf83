"""Workers for operators: who is there, what they serve and what they run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from stoker import records
from stoker.admin.asking import Asking
from stoker.model.control import Presence
from stoker.model.derived import is_silent, runs_long
from stoker.model.job import Status
from stoker.model.query import LARGEST_PAGE, Query
from stoker.model.time import Instant, moment

SILENT = "silent"


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it reported itself last. `state` is running, stopping, silent (not seen for 10 s) or stopped."""

    worker: str
    host: str
    pid: int
    state: str
    queues: dict[str, int]
    kinds: tuple[str, ...]
    slots: int
    running: int
    version: str
    seen_at: datetime


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs; `long` marks one that has run for over five minutes without a timeout."""

    job: records.Job
    long: bool


class WorkersAdmin:
    """Questions about workers."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def jobs(self, worker: str | None = None) -> list[RunningJob]:
        """What a worker runs, or all workers run, the longest running first."""
        engine = await self._asking.engine()
        now = await engine.now()
        query = Query(statuses=frozenset({Status.RUNNING}), limit=LARGEST_PAGE)
        found: list[RunningJob] = []
        while True:
            page = await engine.find(query)
            found += [
                RunningJob(job=self._asking.job(job), long=runs_long(job, now))
                for job in page.jobs
                if worker is None or job.worker == worker
            ]
            if page.cursor is None:
                return sorted(found, key=lambda one: (one.job.started_at is None, one.job.started_at))
            query = msgspec.structs.replace(query, cursor=page.cursor)

    async def list(self) -> list[WorkerView]:
        """Every worker that reported itself and was not forgotten yet, by id."""
        engine = await self._asking.engine()
        presences = await engine.workers()
        return worker_views(presences, await engine.now())


def worker_views(presences: Sequence[Presence], now: Instant) -> list[WorkerView]:
    """Each worker as it reported itself last, silent ones marked."""
    return [_view(one, SILENT if is_silent(one, now) else one.state) for one in presences]


def _view(one: Presence, state: str) -> WorkerView:
    return WorkerView(
        worker=one.worker,
        host=one.host,
        pid=one.pid,
        state=state,
        queues=one.queues,
        kinds=tuple(sorted(one.kinds)),
        slots=sum(one.queues.values()),
        running=one.running,
        version=one.version,
        seen_at=moment(one.seen_at),
    )

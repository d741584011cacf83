"""Workers for operators: who is there, what they serve and what they run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from stoker import records
from stoker.app import Stoker
from stoker.model.control import STOPPED, Presence, live
from stoker.model.job import Status
from stoker.model.query import LARGEST_PAGE, Query
from stoker.model.time import Instant, moment

SILENT = "silent"


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it reported itself last. `state` is running, silent (not seen for 20 s) or stopped."""

    worker: str
    host: str
    pid: int
    state: str
    queues: dict[str, int]
    running: int
    version: str
    seen_at: datetime


class WorkersAdmin:
    """Questions about workers."""

    def __init__(self, app: Stoker) -> None:
        self._app = app

    async def jobs(self, worker: str) -> list[records.Job]:
        """What a worker runs, the longest running first."""
        engine = await self._app.engine()
        query = Query(statuses=frozenset({Status.RUNNING}), limit=LARGEST_PAGE)
        found: list[records.Job] = []
        while True:
            page = await engine.find(query)
            found += [records.job(job) for job in page.jobs if job.worker == worker]
            if page.cursor is None:
                return sorted(found, key=lambda job: (job.started_at is None, job.started_at))
            query = msgspec.structs.replace(query, cursor=page.cursor)

    async def list(self) -> list[WorkerView]:
        """Every worker that reported itself and was not forgotten yet, by id."""
        engine = await self._app.engine()
        presences = await engine.workers()
        return worker_views(presences, await engine.now())


def worker_views(presences: Sequence[Presence], now: Instant) -> list[WorkerView]:
    """Each worker as it reported itself last, silent ones marked."""
    present = {one.worker for one in live(presences, now)}
    return [_view(one, one.state if one.state == STOPPED or one.worker in present else SILENT) for one in presences]


def _view(one: Presence, state: str) -> WorkerView:
    return WorkerView(
        worker=one.worker,
        host=one.host,
        pid=one.pid,
        state=state,
        queues=one.queues,
        running=one.running,
        version=one.version,
        seen_at=moment(one.seen_at),
    )

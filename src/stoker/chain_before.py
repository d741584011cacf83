"""The job before one that is not stored yet: which link of its chain stands in the store.

A chain is stored in its first job, and each success stores the next one with the rest behind it. No index leads from a
link that is still to come to the job that carries it. But drafts of one chain are mostly made together, and ids are
times: so the jobs that are not done are looked through from the link's own id on, in both directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.model import ids
from stoker.model.errors import NotFound
from stoker.model.ids import JobId
from stoker.model.job import Job, Status, path_to
from stoker.model.query import Order, Query

if TYPE_CHECKING:
    from stoker.engines.base import Engine

MOST_LOOKED = 1_000
"""Jobs looked at before the id and behind it, at most."""

AT_ONCE = 100

NOT_DONE = frozenset(Status) - {Status.DONE}


async def job_before(engine: Engine, job: JobId) -> Job | None:
    """The stored job that the given one is waiting behind; None: there is none nearby."""
    ways: tuple[Order, ...] = ("newest", "oldest")
    for order in ways:
        cursor: bytes | None = job
        for _ in range(MOST_LOOKED // AT_ONCE):
            page = await engine.operator.find(Query(statuses=NOT_DONE, order=order, limit=AT_ONCE, cursor=cursor))
            for found in page.jobs:
                if path_to(found.options, job):
                    return await successor_of(engine, found)
            cursor = page.cursor
            if cursor is None:
                break
    return None


async def successor_of(engine: Engine, job: Job) -> Job | None:
    """The job itself, or the copy that stands for it now; None if that is gone."""
    found: Job | None = job
    while found is not None and found.successor is not None:
        [found] = await engine.operator.get([found.successor])
    return found


async def not_found(engine: Engine, job: JobId) -> NotFound:
    """The error for a job without a record; it names the job that it is waiting behind."""
    before = await job_before(engine, job)
    if before is None:
        return NotFound.job(ids.text(job))
    return NotFound.behind(ids.text(job), ids.text(before.id), before.kind, before.status)

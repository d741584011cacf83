"""What is before a job that is not stored yet: the link of its chain that is stored, or the group that calls it back.

A chain is stored in its first job, and each success stores the next one with the rest behind it. No index leads from a
link that is still to come to the job that carries it. But drafts of one chain are mostly made together, and ids are
times: so the jobs that are not done are looked through from the link's own id on, in both directions. The callbacks
of a group are stored in it: so the latest groups are looked through, open ones first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.model import ids
from stoker.model.errors import NotFound
from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.job import Job, Status, path_to
from stoker.model.query import Order, Place, Query

if TYPE_CHECKING:
    from stoker.engines.base import Engine

MOST_LOOKED = 1_000
"""Jobs looked at before the id and behind it, at most; and groups that are open and that are closed."""

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


async def group_before(engine: Engine, job: JobId) -> Group | None:
    """The group whose closing stores the given job; None: there is none among the latest."""
    for closed in (False, True):
        behind: Place | None = None
        for _ in range(MOST_LOOKED // AT_ONCE):
            page = await engine.groups.find(closed=closed, behind=behind, limit=AT_ONCE)
            for found in page:
                if found.leads_to(job) is not None:
                    return found
            if len(page) < AT_ONCE:
                break
            behind = (page[-1].created_at, page[-1].id)
    return None


async def successor_of(engine: Engine, job: Job) -> Job | None:
    """The job itself, or the copy that stands for it now; None if that is gone."""
    found: Job | None = job
    while found is not None and found.successor is not None:
        [found] = await engine.operator.get([found.successor])
    return found


async def before(engine: Engine, job: JobId) -> Job | Group | None:
    """What keeps a job from being stored: a job of its chain, or a group that has not called it back; None: nothing."""
    found = await job_before(engine, job)
    if found is not None:
        return found
    group = await group_before(engine, job)
    return None if group is None or (group.closed_at and not_called(group, job) is None) else group


async def not_found(engine: Engine, job: JobId) -> NotFound:
    """The error for a job without a record; it names what it is waiting behind."""
    return missing(job, await before(engine, job))


def missing(job: JobId, before: Job | Group | None) -> NotFound:
    """The error for a job without a record, with what is before it."""
    name = ids.text(job)
    if isinstance(before, Job):
        return NotFound.behind(name, ids.text(before.id), before.kind, before.status)
    if before is not None and before.closed_at is None:
        return NotFound.behind_group(name, ids.text(before.id), before.counts)
    return (None if before is None else not_called(before, job)) or NotFound.job(name)


def not_called(group: Group, job: JobId) -> NotFound | None:
    """The error for a job that the end of a group did not call for; None: it did."""
    found = group.leads_to(job)
    if found is None or found[1][0] in group.callbacks:
        return None
    return NotFound.not_called(ids.text(job), ids.text(group.id), found[0], group.state)

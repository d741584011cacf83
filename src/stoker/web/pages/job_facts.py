"""What the page of a job reads from the store: the record, its events, and what it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, cast

from stoker.controls import holding
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.errors import NotFound
from stoker.model.events import Event, window_of
from stoker.model.groups import Group
from stoker.model.humanize import ago, span
from stoker.model.job import PARENT, Job, Status, links
from stoker.model.lifecycle import HELD_BY
from stoker.model.run_origins import RunOrigin
from stoker.model.same_error import error_line
from stoker.model.steps import Step
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Bucket
from stoker.origins import origins_of
from stoker.views import NO_ORIGINS
from stoker.web.hub import Want
from stoker.web.request import RequestContext

RELATIVES = 60
"""Members of a group that are shown as marks."""

DEAD_END = "No job has this id. It may have been deleted, or its retention has passed."


class Facts(NamedTuple):
    """A job with its events and what it belongs to; `relatives` are the jobs of its group and chain that are stored."""

    job: Job
    events: Sequence[Event] = ()
    group: Group | None = None
    subqueue: SubqueueView | None = None
    relatives: Mapping[bytes, Job] = MappingProxyType({})
    gone: bool = False
    buckets: Mapping[str, Bucket] = MappingProxyType({})
    steps: Sequence[Step] = ()
    origins: Mapping[int, RunOrigin] = NO_ORIGINS
    emitted: Sequence[Step] = ()


def named(visit: RequestContext) -> bytes:
    """The id that the address names."""
    try:
        return ids.parse(visit.request.path_params["id"])
    except ValueError:
        raise NotFound(DEAD_END) from None


async def stored(visit: RequestContext) -> Job:
    """The record that the address names."""
    engine = await visit.board.store.engine()
    [found] = await engine.operator.get([named(visit)])
    if found is None:
        raise NotFound(DEAD_END)
    return found


async def briefly(visit: RequestContext, job: Job) -> list[tuple[str, str]]:
    """What tells a job from others before something is done to it: its id, age, worker and error."""
    reading, options = await visit.board.hub.reading(), job.options
    now = visit.board.hub.current(reading).census.at
    place = next((one for one in reading.presences if one.worker == job.worker), None)
    runs = job.status is Status.RUNNING
    where = job.worker or "" if place is None else f"{place.host} / {place.pid}"
    found = [
        ("Job", ids.text(job.id)),
        ("Label", visit.board.redact.text(options.label or "")),
        ("Queue", job.queue),
        ("Enqueued", ago(job.created_at, now)),
        ("Running for", span(max(now - (job.started_at or now), 0)) if runs else ""),
        ("Worker", where if runs else ""),
        ("Ended", "" if job.finished_at is None else ago(job.finished_at, now)),
        ("Last error", visit.board.redact.text(error_line(job.last_error))),
    ]
    return [(name, text) for name, text in found if text]


def wants(visit: RequestContext, just_read: Job | None = None) -> list[Want]:
    """The job of the address; one that has just been read is not read again at first."""
    id_ = named(visit)
    last: Facts | None = None

    async def read(engine: Engine) -> tuple[Facts, int]:
        nonlocal last, just_read
        found, calls = await _facts_of(engine, id_, just_read)
        just_read = None
        if found is None and last is None:
            raise NotFound(DEAD_END)
        if found is not None:
            found = found._replace(origins=await origins_of(visit.board.store, found.job))
        last = found or cast(Facts, last)._replace(gone=True)
        return last, calls

    return [Want(("job", id_), read)]


async def _facts_of(engine: Engine, id_: bytes, just_read: Job | None) -> tuple[Facts | None, int]:
    [job] = [just_read] if just_read is not None else await engine.operator.get([id_])
    if job is None:
        return None, 1
    events = await engine.timeline.events(window_of(job, 1_000))
    group, subqueue, relatives, calls = None, None, dict[bytes, Job](), 1 + (just_read is None)
    if job.options.group is not None:
        [group] = await engine.groups.get([job.options.group])
        calls += 1
    if job.options.limit is not None:
        found = await engine.control.subqueues(job.queue, names=[job.options.limit.subqueue])
        subqueue, calls = next(iter(found), None), calls + 1
    buckets: Mapping[str, Bucket] = {}
    if held := job.metadata.get(HELD_BY):
        buckets, calls = await holding(engine, held), calls + 2
    if near := _near(job, group):
        relatives = {one.id: one for one in await engine.operator.get(near) if one is not None}
        calls += 1
    steps: Sequence[Step] = ()
    emitted: Sequence[Step] = ()
    if job.token:
        [steps] = await engine.steps.get([job.id])
        emitted, calls = await engine.steps.emitted(job.id), calls + 2
    return Facts(job, events, group, subqueue, relatives, buckets=buckets, steps=steps, emitted=emitted), calls


def _near(job: Job, group: Group | None) -> list[bytes]:
    """The ids of what comes before and after it in its chain, and of the other members of its group."""
    parent = metadata(job).get(PARENT)
    before = [] if parent is None else [ids.parse(parent)]
    members = () if group is None else group.members[:RELATIVES]
    return list(dict.fromkeys([*before, *(one.job_id for one in links(job.options)), *members]))


def metadata(job: Job) -> dict[str, str]:
    """What callers and Stoker noted with the job."""
    return {**(job.options.metadata or {}), **job.metadata}

"""Everything about one job: its record, what it was called with, and what it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from stoker import views
from stoker.admin.context import OperatorContext
from stoker.admin.groups import GroupView, group_view
from stoker.codec.signature import display
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.control import Presence
from stoker.model.events import Event, window_of, with_record
from stoker.model.explain import Explanation, Reason
from stoker.model.groups import GROUP, Group
from stoker.model.job import ORIGINAL, PARENT, Status
from stoker.model.operator_metrics import runs_long
from stoker.model.origin import origin
from stoker.model.run_origins import RunOrigin
from stoker.model.schedule import OCCURRENCE, SCHEDULE
from stoker.model.time import moment
from stoker.origins import origins_of


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job, when; `seconds` is how long the run took that ended."""

    at: datetime
    type: str
    job: str
    queue: str
    kind: str
    attempt: int
    seconds: float | None = None


class GateView(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why a job does not run: since when, until when (None: not known), and what to do about it."""

    reason: Reason
    detail: str
    remedy: str
    since: datetime | None
    until: datetime | None


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The gates that are shut for a job; the first one decides. `beside` names its chain, group and schedule."""

    gates: tuple[GateView, ...]
    beside: tuple[str, ...]


def why(found: Explanation) -> Why:
    """An explanation as JSON has it."""
    gates = (
        GateView(
            reason=one.reason,
            detail=one.detail,
            remedy=one.remedy,
            since=None if one.since is None else moment(one.since),
            until=None if one.until is None else moment(one.until),
        )
        for one in found.all
    )
    return Why(gates=tuple(gates), beside=found.beside)


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A job with everything that is known about it, secrets masked.

    `view` is the status as lists show it: ready, scheduled and waiting are the parts of pending. `arguments` and
    `value` are payload and result decoded, None where they cannot be. `events` are completed by what the record tells.
    `parent` is the job before it in its chain, `original` the dead one it is a copy of, `made_by_group` the group whose
    end stored it. `host` and `pid` say where it runs.
    """

    job: views.Job
    view: str
    arguments: Any = None
    value: Any = None
    principal: str | None = None
    correlation: str | None = None
    events: list[EventView] = []
    parent: str | None = None
    original: str | None = None
    schedule: str | None = None
    occurrence: str | None = None
    group: GroupView | None = None
    made_by_group: str | None = None
    host: str | None = None
    pid: int | None = None
    runs_long: bool = False


async def detail(context: OperatorContext, job: str) -> JobDetail:
    """Read a job with its events, its group and its worker. Raises `NotFound`."""
    found = await context.stored(job)
    engine = await context.engine()
    now = await engine.now()
    events = await engine.timeline.events(window_of(found))
    group = None
    if found.options.group is not None:
        [group] = await engine.groups.get([found.options.group])
    running = found.status is Status.RUNNING
    place = (
        next((one for one in await engine.control.workers() if one.worker == found.worker), None) if running else None
    )
    return _made(context, found, now, events, group, place, await origins_of(context.app, found))


def _made(
    context: OperatorContext,
    found: stored.Job,
    now: int,
    events: list[Event],
    group: Group | None,
    place: Presence | None,
    origins: Mapping[int, RunOrigin],
) -> JobDetail:
    shown = context.job(found, origins)
    named = origin(shown.payload, context.redact.values(found.options.metadata or {}))
    return JobDetail(
        job=shown,
        view=found.view(now),
        arguments=display(shown.payload),
        value=display(shown.result),
        principal=named.principal,
        correlation=named.correlation,
        events=[event_view(one) for one in with_record(events, found)],
        parent=shown.metadata.get(PARENT),
        original=shown.metadata.get(ORIGINAL),
        schedule=shown.metadata.get(SCHEDULE),
        occurrence=shown.metadata.get(OCCURRENCE),
        group=None if group is None else group_view(group),
        made_by_group=shown.metadata.get(GROUP),
        host=None if place is None else place.host,
        pid=None if place is None else place.pid,
        runs_long=runs_long(found, now),
    )


def event_view(one: Event) -> EventView:
    """An event as people read it."""
    return EventView(
        at=moment(one.at),
        type=one.type.value,
        job=ids.text(one.job),
        queue=one.queue,
        kind=one.kind,
        attempt=one.attempt,
        seconds=None if one.duration is None else one.duration / 1e6,
    )

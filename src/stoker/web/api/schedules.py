"""Schedules: read, make, edit, pause and run them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from stoker import views
from stoker.model.job import Draft
from stoker.model.schedule import Misfire, Overlap
from stoker.views import ScheduleState
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.pages import shared
from stoker.web.request import RequestContext

api = Noun("schedules")

Expression = Annotated[str, Meta(min_length=1, max_length=200, description="as in 0 3 * * *")]
Zone = Annotated[str, Meta(min_length=1, max_length=64)]


class NextQuery(t.Strict):
    """How many."""

    n: Annotated[int, Meta(ge=1, le=100)] = 5


class Timing(t.Strict):
    """When it fires (`cron` in the zone `tz`, or `every` so many seconds) and what it does about missed occurrences."""

    cron: Expression | UnsetType = UNSET
    every: t.Lasting | UnsetType = UNSET
    tz: Zone | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    grace: t.Seconds | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    jitter: t.Seconds | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """What was sent of it."""
        found = {name: getattr(self, name) for name in Timing.__struct_fields__}
        return {name: value for name, value in found.items() if not t.unset(value)}


class NewSchedule(Timing, kw_only=True):
    """A schedule and the job that it enqueues. The name must be new."""

    name: t.Name
    kind: t.Name
    payload: t.Payload | UnsetType = UNSET
    queue: t.Name | None = None
    priority: t.Priority | None = None
    attempts: Annotated[int, Meta(ge=1, le=1_000)] | None = None


class Schedules(Struct, kw_only=True):
    """Every schedule, by name."""

    schedules: list[ScheduleState]


class Fires(Struct, kw_only=True):
    """The next occurrences, whether or not the schedule is enabled."""

    at: list[datetime]


class JobId(Struct, kw_only=True):
    """The id of a job."""

    id: str


@api.get("/schedules")
async def listed(visit: RequestContext) -> Schedules:
    """List schedules."""
    return Schedules(schedules=[_shown(one) for one in await visit.admin.schedules.list()])


@api.get("/schedules/{name}")
async def read(visit: RequestContext) -> ScheduleState:
    """Read a schedule."""
    return _shown(await visit.admin.schedules.get(place(visit, "name")))


@api.post("/schedules", status=201)
async def create(visit: RequestContext, given: NewSchedule) -> ScheduleState:
    """Make a schedule."""
    options = {field: getattr(given, field) for field in ("queue", "priority", "attempts")}
    draft: Draft = visit.board.jobs.draft(
        given.kind, t.payload(given.payload), **{field: value for field, value in options.items() if value is not None}
    )
    shared.check_kind(visit, draft.kind, draft.queue)
    return _shown(await visit.admin.schedules.create(given.name, draft, **given.given()))


@api.patch("/schedules/{name}")
async def edit(visit: RequestContext, given: Timing) -> ScheduleState:
    """Change when a schedule fires; deployments keep it."""
    return _shown(await visit.admin.schedules.edit(await _reached(visit), **given.given()))


@api.delete("/schedules/{name}")
async def drop(visit: RequestContext) -> t.Done:
    """Remove a schedule; its jobs stay."""
    await visit.admin.schedules.drop(await _reached(visit))
    return t.Done()


@api.get("/schedules/{name}/next")
async def upcoming(visit: RequestContext, given: NextQuery) -> Fires:
    """List the next occurrences of a schedule."""
    return Fires(at=await visit.admin.schedules.next(place(visit, "name"), given.n))


@api.post("/schedules/{name}/pause")
async def pause(visit: RequestContext, given: t.NoBody) -> ScheduleState:  # noqa: ARG001 - nothing is said in it
    """Pause a schedule."""
    name = await _reached(visit)
    await visit.admin.schedules.pause(name)
    return _shown(await visit.admin.schedules.get(name))


@api.post("/schedules/{name}/resume")
async def resume(visit: RequestContext, given: t.NoBody) -> ScheduleState:  # noqa: ARG001 - nothing is said in it
    """Resume a schedule."""
    name = await _reached(visit)
    await visit.admin.schedules.resume(name)
    return _shown(await visit.admin.schedules.get(name))


@api.post("/schedules/{name}/reset")
async def reset(visit: RequestContext, given: t.NoBody) -> ScheduleState:  # noqa: ARG001 - nothing is said in it
    """Give an edited schedule back to the code."""
    return _shown(await visit.admin.schedules.reset(await _reached(visit)))


@api.post("/schedules/{name}/run-now")
async def run_now(visit: RequestContext, given: t.NoBody) -> JobId:  # noqa: ARG001 - nothing is said in it
    """Enqueue one job of a schedule."""
    return JobId(id=await visit.admin.schedules.run_now(await _reached(visit)))


async def _reached(visit: RequestContext) -> str:
    found = await visit.admin.schedules.get(place(visit, "name"))
    shared.check_queue(visit, found.queue)
    return found.name


def _shown(one: views.Schedule) -> ScheduleState:
    return convert(one, ScheduleState, from_attributes=True)

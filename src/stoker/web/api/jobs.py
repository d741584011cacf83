"""Jobs: enqueue, find, read, explain, reveal and change them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from stoker import views
from stoker.admin import Bulk
from stoker.admin.context import knowing
from stoker.admin.details import EventView, Why, why
from stoker.admin.jobs import WaitView
from stoker.model import ids
from stoker.model.actions import MANY, Action
from stoker.model.errors import NotFound
from stoker.model.job import Job, Status
from stoker.model.origin import origin
from stoker.model.steps import LONGEST_ROW
from stoker.model.time import Instant
from stoker.origins import origins_of
from stoker.views import JobState
from stoker.watching import EVENT_STREAM, QUIET, News, over, streamed, without_values
from stoker.web import live
from stoker.web.actions import job as job_actions
from stoker.web.actions.result import act
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun
from stoker.web.pages import job_facts, job_reveal, shared
from stoker.web.request import RequestContext

api = Noun("jobs")


# --- what is sent ---------------------------------------------------------------------------------------------------


class JobsQuery(t.Strict):
    """Which jobs."""

    q: t.FilterText = ""
    limit: t.Limit = 50
    after: t.Cursor | None = None
    total: bool = False


class NewJob(t.Strict):
    """A job to enqueue. With the same `id` it is stored once, however often it is sent."""

    kind: t.Name
    payload: t.Payload | UnsetType = UNSET
    id: t.Uuid | None = None
    queue: t.Name | None = None
    priority: t.Priority | None = None
    delay: t.Seconds | None = None
    at: Annotated[datetime, Meta(tz=True)] | None = None
    attempts: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    tenant: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    unique: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class EditBody(t.Strict):
    """What a waiting or dead job is to have instead; what is left out stays. A dead job has no time."""

    payload: t.Payload | UnsetType = UNSET
    priority: t.Priority | UnsetType = UNSET
    at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    attempts: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType = UNSET


class RevealBody(t.Strict):
    """What to show; written to the audit log."""

    part: Literal["payload", "result"] = "payload"


class SignalBody(t.Strict):
    """An answer for a wait; `replace` gives one that has its answer another."""

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_ROW)]
    value: Any = None
    replace: bool = False


class WaitsQuery(t.Strict):
    """Which jobs."""

    q: t.FilterText = ""
    limit: t.Limit = 50
    after: t.Cursor | None = None


PARAMETERS: Final = {
    parameter.name: parameter for one in MANY.values() for parameter in one.parameters if not parameter.one_job
}.values()
"""What actions on many jobs take."""

if TYPE_CHECKING:

    class Acting(t.Strict):
        """An action by its name, with what it takes."""

        action: str

else:
    Acting = t.body("Acting", "An action by its name, with what it takes.", PARAMETERS, Literal[tuple(MANY)])


class BulkBody(Acting, kw_only=True):
    """An action on these jobs."""

    ids: Annotated[list[t.Uuid], Meta(min_length=1, max_length=1_000)]


# --- what is answered -----------------------------------------------------------------------------------------------


class JobView(JobState, frozen=True, kw_only=True):
    """A job without its payload and result. `view` is its status, with pending as ready or scheduled.

    In a list it is without its history and log too.
    """

    view: str


class JobList(Struct, kw_only=True):
    """A page of jobs; `after` goes on behind it, null at the end. `scanned` jobs were looked at.

    `total`, if it was asked for, is how many jobs match on all pages: at least so many unless `complete`. `hint` says
    which names of the filter are not known, and what was probably meant; empty where all are.
    """

    jobs: list[JobView]
    after: str | None
    scanned: int
    total: int | None = None
    complete: bool = True
    hint: str = ""


class JobRecord(JobView, frozen=True, kw_only=True):
    """Everything about a job but its payload and result, which are revealed by themselves."""

    principal: str | None
    correlation: str | None
    payload_bytes: int
    result_bytes: int | None


class Events(Struct, kw_only=True):
    """What happened to a job, oldest first, as far as events are kept."""

    events: list[EventView]


class Steps(Struct, kw_only=True):
    """The steps of a job, oldest first, secrets masked; without their values for a role that may only read."""

    steps: list[views.Step]


class JobEvent(Struct, kw_only=True):
    """A server-sent event; the stream ends behind `ended`. `id` is where to go on, `data` the event as JSON."""

    event: Literal["emitted", "progressed", "logged", "changed", "missed", "ended"]
    id: str
    data: dict[str, Any]


class StreamQuery(t.Strict):
    """Where to go on: the id of an event. The header `Last-Event-ID` wins."""

    after: t.Cursor | None = None


class Answered(Struct, kw_only=True):
    """Whether a signal was stored; not if the wait has its answer or the job has ended."""

    taken: bool


class WaitList(Struct, kw_only=True):
    """Open waits for signals, those of the newest job first; `after` goes on behind them, null at the end."""

    waits: list[WaitView]
    after: str | None
    scanned: int
    hint: str = ""


class Revealed(Struct, kw_only=True):
    """The text of a payload or result; secrets are masked unless the role is admin."""

    part: str
    text: str


class Stored(Struct, kw_only=True):
    """What became of a new job: inserted, or existing with the id of the one that is there."""

    id: str
    stored: str


class TallyView(Struct, kw_only=True):
    """What an action did, job by job, summed up."""

    changed: int
    cancel_requested: int
    missing: int
    blocked: int
    refused: dict[Status, int]
    created: list[str]


# --- calls ----------------------------------------------------------------------------------------------------------


@api.get("/jobs")
async def find(visit: RequestContext, given: JobsQuery) -> JobList:
    """Find jobs by a filter."""
    reading = await visit.board.hub.reading()
    found = await visit.admin.jobs.find(given.q, limit=given.limit, cursor=given.after, total=given.total)
    counted: dict[str, Any] = {"total": found.total, "complete": found.complete, "hint": found.hint}
    rows = [JobView(**_shown(job, reading.census.at)) for job in found.jobs]
    return JobList(jobs=rows, after=found.cursor, scanned=found.scanned, **counted)


@api.post("/jobs", status=201)
async def enqueue(visit: RequestContext, given: NewJob) -> Stored:
    """Enqueue a job."""
    board = visit.board
    options = {
        name: value
        for name in ("queue", "priority", "delay", "at", "attempts", "tenant", "unique")
        if (value := getattr(given, name)) is not None
    }
    draft = board.jobs.draft(given.kind, t.payload(given.payload), **options)
    shared.check_kind(visit, draft.kind, draft.queue)
    await shared.check_quotas(visit, draft.queue)
    if given.id is not None:
        draft = msgspec.structs.replace(draft, job_id=ids.parse(given.id))
    [receipt] = await board.store.insert_drafts([draft])
    return Stored(id=ids.text(receipt.id), stored=receipt.stored.value)


@api.post("/jobs/bulk")
async def act_on_many(visit: RequestContext, given: BulkBody) -> TallyView:
    """Act on the jobs of a list."""
    engine = await visit.board.store.engine()
    for job in await engine.operator.get([ids.parse(one) for one in given.ids]):
        if job is not None:
            shared.check_queue(visit, job.queue)
    done = await act(visit, MANY[given.action], given.ids, t.given_in(given, PARAMETERS))
    visit.board.hub.forget()
    return _tally(done)


@api.get("/jobs/{id}")
async def read(visit: RequestContext) -> JobRecord:
    """Read a job."""
    reading = await visit.board.hub.reading()
    raw = await job_facts.stored(visit)
    job = views.job(visit.board.redact.job(raw), await origins_of(visit.board.store, raw))
    whose = origin(job.payload, visit.board.redact.values(raw.options.metadata or {}))
    return JobRecord(
        **_shown(job, reading.census.at),
        principal=whose.principal,
        correlation=whose.correlation,
        payload_bytes=len(raw.payload),
        result_bytes=None if raw.result is None else len(raw.result),
    )


def _shown(job: views.Job, now: Instant) -> dict[str, Any]:
    same = {name: getattr(job, name) for name in JobState.__struct_fields__}
    return {**same, "view": shared.shown_status(job, now)}


@api.patch("/jobs/{id}")
async def edit(visit: RequestContext, given: EditBody) -> TallyView:
    """Change what a job was enqueued with."""
    job = await _reached(visit)
    fields = {name: value for name in given.__struct_fields__ if not t.unset(value := getattr(given, name))}
    if "payload" in fields:
        fields["payload"] = bytes(fields["payload"])
    done = await knowing(visit.admin.jobs, job).edit(ids.text(job.id), **fields)
    visit.board.hub.forget()
    return _tally(done)


@api.delete("/jobs/{id}")
async def delete(visit: RequestContext) -> TallyView:
    """Delete a job."""
    return await _act(visit, MANY["delete"], {})


@api.get("/jobs/{id}/events")
async def events(visit: RequestContext) -> Events:
    """Read what happened to a job."""
    job = await job_facts.stored(visit)
    return Events(events=(await knowing(visit.admin.jobs, job).get(ids.text(job.id))).events)


@api.get("/jobs/{id}/explain")
async def explain(visit: RequestContext) -> Why:
    """Say why a job does not run."""
    job = await job_facts.stored(visit)
    return why(await knowing(visit.admin.jobs, job).explain(ids.text(job.id)))


@api.get("/jobs/{id}/steps")
async def steps(visit: RequestContext) -> Steps:
    """List what a job has stored by name and what it waits for."""
    job = await job_facts.stored(visit)
    found = await knowing(visit.admin.jobs, job).steps(ids.text(job.id))
    if not visit.may("operate", job.queue):
        found = [msgspec.structs.replace(one, value=None) for one in found]
    return Steps(steps=found)


@api.get("/jobs/{id}/stream", media=EVENT_STREAM)
async def stream(visit: RequestContext, given: StreamQuery) -> JobEvent:
    """Follow a job: what it emits, its progress, log and status, as it happens."""
    job = await job_facts.stored(visit)
    after = visit.request.headers.get("last-event-id") or given.after
    if over(after):
        return cast(JobEvent, Response(status_code=204))
    with live.place_of(visit, "Read the job from time to time instead.") as place:
        events = _bounded(visit, visit.admin.jobs.watch(ids.text(job.id), after), job.queue)
        return cast(JobEvent, live.Stream(await streamed(events), place))


async def _bounded(
    visit: RequestContext, events: AsyncGenerator[News | None, None], queue: str
) -> AsyncGenerator[News | None, None]:
    """Events for as long as a stream may last; without their values for a role that may only read."""
    began = checked = time.monotonic()
    async with aclosing(events):
        async for event in events:
            now = time.monotonic()
            if now - checked > QUIET and not await visit.board.still_knows(visit):
                return
            checked = now if now - checked > QUIET else checked
            if now - began > visit.board.limits.stream_seconds:
                return
            yield event if visit.may("operate", queue) else without_values(event)


@api.post("/jobs/{id}/signal")
async def signal(visit: RequestContext, given: SignalBody) -> Answered:
    """Answer a wait of a job."""
    job = await _reached(visit)
    send = knowing(visit.admin.jobs, job).signal
    taken = await send(ids.text(job.id), given.name, given.value, replace=given.replace)
    visit.board.hub.forget()
    return Answered(taken=taken)


@api.get("/waits")
async def waits(visit: RequestContext, given: WaitsQuery) -> WaitList:
    """Find the signals that jobs wait for."""
    found = await visit.admin.jobs.waits(given.q, limit=given.limit, cursor=given.after)
    return WaitList(waits=found.waits, after=found.cursor, scanned=found.scanned, hint=found.hint)


@api.post("/jobs/{id}/reveal")
async def reveal(visit: RequestContext, given: RevealBody) -> Revealed:
    """Show a payload or result."""
    job = await _reached(visit)
    raw = job.result if given.part == "result" else job.payload
    if raw is None:
        raise NotFound(f"The job has no {given.part}.")
    await visit.admin.audit.write("jobs.reveal", f"job {ids.text(job.id)}")
    return Revealed(part=given.part, text=job_reveal.visible(visit, raw).decode(errors="replace"))


BODIES: Final = {
    one.name: t.body(f"{one.name.title().replace('-', '')}Body", one.summary, one.parameters)
    if one.parameters
    else t.NoBody
    for one in MANY.values()
}
"""What is sent with an action, by its name."""


def _declare(action: Action) -> None:
    """Add the call that does an action of the table to one job."""

    async def do(visit: RequestContext, given: t.Strict) -> TallyView:
        return await _act(visit, action, t.given_in(given, action.parameters))

    given = {"visit": RequestContext, "given": BODIES[action.name], "return": TallyView}
    do.__doc__, do.__annotations__ = action.summary, given
    api.post(f"/jobs/{{id}}/{action.name}", role=action.role)(do)


for _action in MANY.values():
    if _action.name != "delete":
        _declare(_action)


@api.post("/jobs/{id}/restore")
async def restore(visit: RequestContext, given: t.NoBody) -> t.Done:  # noqa: ARG001 - nothing is said in it
    """Undo a cancel or a discard."""
    job = await _reached(visit)
    await job_actions.restored(visit, ids.text(job.id), job.kind)
    visit.board.hub.forget()
    return t.Done()


async def _act(visit: RequestContext, action: Action, given: dict[str, Any]) -> TallyView:
    job = await _reached(visit)
    done = await act(visit, action, ids.text(job.id), given, knowing(visit.admin.jobs, job))
    visit.board.hub.forget()
    return _tally(done)


async def _reached(visit: RequestContext) -> Job:
    job = await job_facts.stored(visit)
    shared.check_queue(visit, job.queue)
    return job


def _tally(done: Bulk) -> TallyView:
    return msgspec.convert(done, TallyView, from_attributes=True)

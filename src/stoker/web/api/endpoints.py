"""The calls of the REST API. Each is declared once: what it takes, what it answers, which role it needs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

import msgspec
from starlette.responses import Response

from stoker import records
from stoker.admin import Bulk, Filter
from stoker.admin.operations import OperationView
from stoker.admin.queues import QueueView
from stoker.model import ids
from stoker.model.access import Role
from stoker.model.control import Tuning
from stoker.model.cron_words import in_words
from stoker.model.errors import NotFound
from stoker.model.findings import verdict
from stoker.model.job import Job
from stoker.model.origin import origin
from stoker.model.throttle import Rate, level
from stoker.model.time import SECOND, moment, span
from stoker.web import actions, charts
from stoker.web.api import types as t
from stoker.web.board import Call, Way
from stoker.web.pages import job as job_page
from stoker.web.pages import operations as bulk
from stoker.web.pages import shared
from stoker.web.problems import Problem
from stoker.web.visit import Visit

ROOT = "/api/v1"
Do: TypeAlias = Callable[[Visit, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """One call. `given` is read from the query for GET, else from the body; `answer` is what comes back."""

    method: str
    path: str
    role: Role
    summary: str
    do: Do
    answer: type
    given: type | None = None
    status: int = 200
    errors: tuple[int, ...] = ()
    tag: str = "jobs"
    example: dict[str, Any] = field(default_factory=dict)

    def way(self) -> Way:
        """The route."""
        return Way(self.method, f"{ROOT}{self.path}", self.role, self._call(), "api")

    def _call(self) -> Call:
        async def call(visit: Visit) -> Response:
            visit.way = "token"
            if self.method != "GET" and getattr(visit.request.state, "csrf_owed", False):
                raise Problem(403, "csrf", "A change with a cookie needs the header X-CSRF-Token. Nothing was changed.")
            given = None if self.given is None else await self._read(visit)
            if self.given is None:
                refuse_parameters(visit)
            found = await self.do(visit, given)
            return Response(encode(found), self.status, media_type="application/json")

        return call

    async def _read(self, visit: Visit) -> Any:
        assert self.given is not None
        if self.method == "GET":
            pairs = visit.request.query_params.multi_items()
            if len({name for name, _ in pairs}) < len(pairs):
                raise Problem(422, "invalid", "A parameter may be given once.")
            return _converted(lambda: msgspec.convert(dict(pairs), self.given, strict=False))
        refuse_parameters(visit)
        raw = await visit.board.body(visit)
        if not raw:
            return _converted(lambda: msgspec.convert({}, self.given))
        kind = visit.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "content_type", "A body must be application/json. Nothing was changed.")
        return _converted(lambda: msgspec.json.decode(raw, type=self.given))


def refuse_parameters(visit: Visit) -> None:
    """Refuse parameters where none are taken: a misspelled one must not be ignored."""
    for name in visit.request.query_params:
        raise Problem(422, "invalid", f"There is no parameter {name[:80]!r} here.", field=name[:80])


def _converted(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except msgspec.ValidationError as error:
        text = str(error)
        place = text.rpartition("`$")[2].rstrip("`").lstrip(".") if "`$" in text else None
        raise Problem(422, "invalid", f"{text}. Nothing was changed.", field=place or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(400, "json", "The body is no JSON. Nothing was changed.") from None


def encode(value: Any) -> bytes:
    """JSON, times in UTC."""
    return msgspec.json.encode(value)


# --- jobs -----------------------------------------------------------------------------------------------------------


def _summary(job: records.Job, now: int) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "status": shared.shown_status(job, now),
        "priority": job.priority,
        "attempts": job.attempts,
        "allowed": job.base + job.budget,
        "created_at": job.created_at,
        "scheduled_at": job.scheduled_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "tenant": job.tenant,
        "key": None if job.unique is None else job.unique.key,
        "worker": job.worker,
        "progress": job.progress,
        "last_error": job.last_error,
    }


async def _jobs(visit: Visit, given: t.JobsQuery) -> t.JobList:
    reading = await visit.board.hub.reading()
    found = await visit.admin.jobs.find(given.q, limit=given.limit, cursor=given.after)
    rows = [t.JobSummary(**_summary(job, reading.census.at)) for job in found.jobs]
    return t.JobList(jobs=rows, after=found.cursor, scanned=found.scanned)


async def _enqueue(visit: Visit, given: t.NewJob) -> t.Stored:
    board = visit.board
    options = {
        name: value
        for name in ("queue", "priority", "delay", "attempts", "tenant", "unique")
        if (value := getattr(given, name)) is not None
    }
    draft = board.jobs.draft(given.kind, given.payload, **options)
    actions.check_queue(visit, draft.queue)
    _quota(visit)
    if given.id is not None:
        draft = msgspec.structs.replace(draft, id=ids.parse(given.id))
    [receipt] = await board.store.insert_drafts([draft])
    board.hub.forget()
    return t.Stored(id=ids.text(receipt.id), stored=receipt.stored.value)


def _quota(visit: Visit) -> None:
    """Refuse more jobs in a minute than one identity may enqueue."""
    board, name = visit.board, visit.who.name
    minute = int(time.monotonic() // 60)
    when, used = board.enqueued.get(name, (minute, 0))
    used = used + 1 if when == minute else 1
    if used > board.limits.enqueued_per_minute:
        problem = Problem(429, "quota", f"{name} may enqueue {board.limits.enqueued_per_minute:,} jobs a minute.")
        problem.headers["retry-after"] = str(60 - int(time.monotonic() % 60))
        raise problem
    board.enqueued[name] = (minute, used)


async def _job(visit: Visit, _: None) -> t.JobRecord:
    reading = await visit.board.hub.reading()
    raw = await job_page.stored(visit)
    job = records.job(visit.board.redact.job(raw))
    whose = origin(job.payload)
    return t.JobRecord(
        **_summary(job, reading.census.at),
        principal=whose.principal,
        correlation=whose.correlation,
        cancel_requested=job.cancel_requested,
        expires_at=job.expires_at,
        successor=job.successor,
        group=job.group,
        payload_bytes=len(raw.payload),
        result_bytes=None if raw.result is None else len(raw.result),
        history=[t.Failed(at=one.at, attempt=one.attempt, error=one.error) for one in job.history],
        log=list(job.log),
        metadata=job.metadata,
    )


async def _explain(visit: Visit, _: None) -> t.Why:
    await job_page.stored(visit)
    found = await visit.admin.jobs.explain(visit.request.path_params["id"])
    gates = [
        t.GateView(reason=gate.reason.value, detail=gate.detail, remedy=gate.remedy)
        for gate in (found.first, *found.gates)
    ]
    return t.Why(gates=gates, beside=list(found.beside))


async def _reveal(visit: Visit, given: t.RevealBody) -> t.Revealed:
    job = await job_page.stored(visit)
    raw = job.result if given.part == "result" else job.payload
    if raw is None:
        raise NotFound(f"The job has no {given.part}.")
    await visit.admin.audit.write("jobs.reveal", f"job {ids.text(job.id)}")
    return t.Revealed(part=given.part, text=job_page.visible(visit, raw).decode(errors="replace"))


def _acting(verb: str) -> Do:
    async def act(visit: Visit, given: Any) -> t.TallyView:
        job = await _reached(visit)
        needs: dict[str, Any] = {}
        if isinstance(given, t.CancelBody):
            needs = {"reason": given.reason, "force": given.force}
        elif isinstance(given, t.MoveBody):
            actions.check_queue(visit, given.queue)
            needs = {"queue": given.queue}
        elif isinstance(given, t.PriorityBody):
            needs = {"priority": given.priority}
        done = await bulk.act(visit, verb, ids.text(job.id), needs)
        visit.board.hub.forget()
        return _tally(done)

    return act


async def _reached(visit: Visit) -> Job:
    job = await job_page.stored(visit)
    actions.check_queue(visit, job.queue)
    return job


def _tally(done: Bulk) -> t.TallyView:
    return t.TallyView(
        changed=done.changed,
        cancel_requested=done.cancel_requested,
        missing=done.missing,
        blocked=done.blocked,
        refused={status.value: n for status, n in done.refused.items()},
        created=done.created,
    )


# --- operations -----------------------------------------------------------------------------------------------------


async def _preview(visit: Visit, given: t.JobsQuery) -> t.Preview:
    count, complete = await visit.admin.jobs.preview(given.q)
    return t.Preview(count=count, complete=complete)


async def _operate(visit: Visit, given: t.NewOperation) -> t.OperationRecord:
    if not visit.who.reaches_all:
        raise Problem(403, "queue", f"{visit.who.name} is limited to some queues and cannot act on a filter.")
    wanted = Filter.parse(given.q)
    count, complete = await visit.admin.jobs.preview(wanted)
    if count > given.count or (not complete and given.count <= count):
        shown = f"{count:,}" if complete else f"more than {count:,}"
        raise Problem(409, "count", f"{shown} jobs match, and {given.count:,} are meant. Nothing was changed.")
    found = await bulk.begin(visit, given.action, wanted, {})
    visit.board.hub.forget()
    return _operation(found)


def _operation(found: OperationView) -> t.OperationRecord:
    return t.OperationRecord(
        id=found.id,
        who=found.who,
        action=found.action,
        q=found.filter,
        state=found.state,
        started_at=found.started_at,
        seen_at=found.seen_at,
        changed=found.changed,
        cancel_requested=found.cancel_requested,
        missing=found.missing,
        blocked=found.blocked,
        refused={status.value: n for status, n in found.refused.items()},
    )


async def _operations(visit: Visit, _: None) -> t.Operations:
    return t.Operations(operations=[_operation(one) for one in (await visit.admin.operations.list())[:200]])


async def _one_operation(visit: Visit, _: None) -> t.OperationRecord:
    return _operation(await visit.admin.operations.get(visit.request.path_params["id"]))


async def _stop(visit: Visit, _: t.NoBody) -> t.OperationRecord:
    return _operation(await visit.admin.operations.stop(visit.request.path_params["id"]))


# --- queues, kinds, workers -----------------------------------------------------------------------------------------


def _per(rate: Rate) -> float:
    return span(rate.per, "per") / SECOND


def _queue(view: QueueView) -> t.QueueRecord:
    return t.QueueRecord(
        name=view.name,
        ready=view.ready,
        scheduled=view.scheduled,
        running=view.running,
        retrying=view.retrying,
        dead=view.dead,
        oldest_waits=max(view.lag / timedelta(seconds=1), 0.0),
        workers=view.workers,
        slots=view.slots,
        limit=view.limit,
        rate=None if view.rate is None else t.RateView(n=view.rate.n, per=_per(view.rate)),
        paused=view.paused,
        paused_until=view.paused_until,
        paused_by=view.paused_by,
        paused_why=view.paused_why,
        cooling_until=view.cooling_until,
        keep_done=view.keep_done / timedelta(seconds=1),
        keep_dead=view.keep_dead / timedelta(seconds=1),
    )


async def _queues(visit: Visit, _: None) -> t.Queues:
    reading = await visit.board.hub.reading()
    return t.Queues(
        queues=[_queue(one) for one in sorted(shared.queue_rows(visit, reading, {}), key=lambda row: row.name)]
    )


async def _one_queue(visit: Visit, _: None) -> t.QueueRecord:
    return _queue(await visit.admin.queues.get(visit.request.path_params["name"]))


def _named(visit: Visit) -> str:
    name: str = visit.request.path_params["name"]
    actions.check_queue(visit, name)
    return name


async def _pause(visit: Visit, given: t.PauseBody) -> t.QueueRecord:
    name = _named(visit)
    await visit.admin.queues.pause(name, for_=given.seconds, reason=given.reason)
    visit.board.hub.forget()
    return _queue(await visit.admin.queues.get(name))


async def _resume(visit: Visit, _: t.NoBody) -> t.QueueRecord:
    name = _named(visit)
    await visit.admin.queues.get(name)
    await visit.admin.queues.resume(name)
    visit.board.hub.forget()
    return _queue(await visit.admin.queues.get(name))


async def _tune(visit: Visit, given: t.TuneBody) -> t.QueueRecord:
    name = _named(visit)
    fields = {name: getattr(given, name) for name in given.__struct_fields__ if not t.unset(getattr(given, name))}
    clear = frozenset(name for name, value in fields.items() if value is None)
    values: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if "rate" in values:
        values["rate"] = Rate(values["rate"].n, per=values["rate"].per)
    for field_ in ("keep_done", "keep_dead"):
        if field_ in values:
            values[field_] = span(values[field_], field_)
    await visit.admin.queues.tune(name, Tuning(clear=clear, **values))
    visit.board.hub.forget()
    return _queue(await visit.admin.queues.get(name))


async def _kinds(visit: Visit, _: None) -> t.Kinds:
    census = (await visit.board.hub.reading()).census
    jobs: dict[str, dict[str, int]] = {}
    for one in census.counts:
        by = jobs.setdefault(one.kind, {})
        by[one.status.value] = by.get(one.status.value, 0) + one.n
    redact = visit.board.redact
    found = []
    for kind in sorted({*jobs, *census.totals}):
        total = census.totals.get(kind)
        error = None if total is None or total.last_error is None else redact.text(total.last_error)
        found.append(
            t.KindRecord(
                kind=kind,
                jobs=jobs.get(kind, {}),
                enqueued=0 if total is None else total.enqueued,
                completed=0 if total is None else total.completed,
                failed=0 if total is None else total.failed,
                last_error=error,
            )
        )
    return t.Kinds(kinds=found)


async def _workers(visit: Visit, _: None) -> t.Workers:
    return t.Workers(
        workers=[
            t.WorkerRecord(**{name: getattr(one, name) for name in t.WorkerRecord.__struct_fields__})
            for one in await visit.admin.workers.list()
        ]
    )


# --- schedules, limits, overview ------------------------------------------------------------------------------------


def _schedule(one: records.Schedule) -> t.ScheduleRecord:
    same = ("name", "kind", "queue", "cron", "tz", "enabled", "edited", "next_fire", "last_fire", "last_status")
    fields = {name: getattr(one, name) for name in same}
    return t.ScheduleRecord(**fields, words=in_words(one.cron), last_error=one.last_error)


async def _schedules(visit: Visit, _: None) -> t.Schedules:
    return t.Schedules(schedules=[_schedule(one) for one in await visit.admin.schedules.list()])


async def _one_schedule(visit: Visit, _: None) -> t.ScheduleRecord:
    return _schedule(await visit.admin.schedules.get(visit.request.path_params["name"]))


async def _reached_schedule(visit: Visit) -> str:
    found = await visit.admin.schedules.get(visit.request.path_params["name"])
    actions.check_queue(visit, found.queue)
    return found.name


async def _pause_schedule(visit: Visit, _: t.NoBody) -> t.ScheduleRecord:
    name = await _reached_schedule(visit)
    await visit.admin.schedules.pause(name)
    return _schedule(await visit.admin.schedules.get(name))


async def _resume_schedule(visit: Visit, _: t.NoBody) -> t.ScheduleRecord:
    name = await _reached_schedule(visit)
    await visit.admin.schedules.resume(name)
    return _schedule(await visit.admin.schedules.get(name))


async def _run_schedule(visit: Visit, _: t.NoBody) -> t.JobId:
    return t.JobId(id=await visit.admin.schedules.run_now(await _reached_schedule(visit)))


async def _limits(visit: Visit, _: None) -> t.Limits:
    engine = await visit.board.store.engine()
    now = await engine.now()
    return t.Limits(
        budgets=[
            t.BudgetRecord(name=one.name, n=one.bucket.rate.n, per=_per(one.bucket.rate), left=level(one.bucket, now))
            for one in await engine.budgets()
        ]
    )


async def _drain(visit: Visit, _: t.NoBody) -> t.Done:
    if not visit.who.reaches_all:
        raise Problem(403, "queue", f"{visit.who.name} is limited to some queues. Nothing was changed.")
    await visit.admin.limits.drain(visit.request.path_params["name"])
    return t.Done()


async def _overview(visit: Visit, _: None) -> t.OverviewRecord:
    reading = await visit.board.hub.reading()
    found = shared.found(visit, reading)
    counts = {status.value: n for status, n in reading.census.by_status().items()}
    later = sum(reading.census.scheduled.values())
    told = [t.FindingView(tone=one.tone, about=one.noun, name=one.name, text=str(one)) for one in found]
    return t.OverviewRecord(
        verdict=verdict(found),
        findings=told,
        counts=counts | {"scheduled": later, "ready": counts["pending"] - later},
        at=moment(reading.census.at),
    )


async def _points(visit: Visit, given: t.SeriesQuery) -> t.PointsRecord:
    reading = await visit.board.hub.reading()
    drawn = charts.range_of(visit, reading.census.at)
    engine = await visit.board.store.engine()
    points = await engine.points(drawn.since, drawn.until, charts.METRICS, given.queue)
    found = charts.series(points, drawn)
    values = {name: getattr(found, name) for name in t.PointsRecord.__struct_fields__ if name != "at"}
    return t.PointsRecord(at=[moment(at // SECOND * SECOND) for at in found.at], **values)


JOB = (404,)
CHANGE = (404, 409)

ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/overview",
        "read",
        "What needs a person, and jobs by status",
        _overview,
        t.OverviewRecord,
        tag="overview",
    ),
    Endpoint(
        "GET",
        "/points",
        "read",
        "What went in and out, minute by minute",
        _points,
        t.PointsRecord,
        t.SeriesQuery,
        tag="overview",
    ),
    Endpoint("GET", "/jobs", "read", "Find jobs by a filter", _jobs, t.JobList, t.JobsQuery),
    Endpoint("POST", "/jobs", "operate", "Enqueue a job", _enqueue, t.Stored, t.NewJob, 201, (409, 429)),
    Endpoint("GET", "/jobs/{id}", "read", "Read a job", _job, t.JobRecord, errors=JOB),
    Endpoint("DELETE", "/jobs/{id}", "operate", "Delete a job", _acting("delete"), t.TallyView, errors=CHANGE),
    Endpoint("GET", "/jobs/{id}/explain", "read", "Say why a job does not run", _explain, t.Why, errors=JOB),
    Endpoint(
        "POST",
        "/jobs/{id}/reveal",
        "operate",
        "Show a payload or result",
        _reveal,
        t.Revealed,
        t.RevealBody,
        errors=JOB,
    ),
    Endpoint(
        "POST",
        "/jobs/{id}/requeue",
        "operate",
        "Run a job again",
        _acting("requeue"),
        t.TallyView,
        t.NoBody,
        errors=CHANGE,
    ),
    Endpoint(
        "POST",
        "/jobs/{id}/retry",
        "operate",
        "Enqueue a copy of a dead job",
        _acting("retry"),
        t.TallyView,
        t.NoBody,
        errors=CHANGE,
    ),
    Endpoint(
        "POST",
        "/jobs/{id}/run-now",
        "operate",
        "Make a job due now",
        _acting("run-now"),
        t.TallyView,
        t.NoBody,
        errors=CHANGE,
    ),
    Endpoint(
        "POST",
        "/jobs/{id}/discard",
        "operate",
        "Take a job off the dead list",
        _acting("discard"),
        t.TallyView,
        t.NoBody,
        errors=CHANGE,
    ),
    Endpoint(
        "POST",
        "/jobs/{id}/cancel",
        "operate",
        "Cancel a job",
        _acting("cancel"),
        t.TallyView,
        t.CancelBody,
        errors=CHANGE,
    ),
    Endpoint(
        "POST",
        "/jobs/{id}/move",
        "operate",
        "Put a job into another queue",
        _acting("move"),
        t.TallyView,
        t.MoveBody,
        errors=CHANGE,
    ),
    Endpoint(
        "POST",
        "/jobs/{id}/prioritize",
        "operate",
        "Give a job another priority",
        _acting("prioritize"),
        t.TallyView,
        t.PriorityBody,
        errors=CHANGE,
    ),
    Endpoint(
        "GET",
        "/preview",
        "read",
        "Count the jobs that a filter means",
        _preview,
        t.Preview,
        t.JobsQuery,
        tag="operations",
    ),
    Endpoint("GET", "/operations", "read", "List operations", _operations, t.Operations, tag="operations"),
    Endpoint(
        "POST",
        "/operations",
        "operate",
        "Act on everything that matches a filter",
        _operate,
        t.OperationRecord,
        t.NewOperation,
        202,
        (409,),
        "operations",
    ),
    Endpoint(
        "GET",
        "/operations/{id}",
        "read",
        "Read an operation",
        _one_operation,
        t.OperationRecord,
        errors=JOB,
        tag="operations",
    ),
    Endpoint(
        "POST",
        "/operations/{id}/stop",
        "operate",
        "Stop an operation",
        _stop,
        t.OperationRecord,
        t.NoBody,
        errors=CHANGE,
        tag="operations",
    ),
    Endpoint("GET", "/queues", "read", "List queues", _queues, t.Queues, tag="queues"),
    Endpoint("GET", "/queues/{name}", "read", "Read a queue", _one_queue, t.QueueRecord, errors=JOB, tag="queues"),
    Endpoint("PATCH", "/queues/{name}", "operate", "Tune a queue", _tune, t.QueueRecord, t.TuneBody, tag="queues"),
    Endpoint(
        "POST", "/queues/{name}/pause", "operate", "Pause a queue", _pause, t.QueueRecord, t.PauseBody, tag="queues"
    ),
    Endpoint(
        "POST",
        "/queues/{name}/resume",
        "operate",
        "Resume a queue",
        _resume,
        t.QueueRecord,
        t.NoBody,
        errors=JOB,
        tag="queues",
    ),
    Endpoint("GET", "/kinds", "read", "List kinds", _kinds, t.Kinds, tag="kinds"),
    Endpoint("GET", "/workers", "read", "List workers", _workers, t.Workers, tag="workers"),
    Endpoint("GET", "/schedules", "read", "List schedules", _schedules, t.Schedules, tag="schedules"),
    Endpoint(
        "GET",
        "/schedules/{name}",
        "read",
        "Read a schedule",
        _one_schedule,
        t.ScheduleRecord,
        errors=JOB,
        tag="schedules",
    ),
    Endpoint(
        "POST",
        "/schedules/{name}/pause",
        "operate",
        "Pause a schedule",
        _pause_schedule,
        t.ScheduleRecord,
        t.NoBody,
        errors=JOB,
        tag="schedules",
    ),
    Endpoint(
        "POST",
        "/schedules/{name}/resume",
        "operate",
        "Resume a schedule",
        _resume_schedule,
        t.ScheduleRecord,
        t.NoBody,
        errors=JOB,
        tag="schedules",
    ),
    Endpoint(
        "POST",
        "/schedules/{name}/run-now",
        "operate",
        "Enqueue one job of a schedule",
        _run_schedule,
        t.JobId,
        t.NoBody,
        errors=JOB,
        tag="schedules",
    ),
    Endpoint("GET", "/limits", "read", "List budgets", _limits, t.Limits, tag="limits"),
    Endpoint(
        "POST", "/limits/{name}/drain", "operate", "Empty a budget", _drain, t.Done, t.NoBody, errors=JOB, tag="limits"
    ),
)
"""Every call of the API. No call ends a process, runs code or reads a file."""

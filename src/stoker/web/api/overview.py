"""The store as a whole: what needs a person, counts, points, errors, lists in pages, the check-up, the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from stoker.admin.audit import AuditView
from stoker.admin.errors import ErrorPage, only
from stoker.admin.overview import Attention, attention
from stoker.admin.snapshot import AWAY, LISTS, Snapshot
from stoker.model.findings import LONGEST_REASON, Finding
from stoker.model.health.check import Check
from stoker.model.time import SECOND, moment
from stoker.web import charts
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun
from stoker.web.pages import audit as audit_page
from stoker.web.pages import health as health_page
from stoker.web.pages import shared
from stoker.web.problems import Problem
from stoker.web.request import RequestContext

api = Noun("overview")

Page = Annotated[int, Meta(ge=1, le=10_000)]
Who = Annotated[str, Meta(min_length=1, max_length=1_000)]


class SeriesQuery(t.Strict):
    """Which points."""

    range: Literal["1h", "6h", "24h", "7d", "30d"] = "1h"
    queue: t.Name | None = None


class ErrorsQuery(t.Strict):
    """Of which queue or kind."""

    queue: t.Name | None = None
    kind: t.Name | None = None


class SnapshotQuery(t.Strict):
    """Which page of each list, and how many jobs a page has."""

    enqueued: Page = 1
    running: Page = 1
    retrying: Page = 1
    completed: Page = 1
    failed: Page = 1
    per_page: Annotated[int, Meta(ge=1, le=100)] = 25


class AuditQuery(t.Strict):
    """Which entries; an action that ends in a dot means all that begin so."""

    since: Literal["1h", "24h", "7d", "30d", "90d"] = "7d"
    who: Who | None = None
    action: Who | None = None
    target: Who | None = None
    limit: t.Limit = 100


class PointsRecord(Struct, kw_only=True):
    """Per minute: jobs enqueued, completed and dead; seconds from enqueue to done.

    Null where nothing ended, and for minutes that are not counted yet.

    `hint` is about a queue that is not known.
    """

    at: list[datetime]
    enqueued: list[float | None]
    completed: list[float | None]
    failed: list[float | None]
    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]
    hint: str = ""


class HealthRecord(Struct, kw_only=True):
    """The check-up of the store, another of which is made after `again_in` seconds, and what this dashboard says."""

    at: datetime
    again_in: float
    checks: list[Check]
    notes: list[str]


class Findings(Struct, kw_only=True):
    """Findings, in the order in which to look."""

    findings: list[Finding]


class AcknowledgeBody(t.Strict):
    """Which finding, by its `id`, why it may stay as it is, and for how many seconds: a day at most."""

    finding: Annotated[str, Meta(min_length=1, max_length=400)]
    reason: Annotated[str, Meta(min_length=1, max_length=LONGEST_REASON)]
    seconds: Annotated[float, Meta(gt=0, le=86_400)] = 86_400


class WithdrawBody(t.Strict):
    """Which finding, by its `id`."""

    finding: Annotated[str, Meta(min_length=1, max_length=400)]


class AuditRecords(Struct, kw_only=True):
    """Entries of the audit log, the latest first."""

    entries: list[AuditView]


@api.get("/overview")
async def overview(visit: RequestContext) -> Attention:
    """Read what needs a person, and jobs by status."""
    reading = await visit.board.hub.reading()
    return attention(reading.census, shared.found(visit, reading))


@api.get("/findings")
async def findings(visit: RequestContext) -> Findings:
    """Read what needs a person; what was acknowledged is plain."""
    return Findings(findings=shared.found(visit, await visit.board.hub.reading()))


@api.post("/findings/acknowledge")
async def acknowledge(visit: RequestContext, given: AcknowledgeBody) -> Finding:
    """Acknowledge a finding for a while."""
    shared.needs_everything(visit)
    found = await visit.admin.health.acknowledge(given.finding, reason=given.reason, for_=given.seconds)
    visit.board.hub.forget()
    return found


@api.post("/findings/withdraw")
async def withdraw(visit: RequestContext, given: WithdrawBody) -> t.Done:
    """Withdraw the acknowledgement of a finding."""
    shared.needs_everything(visit)
    await visit.admin.health.withdraw(given.finding)
    visit.board.hub.forget()
    return t.Done()


@api.get("/points")
async def points(visit: RequestContext, given: SeriesQuery) -> PointsRecord:
    """Read what went in and out, minute by minute."""
    reading = await visit.board.hub.reading()
    drawn = charts.range_of(visit, reading.census.at)
    engine = await visit.board.store.engine()
    read = await charts.read(engine, drawn, reading.census.at, given.queue)
    found = charts.series(read, drawn)
    values = {name: getattr(found, name) for name in PointsRecord.__struct_fields__ if name not in {"at", "hint"}}
    hint = "" if read else await shared.hint_of(visit, given.queue)
    return PointsRecord(at=[moment(at // SECOND * SECOND) for at in found.at], **values, hint=hint)


@api.get("/errors")
async def errors(visit: RequestContext, given: ErrorsQuery) -> ErrorPage:
    """Read which errors jobs died of or are retried for."""
    return await visit.admin.jobs.errors(only(given.queue, given.kind))


@api.get("/snapshot")
async def snapshot(visit: RequestContext, given: SnapshotQuery) -> Snapshot:
    """Read five lists of jobs in numbered pages, and the schedules."""
    pages = {name: int(getattr(given, name)) for name in LISTS}
    found = await visit.admin.snapshot(pages, given.per_page)
    if found.problem is not None:
        raise Problem(503, "store_unavailable", AWAY)
    return found


@api.get("/health")
async def health(visit: RequestContext) -> HealthRecord:
    """Read the check-up of the last minute."""
    return await _health(visit)


@api.post("/health/check", role="read", harmless=True)
async def check(visit: RequestContext, given: t.NoBody) -> HealthRecord:  # noqa: ARG001 - nothing is said in it
    """Check the store up again."""
    return await _health(visit)


async def _health(visit: RequestContext) -> HealthRecord:
    made, _ = await health_page.check_up(visit)
    notes = health_page.notes(visit)
    again = visit.board.check_ups.again_in
    return HealthRecord(at=moment(made.at), again_in=again, checks=made.checks, notes=notes)


@api.get("/audit")
async def audit(visit: RequestContext, given: AuditQuery) -> AuditRecords:
    """Read who changed what."""
    window = audit_page.WINDOWS[given.since] / SECOND
    found = await visit.admin.audit.list(
        window, who=given.who, action=given.action, target=given.target, limit=given.limit
    )
    return AuditRecords(entries=found)

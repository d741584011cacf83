"""The snapshot: five lists of jobs with numbered pages, and the schedules, for pages of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from stoker.admin.context import OperatorContext
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.errors import EngineError
from stoker.model.job import Job, Status
from stoker.model.origin import origin
from stoker.model.paging import PageOf
from stoker.model.query import LARGEST_PAGE, Query
from stoker.model.time import DAY, Instant, Span, rfc3339

List: TypeAlias = Literal["enqueued", "running", "retrying", "completed", "failed"]

LISTS: Final[dict[List, tuple[Status, Span | None]]] = {
    "enqueued": (Status.PENDING, None),
    "running": (Status.RUNNING, None),
    "retrying": (Status.RETRYING, None),
    "completed": (Status.DONE, DAY),
    "failed": (Status.DEAD, 7 * DAY),
}
"""Each list: the status of its jobs, and how long ago they may have ended. Other statuses are in none of them."""

COUNTED = 10_000
"""Up to here the finished jobs of a list are counted, and its pages reach."""

AWAY = "The store cannot be used now."


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A job for people: times in RFC 3339 with whole seconds, the error masked, who it is for."""

    id: str
    kind: str
    status: Status
    enqueued_at: str
    started_at: str | None
    finished_at: str | None
    attempt: int
    attempts: int
    last_error: str | None
    principal: str | None
    correlation: str | None


class SnapshotPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list, latest first. `more`: there are more than `total`."""

    records: list[Entry] = []
    total: int = 0
    more: bool = False
    page: int = 1
    per_page: int = PageOf().size
    pages: int = 0


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in one line."""

    name: str
    schedule: str
    next_run: str | None
    last_status: str | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Five lists and the schedules. `history` bounds how many finished jobs the store keeps; `problem`: it is away."""

    enqueued: SnapshotPage = SnapshotPage()
    running: SnapshotPage = SnapshotPage()
    retrying: SnapshotPage = SnapshotPage()
    completed: SnapshotPage = SnapshotPage()
    failed: SnapshotPage = SnapshotPage()
    schedules: list[ScheduleSummary] = []
    history: int | None = None
    problem: str | None = None


async def snapshot(
    context: OperatorContext, pages: Mapping[List, int] | None = None, per_page: int = PageOf().size
) -> Snapshot:
    """Read all lists, each at its own page. A store that cannot be used gives empty lists and a `problem`."""
    wanted = {name: PageOf((pages or {}).get(name, 1), per_page) for name in LISTS}
    try:
        engine = await context.engine()
        census = await engine.operator.census()
        totals = census.by_status()
        found = {name: await _page(context, engine, name, wanted[name], totals, census.at) for name in LISTS}
        return _made(
            found,
            schedules=[
                ScheduleSummary(
                    name=one.name,
                    schedule=one.expression,
                    next_run=None if one.next_fire is None or not one.enabled else rfc3339(one.next_fire),
                    last_status=None if one.last_status is None else one.last_status.value,
                )
                for one in await engine.schedules.read()
            ],
            history=engine.history,
        )
    except EngineError:
        return _made({name: SnapshotPage(per_page=one.size) for name, one in wanted.items()}, problem=AWAY)


def _made(
    lists: Mapping[List, SnapshotPage],
    schedules: Sequence[ScheduleSummary] = (),
    history: int | None = None,
    problem: str | None = None,
) -> Snapshot:
    return Snapshot(
        enqueued=lists["enqueued"],
        running=lists["running"],
        retrying=lists["retrying"],
        completed=lists["completed"],
        failed=lists["failed"],
        schedules=list(schedules),
        history=history,
        problem=problem,
    )


async def _page(
    context: OperatorContext, engine: Engine, name: List, wanted: PageOf, totals: Mapping[Status, int], now: Instant
) -> SnapshotPage:
    status, window = LISTS[name]
    query = Query(statuses=frozenset({status}), limit=LARGEST_PAGE)
    if window is not None:
        query = replace(query, order="finished", finished_since=now - window)
    # A list without a window has its total from the census, so it is read no further than the page asked for.
    reach = COUNTED if window is not None or status is Status.RUNNING else min(wanted.start + wanted.size, COUNTED)
    jobs, more = await _read(engine, query, reach)
    if status is Status.RUNNING:
        jobs.sort(key=lambda job: (job.started_at or job.created_at, job.id), reverse=True)
    total = len(jobs) if window is not None else totals[status]
    shown = jobs[wanted.start : wanted.start + wanted.size]
    return SnapshotPage(
        records=[_entry(context, job) for job in shown],
        total=total,
        more=more and window is not None,
        page=wanted.page,
        per_page=wanted.size,
        pages=wanted.pages(total),
    )


async def _read(engine: Engine, query: Query, reach: int) -> tuple[list[Job], bool]:
    """The first jobs of a list, and whether there are more."""
    found: list[Job] = []
    while True:
        page = await engine.operator.find(replace(query, limit=min(reach - len(found), LARGEST_PAGE)))
        found += page.jobs
        if page.cursor is None or len(found) >= reach:
            return found, page.cursor is not None
        query = replace(query, cursor=page.cursor)


def _entry(context: OperatorContext, job: Job) -> Entry:
    shown = context.redact.job(job)
    named = origin(shown.payload, shown.options.metadata)
    return Entry(
        id=ids.text(job.id),
        kind=job.kind,
        status=job.status,
        enqueued_at=rfc3339(job.created_at),
        started_at=None if job.started_at is None else rfc3339(job.started_at),
        finished_at=None if job.finished_at is None else rfc3339(job.finished_at),
        attempt=job.attempts,
        attempts=job.base + job.budget,
        last_error=shown.last_error,
        principal=named.principal,
        correlation=named.correlation,
    )

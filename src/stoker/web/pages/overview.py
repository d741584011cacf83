"""The overview: the verdict as title, what needs a person, five figures, charts, queues, errors, the longest runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from stoker.admin.errors import ErrorPage, only
from stoker.model import ids
from stoker.model.control import is_silent, live
from stoker.model.error_records import ErrorGroup
from stoker.model.findings import Finding, verdict
from stoker.model.humanize import count, share, span
from stoker.model.job import Job, Status
from stoker.model.operator_metrics import runs_long
from stoker.model.query import Query
from stoker.model.time import SECOND
from stoker.web import charts, view
from stoker.web.hub import Reading
from stoker.web.pages import shared
from stoker.web.request import RequestContext

SHOWN = 5
MEASURED = 14
"""Bars are read for twice as many queues as are shown: the ranking may change."""
AGAIN = 2
"""Seconds after which the page of an empty store asks again."""
LATEST = 1_000
RUNNING = frozenset({Status.RUNNING})


async def show(visit: RequestContext) -> Response:
    """The first page."""
    hub = visit.board.hub
    reading = await hub.reading()
    if not reading.census.counts and not reading.census.totals:
        return view.page(visit, "first-run.html", first_run(visit, reading))
    engine = await visit.board.store.engine()
    drawn = charts.range_of(visit, reading.census.at)
    times = "processing" if visit.parameter("times") == "processing" else "total"
    rows = shared.queue_rows(visit, reading)
    points = await visit.board.points(drawn, reading.census.at, [row.name for row in rows[:MEASURED]])
    groups, looked = await trouble(visit)
    running: Sequence[Job] = ()
    if reading.census.by_status()[Status.RUNNING]:
        running = (await engine.operator.find(Query(statuses=RUNNING, order="oldest", limit=LATEST))).jobs
    context = _context(visit, reading, rows) | {
        "charts": charts.context(charts.series(points, drawn, times).going_on(drawn, hub.flow()), drawn, visit, times),
        "groups": groups,
        "looked": looked,
        "longest": _longest(visit, running, reading),
    }
    return view.page(visit, "overview.html", context)


def live_context(visit: RequestContext, reading: Reading) -> dict[str, Any]:
    """What changes by itself: title, findings, figures, queues."""
    return _context(visit, reading, shared.queue_rows(visit, reading))


def _context(visit: RequestContext, reading: Reading, rows: Sequence[shared.QueueRow]) -> dict[str, Any]:
    drawn = charts.range_of(visit, reading.census.at)
    found = shared.found(visit, reading)
    return view.common(visit, "overview", verdict(found), found) | {
        "range": drawn.name,
        "window": drawn.window,
        "now": reading.census.at,
        "calm": _calm(found, rows, reading),
        "issues": [shared.issue(visit, one) for one in found[:SHOWN]],
        "more_issues": max(len(found) - SHOWN, 0),
        "t": _tiles(visit, reading, rows),
        "queues": rows,
        "sparks": visit.board.sparks(drawn),
        "live_url": visit.url("live", page="overview", **drawn.query),
    }


async def trouble(visit: RequestContext, queue: str | None = None) -> tuple[list[ErrorGroup], str]:
    """Errors of the latest dead and retrying jobs, and of how many jobs these are."""
    found = await visit.admin.jobs.errors(only(queue), past=False)
    return found.groups, "of all that are dead or retrying" if found.complete else looked(found)


def looked(found: ErrorPage) -> str:
    """Of which jobs groups of errors are, where these are not all."""
    return f"of the latest {found.looked_at:,} dead or retrying"


async def points_json(visit: RequestContext) -> Response:
    """The points of a chart."""
    reading = await visit.board.hub.reading()
    drawn = charts.range_of(visit, reading.census.at)
    engine = await visit.board.store.engine()
    kind = visit.parameter("kind")
    points = await charts.read(engine, drawn, reading.census.at, visit.parameter("queue"), kind)
    found = charts.series(points, drawn, charts.times_of(visit, kind))
    if not kind:
        found = found.going_on(drawn, visit.board.hub.flow(visit.parameter("queue") or None))
    return JSONResponse(charts.as_json(found, visit.parameter("look")))


def first_run(visit: RequestContext, reading: Reading) -> dict[str, Any]:
    """The page of a store that was never used."""
    workers = len(live(reading.presences, reading.census.at))
    note = f"{count(workers, 'worker')} waits." if workers == 1 else f"{count(workers, 'worker')} wait."
    return view.common(visit, "overview", "Nothing has been enqueued yet") | {
        "workers_note": note if workers else "No worker has shown itself.",
        "tasks": sorted(visit.board.jobs.tasks)[:12],
        "again": AGAIN,
        "live_url": "",
    }


def _calm(found: list[Finding], rows: Sequence[shared.QueueRow], reading: Reading) -> str:
    troubled = {one.name for one in found if one.noun == "queue"}
    stands_still = any(one.noun == "worker" and not one.name for one in found)  # then no queue keeps up
    others = [row for row in rows if row.name not in troubled and not row.paused and not stands_still]
    longest = max((row.lag for row in others if row.ready), default=None)
    waited = "nothing that is due waits" if longest is None else f"nothing has waited longer than {span(longest)}"
    if any(one.tone != "plain" for one in found):
        if not others:
            return ""
        kept = "The other queue keeps" if len(others) == 1 else f"The other {len(others)} queues keep"
        return f"{kept} up: {waited}."
    workers = len(live(reading.presences, reading.census.at))
    return f"{waited.capitalize()}, and {count(workers, 'worker')} {'is' if workers == 1 else 'are'} there."


def _tiles(visit: RequestContext, reading: Reading, rows: Sequence[shared.QueueRow]) -> dict[str, Any]:
    census, hub = reading.census, visit.board.hub
    counts = census.by_status()
    flow = hub.flow() or visit.board.minute
    most = max(rows, key=lambda row: row.retrying, default=None)
    waiting = [row for row in rows if row.ready and not row.paused]
    deaths = hub.slowly.deaths
    return {
        "completed": None if flow is None else flow.completed,
        "completed_note": _comes_in(flow),
        "ready": sum(row.ready for row in rows),
        "lag": max((row.lag for row in waiting), default=None),
        "late": any(row.late for row in waiting),
        "running": counts[Status.RUNNING],
        "slots": sum(sum(one.queues.values()) for one in live(reading.presences, census.at)),
        "retrying": counts[Status.RETRYING],
        "retrying_note": (
            f"{most.retrying:,} of them in {most.name}" if most and most.retrying else "none waits for another attempt"
        ),
        "dead": counts[Status.DEAD],
        "dead_note": deaths.figure,
    }


def _comes_in(flow: charts.PerMinute | None) -> str:
    if flow is None:
        return "not counted yet"
    return f"{share(flow.completed, flow.enqueued)} of what comes in" if flow.enqueued else "nothing comes in"


def _longest(visit: RequestContext, jobs: Sequence[Job], reading: Reading) -> list[dict[str, Any]]:
    now = reading.census.at
    hosts = {one.worker: one for one in reading.presences}
    found = []
    for job in sorted(jobs, key=lambda job: job.started_at or now)[:4]:
        place = hosts.get(job.worker or "")
        where = job.queue if place is None else f"{job.queue} on {place.host}"
        age = now - (job.started_at or now)
        found.append(
            {
                "id": ids.text(job.id),
                "kind": job.kind,
                "label": visit.board.redact.text(job.options.label or ""),
                "progress": job.progress,
                "where": f"{where}, silent" if place is not None and is_silent(place, now) else where,
                "age": age // SECOND * SECOND if age > SECOND else age,
                "late": runs_long(job, now),
            }
        )
    return found

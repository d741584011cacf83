"""Kinds: how many jobs each has, how long its runs take and how many fail; and a page for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec.structs import asdict
from starlette.responses import Response

from stoker.admin.errors import only
from stoker.admin.history import closed
from stoker.admin.kinds import LAST, KindView, check_sort, kind_views
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.control import live
from stoker.model.errors import NotFound
from stoker.model.filter import as_value
from stoker.model.humanize import count, share, span
from stoker.model.job import FINISHED, Job, Status
from stoker.model.kind_stats import KindStats, kind_stats
from stoker.model.measures import BOUNDS, histogram_of
from stoker.model.operator_metrics import later_of
from stoker.model.query import Census, Due, Query
from stoker.model.same_error import error_line
from stoker.model.time import SECOND, Instant, Span
from stoker.web import charts, view
from stoker.web.hub import Reading, Want
from stoker.web.pages import enqueue, shared
from stoker.web.request import RequestContext

COUNTED = 1_000
"""The most scheduled jobs that are read one by one to count them by kind."""

RUNS = 500
"""How many of the latest runs of a kind its page reads."""

SHOWN = 8
"""How many of them it lists."""

HEADS: Final = (
    ("Ready", "pending", ""),
    ("Running", "running", ""),
    ("Retrying", "retrying", ""),
    ("Dead", "dead", ""),
    ("Failed", "failures", "part of the runs of the last hour that died or are tried again"),
    ("Run p50", "p50", "half of the runs of the last hour were faster"),
    ("p95", "p95", "of 20 runs of the last hour 19 were faster"),
    ("p99", "p99", "of 100 runs of the last hour 99 were faster"),
    ("Wait p50", "wait50", "half of the runs of the last hour waited less, once they were due"),
    ("p95", "wait95", "of 20 runs of the last hour 19 waited less"),
    ("p99", "wait99", "of 100 runs of the last hour 99 waited less"),
    ("Runs, 1 h", "runs", "runs that ended in the last hour"),
)
"""Columns behind the name: head, the order that it sorts by, and what it means."""


def wants(visit: RequestContext) -> list[Want]:
    """What each kind did in the last hour; and how many jobs of it are not due, where these are few enough to count."""
    board, hub = visit.board, visit.board.hub

    async def stats(engine: Engine) -> tuple[dict[str, KindStats], int]:
        now = (hub.last or await hub.reading()).census.at
        await board.kind_minutes.read(engine, now)
        since, until = closed(now, LAST)
        return kind_stats(board.kind_minutes.points(since, until + 1), since, LAST), 1

    async def later(engine: Engine) -> tuple[Counter[str] | None, int]:
        census = (hub.last or await hub.reading()).census
        if not 0 < sum(census.later.values()) <= COUNTED:
            return None if census.later else Counter(), 0
        parts: tuple[Due, ...] = ("later", "waiting") if census.waiting else ("later",)
        found: Counter[str] = Counter()
        for part in parts:
            page = await engine.operator.find(Query(statuses=frozenset({Status.PENDING}), due=part, limit=COUNTED))
            if page.cursor is not None:
                return None, len(parts)
            found.update(job.kind for job in page.jobs)
        return found, len(parts)

    return [Want("kind stats", stats), Want("later", later)]


async def show(visit: RequestContext) -> Response:
    """Every kind that has jobs or totals."""
    reading = await visit.board.hub.reading()
    found = [await visit.board.hub.wanted(want) for want in wants(visit)]
    return view.page(visit, "kinds.html", live_context(visit, reading, *found))


class KindRow(KindView, frozen=True, kw_only=True):
    """A kind as the table shows it; `ready` and `later`, the jobs that are not due, are None where they are unknown."""

    quoted: str
    path: str
    error: str
    later: int | None
    ready: int | None
    died: str
    failing: str
    unknown: bool


def live_context(
    visit: RequestContext, reading: Reading, stats: dict[str, KindStats], later: Counter[str] | None
) -> dict[str, Any]:
    """The table of kinds; most trouble first, or as the address says."""
    census = reading.census
    sort = check_sort(visit.parameter("sort", "trouble"))
    every = kind_views(census, reading.presences, (), visit.board.redact, stats, sort=sort)
    find = visit.parameter("find").strip().lower()
    found = [one for one in every if find in one.kind.lower()]
    jobs = sum(bool(one.queues) for one in every)
    return view.common(visit, "kinds", "Kinds", shared.found(visit, reading)) | {
        "now": census.at,
        "rows": [_row(one, census, later, serve=_serve(reading)) for one in found],
        "later": ("not due", "pending") if census.waiting else ("scheduled", "scheduled"),
        "sort": sort,
        "find": find,
        "every": len(every),
        "enqueue_url": enqueue.link(visit),
        "heads": HEADS,
        "sub": f"{count(jobs, 'kind')} {'has' if jobs == 1 else 'have'} jobs. Times are of the last hour.",
        "live_url": visit.url("live", page="kinds", sort="" if sort == "trouble" else sort, find=find),
    }


def _serve(reading: Reading) -> bool:
    return any(one.kinds for one in live(reading.presences, reading.census.at))


def _row(one: KindView, census: Census, later: Counter[str] | None, *, serve: bool) -> KindRow:
    not_due = later_of(census, one.kind) if later is None else min(later[one.kind], one.pending)
    ended = one.completed + one.failed
    return KindRow(
        **asdict(one),
        quoted=as_value(one.kind),
        path=quote(one.kind, safe=""),
        error=error_line(one.last_error or ""),
        later=not_due,
        ready=None if not_due is None else one.pending - not_due,
        died=share(one.failed, ended) if ended else "–",
        failing="–" if one.failure_ratio is None else share(one.failure_ratio, 1),
        unknown=serve and not one.known and bool(one.pending + one.retrying + one.running),
    )


# --- one kind -------------------------------------------------------------------------------------------------------


async def one(visit: RequestContext) -> Response:
    """One kind: figures, charts, run times, its slowest and latest runs, its errors."""
    name = visit.request.path_params["name"]
    reading = await visit.board.hub.reading()
    found = [await visit.board.hub.wanted(want) for want in wants(visit)]
    drawn = charts.range_of(visit, reading.census.at)
    engine = await visit.board.store.engine()
    context = one_context(visit, reading, *found)
    points = await charts.read(engine, drawn, reading.census.at, kind=name)
    times = charts.times_of(visit, name)
    query = Query(kinds=frozenset({name}), statuses=FINISHED, order="finished", limit=RUNS)
    page = await engine.operator.find(query)
    runs = [(job, job.finished_at - job.started_at) for job in page.jobs if job.finished_at and job.started_at]
    errors = await visit.admin.jobs.errors(only(kind=name))
    more = {
        "range": drawn.name,
        "window": drawn.window,
        "charts": charts.context(charts.series(points, drawn, times), drawn, visit, times, kind=name),
        "histogram": histogram([took for _, took in runs]),
        "looked": len(runs),
        "latest": [_run(visit, job, took, reading.census.at) for job, took in runs[:SHOWN]],
        "slowest": [
            _run(visit, job, took, reading.census.at) for job, took in sorted(runs, key=lambda run: -run[1])[:SHOWN]
        ],
        "groups": errors.groups,
        "complete": errors.complete,
        "enqueue_url": enqueue.link(visit, name),
    }
    return view.page(visit, "kind.html", context | more)


def one_context(
    visit: RequestContext, reading: Reading, stats: dict[str, KindStats], later: Counter[str] | None
) -> dict[str, Any]:
    """What changes by itself: the figures of a kind."""
    name = visit.request.path_params["name"]
    tasks = visit.board.jobs.tasks
    views = kind_views(reading.census, reading.presences, tasks, visit.board.redact, stats)
    found = next((one for one in views if one.kind == name), None)
    if found is None:
        raise NotFound(f"No job of kind {name} was ever enqueued, and no task has this name.")
    return view.common(visit, "kinds", name, shared.found(visit, reading)) | {
        "k": _row(found, reading.census, later, serve=_serve(reading)),
        "now": reading.census.at,
        "live_url": visit.url("live", page="kind", name=name),
    }


def histogram(spans: Sequence[Span]) -> list[tuple[str, int]]:
    """How many runs took how long, in steps that grow; those before the first and behind the last are left out."""
    if not spans:
        return []
    counts = histogram_of([taken / SECOND for taken in spans]).counts
    labels = [*(f"up to {_bound(bound)}" for bound in BOUNDS), f"over {_bound(BOUNDS[-1])}"]
    filled = [place for place, n in enumerate(counts) if n]
    return list(zip(labels, counts, strict=True))[filled[0] : filled[-1] + 1]


def _bound(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds < 0.1 else span(round(seconds * SECOND))


def _run(visit: RequestContext, job: Job, took: Span, now: Instant) -> dict[str, Any]:
    id_ = ids.text(job.id)
    return {
        "id": f"{id_[:8]}…{id_[-4:]}",
        "label": visit.board.redact.text(job.options.label or ""),
        "url": visit.url(f"jobs/{id_}"),
        "status": job.view(now),
        "took": took,
        "at": min(job.finished_at or now, now),
        "queue": job.queue,
    }

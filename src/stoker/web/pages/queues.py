"""Queues: what waits in each, how soon it is clear, and how to pause and tune them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from stoker.model.control import Queue, live
from stoker.model.errors import InvalidArgument, NotFound
from stoker.model.humanize import count, span
from stoker.model.job import Status
from stoker.web import charts, view
from stoker.web.hub import Reading
from stoker.web.pages import enqueue, shared
from stoker.web.pages.overview import trouble
from stoker.web.request import RequestContext

FEW = 8
"""Up to how many queues idle ones are shown too."""

NEVER_CLEAR: Final = timedelta(days=36_500)
"""What a queue that grows counts as."""

SORTS: Final[dict[str, Callable[[shared.QueueRow], Any]]] = {
    "queue": lambda row: row.name,
    "used": lambda row: -row.running,
    "ready": lambda row: -row.ready,
    "waits": lambda row: -row.lag if row.ready else timedelta(0),
    "clear": lambda row: -(row.clear_in or NEVER_CLEAR) if row.ready and not row.paused else timedelta(0),
    "scheduled": lambda row: -row.scheduled,
    "waiting": lambda row: -row.waiting,
    "retrying": lambda row: -row.retrying,
    "p95": lambda row: -row.total.p95 if row.total else 0.0,
    "completed": lambda row: -row.flow.completed,
}
"""By what the table is sorted: the most first, names from the first."""


async def show(visit: RequestContext) -> Response:
    """Every queue."""
    reading = await visit.board.hub.reading()
    drawn = charts.range_of(visit, reading.census.at)
    await visit.board.measure(drawn, reading.census.at, shared.queue_names(reading))
    return view.page(visit, "queues.html", live_context(visit, reading))


def live_context(visit: RequestContext, reading: Reading) -> dict[str, Any]:
    """The table of queues."""
    drawn = charts.range_of(visit, reading.census.at)
    sparks = visit.board.sparks(drawn)
    every = shared.queue_rows(visit, reading, visit.board.recent)
    rows, idle = _chosen(visit, every, sparks)
    asked = {name: visit.parameter(name) for name in ("sort", "find", "idle")}
    slots = sum(sum(one.queues.values()) for one in live(reading.presences, reading.census.at))
    running = reading.census.by_status()[Status.RUNNING]
    workers = len(live(reading.presences, reading.census.at))
    return view.common(visit, "queues", "Queues", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "range": drawn.name,
        "window": drawn.window,
        **asked,
        "query": drawn.query,
        "folded": idle,
        "every": len(every),
        "sub": f"{count(len(every), 'queue')}, {count(slots, 'slot')} on {count(workers, 'worker')}, {running:,} used.",
        "rows": [(row, clear_in(row), note(row)) for row in rows],
        "sparks": sparks,
        "live_url": visit.url("live", page="queues", **drawn.query, **asked),
    }


def _chosen(
    visit: RequestContext, rows: Sequence[shared.QueueRow], sparks: Mapping[str, Sequence[float]]
) -> tuple[list[shared.QueueRow], int]:
    """The queues that the address asks for, in its order, and how many idle ones are folded away."""
    sort, find = visit.parameter("sort"), visit.parameter("find").strip().lower()
    if sort and sort not in SORTS:
        raise InvalidArgument("sort", sort, f"must be one of {', '.join(SORTS)}")
    found = [row for row in rows if find in row.name.lower()]
    if sort:
        found.sort(key=SORTS[sort])
    if find or visit.parameter("idle") or len(found) <= FEW:
        return found, 0
    busy = [row for row in found if not _is_idle(row) or any(sparks.get(row.name, ()))]
    return busy, len(found) - len(busy)


def _is_idle(row: shared.QueueRow) -> bool:
    """Is there nothing in it, and nothing to say about it?"""
    jobs = row.ready or row.running or row.scheduled or row.waiting or row.retrying
    return not (jobs or row.paused or row.cooling_until or row.late)


def clear_in(row: shared.QueueRow) -> tuple[str, bool]:
    """How soon a queue is clear, and whether it grows."""
    if row.paused or not row.ready or row.clear_in is None:
        return "–", False
    return ("growing", True) if row.flow.growing else (span(row.clear_in), False)


def note(row: shared.QueueRow) -> str:
    """What is special about a queue, in a few words."""
    if row.paused:
        who = row.paused_by or "paused"
        return who if row.paused_why is None else f"{who}: “{row.paused_why}”"
    if row.limit is not None:
        return f"tuned to {count(row.limit, 'slot')}"
    if row.rate is not None:
        return f"at most {row.rate.in_words}"
    return "all slots busy" if row.slots and row.running >= row.slots else ""


async def one(visit: RequestContext) -> Response:
    """One queue: charts, settings, workers, kinds, errors."""
    name = visit.request.path_params["name"]
    reading = await visit.board.hub.reading()
    known = name in shared.queue_names(reading)
    if not known:
        await visit.admin.queues.get(name)  # a schedule or a task may name it; else it is not found
        reading = reading._replace(queues=[*reading.queues, Queue(name=name)])
    context = one_context(visit, reading) | ({} if known else {"live_url": ""})
    drawn = charts.range_of(visit, reading.census.at)
    engine = await visit.board.store.engine()
    points = await charts.read(engine, drawn, reading.census.at, name)
    times = "processing" if visit.parameter("times") == "processing" else "total"
    groups, looked = await trouble(visit, name)
    plain = Queue(name=name, keep_done=engine.keep_done)
    more = {
        "range": drawn.name,
        "window": drawn.window,
        "charts": charts.context(
            charts.series(points, drawn, times).going_on(drawn, visit.board.hub.flow(name)), drawn, visit, times, name
        ),
        "groups": groups,
        "looked": looked,
        "settings": next((one for one in reading.queues if one.name == name), plain),
        "plain": plain,
    }
    return view.page(visit, "queue.html", context | more)


def one_context(visit: RequestContext, reading: Reading) -> dict[str, Any]:
    """What changes by itself: the state, the figures, the kinds and the workers of a queue."""
    name = visit.request.path_params["name"]
    row = next((row for row in shared.queue_rows(visit, reading) if row.name == name), None)
    if row is None:
        raise NotFound(f"Queue {name} was neither used nor tuned, and no worker serves it.")
    now = reading.census.at
    return view.common(visit, "queues", name, shared.found(visit, reading)) | {
        "q": row,
        "now": now,
        "note": note(row),
        "workers": [one for one in live(reading.presences, now) if name in one.queues],
        "kinds": _kinds(reading, name),
        "may": visit.may("operate", name),
        "enqueue_url": enqueue.link(visit, queue=name),
        "live_url": visit.url("live", page="queue", name=name),
    }


def _kinds(reading: Reading, queue: str) -> list[tuple[str, dict[str, int]]]:
    found: dict[str, dict[str, int]] = {}
    for one in reading.census.counts:
        if one.queue == queue:
            found.setdefault(one.kind, {})[one.status.value] = one.n
    return sorted(found.items(), key=lambda item: (-item[1].get("dead", 0), item[0]))

"""What several pages show in the same way: queues in a row, findings with their links, jobs in a list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from stoker.admin.queues import QueueView, views
from stoker.model.control import Queue, live
from stoker.model.events import Point
from stoker.model.filter import Filter, as_value
from stoker.model.findings import Finding, findings, late_queues
from stoker.model.time import HOUR, Instant, instant
from stoker.views import Job, curve_of
from stoker.web.hub import Reading
from stoker.web.problems import Problem
from stoker.web.request import RequestContext

BUTTONS = {
    "worker": "Open workers",
    "queue": "Open queue",
    "kind": "Show jobs",
    "jobs": "Show them",
    "schedule": "Open schedule",
    "consumer": "Open outbox",
}


def queue_names(reading: Reading) -> list[str]:
    """Every queue that has jobs, was tuned or is served, by name."""
    served = {name for one in live(reading.presences, reading.census.at) for name in one.queues}
    return sorted({*(one.queue for one in reading.census.counts), *(one.name for one in reading.queues), *served})


async def hint_of(visit: RequestContext, queue: str | None) -> str:
    """What to say about a queue of which nothing was found: the nearest one, if it is not known."""
    return "" if queue is None else (await visit.admin.jobs.find(Filter(queues=(queue,)), limit=1)).hint


def check_queue(visit: RequestContext, queue: str) -> None:
    """Refuse a change in a queue that this visitor does not reach."""
    if not visit.who.reaches(queue):
        raise Problem(403, "queue", f"{visit.who.name} may not change anything in queue {queue}. Nothing was changed.")


def check_kind(visit: RequestContext, kind: str, queue: str) -> None:
    """Refuse a new job to a visitor who is limited to some queues, unless it goes to its kind's own, one of these.

    A worker that serves several queues would run any kind in any of them.
    """
    check_queue(visit, queue)
    if not visit.who.reaches_all and queue != visit.board.jobs.queue_of(kind):
        text = f"{visit.who.name} is limited to some queues, and {queue} is not the queue of {kind}."
        raise Problem(403, "queue", f"{text} Nothing was stored.")


async def check_quotas(visit: RequestContext, queue: str) -> None:
    """Refuse more jobs in a minute than one identity may enqueue, and more in a queue than may wait there."""
    board, name, now = visit.board, visit.who.name, time.monotonic()
    most = board.limits.waiting_per_queue
    if (await board.hub.reading()).census.ready(queue) >= most:
        raise Problem(429, "queue_full", f"Queue {queue} has {most:,} jobs that wait. Nothing was stored.")
    minute = int(now // 60)
    when, used = board.enqueued.get(name, (minute, 0))
    used = used + 1 if when == minute else 1
    if used > board.limits.enqueued_per_minute:
        problem = Problem(429, "quota", f"{name} may enqueue {board.limits.enqueued_per_minute:,} jobs a minute.")
        problem.headers["retry-after"] = str(60 - int(now % 60))
        raise problem
    board.enqueued[name] = (minute, used)


def needs_everything(visit: RequestContext) -> None:
    """Refuse a change of what belongs to no single queue to a visitor who is limited to some."""
    if not visit.who.reaches_all:
        raise Problem(403, "queue", f"{visit.who.name} is limited to some queues. Nothing was changed.")


def found(visit: RequestContext, reading: Reading) -> list[Finding]:
    """What needs a person now; with what is read more rarely as it was read last."""
    return findings(visit.board.hub.situation(reading))


def issue(visit: RequestContext, one: Finding) -> dict[str, Any]:
    """A finding with the address of what it is about."""
    links = {
        "worker": visit.url("workers"),
        "queue": visit.url(f"queues/{quote(one.name, safe='')}"),
        "kind": visit.url("jobs", q=f"kind:{as_value(one.name)} is:pending"),
        "jobs": visit.url("jobs", q=one.filter),
        "schedule": visit.url(f"schedules/{quote(one.name, safe='')}"),
        "consumer": visit.url("outbox"),
    }
    return {
        "tone": one.tone,
        "about": one.noun,
        "name": one.name,
        "text": one.text,
        "detail": one.detail,
        "remedy": one.remedy,
        "link": links[one.noun],
        "button": BUTTONS[one.noun],
        "id": one.id,
        "acknowledged": one.acknowledged,
        "acknowledges": one.tone != "plain" and visit.may("operate") and visit.who.reaches_all,
    }


class QueueRow(QueueView, frozen=True, kw_only=True):
    """A queue as tables show it."""

    late: bool
    path: str
    quoted: str


def queue_rows(visit: RequestContext, reading: Reading, points: Sequence[Point] = ()) -> list[QueueRow]:
    """Queues with their state, and their flow if points are given; the longest wait first, paused ones last."""
    late = late_queues(visit.board.hub.situation(reading))
    rows = [
        QueueRow(
            **{name: getattr(one, name) for name in QueueView.__struct_fields__},
            late=one.name in late,
            path=quote(one.name, safe=""),
            quoted=as_value(one.name),
        )
        for one in views(reading.census, reading.queues, reading.presences, points)
    ]
    return sorted(rows, key=lambda row: (row.paused, -row.lag if row.ready else row.lag * 0, row.name))


def settings(queue: Queue) -> tuple[tuple[str, str], ...]:
    """The fields of a form that sets a queue as it is."""
    rate, curve = queue.rate, curve_of(queue)
    return (
        ("workers", "" if queue.workers is None else str(queue.workers)),
        ("rate_n", "" if rate is None else f"{rate.n:g}"),
        ("rate_per", "" if rate is None else f"{rate.per:g}"),
        ("keep_done", f"{queue.keep_done / HOUR:g}"),
        ("keep_dead", f"{queue.keep_dead / HOUR:g}"),
        ("curve_base", "" if curve is None else f"{curve.base:g}"),
        ("curve_max", "" if curve is None else f"{curve.max:g}"),
    )


def shown_status(job: Job, now: Instant) -> str:
    """The status as people read it: pending is ready, scheduled or, after a suspension, waiting."""
    if job.status.value != "pending":
        return job.status.value
    return "ready" if instant(job.scheduled_at) <= now else "waiting" if job.suspended else "scheduled"


def listed(values: list[str], most: int = 3) -> str:
    """Some names, and how many more."""
    rest = len(values) - most
    return ", ".join(values[:most]) + (f" and {rest} more" if rest > 0 else "")

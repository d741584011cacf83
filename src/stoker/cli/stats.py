"""`stoker stats`: what went through the store, or through one queue, over a time, with its course."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, NamedTuple

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.history import SeriesPoint
from stoker.cli.completion import complete_queues
from stoker.cli.store import EXIT_CODES, ask, on_target, read_time
from stoker.cli.tables import Columns, Figure, as_lines_option, columns, mark, table
from stoker.cli.text import say
from stoker.model.events import EventType
from stoker.model.humanize import pace, span, spark
from stoker.model.stats import TIMES, of_all
from stoker.model.time import MINUTE, SECOND, Span, instant, moment

BARS: Final = 24
"""A course is drawn with about so many bars at most: a bar is an hour of a day, and they fit into 80 columns."""

NAMES: Final = {
    EventType.ENQUEUED.value: "enqueued",
    EventType.COMPLETED.value: "completed",
    EventType.RETRIED.value: "retries",
    EventType.FAILED.value: "deaths",
    "processing": "run time",
    "total": "enqueue to end",
}


class Course(NamedTuple):
    """A metric over a time: its sum or its percentiles, and its points, one for each bar in which anything happened."""

    name: str
    total: int
    per_minute: float | None
    p50: timedelta | None
    p95: timedelta | None
    bars: str
    points: list[SeriesPoint]


COLUMNS: Columns[Course] = {
    "figure": "name",
    "total": lambda one: mark(one.total, "bad", when=one.total and one.name == NAMES[EventType.FAILED]),
    "per minute": lambda one: "" if one.per_minute is None else Figure(pace(one.per_minute)),
    **columns("p50", "p95", "bars"),
}


@click.command(epilog=EXIT_CODES)
@click.option("--last", default="1h", show_default=True, metavar="TIME", help="How far back, as in 24h or 7d.")
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queues, help="Only this queue.")
@as_lines_option
@on_target
def stats(last: str, queue: str | None, as_json: bool, path: str | None, url: str | None) -> None:
    """Show how many jobs came, ended, failed and died over a time, how long they took, and the course of each.

    Only whole minutes count. The p95 is that of the worst part of the time, as in the charts of the dashboard.
    """
    window = read_time("--last", last)
    width = max(-(-window // (BARS * MINUTE)), 1) * MINUTE
    found = ask(path, url, lambda admin: courses(admin, queue, max(window, MINUTE), width))
    table(found, COLUMNS, as_json, lambda one: plain(one._asdict()), goes_first=("p50",))
    if not as_json:
        where = "all queues" if queue is None else f"queue {queue}"
        say(f"{where}, the last {span(window)}, {span(width)} a bar", err=True)


async def courses(admin: Operators, queue: str | None, window: Span, width: Span) -> list[Course]:
    """The course of each figure over a window that ends now, of all queues or of one, in bars of `width`."""
    if queue is not None:
        await admin.queues.get(queue)  # a name that is not known is refused
    now = await (await admin.app.engine()).now()
    until, buckets = moment(now), range((now - window) // width * width, now, width)

    async def course(metric: str) -> Course:
        points = await admin.history.series(
            of_all(metric) if queue is None else metric,
            window / SECOND,
            width=width / SECOND,
            queue=queue,
            until=until,
        )
        timed, total = metric in TIMES, sum(one.count for one in points)
        values = {instant(one.at): one.p95 if timed else one.count for one in points}
        p50 = sum(one.p50 * one.count for one in points) / total if timed and total else None
        return Course(
            name=NAMES[metric],
            total=total,
            per_minute=None if timed else total * MINUTE / window,
            p50=None if p50 is None else timedelta(seconds=p50),
            p95=timedelta(seconds=max(one.p95 for one in points)) if timed and points else None,
            bars=spark([values.get(at, 0) for at in buckets]),
            points=points,
        )

    return list(await asyncio.gather(*map(course, NAMES)))

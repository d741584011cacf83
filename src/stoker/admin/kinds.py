"""Kinds for operators: how many jobs of each there are, how long they take, and what became of those before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import msgspec

from stoker.admin.context import Noun
from stoker.admin.documents import kind_hours
from stoker.admin.history import closed
from stoker.engines.base import Engine
from stoker.model.control import Presence, live
from stoker.model.errors import InvalidArgument, NotFound
from stoker.model.events import Point
from stoker.model.job import Status
from stoker.model.kind_hours import filled
from stoker.model.kind_stats import KindStats, kind_stats
from stoker.model.query import Census, Totals
from stoker.model.redact import Redaction
from stoker.model.stats import BUCKET, BY_KIND, OF_ALL
from stoker.model.time import HOUR, Instant, Span

LAST = 60
"""Closed minutes over which runs are measured."""

RECENT_HOURS: Span = 2 * HOUR
"""Every store has the minutes of so long ago."""


class KindView(msgspec.Struct, frozen=True, kw_only=True):
    """A kind: its jobs now, and what became of all of them since the store was made.

    `known`: a live worker has the task. `last_error` is that of the last run that ended, unless it succeeded. The rest
    is about the last hour of closed minutes: how many runs ended, which part of them failed, about how long completed
    runs took and were due before, and how many ended in each two minutes; None where nothing is known.
    """

    kind: str
    queues: tuple[str, ...] = ()
    pending: int = 0
    running: int = 0
    retrying: int = 0
    dead: int = 0
    enqueued: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    canceled: int = 0
    last_error: str | None = None
    known: bool = False
    runs: int = 0
    failure_ratio: float | None = None
    run_p50: timedelta | None = None
    run_p95: timedelta | None = None
    run_p99: timedelta | None = None
    wait_p50: timedelta | None = None
    wait_p95: timedelta | None = None
    wait_p99: timedelta | None = None
    bars: tuple[int, ...] = ()


SORTS: Final[dict[str, Callable[[KindView], Any]]] = {
    "trouble": lambda one: (-(one.dead + one.retrying), -one.completed),
    "kind": lambda one: one.kind,
    "p50": lambda one: _most(one.run_p50),
    "p95": lambda one: _most(one.run_p95),
    "p99": lambda one: _most(one.run_p99),
    "wait50": lambda one: _most(one.wait_p50),
    "wait95": lambda one: _most(one.wait_p95),
    "wait99": lambda one: _most(one.wait_p99),
    "failures": lambda one: _most(one.failure_ratio),
    "runs": lambda one: -one.runs,
    "pending": lambda one: -one.pending,
    "running": lambda one: -one.running,
    "retrying": lambda one: -one.retrying,
    "dead": lambda one: -one.dead,
    "completed": lambda one: -one.completed,
    "deaths": lambda one: -one.failed,
}
"""Orders of kinds: the most first; names decide between equals."""


def _most(value: timedelta | float | None) -> float:
    """A key that sorts the largest first, and what is not known last."""
    return 1.0 if value is None else -(value.total_seconds() if isinstance(value, timedelta) else value)


def check_sort(sort: str) -> str:
    """An order of kinds; an unknown one is refused."""
    if sort not in SORTS:
        raise InvalidArgument("sort", sort, f"must be one of {', '.join(SORTS)}")
    return sort


class KindsAdmin(Noun):
    """Questions about kinds."""

    async def list(self, *, sort: str = "trouble") -> list[KindView]:
        """Every kind that has or had jobs, and every task of this app; those in trouble first, or as `sort` says."""
        check_sort(sort)
        engine = await self._context.engine()
        census = await engine.operator.census()
        stats = await read_stats(engine, census.at)
        known = self._context.app.tasks
        return kind_views(census, await engine.control.workers(), known, self._context.redact, stats, sort=sort)

    async def get(self, kind: str) -> KindView:
        """One kind. Raises `NotFound`."""
        for one in await self.list():
            if one.kind == kind:
                return one
        raise NotFound(f"no job of kind {kind!r} was ever enqueued, and no task has this name")


async def read_stats(engine: Engine, now: Instant) -> dict[str, KindStats]:
    """What each kind did in the last hour."""
    since, until = closed(now, LAST)
    return kind_stats(await engine.timeline.points(since, until, BY_KIND), since, LAST)


async def read_points(
    engine: Engine,
    kind: str,
    metrics: Sequence[str],
    since: Instant,
    until: Instant,
    width: Span | None,
    *,
    now: Instant,
) -> list[Point]:
    """The points of a kind in [since, until), and which minutes were counted, merged into buckets of `width`.

    Of hours whose minutes are gone the records of the roll-up are read, for seven days.
    """
    names = OF_ALL | {kind}
    if since >= now - RECENT_HOURS:
        return await engine.timeline.points(since, until - 1, metrics, names, width=width)
    minutes = await engine.timeline.points(since, until - 1, metrics, names)
    found = filled(minutes, await kind_hours(engine), kind, since, until, width or BUCKET)
    return [one for one in found if one.metric in metrics]


def kind_views(
    census: Census,
    presences: Sequence[Presence],
    registered: Iterable[str],
    redact: Redaction,
    stats: Mapping[str, KindStats] = MappingProxyType({}),
    *,
    sort: str = "trouble",
) -> list[KindView]:
    """All kinds; those with dead or retrying jobs first, then by how many were completed, or as `sort` names it."""
    known = {kind for one in live(presences, census.at) for kind in one.kinds}
    now: dict[str, dict[str, int]] = {}
    queues: dict[str, set[str]] = {}
    for count in census.counts:
        counts = now.setdefault(count.kind, {})
        counts[count.status] = counts.get(count.status, 0) + count.n
        queues.setdefault(count.kind, set()).add(count.queue)
    found = []
    for kind in sorted({*now, *census.totals, *registered}):
        totals, counts = census.totals.get(kind, Totals()), now.get(kind, {})
        found.append(
            KindView(
                kind=kind,
                queues=tuple(sorted(queues.get(kind, ()))),
                pending=counts.get(Status.PENDING, 0),
                running=counts.get(Status.RUNNING, 0),
                retrying=counts.get(Status.RETRYING, 0),
                dead=counts.get(Status.DEAD, 0),
                enqueued=totals.enqueued,
                completed=totals.completed,
                retried=totals.retried,
                failed=totals.failed,
                canceled=totals.canceled,
                last_error=None if totals.last_error is None else redact.text(totals.last_error),
                known=kind in known,
                **_lately(stats.get(kind)),
            )
        )
    return sorted(sorted(found, key=lambda one: one.kind), key=SORTS[sort])


def _lately(stats: KindStats | None) -> dict[str, Any]:
    if stats is None:
        return {}
    times = {
        f"{name}_{rank}": timedelta(microseconds=round(value))
        for name, ranks in (("run", stats.run), ("wait", stats.wait))
        for rank, value in (() if ranks is None else ranks._asdict().items())
    }
    return {"runs": stats.runs, "failure_ratio": stats.failure_ratio, "bars": stats.bars, **times}

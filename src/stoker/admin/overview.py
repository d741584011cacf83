"""The overview: what an operator looks at first, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from stoker.admin.asking import Asking
from stoker.admin.history import Failures, closed
from stoker.admin.kinds import KindView, kind_views
from stoker.admin.queues import MEASURED, QueueView, minutes_of, views
from stoker.admin.workers import WorkerView, worker_views
from stoker.engines.base import Engine, Feature, outbox_of
from stoker.model.derived import ErrorGroup, Flow, deliveries
from stoker.model.events import EventType, Point
from stoker.model.findings import LEAST_DEATHS, Deaths, Finding, Situation, findings, verdict
from stoker.model.job import Status
from stoker.model.outbox.steering import StreamState
from stoker.model.schedule import Action, Schedule
from stoker.model.stats import OF_ALL, of_all
from stoker.model.time import DAY, HOUR, MINUTE, Instant, Seconds, moment, span
from stoker.model.words import count


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the first page and in `stoker status`, read at one time.

    `verdict` is the title over `findings`. `counts` holds jobs by status, with `ready` and `scheduled` as the parts of
    pending. `flow` is what went in and out of all queues in the closed minutes of the window.
    """

    at: datetime
    window: timedelta
    verdict: str
    findings: list[Finding]
    counts: dict[str, int]
    flow: Flow
    queues: list[QueueView]
    workers: list[WorkerView]
    kinds: list[KindView]

    @property
    def needs_attention(self) -> bool:
        """Is there a finding that counts?"""
        return any(one.tone != "plain" for one in self.findings)

    def with_letters(self, letters: Mapping[str, int]) -> Overview:
        """The same with the letters of each stream, which the six calls of an overview do not count."""
        more = [
            Finding(
                "warn",
                "consumer",
                stream,
                f"has {count(n, 'letter')} to decide on",
                f"`stoker outbox letters {stream}` lists them.",
            )
            for stream, n in sorted(letters.items())
            if n
        ]
        found = [*self.findings, *more]
        return msgspec.structs.replace(self, findings=found, verdict=verdict(found))


async def overview(asking: Asking, window: Seconds = 3600, failures: Failures | None = None) -> Overview:
    """Read everything in six calls: census, queues, workers, points, schedules, streams.

    Failures that were read before tell of deaths in the minute that is not closed, and what they have in common.
    Of a window below an hour only its own deaths are known from points; for one above an hour another call reads them.
    Deaths are compared with the last day; if there are many, one call more reads the points of that day.
    """
    engine = await asking.engine()
    census = await engine.census()
    wide = max(span(window, "window"), MINUTE)
    minutes = minutes_of(wide)
    since, until = closed(census.at, minutes)
    points = await engine.points(since, until, MEASURED, width=minutes * MINUTE)
    queues, presences = await engine.queues(), await engine.workers()
    schedules = await engine.schedules()
    streams: Sequence[StreamState] = ()
    if Feature.OUTBOX in engine.features:
        streams = await outbox_of(engine).streams()
    hour = _deaths(points) if wide <= HOUR else _deaths(await _failed(engine, until + 1 - HOUR, until))
    hour = max(hour, 0 if failures is None else failures.died)
    day = _deaths(await _failed(engine, until + 1 - DAY, until)) if hour > LEAST_DEATHS else 0
    deaths = _known(hour, day, None if failures is None else failures.worst)
    found = findings(
        Situation(
            census=census,
            queues=queues,
            presences=presences,
            deaths=deaths,
            failed_schedules=failed_schedules(schedules),
            deliveries=deliveries(streams, census.at),
        )
    )
    shown = views(census, queues, presences, points, minutes)
    counts = {status.value: n for status, n in census.by_status().items()}
    scheduled = sum(census.scheduled.values())
    return Overview(
        at=moment(census.at),
        window=timedelta(microseconds=wide),
        verdict=verdict(found),
        findings=found,
        counts={"ready": counts[Status.PENDING] - scheduled, "scheduled": scheduled, **counts},
        flow=_sum(shown, minutes),
        queues=shown,
        workers=worker_views(presences, census.at),
        kinds=kind_views(census, presences, asking.app.tasks, asking.redact),
    )


def _known(hour: int, day: int, worst: ErrorGroup | None) -> Deaths:
    """Deaths of an hour and a day, and what most of the former have in common."""
    if worst is None:
        return Deaths(hour, max(hour, day))
    return Deaths(hour, max(hour, day), worst.count, worst.error, worst.kind, worst.sample)


async def _failed(engine: Engine, since: Instant, until: Instant) -> list[Point]:
    """What died in all queues together."""
    return await engine.points(since, until, [of_all(EventType.FAILED)], OF_ALL, width=until + 1 - since)


def _deaths(points: Sequence[Point]) -> int:
    return sum(one.count for one in points if one.metric in _FAILED)


_FAILED = frozenset({EventType.FAILED.value, of_all(EventType.FAILED)})
"""Of each queue, or of all together: no call reads both."""


def _sum(queues: Sequence[QueueView], minutes: int) -> Flow:
    parts = [one.flow for one in queues]
    return Flow(
        minutes=minutes,
        enqueued=sum(one.enqueued for one in parts),
        completed=sum(one.completed for one in parts),
        failed=sum(one.failed for one in parts),
        retried=sum(one.retried for one in parts),
    )


def failed_schedules(schedules: Sequence[Schedule]) -> dict[str, str]:
    """The schedules that could not fire, or were disabled by an error, with the error."""
    return {
        one.name: one.last_error
        for one in schedules
        if one.last_error is not None and one.last_status in {Action.FAIL, Action.DISABLE, None}
    }

"""The overview: what an operator looks at first, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from stoker.admin.attention import situation
from stoker.admin.context import OperatorContext
from stoker.admin.history import closed
from stoker.admin.kinds import KindView, kind_views
from stoker.admin.queues import MEASURED, QueueView, minutes_of, views
from stoker.admin.workers import WorkerView, worker_views
from stoker.model.errors import InvalidArgument
from stoker.model.findings import WORST, Finding, Tone, findings, verdict
from stoker.model.job import Status
from stoker.model.operator_metrics import Flow
from stoker.model.query import Census
from stoker.model.stats import counted_minutes
from stoker.model.time import MINUTE, Seconds, moment, span


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """What needs a person: the verdict over the findings, and jobs by status, with pending as ready,
    scheduled and waiting.
    """

    at: datetime
    verdict: str
    findings: list[Finding]
    counts: dict[str, int]


class Overview(Attention, frozen=True, kw_only=True):
    """Everything on the first page and in `stoker status`, read at one time.

    `flow` is what went in and out of all queues in the closed minutes of the window that were counted.
    """

    window: timedelta
    flow: Flow
    queues: list[QueueView]
    workers: list[WorkerView]
    kinds: list[KindView]

    @property
    def needs_attention(self) -> bool:
        """Is there a finding that counts?"""
        return any(one.tone != "plain" for one in self.findings)

    @property
    def tones(self) -> dict[str, Tone]:
        """The worst tone of the findings about each queue that has some."""
        found: dict[str, Tone] = {}
        for one in sorted(self.findings, key=lambda one: -WORST.index(one.tone)):
            if one.noun == "queue":
                found[one.name] = one.tone
        return found

    @property
    def worst_first(self) -> list[QueueView]:
        """The queues in the order in which a person should look: what was found, long waits, deaths, idle ones last.

        Waits count in steps of ten seconds, so that queues which keep up do not change places at every look.
        """
        tones = self.tones

        def place(one: QueueView) -> tuple[int, bool, int, int, bool, str]:
            waits = 0 if one.paused or not one.ready else one.lag // timedelta(seconds=10)
            idle = not (one.ready or one.running or one.retrying or one.dead)
            return WORST.index(tones.get(one.name, "plain")), one.paused, -waits, -one.dead, idle, one.name

        return sorted(self.queues, key=place)

    @property
    def wrong(self) -> bool:
        """Is there a finding that is bad?"""
        return any(one.tone == "bad" for one in self.findings)


async def overview(context: OperatorContext, window: Seconds = 3600) -> Overview:
    """Read everything in six calls: census, queues, workers, points, schedules, streams.

    Where jobs are dead, letters wait, workers are silent or queues wait long, a few calls more tell about these; where
    anything needs a person, one tells what was acknowledged.
    """
    engine = await context.engine()
    census = await engine.operator.census()
    wide = max(span(window, "window", InvalidArgument), MINUTE)
    minutes = minutes_of(wide)
    since, until = closed(census.at, minutes)
    points = await engine.timeline.points(since, until, MEASURED, width=minutes * MINUTE)
    queues, presences = await engine.control.queues(), await engine.control.workers()
    found = findings(await situation(engine, context.app, context.redact, census, queues, presences))
    shown = views(census, queues, presences, points)
    return Overview(
        **msgspec.structs.asdict(attention(census, found)),
        window=timedelta(microseconds=wide),
        flow=_sum(shown, counted_minutes(points)),
        queues=shown,
        workers=worker_views(presences, census.at),
        kinds=kind_views(census, presences, context.app.tasks, context.redact),
    )


def attention(census: Census, found: list[Finding]) -> Attention:
    """The findings under their title, with the counts of the same reading."""
    counts = {status.value: n for status, n in census.by_status().items()}
    later, waiting = sum(census.later.values()), sum(census.waiting.values())
    return Attention(
        at=moment(census.at),
        verdict=verdict(found),
        findings=found,
        counts={
            "ready": counts[Status.PENDING] - later,
            "scheduled": later - waiting,
            "waiting": waiting,
            **counts,
        },
    )


def _sum(queues: Sequence[QueueView], minutes: int) -> Flow:
    parts = [one.flow for one in queues]
    return Flow(
        minutes=minutes,
        enqueued=sum(one.enqueued for one in parts),
        completed=sum(one.completed for one in parts),
        failed=sum(one.failed for one in parts),
        retried=sum(one.retried for one in parts),
    )

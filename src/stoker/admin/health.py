"""The check-up of a store: reads what there is to read and judges it by the rules of `model.health`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from stoker.admin import attention, documents
from stoker.admin.context import Noun
from stoker.engines.base import CORRUPT, Description, Engine
from stoker.engines.sealed.engine import seal_of
from stoker.event_buffer import wall
from stoker.model import humanize, ids
from stoker.model.errors import (
    CorruptRecord,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineUnavailable,
    InvalidInput,
    NotFound,
    SchemaMismatch,
    shown,
)
from stoker.model.events import EventType
from stoker.model.findings import LONGEST_ACKNOWLEDGED, LONGEST_REASON, Acknowledgement, Finding, findings
from stoker.model.findings import Situation as Work
from stoker.model.health import jobs, postgres, redis, seal, sqlite, transport
from stoker.model.health.check import Check, note, ok, warning, wrong
from stoker.model.health.facts import MOST_NAMED, Facts
from stoker.model.health.jobs import Misdated, Overdue, Situation
from stoker.model.job import Job, Status
from stoker.model.query import LARGEST_PAGE, Order, Query
from stoker.model.schedule import is_unreadable
from stoker.model.stats import of_kind
from stoker.model.time import HOUR, MINUTE, SECOND, Instant, Seconds, Span, span

_ENDS: Final = {of_kind(type_): type_ for type_ in (EventType.COMPLETED, EventType.FAILED, EventType.RETRIED)}
"""Metrics of kinds that count runs that ended, by what ended them."""

SLACK: Span = 5 * SECOND
"""A worker gets so long to stop a run that is beyond its limit."""

_OWN_WORDS = (SchemaMismatch, EngineRefused, EngineReadOnly, EngineFull)
"""Errors whose text is Stoker's own sentence. That of others may be a driver's."""


class HealthAdmin(Noun):
    """The check-up of a store, and what people know of its findings."""

    async def findings(self) -> list[Finding]:
        """What needs a person now, in the order in which to look; what was acknowledged is plain."""
        return findings(await self._work(await self._context.engine()))

    async def acknowledge(self, finding: str, *, reason: str, for_: Seconds = 86_400) -> Finding:
        """Say that a finding is known, and why it may stay so long, a day at most; returns it as it is shown then.

        It is history until then, unless its tone becomes worse or its number doubles. Raises `NotFound` for one that
        there is not.
        """
        length, why = span(for_, "for_"), reason.strip()
        if not 0 < length <= LONGEST_ACKNOWLEDGED:
            raise InvalidInput("for_", for_, "must be more than 0 and at most 86400 seconds: a day")
        if not 0 < len(why) <= LONGEST_REASON:
            raise InvalidInput("reason", reason[:40], f"must be 1 to {LONGEST_REASON} characters")
        engine, by = await self._context.engine(), self._context.signed(why)
        now = await engine.now()
        await self._sweep(engine, now)
        while True:
            there = {one.finding: one for one in await documents.acknowledgements(engine)}
            one = next((one for one in await self.findings() if one.id == finding), None)
            if one is None:
                raise NotFound(
                    f"there is no finding {shown(finding)}: `stoker findings` lists them. Nothing was changed."
                )
            known = there.get(finding)
            tone = one.tone if one.acknowledged is None or known is None else known.tone
            after = Acknowledgement(
                finding=finding,
                by=self._context.by or "",
                reason=why,
                at=now,
                until=now + length,
                tone=tone,
                figure=one.figure,
            )
            if await documents.put_acknowledgement(engine, finding, known, after, by=by):
                return next((one for one in await self.findings() if one.id == finding), one)

    async def withdraw(self, finding: str) -> None:
        """End an acknowledgement: the finding counts again. Raises `NotFound` where there is none."""
        engine, by = await self._context.engine(), self._context.signed()
        while True:
            found = next((one for one in await documents.acknowledgements(engine) if one.finding == finding), None)
            if found is None:
                raise NotFound(f"finding {shown(finding)} is not acknowledged. Nothing was changed.")
            if await documents.put_acknowledgement(engine, finding, found, None, by=by):
                return

    async def _sweep(self, engine: Engine, now: Instant) -> None:
        """Remove acknowledgements whose time has passed."""
        for one in await documents.acknowledgements(engine):
            if one.until <= now:
                await documents.put_acknowledgement(engine, one.finding, one, None)

    async def check(self, work: Work | None = None) -> list[Check]:
        """Every check with what was read, its verdict, what it means and what mends it.

        A store that cannot be opened is one check, and wrong. Nothing is changed. `work` is what findings are made
        from, for a caller that has just read it.
        """
        try:
            engine = await self._context.app.engine()
            return await self._examined(engine, work)
        except EngineError as error:
            return [_unusable(self._context.app.root().where, error)]

    async def _examined(self, engine: Engine, work: Work | None) -> list[Check]:
        # At once: a server counts what is stored while another of its processes answers what is judged.
        facts, description, given, aside = await asyncio.gather(
            engine.diagnose(), engine.describe(), self.situation(engine, work), _set_aside(engine)
        )
        unreadable = [one for one in await engine.schedules.read() if is_unreadable(one)]
        damaged = dict.fromkeys((*facts.damaged, *aside))
        damaged |= dict.fromkeys(f"schedule {one.name} never fires: {one.last_error}" for one in unreadable)
        facts = replace(facts, damaged=tuple(damaged))
        return [
            await _schema(engine),
            *_store(facts, description),
            *(() if facts.transport is None else (transport.judge(facts.transport),)),
            *await self._sealed(engine),
            *jobs.judge_damage(facts),
            *jobs.judge_counts(facts),
            *jobs.judge(given),
        ]

    async def _sealed(self, engine: Engine) -> list[Check]:
        named, sealing = await documents.seals(engine), seal_of(engine)
        if sealing is None:
            return seal.judge(named, ())
        return seal.judge(named, sealing.values.seal.keys, await sealing.operator.newest())

    async def situation(self, engine: Engine, work: Work | None = None) -> Situation:
        """What all engines are judged by."""
        before = wall()
        now = await engine.now()
        after = wall()
        work = await self._work(engine) if work is None else work
        return Situation(
            work=work,
            apart=now - (before + after) // 2,
            unsure=(after - before) // 2 + SECOND // 2,
            overdue=await self._overdue(engine, now),
            misdated=await _misdated(engine, now),
            runs=await _runs(engine, now),
            lost={one.worker: one.dropped for one in work.presences},
            budgets=await engine.control.budgets(),
        )

    async def _work(self, engine: Engine) -> Work:
        presences, queues = await engine.control.workers(), await engine.control.queues()
        census = await engine.operator.census()
        return await attention.situation(engine, self._context.app, self._context.redact, census, queues, presences)

    async def _overdue(self, engine: Engine, now: Instant) -> list[Overdue]:
        """Running jobs beyond their limit, of the thousand that run longest."""
        page = await engine.operator.find(
            Query(statuses=frozenset({Status.RUNNING}), order="oldest", limit=LARGEST_PAGE)
        )
        found = []
        for job in page.jobs:
            limit = job.options.timeout if job.options.timeout is not None else self._limit(job.kind)
            ran = 0 if job.started_at is None else now - job.started_at
            if limit is not None and ran > limit + SLACK:
                found.append(Overdue(ids.text(job.id), job.kind, limit, ran))
        return found

    def _limit(self, kind: str) -> Span | None:
        task = self._context.app.find_task(kind)
        own = None if task is None else task.options.timeout
        return self._context.app.defaults.timeout if own is None else own


async def _set_aside(engine: Engine) -> list[str]:
    """Jobs that a worker met and could not read, of the thousand newest dead ones."""
    page = await engine.operator.find(Query(statuses=frozenset({Status.DEAD}), limit=LARGEST_PAGE))
    broken = [(job.id, job.metadata[CORRUPT]) for job in page.jobs if CORRUPT in job.metadata]
    return [f"job {ids.text(job)} cannot be read: {why}" for job, why in broken[:MOST_NAMED]]


async def _misdated(engine: Engine, now: Instant) -> list[Misdated]:
    """Waiting jobs that are dated after now, of the newest and the oldest that a page looks at."""
    waiting = frozenset({Status.PENDING, Status.RETRYING})
    found: dict[bytes, Job] = {}
    more = False
    orders: tuple[Order, Order] = ("newest", "oldest")
    for order in orders:
        query = Query(statuses=waiting, since=now + jobs.CLOCK_WRONG, order=order, limit=LARGEST_PAGE)
        page = await engine.operator.find(query)
        found.update((job.id, job) for job in page.jobs)
        more = more or page.cursor is not None
    by_queue: dict[str, list[Job]] = {}
    for job in sorted(found.values(), key=lambda job: (job.scheduled_at, job.id)):
        by_queue.setdefault(job.queue, []).append(job)
    return [
        Misdated(queue, len(some), ids.text(some[0].id), some[0].scheduled_at - now, more)
        for queue, some in sorted(by_queue.items())
    ]


def _store(facts: Facts, description: Description) -> Iterator[Check]:
    """What the engine itself is judged by; of one that reads no facts of its own, what it warns of."""
    if facts.postgres is not None:
        yield from postgres.judge(facts.postgres)
    elif facts.sqlite is not None:
        yield from sqlite.judge(facts.sqlite)
    elif facts.redis is not None:
        yield from redis.judge(facts.redis)
    else:
        yield ok("version", f"{description.engine} {description.version}")
        if description.durable:
            yield ok("durability", description.durability)
        else:
            yield note("durability", description.durability, "Jobs are gone when this process ends.")
        for text in description.warnings:
            yield warning("store", text, "The store warns of this itself.", "See what it says")


async def _schema(engine: Engine) -> Check:
    pending = await engine.migrate(plan_only=True)
    if pending:
        read = f"{humanize.count(len(pending), 'statement')} missing"
        return wrong("schema", read, "This Stoker needs a newer schema.", "stoker migrate --plan, then stoker migrate")
    return ok("schema", "up to date")


def _unusable(where: str, error: EngineError) -> Check:
    meaning = "Nothing can be stored, run or shown."
    if isinstance(error, _OWN_WORDS):
        name = "schema" if isinstance(error, SchemaMismatch) else "store"
        return wrong(name, str(error), meaning, "Do what it says, then run this again")
    if isinstance(error, CorruptRecord):
        remedy = "Is the path or address right? If it is, restore a backup. Then run this again"
        return wrong("store", f"{where} cannot be used: it is damaged, or no store of Stoker's", meaning, remedy)
    remedy = "Is the server up, and the address right? Then run this again"
    reached = "cannot be reached" if isinstance(error, EngineUnavailable) else "cannot be used"
    return wrong("store", f"{where} {reached}", meaning, remedy)


async def _runs(engine: Engine, now: Instant) -> dict[str, tuple[int, int]]:
    """Runs that succeeded and that failed, by kind, in the last hour.

    The running minute and the one before, which may not be counted yet, are read from events, and the others from
    points: those of the busiest kinds of each minute.
    """
    recent = now // MINUTE * MINUTE - MINUTE
    since = recent - HOUR + MINUTE
    ended = Counter[tuple[str, EventType]]()
    for one in await engine.timeline.event_counts(recent, now + 1):
        ended[one.kind, one.type] += one.n
    points = await engine.timeline.points(since, recent - 1, tuple(_ENDS), width=HOUR)
    for point in points:
        ended[point.queue, _ENDS[point.metric]] += point.count

    def count(kind: str, *types: EventType) -> int:
        return sum(ended[kind, type_] for type_ in types)

    both = {
        kind: (count(kind, EventType.COMPLETED), count(kind, EventType.FAILED, EventType.RETRIED))
        for kind in {kind for kind, _ in ended}
    }
    return {kind: pair for kind, pair in both.items() if any(pair)}

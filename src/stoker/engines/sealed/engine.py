"""An engine around another one: values go in sealed and come out opened. An app with a `Seal` works on one.

Every rule about jobs stays in the engine inside, which reads none of the values. Only what looks into a value is
decided here instead: whether a signal is what its wait asks for, and searches, which are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from stoker.engines.base import SEALS, STACKS, Engine, Transaction
from stoker.engines.sealed.seal import Seal
from stoker.engines.sealed.values import READABLE, Values, schedule_place, turn_place
from stoker.model.archive import Archived, Put
from stoker.model.audit import By, Deed
from stoker.model.errors import EngineBusy, EngineReadOnly, EngineRefused, InvalidInput
from stoker.model.events import Event, Point
from stoker.model.filter import InvalidFilter
from stoker.model.groups import Closing, Group
from stoker.model.health.seal import Newest
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Job, Note, Receipt, Renewal, Settled, Settlement, Verdict
from stoker.model.kept import Kept, Part
from stoker.model.outbox.cursor import Lease, LeaseRequest, NothingDue
from stoker.model.outbox.delivery import Advance, Advanced
from stoker.model.outbox.letters import GiveBack, LetterAction, LetterFilter, Letters
from stoker.model.outbox.stream import Entry, Stream
from stoker.model.query import Census, Change, Clone, Edit, Fork, Page, Place, Query, Reseal, Selection, Tally
from stoker.model.schedule import Edit as ScheduleEdit
from stoker.model.schedule import Fired, Schedule, Tick
from stoker.model.seal import why_closed
from stoker.model.steps import Save, Signal, Signaled, Step, asks, misfit, target
from stoker.model.time import Instant

_REFUSED = "looks into what is sealed, and the store cannot read it; filter by kind, queue, key, tenant, group or time"


class Facet:
    """One facet of the engine inside: what is not overridden goes there as it is."""

    def __init__(self, engine: SealedEngine, inner: Any) -> None:
        self._engine = engine
        self._values = engine.values
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SealedJobs(Facet):
    """Jobs and leases."""

    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        close = self._values.close_draft
        sealed = None if group is None else self._values.close_group(group)
        receipts: list[Receipt] = await self._inner.insert([close(draft) for draft in drafts], tx=tx, group=sealed)
        return receipts

    async def claim(self, demand: Demand) -> list[Claim]:
        return list(map(self._values.open_claim, await self._inner.claim(demand)))

    async def settle(
        self, settlements: Sequence[Settlement], *, tx: Transaction | None = None, demand: Demand | None = None
    ) -> Settled:
        close = self._values.close_settlement
        settled: Settled = await self._inner.settle([close(one) for one in settlements], tx=tx, demand=demand)
        return Settled(settled.verdicts, list(map(self._values.open_claim, settled.claims)))

    async def renew(self, worker: str, held: Sequence[tuple[JobId, int]], **options: Any) -> Renewal:
        renewal: Renewal = await self._inner.renew(worker, held, **options)
        return replace(renewal, orphaned=list(map(self._values.open_claim, renewal.orphaned)))

    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        verdicts: list[Verdict] = await self._inner.note([self._values.close_note(one) for one in notes], tx=tx)
        return verdicts

    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        return list(map(self._values.open_claim, await self._inner.reap(by, limit, dead=dead)))


class SealedOperator(Facet):
    """Reads and changes by operators."""

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        found: list[Job | None] = await self._inner.get(ids)
        return [None if job is None else self._values.open_job(job) for job in found]

    async def find(self, query: Query, *, tx: Transaction | None = None) -> Page:
        check_search(query)
        page: Page = await self._inner.find(query, tx=tx)
        return Page(list(map(self._values.open_job, page.jobs)), page.cursor, page.scanned)

    async def census(self) -> Census:
        census: Census = await self._inner.census()
        open_error = self._values.open_error
        totals = {
            kind: one if one.last_error is None else replace(one, last_error=open_error(one.last_error))
            for kind, one in census.totals.items()
        }
        return replace(census, totals=totals)

    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        tally: Tally = await self._inner.alter(selection, await self._closed(selection, change), by=by)
        return tally

    async def put(self, jobs: Sequence[Archived]) -> list[Put]:
        found: list[Put] = await self._inner.put(list(map(self._values.close_archived, jobs)))
        return found

    async def reseal(self, query: Query) -> tuple[Tally, bytes | None]:
        """Seal the values of a page of jobs with the current key; returns where the next page begins.

        `changed` are sealed with it now, or were already; `blocked` have a value that cannot be opened.
        """
        page: Page = await self._inner.find(query)
        rows = await self._engine.inner.steps.get([job.id for job in page.jobs], pages=True)
        old: list[Job] = []
        new: list[Job] = []
        steps: list[tuple[tuple[Step, Step], ...]] = []
        closed = 0
        for job, own in zip(await self._inner.get([one.id for one in page.jobs]), rows, strict=True):
            if job is None:
                continue
            before = self._values.left
            after, changed = self._values.resealed(job), self._values.resealed_rows(job, own)
            closed += self._values.left > before
            if after is not None or changed:
                old.append(job)
                new.append(after or job)
                steps.append(changed)
        tally = Tally()
        if old:
            change = Reseal(tuple(old), tuple(new), tuple(steps))
            tally = await self._inner.alter(Selection(tuple(job.id for job in old)), change)
        now = len(page.jobs) - closed - tally.missing
        return Tally(changed=now, blocked=closed, missing=tally.missing), page.cursor

    async def newest(self, limit: int = 100) -> Newest:
        """How the newest jobs are sealed: a program with another key, or with none, may still store some."""
        page: Page = await self._inner.find(Query(limit=limit))
        jobs = [job for job in await self._inner.get([one.id for one in page.jobs]) if job is not None]
        opened = map(self._values.open_job, jobs)
        return Newest(
            len(jobs),
            stale=sum(self._values.resealed(job) is not None for job in jobs),
            closed=sum(why_closed(job.payload) is not None or why_closed(job.result) is not None for job in opened),
        )

    async def reseal_kept(self, part: Part, after: str | None, limit: int) -> tuple[Tally, str | None]:
        """Seal the values of a page of a part with the current key; returns where the next page begins."""
        page: list[Kept] = await self._inner.kept(part, after, limit)
        swaps: list[tuple[Kept, Kept]] = []
        closed = 0
        for kept in page:
            before = self._values.left
            sealed = self._values.resealed_kept(part, kept)
            closed += self._values.left > before
            if sealed != kept:
                swaps.append((kept, sealed))
        gone = len(swaps) - await self._inner.swap_kept(part, swaps)
        tally = Tally(changed=len(page) - closed - gone, blocked=closed, missing=gone)
        return tally, page[-1].at if len(page) == limit else None

    async def _closed(self, selection: Selection, change: Change) -> Change:
        """The change with what it stores sealed; a copy is told whose values it carries."""
        match change:
            case Edit(payload=payload) if payload is not None:
                job = await self._one(selection)
                return change if job is None else replace(change, payload=self._values.payload_of(job, payload, job.id))
            case Clone(ids=copies):
                return replace(change, lineages=await self._lineages(selection, copies))
            case Fork(ids=copies, payload=payload):
                forked = replace(change, lineages=await self._lineages(selection, copies))
                if payload is None or (job := await self._one(selection)) is None:
                    return forked
                return replace(forked, payload=self._values.payload_of(job, payload, copies[0]))
            case _:
                return change

    async def _one(self, selection: Selection) -> Job | None:
        """The job that gets other arguments: they are sealed for one job."""
        if len(selection.ids) != 1:
            raise InvalidInput("payload", f"{len(selection.ids)} jobs", "is sealed for one job: change one at a time")
        [job] = await self._inner.get(selection.ids)
        return cast("Job | None", job)

    async def _lineages(self, selection: Selection, copies: Sequence[JobId]) -> tuple[str, ...]:
        jobs: list[Job | None] = await self._inner.get(selection.ids)
        pairs = zip(jobs, copies, strict=True)
        return tuple("" if job is None else self._values.lineage(job, copy) for job, copy in pairs)


def check_search(query: Query) -> None:
    """Refuse to look into what is sealed, by the name of the filter."""
    for word in ("payload", "error", "text"):
        if (given := getattr(query, word)) is not None:
            raise InvalidFilter(word, given, _REFUSED)
    if query.meta is not None and query.meta[0] not in READABLE:
        raise InvalidFilter("meta", query.meta[0], _REFUSED)


class SealedGroups(Facet):
    """Groups."""

    async def get(self, ids: Sequence[JobId]) -> list[Group | None]:
        found: list[Group | None] = await self._inner.get(ids)
        return [None if group is None else self._values.open_group(group) for group in found]

    async def find(self, *, closed: bool, behind: Place | None = None, limit: int = 100) -> list[Group]:
        return list(map(self._values.open_group, await self._inner.find(closed=closed, behind=behind, limit=limit)))

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        values = self._values

        def opened(closing: Closing) -> None:
            stored = tuple(values.shown_draft(draft) or draft for draft in closing.stored)
            emit(Closing(values.open_group(closing.group), stored))

        self._inner.watch_closings(opened)


class SealedSteps(Facet):
    """What jobs have finished and what they wait for."""

    async def save(self, saves: Sequence[Save], *, tx: Transaction | None = None) -> list[Verdict]:
        verdicts: list[Verdict] = await self._inner.save([self._values.close_save(one) for one in saves], tx=tx)
        return verdicts

    async def get(self, ids: Sequence[JobId], *, pages: bool = False) -> list[list[Step]]:
        found: list[list[Step]] = await self._inner.get(ids, pages=pages)
        opened = [self._values.open_rows(rows, [job]) for job, rows in zip(ids, found, strict=True)]
        closed = [at for at, rows in enumerate(opened) if any(why_closed(row.value) for row in rows)]
        if closed:  # copies carry rows of the jobs that they were made from
            jobs: list[Job | None] = await self._engine.inner.operator.get([ids[at] for at in closed])
            for at, job in zip(closed, jobs, strict=True):
                if job is not None:
                    opened[at] = self._values.open_rows(found[at], self._values.places(job))
        return opened

    async def asking(self, *, before: JobId | None = None, limit: int = 100) -> list[JobId]:
        """A step that is tried again looks like a question until its value is opened."""
        found: list[JobId] = []
        while len(found) < limit:
            page: list[JobId] = await self._inner.asking(before=before, limit=limit)
            found += [job for job, rows in zip(page, await self.get(page), strict=True) if any(map(asks, rows))]
            if len(page) < limit:
                break
            before = page[-1]
        return found[:limit]

    async def emitted(self, job: JobId, after: int = 0) -> list[Step]:
        return self._values.open_rows(await self._inner.emitted(job, after), [job])

    async def signal(
        self, signals: Sequence[Signal], *, tx: Transaction | None = None, by: By | None = None
    ) -> list[Signaled]:
        """Answer waits; whether a value is what its wait asks for is decided before the write, by what is stored."""
        stored = await self.get([one.id for one in signals])
        fits = [_fits(one, rows) for one, rows in zip(signals, stored, strict=True)]
        close = self._values.close_signal
        answers: list[Signaled] = await self._inner.signal(
            [close(one) for one, fit in zip(signals, fits, strict=True) if fit], tx=tx, by=by
        )
        sent = iter(answers)
        return [next(sent) if fit else Signaled.UNFIT for fit in fits]


def _fits(signal: Signal, rows: Iterable[Step]) -> bool:
    named = {row.name: row for row in rows}
    return misfit(named.get(target(named, signal) or ""), signal.value) is None


class SealedSchedules(Facet):
    """Schedules and their ticks."""

    async def read(self) -> list[Schedule]:
        return list(map(self._values.open_schedule, await self._inner.read()))

    async def put(
        self, given: Schedule | ScheduleEdit, *, keep_edited: bool = False, by: By | None = None
    ) -> Schedule | None:
        """Store a schedule; a template that is stored already stays, so that it does not count as changed."""
        sealed = given
        if given.template is not None:
            stored: list[Schedule] = await self._inner.read()
            before = next((one for one in stored if one.name == given.name), None)
            current = before is not None and self._values.is_current(before.template)
            if before is not None and current and self._values.open_schedule(before).template == given.template:
                sealed = replace(given, template=before.template)
            else:
                sealed = replace(given, template=self._values.close_draft(given.template, schedule_place(given.name)))
        put: Schedule | None = await self._inner.put(sealed, keep_edited=keep_edited, by=by)
        return None if put is None else self._values.open_schedule(put)

    async def reseal(self) -> Tally:
        """Seal the arguments of schedules with the current key; only an edited one stays edited."""
        closed = changed = 0
        for one in await self._inner.read():
            opened = self._values.open_schedule(one)
            if why_closed(opened.template.payload) is not None:
                closed += 1
                continue
            changed += 1
            if not self._values.is_current(one.template):
                edit = ScheduleEdit(name=one.name, template=opened.template)
                await self.put(edit if one.edited or one.source == "api" else opened)
        return Tally(changed=changed, blocked=closed)

    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        fired: Fired = await self._inner.fire(tick, [self._values.close_draft(draft) for draft in drafts])
        return fired if fired.schedule is None else replace(fired, schedule=self._values.open_schedule(fired.schedule))


class SealedTimeline(Facet):
    """Events, whose errors are known by class, place and a digest."""

    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        sealed = [replace(one, error=self._values.signature(one.error)) if one.error else one for one in events]
        recorded: int = await self._inner.record(sealed, points, now=now, chunk=chunk)
        return recorded


class SealedDocuments(Facet):
    """Documents, of which the stacks of handlers are sealed: they show lines of the app's code."""

    async def read(self, kind: str) -> Sequence[bytes | str]:
        found: Sequence[bytes | str] = await self._inner.read(kind)
        if kind != STACKS:
            return found
        return [opened for one in found if (opened := self._values.open_stack(one)) is not None]

    async def swap(
        self, kind: str, name: str, before: bytes | None, after: bytes | None, *, by: tuple[By, Deed] | None = None
    ) -> bool:
        if kind == STACKS:
            if before is not None:  # what is stored is another text each time
                stored: Sequence[bytes | str] = await self._inner.read(kind)
                before = next((as_bytes(one) for one in stored if self._values.open_stack(one) == before), before)
            after = None if after is None else self._values.close_stack(after)
        swapped: bool = await self._inner.swap(kind, name, before, after, by=by)
        return swapped


def as_bytes(document: bytes | str) -> bytes:
    """A document as it is swapped."""
    return document.encode() if isinstance(document, str) else bytes(document)


class SealedOutbox(Facet):
    """Streams, inboxes and held claims."""

    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        await self._inner.append(stream, [self._values.close_entry(stream.name, one) for one in entries], tx=tx)

    async def lease(self, request: LeaseRequest) -> Lease | NothingDue:
        found: Lease | NothingDue = await self._inner.lease(request)
        return self._opened(found) if isinstance(found, Lease) else found

    async def advance(
        self, advance: Advance, *, tx: Transaction | None = None, request: LeaseRequest | None = None
    ) -> Advanced:
        found: Advanced = await self._inner.advance(self._values.close_advance(advance), tx=tx, request=request)
        return found if found.lease is None else Advanced(found.applied, self._opened(found.lease))

    def _opened(self, lease: Lease) -> Lease:
        stream = lease.cursor.stream
        return replace(
            lease,
            cursor=self._values.open_cursor(lease.cursor),
            messages=tuple(self._values.open_message(stream, one) for one in lease.messages),
        )

    async def streams(self, names: Sequence[str] = ()) -> list[Any]:
        return list(map(self._values.open_stream, await self._inner.streams(names)))

    async def letters(
        self, chosen: LetterFilter, action: LetterAction | None = None, *, by: By | None = None
    ) -> Letters:
        if isinstance(action, GiveBack):
            action = replace(
                action, reason=self._values.close_error(action.reason, turn_place(chosen.stream, chosen.consumer))
            )
        found: Letters = await self._inner.letters(chosen, action, by=by)
        return Letters(found.n, tuple(map(self._values.open_letter, found.letters)))

    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        held: Claim | None = await self._inner.hold(claim, tx=tx)
        return None if held is None else self._values.open_claim(held)

    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        settled: bool = await self._inner.settle_last(self._values.close_settlement(settlement), tx=tx)
        return settled


class SealedEngine:
    """Another engine, with its values sealed."""

    def __init__(self, inner: Engine, seal: Seal) -> None:
        self.inner = inner
        self.values = Values(seal)
        self.jobs = SealedJobs(self, inner.jobs)
        self.operator = SealedOperator(self, inner.operator)
        self.groups = SealedGroups(self, inner.groups)
        self.steps = SealedSteps(self, inner.steps)
        self.schedules = SealedSchedules(self, inner.schedules)
        self.timeline = SealedTimeline(self, inner.timeline)
        self.documents = SealedDocuments(self, inner.documents)
        self.outbox = None if inner.outbox is None else SealedOutbox(self, inner.outbox)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def for_loop(self, *, read_limit: float | None = None) -> Engine:
        return sealed(self.inner.for_loop(read_limit=read_limit), self.values.seal)

    async def open(self) -> None:
        """Open the engine inside, and let the store say which key seals it, for programs that have none."""
        await self.inner.open()
        key = self.values.seal.current
        with suppress(EngineReadOnly, EngineRefused, EngineBusy):
            if key not in map(msgspec.json.decode, await self.inner.documents.read(SEALS)):
                await self.inner.documents.swap(SEALS, key, None, msgspec.json.encode(key))

    async def forget_keys(self) -> None:
        """Let the store name the current key alone: no record needs another. Stacks, which are short-lived, go."""
        for stack in await self.documents.read(STACKS):
            await self.documents.swap(STACKS, msgspec.json.decode(stack)["worker"], as_bytes(stack), None)
        for key in map(msgspec.json.decode, await self.inner.documents.read(SEALS)):
            if key != self.values.seal.current:
                await self.inner.documents.swap(SEALS, key, msgspec.json.encode(key), None)


def seal_of(engine: object) -> SealedEngine | None:
    """The engine as one that seals; None: it does not."""
    return engine if isinstance(engine, SealedEngine) else None


def sealed(engine: Engine, seal: Seal) -> Engine:
    """The engine, with its values sealed."""
    return cast("Engine", SealedEngine(engine, seal))

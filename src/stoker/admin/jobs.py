"""Jobs for operators: find them, read them, ask why one does not run, and change one or many.

An action takes one id, several ids or a `Filter`. For a single id a refusal is an error that names the reason; for
several the tally counts what was changed and what was not. A filter is walked in pages: each page is one atomic step,
so no lock is held for long, and jobs that were created or ended after the walk began are never touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias, Unpack

import msgspec
from msgspec import Raw

from stoker import views
from stoker.admin.archive import Imported, exported, imported
from stoker.admin.audit import AuditAdmin, AuditView, audited
from stoker.admin.bulk import (
    Bulk,
    Walk,
    alter,
    bound_at,
    check_queue_to_move_to,
    query_to_change,
    question_of,
)
from stoker.admin.context import Noun, OperatorContext
from stoker.admin.details import EventView, JobDetail, detail, event_view
from stoker.admin.errors import ErrorPage, read_errors
from stoker.admin.history import closed, flows
from stoker.admin.preview import MOST as MOST_COUNTED
from stoker.admin.preview import Preview, count_for
from stoker.admin.queues import QueuesAdmin
from stoker.admin.search import meets, search
from stoker.app_path import named
from stoker.codec.signature import encode_payload
from stoker.controls import holding
from stoker.engines.base import CORRUPT, Engine
from stoker.handle import called_by, checked, signal_of
from stoker.key_function import KeyFunction
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.actions import ACTIONS, Action, Given, Making, action_of, on_many
from stoker.model.control import Queue
from stoker.model.errors import CorruptRecord, InvalidArgument, InvalidInput, KeyHeld, NotFound, WrongStatus
from stoker.model.events import Event, EventType, Window
from stoker.model.explain import Explanation, Line, comes_before, explain, held_by
from stoker.model.filter import Filter, InvalidFilter
from stoker.model.job import LARGEST_BATCH
from stoker.model.query import (
    LARGEST_PAGE,
    LONGEST_WALK,
    WAITING,
    Change,
    Edit,
    Former,
    Query,
    Restore,
    RunNow,
    Selection,
    as_of,
    counted,
    is_counted,
    matched_at,
    queues_of,
    write_cursor,
)
from stoker.model.redact import EVERYTHING_SHOWN, with_secrets
from stoker.model.seal import check_open
from stoker.model.stats import COUNTED, OF_ALL
from stoker.model.steps import Step, check_fork, shown, waits_for
from stoker.model.subqueues import before_in_round, position
from stoker.model.time import SECOND, Instant, Seconds, instant, moment, span
from stoker.options import CallOptions
from stoker.origins import origins_of
from stoker.watching import News, watch

ASKED_AT_ONCE = 100
"""Jobs that may ask something are read so many at a time."""

PREVIEW_WALK = 100 * LONGEST_WALK
"""Records that a preview reads at most; a list reads no more than one page may."""

MOST_TURNS = 1_000
"""Subqueues of a fair queue among which an explanation finds the place of a job."""

TAIL = 10_000
"""Events that one look of a tail reads."""

LATEST_EVENT = 15 * SECOND
"""An event that is stored longer after it happened is not seen by a tail."""

UNDONE = tuple(one.deed for one in ACTIONS.values() if one.restorable)
"""Entries of the audit log that `restore` undoes."""

Target: TypeAlias = str | Sequence[str] | Filter


class JobPage(msgspec.Struct, frozen=True):
    """Jobs in the requested order. `cursor` goes on behind them, None at the end; `scanned` records were read.

    `total` is how many jobs the filter means, on all pages, if it was asked for; at least so many if not `complete`.
    `hint` says which names of the filter are not known, and what was probably meant.
    """

    jobs: list[views.Job]
    cursor: str | None
    scanned: int
    total: int | None = None
    complete: bool = True
    hint: str = ""


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """A wait for a signal that is open: which job asks what, since when, until when, and what it takes as an answer."""

    job: str
    kind: str
    queue: str
    name: str
    ask: str | None
    schema: Any
    since: datetime
    until: datetime | None
    label: str | None = None


class WaitPage(msgspec.Struct, frozen=True):
    """Open waits, those of the newest job first; `cursor` goes on behind them, and `scanned` jobs were looked at."""

    waits: list[WaitView]
    cursor: str | None
    scanned: int
    hint: str = ""


Progress: TypeAlias = Callable[[Bulk], bool | None]
"""Called after each page; returning False stops the action there."""


class JobsAdmin(Noun):
    """Questions about jobs, and changes to them."""

    # --- questions ----------------------------------------------------------------------------------------------

    async def get(self, job: str) -> JobDetail:
        """Everything about one job: record, arguments, events, group, worker. Raises `NotFound`."""
        return await detail(self._context, job)

    async def reveal(self, job: str) -> JobDetail:
        """The same with nothing masked; the audit log says who looked. Raises `NotFound`."""
        found = await detail(self._context._replace(redact=EVERYTHING_SHOWN), job)
        await audited(self._context, "jobs.reveal", f"job {found.job.id}")
        return found

    async def find(
        self, filter_: Filter | str = "", *, limit: int = 25, cursor: str | None = None, total: bool = False
    ) -> JobPage:
        """One page of the jobs that a filter means, newest first unless it says `order:oldest`.

        `total` counts them too. Of a filter with statuses, queues and kinds alone counters know it; others are walked
        over, up to 10,000 records.
        """
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        engine = await self._context.engine()
        if filter_.id is not None:
            found = [one for one in await engine.operator.get([ids.parse(filter_.id)]) if one is not None]
            return JobPage([self._context.listed(one) for one in found], None, 1, len(found) if total else None)
        query, hint = await question_of(self._context, filter_, limit, cursor)
        if query is None:
            return JobPage([], None, 0, 0 if total else None, hint=hint)
        page = await search(self._context, query)
        after = None if page.cursor is None else write_cursor(page.cursor)
        jobs = [self._context.listed(one) for one in page.jobs]
        if filter_.same_error is not None and not (jobs or after or cursor or hint):
            hint = f"No job that is kept has failed with error {filter_.same_error}. `stoker jobs errors` lists them."
        if not total:
            return JobPage(jobs, after, page.scanned, hint=hint)
        if cursor is None and after is None:
            return JobPage(jobs, after, page.scanned, len(jobs), hint=hint)
        return JobPage(jobs, after, page.scanned, *await _total(self._context, query), hint)

    def export(self, filter_: Filter | str = "") -> AsyncIterator[list[bytes]]:
        """The jobs that a filter means as lines of JSON, oldest first, page by page, for another store or program."""
        return exported(self._context, Filter.parse(filter_) if isinstance(filter_, str) else filter_)

    def import_(self, lines: Iterable[bytes]) -> AsyncIterator[Imported]:
        """Store the jobs of lines that `export` made, with their ids; says after each part what was done in all.

        An id that is stored already is left as it is, so the whole can be repeated. A job that would be active, and
        whose unique key another one has, is not stored, and named.
        """
        return imported(self._context, lines)

    async def of_id(self, cut: ids.Shortened, *, limit: int = 10) -> list[views.Job]:
        """The jobs whose ids begin, and end, as one that was cut; the oldest first, at most so many."""
        engine = await self._context.engine()
        before = int.from_bytes(cut.first) - 1
        cursor = None if before < 0 else before.to_bytes(16)
        found: list[views.Job] = []
        for _ in range(PREVIEW_WALK // LARGEST_PAGE):
            page = await engine.operator.find(Query(order="oldest", limit=LARGEST_PAGE, cursor=cursor))
            for one in page.jobs:
                if not cut.begins(one.id):
                    return found
                if cut.fits(one.id):
                    found.append(self._context.job(one))
                if len(found) == limit:
                    return found
            if page.cursor is None:
                return found
            cursor = page.cursor
        raise InvalidArgument("job id", f"{cut.head}…{cut.tail}", "begins so many jobs; give more of its first digits")

    async def explain(self, job: str) -> Explanation:
        """Why a job does not run, and what to do about it. Raises `NotFound`."""
        found = await self._context.stored(job)
        engine = await self._context.engine()
        queues = {queue.name: queue for queue in await engine.control.queues()}
        queue = queues.get(found.queue, Queue(name=found.queue))
        presences = await engine.control.workers()
        census = await engine.operator.census()
        group = None
        if found.options.group is not None:
            [group] = await engine.groups.get([found.options.group])
        since, until = closed(census.at)
        metrics = [EventType.COMPLETED.value, COUNTED]
        points = await engine.timeline.points(since, until, metrics, OF_ALL | {found.queue})
        flow = flows(points, since).get(found.queue)
        unreadable = found.metadata.get(CORRUPT)
        seen = self._context.redact.job(found)
        subqueue = None
        if found.options.limit is not None:
            subqueues = await engine.control.subqueues(found.queue, names=[found.options.limit.subqueue])
            subqueue = next(iter(subqueues), None)
        line = await _line(engine, found, census.at)
        stands, turns = position(found.options.limit, found.tenant, fair=queue.fair), None
        if queue.fair and stands is not None:
            turns = before_in_round(stands, await engine.control.subqueues(found.queue, limit=MOST_TURNS))
        known: dict[str, Any] = {"unreadable": unreadable, "group": group, "flow": flow, "subqueue": subqueue}
        if (held := held_by(found, census.at)) is not None:
            known["buckets"] = await holding(engine, held[0])
        if found.suspended:
            [known["steps"]] = await engine.steps.get([found.id])
        app = self._context.app
        known["origins"] = await origins_of(app, found)
        home = app.queue_of(found.kind)
        return explain(seen, queue, presences, census, line=line, turns=turns, home=home, app=named(app), **known)

    async def steps(self, job: str) -> list[views.Step]:
        """What a job has stored by name and what it waits for, secrets masked. Raises `NotFound`."""
        found = await self._context.stored(job)
        [rows] = await (await self._context.engine()).steps.get([found.id])
        return [self._step(row) for row in shown(rows)]

    def watch(self, job: str, after: str | None = None) -> AsyncGenerator[News | None, None]:
        """What is new of a job until it has ended, secrets masked; None: nothing within a second. Raises `NotFound`."""
        context = self._context
        return watch(context.app, ids.parse(job), after, context.redact)

    async def waits(self, filter_: Filter | str = "", *, limit: int = 25, cursor: str | None = None) -> WaitPage:
        """The signals that jobs wait for, of the jobs that a filter means; what has no view means `is:waiting`.

        Only jobs that may ask are looked at, however many others sleep.
        """
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        if not filter_.views:
            filter_ = msgspec.structs.replace(filter_, views=("waiting",))
        query, hint = await question_of(self._context, filter_, limit, cursor)
        if query is None:
            return WaitPage([], None, 0, hint)
        if query.order != "newest":
            raise InvalidArgument("order", query.order, "is none of this list: the newest jobs come first")
        engine = await self._context.engine()
        waits: list[WaitView] = []
        scanned, before, now = 0, query.cursor, await engine.now()
        while True:
            asking = await engine.steps.asking(before=before, limit=ASKED_AT_ONCE)
            found = zip(await engine.operator.get(asking), await engine.steps.get(asking), strict=True)
            for job, rows in found:
                scanned += 1
                if job is not None and meets(self._context, job, query, now):
                    seen = self._context.listed(job)
                    waits += [self._wait(seen, row) for row in shown(rows) if waits_for(row) == "signal"]
                    if len(waits) >= limit:
                        return WaitPage(waits, write_cursor(job.id), scanned, hint)
            if len(asking) < ASKED_AT_ONCE:
                return WaitPage(waits, None, scanned, hint)
            before = asking[-1]
            if scanned >= LONGEST_WALK:
                return WaitPage(waits, write_cursor(before), scanned, hint)

    def _step(self, row: Step) -> views.Step:
        """A row, its value and its error masked."""
        mask = self._context.redact
        value = None if row.value is None else mask.json(row.value)
        found = views.step(msgspec.structs.replace(row, value=value))
        return msgspec.structs.replace(found, error=None if found.error is None else mask.text(found.error))

    def _wait(self, job: views.Job, row: Step) -> WaitView:
        found = self._step(row)
        return WaitView(
            job=job.id,
            kind=job.kind,
            queue=job.queue,
            name=found.name,
            ask=found.ask,
            schema=found.schema,
            since=found.at,
            until=found.until,
            label=job.label,
        )

    async def preview(
        self, filter_: Filter | str, *, action: str | None = None, counted_at: datetime | None = None
    ) -> Preview:
        """How many jobs a filter means now, or still means of those at the moment of an earlier preview.

        A name that is not known is refused. What no counter knows is walked over, up to 10,000 jobs. With an `action`,
        which of them it would leave as they are, and how long its queues take for what it makes ready.
        """
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        engine = await self._context.engine()
        bound = await bound_at(engine, counted_at)
        if filter_.id is not None:
            [found] = await engine.operator.get([ids.parse(filter_.id)])
            there = frozenset[str]() if found is None else frozenset({found.queue})
            return Preview(int(found is not None), True, moment(bound), there)
        query = await query_to_change(self._context, filter_, 1, bound)
        if query is None:
            return Preview(0, True, moment(bound))
        if action is not None:
            return await self._forecast(query, on_many(action), None if counted_at is None else bound)
        if counted_at is None and is_counted(query):
            census = await engine.operator.census()
            return Preview(counted(query, census), True, moment(census.at), queues_of(query, census))
        met: set[str] = set()
        count, complete = await _total(self._context, as_of(query, bound), PREVIEW_WALK, met)
        return Preview(count, complete, moment(bound), frozenset(met))

    async def _forecast(self, query: Query, action: Action, bound: Instant | None) -> Preview:
        """What an action would do to the jobs of a question, now or to those at an earlier moment."""
        engine = await self._context.engine()
        census = await engine.operator.census()
        at = census.at if bound is None else bound
        asked = query if bound is None else as_of(query, bound)
        found = await count_for(engine, asked, action, census if bound is None else None)
        skipped, lasts = found.skipped(action.allowed(by_filter=True)), None
        if action.readies and found.queues:
            lasts = await QueuesAdmin(self._context).lasts(found.queues)
        every = sum(found.statuses.values())
        return Preview(every, found.complete, moment(at), frozenset(found.queues), skipped, lasts)

    async def question(self, filter_: Filter, limit: int) -> Query | None:
        """What a change by this filter would ask the store, for a preview; None: no job is meant."""
        return await query_to_change(self._context, filter_, limit)

    async def errors(self, filter_: Filter | str = "", *, limit: int = LARGEST_PAGE, past: bool = True) -> ErrorPage:
        """The newest jobs that failed and that a filter means, by error, with what each error did in seven days.

        Without the `past` it asks the store less: errors whose jobs are gone are left out, and deaths are not counted.
        """
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        return await read_errors(self._context, filter_, limit, past=past)

    async def tail(self, filter_: Filter | str = "", *, every: Seconds = 1.0) -> AsyncGenerator[EventView, None]:
        """Events as they are stored, of the jobs whose queue and kind a filter names; ends when its caller stops.

        Processes store their events every two seconds, so that one comes a little after it happened; each comes once.
        """
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        if filter_ != Filter(**{name: getattr(filter_, name) for name in _OF_EVENTS}):
            raise InvalidFilter("filter", str(filter_), "an event knows only its queue and kind; use queue: and kind:")
        engine = await self._context.engine()
        await question_of(self._context, filter_, 1)  # a name that is left out must be known
        if filter_.has_names:
            filter_ = filter_.spelled(await self._context.names(await engine.operator.census()))
        pause = span(every, "every") / SECOND
        seen: dict[Event, None] = {}
        begin = since = await engine.now()
        while True:
            until = await engine.now()
            found = await engine.timeline.events(Window(since, until + 1, limit=TAIL))
            fresh = [one for one in found if one not in seen]
            seen |= dict.fromkeys(found)
            for one in fresh:
                if filter_.admits(one.queue, one.kind):
                    yield event_view(one)
            # An event is stored up to some seconds after it happened; what was seen in that time is not told again.
            full = len(found) == TAIL
            since = found[-1].at if full else max(begin, until - LATEST_EVENT)
            seen = {one: None for one in seen if one.at >= since}
            await asyncio.sleep(0 if full else pause)

    async def enqueue(
        self, kind: str, payload: Any = None, *, create: bool = True, **options: Unpack[CallOptions[KeyFunction]]
    ) -> views.Receipt:
        """Enqueue a job by name. Where the app is known it must have the task; a bare store takes any kind.

        The job may be the first of its queue; without `create` a queue that is not known is refused.
        """
        app = self._context.app
        if not create and (queue := options.get("queue")) is not None:
            await self._context.known_queue(queue)
        if not app.tasks and not app.declared:
            app.declare(kind)
        await self._context.check_key("enqueue")
        draft = app.draft(kind, payload, **options)
        handle = await app.enqueue(draft)
        after = {"kind": draft.kind, "queue": draft.queue, "stored": handle.stored.value}
        await audited(self._context, "jobs.enqueue", f"job {handle.id}", after=after)
        return views.Receipt(handle.id, handle.stored)

    async def signal(self, job: str, name: str, value: Any = None, *, replace: bool = False) -> bool:
        """Answer a wait of a job; `replace` gives one that has its answer another.

        False: that wait has its answer, or the job has ended. Raises `NotFound`, and `InvalidPayload` when the open
        wait asks for something else.
        """
        await self._context.check_key("signal")
        found = await self._context.stored(job)
        signal = signal_of(found.id, name, value, again=replace)
        engine = await self._context.engine()
        return await checked(engine, signal, await engine.steps.signal([signal], by=self._context.signed()))

    # --- actions ------------------------------------------------------------------------------------------------

    async def requeue(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Put jobs back, due now, under their own ids: attempts go on counting, with a fresh budget.

        For one id that waits or runs already there is nothing to do, and the answer is false.
        """
        return await self.act("requeue", target, {}, progress)

    async def retry(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Enqueue copies of dead jobs under new ids; the originals stay as `retried`."""
        return await self.act("retry", target, {}, progress)

    async def fork(self, target: Target, progress: Progress | None = None, *, after: str | None = None) -> Bulk:
        """Enqueue copies that run from their beginning; the originals stay as they are and keep their unique keys.

        `after` is for one id: the copy keeps the finished steps that were stored no later than this one.
        """
        return await self.act("fork", target, {"after": after}, progress)

    async def cancel(
        self,
        target: Target,
        *,
        reason: str | None = None,
        force: bool = False,
        children: bool = False,
        progress: Progress | None = None,
    ) -> Bulk:
        """Cancel waiting jobs and ask running ones to stop; `force` takes a running job's claim away.

        `children` is for one id: also the jobs that it called and that have not ended, and those that they called.
        """
        given = {"reason": reason, "force": force, "children": children}
        return await self.act("cancel", target, given, progress)

    async def discard(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Take dead jobs off the dead list without running them again."""
        return await self.act("discard", target, {}, progress)

    async def delete(self, target: Target, progress: Progress | None = None) -> Bulk:
        """Remove records and their events. A running job that is named is asked to stop; a filter leaves it alone."""
        return await self.act("delete", target, {}, progress)

    async def run_now(self, target: Target, progress: Progress | None = None, *, first: bool = False) -> Bulk:
        """Make scheduled jobs due now; for one id that is due or runs already the answer is false.

        `first` is for one id, also of a job that is due or retries: it starts before all others of its queue, and need
        not wait for a token of its rate. It passes no pause and no limit.
        """
        return await self.act("run-now", target, {"first": True} if first else {}, progress)

    async def move(self, target: Target, queue: str, progress: Progress | None = None, *, create: bool = False) -> Bulk:
        """Put waiting jobs into another queue.

        A queue that is not known is refused, unless `create` makes it with these jobs.
        """
        return await self.act("move", target, {"queue": queue, "create": create}, progress)

    async def prioritize(self, target: Target, priority: int, progress: Progress | None = None) -> Bulk:
        """Give waiting jobs another priority; lower runs first."""
        return await self.act("prioritize", target, {"priority": priority}, progress)

    async def edit(
        self,
        job: str,
        *,
        payload: bytes | None = None,
        priority: int | None = None,
        at: datetime | None = None,
        attempts: int | None = None,
    ) -> Bulk:
        """Change what a waiting or dead job was enqueued with; what is not given stays.

        The payload is JSON; where the task is known it must fit its parameters. Values that come back masked are kept
        as they are stored; below the role admin one that was changed or left out is refused. A dead job has no time.
        """
        found = await self._context.stored(job)
        if payload is not None:
            check_open(found.payload, "payload")
            encode_payload(Raw(payload))
            may_change = self._context.sees_secrets(found.queue)
            payload = with_secrets(found.payload, payload, self._context.redact, may_change=may_change)
            encoded = encode_payload(Raw(payload))
            if (signature := self._context.app.signature_of(found.kind)) is not None:
                signature.check(encoded, marked=bool(found.options.results))
        due = None if at is None else instant(at, "at")
        change = Edit(payload=payload, priority=priority, at=due, attempts=attempts)
        return await self._one(found, change)

    async def restore(self, former: Sequence[Former] | AuditView | str) -> Bulk:
        """Undo a cancel or a discard, as its tally (`former`) or an entry of the audit log, or its id, names the jobs.

        A job to which anything happened since is refused; one whose unique key was taken meanwhile is blocked.
        """
        if isinstance(former, (AuditView, str)):
            entry = former if isinstance(former, str) else former.id
            deed = (await AuditAdmin(self._context).stored(entry)).deed
            if deed.action not in UNDONE:
                why = f"tells of {deed.action}; only {' and '.join(UNDONE)} can be undone"
                raise InvalidInput("entry", entry, why)
            former = deed.former
        done = Bulk()
        for start in range(0, len(former), LARGEST_BATCH):
            portion = tuple(former[start : start + LARGEST_BATCH])
            selection = Selection(tuple(one.id for one in portion))
            done.add(await alter(self._context, selection, Restore(portion)))
        return done

    async def act(
        self,
        action: str,
        target: Target,
        given: Given | None = None,
        progress: Progress | None = None,
        *,
        counted_at: datetime | None = None,
    ) -> Bulk:
        """Do an action by its name, with what it needs: `act("move", job, {"queue": "bulk"})`.

        `counted_at` is the moment of the preview of a filter, now without one: jobs that were created or ended after it
        are not touched.
        """
        found, given = on_many(action), given or {}
        change = found.making(given, self._context.app.mint)
        await check_queue_to_move_to(self._context, given)
        if not isinstance(target, str):
            found.check_many(given)
        elif (after := given.get("after")) is not None:
            [rows] = await (await self._context.engine()).steps.get([(await self._context.stored(target)).id])
            check_fork(str(after), rows, target)
        elif given.get("children"):
            return await self._with_called(target, change)
        return await self._act(target, change, progress, counted_at)

    # --- how ----------------------------------------------------------------------------------------------------

    async def _act(
        self, target: Target, change: Making, progress: Progress | None, counted_at: datetime | None = None
    ) -> Bulk:
        engine = await self._context.engine()
        if isinstance(target, str):
            found = await self._context.stored(target)
            due = found.status in WAITING and found.scheduled_at <= await engine.now()
            if due and change(1) == RunNow():
                return Bulk()
            return await self._one(found, change(1))
        if isinstance(target, Filter):
            return await self._walk(engine, target, change, progress, counted_at)
        bulk = Bulk()
        wanted = [ids.parse(job) for job in target]
        for start in range(0, len(wanted), LARGEST_BATCH):
            portion = tuple(wanted[start : start + LARGEST_BATCH])
            bulk.add(await alter(self._context, Selection(portion), change(len(portion))))
            if _stops(progress, bulk, ended=start + LARGEST_BATCH >= len(wanted)):
                break
        return bulk

    async def _with_called(self, target: str, change: Making) -> Bulk:
        """Change one job, also one that it is too late for, and the jobs below it that it called and that go on."""
        engine, root = await self._context.engine(), (await self._context.stored(target)).id
        bulk, too_late = Bulk(), None
        try:
            bulk = await self._act(target, change, None)
        except WrongStatus as error:
            too_late = error
        called = await called_by(engine, [root])
        while called:
            batch, called = called[:LARGEST_BATCH], called[LARGEST_BATCH:]
            bulk.add(await alter(self._context, Selection(tuple(batch)), change(len(batch))))
            called += await called_by(engine, batch)
        if too_late is not None and not bulk:
            raise too_late
        return bulk

    async def _one(self, before: stored.Job, change: Change) -> Bulk:
        """Change one job, or raise what hinders it."""
        tally = await alter(self._context, Selection((before.id,)), change)
        job, action = ids.text(before.id), action_of(change)
        if tally.missing:
            raise NotFound.job(job)
        for status in tally.refused:
            if status in action.idle and before.metadata.get(CORRUPT) is None:
                break
            if (why := before.metadata.get(CORRUPT)) is not None:
                raise CorruptRecord(f"job {job} cannot be read: {why}. It is unchanged; delete removes it.")
            raise WrongStatus(job, status, action.name)
        if tally.blocked:
            raise KeyHeld(job, action.name, None if before.unique is None else before.unique.key)
        bulk = Bulk()
        bulk.add(tally)
        return bulk

    async def _walk(
        self, engine: Engine, filter_: Filter, change: Making, progress: Progress | None, counted_at: datetime | None
    ) -> Bulk:
        """Page by page over the jobs as they were at one moment, each page one step."""
        if filter_.id is not None:
            return await self._act([filter_.id], change, progress)
        await query_to_change(self._context, filter_, 1)
        walk = Walk(self._context, filter_, change, await bound_at(engine, counted_at), None)
        while True:
            await walk.step()
            if _stops(progress, walk.bulk, ended=walk.ended) or walk.ended:
                return walk.bulk


async def _line(engine: Engine, job: stored.Job, now: Instant) -> Line | None:
    """The place of a due job in its queue: counted over the first 10,000 due jobs, the longest due first."""
    if job.status not in WAITING or job.scheduled_at > now:
        return None
    query = Query(statuses=WAITING, queues=frozenset({job.queue}), order="due", limit=LARGEST_PAGE)
    before = looked = 0
    while looked < MOST_COUNTED:
        page = await engine.operator.find(query)
        due = [one for one in page.jobs if one.scheduled_at <= now]
        before += sum(comes_before(one, job) for one in due)
        looked += len(due)
        if page.cursor is None or len(due) < len(page.jobs):
            return Line(before)
        query = msgspec.structs.replace(query, cursor=page.cursor)
    return Line(before, complete=False)


async def _total(
    context: OperatorContext, query: Query, walk: int = LONGEST_WALK, met: set[str] | None = None
) -> tuple[int, bool]:
    """How many jobs a query means, and whether these are all; `met` takes in the queues of those that were read."""
    if is_counted(query):
        return counted(query, await (await context.engine()).operator.census()), True
    query = msgspec.structs.replace(query, cursor=None, limit=LARGEST_PAGE)
    count = scanned = 0
    while count < MOST_COUNTED and scanned < walk:
        page = await search(context, query)
        at = query.ended_by
        there = [job for job in page.jobs if at is None or matched_at(job, query, at)]
        count += len(there)
        if met is not None:
            met.update(job.queue for job in there)
        scanned += page.scanned
        if page.cursor is None:
            return count, True
        query = msgspec.structs.replace(query, cursor=page.cursor)
    return count, False


_OF_EVENTS = ("queues", "but_queues", "kinds", "but_kinds")


def _stops(progress: Progress | None, bulk: Bulk, *, ended: bool) -> bool:
    """Report a page; after the last one there is nothing left to stop."""
    if progress is not None and progress(bulk) is False:
        bulk.stopped = not ended
    return bulk.stopped

"""Stoker: one store, the tasks that use it, and the ways to put jobs into it.

An app belongs to no loop: it opens an engine for every loop that uses it, on first use (`engine_pool`). Workers,
operators and the dashboard are made from an app (`Worker(jobs)`); the app knows none of them.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Self, TypeVar, Unpack, cast
from uuid import UUID

import msgspec

from stoker import sync, views
from stoker.codec.signature import Signature
from stoker.context import Context
from stoker.controls import BudgetHandle, Declarations, LockHandle, QueueHandle, given_rates, tuning
from stoker.engine_pool import EnginePool, LoopEngine
from stoker.engines.base import Engine, Transaction
from stoker.engines.sealed.engine import sealed
from stoker.engines.sealed.seal import Seal
from stoker.engines.sql.user_handles.handles import running_loop
from stoker.engines.url import engine_from_url, engine_options
from stoker.event_buffer import EventBuffer, wall
from stoker.groups import GroupHandle, NewGroup
from stoker.handle import JobHandle
from stoker.hooks import FailedRun, Listener, Listeners, Metering, Middleware, PlainMiddleware, Tracing, is_plain
from stoker.joining import Joining, joined
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.errors import Duplicate, InvalidInput, InvalidOption
from stoker.model.events import Event, Transition, of_alter, of_closing, transition_to_pending, transitions_of_alter
from stoker.model.groups import Closing, Group, new_group
from stoker.model.ids import JobId
from stoker.model.job import (
    DEFAULT_ATTEMPTS,
    DEFAULT_QUEUE,
    Draft,
    MarkedDraft,
    Stored,
    check_drafts,
    check_ids,
    check_markers,
    check_name,
    portions,
)
from stoker.model.query import Change, Tally
from stoker.model.retry import Backoff, Errors, Policy
from stoker.model.schedule import Schedule as StoredSchedule
from stoker.model.throttle import Rate
from stoker.model.time import SECOND, Seconds
from stoker.options import parse
from stoker.registry import Registry, Router, inside, mint
from stoker.schedules import ScheduleHandle, ScheduleOptions, plan
from stoker.schedules import parse as read_options
from stoker.services import Services
from stoker.settings import TimelineSettings, check_known, resolve
from stoker.sync import in_sync
from stoker.transaction_block import Factory
from stoker.views import Curve, Grant, Receipt, Schedule

T = TypeVar("T")
H = TypeVar("H")

TenantScope = Callable[[str], AbstractAsyncContextManager[Any]]

logger = logging.getLogger("stoker.app")

DEFAULT_URL = "sqlite:///stoker.db"


FOR_USERS = frozenset(
    {
        *(
            "task",
            "register",
            "tasks",
            "find_task",
            "declare",
            "cron",
            "lifespan",
            "listener",
            "on_error",
            "middleware",
        ),
        *("draft", "enqueue", "enqueue_sync", "enqueue_many", "enqueue_many_sync", "joining"),
        *("handle", "group", "group_sync", "group_handle"),
        *("queue", "budget", "spend", "spend_sync", "lock", "run", "open", "close", "engine"),
        *("schedule", "schedule_sync", "unschedule", "unschedule_sync", "schedules", "schedules_sync"),
        "schedule_handle",
    }
)
"""What users may touch of an app; the rest is for workers, operators and the dashboard, and may change."""


class Stoker(Registry):
    """Background jobs on one store.

    The URL comes from the argument, else `$STOKER_URL`, else a SQLite file beside you. `attempts`, `backoff`,
    `timeout`, `keep`, `retry_on`, `give_up_on` and `retry_if` are defaults for tasks, `keep_dead` is the retention of
    dead jobs in queues without one of their own. `router` maps a kind to a queue if neither call nor task names one;
    `tenant` supplies the tenant if the caller gives none. `namespace` prefixes the kinds and the default queue, so that
    several services can share a store: `billing.send` in `billing.default`. A name or queue that is given is used
    unchanged. `transaction` opens the transactions of `current().transaction()`: a factory such as `Session.begin`.
    `seal` encrypts what is stored of jobs and messages.
    """

    def __init__(
        self,
        url: str | Engine | None = None,
        *,
        modules: Iterable[str] = (),
        namespace: str | None = None,
        queue: str | None = None,
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        keep: Seconds | None = None,
        keep_dead: Seconds | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        router: Router | Mapping[str, str] | None = None,
        tenant: Callable[[], str | None] | None = None,
        tenant_scope: TenantScope | None = None,
        middleware: Sequence[Middleware[Any, Any] | PlainMiddleware[Any, Any]] = (),
        listeners: Iterable[Listener[Transition]] = (),
        mint: Callable[[], JobId] = mint,
        timeline: bool = True,
        transaction: Factory[Any] | None = None,
        seal: Seal | None = None,
        **options: Any,
    ) -> None:
        if seal is not None and not isinstance(seal, Seal):
            raise InvalidInput("seal", type(seal).__name__, 'must be a Seal, such as Seal(keys={"2026-11": key})')
        if namespace is not None:
            namespace = check_name("namespace", namespace)
        queue = queue or inside(namespace, DEFAULT_QUEUE)
        defaults = parse({"queue": queue, "attempts": attempts, "backoff": backoff, "timeout": timeout, "keep": keep})
        super().__init__(
            defaults,
            namespace=namespace,
            modules=modules,
            router=router,
            tenant=tenant,
            mint=mint,
            policy=Policy(retry_on, give_up_on, retry_if),
            seal=seal,
        )
        pace = {field.name: options.pop(field.name, None) for field in dataclasses.fields(TimelineSettings)}
        self._pace = resolve(TimelineSettings, pace, environ=os.environ)
        self._pool = self._make_pool(url, options)
        self._pool.added = self._watch_closings
        self._tenant_scope = tenant_scope
        self.middleware: list[Middleware[Any, Any] | PlainMiddleware[Any, Any]] = list(middleware)
        self.listeners: Listeners[Transition] = Listeners(listeners)
        self.errors: Listeners[FailedRun] = Listeners()
        self.tracing: Tracing | None = None
        self.metering: Metering | None = None
        self.services = Services()
        self.transaction = transaction
        self.ambient: Callable[[], Transaction | None] | None = None
        """An integration's answer to "which transaction is this call in?"; see `stoker.joining`."""
        self.tested = False
        self.unattended: Callable[[], Awaitable[str]] | None = None
        """Has a `TestKit` taken over? Then nothing runs by itself."""
        self.declarations = Declarations(keep_dead)
        self.timeline = EventBuffer(self._pace.event_buffer, self._pace.event_chunk) if timeline else None

    def _make_pool(self, url: str | Engine | None, options: dict[str, Any]) -> EnginePool:
        """Make the engines of the store; an integration may know later where that is."""
        given = None if isinstance(url, str) else url
        return EnginePool(engine_maker(url, options), given, around=self.around)

    @property
    def around(self) -> Callable[[Engine], Engine] | None:
        """What every engine of the app is wrapped in: its seal, if it has one."""
        return None if self.seal is None else functools.partial(sealed, seal=self.seal)

    def __repr__(self) -> str:
        return f"<Stoker {len(self._tasks)} tasks>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name in FOR_USERS or name.startswith("__")]

    # --- around a handler ---------------------------------------------------------------------------------------

    def listener(self, fn: Listener[Transition]) -> Listener[Transition]:
        """Call `fn` after each change of status that this process writes."""
        return self.listeners.add(fn)

    def on_error(self, fn: Listener[FailedRun]) -> Listener[FailedRun]:
        """Call `fn` after each failed run of this process's workers, when the store has accepted the outcome."""
        return self.errors.add(fn)

    @property
    def async_middleware(self) -> list[Middleware[Any, Any]]:
        """The middleware that wraps every handler, on the worker's loop."""
        return [cast("Middleware[Any, Any]", one) for one in self.middleware if not is_plain(one)]

    @property
    def plain_middleware(self) -> list[PlainMiddleware[Any, Any]]:
        """The middleware that wraps plain handlers, in their own thread or process."""
        return [cast("PlainMiddleware[Any, Any]", one) for one in self.middleware if is_plain(one)]

    def scoped(self, call: Callable[[Context], Awaitable[Any]]) -> Callable[[Context], Awaitable[Any]]:
        """Run a handler inside its tenant's scope, where there is a tenant and a scope for it."""
        scope = self._tenant_scope
        if scope is None:
            return call

        async def inside(context: Context) -> Any:
            tenant = context.claim.tenant  # of a chunk too: its jobs have one tenant where there is a scope
            if tenant is None:
                return await call(context)
            async with scope(tenant):
                return await call(context)

        return inside

    @property
    def scopes_tenants(self) -> bool:
        """Does a handler run inside its tenant's scope?"""
        return self._tenant_scope is not None

    @property
    def environ(self) -> Mapping[str, str]:
        """Where settings are looked up that were not given."""
        return os.environ

    # --- queues, budgets, locks ---------------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        workers: int | None = None,
        fair: bool | None = None,
        rate: Rate | None = None,
        keep_done: Seconds | None = None,
        keep_dead: Seconds | None = None,
        curve: Curve | None = None,
    ) -> QueueHandle:
        """A queue to pause and tune, for every process on the store. Settings that are given are declared.

        `workers`: slots over all workers. `fair`: tenants take turns. `rate`: starts over all workers. `keep_done`,
        `keep_dead`: retention. `curve`: waits before retries and after throttles. A worker stores declarations when it
        starts; a setting that people changed meanwhile stays as they set it.
        """
        handle = QueueHandle(self, name)
        self.declarations.queue(handle.name, tuning(workers, fair, rate, keep_done, keep_dead, curve))
        return handle

    def budget(self, name: str, rate: Rate | None = None, *, keyed: bool = False, **measures: Rate) -> BudgetHandle:
        """A budget to spend from, shared by every process on the store. What is given is declared.

        It has one rate, or one for each measure, as in `requests=Rate(500, per=60), tokens=Rate(200_000, per=60)`.
        `keyed`: each key that spends has tokens of its own. A worker stores declarations when it starts; a rate that
        people changed meanwhile stays as they set it.
        """
        handle = BudgetHandle(self, name)
        if (rates := given_rates(rate, measures, keyed=keyed)) is not None:
            self.declarations.budget(handle.name, rates)
        return handle

    async def spend(self, /, budget: str, n: int | None = None, *, key: str | None = None, **measures: int) -> Grant:
        """Take tokens of a budget, of every measure that is named, or none; a refusal says how long to wait."""
        return await self.budget(budget).spend(n, key=key, **measures)

    spend_sync = in_sync(spend)

    def lock(self, name: str, *, lease: Seconds = 30) -> LockHandle:
        """A lock across every process on the store: `async with` or `with` gives whether it is held.

        It is tried, not waited for, and lapses after `lease`, so a process that dies does not keep it.
        """
        return LockHandle(self, name, lease)

    # --- schedules ----------------------------------------------------------------------------------------------

    async def schedule(self, name: str, draft: Draft, **options: Unpack[ScheduleOptions]) -> ScheduleHandle:
        """Store a schedule that enqueues `draft` by `cron=` (in the zone `tz=`, else UTC) or `every=` so many seconds.

        `misfire` says what becomes of missed occurrences: "once" (default), "skip" those older than `grace` (60), or
        "all"; `overlap="skip"` leaves one out while the last job is active; `jitter` delays jobs by up to so much.

        A schedule of that name is replaced; its last and next fire stay unless the timing changes. It stays in the
        store until `unschedule`. Schedules that belong to the code are declared with `@jobs.cron`.
        """
        given = plan(name, draft, "api", read_options(options))
        engine = await self.engine()
        await engine.schedules.put(given)
        return ScheduleHandle(self, name)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule from the store; returns whether there was one. Jobs that it made stay.

        One that code declares comes back when a worker starts: `pause` it instead.
        """
        check_name("schedule name", name)
        engine = await self.engine()
        return await engine.schedules.drop(name)

    async def schedules(self) -> list[Schedule]:
        """Every schedule of the store, by name, those of other apps included."""
        engine = await self.engine()
        return [self.schedule_record(one) for one in await engine.schedules.read()]

    def schedule_handle(self, name: str) -> ScheduleHandle:
        """A schedule to look at, pause, resume, run, edit and reset."""
        return ScheduleHandle(self, name)

    def schedule_record(self, found: StoredSchedule) -> Schedule:
        """A stored schedule as the user reads it."""
        return views.schedule(found, declared=found.name in self.declared_schedules)

    schedule_sync = in_sync(schedule)
    unschedule_sync = in_sync(unschedule)
    schedules_sync = in_sync(schedules)

    # --- enqueueing ---------------------------------------------------------------------------------------------

    def joining(self, handle: H) -> Joining[H]:
        """Have enqueues, groups, appends, receipts and signals of this Task or thread join a transaction of yours.

        `handle` is what `tx=` takes: a Session, a connection. `with` and `async with` yield it. The transaction stays
        yours: commit it, and the jobs exist; roll it back, and they never did. `tx=False` in a call stores at once. An
        inner block wins over an outer one; Tasks that are started inside join as well, until the block is over.
        """
        return Joining(self, handle)

    async def enqueue(self, draft: Draft, *, tx: Transaction | None = None) -> JobHandle[Any]:
        """Store one draft."""
        check_drafts("draft", [draft])
        return await self.enqueue_draft(draft, self.signature_of(draft.kind), tx=tx)

    def enqueue_sync(self, draft: Draft, *, tx: Transaction | None = None) -> JobHandle[Any]:
        """`enqueue` for code without a loop; a synchronous `tx` of yours needs no loop at all."""
        check_drafts("draft", [draft])
        [receipt] = self._insert_drafts_sync([draft], tx, "`await jobs.enqueue(...)`")
        return JobHandle(self, receipt.id, self.signature_of(draft.kind), receipt.stored)

    async def enqueue_draft(
        self, draft: Draft, signature: Signature | None, *, tx: Transaction | None = None
    ) -> JobHandle[Any]:
        """Store one draft whose signature is known; tasks call this."""
        [receipt] = await self.insert_drafts([draft], tx)
        return JobHandle(self, receipt.id, signature, receipt.stored)

    def enqueue_draft_sync(
        self, draft: Draft, signature: Signature | None, *, tx: Transaction | None = None
    ) -> JobHandle[Any]:
        """`enqueue_draft` without a loop; a synchronous `tx` of the user's needs no loop at all."""
        [receipt] = self._insert_drafts_sync([draft], tx, f"`await {draft.kind}.enqueue(...)`")
        return JobHandle(self, receipt.id, signature, receipt.stored)

    async def enqueue_many(self, drafts: Iterable[Draft], *, tx: Transaction | None = None) -> list[Receipt]:
        """Store many drafts; receipts in their order.

        Up to 1,000 drafts are one atomic step (on Redis up to 8 MiB of payload). Longer lists are stored in several
        steps, and an error carries a note that names the first draft that was not stored.
        """
        waiting = _checked(drafts)
        engine = await self.engine()
        receipts: list[stored.Receipt] = []
        for portion in portions(waiting, engine.most_bytes):
            with _naming_the_rest(waiting, portion.start):
                receipts += await self.insert_drafts(waiting[portion.start : portion.stop], tx)
        return views.receipts(receipts)

    def enqueue_many_sync(self, drafts: Iterable[Draft], *, tx: Transaction | None = None) -> list[Receipt]:
        """`enqueue_many` for code without a loop; a synchronous `tx` of yours needs no loop at all."""
        waiting = _checked(drafts)
        receipts: list[stored.Receipt] = []
        for portion in portions(waiting, self.root().most_bytes):
            with _naming_the_rest(waiting, portion.start):
                part = waiting[portion.start : portion.stop]
                receipts += self._insert_drafts_sync(part, tx, "`await jobs.enqueue_many(...)`")
        return views.receipts(receipts)

    async def insert_drafts(
        self, drafts: Sequence[Draft], tx: Transaction | None = None, group: Group | None = None
    ) -> list[stored.Receipt]:
        """Store drafts in one step, with a new group if there is one, and emit what became of them.

        They join a transaction that is given or that this Task or thread is in; `tx=False`: none.
        """
        place = joined(self, tx)
        with self._naming_the_holder():
            if place is None:
                member = await self._pool.current()
                receipts = await self._insert(member.engine, drafts, None, group)
                self._emit_inserted(member, drafts, receipts)
                return receipts
            given, queues = place.as_stored(drafts), {draft.queue for draft in drafts}
            receipts = await place.join(lambda engine, tx: self._insert(engine, given, tx, group), wakes=queues)
        place.inserted(drafts, receipts)
        return receipts

    def _insert_drafts_sync(
        self, drafts: Sequence[Draft], tx: Transaction | None, instead: str
    ) -> list[stored.Receipt]:
        """`insert_drafts` without a loop, which a synchronous transaction of the user's does not need."""
        place = joined(self, tx)
        if place is None:
            return self.run(self.insert_drafts(drafts, False), instead=instead)
        given, queues = place.as_stored(drafts), {draft.queue for draft in drafts}
        with self._naming_the_holder():
            receipts = place.join_sync(lambda engine, tx: self._insert(engine, given, tx), wakes=queues)
        place.inserted(drafts, receipts)
        return receipts

    def untold(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Make drafts for a transaction of the user's: the first claim of each tells the timeline.

        Whether they exist is decided by a commit, or a rollback to a savepoint, that Stoker does not see.
        """
        if self.timeline is None:
            return drafts
        replace = msgspec.structs.replace
        return [replace(draft, options=replace(draft.options, untold=True)) for draft in drafts]

    async def _insert(
        self, engine: Engine, drafts: Sequence[Draft], tx: Transaction | None, group: Group | None = None
    ) -> list[stored.Receipt]:
        """Store drafts; with tracing they carry the span that stored them."""
        for draft in (*drafts, *(() if group is None else group.callbacks)):
            check_ids(draft)
        for draft in drafts:
            check_markers(draft)
        if self.tracing is None:
            return await engine.jobs.insert(drafts, tx=tx, group=group)
        with self.tracing.sending(drafts, group) as sending:
            sending.receipts = receipts = await engine.jobs.insert(sending.drafts, tx=tx, group=sending.group)
        return receipts

    async def emit_inserted(self, drafts: Sequence[Draft], receipts: Sequence[stored.Receipt]) -> None:
        """Emit jobs that this process has stored to the timeline and the listeners."""
        self._emit_inserted(await self._pool.current(), drafts, receipts)

    async def emit_events(self, events: Sequence[Event]) -> None:
        """Emit events that follow from no write of a job to the timeline."""
        if events and self.timeline is not None:
            for event in events:
                self.timeline.add(event)
            (await self._pool.current()).flush_soon(self.timeline, self._pace.event_flush / SECOND)

    def _emit_inserted(self, member: LoopEngine, drafts: Sequence[Draft], receipts: Sequence[stored.Receipt]) -> None:
        for draft, receipt in zip(drafts, receipts, strict=True):
            if receipt.superseded is not None:
                _log_superseded(draft, receipt.superseded)
        if self.timeline is not None:
            self.timeline.inserted(drafts, receipts)
            member.flush_soon(self.timeline, self._pace.event_flush / SECOND)
        if self.listeners:
            for draft, receipt in zip(drafts, receipts, strict=True):
                if receipt.stored is Stored.INSERTED:
                    self.listeners.emit(transition_to_pending(draft))

    def _watch_closings(self, member: LoopEngine) -> None:
        member.engine.groups.watch_closings(lambda closing: self._emit_closing(member, closing))

    def _emit_closing(self, member: LoopEngine, closing: Closing) -> None:
        """Emit a group that this process has closed to the timeline, and its callbacks also to the listeners."""
        if self.timeline is not None:
            for event in of_closing(closing, wall()):
                self.timeline.add(event)
            member.flush_soon(self.timeline, self._pace.event_flush / SECOND)
        if self.listeners:
            for draft in closing.stored:
                self.listeners.emit(transition_to_pending(draft))

    @contextmanager
    def _naming_the_holder(self) -> Iterator[None]:
        """Add the handle of the key's holder to a `Duplicate`."""
        try:
            yield
        except Duplicate as taken:
            taken.handle = self.handle(taken.holder)
            raise

    async def emit_altered(self, change: Change, tally: Tally) -> None:
        """Emit an operator's change that the store accepted to the timeline and the listeners."""
        await self.emit_events(of_alter(change, tally, wall()))
        if self.listeners:
            engine = await self.engine()
            changed = await engine.operator.get([one.id for one in tally.former])
            copies = await engine.operator.get(tally.created) if tally.created else []
            for transition in transitions_of_alter(change, tally, [*changed, *copies]):
                self.listeners.emit(transition)

    def handle(self, job: str | UUID | JobId) -> JobHandle[Any]:
        """The handle of a job by its id: text, or its sixteen bytes."""
        return JobHandle(self, _id(job, "job id"))

    # --- groups -------------------------------------------------------------------------------------------------

    def group(
        self,
        drafts: Iterable[Draft] | None = None,
        *,
        then: Draft | None = None,
        on_failure: Draft | None = None,
        on_finish: Draft | None = None,
        id: str | UUID | None = None,  # noqa: A002 - what callers know it by
        tx: Transaction | None = None,
    ) -> NewGroup:
        """Count jobs together, and store another one when all of them are finished.

        `await jobs.group([...])` stores all of it and gives a handle; `async with jobs.group() as group` takes jobs as
        they come (`await group.add(...)`). When every member is finished, `then` is stored if all are done, else
        `on_failure`; `on_finish` in both cases.

        More than 1,000 members are stored in steps. With an `id` of yours, a UUID such as `current().id`, the same call
        goes on where one before it was interrupted, and changes nothing when all is stored.
        """
        keep = self.defaults.keep
        group = new_group(
            self.mint() if id is None else _id(id, "group id", _OWN_ID),
            then=then,
            on_failure=on_failure,
            on_finish=on_finish,
            keep=keep,
        )
        callbacks = [
            (draft, draft is not then) for draft in (then, on_failure, on_finish) if isinstance(draft, MarkedDraft)
        ]
        for draft, may_fail in callbacks:
            draft.check(None, may_fail=may_fail)
        return NewGroup(self, drafts, tx, group, callbacks, again=id is not None)

    def group_sync(
        self,
        drafts: Iterable[Draft] | None = None,
        *,
        then: Draft | None = None,
        on_failure: Draft | None = None,
        on_finish: Draft | None = None,
        id: str | UUID | None = None,  # noqa: A002 - what callers know it by
        tx: Transaction | None = None,
    ) -> GroupHandle:
        """`group` for code without a loop; a synchronous `tx` of yours needs no loop at all."""
        new = self.group(drafts, then=then, on_failure=on_failure, on_finish=on_finish, id=id, tx=tx)
        return new.store_here() if new.joins else self.run(new.store(), instead="`await jobs.group(...)`")

    async def seal_group(self, group: JobId, *, abandoned: bool) -> bool:
        """Await no more members of a group; it closes if all are finished. False: it is not stored, or was sealed."""
        return await (await self.engine()).groups.seal(group, abandoned=abandoned)

    def group_handle(self, group: str | UUID | JobId) -> GroupHandle:
        """The handle of a group by its id."""
        return GroupHandle(self, _id(group, "group id"))

    # --- engines ------------------------------------------------------------------------------------------------

    async def engine(self) -> Engine:
        """The opened engine of the running loop."""
        return (await self._pool.current()).engine

    def any_open(self) -> Engine:
        """An engine for a call that needs no loop."""
        return self._pool.any_open()

    async def block_turn(self) -> asyncio.Lock:
        """The lock of blocks on this loop, for stores with one writer."""
        return (await self._pool.current()).turn

    def root(self) -> Engine:
        """The engine that all others of the app are made from; not opened here."""
        return self._pool.root()

    def new_engine(self) -> Engine:
        """Make another engine on the same store, not opened, for another event loop."""
        return self._pool.root().for_loop()

    def with_engine(self, engine: Engine) -> Stoker:
        """The same app over another engine on its store: with its tasks, schedules and listeners."""
        twin = copy.copy(self)
        twin._pool = EnginePool(engine.for_loop, engine)  # noqa: SLF001 - it is one of us
        if self.timeline is not None:
            twin.timeline = EventBuffer(self._pace.event_buffer, self._pace.event_chunk)
        return twin

    def use_store(
        self, engine: Engine, unattended: Callable[[], Awaitable[str]] | None = None
    ) -> Callable[[], list[LoopEngine]]:
        """Work on another store until the returned function is called; that returns its engines, to be closed.

        Schedules, queues and budgets that code declares meanwhile, and middleware that it adds, are forgotten then.
        `unattended` says what a caller who waits can do while no worker runs the jobs there; empty: one does.
        """
        self._import()
        swapped = ("_pool", "timeline", "declarations", "_schedules", "middleware", "tested", "unattended")
        kept = {name: vars(self)[name] for name in swapped}
        self.tested, self.unattended = True, unattended
        pool = self._pool = EnginePool(lambda: engine, around=self.around)
        pool.added = self._watch_closings
        if self.timeline is not None:
            self.timeline = EventBuffer(self._pace.event_buffer, self._pace.event_chunk)
        self.declarations = copy.deepcopy(self.declarations)
        self._schedules = dict(self._schedules)
        self.middleware = list(self.middleware)

        def back() -> list[LoopEngine]:
            vars(self).update(kept)
            return pool.take_all()

        return back

    async def open(self) -> None:
        """Open the store for this loop; enqueueing does so by itself."""
        await self.engine()

    async def close(self) -> None:
        """Flush buffered events and close this loop's engine and that of the sync callers.

        The next use opens them again.
        """
        member = self._pool.remove_current()
        helper = sync.shared.started
        both = helper is not None and self._pool.serves(helper) and helper is not asyncio.get_running_loop()
        try:
            if member is not None:
                await member.close(None if both else self.timeline)
        finally:
            if helper is not None and both:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), helper))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- sync callers -------------------------------------------------------------------------------------------

    def run(self, awaitable: Awaitable[T], *, instead: str = "`await`") -> T:
        """Run any of Stoker's coroutines from code without a loop, and wait for it."""
        group: Any = awaitable
        if isinstance(group, NewGroup) and group.joins and running_loop() is None:
            return cast("T", group.store_here())  # in this thread, where the transaction is
        return sync.shared.run(awaitable, instead)


class _Fallback(str):
    """The default URL, used when none was given."""

    __slots__ = ()


def _address(url: str | Engine | None) -> str | Engine:
    """Where the store is: as given, else `$STOKER_URL`, else a file beside the program."""
    if url is None:
        return os.environ.get("STOKER_URL") or _Fallback(DEFAULT_URL)
    if url == "":
        why = "is empty; leave it out to take $STOKER_URL, else sqlite:///stoker.db, or name a store"
        raise InvalidInput("url", url, why)
    return url


def engine_maker(url: str | Engine | None, options: dict[str, Any]) -> Callable[[], Engine]:
    """Make the engine now, without opening it, so that a wrong URL or option is refused where it is written."""
    at = _address(url)
    if not isinstance(at, str):
        check_known(options, {*_keywords(), *inspect.signature(type(at)).parameters}, "the keyword")
        for name in options:
            raise InvalidOption("the option", name, "belongs to the engine; give it where the engine is made")
        return at.for_loop
    check_known(options, {*_keywords(), *engine_options(at)}, "the keyword")
    engine = engine_from_url(at, **options)
    return lambda: _announced(engine, at)


def _keywords() -> list[str]:
    """The keywords of `Stoker` itself, without those of the engine."""
    own = [one.name for one in inspect.signature(Stoker.__init__).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return [*own, *(field.name for field in dataclasses.fields(TimelineSettings))]


def _announced(engine: Engine, url: str) -> Engine:
    """The engine at its first use; logs where a store is whose URL was not given."""
    if isinstance(url, _Fallback):
        text = "no URL was given and STOKER_URL is not set: jobs are kept in %s. Give Stoker a URL to choose the place."
        logger.warning(text, engine.where)
    return engine


def _checked(drafts: Iterable[Draft]) -> list[Draft]:
    """The drafts as a list; anything else is refused."""
    if not isinstance(drafts, Iterable):
        raise InvalidInput("drafts", drafts, "must be a list or another iterable of drafts, such as task.draft(...)")
    found = list(drafts)
    check_drafts("drafts", found)
    return found


@contextmanager
def _naming_the_rest(drafts: Sequence[Draft], start: int) -> Iterator[None]:
    """Note on an error which drafts are stored and which are not."""
    try:
        yield
    except Exception as error:
        error.add_note(f"drafts 0 to {start - 1} were stored" if start else "no draft was stored")
        error.add_note(f"draft {start} (job {drafts[start].id}) and all after it were not stored")
        raise


def _log_superseded(draft: Draft, loser: JobId) -> None:
    job = ids.text(loser)
    text = "job %s is dead: it waited for a retry, and job %s (%s, queue %s) took its unique key"
    logger.error(text, job, draft.id, draft.kind, draft.queue, extra={"job": job})


_OWN_ID = "must be a UUID, such as current().id, or of a text of yours uuid.uuid5(uuid.NAMESPACE_URL, text)"


def _id(given: str | UUID | JobId, what: str, why: str = "must be a UUID") -> JobId:
    return given if isinstance(given, bytes) and len(given) == 16 else ids.parse(cast("str", given), what, why)

"""Stoker: one store, the tasks that use it, and the ways to put jobs into it.

An app belongs to no loop: it opens an engine for every loop that uses it, on first use (`homes`). Workers, operators
and the dashboard are made from an app (`Worker(jobs)`); the app knows none of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import get_ident
from typing import Any, ParamSpec, Self, TypeVar, overload

import msgspec
import uuid_utils

from stoker import codec, sync
from stoker.codec import Signature
from stoker.context import Context
from stoker.engines.base import Engine, Transaction
from stoker.engines.url import engine_from_url
from stoker.handle import JobHandle
from stoker.homes import Homes
from stoker.hooks import Listener, Listeners, Middleware
from stoker.lifespan import Lifespan
from stoker.model import ids
from stoker.model.errors import DuplicateTask, InvalidInput, InvalidOption, UnknownTask
from stoker.model.events import Event, EventType, Transition
from stoker.model.ids import JobId
from stoker.model.job import (
    DEFAULT_ATTEMPTS,
    LARGEST_BATCH,
    Draft,
    Isolation,
    Job,
    Options,
    Receipt,
    Status,
    Stored,
    check_name,
)
from stoker.model.retry import DEFAULT_BACKOFF, Backoff, Errors
from stoker.model.time import SECOND, Seconds, span
from stoker.model.unique import Unique
from stoker.settings import TimelineSettings, check_known, resolve
from stoker.task import AsyncTask, SyncTask, Task, Wishes, is_async_function, merged, packed, wishes
from stoker.timeline import Buffer, wall

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Router = Callable[[str], str | None]
TenantScope = Callable[[str], AbstractAsyncContextManager[Any]]

DEFAULT_URL = "sqlite:///stoker.db"

POLICY = ("retry_on", "give_up_on", "retry_if", "crashes")
OPTIONS = tuple(Wishes.__struct_fields__)


def mint() -> JobId:
    """A fresh id: UUIDv7, strictly rising inside this process."""
    return uuid_utils.uuid7().bytes


class Stoker:
    """Background jobs on one store.

    The URL comes from the argument, else `$STOKER_URL`, else a SQLite file beside you. `attempts`, `backoff`,
    `timeout` and `keep` are what tasks get that say nothing themselves. `router` maps a kind to a queue where nobody
    named one; `tenant` supplies the tenant where the caller gave none.
    """

    def __init__(
        self,
        url: str | Engine | None = None,
        *,
        modules: Iterable[str] = (),
        queue: str = "default",
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        keep: Seconds | None = None,
        router: Router | Mapping[str, str] | None = None,
        tenant: Callable[[], str | None] | None = None,
        tenant_scope: TenantScope | None = None,
        middleware: Sequence[Middleware[Any, Any]] = (),
        listeners: Iterable[Listener[Transition]] = (),
        mint: Callable[[], JobId] = mint,
        timeline: bool = True,
        **options: Any,
    ) -> None:
        pace = {field.name: options.pop(field.name, None) for field in dataclasses.fields(TimelineSettings)}
        self._pace = resolve(TimelineSettings, pace, environ=os.environ)
        self._homes = _homes(url or os.environ.get("STOKER_URL") or DEFAULT_URL, options)
        self.modules = tuple(modules)
        self.defaults = wishes(queue=queue, attempts=attempts, backoff=backoff, timeout=timeout, keep=keep)
        self.backoff: Backoff = backoff or DEFAULT_BACKOFF
        self.middleware = list(middleware)
        self.listeners: Listeners[Transition] = Listeners(listeners)
        self.mint = mint
        self.timeline = Buffer(self._pace.event_buffer, self._pace.event_chunk) if timeline else None
        self.lifespans: list[Lifespan[Any]] = []
        self._router = _as_router(router)
        self._tenant = tenant
        self._tenant_scope = tenant_scope
        self._tasks: dict[str, Task[..., Any]] = {}
        self._declared: dict[str, Wishes] = {}
        self._imported = False
        self._importing: set[int] = set()

    def __repr__(self) -> str:
        return f"<Stoker {len(self._tasks)} tasks>"

    # --- tasks --------------------------------------------------------------------------------------------------

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        unique: str | Unique | Callable[..., str | Unique | None] | None = None,
        expires: Seconds | None = None,
        keep: Seconds | None = None,
        metadata: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
        crashes: int | None = 3,
        replace: bool = False,
    ) -> _Decorator: ...
    def task(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Register a handler: `@jobs.task`, `@jobs.task(queue="mail")`, or a call for a function you cannot decorate.

        The kind is the function's name unless `name=` says otherwise. Two tasks of one name are a start-up error;
        `replace=True` means it.
        """
        decorate = _Decorator(self, options)
        return decorate if fn is None else decorate(fn)

    def register(self, task: Task[..., Any], *, replace: bool = False) -> None:
        """Put a task into the registry."""
        known = self._tasks.get(task.name)
        if known is not None and not replace:
            raise DuplicateTask(task.name, _where(known.fn), _where(task.fn))
        self._tasks[task.name] = task

    def declare(self, kind: str, *, queue: str | None = None, **options: Any) -> None:
        """Announce a task whose code lives elsewhere, so that this producer may enqueue it by name."""
        check_name("task name", kind)
        self._declared[kind] = _wishes({"queue": queue, **options})

    @property
    def tasks(self) -> dict[str, Task[..., Any]]:
        """The registered tasks by kind; modules named by `modules=` are imported first."""
        self._import()
        return dict(self._tasks)

    def find_task(self, kind: str) -> Task[..., Any] | None:
        """The task of a kind, or None."""
        self._import()
        return self._tasks.get(kind)

    def _import(self) -> None:
        """Import the modules, once; one that fails is tried again next time. They may ask for tasks themselves."""
        me = get_ident()
        if self._imported or me in self._importing:
            return
        self._importing.add(me)
        try:
            for module in self.modules:
                importlib.import_module(module)
            self._imported = True
        finally:
            self._importing.discard(me)

    def lifespan(self, fn: Callable[[], AsyncIterator[T]]) -> Lifespan[T]:
        """Open something once per worker process: an async generator that yields it. Handlers read `.state`."""
        lifespan = Lifespan(fn)
        self.lifespans.append(lifespan)
        return lifespan

    def listener(self, fn: Listener[Transition]) -> Listener[Transition]:
        """Hear every change of status that a write of this process brought about."""
        return self.listeners.add(fn)

    # --- options ------------------------------------------------------------------------------------------------

    def resolve(self, kind: str, given: Wishes) -> tuple[str, int, int, Options]:
        """Queue, priority, attempts and the rest for a job of this kind: call, task, router, app.

        The app's backoff does not travel with the job: a queue's own curve has the word before it.
        """
        queue = given.queue or self._router(kind) or self.defaults.queue or "default"
        wish = merged(given, self.defaults)
        attempts = DEFAULT_ATTEMPTS if wish.attempts is None else wish.attempts
        return queue, wish.priority or 0, attempts, packed(msgspec.structs.replace(wish, backoff=given.backoff))

    def current_tenant(self) -> str | None:
        """The tenant hook's answer; None without a hook."""
        return None if self._tenant is None else self._tenant()

    def scoped(self, call: Callable[[Context], Awaitable[Any]]) -> Callable[[Context], Awaitable[Any]]:
        """Run a handler inside its tenant's scope, where there is a tenant and a scope for it."""
        scope = self._tenant_scope
        if scope is None:
            return call

        async def inside(context: Context) -> Any:
            if context.tenant is None:
                return await call(context)
            async with scope(context.tenant):
                return await call(context)

        return inside

    @property
    def environ(self) -> Mapping[str, str]:
        """Where settings that nobody gave are looked up."""
        return os.environ

    @asynccontextmanager
    async def lock(self, name: str, *, lease: Seconds = 30) -> AsyncIterator[bool]:
        """Try to hold a named lock across every process on the store: yields whether it is held.

        Nobody waits. The lock lapses after `lease`, so a process that dies does not keep it.
        """
        engine = await self.engine()
        owner = ids.text(self.mint())
        held = await engine.lock(name, owner, span(lease, "lease"))
        try:
            yield held
        finally:
            if held:
                await engine.unlock(name, owner)

    def signature_of(self, kind: str) -> Signature | None:
        """How the arguments and results of a kind read; None for one that is not registered here."""
        task = self.find_task(kind)
        return None if task is None else task.signature

    # --- enqueueing ---------------------------------------------------------------------------------------------

    def draft(self, kind: str, payload: Any = None, **options: Any) -> Draft:
        """A job by name: an object means keywords, a list positionals, None no arguments, `Raw` JSON as it is."""
        self._import()
        task = self._tasks.get(kind)
        if task is None and kind not in self._declared:
            raise UnknownTask(kind, (*self._tasks, *self._declared))
        base = task.options if task is not None else self._declared[kind]
        wish = merged(_wishes(options), base)
        queue, priority, attempts, rest = self.resolve(kind, wish)
        unique = wish.unique
        if callable(unique):
            raise InvalidInput("unique", kind, "computes its key from arguments; give unique= with a job by name")
        tenant = self.current_tenant() if wish.tenant is None else wish.tenant
        encoded = codec.encode_payload(payload)
        delay = wish.delay or 0
        return Draft(self.mint(), kind, encoded, queue, priority, delay, wish.at, attempts, unique, tenant, rest)

    async def enqueue(self, draft: Draft, *, tx: Transaction | None = None) -> JobHandle[Any]:
        """Store one draft."""
        return await self.enqueue_draft(draft, self.signature_of(draft.kind), tx=tx)

    async def enqueue_draft(
        self, draft: Draft, signature: Signature | None, *, tx: Transaction | None = None
    ) -> JobHandle[Any]:
        """Store one draft whose signature is known; tasks end up here."""
        [receipt] = await self._insert([draft], tx)
        return JobHandle(self, receipt.id, signature, receipt.stored)

    def enqueue_draft_sync(
        self, draft: Draft, signature: Signature | None, *, tx: Transaction | None = None
    ) -> JobHandle[Any]:
        """The same without a loop. With the user's own synchronous handle no loop is involved at all."""
        if tx is None:
            return self.run(self.enqueue_draft(draft, signature), instead=f"`await {draft.kind}.enqueue(...)`")
        from stoker.engines.sql.handles import drive

        [receipt] = drive(_coroutine(self._homes.root().insert([draft], tx=tx)))
        return JobHandle(self, receipt.id, signature, receipt.stored)

    async def enqueue_many(self, drafts: Iterable[Draft], *, tx: Transaction | None = None) -> list[Receipt]:
        """Store many drafts; receipts in their order.

        Up to 1,000 drafts are one atomic step. Longer lists go in chunks of that size, and an error carries a note
        that names the first draft that was not stored.
        """
        waiting = list(drafts)
        receipts: list[Receipt] = []
        for start in range(0, len(waiting), LARGEST_BATCH):
            try:
                receipts += await self._insert(waiting[start : start + LARGEST_BATCH], tx)
            except Exception as error:
                error.add_note(f"drafts 0 to {start - 1} were stored" if start else "no draft was stored")
                error.add_note(f"draft {start} (job {ids.text(waiting[start].id)}) and all after it were not stored")
                raise
        return receipts

    async def _insert(self, drafts: Sequence[Draft], tx: Transaction | None) -> list[Receipt]:
        home = await self._homes.here()
        receipts = await home.engine.insert(drafts, tx=tx)
        if tx is not None:
            return receipts  # whether these jobs will ever exist is for the user's commit to say: nobody is told
        if self.timeline is not None:
            self.timeline.inserted(drafts, receipts)
            home.flush_soon(self.timeline, self._pace.event_flush / SECOND)
        if self.listeners:
            for draft, receipt in zip(drafts, receipts, strict=True):
                if receipt.stored is Stored.INSERTED:
                    self.listeners.emit(Transition(receipt.id, draft.kind, draft.queue, None, Status.PENDING))
        return receipts

    def tell_canceled(self, before: Job, reason: str) -> None:
        """A job was canceled by a write of this process: tell the timeline and the listeners."""
        if self.timeline is not None:
            at = before.started_at if before.status is Status.RUNNING else None
            duration = None if at is None else max(0, wall() - at)
            told = Event(wall(), EventType.CANCELED, before.id, before.queue, before.kind, before.attempts, duration)
            self.timeline.told(told)
        if self.listeners:
            heard = (before.id, before.kind, before.queue, before.status, Status.CANCELED, before.attempts, reason)
            self.listeners.emit(Transition(*heard))

    def handle(self, job: str | JobId) -> JobHandle[Any]:
        """The handle of a job whose id was kept somewhere, as text or as a receipt's bytes."""
        return JobHandle(self, job if isinstance(job, bytes) else ids.parse(job))

    # --- engines ------------------------------------------------------------------------------------------------

    async def engine(self) -> Engine:
        """The opened engine of the running loop."""
        return (await self._homes.here()).engine

    def root(self) -> Engine:
        """The engine all others are twins of; not opened here."""
        return self._homes.root()

    def twin(self) -> Engine:
        """Another engine on the same store, not opened yet, for a loop of its owner's."""
        return self._homes.root().twin()

    async def open(self) -> None:
        """Open the store for this loop; enqueueing does so by itself."""
        await self.engine()

    async def close(self) -> None:
        """Write the events that are still buffered and let go of this loop's engine and of the sync callers'.

        What is used afterwards opens again.
        """
        home = self._homes.leave()
        helper = sync.shared.started
        try:
            if home is not None:
                await home.close(self.timeline)
        finally:
            if helper is not None and self._homes.has_home_on(helper) and helper is not asyncio.get_running_loop():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), helper))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- sync callers -------------------------------------------------------------------------------------------

    def run(self, awaitable: Awaitable[T], *, instead: str = "`await`") -> T:
        """Run any of Stoker's coroutines from code without a loop, and wait for it."""
        return sync.shared.run(awaitable, instead)


class _Decorator:
    """What `@jobs.task(...)` returns: it takes the function and keeps its types."""

    def __init__(self, app: Stoker, options: dict[str, Any]) -> None:
        self.app = app
        self.options = options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        if isinstance(fn, Task):
            raise InvalidInput("task", fn, "is a task already; register the function itself under another name=")
        options = dict(self.options)
        name = options.pop("name", None) or _name(fn)
        replace = options.pop("replace", False)
        policy = {key: options.pop(key) for key in POLICY if key in options}
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise InvalidInput(f"task {name!r}", fn, "is a generator; a handler returns its result, it does not yield")
        signature = Signature(fn, name)
        maker = AsyncTask if is_async_function(fn) else SyncTask
        more = ("name", "replace", *POLICY)
        task: Task[..., Any] = maker(self.app, fn, name, _wishes(options, more), signature=signature, **policy)
        self.app.register(task, replace=replace)
        return task


def _as_router(router: Router | Mapping[str, str] | None) -> Router:
    """A function from kind to queue; a mapping goes by the longest prefix that fits."""
    if router is None:
        return lambda _kind: None
    if callable(router):
        return router
    prefixes = sorted(router.items(), key=lambda pair: len(pair[0]), reverse=True)
    return lambda kind: next((queue for prefix, queue in prefixes if kind.startswith(prefix)), None)


def _where(fn: Callable[..., Any]) -> str:
    code = getattr(fn, "__code__", None)
    at = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', fn)}{at}"


def _name(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def _wishes(options: Mapping[str, Any], more: tuple[str, ...] = ()) -> Wishes:
    """Options given by keyword, each of them known; `more` are those that somebody else has read already."""
    check_known(options, (*OPTIONS, *more), "the job option")
    return wishes(**options)


def _homes(url: str | Engine, options: dict[str, Any]) -> Homes:
    if isinstance(url, str):
        return Homes(lambda: engine_from_url(url, **options))
    for name in options:
        raise InvalidOption("the option", name, "belongs to the engine; give it where the engine is made")
    return Homes(url.twin, url)


async def _coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable

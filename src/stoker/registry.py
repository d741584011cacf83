"""The tasks of an app, the precedence of their options, and drafts by name.

`Stoker` is a registry with a store. The registry supplies what neither the caller nor the task gave: the queue (from a
router), the tenant (from a hook), and the app's defaults.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec
import uuid_utils

from stoker.codec.signature import Signature, encode_payload
from stoker.event_buffer import wall
from stoker.key_function import KeyFunction, with_arguments
from stoker.labels import LabelOf
from stoker.lifespan import Lifespan
from stoker.limits import LimitOf
from stoker.marked import marks_of_payload
from stoker.model.chunk import Chunk
from stoker.model.errors import DuplicateSchedule, DuplicateTask, InvalidInput, InvalidPayload, UnknownTask
from stoker.model.ids import JobId
from stoker.model.job import DEFAULT_ATTEMPTS, DEFAULT_QUEUE, Draft, Options, check_name
from stoker.model.retry import ANY_ERROR, DEFAULT_BACKOFF, Backoff, Errors, Policy
from stoker.model.schedule import Misfire, Overlap
from stoker.model.time import Seconds
from stoker.model.unique import not_hidden
from stoker.options import CallOptions, JobOptions, TaskOptions, parse
from stoker.schedules import Declaration
from stoker.schedules import parse as read_options
from stoker.task import AsyncTask, ChunkTask, SyncTask, Task, check_chunk, is_async_function

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.sealed.seal import Seal

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
TaskT = TypeVar("TaskT", bound=Task[..., Any])

Router = Callable[[str], str | None]

DEFAULT_CRASHES = 3
POLICY = ("retry_on", "give_up_on", "retry_if", "crashes", "validate", "chunk")


def inside(namespace: str | None, name: str) -> str:
    """The name with its namespace: `billing.send`."""
    return name if namespace is None else f"{namespace}.{name}"


def mint() -> JobId:
    """A fresh id: UUIDv7, strictly rising inside this process."""
    return uuid_utils.uuid7().bytes


class Registry:
    """Tasks by kind, and the defaults of their jobs."""

    def __init__(
        self,
        defaults: JobOptions,
        *,
        namespace: str | None = None,
        modules: Iterable[str] = (),
        router: Router | Mapping[str, str] | None = None,
        tenant: Callable[[], str | None] | None = None,
        mint: Callable[[], JobId] = mint,
        policy: Policy = ANY_ERROR,
        seal: Seal | None = None,
    ) -> None:
        self.namespace = namespace
        self.seal = seal
        self.policy = policy
        self.modules = tuple(modules)
        self.defaults = defaults
        self.backoff: Backoff = defaults.backoff or DEFAULT_BACKOFF
        self.mint = mint
        self.lifespans: list[Lifespan[Any]] = []
        self._router = _as_router(router)
        self._tenant = tenant
        self._tasks: dict[str, Task[..., Any]] = {}
        self._declared: dict[str, JobOptions] = {}
        self._schedules: dict[str, Declaration] = {}
        self._imported = False
        self._importing: set[int] = set()

    def prefixed(self, name: str) -> str:
        """A default name, prefixed with the app's namespace."""
        return inside(self.namespace, name)

    # --- tasks --------------------------------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        /,
        *,
        name: str | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        crashes: int | None = DEFAULT_CRASHES,
        validate: bool = True,
        replace: bool = False,
        **options: Unpack[TaskOptions[KeyFunction]],
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(
        self,
        fn: Callable[P, R],
        /,
        *,
        name: str | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        crashes: int | None = DEFAULT_CRASHES,
        validate: bool = True,
        replace: bool = False,
        **options: Unpack[TaskOptions[KeyFunction]],
    ) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        crashes: int | None = DEFAULT_CRASHES,
        validate: bool = True,
        replace: bool = False,
        **options: Unpack[TaskOptions[KeyFunction]],
    ) -> _Decorator: ...
    @overload
    def task(
        self,
        *,
        chunk: Chunk,
        name: str | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        crashes: int | None = 3,
        validate: bool = True,
        replace: bool = False,
        **options: Unpack[TaskOptions[KeyFunction]],
    ) -> _ChunkDecorator: ...
    def task(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Register a handler: `@jobs.task`, `@jobs.task(queue="mail")`, or a call for a function you cannot decorate.

        With `chunk=Chunk(100)` the handler is called with a list, the arguments of up to so many jobs.

        The kind is the function's name, after the app's namespace, unless `name=` is given. Two tasks with the same
        name are a start-up error, unless `replace=True` is given.
        """
        decorate = _Decorator(cast("Stoker", self), options)
        return decorate if fn is None else decorate(fn)

    def cron(
        self,
        expression: str | None = None,
        /,
        *,
        every: Seconds | None = None,
        tz: str | None = None,
        misfire: Misfire = "once",
        grace: Seconds = 60,
        overlap: Overlap = "allow",
        jitter: Seconds = 0,
        name: str | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        crashes: int | None = DEFAULT_CRASHES,
        validate: bool = True,
        replace: bool = False,
        **options: Unpack[TaskOptions[KeyFunction]],
    ) -> _CronDecorator:
        """Declare a schedule: `@jobs.cron("0 9 * * mon-fri", tz="Europe/Paris")` on a function or a task.

        A function becomes a task with these options, and a schedule of its name. A task only gets a schedule, of its
        own name or of `name=`, with these options for its jobs. The handler is called without arguments. Workers store
        the schedule when they start, and any worker of the store fires it.
        """
        timing = {"cron": expression, "every": every, "tz": tz}
        given = read_options({**timing, "misfire": misfire, "grace": grace, "overlap": overlap, "jitter": jitter})
        caller = sys._getframe(1)  # noqa: SLF001 - the place to name when two declarations clash
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        asked = {"retry_on": retry_on, "give_up_on": give_up_on, "retry_if": retry_if}
        policy: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
        if crashes != DEFAULT_CRASHES:
            policy["crashes"] = crashes
        if not validate:
            policy["validate"] = validate
        return _CronDecorator(cast("Stoker", self), given, place, name, policy, dict(options), replace=replace)

    def declare_schedule(self, name: str, declaration: Declaration, *, replace: bool = False) -> None:
        """Put a schedule that code declares into the registry."""
        known = self._schedules.get(name)
        if known is not None and not replace:
            raise DuplicateSchedule(name, known.place, declaration.place)
        self._schedules[name] = declaration

    @property
    def declared_schedules(self) -> dict[str, Declaration]:
        """The schedules that code declares, by name; modules named by `modules=` are imported first."""
        self._import()
        return dict(self._schedules)

    def register(self, task: Task[..., Any], *, replace: bool = False) -> None:
        """Put a task into the registry."""
        known = self._tasks.get(task.name)
        if known is not None and not replace:
            raise DuplicateTask(task.name, _where(known.fn), _where(task.fn))
        self._check_limit(task)
        self._tasks[task.name] = task

    def _check_limit(self, task: Task[..., Any]) -> None:
        """Refuse two tasks that share a limit by name and mean different ones."""
        limit = task.options.limit
        if not limit:
            return
        name = limit.name or task.name
        mine, queue = (limit.n, limit.hold, limit.rate), self.resolve(task.name, task.options)[0]
        for other in self._tasks.values():
            theirs = other.options.limit
            if other.name == task.name or not theirs or (theirs.name or other.name) != name:
                continue
            if (theirs.n, theirs.hold, theirs.rate) != mine:
                why = f"task {other.name} declares {theirs}, task {task.name} {limit}; a name has one number"
                raise InvalidInput("limit", name, why)
            elsewhere = self.resolve(other.name, other.options)[0]
            if elsewhere != queue:
                why = (
                    f"task {other.name} goes to queue {elsewhere!r}, task {task.name} to {queue!r}: a limit counts the "
                    "jobs of one queue; send both to one, or give them two names"
                )
                raise InvalidInput("limit", name, why)

    def declare(self, kind: str, **options: Unpack[CallOptions[KeyFunction]]) -> None:
        """Declare a task whose code lives elsewhere, so that it can be enqueued by name."""
        self._declared[check_name("task name", kind)] = parse(options)

    @property
    def declared(self) -> frozenset[str]:
        """The kinds that are declared without code."""
        return frozenset(self._declared)

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
        """Import the modules once; a failed one is tried again next time. They may call `tasks` themselves."""
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
        """Open a resource once per worker process, from an async generator; handlers read `.state`."""
        lifespan = Lifespan(fn)
        self.lifespans.append(lifespan)
        return lifespan

    def signature_of(self, kind: str) -> Signature | None:
        """The signature of a kind; None if it is not registered here."""
        task = self.find_task(kind)
        return None if task is None else task.signature

    # --- options ------------------------------------------------------------------------------------------------

    def resolve(self, kind: str, given: JobOptions) -> tuple[str, int, int, Options]:
        """Queue, priority, attempts and the rest for a job of this kind: call, task, router, app.

        The queue of a task with `chunk=` is its own, unless one is given.
        The app's backoff and retention are not stored with the job, because those of the queue go before them.
        """
        task = self._tasks.get(kind)
        of_chunks = None if task is None or task.chunk is None else kind
        queue = given.queue or self._router(kind) or of_chunks or self.defaults.queue or DEFAULT_QUEUE
        chosen = given.over(self.defaults)
        attempts = DEFAULT_ATTEMPTS if chosen.attempts is None else chosen.attempts
        own = msgspec.structs.replace(chosen, backoff=given.backoff, keep=given.keep)
        return queue, chosen.priority or 0, attempts, own.to_stored()

    def queue_of(self, kind: str) -> str | None:
        """The queue of a kind's jobs where the call names none; None: the app does not know the kind."""
        self._import()
        task = self._tasks.get(kind)
        if task is None and kind not in self._declared:
            return None
        return self.resolve(kind, self._declared[kind] if task is None else task.options)[0]

    def served_queues(self) -> set[str]:
        """The queues that a worker serves where none are named: those of the tasks."""
        return {self.resolve(task.name, task.options)[0] for task in self.tasks.values()}

    def current_tenant(self) -> str | None:
        """The tenant from the hook; None without a hook."""
        return None if self._tenant is None else self._tenant()

    def draft(self, kind: str, payload: Any = None, **options: Unpack[CallOptions[KeyFunction]]) -> Draft:
        """A job by name: an object means keywords, a list positionals, None no arguments, `Raw` JSON as it is."""
        self._import()
        task = self._tasks.get(kind)
        if task is None and kind not in self._declared:
            raise UnknownTask(kind, (*self._tasks, *self._declared))
        base = task.options if task is not None else self._declared[kind]
        chosen = parse(options).over(base)
        if task is not None:
            check_chunk(task.chunk, chosen)
        queue, priority, attempts, rest = self.resolve(kind, chosen)
        unique = chosen.unique
        if callable(unique):
            raise InvalidInput("unique", kind, "computes its key from arguments; give unique= with a job by name")
        tenant = self.current_tenant() if chosen.tenant is None else chosen.tenant
        signature = None if task is None else task.signature
        marks = None
        try:
            encoded = encode_payload(payload)
        except InvalidPayload:
            marks = marks_of_payload(signature, payload)
            if marks is None:
                raise
            marks.check_keys(kind, chosen)
            encoded = marks.payload
        if chosen.limit:
            slot = LimitOf(chosen.limit, kind, signature).of_payload(encoded, tenant)
            rest = msgspec.structs.replace(rest, limit=slot)
        if chosen.label:
            rest = msgspec.structs.replace(rest, label=LabelOf(chosen.label, kind, signature)(encoded))
        if task is not None and task.validate:
            if marks is None:
                task.signature.check_named(payload)
            task.signature.check(encoded, marked=marks is not None)
        if unique and unique.is_of_arguments:
            if task is None:
                why = "needs the task's code to compare all arguments; give unique= a key with a job of a declared kind"
                raise InvalidInput("unique", kind, why)
            unique = with_arguments(unique, task.signature, encoded)
        if unique and unique.digest and self.seal is None:
            raise not_hidden(kind)
        draft = Draft(
            self.mint(),
            kind,
            encoded,
            queue=queue,
            priority=priority,
            delay=chosen.delay or 0,
            at=chosen.at,
            attempts=attempts,
            unique=unique or None,
            tenant=tenant,
            options=rest,
        )
        return draft if marks is None else marks.put_on(cast("Stoker", self), draft)


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
        task = self.make(fn)
        self.app.register(task, replace=self.options.get("replace", False))
        return task

    def make(self, fn: Callable[..., Any]) -> Task[..., Any]:
        """The task of a function, not registered."""
        options = dict(self.options)
        _check_handler(fn)
        name = options.pop("name", None) or self.app.prefixed(_name(fn))
        options.pop("replace", None)
        policy = {key: options.pop(key) for key in POLICY if key in options}
        plain = AsyncTask if is_async_function(fn) else SyncTask
        maker = plain if policy.get("chunk") is None else ChunkTask
        more = ("name", "replace", *POLICY)
        return maker(self.app, fn, name, parse(options, more), **policy)


class _CronDecorator:
    """What `@jobs.cron(...)` returns: it takes a function or a task and keeps its types."""

    def __init__(
        self,
        app: Stoker,
        given: dict[str, Any],
        place: str,
        name: str | None,
        policy: dict[str, Any],
        options: dict[str, Any],
        *,
        replace: bool,
    ) -> None:
        self.app = app
        self.given = given
        self.place = place
        self.name = name
        self.policy = policy
        self.options = options
        self.replace = replace

    @overload
    def __call__(self, fn: TaskT, /) -> TaskT: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        if isinstance(fn, Task):
            for option in self.policy:
                raise InvalidInput(option, fn, "belongs to the task; give it to @jobs.task, not to the schedule")
            self._declare(fn.using(**self.options) if self.options else fn)
            return fn
        task = _Decorator(self.app, {"name": self.name, **self.policy, **self.options}).make(fn)
        self._declare(task, register=True)
        return task

    def _declare(self, task: Task[..., Any], *, register: bool = False) -> None:
        name = self.name or task.name
        declaration = Declaration(name, task, self.given, self.place)
        declaration.check(wall())
        if register:
            self.app.register(task, replace=self.replace)
        self.app.declare_schedule(name, declaration, replace=self.replace)


class _ChunkDecorator(_Decorator):
    """What `@jobs.task(chunk=...)` returns: jobs take one item of the list that the handler takes."""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def __call__(
            self, fn: Callable[[list[T]], Coroutine[Any, Any, None]], /
        ) -> ChunkTask[T, None, Coroutine[Any, Any, None]]: ...
        @overload
        def __call__(
            self, fn: Callable[[list[T]], Coroutine[Any, Any, Sequence[R | BaseException] | None]], /
        ) -> ChunkTask[T, R, Coroutine[Any, Any, Sequence[R | BaseException] | None]]: ...
        @overload
        def __call__(self, fn: Callable[[list[T]], None], /) -> ChunkTask[T, None, None]: ...
        @overload
        def __call__(
            self, fn: Callable[[list[T]], Sequence[R | BaseException] | None], /
        ) -> ChunkTask[T, R, Sequence[R | BaseException] | None]: ...
        def __call__(self, fn: Callable[..., Any], /) -> Any: ...


def _check_handler(fn: Any) -> None:
    """Raise for what cannot be a handler, with what to write instead."""
    if isinstance(fn, str):
        raise InvalidInput("task", fn, f"must be a function; a name is given as @jobs.task(name={fn!r})")
    target = fn
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isclass(target):
        why = "is a class; a handler is a function that a worker can call: register a function that uses the class"
    elif not callable(target):
        why = "must be a function; @staticmethod, @classmethod and the like go above @jobs.task"
    elif _is_unbound_method(target):
        why = "is a method, and a worker has no object to call it on; use a function, or @staticmethod above @jobs.task"
    elif _is_generator(target) or _is_generator(type(target).__call__):
        why = "is a generator; a handler returns its result, it does not yield"
    else:
        return
    raise InvalidInput(f"task {_name(fn)!r}", fn, why)


def _is_generator(fn: Any) -> bool:
    return inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def _is_unbound_method(fn: Any) -> bool:
    """A function of a class body whose first parameter is the object: nothing at run time would give it one."""
    owner = getattr(fn, "__qualname__", "").rpartition(".")[0]
    if not inspect.isfunction(fn) or not owner or owner.endswith("<locals>"):
        return False
    return next(iter(inspect.signature(fn).parameters), None) in ("self", "cls")


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

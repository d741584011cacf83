"""Hooks: middleware around a handler, and listeners called after the store accepted a write.

The worker composes a task's middleware once and calls the result for each job. The app, the worker or the admin that
made a write emits its events. Two rules are kept: hooks that are not installed cost nothing, and a listener can neither
change nor delay an outcome that the store already has.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.groups import Group
from stoker.model.job import Draft, Receipt
from stoker.model.measures import Recorder

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
EventT = TypeVar("EventT")

Next: TypeAlias = Callable[[JobT], Awaitable[ResultT]]
"""The next layer, down to the handler itself."""

Middleware: TypeAlias = Callable[[Next[JobT, ResultT], JobT], Awaitable[ResultT]]
"""`async def middleware(call, job)`: do something, `return await call(job)`, or return without calling on."""

PlainNext: TypeAlias = Callable[[JobT], ResultT]
"""The next layer around a plain handler."""

PlainMiddleware: TypeAlias = Callable[[PlainNext[JobT, ResultT], JobT], ResultT]
"""`def middleware(call, job)`: do something, `return call(job)`. Runs in the thread or process of a plain handler."""

Listener: TypeAlias = Callable[[EventT], object]
"""Takes one event; what it returns is ignored."""

logger = logging.getLogger("stoker.hooks")


def compose(middlewares: Iterable[Middleware[JobT, ResultT]], innermost: Next[JobT, ResultT]) -> Next[JobT, ResultT]:
    """Wrap `innermost` so that the first middleware is the outermost; without any it is returned as it is."""
    call = innermost
    for middleware in reversed(tuple(middlewares)):
        call = functools.partial(middleware, call)
    return call


def surround(
    middlewares: Iterable[PlainMiddleware[JobT, ResultT]], innermost: PlainNext[JobT, ResultT]
) -> PlainNext[JobT, ResultT]:
    """The same for plain middleware around a plain handler."""
    call = innermost
    for middleware in reversed(tuple(middlewares)):
        call = functools.partial(middleware, call)
    return call


def is_plain(middleware: Any) -> bool:
    """Is it a plain function, which belongs into the thread or process of a plain handler?"""
    while isinstance(middleware, functools.partial):
        middleware = middleware.func
    return not _is_coroutine_function(middleware)


class Listeners(Generic[EventT]):
    """Functions called with each event after the store accepted it, in the order they were added.

    They are plain functions, not coroutines: events come from the loop, from the keeper's thread and from callers
    without any loop, and an event that has to wait for a slow observer would hold up the writer or pile up behind it.
    A listener with something to await puts the event on a queue of its own.

    Emitters ask `if listeners:` before they build an event. Adding and emitting may happen in different threads.
    """

    __slots__ = ("_failures", "_listeners", "_lock")

    def __init__(self, listeners: Iterable[Listener[EventT]] = ()) -> None:
        self._listeners: tuple[Listener[EventT], ...] = ()
        self._failures: dict[str, int] = {}
        self._lock = Lock()
        for listener in listeners:
            self.add(listener)

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def failures(self) -> dict[str, int]:
        """How often each listener raised, by its name."""
        with self._lock:
            return dict(self._failures)

    def add(self, listener: Listener[EventT]) -> Listener[EventT]:
        """Call `listener` from the next event on; returns it, so this is a decorator too."""
        if not callable(listener):
            raise InvalidInput("listener", listener, "must be a function of one event")
        if _is_coroutine_function(listener):
            raise InvalidInput(
                "listener",
                listener,
                "must be a plain function; let it hand the event to a queue that your coroutine reads",
            )
        with self._lock:
            self._listeners = (*self._listeners, listener)
        return listener

    def remove(self, listener: Listener[EventT]) -> None:
        """Stop calling `listener`; one that is not there is ignored."""
        with self._lock:
            self._listeners = tuple(kept for kept in self._listeners if kept != listener)

    def emit(self, event: EventT) -> None:
        """Call every listener; one that raises stops neither the others nor the caller."""
        for listener in self._listeners:
            try:
                listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - even SystemExit: the store has the write already
                self._report(listener, error)

    def _report(self, listener: Listener[EventT], error: BaseException) -> None:
        """Log a listener's first failure only: it fails for each event alike and would drown everything else."""
        name = name_of(listener)
        with self._lock:
            count = self._failures[name] = self._failures.get(name, 0) + 1
        if count == 1:
            logger.error(
                "listener %s raised; the job's outcome is stored; further failures of this listener are only counted",
                name,
                exc_info=error,
            )


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that failed, as error hooks receive it, after the store accepted the outcome.

    `error` is the text on the job's record. `exception` is None where it was raised in another process, or where none
    was raised: a timeout of a thread, a process that died, a job that no task fits.
    """

    job: str
    kind: str
    queue: str
    attempt: int
    attempts: int
    dead: bool
    error: str
    exception: BaseException | None = None
    tenant: str | None = None
    metadata: dict[str, str] = {}


class Sending:
    """A write of drafts that is traced: what to store instead, and afterwards what the store answered."""

    __slots__ = ("drafts", "group", "receipts")

    def __init__(self, drafts: Sequence[Draft], group: Group | None) -> None:
        self.drafts = drafts
        self.group = group
        self.receipts: Sequence[Receipt] = ()


Gauges: TypeAlias = Callable[[], tuple[dict[str, int], float]]
"""What a worker shows of itself at any time: busy slots by queue, and how late the latest renewal of its lease was."""

Metering: TypeAlias = Callable[[Gauges], Recorder]
"""What makes the recorder of each worker of an app; `stoker.observe.otel_metrics` installs one."""


class Tracing(Protocol):
    """What marks jobs on their way through the store; `stoker.observe.tracing` installs one."""

    def sending(self, drafts: Sequence[Draft], group: Group | None) -> AbstractContextManager[Sending]:
        """Surround a write of drafts."""
        ...

    def following(self, context: Any, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
        """The follow-ups of a run, marked as its own."""
        ...

    def step(self, context: Any, row: str) -> AbstractContextManager[None]:
        """Surround the function of a step."""
        ...

    def carrier(self) -> dict[str, str]:
        """What the process of a handler needs to go on with the trace."""
        ...

    def enter(self, carrier: Mapping[str, str]) -> Any:
        """Go on with the trace, in the process of a handler; returns what `trace_id` reads."""
        ...

    def trace_id(self, surroundings: Any) -> str | None:
        """The id of the trace that a run is in; None: nothing records it."""
        ...


def _is_coroutine_function(listener: Any) -> bool:
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(type(listener), "__call__", None)  # noqa: B004 - asks what calling it would run, not whether it can
    )


def name_of(listener: Any) -> str:
    """Module and name of a listener or middleware, for messages."""
    while isinstance(listener, functools.partial):
        listener = listener.func
    owner = listener if hasattr(listener, "__qualname__") else type(listener)
    return f"{owner.__module__}.{owner.__qualname__}"

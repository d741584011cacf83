"""How jobs of each kind are run: handler with middleware, where it runs, time limit, rules."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from stoker.context import Context
from stoker.hooks import compose, name_of
from stoker.model.job import Claim
from stoker.model.lifecycle import Rules
from stoker.model.time import SECOND, Span

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.executors import Executors
    from stoker.task import Task

logger = logging.getLogger("stoker.worker")

HandlerCall: TypeAlias = Callable[[Context], Awaitable[Any]]


class TaskRunner:
    """How to run jobs of one kind, worked out once: handler with middleware, time limit, rules."""

    __slots__ = ("_app", "_executors", "call", "limit", "on_loop", "rules", "task")

    def __init__(
        self, app: Stoker, task: Task[..., Any], executors: Executors, unfit_grace: Span, keeps: dict[str, Span]
    ) -> None:
        self.task = task
        self.rules = Rules(
            backoff=task.options.backoff,
            default=app.backoff,
            keep=task.options.keep,
            crash_limit=task.crashes,
            unfit_grace=unfit_grace,
            keeps=keeps,
        )
        span = task.options.timeout if task.options.timeout is not None else app.defaults.timeout
        self.limit = None if span is None else span / SECOND
        self.on_loop = task.is_async and task.options.isolation is None
        self._app = app
        self._executors = executors
        self.call = self._wrapped(_on_loop(task.fn) if self.on_loop else executors.call_of(task, app.plain_middleware))
        if task.is_async:
            for one in app.plain_middleware:
                logger.info(
                    "middleware %s is a plain function: it surrounds plain handlers in their threads, and not the "
                    "async task %s; write one with `async def` for that",
                    name_of(one),
                    task.name,
                )

    def _wrapped(self, innermost: HandlerCall) -> HandlerCall:
        return compose(self._app.async_middleware, self._app.scoped(innermost))

    def apart(self, claim: Claim) -> HandlerCall | None:
        """Return a call that runs this job in a process of its own; None if its task cannot be imported there."""
        call = self._executors.isolated_call_of(self.task, claim)
        if call is not None and self.task.chunk is not None:
            call = _in_list(call)
        return None if call is None else self._wrapped(call)


def _on_loop(fn: Callable[..., Any]) -> HandlerCall:
    def call(context: Context) -> Awaitable[Any]:
        args, kwargs = context.arguments
        awaitable: Awaitable[Any] = fn(*args, **kwargs)
        return awaitable

    return call


def _in_list(call: HandlerCall) -> HandlerCall:
    """Return the result of a job that runs apart from its chunk as middleware sees that of a chunk."""

    async def in_list(context: Context) -> list[Any]:
        return [await call(context)]

    return in_list


class TaskRunners:
    """The task runners by kind, each made when its first job comes.

    `keeps`: the app's retention by queue; the worker fills it in when it reads the settings of its queues.
    """

    def __init__(self, app: Stoker, executors: Executors, unfit_grace: Span) -> None:
        self._app = app
        self._executors = executors
        self._grace = unfit_grace
        self.keeps: dict[str, Span] = {}
        self._made: dict[str, TaskRunner] = {}
        self.unknown_rules = Rules(default=app.backoff, unfit_grace=unfit_grace)

    def get(self, kind: str) -> TaskRunner | None:
        """Return the runner of a kind; None if this worker has no such task."""
        runner = self._made.get(kind)
        if runner is None and (task := self._app.find_task(kind)) is not None:
            runner = self._made[kind] = TaskRunner(self._app, task, self._executors, self._grace, self.keeps)
        return runner

    def rules_of(self, kind: str) -> Rules:
        """Return the rules for jobs of this kind; the app's defaults for an unknown kind."""
        runner = self.get(kind)
        return self.unknown_rules if runner is None else runner.rules

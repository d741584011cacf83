"""What running jobs of one kind takes: the handler with its middleware, its time limit and its rules."""

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


class Plan:
    """What running jobs of one kind takes, worked out once."""

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
        """How to run this one job in a process of its own; None where its task cannot be imported there."""
        call = self._executors.isolated_call_of(self.task, claim)
        return None if call is None else self._wrapped(call)


def _on_loop(fn: Callable[..., Any]) -> HandlerCall:
    def call(context: Context) -> Awaitable[Any]:
        args, kwargs = context.call
        awaitable: Awaitable[Any] = fn(*args, **kwargs)
        return awaitable

    return call

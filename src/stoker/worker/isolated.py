"""Drives a handler's coroutine inside a contextvars context of its own, without a Task.

A slot is one long-lived Task; what a handler sets in its context must not leak into the slot's next job. Sending
through `Context.run` gives each job its own context for about a microsecond, where a Task per job costs ten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import Context
from typing import Any


class Isolated:
    """Awaiting it awaits the handler, with every step run inside the given context."""

    __slots__ = ("_context", "_steps")

    def __init__(self, awaitable: Awaitable[Any], context: Context) -> None:
        self._steps: Any = awaitable if hasattr(awaitable, "send") else context.run(awaitable.__await__)
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        run = self._context.run
        steps = self._steps
        try:
            waiting = run(steps.send, None)
            while True:
                try:
                    value = yield waiting
                except BaseException as error:  # noqa: BLE001 - whatever the loop throws in belongs to the handler
                    waiting = run(steps.throw, error)
                else:
                    waiting = run(steps.send, value)
        except StopIteration as stop:
            return stop.value

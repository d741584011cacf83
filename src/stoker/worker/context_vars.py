"""Drives a handler's coroutine inside a contextvars context of its own, without a Task.

A slot is one long-lived Task; what a handler sets in its context must not leak into the slot's next job. Entering a
context of the job's own for each of its steps costs less than a microsecond, where a Task per job costs ten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextvars import Context as Variables
from typing import Any

from stoker.context import Context, running

Steps = Any
"""What can be sent to and thrown into until it stops."""


def begin(call: Callable[[Context], Awaitable[Any]], context: Context) -> tuple[Steps, Any]:
    """The first step of a run: its steps and what they wait for, or None and the result, as of most short handlers.

    To be run inside the run's own contextvars context.
    """
    running.set(context)
    awaitable = call(context)
    steps: Steps = awaitable if hasattr(awaitable, "send") else awaitable.__await__()
    try:
        return steps, steps.send(None)
    except StopIteration as stop:
        return None, stop.value


class InOwnContext:
    """Awaiting it goes on with a run that has begun, every step inside the run's own context."""

    __slots__ = ("_steps", "_variables", "_waiting")

    def __init__(self, steps: Steps, waiting: Any, variables: Variables) -> None:
        self._steps = steps
        self._waiting = waiting
        self._variables = variables

    def __await__(self) -> Generator[Any, Any, Any]:
        run, steps, waiting = self._variables.run, self._steps, self._waiting
        try:
            while True:
                try:
                    value = yield waiting
                except BaseException as error:  # noqa: BLE001 - whatever the loop throws in belongs to the handler
                    waiting = run(steps.throw, error)
                else:
                    waiting = run(steps.send, value)
        except StopIteration as stop:
            return stop.value

"""Chooses where a task's handler runs and gives the worker one callable for it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from stoker.app_path import NotImportable, address
from stoker.context import Context
from stoker.executors.processes import Processes
from stoker.executors.threads import Threads, handler_of
from stoker.hooks import PlainMiddleware, surround
from stoker.model.job import Claim
from stoker.settings import WorkerSettings, resolve

if TYPE_CHECKING:
    from stoker.task import Task

HandlerCall: TypeAlias = Callable[[Context], Awaitable[Any]]


SUSPECT_AFTER = 2
"""Crash-ends after which a job runs alone, so that only the guilty meet a third one."""


def is_suspect(claim: Claim) -> bool:
    """Must this job run in a process of its own, whatever its task says?"""
    return claim.crashes >= SUSPECT_AFTER or claim.options.isolation == "process"


class Executors:
    """The worker's threads and child processes."""

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        self.threads = Threads()
        self.processes = Processes(settings or resolve(WorkerSettings, environ=os.environ))

    def check(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Refuse at start-up a task that wants a process of its own but cannot be imported there."""
        for task in tasks:
            if task.options.isolation == "process":
                address(task)

    def warm_up(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Start a child process in the background if one of the tasks will want it."""
        for task in tasks:
            if task.options.isolation == "process":
                self.processes.warm_up(task)
                return

    def call_of(self, task: Task[..., Any], around: Sequence[PlainMiddleware[Any, Any]] = ()) -> HandlerCall:
        """How to run this task's handler off the loop, with plain middleware around it in its own thread."""
        if task.options.isolation == "process":
            return self._in_process(task)
        run = surround(around, handler_of(task.fn))

        async def in_thread(context: Context) -> Any:
            if is_suspect(context.claim) and (call := self.isolated_call_of(task, context.claim)) is not None:
                return await call(context)
            return await self.threads.run(run, (context,), {})

        return in_thread

    def isolated_call_of(self, task: Task[..., Any], claim: Claim | None = None) -> HandlerCall | None:
        """How to run this task's handler in a process whatever the task says.

        None where it cannot be imported, unless this very job asked for a process: then the run says why not.
        """
        asked = claim is not None and claim.options.isolation == "process"
        try:
            address(task)
        except NotImportable:
            return self._in_process(task) if asked else None
        return self._in_process(task)

    def _in_process(self, task: Task[..., Any]) -> HandlerCall:
        async def in_process(context: Context) -> Any:
            return await self.processes.run(task, context)

        return in_process

    async def close(self) -> None:
        """Let go of threads and processes."""
        self.threads.close()
        await self.processes.close()

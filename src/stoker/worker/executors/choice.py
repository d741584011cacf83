"""Chooses where a task's handler runs and gives the worker one callable for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from stoker.context import Context
from stoker.worker.executors.threads import Threads

if TYPE_CHECKING:
    from stoker.task import Task


class Executors:
    """The worker's threads and child processes."""

    def __init__(self) -> None:
        self.threads = Threads()

    def call_of(self, task: Task[..., Any]) -> Callable[[Context], Awaitable[Any]]:
        """How to run this task's handler off the loop."""
        fn = task.fn

        async def in_thread(context: Context) -> Any:
            args, kwargs = context.call
            return await self.threads.run(fn, args, kwargs)

        return in_thread

    async def close(self) -> None:
        """Let go of threads and processes."""
        self.threads.close()

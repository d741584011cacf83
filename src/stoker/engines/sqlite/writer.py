"""The writer thread: does one thing after the other and tells the loop. An engine has at most one."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Task: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class Writer:
    """Started by its first task. Tasks never raise; what they answer is handed to a callback on the loop."""

    __slots__ = ("_loop", "_tasks", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], Any], landed: Callable[[Any], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stoker-sqlite", daemon=True)
            self._thread.start()
        self._tasks.put((work, landed))

    def close(self) -> None:
        """Let the thread finish what it has; it must not outlive the loop."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, landed = task
            answer = work()
            del work, task
            try:
                self._loop.call_soon_threadsafe(landed, answer)
            except RuntimeError:  # the loop was closed without closing the engine: nobody is left to be told
                return

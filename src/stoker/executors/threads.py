"""Plain functions in threads.

A thread cannot be killed. One that outlives its job's limit is abandoned together with its place: the job is settled
without it, a fresh thread takes the place, and `abandoned` counts how many still run somewhere in the background.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextvars import Context as Variables
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from stoker.context import Context


def handler_of(fn: Callable[..., Any]) -> Callable[[Context], Any]:
    """A plain handler as what middleware calls: with the run, whose arguments it takes."""

    def call(context: Context) -> Any:
        args, kwargs = context.arguments
        return fn(*args, **kwargs)

    return call


class _Errand:
    """One call on its way through a thread."""

    __slots__ = ("args", "ended", "fn", "future", "given_up", "kwargs", "loop", "taken", "variables")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.variables: Variables = copy_context()
        self.taken = self.ended = self.given_up = False

    def run(self) -> tuple[Any, BaseException | None]:
        """Make the call, whatever comes of it."""
        try:
            return self.variables.run(self.fn, *self.args, **self.kwargs), None
        except BaseException as raised:  # noqa: BLE001 - even SystemExit: it is judged on the loop
            return None, raised

    def land(self, outcome: tuple[Any, BaseException | None]) -> None:
        """Bring the outcome to the loop that waits for it."""
        try:
            self.loop.call_soon_threadsafe(self._arrive, outcome)
        except RuntimeError:  # the loop is closed: no caller waits any more
            return

    def _arrive(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Threads:
    """As many threads as calls run at once, made when needed, kept for the next call."""

    def __init__(self) -> None:
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._alive = 0
        self.abandoned = 0
        self.calls: dict[int, Variables] = {}
        """The variables of the call that each thread makes, by the id of the thread."""

    async def run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call in a thread, inside a copy of the caller's context. Cancelling abandons a call that has begun.

        What turns out to be an awaitable (a coroutine function behind a plain wrapper) is awaited on the loop.
        """
        errand = _Errand(fn, args, kwargs)
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._spawn()
        self._errands.put(errand)
        try:
            value, error = await errand.future
        except asyncio.CancelledError:
            with self._lock:
                errand.given_up = True
                self.abandoned += errand.taken and not errand.ended
            raise
        if error is not None:
            raise error
        return await value if inspect.isawaitable(value) else value

    def _spawn(self) -> None:
        self._alive += 1
        threading.Thread(target=self._serve, name=f"stoker-handler-{self._alive}", daemon=True).start()

    def _serve(self) -> None:
        ident, calls = threading.get_ident(), self.calls
        while (errand := self._errands.get()) is not None:
            with self._lock:
                errand.taken = not errand.given_up
            calls[ident] = errand.variables
            outcome = errand.run() if errand.taken else (None, None)
            del calls[ident]
            with self._lock:  # free before the outcome lands, so that the next call finds this thread
                errand.ended = True
                self.abandoned -= errand.taken and errand.given_up
                self._idle += 1
            errand.land(outcome)
            del errand, outcome

    def close(self) -> None:
        """Let idle threads end; abandoned ones die with the process."""
        for _ in range(self._alive):
            self._errands.put(None)

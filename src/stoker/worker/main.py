"""Runs one worker as a process: the event loop, the signals, and errors that leave the loop.

TERM and INT drain, a second one hurries; HUP drains too (a supervisor gives it another meaning); TSTP quiets. The
handlers that were installed before come back afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from stoker.context import Context, running
from stoker.model.errors import StokerError
from stoker.model.humanize import count
from stoker.model.time import SECOND
from stoker.outage import wait_for_store

if TYPE_CHECKING:
    from stoker.worker.worker import Worker

logger = logging.getLogger("stoker.worker")


def run_worker(worker: Worker) -> None:
    """Run a worker in a script until a signal stops it, or until it has drained."""
    worker.check()
    MainLoop(worker).run()


class MainLoop:
    """One worker and its event loop, in one thread."""

    def __init__(self, worker: Worker, beside: Callable[[], Awaitable[None]] | None = None) -> None:
        self.worker = worker
        self.loop = asyncio.new_event_loop()
        self.asked = False
        self._beside = beside
        self._signals = 0
        self._quiet = False
        self._main: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Run the worker to its end. Raises what kept it from starting."""
        asyncio.set_event_loop(self.loop)
        try:
            with _signals(self.loop, self):
                self._main = self.loop.create_task(self._serve(), name="stoker-main")
                self._enter(self._main)
        finally:
            _close(self.loop)
            asyncio.set_event_loop(None)

    def _enter(self, main: asyncio.Task[None]) -> None:
        while True:
            try:
                self.loop.run_until_complete(main)
                return
            except asyncio.CancelledError:
                if not self.asked:
                    raise
                return
            except (SystemExit, KeyboardInterrupt) as leak:
                if main.done():
                    raise
                self.loop.call_soon(end_as_panic, self.worker, leak)

    async def _serve(self) -> None:
        worker = self.worker
        store = worker.app.root()
        await wait_for_store(worker.app.open, store, worker.outage, lambda: self.asked)
        try:
            await wait_for_store(worker.start, store, worker.outage, lambda: self.asked)
            if self._quiet:
                self.quiet()
            beside = None if self._beside is None else asyncio.ensure_future(self._beside())
            try:
                await worker.join()
            finally:
                if beside is not None:
                    beside.cancel()
                await worker.stop()
        finally:
            try:
                await worker.app.close()
            except StokerError as error:
                logger.warning("the last events could not be written: %s", error)

    # --- requests; on the loop --------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop gracefully; a second call changes nothing."""
        if self.asked:
            return
        self.asked = True
        if self.worker.state == "new":
            if self._main is not None:
                self._main.cancel()
            return
        grace = self.worker.settings.shutdown_grace / SECOND
        logger.info(
            "stopping: no new jobs are claimed, with %g s to finish %s before a hand-back. Ask again to hurry.",
            grace,
            count(self.worker.runs, "running job"),
        )
        self.worker.ask_stop()

    def hurry(self) -> None:
        """Stop without waiting for running jobs."""
        self.drain()
        logger.info("hurrying: %s to interrupt and hand back", count(self.worker.runs, "running job"))
        self.worker.hurry()

    def quiet(self) -> None:
        """Claim no more jobs."""
        self._quiet = True
        if self.worker.state == "running":
            logger.info("quiet: no new jobs are claimed, with %s to go on", count(self.worker.runs, "running job"))
            self.worker.quiet()

    def resume(self) -> None:
        """Claim jobs again."""
        self._quiet = False
        if self.worker.state == "running":
            logger.info("no longer quiet: jobs are claimed again")
            self.worker.resume()

    def stop_signal(self) -> None:
        """Handle a signal to stop: the first drains, the next hurries."""
        self._signals += 1
        if self._signals == 1:
            self.drain()
        else:
            self.hurry()


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, main_loop: MainLoop) -> Iterator[None]:
    """Handle signals while the worker runs; only possible in the main thread."""
    wanted = {
        signal.SIGTERM: main_loop.stop_signal,
        signal.SIGINT: main_loop.stop_signal,
        signal.SIGHUP: main_loop.stop_signal,
        signal.SIGTSTP: main_loop.quiet,
    }
    if threading.current_thread() is not threading.main_thread():
        wanted = {}
    before = {number: signal.getsignal(number) for number in wanted}
    for number, call in wanted.items():
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number, previous in before.items():
            loop.remove_signal_handler(number)
            if previous is not None:  # None: installed by something other than Python, and out of our reach
                signal.signal(number, previous)


def end_as_panic(worker: Worker, leak: BaseException) -> None:
    """SystemExit left the loop, because a Task that a handler spawned raised it: that job is dead, the worker lives."""
    context = culprit(leak)
    slot = None if context is None else worker.running_jobs.runs.get(context.claim.id)
    if context is None or slot is None or slot.context is not context:
        logger.error("%s was raised in the event loop by no known job; the worker continues", _name(leak))
        return
    worker.running_jobs.end_as_panic(slot, leak)


def culprit(leak: BaseException) -> Context | None:
    """The run that the code which raised belonged to: the loop's own handle remembers the variables it ran under."""
    step: TracebackType | None = leak.__traceback__
    while step is not None:
        if step.tb_frame.f_code is asyncio.Handle._run.__code__:  # noqa: SLF001
            variables = getattr(step.tb_frame.f_locals.get("self"), "_context", None)
            return None if variables is None else variables.get(running)
        step = step.tb_next
    return None


def _name(error: BaseException) -> str:
    return type(error).__name__


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Give what is left a moment to unwind; a handler that was abandoned may never do so."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    for _ in range(10):
        try:
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
            break
        except (SystemExit, KeyboardInterrupt):
            continue
    loop.close()

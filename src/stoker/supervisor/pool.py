"""The pool of worker processes: keeps one process alive on each of its positions.

The pool replaces a process that dies within a second and releases its jobs at once. A process that has run enough jobs,
has grown too large, or has lost half of its slots to handlers that never end is replaced by a fresh one, then drained.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.model.measures import Measures, added
from stoker.subprocesses import exit_reason
from stoker.supervisor import messages
from stoker.supervisor.release import release_patiently
from stoker.supervisor.worker_process import RestartDelay, WorkerProcess

if TYPE_CHECKING:
    from stoker.app import Stoker

logger = logging.getLogger("stoker.supervisor")


class PoolOptions(msgspec.Struct, frozen=True):
    """How to start worker processes and when to replace them. `waits`: after a failed start wait for a code change."""

    size: int
    assignment: messages.Assignment
    entry: str
    output: Callable[[str], object] | None = None
    max_jobs: int | None = None
    max_rss: int | None = None
    waits: bool = False


class ProcessPool:
    """`processes`: every process that runs. The pool calls `changed` after each change."""

    def __init__(self, app: Stoker, options: PoolOptions, changed: Callable[[], object]) -> None:
        self.processes: set[WorkerProcess] = set()
        self.quieted = False
        self.stopping = False
        self.unable = False
        self._app = app
        self._options = options
        self._changed = changed
        self._positions: dict[int, WorkerProcess] = {}
        self._replacing: set[int] = set()
        self._underway = 0  # launches and releases that the end waits for
        self._restart_delay = RestartDelay()
        self._exited_counts: Counter[str] = Counter()
        self._exited_measures = Measures()
        self._was_ready = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def counts(self) -> Counter[str]:
        """Settlements by status, of all processes that ever ran here."""
        return sum((Counter(one.counts) for one in self.processes), self._exited_counts.copy())

    @property
    def measures(self) -> Measures:
        """What all processes that ever ran here measured."""
        return added([self._exited_measures, *(one.measures for one in list(self.processes))])

    @property
    def over(self) -> bool:
        """Have all processes exited, with none to follow?"""
        ending = self.stopping or (self._options.assignment.drain and not self._positions)
        return ending and not self.processes and not self._underway

    async def fill(self) -> None:
        """Start a process on every empty position."""
        for position in range(self._options.size):
            if position not in self._positions and not self.stopping:
                await self._launch(position)

    def send(self, order: messages.ToWorker) -> None:
        """Send an order to every process."""
        self.stopping = self.stopping or isinstance(order, messages.Drain | messages.Hurry)
        self.quieted = self.quieted or isinstance(order, messages.Quiet)
        for one in self.processes:
            one.send(order)

    async def replace_all(self, why: str) -> None:
        """Replace one by one: each new process is ready before the old one is drained."""
        for position in range(self._options.size):
            await self._replace(position, why)

    async def close(self) -> None:
        """Stop following the processes."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- start --------------------------------------------------------------------------------------------------

    async def _launch(self, position: int) -> WorkerProcess:
        self._underway += 1
        try:
            options = self._options
            fresh = await WorkerProcess.launch(position, options.entry, options.assignment, options.output)
            self.processes.add(fresh)
        finally:
            self._underway -= 1
            self._changed()
        logger.debug("worker process %d started", fresh.pid)
        self._positions[position] = fresh
        if self.stopping:  # it was not in the pool yet when the order was sent
            fresh.send(messages.Drain())
        elif self.quieted:
            fresh.send(messages.Quiet())
        self._spawn(self._follow(fresh))
        return fresh

    async def _follow(self, one: WorkerProcess) -> None:
        code = await one.follow(self._reported)
        await self._exited(one, code)

    def _reported(self, one: WorkerProcess) -> None:
        self._changed()
        if not one.was_ready.is_set():
            return
        self._was_ready = True
        why = one.replace_reason(self._options.max_jobs, self._options.max_rss)
        if why is not None and not one.leaving and not self.stopping:
            self._spawn(self._replace(one.position, why))

    async def _replace(self, position: int, why: str) -> None:
        """Start a fresh process; drain the old one as soon as the fresh one is ready."""
        old = self._positions.get(position)
        if old is None or position in self._replacing:
            return
        self._replacing.add(position)
        try:
            fresh = await self._launch(position)
            if await fresh.wait_until_ready():
                logger.info("worker process %d is replaced by %d: %s", old.pid, fresh.pid, why)
                old.send(messages.Drain())
            elif old in self.processes and not old.leaving:
                logger.error("worker process %d stays: its replacement could not start", old.pid)
                self._positions[position] = old
            elif not self.stopping:
                self._spawn(self._refill(position, self._restart_delay.pause(position)))
        finally:
            self._replacing.discard(position)

    async def _refill(self, position: int, pause: float) -> None:
        if pause:
            logger.info("a worker process exited early again; the next one starts in %g s", pause)
        await asyncio.sleep(pause)
        if not self.stopping:
            await self._launch(position)

    # --- exit ---------------------------------------------------------------------------------------------------

    async def _exited(self, one: WorkerProcess, code: int) -> None:
        self.processes.discard(one)
        self._exited_counts.update(one.counts)
        self._exited_measures = added([self._exited_measures, one.measures.counters()])
        clean = one.finished is not None and code == 0
        if one.unable is not None:
            logger.error("worker process %d could not start: %s", one.pid, one.unable)
        elif not clean:
            logger.error("worker process %d died: %s; its jobs are released", one.pid, exit_reason(code))
        if not clean and one.identities:
            await self._release(one, code)
        held = self._positions.get(one.position) is one
        if held:
            del self._positions[one.position]
        if one.unable is not None and self._options.waits:
            logger.info("worker processes start again when the code changes")
        elif one.unable is not None and not self._was_ready:
            self.unable = True
        elif held and not (
            one.leaving or one.position in self._replacing or (clean and self._options.assignment.drain)
        ):
            self._spawn(self._refill(one.position, self._restart_delay.pause(one.position, one.age)))
        self._changed()

    async def _release(self, one: WorkerProcess, code: int) -> None:
        """Release its jobs: without a crash-end if it reported its end or was killed while stopping."""
        harmless = one.unable or one.finished or one.killed
        self._underway += 1  # a stop waits for this
        self._changed()
        try:
            await release_patiently(self._app, one.identities, None if harmless else exit_reason(code))
        finally:
            self._underway -= 1

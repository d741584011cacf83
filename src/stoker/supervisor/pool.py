"""The pool of worker processes: keeps one process alive on each of its positions.

The pool replaces a process that dies within a second and releases its jobs at once. A process that has run enough jobs,
has grown too large, or has lost half of its slots to handlers that never end is replaced by a fresh one, then drained.
`resize` changes how many positions there are: a surplus process claims no more, and stops when its jobs have ended.
The position of a process that was told from afar to stop stays empty until the processes are replaced.
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
        self.size = options.size
        self._positions: dict[int, WorkerProcess] = {}
        self._retiring: set[WorkerProcess] = set()
        self._replacing: set[int] = set()
        self._stopped: set[int] = set()  # positions whose process was told from afar to stop
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
        stopped = len(self._stopped) == self.size
        ending = self.stopping or stopped or (self._options.assignment.drain and not self._positions)
        return ending and not self.processes and not self._underway

    async def start(self) -> None:
        """Start a process on every position; raises `OSError` if the host has no room for one."""
        for position in range(self.size):
            if not self.stopping:
                await self._launch(position)

    async def fill(self) -> None:
        """Start a process on every empty position."""
        for position in range(self.size):
            if position not in self._stopped:
                await self._refill(position, 0.0)

    def send(self, order: messages.ToWorker) -> None:
        """Send an order to every process."""
        self.stopping = self.stopping or isinstance(order, messages.Drain | messages.Hurry)
        self.quieted = self.quieted or isinstance(order, messages.Quiet)
        for one in self.processes:
            one.send(order)

    async def replace_all(self, why: str) -> None:
        """Replace one by one: each new process is ready before the old one is drained."""
        for position in range(self.size):
            if position in self._stopped:
                await self._refill(position, 0.0)
            else:
                await self._replace(position, why)

    async def resize(self, size: int) -> None:
        """Keep so many processes from now on. No running job is interrupted."""
        while self.size > size and self._retire():
            pass
        while self.size < size:
            self._retain()
        await self.fill()

    def _retire(self) -> bool:
        """Give up the last position, and the process with the fewest running jobs; returns whether it could."""
        top = self.size - 1
        held = [one for one in self._positions.values() if one.was_ready.is_set() and not one.leaving]
        if top in self._replacing or any(one.position in self._replacing for one in held):
            return False
        last = self._positions.get(top)
        if last is not None and not held:
            return False
        self.size = top
        if last is None:  # its process died or was stopped, and no other takes its place
            self._stopped.discard(top)
            return True
        surplus = min(held, key=lambda one: (one.stats.running, -one.position))
        del self._positions[top]
        if surplus is not last:
            last.position = surplus.position
            self._positions[last.position] = last
        self._retiring.add(surplus)
        surplus.send(messages.Quiet())
        return True

    def _retain(self) -> None:
        """Add a position, with a surplus process that has not finished if there is one."""
        staying = [one for one in self._retiring if not one.leaving]
        if staying and not self.quieted:
            one = max(staying, key=lambda one: one.stats.running)
            self._retiring.discard(one)
            one.position = self.size
            self._positions[self.size] = one
            one.send(messages.Resume())
        self.size += 1

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
        self._stopped.discard(position)
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
        if one in self._retiring:
            if one.stats.resting and not one.leaving:
                one.send(messages.Drain())
            return
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
            try:
                fresh = await self._launch(position)
            except OSError as error:
                logger.error("worker process %d stays: no other one could be started: %s", old.pid, error)  # noqa: TRY400
                return
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
        """Start a process on an empty position after a pause; try again for as long as the host has no room for it."""
        while True:
            if pause:
                logger.info("a worker process exited early again; the next one starts in %g s", pause)
            await asyncio.sleep(pause)
            if self.stopping or position >= self.size or position in self._positions:
                return
            try:
                await self._launch(position)
            except OSError as error:
                logger.error("no worker process could be started: %s. Trying again.", error)  # noqa: TRY400
                pause = self._restart_delay.pause(position)
            else:
                return

    # --- exit ---------------------------------------------------------------------------------------------------

    async def _exited(self, one: WorkerProcess, code: int) -> None:
        self.processes.discard(one)
        self._retiring.discard(one)
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
        ordered = held and clean and one.finished is not None and one.finished.ordered and not self.stopping
        if ordered:
            self._stopped.add(one.position)
            logger.info(
                "worker process %d stopped, as told from afar; no other one takes its place until HUP or a new start",
                one.pid,
            )
        elif one.unable is not None and self._options.waits:
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

"""The seats of a supervisor: each is held by one worker process, and one that falls empty is taken again.

A process that dies is replaced within a second and its jobs are released at once. One that has run enough jobs, or has
grown too large, or has lost half of its slots to handlers that never end, is replaced by a fresh one and then drained.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.subprocesses import exit_reason
from stoker.supervisor import messages
from stoker.supervisor.release import release_patiently
from stoker.supervisor.worker_process import Patience, WorkerProcess

if TYPE_CHECKING:
    from stoker.app import Stoker

logger = logging.getLogger("stoker.supervisor")


class Terms(msgspec.Struct, frozen=True):
    """How worker processes are started and when one is worn. `waits`: what cannot start waits for a change of code."""

    processes: int
    assignment: messages.Assignment
    entry: str
    output: Callable[[str], object] | None = None
    max_jobs: int | None = None
    max_rss: int | None = None
    waits: bool = False


class Seats:
    """`crew`: every process that lives. `changed` is called whenever there is news."""

    def __init__(self, app: Stoker, terms: Terms, changed: Callable[[], object]) -> None:
        self.crew: set[WorkerProcess] = set()
        self.quieted = False
        self.stopping = False
        self.unable = False
        self._app = app
        self._terms = terms
        self._changed = changed
        self._seats: dict[int, WorkerProcess] = {}
        self._replacing: set[int] = set()
        self._underway = 0  # launches and releases that the end waits for
        self._patience = Patience()
        self._gone: Counter[str] = Counter()
        self._came_up = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def counts(self) -> Counter[str]:
        """Settlements by status, of all processes that ever ran here."""
        return sum((Counter(one.counts) for one in self.crew), self._gone.copy())

    @property
    def over(self) -> bool:
        """Is everybody gone who will ever be here?"""
        ending = self.stopping or (self._terms.assignment.drain and not self._seats)
        return ending and not self.crew and not self._underway

    async def fill(self) -> None:
        """Start a process on every seat that is empty."""
        for seat in range(self._terms.processes):
            if seat not in self._seats and not self.stopping:
                await self._launch(seat)

    def tell(self, order: messages.ToWorker) -> None:
        """Give everybody an order."""
        self.stopping = self.stopping or isinstance(order, messages.Drain | messages.Hurry)
        self.quieted = self.quieted or isinstance(order, messages.Quiet)
        for one in self.crew:
            one.tell(order)

    async def replace_all(self, why: str) -> None:
        """One by one; each new process is at work before an old one is drained."""
        for seat in range(self._terms.processes):
            await self._replace(seat, why)

    async def close(self) -> None:
        """Stop looking after anybody."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- coming -------------------------------------------------------------------------------------------------

    async def _launch(self, seat: int) -> WorkerProcess:
        self._underway += 1
        try:
            terms = self._terms
            fresh = await WorkerProcess.launch(seat, terms.entry, terms.assignment, terms.output)
            self.crew.add(fresh)
        finally:
            self._underway -= 1
            self._changed()
        logger.debug("worker process %d started", fresh.pid)
        self._seats[seat] = fresh
        if self.stopping:  # it was not in the crew yet when the others were told
            fresh.tell(messages.Drain())
        elif self.quieted:
            fresh.tell(messages.Quiet())
        self._spawn(self._attend(fresh))
        return fresh

    async def _attend(self, one: WorkerProcess) -> None:
        code = await one.listen(self._heard)
        await self._departed(one, code)

    def _heard(self, one: WorkerProcess) -> None:
        self._changed()
        if not one.came_up.is_set():
            return
        self._came_up = True
        why = one.worn(self._terms.max_jobs, self._terms.max_rss)
        if why is not None and not one.leaving and not self.stopping:
            self._spawn(self._replace(one.seat, why))

    async def _replace(self, seat: int, why: str) -> None:
        """A fresh process takes the seat; once it is at work the old one is drained."""
        old = self._seats.get(seat)
        if old is None or seat in self._replacing:
            return
        self._replacing.add(seat)
        try:
            fresh = await self._launch(seat)
            if await fresh.rises():
                logger.info("worker process %d is replaced by %d: %s", old.pid, fresh.pid, why)
                old.tell(messages.Drain())
            elif old in self.crew and not old.leaving:
                logger.error("worker process %d stays: its replacement could not start", old.pid)
                self._seats[seat] = old
            elif not self.stopping:
                self._spawn(self._refill(seat, self._patience.pause(seat)))
        finally:
            self._replacing.discard(seat)

    async def _refill(self, seat: int, pause: float) -> None:
        if pause:
            logger.info("a worker process died early again; the next one starts in %g s", pause)
        await asyncio.sleep(pause)
        if not self.stopping:
            await self._launch(seat)

    # --- going --------------------------------------------------------------------------------------------------

    async def _departed(self, one: WorkerProcess, code: int) -> None:
        self.crew.discard(one)
        self._gone.update(one.counts)
        clean = one.farewell is not None and code == 0
        if one.unable is not None:
            logger.error("worker process %d could not start: %s", one.pid, one.unable)
        elif not clean:
            logger.error("worker process %d died: %s; its jobs are released", one.pid, exit_reason(code))
        if not clean and one.identities:
            await self._release(one, code)
        held = self._seats.get(one.seat) is one
        if held:
            del self._seats[one.seat]
        if one.unable is not None and self._terms.waits:
            logger.info("waiting for a change of the code")
        elif one.unable is not None and not self._came_up:
            self.unable = True
        elif held and not (one.leaving or one.seat in self._replacing or (clean and self._terms.assignment.drain)):
            self._spawn(self._refill(one.seat, self._patience.pause(one.seat, one.age)))
        self._changed()

    async def _release(self, one: WorkerProcess, code: int) -> None:
        """What said good-bye, or was killed by us while stopping, is no fault of its jobs."""
        harmless = one.unable or one.farewell or one.given_up
        self._underway += 1  # whoever is told to stop now still finishes this
        self._changed()
        try:
            await release_patiently(self._app, one.identities, None if harmless else exit_reason(code))
        finally:
            self._underway -= 1

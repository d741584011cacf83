"""The supervisor: keeps N worker processes alive, and is the one that signals are sent to.

A process that dies is replaced within a second and its jobs are released at once. One that has run enough jobs, or has
grown too large, or has lost half of its slots to handlers that never end, is replaced by a fresh one and then drained.
TERM and INT drain all of them, the second one hurries; TSTP quiets; HUP replaces them one by one.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.model.errors import StokerError
from stoker.model.time import SECOND
from stoker.settings import WorkerSettings, resolve
from stoker.worker import orders
from stoker.worker.conductor import run_worker
from stoker.worker.crew import Patience, WorkerProcess
from stoker.worker.fetcher import Order
from stoker.worker.health import Health
from stoker.worker.member import EXIT_BROKEN, EXIT_START
from stoker.worker.release import release_patiently
from stoker.worker.sources import Sources
from stoker.worker.spawn import cause_of_death
from stoker.worker.whereabouts import load
from stoker.worker.worker import LAST_WAIT

if TYPE_CHECKING:
    from stoker.app import Stoker

__all__ = ["EXIT_BROKEN", "EXIT_START", "Supervisor", "run_worker"]

logger = logging.getLogger("stoker.supervisor")

MARGIN = 5.0
"""Seconds beyond grace and last wait before a process that does not stop is killed."""

LOOK_EVERY = 1.0


class Supervisor:
    """`Supervisor("app:jobs", 4).run()` answers the exit code: 0 clean, 1 could not start, 70 had to kill a worker."""

    def __init__(
        self,
        app: str,
        processes: int = 1,
        *,
        queues: Mapping[str, int] | Sequence[str] | None = None,
        order: Order = "own",
        drain: bool = False,
        max_jobs: int | None = None,
        max_rss: int | None = None,
        reload: bool = False,
        health_file: str | None = None,
        health_port: int | None = None,
        entry: str = "stoker.worker.member",
        extra: Mapping[str, Any] | None = None,
        output: Callable[[str], object] | None = None,
        **settings: Any,
    ) -> None:
        self.app: Stoker = load(app)
        self.processes = processes
        self.crew: set[WorkerProcess] = set()
        self.quieted = False
        self.stopping = False
        self.code = 0
        self._grace = resolve(WorkerSettings, settings, environ=self.app.environ).shutdown_grace / SECOND
        given = dict(queues) if isinstance(queues, Mapping) else None if queues is None else list(queues)
        self._assignment = orders.Assignment(app, given, order, drain, settings, dict(extra or {}))
        self._max_jobs = max_jobs
        self._max_rss = max_rss
        self._reload = reload
        self._entry = entry
        self._output = output
        self._seats: dict[int, WorkerProcess] = {}
        self._replacing: set[int] = set()
        self._underway = 0  # launches and releases that the end waits for
        self._patience = Patience()
        self._gone: Counter[str] = Counter()
        self._came_up = False
        self._health = Health(health_file, health_port, self.facts)
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- what others ask ----------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Does at least one worker take work?"""
        return not self.stopping and not self.quieted and any(one.ready for one in self.crew)

    @property
    def counts(self) -> Counter[str]:
        """Settlements by status, of all processes that ever ran here."""
        return sum((Counter(one.counts) for one in self.crew), self._gone.copy())

    def facts(self) -> dict[str, Any]:
        """What the health endpoint tells."""
        return {
            "ready": self.ready,
            "workers": sum(one.ready for one in self.crew),
            "processes": self.processes,
            "running": sum(one.stats.running for one in self.crew),
            "stopping": self.stopping,
        }

    # --- life ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop, or until everything is drained; answers the exit code."""
        return asyncio.run(self.serve())

    async def serve(self) -> int:
        """The same inside a loop that the caller owns; only the main thread hears signals."""
        self._finished = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number, call in self._signals().items():
            loop.add_signal_handler(number, call)
        try:
            await self.app.open()
            await self._health.open()
            for seat in range(self.processes):
                if not self.stopping:
                    await self._launch(seat)
            self._spawn(self._look_around())
            await self._finished.wait()
        except (StokerError, OSError) as error:
            logger.error("cannot start: %s", error)  # noqa: TRY400 - the text says it all, a trace would hide it
            self.code = EXIT_START
        finally:
            await self._tidy_up()
            for number in self._signals():
                loop.remove_signal_handler(number)
        return self.code

    def _signals(self) -> dict[signal.Signals, Callable[[], None]]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGTSTP: self.quiet,
            signal.SIGHUP: self.reload,
        }

    async def _tidy_up(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._health.close()
        try:
            await self.app.close()
        except StokerError as error:
            logger.warning("the last events could not be written: %s", error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- orders -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Drain every process; asked again, hurry."""
        again, self.stopping = self.stopping, True
        order = orders.Hurry() if again else orders.Drain()
        grace = 0.0 if again else self._grace
        logger.info("%s %d worker processes", "hurrying" if again else "draining", len(self.crew))
        for one in self.crew:
            one.tell(order)
        self._spawn(self._kill_after(grace + LAST_WAIT + MARGIN))
        self._health.show()
        self._notice_end()

    def quiet(self) -> None:
        """Let every process finish what it runs and claim nothing more."""
        self.quieted = True
        logger.info("quiet: nothing more is claimed; TERM stops, HUP replaces the processes by fresh ones")
        for one in self.crew:
            one.tell(orders.Quiet())
        self._health.show()

    def reload(self) -> None:
        """Replace the processes one by one; each new one is at work before an old one is drained."""
        if not self.stopping:
            self.quieted = False
            self._spawn(self._reload_all("reloading"))

    async def _reload_all(self, why: str) -> None:
        for seat in range(self.processes):
            await self._replace(seat, why)

    async def _kill_after(self, limit: float) -> None:
        await asyncio.sleep(limit)
        for one in self.crew:
            logger.error("worker process %d does not stop; it is killed, its jobs are handed back", one.pid)
            self.code = EXIT_BROKEN
            one.give_up()

    # --- the crew -----------------------------------------------------------------------------------------------

    async def _launch(self, seat: int) -> WorkerProcess:
        self._underway += 1
        try:
            fresh = await WorkerProcess.launch(seat, self._entry, self._assignment, self._output)
            self.crew.add(fresh)
        finally:
            self._underway -= 1
            self._notice_end()
        logger.debug("worker process %d started", fresh.pid)
        self._seats[seat] = fresh
        if self.stopping:  # it was not in the crew yet when the others were told
            fresh.tell(orders.Drain())
        elif self.quieted:
            fresh.tell(orders.Quiet())
        self._spawn(self._attend(fresh))
        return fresh

    async def _attend(self, one: WorkerProcess) -> None:
        code = await one.listen(self._heard)
        await self._departed(one, code)

    def _heard(self, one: WorkerProcess) -> None:
        self._health.show()
        if not one.came_up.is_set():
            return
        self._came_up = True
        why = one.worn(self._max_jobs, self._max_rss)
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
                old.tell(orders.Drain())
            elif old in self.crew and not old.leaving:
                logger.error("worker process %d stays: its replacement could not start", old.pid)
                self._seats[seat] = old
            elif not self.stopping:
                self._spawn(self._refill(seat, self._patience.pause(seat)))
        finally:
            self._replacing.discard(seat)

    async def _departed(self, one: WorkerProcess, code: int) -> None:
        self.crew.discard(one)
        self._gone.update(one.counts)
        self._health.show()
        clean = one.farewell is not None and code == 0
        if one.unable is not None:
            logger.error("worker process %d could not start: %s", one.pid, one.unable)
        elif not clean:
            logger.error("worker process %d died: %s; its jobs are released", one.pid, cause_of_death(code))
        if not clean and one.identities:
            # What said good-bye, or was killed by us while stopping, is no fault of its jobs.
            harmless = one.unable or one.farewell or one.given_up
            self._underway += 1  # whoever is told to stop now still finishes this
            try:
                await release_patiently(self.app, one.identities, None if harmless else cause_of_death(code))
            finally:
                self._underway -= 1
        held = self._seats.get(one.seat) is one
        if held:
            del self._seats[one.seat]
        if one.unable is not None and self._reload:
            logger.info("waiting for a change of the code")
        elif one.unable is not None and not self._came_up:
            self.code = EXIT_START
            if not self.stopping:
                self.stop()
        elif held and not (one.leaving or one.seat in self._replacing or (clean and self._assignment.drain)):
            self._spawn(self._refill(one.seat, self._patience.pause(one.seat, one.age)))
        self._notice_end()

    async def _refill(self, seat: int, pause: float) -> None:
        if pause:
            logger.info("a worker process died early again; the next one starts in %g s", pause)
        await asyncio.sleep(pause)
        if not self.stopping:
            await self._launch(seat)

    def _notice_end(self) -> None:
        over = self.stopping or (self._assignment.drain and not self._seats)
        if over and not self.crew and not self._underway:
            self._finished.set()

    # --- looking around -----------------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        sources = Sources() if self._reload else None
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._health.show()
            if sources is not None and not self.stopping and (path := await asyncio.to_thread(sources.changed)):
                logger.info("%s changed; the worker processes are replaced", path)
                await self._revive()
                await self._reload_all(f"{path} changed")

    async def _revive(self) -> None:
        """Seats that are empty because the code could not be imported get another try."""
        for seat in range(self.processes):
            if seat not in self._seats:
                await self._launch(seat)

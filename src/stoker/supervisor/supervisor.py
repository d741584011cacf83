"""The supervisor: keeps N worker processes alive and receives the signals.

TERM and INT drain all processes, a second one hurries; TSTP quiets; HUP replaces the processes one by one. `pool`
starts and replaces the processes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.app_path import load
from stoker.engines import notices
from stoker.model.errors import StokerError
from stoker.model.humanize import count
from stoker.model.scale import Bounds
from stoker.model.time import SECOND
from stoker.outage import Outage, wait_for_store
from stoker.settings import WorkerSettings, resolve
from stoker.supervisor import messages
from stoker.supervisor.child import EXIT_BROKEN, EXIT_START
from stoker.supervisor.health import Health
from stoker.supervisor.lease import SupervisorLease
from stoker.supervisor.pool import PoolOptions, ProcessPool
from stoker.supervisor.reload import SourceWatch
from stoker.worker.fetcher import Order
from stoker.worker.worker import LAST_WAIT, served_queues

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.observe.process_metrics import MetricsPort
    from stoker.supervisor.follow import Follower

__all__ = ["EXIT_BROKEN", "EXIT_START", "Supervisor"]

logger = logging.getLogger("stoker.supervisor")

MARGIN = 5.0
"""Seconds beyond grace and last wait before a process that does not stop is killed."""

WATCH_EVERY = 1.0
WATCH_SOURCES_EVERY = 0.5


class Supervisor:
    """`Supervisor("app:jobs", 4).run()` returns the exit code: 0 clean, 1 could not start, 70 had to kill a worker.

    With `Bounds(1, 8)` in place of a number it keeps as many processes as the claimable work needs (`follow`).
    """

    def __init__(
        self,
        app: str,
        processes: int | Bounds = 1,
        *,
        queues: Mapping[str, int] | Sequence[str] | None = None,
        order: Order = "own",
        drain: bool = False,
        max_jobs: int | None = None,
        max_rss: int | None = None,
        reload: bool = False,
        health_file: str | None = None,
        health_port: int | None = None,
        health_host: str = "127.0.0.1",
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        entry: str = "stoker.supervisor.child",
        extra: Mapping[str, Any] | None = None,
        output: Callable[[str], object] | None = None,
        **settings: Any,
    ) -> None:
        self.app: Stoker = load(app)
        self.code = 0
        found = resolve(WorkerSettings, settings, environ=self.app.environ)
        self._grace = found.shutdown_grace / SECOND
        self._lease = SupervisorLease(self.app)
        given = dict(queues) if isinstance(queues, Mapping) else None if queues is None else list(queues)
        assignment = messages.Assignment(
            app=app,
            queues=given,
            order=order,
            drain=drain,
            settings=settings,
            extra=dict(extra or {}),
            supervisor=self._lease.id,
            metrics=metrics_port is not None,
        )
        options = PoolOptions(
            size=processes.least if isinstance(processes, Bounds) else processes,
            assignment=assignment,
            entry=entry,
            output=output,
            max_jobs=max_jobs,
            max_rss=max_rss,
            waits=reload,
        )
        self._pool = ProcessPool(self.app, options, self._changed)
        self._follower: Follower | None = None
        if isinstance(processes, Bounds):
            from stoker.supervisor.follow import Follower  # reads as an operator does: much that no worker needs

            served = served_queues(self.app, given, found)
            self._follower = Follower(self.app, self._pool, processes, served, order, found)
        self._reload = reload
        self._health = Health(health_file, health_port, self.facts, host=health_host)
        self._metrics = None if metrics_port is None else (metrics_port, metrics_host)
        self._metrics_port: MetricsPort | None = None
        self._finished = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- state --------------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Was it asked to stop?"""
        return self._pool.stopping

    @property
    def ready(self) -> bool:
        """Does at least one worker claim jobs?"""
        return not self.stopping and any(one.ready and not one.quiet for one in self._pool.processes)

    @property
    def counts(self) -> Counter[str]:
        """Settlements by status, of all processes so far."""
        return self._pool.counts

    def facts(self) -> dict[str, Any]:
        """What the health endpoint shows."""
        return {
            "ready": self.ready,
            "workers": sum(one.ready for one in self._pool.processes),
            "processes": self._pool.size,
            "running": sum(one.stats.running for one in self._pool.processes),
            "stopping": self.stopping,
        }

    # --- life ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until asked to stop, or until the queues are drained; returns the exit code."""
        return asyncio.run(self.serve())

    async def serve(self) -> int:
        """Do the same in the caller's event loop; signals are handled only in the main thread."""
        loop = asyncio.get_running_loop()
        for number, call in self._signals().items():
            loop.add_signal_handler(number, call)
        try:
            await self._health.open()
            self._open_metrics()
            self._health.show()
            if await self._wait_for_store():
                notices.log_kept(self.app.root().where)
                await self._lease.renew()
                await self._pool.start()
                self._spawn(self._watch())
                if self._follower is not None:
                    self._spawn(self._follower.run())
                await self._finished.wait()
        except (StokerError, OSError) as error:
            logger.error("cannot start: %s", error)  # noqa: TRY400 - a traceback would only hide the text
            self.code = EXIT_START
        finally:
            await self._close()
            for number in self._signals():
                loop.remove_signal_handler(number)
        return self.code

    def _open_metrics(self) -> None:
        if self._metrics is not None:
            from stoker.observe.process_metrics import MetricsPort

            port, host = self._metrics
            try:
                self._metrics_port = MetricsPort(port, host, lambda: self._pool.measures)
            except OSError as error:
                raise OSError(f"metrics cannot be served at {host}:{port}: {error.strerror}") from None
            logger.info("metrics are served at %s", self._metrics_port.address)

    async def _wait_for_store(self) -> bool:
        """Wait for the store or for a request to stop; returns whether to start."""
        waiting = wait_for_store(self.app.open, self.app.root(), Outage(), lambda: self.stopping)
        opening, stopped = asyncio.ensure_future(waiting), asyncio.ensure_future(self._finished.wait())
        try:
            await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            return not self.stopping
        finally:
            opening.cancel()
            stopped.cancel()
            await asyncio.gather(opening, stopped, return_exceptions=True)

    def _signals(self) -> dict[signal.Signals, Callable[[], None]]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGTSTP: self.quiet,
            signal.SIGHUP: self.reload,
        }

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.close()
        await self._health.close()
        if self._metrics_port is not None:
            await asyncio.to_thread(self._metrics_port.close)
        await self._lease.release()
        try:
            await self.app.close()
        except StokerError as error:
            logger.warning("the last events could not be written: %s", error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _changed(self) -> None:
        """React to a change of the worker processes."""
        self._health.show()
        if self._pool.unable and not self.stopping:
            self.code = EXIT_START
            self.stop()
        elif self._pool.over:
            self._finished.set()

    # --- orders -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Drain every process; a second call hurries."""
        again = self.stopping
        grace = 0.0 if again else self._grace
        processes = count(len(self._pool.processes), "worker process", "worker processes")
        logger.info("%s %s", "hurrying" if again else "draining", processes)
        self._pool.send(messages.Hurry() if again else messages.Drain())
        self._spawn(self._kill_after(grace + LAST_WAIT + MARGIN))
        self._changed()

    def quiet(self) -> None:
        """Let every process finish its jobs and claim no more."""
        logger.info("quiet: no new jobs are claimed; TERM stops, HUP restarts the workers")
        self._pool.send(messages.Quiet())
        self._health.show()

    def reload(self) -> None:
        """Replace the processes one by one; each new one is ready before the old one is drained."""
        if not self.stopping:
            self._pool.quieted = False
            self._spawn(self._pool.replace_all("reloading"))

    async def _kill_after(self, limit: float) -> None:
        await asyncio.sleep(limit)
        for one in self._pool.processes:
            logger.error("worker process %d does not stop; it is killed and its jobs are handed back", one.pid)
            self.code = EXIT_BROKEN
            one.kill()

    # --- watching -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        sources = SourceWatch() if self._reload else None
        while True:
            await asyncio.sleep(WATCH_EVERY if sources is None else WATCH_SOURCES_EVERY)
            self._health.show()
            await self._lease.renew()
            if sources is not None and not self.stopping and (path := await asyncio.to_thread(sources.changed)):
                logger.info("%s changed; the worker processes are replaced", path)
                await self._pool.fill()  # positions that are empty because the code could not be imported
                await self._pool.replace_all(f"{path} changed")

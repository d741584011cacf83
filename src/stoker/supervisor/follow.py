"""Keeps as many worker processes as the claimable work needs: `stoker work --processes auto:1-8`.

Grows at once, and shrinks when fewer have been enough for `shrink_after`. While the store is away, or the processes are
quiet, their number stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stoker.admin.scale import RunTimes, Scale, chunk_sizes, read_scale, read_store
from stoker.model.errors import StokerError, sentence
from stoker.model.humanize import count
from stoker.model.scale import Bounds, next_size, processes, share
from stoker.model.time import SECOND

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.settings import WorkerSettings
    from stoker.supervisor.pool import ProcessPool
    from stoker.worker.fetcher import Order

logger = logging.getLogger("stoker.supervisor")

FOLLOW_EVERY = 2.0
"""Seconds between two looks at the work."""


class Follower:
    """Resizes a pool. `queues` are those that each process serves, with its slots for each."""

    def __init__(
        self,
        app: Stoker,
        pool: ProcessPool,
        bounds: Bounds,
        queues: Mapping[str, int],
        order: Order,
        settings: WorkerSettings,
    ) -> None:
        self._app = app
        self._pool = pool
        self._bounds = bounds
        self._queues = queues
        self._shares_slots = order != "own"
        self._wait = settings.target_wait
        self._shrink_after = settings.shrink_after / SECOND
        self._known = RunTimes()
        self._wishes: deque[tuple[float, int]] = deque()
        self._away = False

    async def run(self) -> None:
        """Follow the work until canceled."""
        while True:
            await asyncio.sleep(FOLLOW_EVERY)
            if self._pool.stopping or self._pool.quieted:
                continue
            try:
                await self._follow(await self._wanted(), time.monotonic())
                self._away = False
            except (StokerError, OSError) as error:
                if not self._away:
                    there = count(self._pool.size, "worker process stays", "worker processes stay")
                    logger.warning("%s: their number cannot follow the work now. %s", there, sentence(error))
                self._away = True

    async def _follow(self, wanted: int, now: float) -> None:
        self._wishes.append((now, wanted))
        while self._wishes[0][0] < now - self._shrink_after:
            self._wishes.popleft()
        before = self._pool.size
        size = next_size(before, [n for _, n in self._wishes], self._bounds)
        if size == before:
            return
        does = "more are started" if size > before else "surplus ones finish their jobs and stop"
        verb = "is" if before == 1 else "are"
        logger.info("the work needs %s, %d %s there: %s", count(size, "process", "processes"), before, verb, does)
        await self._pool.resize(size)

    async def _wanted(self) -> int:
        """This host's share of the processes that the work of its queues needs."""
        engine = await self._app.engine()
        chunks = chunk_sizes(self._app)
        store = await read_store(engine, messages=True)
        found = await read_scale(
            engine, store, self._queues, wait=self._wait, slots=self._queues, chunks=chunks, known=self._known
        )
        return share(self._processes(found, chunks), found.hosts)

    def _processes(self, found: Scale, chunks: Mapping[str, int]) -> int:
        if not self._shares_slots:
            return processes(found.needs, awaited=found.awaited)
        apart = [one for one in found.needs if one.queue in chunks]  # queues of chunks never share their slots
        shared = [one for one in found.needs if one.queue not in chunks]
        slots = sum(self._queues[one.queue] for one in shared)
        return max(processes(apart, awaited=found.awaited), processes(shared, shared=slots) if slots else 0)

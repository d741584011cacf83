"""Operations that outlast a request: walks over a filter that go on when the browser is closed."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stoker.admin import Bulk, Filter
from stoker.model.errors import StokerError
from stoker.web.visit import Visit

if TYPE_CHECKING:
    from stoker.admin.jobs import Progress, Target

logger = logging.getLogger("stoker.web")

KEPT = 100
"""How many operations are remembered."""


@dataclass
class Work:
    """One operation: what it does, who started it, how far it is."""

    id: str
    do: str
    filter: Filter
    by: str
    started: int = field(default_factory=lambda: time.time_ns() // 1_000)
    tally: Bulk = field(default_factory=Bulk)
    state: str = "running"
    stopping: bool = False
    why: str = ""


class Background:
    """The operations of one dashboard."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Work] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, id_: str) -> Work | None:
        """One operation."""
        return self._known.get(id_)

    def shown(self) -> list[Work]:
        """Those that run now, newest first."""
        return [work for work in reversed(self._known.values()) if work.state == "running"]

    def start(self, visit: Visit, do: str, wanted: Filter, needs: dict[str, Any]) -> Work:
        """Begin a walk."""
        work = Work(secrets.token_hex(8), do, wanted, visit.who.name)
        self._known[work.id] = work
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        task = asyncio.create_task(self._run(visit, work, needs), name=f"stoker-operation-{work.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return work

    async def _run(self, visit: Visit, work: Work, needs: dict[str, Any]) -> None:
        def progress(done: Bulk) -> bool:
            work.tally = done
            return not work.stopping

        try:
            work.tally = await self.act(visit, work.do, work.filter, needs, progress)
            work.state = "stopped" if work.tally.stopped else "done"
        except StokerError as error:
            work.state, work.why = "failed", type(error).__name__
            logger.warning("operation %s (%s %s) failed: %s", work.id, work.do, work.filter, type(error).__name__)
        visit.board.hub.forget()

    async def act(
        self, visit: Visit, do: str, target: Target, needs: dict[str, Any], progress: Progress | None = None
    ) -> Bulk:
        """Do it, on ids or a filter."""
        jobs = visit.admin.jobs
        match do:
            case "requeue":
                return await jobs.requeue(target, progress)
            case "retry":
                return await jobs.retry(target, progress)
            case "run-now":
                return await jobs.run_now(target, progress)
            case "cancel":
                return await jobs.cancel(target, progress=progress)
            case "discard":
                return await jobs.discard(target, progress)
            case "delete":
                return await jobs.delete(target, progress)
            case "move":
                return await jobs.move(target, needs["queue"], progress)
            case _:
                return await jobs.prioritize(target, needs["priority"], progress)

    async def close(self) -> None:
        """Stop what runs after its present page."""
        for work in self._known.values():
            work.stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

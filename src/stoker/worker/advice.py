"""Warns of what keeps jobs from running although every part works: a misspelt queue, an app without tasks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stoker.model.job import ACTIVE
from stoker.model.waiting import unserved

if TYPE_CHECKING:
    from stoker.worker.worker import Worker

logger = logging.getLogger("stoker.worker")


class Advice:
    """Looks at the app, the queues and the workers of one store; each warning is given once."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._named: set[str] = set()

    async def look(self) -> None:
        """Warn of queues that have due jobs and no worker; again when one is served and then left alone."""
        engine = self._worker.engine
        found = unserved(await engine.census(), await engine.workers())
        for queue, number in found.items():
            if queue not in self._named:
                text = "queue %r has %d jobs that are due and no worker serves it: start one with -q %s"
                logger.warning(text, queue, number, queue)
        self._named = set(found)

    async def look_at_start(self) -> None:
        """Warn of an app without tasks, and of served queues that neither a task nor a job is in."""
        worker = self._worker
        if not worker.app.tasks:
            logger.warning("this app has no tasks, so no job can run here. Name the modules that hold them: modules=")
            return
        used = {worker.app.resolve(task.name, task.options)[0] for task in worker.app.tasks.values()}
        strange = {queue for lane in worker.lanes for queue in lane.queues} - used
        if strange:
            census = await worker.engine.census()
            strange -= {count.queue for count in census.counts if count.status in ACTIVE}
        for queue in sorted(strange):
            text = "queue %r is served, but no task of this app and no job is in it; queues of its tasks: %s"
            logger.warning(text, queue, ", ".join(sorted(used)))

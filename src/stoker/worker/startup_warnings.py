"""Warns of what keeps jobs from running although every part works: a misspelt queue, an app without tasks,
one kind for two functions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.model.control import Presence, Queue, clashes
from stoker.model.explain import limits_unserved, unserved
from stoker.model.humanize import count
from stoker.model.job import ACTIVE
from stoker.worker.state import kinds

if TYPE_CHECKING:
    from stoker.worker.state import WorkerContext

logger = logging.getLogger("stoker.worker")


class StartupWarnings:
    """Looks at the app, the queues and the workers of one store; each warning is given once."""

    def __init__(self, context: WorkerContext) -> None:
        self._app = context.app
        self._engine = context.engine
        self._lanes = context.fetcher.lanes
        self._named: set[str] = set()
        self._queues: Sequence[Queue] = ()
        self._clashed: set[tuple[str, str]] = set()

    def learn(self, queues: Sequence[Queue]) -> None:
        """Take in all queues of the store, as often as the worker reads them anyway."""
        self._queues = queues

    async def look(self) -> None:
        """Warn of kinds that another worker runs with another function, and of queues without a worker.

        Such a queue has due jobs, or is limited to some slots over all workers, and is not paused. It is named again
        when it was served meanwhile and then left alone.
        """
        presences = await self._engine.control.workers()
        self._name_clashes(presences)
        census = await self._engine.operator.census()
        found = unserved(census, self._queues, presences)
        for queue, number in found.items():
            if queue not in self._named:
                text = "queue %r has %s and no worker serves it: start one with -q %s"
                logger.warning(text, queue, count(number, "due job"), queue)
        idle = limits_unserved(self._queues, presences, census.at)
        for queue, number in idle.items():
            if queue not in self._named and queue not in found:
                text = "queue %r is limited to %s and no worker serves it: start one with -q %s, or clear the limit"
                logger.warning(text, queue, count(number, "slot"), queue)
        self._named = {*found, *idle}

    def _name_clashes(self, presences: Sequence[Presence]) -> None:
        for clash in clashes(kinds(self._app), presences):
            if (clash.kind, clash.there) not in self._clashed:
                self._clashed.add((clash.kind, clash.there))
                logger.warning(
                    "two functions run under the kind %r: %s here, and %s in worker %s on %s. Either may run its jobs. "
                    "Give one of them another name=, or each service its own Stoker(url, namespace=...)",
                    clash.kind,
                    clash.here,
                    clash.there,
                    clash.worker,
                    clash.host,
                )

    async def look_at_start(self) -> None:
        """Warn of an app without tasks, and of served queues that neither a task nor a job is in."""
        app = self._app
        if not self._lanes:
            return  # a worker for services only
        if not app.tasks and app.services:
            return  # one that only relays messages
        if not app.tasks:
            logger.warning("this app has no tasks, so no job can run here. Name the modules that hold them: modules=")
            return
        used = {app.resolve(task.name, task.options)[0] for task in app.tasks.values()}
        strange = {queue for lane in self._lanes for queue in lane.queues} - used
        if strange:
            census = await self._engine.operator.census()
            strange -= {count.queue for count in census.counts if count.status in ACTIVE}
        for queue in sorted(strange):
            text = "queue %r is served, but no task of this app and no job is in it; queues of its tasks: %s"
            logger.warning(text, queue, ", ".join(sorted(used)))

"""A worker's presence in the store, and the removal of what is past its retention."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from functools import cache
from typing import TYPE_CHECKING

from stoker.engines.base import Engine
from stoker.model.control import Presence
from stoker.model.query import Retention

if TYPE_CHECKING:
    from stoker.worker.worker import Worker

logger = logging.getLogger("stoker.worker")

REST = 2.0
"""For so many times as long as a batch took, the next one waits: most of the time the store belongs to the work."""


@cache
def version() -> str:
    """Stoker's own version. Looked up when it is shown: a process that only runs handlers never needs it."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("stoker")
    except PackageNotFoundError:  # running from a bare checkout
        return "unknown"


def kinds(worker: Worker) -> dict[str, str]:
    """The kinds a worker can run, each with the path of its function."""
    return {kind: task.path for kind, task in worker.app.tasks.items()}


def presence(worker: Worker) -> Presence:
    """The worker as it shows itself now."""
    return Presence(
        worker=worker.id,
        host=socket.gethostname(),
        pid=os.getpid(),
        queues={queue: lane.slots for lane in worker.lanes for queue in lane.queues},
        kinds=kinds(worker),
        running=worker.runs,
        version=version(),
        state=worker.state,
    )


async def tidy(engine: Engine, retention: Retention) -> int:
    """Remove what is past its time, batch by batch; answers how many jobs went."""
    removed = 0
    while True:
        began = time.monotonic()
        expired = await engine.expire(retention)
        removed += expired.jobs
        if expired.jobs < retention.limit and expired.events < retention.limit:
            break
        await asyncio.sleep((time.monotonic() - began) * REST)
    if removed:
        logger.info("removed %d finished jobs whose retention has passed", removed)
    return removed

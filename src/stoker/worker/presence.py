"""A worker's presence: what a worker shows of itself in the store."""

from __future__ import annotations

import os
import socket
from functools import cache
from typing import TYPE_CHECKING

from stoker.model.control import Presence

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.worker.worker import Worker


@cache
def version() -> str:
    """Return Stoker's version. Read when shown: a process that only runs handlers never needs it."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("stoker")
    except PackageNotFoundError:  # running from a bare checkout
        return "unknown"


def kinds(app: Stoker) -> dict[str, str]:
    """Return the kinds that workers of an app can run, each with the path of its function."""
    return {kind: task.path for kind, task in app.tasks.items()}


def presence(worker: Worker) -> Presence:
    """Return the presence of a worker as it is now."""
    return Presence(
        worker=worker.id,
        host=socket.gethostname(),
        pid=os.getpid(),
        queues={queue: lane.slots for lane in worker.lanes for queue in lane.queues},
        kinds=kinds(worker.app),
        running=worker.runs,
        version=version(),
        state=worker.state,
        held=worker.failures.held,
        lease=worker.settings.lease,
        dropped=0 if worker.app.timeline is None else worker.app.timeline.lost,
    )

"""Admin: what an operator asks and does, on any store.

`Admin(jobs)` works in code, `stoker …` on the command line; both call the same methods. Scripts without a loop use
`jobs.run(admin.jobs.get(...))`.
"""

from __future__ import annotations

from stoker.admin.jobs import JobsAdmin
from stoker.admin.queues import QueuesAdmin
from stoker.admin.status import Overview, overview
from stoker.admin.workers import WorkersAdmin
from stoker.app import Stoker


class Admin:
    """The questions and actions, by noun: `jobs`, `queues`, `workers`."""

    def __init__(self, app: Stoker) -> None:
        self.app = app
        self.jobs = JobsAdmin(app)
        self.queues = QueuesAdmin(app)
        self.workers = WorkersAdmin(app)

    async def overview(self) -> Overview:
        """Everything on one screen: queues with their counts, workers, failing kinds, warnings of the store."""
        return await overview(self.app)

"""A schedule that fires every second. Its ticker takes the lock for an hour: only a release passes it on in time."""

from __future__ import annotations

from stoker.app import Stoker
from stoker.model.time import HOUR
from stoker.worker import Worker, schedules
from tests.worker.apps.marked import mark

schedules.LOCK_LEASE = HOUR
jobs = Stoker(attempts=1)


@jobs.cron(every=1)
async def tick() -> None:
    mark("start")


if __name__ == "__main__":
    Worker(jobs).run()

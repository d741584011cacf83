"""The test kit in Django's tests: `kit()` is the one of the test in progress; `drain()` runs what is due in any test.

Handlers run in the test's own thread, where its transaction is, so they see what the test has written. After each of
them Django's `on_commit` hooks run, as after the commit of a real job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from stoker.app import Stoker
from stoker.executors import Executors
from stoker.executors.threads import Threads
from stoker.model.errors import StokerError
from stoker.model.job import Status
from stoker.model.time import Seconds
from stoker.settings import WorkerSettings
from stoker.sync import shared
from stoker.task import Task
from stoker.testing import TestKit, VirtualClock
from stoker.testing.single_run import InThisProcess
from stoker.worker import Worker


def kit() -> TestKit:
    """The kit that is the store of this test: in a `TestCase`, or with a test database in memory."""
    from stoker.contrib.django.app import the_app

    found = the_app().tests.open_kit()
    if found is None:
        raise StokerError(
            "this test has no kit: a TransactionTestCase works on the test database. Use TestCase, or run the jobs "
            "with drain()."
        )
    return found


def drain() -> dict[Status, int]:
    """Run what is due, in the kit or on the test database; returns how many runs ended in which status."""
    from stoker.contrib.django.app import the_app

    app = the_app()
    found = app.tests.open_kit()
    return shared.run(_drained(app), "`await kit().drain()`") if found is None else found.drain_sync()


async def _drained(app: Stoker) -> dict[Status, int]:
    worker = Worker(app, drain=True)
    async with worker:
        await worker.join()
    return {status: n for status, n in worker.counts.items() if n}


class Kit(TestKit):
    """A kit whose clock starts now, as Django's does, and whose handlers run in the thread that waits for it."""

    def __init__(self, jobs: Stoker, store: str = "memory", *, clock: VirtualClock | None = None) -> None:
        super().__init__(jobs, store, clock=clock or VirtualClock(datetime.now(UTC)))

    def _executors(self, settings: WorkerSettings) -> Executors:
        return InTestThread(settings)

    def drain_sync(self, *, slots: int = 1) -> dict[Status, int]:
        """`drain` for a test without a loop."""
        return async_to_sync(self.drain)(slots=slots)

    def advance_sync(self, by: Seconds, *, slots: int = 1) -> dict[Status, int]:
        """`advance` for a test without a loop."""
        return async_to_sync(self.advance)(by, slots=slots)

    def run_sync(
        self,
        task: Task[..., Any],
        /,
        *args: Any,
        attempt: int = 1,
        metadata: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """`run` for a test without a loop."""
        return async_to_sync(self.run)(task, *args, attempt=attempt, metadata=metadata, **kwargs)


class InTestThread(InThisProcess):
    """Runs plain handlers in the thread that waits for the kit."""

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        super().__init__(settings)
        self.threads = _TestThread()


class _TestThread(Threads):
    async def run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = await sync_to_async(_committed, thread_sensitive=True)(fn, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value


def _committed(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a handler; then run the hooks that it left for a commit, which in a `TestCase` never comes."""
    before = {one: len(one.run_on_commit) for one in connections.all(initialized_only=True) if one.in_atomic_block}
    try:
        return fn(*args, **kwargs)
    finally:
        for connection, count in before.items():
            while len(connection.run_on_commit) > count:
                _, hook, *_ = connection.run_on_commit.pop(count)
                hook()

"""The write queue: all requests of one tick of the loop share one transaction.

The queue chooses for each group where it runs:

- *inline*: statements and commit on the loop, when nothing blocks. A hand-over to a thread costs more than such a
  commit.
- *split*: statements on the loop, and in the writer thread only what waits for the disk: a commit that is fsynced, or
  the fsync after the commit of new jobs or signals. In a thread every statement would give up the GIL, and other
  writers would wait for the write lock meanwhile.
- *thread*: everything in the writer thread, when another writer holds the write lock or the database: the loop never
  blocks.

Workers see new jobs and signals as soon as they are committed; the call returns when the log is fsynced. A power loss
cannot show the difference: the log reaches the disk in its order, so a result of such a job is safe only after the job
itself. A settlement is fsynced before any reader sees it, because users act on results.

Requests that arrive while a group runs become the next group. When a group fails, each of its requests runs again
alone, so that no request fails because of another.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from stoker.engines.shared.audit_lines import tell
from stoker.engines.sqlite.connection import FULL, NORMAL
from stoker.engines.sqlite.write_transaction import GroupResult, Request, TransactionRunner
from stoker.model.errors import EngineClosed
from stoker.model.groups import Closing

LARGEST_GROUP = 2_000
"""Drafts and settlements in one transaction, at most: other writers wait for the write lock meanwhile."""

SMALL_GROUP = 20
"""Drafts that are committed on the loop: about as many pages go to the log, and the loop waits for no disk."""

CHECKPOINT_EVERY = 16
"""One in so many such groups is committed in the writer thread, where SQLite may copy the log into the database."""


class WriteQueue:
    """The queue in front of an engine's one writing connection. Belongs to the engine's loop.

    `notify` wakes listeners in other processes, in any thread. On the loop `wake_here` wakes waiters of this engine,
    and `emit_closing` is called with each group of jobs that closed.
    """

    def __init__(
        self,
        runner: TransactionRunner,
        *,
        fsync: bool,
        log: bool,
        notify: Callable[[set[str]], None],
        wake_here: Callable[[set[str], int], None],
        emit_closing: Callable[[Closing], None],
    ) -> None:
        self._runner = runner
        self._notify = notify
        self._strict = FULL if fsync else NORMAL
        self._lax = FULL if fsync and not log else NORMAL
        self._syncs = fsync and log
        self._wake_here = wake_here
        self._emit_closing = emit_closing
        self._loop = asyncio.get_running_loop()
        self._writer = WriterThread(self._loop)
        self._waiting: deque[Request] = deque()
        self._armed = self._busy = self._closed = False
        self._since_checkpoint = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.modes = {"inline": 0, "split": 0, "thread": 0}

    @property
    def busy(self) -> bool:
        """Return whether the writer thread uses the connection."""
        return self._busy

    def add(self, *, strict: bool, **what: Any) -> asyncio.Future[Any]:
        """Run a request with the next group. `what` are arguments of `Request`."""
        if self._closed:
            raise EngineClosed("this engine is closed; open another one")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(Request(future, strict=strict, **what))
        if not self._armed and not self._busy:
            self._arm()
        return future

    async def close(self) -> None:
        """Run the queued requests, then stop the writer thread."""
        self._closed = True
        await self._idle.wait()
        self._writer.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._armed = True
        self._idle.clear()
        self._loop.call_soon(self._flush)

    def _take(self) -> list[Request]:
        group: list[Request] = []
        weight = 0
        while self._waiting and (not group or weight + self._waiting[0].weight <= LARGEST_GROUP):
            request = self._waiting.popleft()
            if not request.future.cancelled():  # a caller that gave up before the write wants no write
                weight += request.weight
                group.append(request)
        return group

    def _flush(self) -> None:
        self._armed = False
        group = self._take()
        if not group:
            self._next()
            return
        level, sync = self._level(group)
        runner = self._runner
        try:
            if group[0].bare and len(group) == 1 and level == NORMAL and (alone := runner.bare(group[0], level)):
                self.modes["inline"] += 1
                self._finish(self._notified(alone))
                return
            if not runner.begin(level):
                self._send("thread", lambda: runner.run(group, level), sync=sync)
                return
            result = runner.work(group, level)
        except Exception as error:  # noqa: BLE001 - raised in the callers
            if len(group) > 1:
                self._send("thread", lambda: runner.one_by_one(group, level), sync=sync)
            else:
                self._finish(GroupResult().failed(group, error))
            return
        if sync and self._stays_small(group):
            committed = runner.commit(group, result, checkpoint=False)
            self._send("split", lambda: runner.sync(committed))
            self._notified(committed)
        elif level == FULL or sync:
            runner.hand_over()
            self._send("split", lambda: runner.commit(group, result), sync=sync)
        else:
            self.modes["inline"] += 1
            self._finish(self._notified(runner.commit(group, result)))

    def _level(self, group: list[Request]) -> tuple[int, bool]:
        """Return `PRAGMA synchronous` for a group, and whether to fsync the log after the commit is visible."""
        strict = [request for request in group if request.strict]
        if strict and self._syncs and all(request.early for request in strict):
            return self._lax, True
        return self._strict if strict else self._lax, False

    def _stays_small(self, group: list[Request]) -> bool:
        """Return whether the loop may commit a group: of a few jobs, unless the log may be due for a checkpoint."""
        self._since_checkpoint += 1
        if self._since_checkpoint >= CHECKPOINT_EVERY or sum(request.weight for request in group) > SMALL_GROUP:
            self._since_checkpoint = 0
            return False
        return True

    def _send(self, mode: str, work: Callable[[], GroupResult], *, sync: bool = False) -> None:
        self.modes[mode] += 1
        self._busy = True
        self._writer.do(lambda: self._commit_and_notify(work, sync=sync), self._done)

    def _commit_and_notify(self, work: Callable[[], GroupResult], *, sync: bool) -> GroupResult:
        result = work()
        if not sync:
            return self._notified(result)
        # The loop sends the wake-ups while this thread starts the fsync: a woken worker tends to run on the core of
        # the thread that woke it.
        with suppress(RuntimeError):  # the loop was closed without closing the engine
            self._loop.call_soon_threadsafe(self._notified, result)
        return self._notified(self._runner.sync(result))

    def _notified(self, result: GroupResult) -> GroupResult:
        """Wake other processes once, right after the commit, in the thread that committed."""
        if result.woken and not result.notified:
            result.notified = True
            self._notify(result.woken)
        return result

    def _done(self, result: GroupResult) -> None:
        self._busy = False
        self._finish(result)

    def _finish(self, result: GroupResult) -> None:
        for request, value in result.values.items():
            if not request.future.done():
                request.future.set_result(value)
        for request, error in result.errors.items():
            if not request.future.done():
                request.future.set_exception(error)
        if result.woken or result.dropped:
            self._wake_here(result.woken, result.dropped)
        for closing in result.closings:
            self._emit_closing(closing)
        tell(result.entries)
        self._next()

    def _next(self) -> None:
        if self._waiting:
            if not self._armed:
                self._arm()
        elif not self._armed and not self._busy:
            self._idle.set()


Task: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class WriterThread:
    """Runs tasks one after the other and passes their results to callbacks on the loop.

    An engine has at most one. The first task starts it; tasks never raise.
    """

    __slots__ = ("_loop", "_tasks", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stoker-sqlite", daemon=True)
            self._thread.start()
        self._tasks.put((work, done))

    def close(self) -> None:
        """Wait for the queued tasks and end the thread: it must not outlive the loop."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, done = task
            result = work()
            del work, task
            try:
                self._loop.call_soon_threadsafe(done, result)
            except RuntimeError:  # the loop was closed without closing the engine: no caller waits any more
                return

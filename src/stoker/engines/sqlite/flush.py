"""The coalescer: everything asked for in one tick of the loop goes into one transaction.

Where the work is done is decided anew for each group:

- *inline*: statements and commit on the loop, when nothing can make it wait. A thread's hand-over costs more than such
  a commit.
- *split*: statements on the loop, only the commit in the writer thread, when the disk is waited for. Statements in a
  thread would give the interpreter's lock away at every step and hold the write lock against everybody meanwhile.
- *thread*: everything in the writer thread, when another writer holds the write lock or the database: the loop never
  waits.

New jobs are there for others as soon as they are committed, and whoever asked for them is answered when the disk has
them. Nobody can tell the difference: the log reaches the disk in its order, so whatever comes of such a job is safe
only after the job itself is. A settlement waits for the disk before anybody sees it, because people act on results.

What arrives while a group is on its way becomes the next one. When a group fails, each of its requests is run again
alone, so that nobody fails for somebody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.engines.sqlite.connection import FULL, NORMAL
from stoker.engines.sqlite.group import Outcome, Request
from stoker.engines.sqlite.transact import Transactor
from stoker.engines.sqlite.writer import Writer
from stoker.model.errors import EngineClosed

LARGEST_GROUP = 2_000
"""So many drafts and settlements at most share a transaction: others wait for the write lock meanwhile."""


class Coalescer:
    """The queue in front of an engine's one writing connection. Lives on the engine's loop."""

    def __init__(
        self,
        transactor: Transactor,
        *,
        fsync: bool,
        log: bool,
        ring: Callable[[set[str]], None],
        told: Callable[[set[str], int], None],
    ) -> None:
        self._transactor = transactor
        self._ring = ring
        self._strict = FULL if fsync else NORMAL
        self._lax = FULL if fsync and not log else NORMAL
        self._syncs = fsync and log
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(self._loop)
        self._waiting: deque[Request] = deque()
        self._armed = self._busy = self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.modes = {"inline": 0, "split": 0, "thread": 0}

    @property
    def busy(self) -> bool:
        """Is the connection in the writer thread's hands?"""
        return self._busy

    def ask(self, *, strict: bool, **what: Any) -> asyncio.Future[Any]:
        """Have something done with the next group. `what` is a request's."""
        if self._closed:
            raise EngineClosed("this engine is closed; open another one")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(Request(future, strict=strict, **what))
        if not self._armed and not self._busy:
            self._arm()
        return future

    async def close(self) -> None:
        """Finish what was asked for, then stop."""
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
            # Whoever gave up before anything was done wants nothing done.
            if not request.future.cancelled():
                weight += request.weight
                group.append(request)
        return group

    def _flush(self) -> None:
        self._armed = False
        group = self._take()
        if not group:
            self._rest()
            return
        level, sync = self._care(group)
        transactor = self._transactor
        try:
            if group[0].bare and len(group) == 1 and level == NORMAL and (alone := transactor.bare(group[0], level)):
                self.modes["inline"] += 1
                self._finish(self._rung(alone))
                return
            if not transactor.begin(level):
                self._send("thread", lambda: transactor.whole(group, level), sync=sync)
                return
            outcome = transactor.work(group, level)
        except Exception as error:  # noqa: BLE001 - carried to everybody who asked
            if len(group) > 1:
                self._send("thread", lambda: transactor.one_by_one(group, level), sync=sync)
            else:
                self._finish(Outcome().failed(group, error))
            return
        if level == FULL or sync:
            self._send("split", lambda: transactor.commit(group, outcome), sync=sync)
        else:
            self.modes["inline"] += 1
            self._finish(self._rung(transactor.commit(group, outcome)))

    def _care(self, group: list[Request]) -> tuple[int, bool]:
        """How carefully a group is to be committed, and whether the disk is waited for when others know of it."""
        strict = [request for request in group if request.strict]
        if strict and self._syncs and all(request.drafts is not None for request in strict):
            return self._lax, True
        return self._strict if strict else self._lax, False

    def _send(self, mode: str, work: Callable[[], Outcome], *, sync: bool = False) -> None:
        self.modes[mode] += 1
        self._busy = True
        self._writer.do(lambda: self._carried_out(work, sync=sync), self._landed)

    def _carried_out(self, work: Callable[[], Outcome], *, sync: bool) -> Outcome:
        outcome = work()
        if not sync:
            return self._rung(outcome)
        # The disk is asked first, and meanwhile the loop rings: whoever is woken tends to take its waker's core.
        with suppress(RuntimeError):  # the loop was closed without closing the engine
            self._loop.call_soon_threadsafe(self._rung, outcome)
        return self._rung(self._transactor.sync(outcome))

    def _rung(self, outcome: Outcome) -> Outcome:
        """Wake other processes once, right after the commit, in whichever thread: the loop may have others to serve."""
        if outcome.woken and not outcome.rung:
            outcome.rung = True
            self._ring(outcome.woken)
        return outcome

    def _landed(self, outcome: Outcome) -> None:
        self._busy = False
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        for request, answer in outcome.answers.items():
            if not request.future.done():
                request.future.set_result(answer)
        for request, error in outcome.errors.items():
            if not request.future.done():
                request.future.set_exception(error)
        if outcome.woken or outcome.dropped:
            self._told(outcome.woken, outcome.dropped)
        self._rest()

    def _rest(self) -> None:
        if self._waiting:
            if not self._armed:
                self._arm()
        elif not self._armed and not self._busy:
            self._idle.set()

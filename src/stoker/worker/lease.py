"""How a worker keeps its lease, and what it does when the lease is renewed, late or lost.

`LeaseKeeper` renews from a thread of its own, where no handler can block it: every third of a lease, and at once when a
running job is canceled. It passes on what a renewal returns: lost claims, canceled jobs, orders, orphans whose
claim reply was lost. `LeaseReports` acts on that in the worker's event loop. The thread also watches that loop and logs
the stack of a handler that blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from stoker.engines.base import CONTROL, Engine
from stoker.executors.outcomes import Cause
from stoker.model.errors import StokerError, sentence
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import Renewal
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled
from stoker.model.query import CANCEL_REASON
from stoker.model.time import SECOND
from stoker.worker import state as worker_state

if TYPE_CHECKING:
    from stoker.worker.orders import OrderTaker
    from stoker.worker.state import WorkerContext
    from stoker.worker.store_loop import StoreLoop


logger = logging.getLogger("stoker.worker")

BLOCKED_AFTER = 1.0
IDLE_NAP = 2.0
"""Seconds between two checks of the worker's loop while it runs jobs, and while it runs none."""
AGAIN_AFTER = 1.0
"""Seconds after which a renewal that failed is tried again, unless the next one is due before."""


class LeaseKeeper:
    """One thread, one event loop, one engine of its own. Calls `failed` on the worker's loop when the thread dies."""

    def __init__(
        self,
        context: WorkerContext,
        engine: Engine,
        reports: LeaseReports,
        orders: OrderTaker,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._lease = context.settings.lease
        self._state = context.state
        self._id = context.state.id  # ahead of the worker's own id after a lost lease, until its loop takes notice
        self._claims = context.claims
        self._running_jobs = context.running_jobs
        self._reports = reports
        self._orders = orders
        self._failed = failed
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self.thread = threading.Thread(target=self._run, name="stoker-lease", daemon=True)
        self._ready: asyncio.Future[None] = self._main.create_future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._warned = False
        self._nudge: asyncio.Event | None = None
        self._asked_at: float | None = None
        self.renewed_at = time.monotonic()
        self.late: list[float] = []

    async def start(self) -> None:
        """Take the lease; returns when the worker has one."""
        self.thread.start()
        await self._ready

    async def stop(self) -> None:
        """End the thread. The lease stays until it is given up or lapses."""
        self.let_go()
        await asyncio.to_thread(self.thread.join)

    def let_go(self) -> None:
        """Ask the thread to end, without waiting."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Let the thread renew the lease at once, or end if it was asked to; from any thread."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # it has ended already
            return

    def _wake(self) -> None:
        if self._nudge is not None:
            self._nudge.set()

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._keep())
        except BaseException as error:  # noqa: BLE001 - any error must stop the worker
            self._call_worker(self._failed, error)
        finally:
            self._loop.close()

    async def _keep(self) -> None:
        self._nudge = asyncio.Event()
        try:
            await self._engine.open()
            asked_at = worker_state.lease_clock()
            await self._engine.jobs.renew(self._id, [], lease=self._lease, first=True)
            self._claims.safe_until = self._end_of(asked_at)
            # From here on the engine remembers a wake-up, also one that comes before `_listen` waits.
            await self._engine.jobs.wait([CONTROL], 0)
        except BaseException as error:  # noqa: BLE001 - start() raises it
            self._call_worker(self._fail_start, error)
            await self._engine.close()
            return
        self._call_worker(self._ready.set_result, None)
        listening = asyncio.ensure_future(self._listen())
        try:
            await self._renew_for_ever()
        finally:
            listening.cancel()
            await asyncio.gather(listening, self._orders.close(), return_exceptions=True)
            await self._engine.close()

    def _fail_start(self, error: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    async def _listen(self) -> None:
        """Renew at once after a control wake-up: the renewal names the jobs that were canceled, and brings orders."""
        while True:
            try:
                if await self._engine.jobs.wait([CONTROL], 60.0):
                    self._wake()
            except StokerError:
                await asyncio.sleep(1.0)

    async def _renew_for_ever(self) -> None:
        assert self._nudge is not None
        pause = self._lease / 3 / SECOND
        due = time.monotonic() + pause
        while True:
            try:
                nap = BLOCKED_AFTER if self._running_jobs.runs else IDLE_NAP
                async with asyncio.timeout(min(max(0.0, due - time.monotonic()), nap)):
                    await self._nudge.wait()
            except TimeoutError:
                self._watch_loop()
                if time.monotonic() < due:
                    continue
            self._nudge.clear()
            if self._stopping:
                return
            self.late.append(max(0.0, time.monotonic() - due))
            del self.late[:-100]
            due = time.monotonic() + (pause if await self._renew() else min(AGAIN_AFTER, pause))

    async def _renew(self) -> bool:
        held = list(self._claims.tokens.copy().items())
        asked, fresh = self._id, self._state.next_id()
        asked_at = worker_state.lease_clock()
        try:
            renewal = await self._engine.jobs.renew(asked, held, lease=self._lease)
            if not renewal.known:
                self._claims.safe_until = -inf  # other workers have the prefetched claims
                await self._engine.jobs.renew(fresh, [], lease=self._lease, first=True)
                self._id = fresh
            reasons = await self._cancel_reasons(renewal)
        except StokerError as error:
            self._call_worker(self._reports.renewal_failed, error)
            return False
        self.renewed_at = time.monotonic()
        if renewal.known:
            if asked == self._state.id:  # else the worker has yet to drop the claims that other workers have
                self._claims.safe_until = self._end_of(asked_at)
            self._call_worker(self._reports.renewed, renewal, reasons)
            with suppress(StokerError):  # the next renewal brings them again
                await self._orders.take(asked, renewal.orders)
        else:
            self._call_worker(self._reports.lease_lost, asked, fresh, self._end_of(asked_at))
        return True

    def _end_of(self, asked_at: float) -> float:
        """Return the earliest end of a lease by `lease_clock`: the store counts it from after the call began."""
        return asked_at + self._lease / SECOND

    async def _cancel_reasons(self, renewal: Renewal) -> dict[JobId, str]:
        """Return the reasons that callers gave for canceling."""
        asked = [job for job, _ in renewal.canceling]
        found = await self._engine.operator.get(asked) if asked else []
        return {job.id: job.metadata[CANCEL_REASON] for job in found if job and CANCEL_REASON in job.metadata}

    def _call_worker(self, call: Callable[..., object], *what: object) -> None:
        try:
            self._main.call_soon_threadsafe(call, *what)
        except RuntimeError:  # the worker's loop is closed
            return

    # --- watching the loop --------------------------------------------------------------------------------------

    def _watch_loop(self) -> None:
        """Schedule a call on the worker's loop; if it does not run, something blocks the loop."""
        if self._asked_at is None:
            if not self._running_jobs.runs:
                return
            self._asked_at = time.monotonic()
            self._call_worker(self._answered, None)
            return
        silent = time.monotonic() - self._asked_at
        if silent > BLOCKED_AFTER and not self._warned:
            self._warned = True
            frame = sys._current_frames().get(self._main_thread)  # noqa: SLF001 - the documented way to a stack
            stack = "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""
            logger.warning(
                "the event loop has been blocked for %.1f s by a handler; its lease is still renewed, but no other job "
                "of this worker moves. Make the handler a plain function (it then runs in a thread) or use "
                'isolation="process".\n%s',
                silent,
                stack,
            )

    def _answered(self, _: None) -> None:
        self._asked_at = None
        self._warned = False


NO_REASONS: Mapping[JobId, str] = MappingProxyType({})


class LeaseReports:
    """Does on the worker's loop what follows from the lease keeper's renewals."""

    def __init__(self, context: WorkerContext, store_loop: StoreLoop) -> None:
        self._state = context.state
        self._claims = context.claims
        self._running_jobs = context.running_jobs
        self._fetcher = context.fetcher
        self._outcomes = context.outcomes
        self._outage = context.outage
        self._store_loop = store_loop

    def drop(self, job: JobId, cause: Cause, reason: str) -> None:
        """Interrupt a run, or remove its claim from the buffer if it has not started."""
        if self._running_jobs.drop(job, cause, reason):
            return
        claim = self._fetcher.remove(job)
        if claim is None:
            return
        if cause is Cause.CANCEL:
            settlement = conclude(claim, Canceled(reason))
            self._store_loop.finished(claim, settlement, last=True)
        else:
            self._claims.tokens.pop(job, None)

    def renewed(self, renewal: Renewal, reasons: Mapping[JobId, str] = NO_REASONS) -> None:
        """Handle a renewal: drop lost claims, cancel jobs, hand back orphans. `reasons`: why jobs are canceled."""
        self._answers()
        in_flight = self._outcomes.in_flight
        for job, token in renewal.lost:
            committing = job in in_flight or self._running_jobs.commits(job)
            if not committing and self._claims.tokens.get(job) == token:
                self.drop(job, Cause.LOST, "its claim was lost")
        for job, token in renewal.canceling:
            if self._claims.tokens.get(job) == token:
                self.drop(job, Cause.CANCEL, reasons.get(job, "a cancel was requested"))
        if not self._store_loop.asking:  # else a claim under way may bring them; the next renewal checks again
            orphans = [claim for claim in renewal.orphaned if self._claims.tokens.get(claim.id) != claim.token]
            self._store_loop.hand_back(orphans)

    def renewal_failed(self, error: StokerError) -> None:
        """Handle a failed renewal: claim nothing, let handlers run, log it."""
        if self._state.healthy:
            where = self._store_loop.engine.where
            text = "the lease cannot be renewed at %s: %s Running jobs go on, nothing is claimed until it can."
            self._outage.report(text, where, sentence(error))
        self._state.healthy = False

    def lapsed(self) -> None:
        """Hand back every claim that has not started: the lease has passed, other workers may run these jobs.

        The hand-back is fenced, so it changes nothing if they do. The worker claims again after a renewal.
        """
        waiting = self._fetcher.empty()
        logger.warning(
            "worker %s could not renew its lease in time (a frozen process, or a store that was away) and hands back "
            "%s that had not started. Claiming goes on after the next renewal.",
            self._state.id,
            count(len(waiting), "claimed job"),
        )
        self._state.healthy = False
        self._claims.unstarted = frozenset((claim.id, claim.token) for claim in waiting)
        self._store_loop.hand_back(waiting)

    def lease_lost(self, former: str, fresh: str, safe_until: float) -> None:
        """Interrupt all handlers and continue under a new id: other workers took this one for dead.

        `safe_until` is the end of the new lease.
        """
        logger.error(
            "lease lost: worker %s did not renew it in time; its jobs were reassigned, it stops %s and continues as %s",
            former,
            count(len(self._running_jobs.runs), "handler"),
            fresh,
        )
        self._state.rename(fresh)
        self._fetcher.empty()
        self._claims.tokens.clear()
        self._claims.safe_until = safe_until
        self._running_jobs.interrupt_all(Cause.LOST, "the worker's lease was lost")
        self._answers()

    def _answers(self) -> None:
        """Claim again: the lease was renewed."""
        if not self._state.healthy and self._state.running:
            self._state.healthy = True
            self._outage.over("the store answers again; claiming goes on")
            self._fetcher.wake()
            self._store_loop.wakeup.set()

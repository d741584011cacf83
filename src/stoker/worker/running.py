"""The running jobs, and how they are interrupted: timeout, cancel, shutdown, lost claim.

The lease keeper reports here. A handler that ignores every interruption is abandoned with its slot: the worker settles
its job and starts a new slot.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from stoker.codec.error_text import describe_error
from stoker.context import Context
from stoker.executors.outcomes import Cause, outcome_of_interruption
from stoker.model import ids
from stoker.model.errors import StokerError
from stoker.model.ids import JobId
from stoker.model.job import Renewal
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled, Panicked

if TYPE_CHECKING:
    from stoker.worker.worker import Worker


AGAIN_AFTER = 1.0
MOST_TRIES = 5


class Slot:
    """The state of a slot, as needed to interrupt its run."""

    __slots__ = ("abandoned", "cause", "context", "on_loop", "shaken", "task", "tries")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.context: Context | None = None
        self.cause: Cause | None = None
        self.on_loop = True
        self.tries = 0
        self.abandoned = False
        self.shaken = False

    def interrupt(self, cause: Cause, reason: str) -> None:
        """Interrupt the run. The first cause stays; a thread only sees its token, until timeout or shutdown."""
        if self.context is None:
            return
        if self.cause is None:
            self.cause = cause
            self.context.cancel.reason = reason
        if self.on_loop or cause in (Cause.TIMEOUT, Cause.SHUTDOWN):
            self.tries += 1
            self.task.cancel()

    @property
    def stuck(self) -> bool:
        """Has the handler ignored every interruption?"""
        return self.tries > MOST_TRIES

    def recover(self) -> None:
        """Undo delivered interruptions, so that the slot's Task can run the next job."""
        self.shaken = True
        self._take_back()

    def _take_back(self) -> None:
        while self.task.cancelling():
            self.task.uncancel()

    async def calm_down(self) -> None:
        """Discard an interruption that came after the end of its run, so that it does not hit the next job.

        Stoker may have sent it, or the handler itself.
        """
        self.shaken = False
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._take_back()


logger = logging.getLogger("stoker.worker")

lease_clock: Callable[[], float] = functools.partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Returns seconds of a clock that also runs while the machine sleeps, as leases do; where there is one."""

NO_REASONS: Mapping[JobId, str] = MappingProxyType({})


class RunningJobs:
    """`held`: every claim of this worker by id with its token. `runs`: the slots that run one.

    `safe_until`: the end of the current lease by `lease_clock`; written by the lease keeper.
    `unstarted`: the claims that were handed back when the lease had passed.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.held: dict[JobId, int] = {}
        self.runs: dict[JobId, Slot] = {}
        self.safe_until = inf
        self.unstarted: frozenset[tuple[JobId, int]] = frozenset()
        self.timer_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def count(self, queue: str) -> int:
        """How many jobs of a queue are running."""
        return sum(slot.context is not None and slot.context.queue == queue for slot in self.runs.values())

    # --- time limits --------------------------------------------------------------------------------------------

    def set_timer(self, deadline: float) -> None:
        """Set the one timer of all runs to the earliest deadline. A job that ends before it costs nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at = deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._time_out)

    def stop_timer(self) -> None:
        """Stop the timer: its loop ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.timer_at = None, inf

    def _time_out(self) -> None:
        """Interrupt the runs past their deadline, and set the timer to the next deadline."""
        self._timer, self.timer_at = None, inf
        now, earliest = time.monotonic(), inf
        for slot in list(self.runs.values()):
            context = slot.context
            if context is None or context.limit is None:
                continue
            deadline = context.began + context.limit
            if deadline > now:
                earliest = min(earliest, deadline)
            elif slot.cause is not Cause.TIMEOUT:
                self.interrupt(slot, Cause.TIMEOUT, f"ran longer than {context.limit:g} s")
        if earliest < self.timer_at:
            self.set_timer(earliest)

    # --- interrupting -------------------------------------------------------------------------------------------

    def interrupt(self, slot: Slot, cause: Cause, reason: str) -> None:
        """Interrupt a run, again and again until the handler ends or is abandoned."""
        context = slot.context
        if context is None:
            return
        slot.interrupt(cause, reason)
        if slot.stuck:
            self.abandon(slot)
        elif slot.on_loop or cause is Cause.TIMEOUT:
            loop = asyncio.get_running_loop()
            loop.call_later(AGAIN_AFTER, self._insist, slot, context, cause, reason)

    def _insist(self, slot: Slot, context: Context, cause: Cause, reason: str) -> None:
        if slot.context is context and not slot.abandoned:
            self.interrupt(slot, cause, reason)

    def interrupt_all(self, cause: Cause, reason: str) -> None:
        """Interrupt every run."""
        for slot in list(self.runs.values()):
            self.interrupt(slot, cause, reason)

    def abandon(self, slot: Slot) -> None:
        """Settle the job of a handler that ignores every interruption."""
        context = slot.context
        if context is None or slot.abandoned:
            return
        slot.abandoned = True
        claim = context.claim
        cause = slot.cause or Cause.SHUTDOWN
        self.runs.pop(claim.id, None)
        outcome = outcome_of_interruption(
            cause, context.limit, self._worker.app.find_task(claim.kind), context.cancel.reason
        )
        settlement = conclude(claim, outcome, self._worker.rules_of(claim.kind))
        logger.error(
            "the handler of job %s (%s) ignores that it was interrupted (%s); it is abandoned and goes on in the "
            "background, the job is settled without it, a new slot takes its place",
            ids.text(claim.id),
            claim.kind,
            cause.value,
        )
        self._worker.replace_slot(claim, settlement)

    def end_as_panic(self, slot: Slot, error: BaseException) -> None:
        """End a run as a panic: a task that it left behind tried to end the worker."""
        context = slot.context
        if context is None or slot.abandoned:
            return
        slot.abandoned = True
        self.runs.pop(context.claim.id, None)
        rules = self._worker.rules_of(context.kind)
        self._worker.replace_slot(context.claim, conclude(context.claim, Panicked(describe_error(error)), rules))
        slot.task.cancel()

    def drop(self, job: JobId, cause: Cause, reason: str) -> None:
        """Interrupt a run, or remove its claim from the buffer if it has not started."""
        slot = self.runs.get(job)
        if slot is not None:
            if slot.cause is not cause:
                self.interrupt(slot, cause, reason)
            return
        claim = self._worker.fetcher.remove(job)
        if claim is None:
            return
        if cause is Cause.CANCEL:
            settlement = conclude(claim, Canceled(reason))
            self._worker.store_loop.finished(claim, settlement, last=True)
        else:
            self.held.pop(job, None)

    # --- reports of the lease keeper ----------------------------------------------------------------------------

    def renewed(self, renewal: Renewal, reasons: Mapping[JobId, str] = NO_REASONS) -> None:
        """Handle a renewal: drop lost claims, cancel jobs, hand back orphans. `reasons`: why jobs are canceled."""
        self._worker.store_answers()
        in_flight = self._worker.outcomes.in_flight
        for job, token in renewal.lost:
            if job not in in_flight and self.held.get(job) == token:
                self.drop(job, Cause.LOST, "its claim was lost")
        for job, token in renewal.canceling:
            if self.held.get(job) == token:
                self.drop(job, Cause.CANCEL, reasons.get(job, "a cancel was requested"))
        if not self._worker.store_loop.asking:  # else a claim under way may bring them; the next renewal checks again
            orphans = [claim for claim in renewal.orphaned if self.held.get(claim.id) != claim.token]
            self._worker.store_loop.hand_back(orphans)

    def renewal_failed(self, error: StokerError) -> None:
        """Handle a failed renewal: claim nothing, let handlers run, log it."""
        if self._worker.healthy:
            where = self._worker.engine.where
            text = "the lease cannot be renewed at %s: %s Running jobs go on, nothing is claimed until it can."
            self._worker.outage.report(text, where, error)
        self._worker.healthy = False

    def lapsed(self) -> None:
        """Hand back every claim that has not started: the lease has passed, other workers may run these jobs.

        The hand-back is fenced, so it changes nothing if they do. The worker claims again after a renewal.
        """
        waiting = self._worker.fetcher.empty()
        logger.warning(
            "worker %s could not renew its lease in time (a frozen process, or a store that was away): %d claimed jobs "
            "that had not started are handed back. Claiming goes on after the next renewal.",
            self._worker.id,
            len(waiting),
        )
        self._worker.healthy = False
        self.unstarted = frozenset((claim.id, claim.token) for claim in waiting)
        self._worker.store_loop.hand_back(waiting)

    def lease_lost(self, former: str, fresh: str, safe_until: float) -> None:
        """Interrupt all handlers and continue under a new id: other workers took this one for dead.

        `safe_until` is the end of the new lease.
        """
        logger.error(
            "lease lost: worker %s was taken for dead and its jobs were passed on; %d handlers are stopped, "
            "the worker goes on as %s",
            former,
            len(self.runs),
            fresh,
        )
        self._worker.rename(fresh)
        self._worker.fetcher.empty()
        self.held.clear()
        self.safe_until = safe_until
        self.interrupt_all(Cause.LOST, "the worker's lease was lost")
        self._worker.store_answers()

"""What the worker holds and how a run is interrupted: by its timeout, by request, by a shutdown, by a lost claim.

The keeper reports here what the store says. A handler that ignores every interruption is abandoned with its slot: its
job is settled without it, and a new slot takes its place.
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
    """What others need to know about a slot in order to interrupt its run."""

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
        """Ask the run to stop. The first cause stays; a thread only sees the token unless its time is up."""
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
        """Has the handler swallowed every interruption so far?"""
        return self.tries > MOST_TRIES

    def recover(self) -> None:
        """Take back interruptions that were delivered, so that the slot's Task can go on."""
        self.shaken = True
        self._take_back()

    def _take_back(self) -> None:
        while self.task.cancelling():
            self.task.uncancel()

    async def calm_down(self) -> None:
        """Swallow an interruption that came too late for the run it was meant for: the next one is innocent.

        It may be Stoker's own, or one by which the handler meant itself.
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
"""Seconds by a clock that also runs while the machine sleeps, where there is one: leases go on meanwhile."""

NO_REASONS: Mapping[JobId, str] = MappingProxyType({})


class RunningJobs:
    """`held`: every claim of this worker by id with its token. `runs`: the slots that are running one.

    `safe_until`: by `lease_clock`, the end of the lease that the last successful renewal gave. Written by the keeper.
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
        """One timer serves all runs: it rings at the earliest deadline. Most jobs end before theirs, for free."""
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at = deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._ring)

    def stop_timer(self) -> None:
        """The loop this alarm belongs to has served its time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.timer_at = None, inf

    def _ring(self) -> None:
        """Interrupt the runs whose time is up, and wait for the next of them."""
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
        """Interrupt, and insist until the handler gives in or is given up."""
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
        """Settle without the handler: it ignores everything, but its job must not wait for it."""
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
        """End a run as a panic, whatever it is doing: something it left behind tried to end the whole worker."""
        context = slot.context
        if context is None or slot.abandoned:
            return
        slot.abandoned = True
        self.runs.pop(context.claim.id, None)
        rules = self._worker.rules_of(context.kind)
        self._worker.replace_slot(context.claim, conclude(context.claim, Panicked(describe_error(error)), rules))
        slot.task.cancel()

    def drop(self, job: JobId, cause: Cause, reason: str) -> None:
        """Stop a run, or take the claim out of the buffer if it has not begun."""
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

    # --- what the keeper hears ----------------------------------------------------------------------------------

    def renewed(self, renewal: Renewal, reasons: Mapping[JobId, str] = NO_REASONS) -> None:
        """The lease is good; some claims may not be. `reasons` say why a job is to stop, where somebody did."""
        self._worker.store_answers()
        in_flight = self._worker.outcomes.in_flight
        for job, token in renewal.lost:
            if job not in in_flight and self.held.get(job) == token:
                self.drop(job, Cause.LOST, "its claim was lost")
        for job, token in renewal.canceling:
            if self.held.get(job) == token:
                self.drop(job, Cause.CANCEL, reasons.get(job, "a cancel was requested"))
        if not self._worker.store_loop.asking:  # else they may be on their way here; there is a next renewal
            orphans = [claim for claim in renewal.orphaned if self.held.get(claim.id) != claim.token]
            self._worker.store_loop.hand_back(orphans)

    def renewal_failed(self, error: StokerError) -> None:
        """The lease could not be renewed: take nothing new, let handlers run, show it."""
        if self._worker.healthy:
            where = self._worker.engine.where
            text = "the lease cannot be renewed at %s: %s Running jobs go on, nothing is claimed until it can."
            self._worker.outage.report(text, where, error)
        self._worker.healthy = False

    def lapsed(self) -> None:
        """Hand back every claim that has not started: the lease has passed, others may run these jobs already.

        Whether they do the store knows: the hand-back is fenced. Nothing is claimed until a renewal succeeds.
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
        """Others took this worker for dead: its claims are theirs now. Stop the handlers, go on under a new id.

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

"""The running jobs, and how they are interrupted: timeout, cancel, shutdown, lost claim.

A handler that ignores every interruption is abandoned with its slot: the worker settles its job and starts a new slot.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from stoker.codec.error_text import describe_error
from stoker.context import Context
from stoker.executors.outcomes import Cause, outcome_after_block, outcome_of_interruption
from stoker.model import ids
from stoker.model.ids import JobId
from stoker.model.job import Claim, Settlement
from stoker.model.lifecycle import Rules, conclude
from stoker.model.outcome import Outcome, Panicked

if TYPE_CHECKING:
    from stoker.task import Task

Ended: TypeAlias = Sequence[tuple[Claim, Settlement]]
ReplaceSlot: TypeAlias = Callable[[Ended, Ended], None]
"""Settles the jobs of a slot that was abandoned, but for those that blocks have settled, and starts another slot."""


AGAIN_AFTER = 1.0
MOST_TRIES = 5


class Slot:
    """The state of a slot, as needed to interrupt its run. `causes`: of jobs of a chunk that it need not finish."""

    __slots__ = ("abandoned", "cause", "causes", "context", "on_loop", "shaken", "task", "tries")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.context: Context | None = None
        self.cause: Cause | None = None
        self.causes: dict[JobId, Cause] = {}
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
            self.context.cancel.cause = cause
            self.context.cancel.reason = reason
        if self.on_loop or cause in (Cause.TIMEOUT, Cause.SHUTDOWN):
            self.tries += 1
            self.task.cancel()

    def cause_of(self, item: Context) -> Cause | None:
        """Why a job of this run is stopped: for a reason of its own, else with the run."""
        return self.causes.get(item.claim.id, self.cause)

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


def jobs_of(context: Context) -> str:
    """Name the jobs of a run: one by its id, a chunk by its first and their number."""
    first, others = ids.text(context.claim.id), len(context.items) - 1
    return f"job {first} and {others} more of its chunk" if others else f"job {first}"


def _interrupted(item: Context, cause: Cause, limit: float | None, task: Task[..., Any] | None) -> Outcome:
    if cause is Cause.SUSPEND and item.durable is not None and item.durable.suspended is not None:
        return item.durable.suspended
    return outcome_of_interruption(cause, limit, task, item.cancel.reason)


class RunningJobs:
    """`runs`: the slot of every job that runs; jobs of a chunk share one."""

    def __init__(
        self,
        find_task: Callable[[str], Task[..., Any] | None],
        rules_of: Callable[[str], Rules],
        replace_slot: ReplaceSlot,
    ) -> None:
        self._find_task = find_task
        self._rules_of = rules_of
        self._replace_slot = replace_slot
        self.runs: dict[JobId, Slot] = {}
        self.timer_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def count(self, queue: str) -> int:
        """How many slots run jobs of a queue."""
        return sum(slot.context is not None and slot.context.queue == queue for slot in self.slots())

    def slots(self) -> set[Slot]:
        """Return the slots that run jobs."""
        return set(self.runs.values())

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
        for slot in self.slots():
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
        for slot in self.slots():
            self.interrupt(slot, cause, reason)

    def drop(self, job: JobId, cause: Cause, reason: str) -> bool:
        """Interrupt the run of a job. A call that has other jobs too goes on for them. Returns whether the job runs."""
        slot = self.runs.get(job)
        context = None if slot is None else slot.context
        if slot is None or context is None:
            return False
        for item in context.items:
            if item is not context and item.claim.id == job:
                item.cancel.reason = reason
                slot.causes[job] = cause
        if slot.causes:
            if len(slot.causes) < len(context.items):
                return True
            cause = Cause.CANCEL if set(slot.causes.values()) == {Cause.CANCEL} else Cause.LOST
        if slot.cause is not cause:
            self.interrupt(slot, cause, reason)
        return True

    def commits(self, job: JobId) -> bool:
        """Is a block of this job's run committing, or committed?"""
        slot = self.runs.get(job)
        context = None if slot is None else slot.context
        if context is None:
            return False
        return any(item.commit is not None and item.commit.committing for item in context.items if item.claim.id == job)

    def abandon(self, slot: Slot) -> None:
        """Settle the jobs of a handler that ignores every interruption."""
        context = slot.context
        if context is None or slot.abandoned:
            return
        task = self._find_task(context.kind)
        logger.error(
            "the handler of %s (%s) ignores that it was interrupted (%s); it is abandoned and goes on in the "
            "background, the job is settled without it, a new slot takes its place",
            jobs_of(context),
            context.kind,
            (slot.cause or Cause.SHUTDOWN).value,
        )
        self._end(
            slot,
            context,
            lambda item: _interrupted(item, slot.cause_of(item) or Cause.SHUTDOWN, context.limit, task),
        )

    def _end(self, slot: Slot, context: Context, outcome_of: Callable[[Context], Outcome]) -> None:
        slot.abandoned = True
        rules = self._rules_of(context.kind)
        ended, settled = [], []
        for item in context.items:
            if item.commit is not None and item.commit.settled is not None:
                settled.append((item.claim, item.commit.settled))
            else:
                ended.append((item.claim, conclude(item.claim, outcome_after_block(item, outcome_of(item)), rules)))
        for claim, _ in (*ended, *settled):
            self.runs.pop(claim.id, None)
        self._replace_slot(ended, settled)

    def end_as_panic(self, slot: Slot, error: BaseException) -> None:
        """End a run as a panic: a task that it left behind tried to end the worker."""
        context = slot.context
        if context is None or slot.abandoned:
            return
        panic = Panicked(describe_error(error))
        self._end(slot, context, lambda _item: panic)
        slot.task.cancel()

"""Runs jobs in slots: long-lived coroutines, each running job after job.

This is the hot path. No Task is made per job, not even for a timeout; what a job that simply succeeds does not need is
done only where it is needed.

A slot is one long-lived Task; what a handler sets in its context must not leak into the slot's next job. Entering a
context of the job's own for each of its steps (`begin`, `InOwnContext`) costs less than a microsecond, where a Task per
job costs ten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context as Variables
from contextvars import copy_context
from random import random
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.codec.signature import Call
from stoker.context import Context, Runtime, running
from stoker.executors.choose import is_suspect
from stoker.executors.outcomes import (
    Cause,
    DecidedInChild,
    ProcessDied,
    outcome_after_block,
    outcome_of_error,
    outcome_of_result,
    outcome_of_unfit,
)
from stoker.job_participant import Commit
from stoker.model.errors import InvalidPayload
from stoker.model.job import Claim, Settlement, Status
from stoker.model.lifecycle import Rules, conclude, expired
from stoker.model.outcome import Canceled, Expired, HandedBack, Outcome, Suspended
from stoker.model.steps import Step
from stoker.model.time import SECOND
from stoker.worker import state as worker_state
from stoker.worker.fetcher import Lane
from stoker.worker.group_results import reading_results
from stoker.worker.running import Slot

if TYPE_CHECKING:
    from stoker.worker.lease import LeaseReports
    from stoker.worker.state import WorkerContext
    from stoker.worker.store_loop import StoreLoop
    from stoker.worker.task_runners import TaskRunner

UNKNOWN: Call = (), {}
"""The arguments of a callback until the results of its group are read."""

QUANTUM = 0.002
"""Seconds a slot may run jobs that never suspend before it yields to the event loop."""


class Runner:
    """Runs the jobs of a worker in its slots.

    `runtime` is the worker as its handlers see it. `ends`: does the event loop end around the worker? `ask_stop` begins
    to stop the worker.
    """

    def __init__(
        self,
        context: WorkerContext,
        store_loop: StoreLoop,
        reports: LeaseReports,
        *,
        runtime: Runtime,
        ends: Callable[[], bool],
        ask_stop: Callable[[], None],
    ) -> None:
        self._engine = context.engine
        self._state = context.state
        self._task_runners = context.task_runners
        self._claims = context.claims
        self._running_jobs = context.running_jobs
        self._outcomes = context.outcomes
        self._failures = context.failures
        self._recorder = context.recorder
        self._due_timer = context.due_timer
        self._store_loop = store_loop
        self._reports = reports
        self._runtime = runtime
        self._ends = ends
        self._ask_stop = ask_stop

    async def serve(self, lane: Lane) -> None:
        """Run jobs of a lane, one after the other, until the worker stops."""
        me = asyncio.current_task()
        assert me is not None
        slot = Slot(me)
        state, buffer, clock = self._state, lane.buffer, time.monotonic
        waiting, most, store_loop = self._outcomes.settlements, self._outcomes.most, self._store_loop
        claims, lease_clock = self._claims, worker_state.lease_clock
        yielded_at = clock()
        while True:
            while not buffer or len(waiting) >= most:
                if not state.running:
                    return
                if waiting:
                    store_loop.wakeup.set()
                await self._idle(slot, lane)
                yielded_at = clock()
            if lease_clock() >= claims.safe_until:
                self._reports.lapsed()
                continue
            claim = buffer.popleft()
            lane.since = yielded_at
            lane.busy += 1
            settlement = await self._run(slot, lane, claim)
            if slot.abandoned:
                return
            lane.busy -= 1
            lane.finished += 1
            full = settlement is not None and store_loop.finished(claim, settlement, last=not buffer)
            if slot.shaken:
                await slot.calm_down()
            if full or clock() - yielded_at > QUANTUM:
                await asyncio.sleep(0)
                yielded_at = clock()

    async def _idle(self, slot: Slot, lane: Lane) -> None:
        """Wait for claims. Discards a cancel that a handler left behind for its Task."""
        try:
            await lane.rest()
        except asyncio.CancelledError:
            if self._ends() or not self._state.running:
                raise
            slot.recover()

    async def _run(self, slot: Slot, lane: Lane, claim: Claim) -> Settlement | None:
        """Run one job, from claim to settlement; None when that is handed over already."""
        options = claim.options
        if options.expires is not None and expired(claim):
            return conclude(claim, Expired())
        runner = self._task_runners.get(claim.kind)
        if runner is None:
            return self._unfit(claim, None)
        try:
            call = runner.task.signature.decode(claim.payload) if not options.results else UNKNOWN
        except InvalidPayload as error:
            return self._unfit(claim, error)
        limit = runner.limit if options.timeout is None else options.timeout / SECOND
        context = Context(claim, self._runtime, call, limit)
        run, slot.on_loop = runner.call, runner.on_loop
        if (claim.crashes or options.isolation) and slot.on_loop and is_suspect(claim):
            apart = runner.apart(claim)
            if apart is not None:
                run, slot.on_loop = apart, False
        if options.results:
            run = reading_results(self._engine, runner.task, run)
        slot.context, slot.cause, slot.tries = context, None, 0
        running_jobs = self._running_jobs
        running_jobs.runs[claim.id] = slot
        if limit is not None and context.began + limit < running_jobs.timer_at:
            running_jobs.set_timer(context.began + limit)
        variables = copy_context()
        rules = runner.rules
        outcome: Outcome
        raised: BaseException | None = None
        try:
            steps, value = variables.run(begin, run, context)
            if steps is not None:
                context.main = steps
                lane.wake_slot()
                value = await InOwnContext(steps, value, variables)
            outcome = outcome_of_result(runner.task, value, context)
        except BaseException as error:  # noqa: BLE001 - no handler may end the worker
            if context.durable is None or context.durable.suspended is None:
                self._raised(context, error)
            raised = error
            outcome = self._outcome(error, slot, runner, context)
            rules = msgspec.structs.replace(rules, roll=random())
        finally:
            if running_jobs.runs.get(claim.id) is slot:  # else it was abandoned, and the job may be running again
                del running_jobs.runs[claim.id]
            slot.context = None
            if slot.task.cancelling():
                slot.recover()
        left: tuple[Step, ...] = ()
        if context.durable is not None:
            outcome = context.durable.decided(outcome, raised, interrupted=slot.cause not in (None, Cause.SUSPEND))
            left = context.durable.left(raised)
            if isinstance(outcome, Suspended) and outcome.after is not None:
                self._due_timer.expect(outcome.after)
        if context.commit is not None:
            await self._after_block(slot, context, context.commit, outcome, rules, left)
            return None
        settlement = conclude(claim, outcome, rules, context.executed(), left)
        self._measure(context, settlement)
        return self._traced(context, settlement) if settlement.followups else settlement

    def _traced(self, context: Context, settlement: Settlement) -> Settlement:
        """Mark follow-ups as what this run stores, where the app traces."""
        tracing = self._runtime.app.tracing
        if tracing is None or context.trace is None:
            return settlement
        return msgspec.structs.replace(settlement, followups=tracing.following(context, settlement.followups))

    def _raised(self, context: Context, error: BaseException) -> None:
        """Keep an exception for the error hooks, and its trace for the log; of another process there is only text."""
        elsewhere = issubclass(type(error), (DecidedInChild, ProcessDied))  # its `__class__` may raise
        trace_id = None if context.trace is None else context.trace_id
        self._failures.raised(context.claim, None if elsewhere else error, trace_id)

    async def _after_block(
        self, slot: Slot, context: Context, commit: Commit, outcome: Outcome, rules: Rules, left: tuple[Step, ...] = ()
    ) -> None:
        """Hand over a run that opened a block: the block may have settled its job, or moved its claim."""
        if slot.abandoned:
            return
        settlement = commit.settled
        if settlement is None:
            settlement = conclude(context.claim, outcome_after_block(context, outcome), rules, context.executed(), left)
        self._measure(context, settlement)
        if commit.settled is not None:
            self._failures.after_block(context.claim, outcome, settlement)
            await self._store_loop.settled_already(context.claim, settlement)
        else:
            self._store_loop.finished(context.claim, self._traced(context, settlement), last=True)

    def _measure(self, context: Context, settlement: Settlement) -> None:
        """Count the run, if anyone measures."""
        if self._recorder is not None:
            status = settlement.status if settlement.wakes is None else None
            self._recorder.ran(context.claim, status, context.elapsed)

    def _outcome(self, error: BaseException, slot: Slot, runner: TaskRunner, context: Context) -> Outcome:
        cause = slot.cause_of(context)
        if cause is None and self._ends():
            cause = Cause.SHUTDOWN
        outcome = outcome_of_error(error, runner.task, cause, context.limit, round(context.elapsed * SECOND))
        self._failures.judged(context.claim, outcome)
        if isinstance(outcome, Canceled) and context.cancel.reason is not None:
            return Canceled(context.cancel.reason)
        if isinstance(outcome, HandedBack) and cause is None:  # a KeyboardInterrupt
            self._ask_stop()
        return outcome

    def _unfit(self, claim: Claim, error: InvalidPayload | None) -> Settlement:
        outcome = outcome_of_unfit(claim, error)
        settlement = conclude(claim, outcome, self._task_runners.unknown_rules)
        if settlement.status is Status.PENDING:
            self._failures.put_back(claim, outcome.why, settlement)
        return settlement


# --- a handler's coroutine in a contextvars context of its own, without a Task -----------------------------------

Steps = Any
"""What can be sent to and thrown into until it stops."""


def begin(call: Callable[[Context], Awaitable[Any]], context: Context) -> tuple[Steps, Any]:
    """The first step of a run: its steps and what they wait for, or None and the result, as of most short handlers.

    To be run inside the run's own contextvars context.
    """
    running.set(context)
    awaitable = call(context)
    steps: Steps = awaitable if hasattr(awaitable, "send") else awaitable.__await__()
    try:
        return steps, steps.send(None)
    except StopIteration as stop:
        return None, stop.value


class InOwnContext:
    """Awaiting it goes on with a run that has begun, every step inside the run's own context."""

    __slots__ = ("_steps", "_variables", "_waiting")

    def __init__(self, steps: Steps, waiting: Any, variables: Variables) -> None:
        self._steps = steps
        self._waiting = waiting
        self._variables = variables

    def __await__(self) -> Generator[Any, Any, Any]:
        run, steps, waiting = self._variables.run, self._steps, self._waiting
        try:
            while True:
                try:
                    value = yield waiting
                except BaseException as error:  # noqa: BLE001 - whatever the loop throws in belongs to the handler
                    waiting = run(steps.throw, error)
                else:
                    waiting = run(steps.send, value)
        except StopIteration as stop:
            return stop.value

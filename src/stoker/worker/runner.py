"""Runs jobs in slots: long-lived coroutines, each running job after job.

This is the hot path. No Task is made per job, not even for a timeout; what a job that simply succeeds does not need is
done only where it is needed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from random import random
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from stoker.context import Context
from stoker.executors.choose import is_suspect
from stoker.executors.outcomes import Cause, outcome_of_error, outcome_of_result, outcome_of_unfit
from stoker.hooks import compose, name_of
from stoker.model.errors import InvalidPayload
from stoker.model.job import Claim, Settlement, Status
from stoker.model.lifecycle import Rules, conclude, expired
from stoker.model.outcome import Canceled, Expired, HandedBack, Outcome
from stoker.model.time import SECOND, Span
from stoker.worker import running as keeping
from stoker.worker.context_vars import InOwnContext, begin
from stoker.worker.fetcher import Lane
from stoker.worker.running import Slot

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.executors import Executors
    from stoker.task import Task
    from stoker.worker.worker import Worker


logger = logging.getLogger("stoker.worker")

HandlerCall: TypeAlias = Callable[[Context], Awaitable[Any]]


class Plan:
    """How to run jobs of one kind, worked out once: handler with middleware, time limit, rules."""

    __slots__ = ("_app", "_executors", "call", "limit", "on_loop", "rules", "task")

    def __init__(
        self, app: Stoker, task: Task[..., Any], executors: Executors, unfit_grace: Span, keeps: dict[str, Span]
    ) -> None:
        self.task = task
        self.rules = Rules(
            backoff=task.options.backoff,
            default=app.backoff,
            keep=task.options.keep,
            crash_limit=task.crashes,
            unfit_grace=unfit_grace,
            keeps=keeps,
        )
        span = task.options.timeout if task.options.timeout is not None else app.defaults.timeout
        self.limit = None if span is None else span / SECOND
        self.on_loop = task.is_async and task.options.isolation is None
        self._app = app
        self._executors = executors
        self.call = self._wrapped(_on_loop(task.fn) if self.on_loop else executors.call_of(task, app.plain_middleware))
        if task.is_async:
            for one in app.plain_middleware:
                logger.info(
                    "middleware %s is a plain function: it surrounds plain handlers in their threads, and not the "
                    "async task %s; write one with `async def` for that",
                    name_of(one),
                    task.name,
                )

    def _wrapped(self, innermost: HandlerCall) -> HandlerCall:
        return compose(self._app.async_middleware, self._app.scoped(innermost))

    def apart(self, claim: Claim) -> HandlerCall | None:
        """Return a call that runs this job in a process of its own; None if its task cannot be imported there."""
        call = self._executors.isolated_call_of(self.task, claim)
        return None if call is None else self._wrapped(call)


def _on_loop(fn: Callable[..., Any]) -> HandlerCall:
    def call(context: Context) -> Awaitable[Any]:
        args, kwargs = context.call
        awaitable: Awaitable[Any] = fn(*args, **kwargs)
        return awaitable

    return call


QUANTUM = 0.002
"""Seconds a slot may run jobs that never suspend before it yields to the event loop."""


class Runner:
    """Runs the jobs of a worker in its slots."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._running_jobs = worker.running_jobs
        self._plans: dict[str, Plan] = {}
        self._grace = worker.settings.unknown_task_grace
        self._unknown_rules = Rules(default=worker.app.backoff, unfit_grace=self._grace)

    async def serve(self, lane: Lane) -> None:
        """Run jobs of a lane, one after the other, until the worker stops."""
        me = asyncio.current_task()
        assert me is not None
        slot = Slot(me)
        worker, buffer, clock = self._worker, lane.buffer, time.monotonic
        waiting, most, store_loop = worker.outcomes.settlements, worker.outcomes.most, worker.store_loop
        running_jobs, lease_clock = self._running_jobs, keeping.lease_clock
        yielded_at = clock()
        while True:
            while not buffer or len(waiting) >= most:
                if worker.state != "running":
                    return
                if waiting:
                    store_loop.wakeup.set()
                await self._idle(slot, lane)
                yielded_at = clock()
            if lease_clock() >= running_jobs.safe_until:
                running_jobs.lapsed()
                continue
            claim = buffer.popleft()
            lane.since = yielded_at
            lane.busy += 1
            settlement = await self._run(slot, lane, claim)
            if slot.abandoned:
                return
            lane.busy -= 1
            full = store_loop.finished(claim, settlement, last=not buffer)
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
            if self._worker.going_down or self._worker.state != "running":
                raise
            slot.recover()

    async def _run(self, slot: Slot, lane: Lane, claim: Claim) -> Settlement:
        """Run one job, from claim to settlement."""
        options = claim.options
        if options.expires is not None and expired(claim):
            return conclude(claim, Expired())
        plan = self._plans.get(claim.kind) or self._plan_for(claim.kind)
        if plan is None:
            return self._unfit(claim, None)
        try:
            call = plan.task.signature.decode(claim.payload)
        except InvalidPayload as error:
            return self._unfit(claim, error)
        limit = plan.limit if options.timeout is None else options.timeout / SECOND
        context = Context(claim, self._worker, call, limit)
        run, slot.on_loop = plan.call, plan.on_loop
        if (claim.crashes or options.isolation) and slot.on_loop and is_suspect(claim):
            apart = plan.apart(claim)
            if apart is not None:
                run, slot.on_loop = apart, False
        slot.context, slot.cause, slot.tries = context, None, 0
        running_jobs = self._running_jobs
        running_jobs.runs[claim.id] = slot
        if limit is not None and context.began + limit < running_jobs.timer_at:
            running_jobs.set_timer(context.began + limit)
        variables = copy_context()
        rules = plan.rules
        outcome: Outcome
        try:
            steps, value = variables.run(begin, run, context)
            if steps is not None:
                lane.wake_slot()
                value = await InOwnContext(steps, value, variables)
            outcome = outcome_of_result(plan.task, value, context)
        except BaseException as error:  # noqa: BLE001 - no handler may end the worker
            outcome = self._outcome(error, slot, plan, context)
            rules = msgspec.structs.replace(rules, roll=random())
        finally:
            if running_jobs.runs.get(claim.id) is slot:  # else it was abandoned, and the job may be running again
                del running_jobs.runs[claim.id]
            slot.context = None
            if slot.task.cancelling():
                slot.recover()
        return conclude(claim, outcome, rules, context.executed())

    def _outcome(self, error: BaseException, slot: Slot, plan: Plan, context: Context) -> Outcome:
        cause = Cause.SHUTDOWN if slot.cause is None and self._worker.going_down else slot.cause
        outcome = outcome_of_error(error, plan.task, cause, context.limit, round(context.elapsed * SECOND))
        if isinstance(outcome, Canceled) and context.cancel.reason is not None:
            return Canceled(context.cancel.reason)
        if isinstance(outcome, HandedBack) and cause is None:  # a KeyboardInterrupt
            self._worker.ask_stop()
        return outcome

    def _plan_for(self, kind: str) -> Plan | None:
        worker = self._worker
        task = worker.app.find_task(kind)
        if task is None:
            return None
        plan = self._plans[kind] = Plan(worker.app, task, worker.executors, self._grace, worker.keeps)
        return plan

    def rules_of(self, kind: str) -> Rules:
        """Return the rules for jobs of this kind; the app's defaults for an unknown kind."""
        plan = self._plans.get(kind) or self._plan_for(kind)
        return self._unknown_rules if plan is None else plan.rules

    def _unfit(self, claim: Claim, error: InvalidPayload | None) -> Settlement:
        outcome = outcome_of_unfit(claim, error)
        settlement = conclude(claim, outcome, self._unknown_rules)
        if settlement.status is Status.PENDING:
            self._worker.failures.put_back(claim, outcome.why, settlement)
        return settlement

"""Runs chunks: one call of a handler for many jobs, each of which is settled by itself."""

from __future__ import annotations

import asyncio
import time
from contextvars import copy_context
from random import random
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.codec.signature import call_of_chunk
from stoker.context import ChunkContext, Context
from stoker.executors.choose import is_suspect
from stoker.executors.outcomes import Cause, outcome_of_result
from stoker.model.chunk import answers
from stoker.model.errors import InvalidPayload
from stoker.model.job import Claim
from stoker.model.lifecycle import conclude, expired
from stoker.model.outcome import Canceled, Expired, Outcome
from stoker.model.time import SECOND
from stoker.worker import state as worker_state
from stoker.worker.runner import InOwnContext, Runner, begin
from stoker.worker.running import Slot

if TYPE_CHECKING:
    from stoker.worker.chunks import ChunkLane
    from stoker.worker.plans import HandlerCall, Plan


class ChunkRunner(Runner):
    """Runs the jobs of a worker, singly and in chunks."""

    async def serve_chunks(self, lane: ChunkLane) -> None:
        """Run chunks of a lane, one after the other, until the worker stops."""
        me = asyncio.current_task()
        assert me is not None
        slot, clock = Slot(me), time.monotonic
        waiting, most = self._outcomes.settlements, self._outcomes.most
        while True:
            while (wait := lane.ready_in(clock())) is None or wait > 0 or len(waiting) >= most:
                if not self._state.running:
                    return
                if waiting:
                    self._store_loop.wakeup.set()
                await self._gather(slot, lane, wait)
            if worker_state.lease_clock() >= self._claims.safe_until:
                self._reports.lapsed()
                continue
            claims = lane.take(clock())
            lane.busy += 1
            lane.wake_slot()  # for the claims that are left
            await self._run_chunk(slot, lane, claims)
            if slot.abandoned:
                return
            lane.busy -= 1
            if slot.shaken:
                await slot.calm_down()
            await asyncio.sleep(0)

    async def _gather(self, slot: Slot, lane: ChunkLane, wait: float | None) -> None:
        """Wait for claims, or until the chunk that gathers has waited long enough."""
        timer = asyncio.get_running_loop().call_later(wait, lane.wake_slot) if wait else None
        try:
            await self._idle(slot, lane)
        finally:
            if timer is not None:
                timer.cancel()

    async def _run_chunk(self, slot: Slot, lane: ChunkLane, claims: list[Claim]) -> None:
        """Run claims that a lane gave out together, and settle them."""
        if claims[0].kind != lane.kind:  # a job of another kind was enqueued into this queue, or moved there
            settlement = await self._run(slot, lane, claims[0])
            if not slot.abandoned and settlement is not None:
                self._store_loop.finished(claims[0], settlement, last=True)
            return
        plan = self._plans.get(lane.kind)
        assert plan is not None, "the lane was made for this task"
        items = self._items(plan, claims)
        if not items:
            return
        apart = plan.apart(claims[0]) if is_suspect(claims[0]) else None
        context = items[0]
        if apart is None:
            context = ChunkContext(items, call_of_chunk([item.arguments for item in items]), items[0].limit)
        outcomes = await self._outcomes_of(slot, plan, context, apart)
        if slot.abandoned:
            return
        for item, outcome in zip(items, outcomes, strict=True):
            rules = msgspec.structs.replace(plan.rules, roll=random())
            item.trace = context.trace
            if item.commit is not None:
                await self._after_block(slot, item, item.commit, outcome, rules)
                continue
            settlement = self._traced(item, conclude(item.claim, outcome, rules, item.executed()))
            if self._recorder is not None:
                self._recorder.ran(item.claim, settlement.status, item.elapsed)
            self._store_loop.finished(item.claim, settlement, last=item is items[-1])

    def _items(self, plan: Plan, claims: list[Claim]) -> tuple[Context, ...]:
        """Return a context per job that can run; settles the others. The shortest time limit holds for all."""
        calls = []
        for claim in claims:
            if claim.options.expires is not None and expired(claim):
                self._store_loop.finished(claim, conclude(claim, Expired()), last=True)
                continue
            try:
                calls.append((claim, plan.task.signature.decode(claim.payload)))
            except InvalidPayload as error:
                self._store_loop.finished(claim, self._unfit(claim, error), last=True)
        own = (claim.options.timeout for claim, _ in calls)
        limits = [plan.limit if limit is None else limit / SECOND for limit in own]
        shortest = min((limit for limit in limits if limit is not None), default=None)
        return tuple(Context(claim, self._runtime, call, shortest) for claim, call in calls)

    async def _outcomes_of(self, slot: Slot, plan: Plan, context: Context, apart: HandlerCall | None) -> list[Outcome]:
        """Call the handler, in a process of its own if `apart` does so, and return the outcome of each job."""
        running_jobs, items = self._running_jobs, context.items
        slot.context, slot.cause, slot.tries = context, None, 0
        slot.on_loop = plan.on_loop and apart is None
        for item in items:
            running_jobs.runs[item.claim.id] = slot
        if context.limit is not None and context.began + context.limit < running_jobs.timer_at:
            running_jobs.set_timer(context.began + context.limit)
        variables = copy_context()
        found: list[Any]
        try:
            steps, value = variables.run(begin, apart or plan.call, context)
            if steps is not None:
                value = await InOwnContext(steps, value, variables)
            found = answers(plan.task.name, value, len(items))
        except BaseException as error:  # noqa: BLE001 - no handler may end the worker
            found = [error] * len(items)
        finally:
            for item in items:
                if running_jobs.runs.get(item.claim.id) is slot:  # else it was abandoned
                    del running_jobs.runs[item.claim.id]
            slot.context = None
            if slot.task.cancelling():
                slot.recover()
        outcomes = self._judged(slot, plan, items, found)
        slot.causes.clear()
        return outcomes

    def _judged(self, slot: Slot, plan: Plan, items: tuple[Context, ...], found: list[Any]) -> list[Outcome]:
        """Return what each value or exception means for its job. An exception of many jobs is judged once."""
        known: dict[tuple[int, Cause | None], Outcome] = {}
        outcomes: list[Outcome] = []
        for item, value in zip(items, found, strict=True):
            if not isinstance(value, BaseException):
                outcomes.append(outcome_of_result(plan.task, value, item))
                continue
            self._raised(item, value)
            key = id(value), slot.cause_of(item)
            if key not in known:
                known[key] = self._outcome(value, slot, plan, item)
            outcome = known[key]
            if isinstance(outcome, Canceled) and item.cancel.reason is not None:
                outcome = Canceled(item.cancel.reason)
            outcomes.append(outcome)
        return outcomes

"""Jobs that run in chunks: which claims one call of a handler gets, when it starts, and what becomes of each job."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from contextvars import copy_context
from random import random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from stoker.codec.signature import call_of_chunk
from stoker.context import ChunkContext, Context
from stoker.executors.choose import is_suspect
from stoker.executors.outcomes import Cause, outcome_of_error, outcome_of_result
from stoker.model.chunk import Chunk, answers
from stoker.model.errors import InvalidPayload, StokerError
from stoker.model.job import Claim
from stoker.model.lifecycle import conclude, expired
from stoker.model.outcome import Canceled, Expired, Outcome
from stoker.model.time import SECOND, span
from stoker.worker import state as worker_state
from stoker.worker.fetcher import Lane
from stoker.worker.group_results import with_results
from stoker.worker.runner import InOwnContext, Runner, begin
from stoker.worker.running import Slot

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.worker.task_runners import HandlerCall, TaskRunner


class ChunkQueue(NamedTuple):
    """The one task of a queue, and its chunk. `one_tenant`: a chunk holds jobs of one tenant only."""

    kind: str
    chunk: Chunk
    one_tenant: bool

    def lane(self, queue: str, slots: int, batch: int | None) -> Lane:
        """Make the lane of the queue."""
        return ChunkLane(queue, slots, self, batch)


def chunk_queues(app: Stoker) -> dict[str, ChunkQueue]:
    """Return the queues of an app whose jobs run in chunks. Raises if another task shares one of them."""
    tasks = {task.name: (task, app.resolve(task.name, task.options)[0]) for task in app.tasks.values()}
    found = {
        queue: ChunkQueue(task.name, task.chunk, app.scopes_tenants)
        for task, queue in tasks.values()
        if task.chunk is not None
    }
    for task, queue in tasks.values():
        if queue in found and found[queue].kind != task.name:
            raise StokerError(
                f"queue {queue!r} has the task {found[queue].kind!r}, whose jobs run in chunks, and the task "
                f"{task.name!r}. A queue with a chunk= task serves only that task: give one of them another queue=. "
                "The worker does not start."
            )
    return found


Group: TypeAlias = tuple[bytes | None, str | None]
"""What claims of one chunk have in common. The first part is set for a claim that runs alone: its job's id."""


class ChunkLane(Lane):
    """The slots of a queue whose jobs run in chunks, one chunk per slot.

    A chunk holds jobs of one kind, and of one tenant where handlers run in a tenant's scope. A job of another kind, and
    one that must run alone because its process died twice, is a chunk by itself and waits for no other.
    """

    def __init__(self, queue: str, slots: int, rule: ChunkQueue, batch: int | None = None) -> None:
        super().__init__((queue,), slots, batch)
        self.kind, chunk, self._one_tenant = rule
        self.size = chunk.size
        self._within = span(chunk.within) / SECOND
        self._arrivals: deque[float] = deque()  # of each claim in the buffer
        self._counts: Counter[Group] = Counter()

    def worth_asking(self, room: int) -> bool:
        """A chunk that a free slot waits for is filled up at once."""
        return self.busy < self.slots or super().worth_asking(room)

    def received(self, claims: list[Claim], asked: int, number: int, now: float) -> None:
        """Remember when the claims came in, and count them."""
        self._arrivals.extend([now] * len(claims))
        self._counts.update(map(self._group, claims))
        super().received(claims, asked, number, now)

    def remove(self, claim: Claim) -> None:
        """Take one claim out of the buffer."""
        place = self.buffer.index(claim)
        del self.buffer[place], self._arrivals[place]
        self._forget(self._group(claim), 1)

    def empty(self) -> list[Claim]:
        """Take every claim out of the buffer."""
        self._arrivals.clear()
        self._counts.clear()
        return super().empty()

    def ready_in(self, now: float) -> float | None:
        """Seconds until the next chunk starts, 0 if it is full; None while there is no claim for it."""
        if not self.buffer:
            return None
        return 0.0 if self._full() is not None else max(0.0, self._arrivals[0] + self._within - now)

    def take(self, now: float) -> list[Claim]:
        """Take the next chunk out of the buffer: the first full one, else what the first claim belongs to."""
        full = self._full()
        group = self._group(self.buffer[0]) if full is None else full
        taken: list[Claim] = []
        rest: list[tuple[Claim, float]] = []
        while self.buffer and len(taken) < self.size:
            claim, arrival = self.buffer.popleft(), self._arrivals.popleft()
            if self._group(claim) == group:
                taken.append(claim)
            else:
                rest.append((claim, arrival))
        self.buffer.extendleft(claim for claim, _ in reversed(rest))
        self._arrivals.extendleft(arrival for _, arrival in reversed(rest))
        self._forget(group, len(taken))
        self.since = now
        return taken

    def _full(self) -> Group | None:
        """Return the first group that needs no more claims."""
        return next((group for group, count in self._counts.items() if group[0] or count >= self.size), None)

    def _group(self, claim: Claim) -> Group:
        if claim.kind != self.kind or is_suspect(claim):
            return claim.id, None
        return None, claim.tenant if self._one_tenant else None

    def _forget(self, group: Group, count: int) -> None:
        self._counts[group] -= count
        if not self._counts[group]:
            del self._counts[group]


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
            lane.finished += len(claims)
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
        runner = self._task_runners.get(lane.kind)
        assert runner is not None, "the lane was made for this task"
        items = await self._items(runner, claims)
        if not items:
            return
        apart = runner.apart(claims[0]) if is_suspect(claims[0]) else None
        context = items[0]
        if apart is None:
            context = ChunkContext(items, call_of_chunk([item.arguments for item in items]), items[0].limit)
        outcomes = await self._outcomes_of(slot, runner, context, apart)
        if slot.abandoned:
            return
        for item, outcome in zip(items, outcomes, strict=True):
            rules = msgspec.structs.replace(runner.rules, roll=random())
            item.trace = context.trace
            if item.commit is not None:
                await self._after_block(slot, item, item.commit, outcome, rules)
                continue
            settlement = self._traced(item, conclude(item.claim, outcome, rules, item.executed()))
            if self._recorder is not None:
                self._recorder.ran(item.claim, settlement.status, item.elapsed)
            self._store_loop.finished(item.claim, settlement, last=item is items[-1])

    async def _items(self, runner: TaskRunner, claims: list[Claim]) -> tuple[Context, ...]:
        """Return a context per job that can run; settles the others. The shortest time limit holds for all."""
        calls = []
        for claim in claims:
            if claim.options.expires is not None and expired(claim):
                self._store_loop.finished(claim, conclude(claim, Expired()), last=True)
                continue
            try:
                item = await with_results(self._engine, claim) if claim.options.results else claim
                calls.append((item, runner.task.signature.decode(item.payload)))
            except InvalidPayload as error:
                self._store_loop.finished(claim, self._unfit(claim, error), last=True)
            except StokerError as error:
                outcome = outcome_of_error(error, runner.task, None, None)
                self._store_loop.finished(claim, conclude(claim, outcome, runner.rules), last=True)
        own = (claim.options.timeout for claim, _ in calls)
        limits = [runner.limit if limit is None else limit / SECOND for limit in own]
        shortest = min((limit for limit in limits if limit is not None), default=None)
        return tuple(Context(claim, self._runtime, call, shortest) for claim, call in calls)

    async def _outcomes_of(
        self, slot: Slot, runner: TaskRunner, context: Context, apart: HandlerCall | None
    ) -> list[Outcome]:
        """Call the handler, in a process of its own if `apart` does so, and return the outcome of each job."""
        running_jobs, items = self._running_jobs, context.items
        slot.context, slot.cause, slot.tries = context, None, 0
        slot.on_loop = runner.on_loop and apart is None
        for item in items:
            running_jobs.runs[item.claim.id] = slot
        if context.limit is not None and context.began + context.limit < running_jobs.timer_at:
            running_jobs.set_timer(context.began + context.limit)
        variables = copy_context()
        found: list[Any]
        try:
            steps, value = variables.run(begin, apart or runner.call, context)
            if steps is not None:
                context.main = steps
                value = await InOwnContext(steps, value, variables)
            found = answers(runner.task.name, value, len(items))
        except BaseException as error:  # noqa: BLE001 - no handler may end the worker
            found = [error] * len(items)
        finally:
            for item in items:
                if running_jobs.runs.get(item.claim.id) is slot:  # else it was abandoned
                    del running_jobs.runs[item.claim.id]
            slot.context = None
            if slot.task.cancelling():
                slot.recover()
        outcomes = self._judged(slot, runner, items, found, context.trace)
        slot.causes.clear()
        return outcomes

    def _judged(
        self, slot: Slot, runner: TaskRunner, items: tuple[Context, ...], found: list[Any], trace: Any
    ) -> list[Outcome]:
        """Return what each value or exception means for its job. An exception of many jobs is judged once."""
        known: dict[tuple[int, Cause | None], Outcome] = {}
        outcomes: list[Outcome] = []
        for item, value in zip(items, found, strict=True):
            if not isinstance(value, BaseException):
                outcomes.append(outcome_of_result(runner.task, value, item))
                continue
            item.trace = trace
            self._raised(item, value)
            key = id(value), slot.cause_of(item)
            if key not in known:
                known[key] = self._outcome(value, slot, runner, item)
            outcome = known[key]
            if isinstance(outcome, Canceled) and item.cancel.reason is not None:
                outcome = Canceled(item.cancel.reason)
            outcomes.append(outcome)
        return outcomes

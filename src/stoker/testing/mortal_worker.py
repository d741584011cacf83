"""A worker that dies as a killed process does: it writes nothing more, and its jobs stay claimed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoker.context import Context
from stoker.hand_back import BATCH, publish
from stoker.hooks import Next
from stoker.model.emitted import Ring
from stoker.model.ids import JobId
from stoker.model.job import LEASE, Claim, Settlement, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Crashed, Exit, HandedBack, Snooze
from stoker.model.steps import Save
from stoker.model.time import SECOND
from stoker.testing.handler_faults import SETTLEMENT, START, Faults, WorkerDied, stored_steps
from stoker.worker import Worker
from stoker.worker.failures import FailureLog

if TYPE_CHECKING:
    from stoker.app import Stoker


class MortalWorker(Worker):
    """Drains queues as a worker does, unless it dies. `died` says where, and None as long as it lives."""

    def __init__(self, app: Stoker, queues: Mapping[str, int | None], faults: Faults) -> None:
        super().__init__(app, queues, drain=True)
        self.died: str | None = None
        self._faults = faults
        self._dying: asyncio.Task[None] | None = None
        self._started: frozenset[JobId] = frozenset()

    def note(self, claim: Claim, progress: float | None, lines: tuple[str, ...]) -> None:
        """Keep a note; a worker that dies after it has written it."""
        what = "a line was logged" if progress is None else "progress was reported"
        self._faults.reach(f"before {what}")
        super().note(claim, progress, lines)
        self._faults.reach(f"after {what}")

    def emit(self, claim: Claim, ring: Ring, entry: bytes) -> None:
        """Keep a value; a worker that dies after it has written it."""
        self._faults.reach("before a value was emitted")
        super().emit(claim, ring, entry)
        self._faults.reach("after a value was emitted")

    def settled(self, claim: Claim, settlement: Settlement) -> None:
        """Note that a block has committed."""
        super().settled(claim, settlement)
        self._faults.reach("after the commit of its block")

    async def save_steps(self, save: Save) -> Verdict:
        """Save steps of a durable job."""
        what = stored_steps(save)
        self._faults.reach(f"before {what}")
        verdict = await super().save_steps(save)
        self._faults.reach(f"after {what}")
        return verdict

    async def around(self, call: Next[Any, Any], context: Context) -> Any:
        """Run a handler; if the worker dies under it, stay there until `die` has ended everything."""
        faults, kind = self._faults, context.kind
        if late := faults.late.get(kind):
            faults.postponed.update(item.claim.id for item in context.items if item.claim.fresh)
            raise Snooze(late.popleft() / SECOND)
        try:
            faults.reach(START)
            try:
                value = await call(context)
            except BaseException as error:
                if any(item.durable is not None and item.durable.suspended for item in context.items):
                    faults.reach("before it was suspended")
                elif isinstance(error, Exception | Exit):
                    faults.reach(SETTLEMENT)
                raise
            if any(item.commit is None or item.commit.settled is None for item in context.items):
                faults.reach(SETTLEMENT)
        except BaseException:
            point = self._point(context)
            if point is None:
                raise
        else:
            point = self._point(context)
            if point is None and faults.twice[kind]:
                faults.twice[kind] -= 1
                point = SETTLEMENT
            if point is None:
                return value
        self.died = point
        self._started = frozenset(self.running_jobs.runs)
        self._dying = asyncio.ensure_future(self._die())
        await asyncio.Event().wait()
        raise WorkerDied(point)

    def _point(self, context: Context) -> str | None:
        death = self._faults.death_of(context)
        return None if death is None else death.point

    async def _die(self) -> None:
        """End every Task and thread of the worker without a word to the store."""
        assert self.died is not None
        await self.emits.stop()
        if self.died.startswith("after"):
            await self.progress.write()  # what was noted before is stored; else it is lost
            await self.emits.write()
        self._state.phase = "stopped"
        self._state.healthy = False
        self.running_jobs.stop_timer()
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.5)  # before Python 3.12 `wait_for` may swallow a cancellation
        await self.lease_keeper.stop()
        await self.executors.close()
        await self._lifespans.aclose()
        self.states.clear()
        self._stopped.set()

    async def release(self) -> None:
        """Let another worker have the jobs: those that had started have crashed, the others wait again."""
        engine, me, failures = self.engine, self._state.next_id(), FailureLog(self.app.errors)
        crashed = Crashed(f"the test kit killed its worker {self.died}")
        await engine.jobs.renew(me, [], lease=LEASE, first=True)
        while claims := await engine.jobs.reap(me, BATCH, dead=[self.id]):
            settlements = [
                conclude(claim, crashed if claim.id in self._started else HandedBack(), self.rules_of(claim.kind))
                for claim in claims
            ]
            ended = claims, settlements, (await engine.jobs.settle(settlements)).verdicts
            publish(self.app, ended)
            failures.applied(*ended)
        await engine.jobs.renew(me, [], lease=0)

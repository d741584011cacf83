"""The store loop: settles finished jobs and claims the next ones, in one call.

During a call the slots run prefetched jobs; their outcomes become the next call. A worker sends up to `parallel_calls`
of the engine at once, each with a whole batch. The store may have carried out a call that failed: the worker sends the
settlements again (the store recognises them), and claims whose reply was lost come back as orphans.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from random import random
from typing import TYPE_CHECKING

from stoker.model import ids
from stoker.model.errors import StokerError, sentence
from stoker.model.humanize import count
from stoker.model.job import Claim, Settled, Settlement, Status, Verdict
from stoker.model.lifecycle import RESULT_WARNING, conclude
from stoker.model.outcome import Canceled, HandedBack
from stoker.worker.fetcher import LARGEST, Asked
from stoker.worker.resender import Resender

if TYPE_CHECKING:
    from stoker.worker.state import WorkerContext


logger = logging.getLogger("stoker.worker")

FLUSH_AFTER = 0.002
"""Seconds an outcome may wait for others before it is written."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two tries while the store is away."""

_APPLIED, _DONE = Verdict.APPLIED, Status.DONE

FINISH_WITHIN = 10.0
"""Seconds a stopping worker tries to write the last outcomes."""


class StoreLoop:
    """Starts a call to the store whenever `wakeup` is set.

    Of a worker that drains it calls `rested` after each call, and when none is needed.
    """

    def __init__(self, context: WorkerContext, rested: Callable[[], None]) -> None:
        self._state = context.state
        self._fetcher = context.fetcher
        self._outcomes = context.outcomes
        self._claims = context.claims
        self._progress = context.progress
        self._emits = context.emits
        self._publisher = context.publisher
        self._due_timer = context.due_timer
        self._failures = context.failures
        self._outage = context.outage
        self._rested = rested
        self._pause = SHORTEST_PAUSE
        self._armed = False
        self._closing = False
        self._calls = 0
        self._woken_again = False
        self._wakeup_lock = asyncio.Lock()
        self.away = False
        self.asking = 0
        self.wakeup = asyncio.Event()
        self.engine = context.engine
        self.resender = Resender(context, self._settled, self.wakeup.set)
        self._parallel_calls = self.engine.parallel_calls

    def finished(self, claim: Claim, settlement: Settlement, *, last: bool) -> bool:
        """Take the outcome of a job from a slot. Returns whether a whole batch can be sent: the slot then yields."""
        outcomes = self._outcomes
        outcomes.claims.append(claim)
        outcomes.settlements.append(settlement)
        full = len(outcomes.settlements) >= outcomes.batch
        if last or full:
            self.wakeup.set()
        elif not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_later(FLUSH_AFTER, self._wake_late)
        return full and self._calls < self._parallel_calls

    async def settled_already(self, claim: Claim, settlement: Settlement) -> None:
        """Take over a job that its handler has settled in a transaction of its own: nothing is written any more."""
        await self._settled([claim], [settlement], [_APPLIED], alone=True)
        if self._fetcher.wants_batch or any(not lane.buffer for lane in self._fetcher.lanes):
            self.wakeup.set()

    def _wake_late(self) -> None:
        self._armed = False
        self.wakeup.set()

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Hand back jobs that were not started, without using an attempt."""
        for claim in claims:
            self._outcomes.put(claim, conclude(claim, HandedBack()))
        if claims:
            self.wakeup.set()

    async def pump(self) -> None:
        """Run until `finish`, with as many calls at once as the engine takes."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._parallel_calls):
                group.create_task(self._pump())

    async def _pump(self) -> None:
        while True:
            async with self._wakeup_lock:  # one waits for the event; the next waits while the first makes its call
                await self.wakeup.wait()
                if self._closing:
                    return
                self.wakeup.clear()
            if self._calls == 0 or self._worth_another:
                await self._round()
            else:
                self._woken_again = True

    async def answer(self) -> None:
        """Ask for jobs in the caller's task, which is sooner than setting the event."""
        if self._calls == 0 and not self._closing:
            await self._round()
        else:
            self.wakeup.set()

    async def _round(self) -> None:
        """Make one call; set the event again if it was set meanwhile or another batch is full."""
        await self.call()
        if self._woken_again or self._outcomes.full or (len(self._outcomes) and self._fetcher.busy == 0):
            self._woken_again = False
            self.wakeup.set()

    @property
    def _worth_another(self) -> bool:
        """May another call start before the last one returns? Only with a whole batch, while the store is there."""
        return not self.away and (self._outcomes.full or (self._state.taking and self._fetcher.wants_batch))

    async def call(self) -> None:
        """Make one call to the store, if there is anything to settle or to claim."""
        claims, settlements = self._outcomes.take()
        if self._outcomes.aside:
            claims, settlements = self.resender.sift(claims, settlements)
        asked = self._fetcher.ask(self._state.id) if self._state.taking else None
        if not settlements and asked is None:
            if self._state.draining:
                self._rested()
            return
        self._calls += 1
        try:
            settled = await self._call(claims, settlements, asked)
        except Exception as error:
            if not await self.resender.sort_out(claims, settlements, error):
                if not isinstance(error, StokerError):
                    raise
                await self._store_is_away(error)
            return
        finally:
            self._calls -= 1
        if self.away:
            self.away = False
            self._pause = SHORTEST_PAUSE
            self._outage.over("the store answers again")
        if settlements:
            await self._settled(claims, settlements, settled.verdicts)
        if asked is not None:
            self._claimed(asked, settled.claims)
        if self._state.draining:
            self._rested()

    async def _call(self, claims: list[Claim], settlements: list[Settlement], asked: Asked | None) -> Settled:
        """Make the call. If it raises, keep the settlements: sending them again shows whether they were written."""
        demand = None if asked is None else asked.demand
        self._outcomes.flying.append(claims)
        self.asking += asked is not None
        try:
            if settlements:
                if self._progress.waiting:
                    await self._progress.write(claims)
                if self._emits:
                    await self._emits.write(claims)
                return await self.engine.jobs.settle(settlements, demand=demand)
            assert demand is not None
            return Settled([], await self.engine.jobs.claim(demand))
        except BaseException:
            self._outcomes.put_back(claims, settlements)
            if asked is not None:
                self._fetcher.withdraw(asked)
            raise
        finally:
            self._outcomes.landed(claims)
            self.asking -= asked is not None

    async def calm(self) -> None:
        """Wait for calls under way: a call that is canceled never learns what it has claimed."""
        end = time.monotonic() + FINISH_WITHIN
        while self._calls and not self.away and time.monotonic() < end:
            await asyncio.sleep(0.005)

    async def finish(self, pump: asyncio.Task[None]) -> None:
        """Let the task of `pump` end its call, then write the remaining outcomes, within a time limit."""
        self._closing = True
        self.wakeup.set()
        end = time.monotonic() + FINISH_WITHIN
        await asyncio.wait([pump], timeout=FINISH_WITHIN)
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        while len(self._outcomes) and time.monotonic() < end:
            await self.call()
        left = await self.resender.finish(end) + len(self._outcomes)
        if left:
            logger.error("%s not written before the end: the jobs run again", count(left, "outcome"))

    def _claimed(self, asked: Asked, claims: list[Claim]) -> None:
        if claims and claims[0].worker != self._state.id:
            self._fetcher.withdraw(asked)
            return  # claimed under an id whose lease was lost meanwhile: other workers have them
        held = self._claims.tokens
        for claim in claims:
            held[claim.id] = claim.token
        if claims:
            self._state.heard = claims[0].claimed_at, time.monotonic()
        self._publisher.claimed(claims)
        if not self._state.running:
            self._fetcher.withdraw(asked)
            self.hand_back(claims)
            return
        self._fetcher.distribute(asked, claims)
        may_have_more = [lane.may_have_more for lane in self._fetcher.lanes]
        if any(may_have_more):
            self.wakeup.set()
        if not all(may_have_more):
            self._due_timer.reset()

    async def _settled(
        self, claims: list[Claim], settlements: list[Settlement], verdicts: list[Verdict], *, alone: bool = False
    ) -> None:
        """Take in what became of settlements. `alone`: of one, after which the caller decides about another call."""
        held, counts, more = self._claims.tokens, self._state.counts, self._state.draining and not alone
        if Verdict.REPEATED in verdicts:
            # Written by a call whose reply was lost: not published yet.
            verdicts = [Verdict.APPLIED if verdict is Verdict.REPEATED else verdict for verdict in verdicts]
        for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
            if verdict is not _APPLIED and self._refused(claim, settlement, verdict):
                continue
            if held.get(claim.id) == claim.token:
                del held[claim.id]
            if verdict is _APPLIED:
                counts[settlement.status] += 1
                if settlement.status is not _DONE or (settlement.metadata and RESULT_WARNING in settlement.metadata):
                    self._failures.settled(claim, settlement)
                if settlement.after:
                    self._due_timer.expect(settlement.after)
                if settlement.followups:
                    more = True
        self._fetcher.measure()
        # A write that goes early is worth it only where another call can be under way at the same time.
        self._outcomes.follow(self._fetcher.batch if self._parallel_calls > 1 else LARGEST)
        stored = await self._publisher.stored(settlements, verdicts)
        self._publisher.settled(claims, settlements, verdicts, stored)
        if more or self._state.draining:  # what has ended may have let others start
            self._fetcher.wake()
        if more:
            self.wakeup.set()
        for lane in self._fetcher.lanes:
            if lane.buffer and lane.idle:  # these slots paused because too many outcomes waited
                lane.wake_slot()

    def _refused(self, claim: Claim, settlement: Settlement, verdict: Verdict) -> bool:
        """Handle a settlement that did not apply. Returns whether the claim is still held."""
        if verdict is Verdict.LOST:
            self._failures.lost(claim)
            self._warn_lost(claim, settlement)
            return False
        if verdict is Verdict.HELD:
            self.resender.hold(claim, settlement)
            return True
        why = f"canceled by request; the run ended: {settlement.error or settlement.status}"
        self._outcomes.put(claim, conclude(claim, Canceled(why), metadata=settlement.metadata))
        self.wakeup.set()
        return True

    def _warn_lost(self, claim: Claim, settlement: Settlement) -> None:
        self._state.lost += 1
        if (claim.id, claim.token) in self._claims.unstarted:
            return  # it never ran here, so no outcome is lost
        logger.warning(
            "lease lost: the store refused the outcome (%s) of job %s (%s), because the claim has passed to another "
            "worker or was taken away; the job goes on there",
            settlement.status,
            ids.text(claim.id),
            claim.kind,
        )

    async def _store_is_away(self, error: StokerError) -> None:
        """Keep the outcomes, pause longer and longer, and log once per outage."""
        if not self.away:
            self.away = True
            text = "the store does not answer: %s: %s Running jobs go on; Stoker keeps trying."
            self._outage.report(text, self.engine.where, sentence(error))
        pause = self._pause * (0.5 + random())  # so that workers do not return all at once
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        await asyncio.sleep(pause)
        self._fetcher.wake()
        self.wakeup.set()

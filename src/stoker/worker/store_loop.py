"""The worker's one conversation with the store: settle what is finished, claim what fits next, in one call.

While a call is under way the slots go on with what is buffered, and what they finish becomes the next call. A worker
sends up to `parallel_calls` of the engine at once, each with a whole batch. A call that failed may have been carried
out all the same: settlements are sent again (the store knows them), and claims whose reply was lost come back as
orphans.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from random import random
from typing import TYPE_CHECKING

from stoker.model import ids
from stoker.model.errors import StokerError
from stoker.model.events import transition_of, transition_to_pending, transition_to_running
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Claim, Settled, Settlement, Status, Verdict
from stoker.model.lifecycle import RESULT_WARNING, conclude
from stoker.model.outcome import Canceled, HandedBack
from stoker.worker.fetcher import LARGEST, SMALLEST, Asked, Fetcher
from stoker.worker.held_outcomes import HeldOutcomes
from stoker.worker.rejected_outcomes import RejectedOutcomes

if TYPE_CHECKING:
    from stoker.engines.base import Engine
    from stoker.worker.worker import Worker


class OutcomeBuffer:
    """Outcomes that are decided and not written yet. `most`: with so many the slots should stop making more.

    The two lists stay the same objects for ever: the slots hold on to them. `flying` are the claims of each write that
    is under way.
    """

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch or SMALLEST
        self.most = 20 * self.batch
        self._adapts = batch is None
        self.claims: list[Claim] = []
        self.settlements: list[Settlement] = []
        self.flying: list[list[Claim]] = []

    def follow(self, batch: int) -> None:
        """So many are worth a write from now on, unless the size was set."""
        if self._adapts:
            self.batch = batch

    def __len__(self) -> int:
        return len(self.settlements)

    @property
    def full(self) -> bool:
        """Is there a whole batch?"""
        return len(self.settlements) >= self.batch

    @property
    def in_flight(self) -> frozenset[JobId]:
        """The jobs whose settlement is under way."""
        return frozenset([claim.id for claims in self.flying for claim in claims])

    def put(self, claim: Claim, settlement: Settlement) -> None:
        """One more."""
        self.claims.append(claim)
        self.settlements.append(settlement)

    def take(self) -> tuple[list[Claim], list[Settlement]]:
        """Everything, up to what one atomic write may hold."""
        taken = self.claims[:LARGEST_BATCH], self.settlements[:LARGEST_BATCH]
        del self.claims[:LARGEST_BATCH]
        del self.settlements[:LARGEST_BATCH]
        return taken

    def put_back(self, claims: list[Claim], settlements: list[Settlement]) -> None:
        """The store could not be reached: they go first next time."""
        self.claims[:0] = claims
        self.settlements[:0] = settlements


logger = logging.getLogger("stoker.worker")

FLUSH_AFTER = 0.002
"""Seconds a settlement may wait for company."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Between tries while the store is away."""

_APPLIED, _DONE = Verdict.APPLIED, Status.DONE

LAST_WORDS = 10.0
"""Seconds a worker that stops tries to write what is left."""


class StoreLoop:
    """Rings, takes, sends, hands out."""

    def __init__(self, worker: Worker, fetcher: Fetcher, outcomes: OutcomeBuffer) -> None:
        self._worker = worker
        self._app = worker.app
        self._fetcher = fetcher
        self._outcomes = outcomes
        self._pause = SHORTEST_PAUSE
        self._armed = False
        self._closing = False
        self._turns = 0
        self._rung = False
        self._wakeup_lock = asyncio.Lock()
        self.away = False
        self.asking = 0
        self.wakeup = asyncio.Event()
        self.engine: Engine = worker.engine
        self.rejected_outcomes = RejectedOutcomes(self.engine, outcomes, self._settled)
        self.held_outcomes = HeldOutcomes(self.engine, outcomes, self._settled, self.wakeup.set)
        self._parallel_calls = worker.engine.parallel_calls

    def finished(self, claim: Claim, settlement: Settlement, *, last: bool) -> bool:
        """A slot is done with a job. Answers whether a whole batch can go, so that the slot lets the loop turn."""
        outcomes = self._outcomes
        outcomes.claims.append(claim)
        outcomes.settlements.append(settlement)
        full = len(outcomes.settlements) >= outcomes.batch
        if last or full:
            self.wakeup.set()
        elif not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_later(FLUSH_AFTER, self._wake_late)
        return full and self._turns < self._parallel_calls

    def _wake_late(self) -> None:
        self._armed = False
        self.wakeup.set()

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Return what was never started, free of charge."""
        for claim in claims:
            self._outcomes.put(claim, conclude(claim, HandedBack()))
        if claims:
            self.wakeup.set()

    async def pump(self) -> None:
        """Exchange whenever the bell rings, until `finish`."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._parallel_calls):
                group.create_task(self._pump())

    async def _pump(self) -> None:
        while True:
            async with (
                self._wakeup_lock
            ):  # one of them hears it, and makes way for the next while its call is under way
                await self.wakeup.wait()
                if self._closing:
                    return
                self.wakeup.clear()
            if self._turns == 0 or self._worth_another:
                await self._round()
            else:
                self._rung = True

    async def answer(self) -> None:
        """There may be work: ask for it right here, which is sooner than by way of the bell."""
        if self._turns == 0 and not self._closing:
            await self._round()
        else:
            self.wakeup.set()

    async def _round(self) -> None:
        """One call, and the bell again if it rang meanwhile or there is enough for another one."""
        await self.turn()
        if self._rung or self._outcomes.full or (len(self._outcomes) and self._fetcher.busy == 0):
            self._rung = False
            self.wakeup.set()

    @property
    def under_way(self) -> int:
        """How many calls are not back yet."""
        return len(self._outcomes.flying)

    @property
    def _worth_another(self) -> bool:
        """May one more call go out before the last one is back? Only with a whole batch, to a store that answers."""
        return not self.away and (self._outcomes.full or (self._worker.taking and self._fetcher.wants_batch))

    async def turn(self) -> None:
        """One call to the store, if there is anything to say or to ask."""
        claims, settlements = self.held_outcomes.sift(*self._outcomes.take())
        asked = self._fetcher.ask(self._worker.id) if self._worker.taking else None
        if not settlements and asked is None:
            self._worker.notice_drained()
            return
        self._turns += 1
        try:
            settled = await self._call(claims, settlements, asked)
        except Exception as error:
            if not await self.rejected_outcomes.sort_out(claims, settlements, error):
                if not isinstance(error, StokerError):
                    raise
                await self._store_is_away(error)
            return
        finally:
            self._turns -= 1
        if self.away:
            self.away = False
            self._pause = SHORTEST_PAUSE
            self._worker.outage.over("the store answers again")
        if settlements:
            await self._settled(claims, settlements, settled.verdicts)
        if asked is not None:
            self._claimed(asked, settled.claims)
        self._worker.notice_drained()

    async def _call(self, claims: list[Claim], settlements: list[Settlement], asked: Asked | None) -> Settled:
        """The call itself. If it raises, the settlements are kept: whether they were written shows when sent again."""
        flying, demand = self._outcomes.flying, None if asked is None else asked.demand
        flying.append(claims)
        self.asking += asked is not None
        try:
            if settlements:
                await self._worker.maintenance.write_notes(claims)
                return await self.engine.settle(settlements, demand=demand)
            assert demand is not None
            return Settled([], await self.engine.claim(demand))
        except BaseException:
            self._outcomes.put_back(claims, settlements)
            if asked is not None:
                self._fetcher.withdraw(asked)
            raise
        finally:
            flying[:] = [others for others in flying if others is not claims]
            self.asking -= asked is not None

    async def calm(self) -> None:
        """Let calls come back: whoever is canceled in the middle of one never hears what it was given."""
        end = time.monotonic() + LAST_WORDS
        while self._turns and not self.away and time.monotonic() < end:
            await asyncio.sleep(0.005)

    async def finish(self) -> None:
        """Let the pump end its call, then write what is left, for as long as it is worth waiting for the store."""
        self._closing = True
        self.wakeup.set()
        end = time.monotonic() + LAST_WORDS
        pump = self._worker.pump
        await asyncio.wait([pump], timeout=LAST_WORDS)
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        while len(self._outcomes) and time.monotonic() < end:
            await self.turn()
        left = await self.held_outcomes.finish(end) + len(self._outcomes)
        if left:
            logger.error("%d outcomes could not be written before the end; their jobs will run again", left)

    def _claimed(self, asked: Asked, claims: list[Claim]) -> None:
        if claims and claims[0].worker != self._worker.id:
            self._fetcher.withdraw(asked)
            return  # claimed under an id that was taken for dead meanwhile: they are others' by now
        held = self._worker.running_jobs.held
        for claim in claims:
            held[claim.id] = claim.token
        if claims and self._app.timeline is not None:
            self._app.timeline.claimed(claims)
        if claims and self._app.listeners:
            for claim in claims:
                self._app.listeners.emit(transition_to_running(claim))
        if self._worker.state != "running":
            self._fetcher.withdraw(asked)
            self.hand_back(claims)
            return
        self._fetcher.distribute(asked, claims)
        may_have_more = [lane.may_have_more for lane in self._fetcher.lanes]
        if any(may_have_more):
            self.wakeup.set()
        if not all(may_have_more):
            self._worker.due_timer.reset()

    async def _settled(self, claims: list[Claim], settlements: list[Settlement], verdicts: list[Verdict]) -> None:
        held, counts, more = self._worker.running_jobs.held, self._worker.counts, self._worker.draining
        if Verdict.REPEATED in verdicts:
            # Written by a call whose answer was lost: nobody has heard of it yet.
            verdicts = [Verdict.APPLIED if verdict is Verdict.REPEATED else verdict for verdict in verdicts]
        for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
            if verdict is not _APPLIED and self._refused(claim, settlement, verdict):
                continue
            if held.get(claim.id) == claim.token:
                del held[claim.id]
            if verdict is _APPLIED:
                counts[settlement.status] += 1
                if settlement.status is not _DONE or (settlement.metadata and RESULT_WARNING in settlement.metadata):
                    self._worker.failures.settled(claim, settlement)
                if settlement.after:
                    self._worker.due_timer.expect(settlement.after)
                if settlement.followups:
                    more = True
        self._fetcher.measure(claims)
        # A write that goes early is worth it only where another call can be under way at the same time.
        self._outcomes.follow(self._fetcher.batch if self._parallel_calls > 1 else LARGEST)
        self.tell(claims, settlements, verdicts, await self._stored(settlements, verdicts))
        if more:
            self._fetcher.wake()
            self.wakeup.set()
        for lane in self._fetcher.lanes:
            if lane.buffer and lane.idle:  # slots that rested because too much waited for the store
                lane.wake_slot()

    async def _stored(self, settlements: list[Settlement], verdicts: list[Verdict]) -> frozenset[JobId]:
        """Which follow-ups with a key were stored: the others met the holder of theirs."""
        keyed = [
            draft.id
            for settlement, verdict in zip(settlements, verdicts, strict=True)
            if settlement.followups and verdict is _APPLIED
            for draft in settlement.followups
            if draft.unique is not None
        ]
        if not keyed or (self._app.timeline is None and not self._app.listeners):
            return frozenset()
        try:
            found = await self.engine.get(keyed)
        except StokerError as error:
            logger.warning("%d follow-ups are missing from timeline and listeners: %s", len(keyed), error)
            return frozenset()
        return frozenset(job.id for job in found if job is not None)

    def _refused(self, claim: Claim, settlement: Settlement, verdict: Verdict) -> bool:
        """A settlement did not apply. Answers whether the claim stands and ends otherwise."""
        if verdict is Verdict.LOST:
            self._say_lost(claim, settlement)
            return False
        if verdict is Verdict.HELD:
            self.held_outcomes.put(claim, settlement)
            return True
        why = f"canceled by request; the run ended: {settlement.error or settlement.status}"
        self._outcomes.put(claim, conclude(claim, Canceled(why), metadata=settlement.metadata))
        self.wakeup.set()
        return True

    def tell(
        self,
        claims: Sequence[Claim],
        settlements: Sequence[Settlement],
        verdicts: Sequence[Verdict],
        stored: frozenset[JobId] = frozenset(),
    ) -> None:
        """Pass what applied on to the timeline and to listeners; `stored` are the follow-ups with a key that exist."""
        if self._app.timeline is not None and claims:
            self._app.timeline.settled(claims, settlements, verdicts, stored)
        if self._app.listeners:
            for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
                if verdict is Verdict.APPLIED:
                    self._emit(claim, settlement, stored)

    def _emit(self, claim: Claim, settlement: Settlement, stored: frozenset[JobId]) -> None:
        listeners = self._app.listeners
        listeners.emit(transition_of(claim, settlement))
        for draft in settlement.followups:
            if draft.unique is None or draft.id in stored:
                listeners.emit(transition_to_pending(draft))

    def _say_lost(self, claim: Claim, settlement: Settlement) -> None:
        self._worker.lost += 1
        if (claim.id, claim.token) in self._worker.running_jobs.unstarted:
            return  # it never ran here: there is no outcome that could be refused
        logger.warning(
            "lease lost: the store refused the outcome (%s) of job %s (%s), because the claim has passed to another "
            "worker or was taken away; the job goes on there",
            settlement.status,
            ids.text(claim.id),
            claim.kind,
        )

    async def _store_is_away(self, error: StokerError) -> None:
        """Keep what is to be written, try again later and later, and say so once per outage."""
        if not self.away:
            self.away = True
            text = "the store does not answer: %s: %s Running jobs go on; Stoker keeps trying."
            self._worker.outage.report(text, self.engine.where, error)
        pause = self._pause * (0.5 + random())  # so that workers do not return all at once
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        await asyncio.sleep(pause)
        self._fetcher.wake()
        self.wakeup.set()

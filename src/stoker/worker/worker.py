"""The worker: slots that run jobs, one exchange with the store at a time, and the loops around it.

An exchange settles what the slots have finished and claims what they can take next, in one call to the engine. While it
is under way the slots go on with what is buffered, and what they finish becomes the next exchange.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import copy_context
from random import random
from typing import TYPE_CHECKING, Any, Self

import msgspec

from stoker.context import Context, running
from stoker.engines.base import Engine, Gives
from stoker.model import ids
from stoker.model.control import Presence
from stoker.model.errors import InvalidPayload, StokerError
from stoker.model.events import Transition, transition_of
from stoker.model.ids import JobId
from stoker.model.job import Claim, Note, Renewal, Settlement, Status, Verdict
from stoker.model.lifecycle import Rules, conclude, expired
from stoker.model.outcome import Canceled, Expired, HandedBack, Outcome, TimedOut
from stoker.model.query import Retention
from stoker.model.time import MINUTE, SECOND
from stoker.settings import RetentionSettings, WorkerSettings, resolve
from stoker.worker import janitor
from stoker.worker.executors import Executors
from stoker.worker.fetcher import Fetcher, Order
from stoker.worker.isolated import Isolated
from stoker.worker.keeper import Keeper
from stoker.worker.lane import Lane
from stoker.worker.reaper import reap
from stoker.worker.runner import Cause, Plan, done, interrupted, judge, unfit
from stoker.worker.settler import Settler
from stoker.worker.slot import AGAIN_AFTER, Slot

if TYPE_CHECKING:
    from stoker.app import Stoker

logger = logging.getLogger("stoker.worker")

QUANTUM = 0.002
"""Seconds a slot may run jobs that never suspend before it lets the loop breathe."""

FLUSH_AFTER = 0.002
"""Seconds a settlement may wait for company."""

STORE_PAUSE = (0.05, 5.0)
"""Shortest and longest pause between tries while the store is away."""


class Worker:
    """Runs an app's jobs: `async with jobs, Worker(jobs): …`, or `Worker(jobs).run()` in a script."""

    def __init__(
        self,
        app: Stoker,
        queues: Mapping[str, int] | Sequence[str] | None = None,
        *,
        order: Order = "own",
        drain: bool = False,
        **settings: Any,
    ) -> None:
        self.app = app
        self.settings = resolve(WorkerSettings, settings, environ=app.environ)
        self.retention = resolve(RetentionSettings, environ=app.environ)
        self.id = self.next_id()
        self.state = "new"
        self.draining = drain
        self.held: dict[JobId, int] = {}
        self.runs: dict[JobId, Slot] = {}
        self.states: dict[Any, Any] = {}
        self.counts = dict.fromkeys(Status, 0)
        self.lost = 0
        self.healthy = False
        self.on_identity: Callable[[str], object] = lambda worker: None
        self._fetcher = Fetcher(self._queues(queues), order, self.settings.claim_batch)
        self.lanes = self._fetcher.lanes
        self._settler = Settler(self.settings.settle_batch)
        self._executors = Executors()
        self._plans: dict[str, Plan] = {}
        self._strangers = Rules(default=app.backoff, unfit_grace=self.settings.unknown_task_grace)
        self._notes: dict[JobId, Note] = {}
        self._quiet = False
        self._store_pause = STORE_PAUSE[0]

    def _queues(self, given: Mapping[str, int] | Sequence[str] | None) -> Mapping[str, int]:
        if given is None:
            given = self.settings.queues
        if given is None:
            served = [self.app.resolve(task.name, task.options)[0] for task in self.app.tasks.values()]
            given = sorted(set(served)) or ["default"]
        if isinstance(given, Mapping):
            return given
        return dict.fromkeys(given, self.settings.slots)

    @staticmethod
    def next_id() -> str:
        """Random and fresh: a worker id is never used again, not even by the same process after a lapse."""
        return uuid.uuid4().hex

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, take a lease, open lifespans, start the slots."""
        if self.state not in ("new", "stopped"):
            raise StokerError(f"this worker is {self.state} already; make another one")
        self.state = "running"
        self._loop = asyncio.get_running_loop()
        self._engine: Engine = await self.app.engine()
        self._bell = asyncio.Event()
        self._armed = False
        self._stopped = asyncio.Event()
        self._idle_since_drained = False
        self._lifespans = AsyncExitStack()
        for lifespan in self.app.lifespans:
            self.states[lifespan] = await self._lifespans.enter_async_context(lifespan.open())
        self._keeper = Keeper(self, self.app.twin(), self.settings.lease)
        await self._keeper.start()
        self.on_identity(self.id)
        self.healthy = True
        for lane in self.lanes:
            for _ in range(lane.slots):
                self._spawn_slot(lane)
        self._chores = [
            asyncio.create_task(chore, name=f"stoker-{name}")
            for name, chore in (
                ("pump", self._pump()),
                ("listen", self._listen()),
                ("reap", self._reap_for_ever()),
                ("tend", self._tend()),
            )
        ]
        for chore in self._chores:
            chore.add_done_callback(self._chore_ended)
        self._bell.set()

    async def stop(self, grace: float | None = None) -> None:
        """Claim no more, let running jobs finish within `grace`, hand the rest back, say good-bye."""
        if self.state in ("new", "stopped"):
            return
        if self.state == "stopping":
            await self._stopped.wait()
            return
        self.state = "stopping"
        limit = self.settings.shutdown_grace / SECOND if grace is None else grace
        self._hand_back(self._fetcher.empty())
        await self._wait_idle(limit)
        for slot in list(self.runs.values()):
            slot.interrupt(Cause.SHUTDOWN, "the worker is shutting down")
        await self._wait_idle(5.0 if self.runs else 0.0)
        for slot in list(self.runs.values()):
            self._abandon(slot)
        await self._farewell()
        self.state = "stopped"
        self._stopped.set()

    def hurry(self) -> None:
        """A second request to stop: do not wait for running jobs any longer."""
        for slot in list(self.runs.values()):
            slot.interrupt(Cause.SHUTDOWN, "the worker is shutting down in a hurry")

    def quiet(self) -> None:
        """Claim nothing more but stay: what runs may finish."""
        self._quiet = True

    async def _wait_idle(self, limit: float) -> None:
        end = time.monotonic() + limit
        while self._fetcher.busy and time.monotonic() < end:
            await asyncio.sleep(0.005)

    async def _farewell(self) -> None:
        for _ in range(3):
            if not len(self._settler) and not self._settler.in_flight:
                break
            self._bell.set()
            await asyncio.sleep(0)
            await self._exchange_pending()
        for lane in self.lanes:
            lane.wake_all()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        if len(self._settler):
            await self._exchange_pending()
        await self._write_notes()
        await self._keeper.stop()
        try:
            await self._engine.renew(self.id, [], lease=0)
            if self.app.timeline is not None:
                await self.app.timeline.flush(self._engine)
        except StokerError as error:
            logger.warning("could not say good-bye to the store: %s; the reaper remains the safety net", error)
        await self._executors.close()
        await self._lifespans.aclose()

    async def _exchange_pending(self) -> None:
        """The last writes; the pump may be in the middle of one."""
        end = time.monotonic() + 10.0
        while self._settler.in_flight and time.monotonic() < end:
            await asyncio.sleep(0.005)
        if len(self._settler):
            await self._exchange()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def join(self) -> None:
        """Wait until the worker has stopped; with `drain` it stops by itself when nothing is due any more."""
        await self._stopped.wait()

    async def serve(self) -> None:
        """Run until stopped (or drained), opening and closing the app around it."""
        async with self.app:
            await self.start()
            try:
                await self.join()
            finally:
                await self.stop()

    def run(self) -> None:
        """Run in a script, blocking, until interrupted; Ctrl-C drains."""
        from stoker.worker.supervisor import run_worker

        run_worker(self)

    def _chore_ended(self, chore: asyncio.Task[None]) -> None:
        if not chore.cancelled() and chore.exception() is not None:
            logger.critical("worker chore %s died; the worker stops", chore.get_name(), exc_info=chore.exception())
            self.healthy = False
            self._ask_stop()

    def _ask_stop(self) -> None:
        if self.state == "running":
            self._stopper = asyncio.create_task(self.stop())

    # --- slots --------------------------------------------------------------------------------------------------

    def _spawn_slot(self, lane: Lane) -> None:
        asyncio.create_task(self._serve(lane), name=f"stoker-slot-{','.join(lane.queues)}")

    async def _serve(self, lane: Lane) -> None:
        me = asyncio.current_task()
        assert me is not None
        slot = Slot(me)
        buffer, settler, clock = lane.buffer, self._settler, time.monotonic
        breath = clock()
        while True:
            while not buffer or settler.swamped:
                if self.state != "running":
                    return
                if settler.settlements:
                    self._bell.set()
                sleeper = self._loop.create_future()
                lane.idle.append(sleeper)
                await sleeper
                breath = clock()
            claim = buffer.popleft()
            lane.busy += 1
            settlement = await self._run(slot, claim)
            if slot.abandoned:
                return
            lane.busy -= 1
            settler.put(claim, settlement)
            if not buffer or settler.full:
                self._bell.set()
                if settler.full:
                    await asyncio.sleep(0)
                    breath = clock()
            elif not self._armed:
                self._armed = True
                self._loop.call_later(FLUSH_AFTER, self._flush_soon)
            if clock() - breath > QUANTUM:
                await asyncio.sleep(0)
                breath = clock()

    def _flush_soon(self) -> None:
        self._armed = False
        self._bell.set()

    async def _run(self, slot: Slot, claim: Claim) -> Settlement:
        """One job, from claim to settlement."""
        plan = self._plans.get(claim.kind) or self._plan_for(claim.kind)
        if plan is None:
            return self._unfit(claim, None)
        if claim.options.expires is not None and expired(claim):
            return conclude(claim, Expired(), plan.rules)
        try:
            call = plan.task.signature.decode(claim.payload)
        except InvalidPayload as error:
            return self._unfit(claim, error)
        context = Context(claim, self, call)
        slot.context, slot.cause, slot.on_loop = context, None, plan.on_loop
        self.runs[claim.id] = slot
        slot.limit = limit = plan.limit(claim)
        timer = None if limit is None else self._loop.call_later(limit, self._time_is_up, slot, context)
        variables = copy_context()
        variables.run(running.set, context)
        rules = plan.rules
        outcome: Outcome
        try:
            value = await Isolated(variables.run(plan.call, context), variables)
            outcome = done(plan.task, value, context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler does, the worker lives
            outcome = judge(error, plan.task, slot.cause, claim, limit)
            rules = msgspec.structs.replace(rules, roll=random())  # noqa: S311 - spreads retries
            if isinstance(error, KeyboardInterrupt):
                self._ask_stop()
        finally:
            if timer is not None:
                timer.cancel()
            self.runs.pop(claim.id, None)
            slot.context = None
            if slot.cause is not None or slot.task.cancelling():
                slot.settle_down()
                slot.tries = 0
        return conclude(claim, outcome, rules, context.executed())

    def _plan_for(self, kind: str) -> Plan | None:
        task = self.app.find_task(kind)
        if task is None:
            return None
        plan = self._plans[kind] = Plan(self.app, task, self._executors, self.settings.unknown_task_grace)
        return plan

    def _unfit(self, claim: Claim, error: InvalidPayload | None) -> Settlement:
        settlement = conclude(claim, unfit(claim, error), self._strangers)
        logger.error(
            "job %s cannot run here: %s. It is %s.",
            ids.text(claim.id),
            unfit(claim, error).why,
            "dead" if settlement.status is Status.DEAD else f"put back for {settlement.after / SECOND:g} s",
        )
        return settlement

    # --- interrupting -------------------------------------------------------------------------------------------

    def _time_is_up(self, slot: Slot, context: Context) -> None:
        if slot.context is context:
            self._interrupt(slot, Cause.TIMEOUT, f"ran longer than {slot.limit:g} s")

    def _interrupt(self, slot: Slot, cause: Cause, reason: str) -> None:
        """Interrupt until the handler gives in; one that never does is abandoned with its slot."""
        context = slot.context
        if context is None:
            return
        slot.interrupt(cause, reason)
        if slot.stuck:
            self._abandon(slot)
        elif slot.on_loop or cause is Cause.TIMEOUT:
            self._loop.call_later(AGAIN_AFTER, self._insist, slot, context, cause, reason)

    def _insist(self, slot: Slot, context: Context, cause: Cause, reason: str) -> None:
        if slot.context is context and not slot.abandoned:
            self._interrupt(slot, cause, reason)

    def _abandon(self, slot: Slot) -> None:
        """Settle without the handler: it ignores everything, but its job must not wait for it."""
        context = slot.context
        if context is None or slot.abandoned:
            return
        slot.abandoned = True
        claim = context.claim
        self.runs.pop(claim.id, None)
        lane = next(lane for lane in self.lanes if claim.queue in lane.queues)
        outcome = interrupted(slot.cause or Cause.SHUTDOWN, slot.limit)
        plan = self._plans.get(claim.kind)
        self._settler.put(claim, conclude(claim, outcome, plan.rules if plan is not None else self._strangers))
        lane.busy -= 1
        self._bell.set()
        logger.error(
            "the handler of job %s (%s) ignores that it was interrupted (%s); it is abandoned and goes on in the "
            "background, the job is settled without it, a new slot takes its place",
            ids.text(claim.id),
            claim.kind,
            (slot.cause or Cause.SHUTDOWN).value,
        )
        if self.state == "running":
            self._spawn_slot(lane)

    # --- exchange with the store --------------------------------------------------------------------------------

    async def _pump(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            await self._exchange()
            if self._settler.full or (self._settler.settlements and self._fetcher.busy == 0):
                self._bell.set()

    async def _exchange(self) -> None:
        claims, settlements = self._settler.take()
        taking = self.state == "running" and not self._quiet and self.healthy
        demand = self._fetcher.demand(self.id) if taking else None
        if not settlements and demand is None:
            self._notice_drained()
            return
        self._settler.in_flight = frozenset(claim.id for claim in claims)
        try:
            if settlements:
                settled = await self._engine.settle(settlements, demand=demand)
                fresh, verdicts = settled.claims, settled.verdicts
            else:
                assert demand is not None
                fresh, verdicts = await self._engine.claim(demand), []
        except StokerError as error:
            self._settler.put_back(claims, settlements)
            await self._store_is_away(error)
            return
        finally:
            self._settler.in_flight = frozenset()
        self._store_pause = STORE_PAUSE[0]
        if settlements:
            self._settled(claims, settlements, verdicts)
        if demand is not None:
            self._claimed(fresh)
        self._notice_drained()

    def _claimed(self, claims: list[Claim]) -> None:
        held = self.held
        for claim in claims:
            held[claim.id] = claim.token
        if claims and self.app.timeline is not None:
            self.app.timeline.claimed(claims)
        if claims and self.app.listeners:
            for claim in claims:
                before = Status.PENDING if claim.last_error is None else Status.RETRYING
                self.app.listeners.emit(
                    Transition(claim.id, claim.kind, claim.queue, before, Status.RUNNING, claim.attempt)
                )
        if self.state == "running":
            self._fetcher.distribute(claims)
            if any(lane.hungry for lane in self.lanes):
                self._bell.set()
        else:
            self._hand_back(claims)

    def _settled(self, claims: list[Claim], settlements: list[Settlement], verdicts: list[Verdict]) -> None:
        now = time.monotonic()
        held, counts = self.held, self.counts
        for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
            if verdict is Verdict.CANCELING:
                why = f"canceled by request; the run ended: {settlement.error or settlement.status}"
                self._settler.put(claim, conclude(claim, Canceled(why)))
                self._bell.set()
                continue
            if held.get(claim.id) == claim.token:
                del held[claim.id]
            if verdict is Verdict.LOST:
                self._say_lost(claim, settlement)
            else:
                counts[settlement.status] += 1
        for lane in self.lanes:
            mine = len(claims) if len(self.lanes) == 1 else sum(claim.queue in lane.queues for claim in claims)
            lane.measure(mine, now)
        if self.app.timeline is not None:
            self.app.timeline.settled(claims, settlements, verdicts)
        if self.app.listeners:
            for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
                if verdict is Verdict.APPLIED:
                    self.app.listeners.emit(transition_of(claim, settlement))

    def _say_lost(self, claim: Claim, settlement: Settlement) -> None:
        self.lost += 1
        logger.warning(
            "lease lost: the store refused the outcome (%s) of job %s (%s), because the claim has passed to another "
            "worker or was taken away; the job goes on there",
            settlement.status,
            ids.text(claim.id),
            claim.kind,
        )

    async def _store_is_away(self, error: StokerError) -> None:
        """Keep what is to be written, try again later and later, and say so once per outage."""
        if self._store_pause == STORE_PAUSE[0]:
            logger.error("the store does not answer: %s. Running jobs go on; Stoker keeps trying.", error)
        pause = self._store_pause * (0.5 + random())  # noqa: S311 - so that workers do not return all at once
        self._store_pause = min(self._store_pause * 2, STORE_PAUSE[1])
        await asyncio.sleep(pause)
        self._fetcher.wake()
        self._bell.set()

    def _hand_back(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._settler.put(claim, conclude(claim, HandedBack()))
        if claims:
            self._bell.set()

    def _notice_drained(self) -> None:
        """In drain mode: stop when a look at the store found nothing and nothing is running."""
        if not self.draining or self.state != "running":
            return
        resting = not self._fetcher.busy and not len(self._settler) and not self._settler.in_flight
        if resting and all(not lane.hungry and not lane.buffer for lane in self.lanes):
            self._ask_stop()

    # --- chores -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Sleep until a queue is woken, or poll: a lost wake-up costs no more than the poll interval."""
        queues = [queue for lane in self.lanes for queue in lane.queues]
        poll = self.settings.poll / SECOND
        while True:
            try:
                woken = await self._engine.wait(queues, poll)
            except StokerError:
                await asyncio.sleep(poll)
                woken = frozenset()
            self._fetcher.wake(woken or None)
            self._bell.set()

    async def _reap_for_ever(self) -> None:
        at_once = Gives.SIGN_OF_LIFE in self._engine.gives
        pause = min(0.5, self.settings.lease / 3 / SECOND) if at_once else self.settings.lease / 3 / SECOND
        while True:
            await asyncio.sleep(pause * (0.9 + 0.2 * random()))  # noqa: S311 - so that workers do not reap in step
            try:
                while await self._reap_once():
                    await asyncio.sleep(0)
            except StokerError as error:
                logger.warning("could not look for dead workers: %s; trying again", error)

    async def _reap_once(self) -> bool:
        limit = self.settings.reap_batch
        claims, settlements, verdicts = await reap(self._engine, self.id, self._rules_of, limit=limit)
        if claims and self.app.timeline is not None:
            self.app.timeline.settled(claims, settlements, verdicts)
        if claims and self.app.listeners:
            for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
                if verdict is Verdict.APPLIED:
                    self.app.listeners.emit(transition_of(claim, settlement))
        return len(claims) == limit

    def _rules_of(self, kind: str) -> Rules:
        plan = self._plans.get(kind) or self._plan_for(kind)
        return self._strangers if plan is None else plan.rules

    async def _tend(self) -> None:
        """Once a second: notes, stale buffers, long runs; less often: presence, events, retention."""
        tick = 0
        warned: set[JobId] = set()
        while True:
            try:
                await self._write_notes()
                self._hand_back(self._fetcher.stale())
                self._name_long_runs(warned)
                if tick % 5 == 0:
                    await self._engine.beat(self.presence())
                if tick % 2 == 0 and self.app.timeline is not None:
                    await self._flush_events()
                if tick % (self.retention.clean_every // SECOND) == 30:
                    await janitor.tidy(self._engine, self._retention())
            except StokerError as error:
                logger.warning("a chore failed: %s; trying again", error)
            tick += 1
            await asyncio.sleep(1.0)

    def presence(self) -> Presence:
        """How this worker shows itself to operators."""
        return janitor.presence(self)

    def _retention(self) -> Retention:
        return Retention(events=self.retention.keep_events, points=self.retention.keep_points, presences=MINUTE)

    async def _flush_events(self) -> None:
        assert self.app.timeline is not None
        await self.app.timeline.flush(self._engine)
        if dropped := self.app.timeline.take_dropped():
            logger.info("%d events did not fit into the buffer and are missing from the timeline", dropped)

    def _name_long_runs(self, warned: set[JobId]) -> None:
        limit = self.settings.long_running / SECOND
        for job, slot in list(self.runs.items()):
            context = slot.context
            if context is not None and job not in warned and context.elapsed > limit:
                warned.add(job)
                logger.warning(
                    "job %s (%s) has been running for more than %g s; it has no timeout, or a longer one",
                    context.id,
                    context.kind,
                    limit,
                )
        warned.intersection_update(self.runs)

    # --- notes --------------------------------------------------------------------------------------------------

    def note(self, claim: Claim, progress: float | None, lines: tuple[str, ...]) -> None:
        """Remember what a handler said; the newest progress wins, lines add up. Any thread."""
        known = self._notes.get(claim.id)
        if known is not None and known.token == claim.token:
            progress = known.progress if progress is None else progress
            lines = known.lines + lines
        self._notes[claim.id] = Note(claim.id, claim.worker, claim.token, progress, None, lines, claim.ref)

    async def _write_notes(self) -> None:
        if self._notes:
            notes, self._notes = self._notes, {}
            await self._engine.note(list(notes.values()))

    # --- what the keeper hears ----------------------------------------------------------------------------------

    def renewed(self, renewal: Renewal, held: dict[JobId, int]) -> None:
        """The lease is good; some claims may not be."""
        if not self.healthy:
            self.healthy = True
            logger.info("the store answers again; claiming goes on")
            self._fetcher.wake()
            self._bell.set()
        for job, token in renewal.lost:
            if job not in self._settler.in_flight and self.held.get(job) == token:
                self._drop(job, Cause.LOST, "its claim was lost")
        for job, token in renewal.canceling:
            if self.held.get(job) == token:
                self._drop(job, Cause.CANCEL, "a cancel was requested")
        orphans = [claim for claim in renewal.orphaned if self.held.get(claim.id) != claim.token]
        self._hand_back(orphans)

    def _drop(self, job: JobId, cause: Cause, reason: str) -> None:
        """Stop a run, or take the claim out of the buffer if it has not begun."""
        slot = self.runs.get(job)
        if slot is not None:
            if slot.cause is not cause:
                self._interrupt(slot, cause, reason)
            return
        for lane in self.lanes:
            for claim in lane.buffer:
                if claim.id == job:
                    lane.buffer.remove(claim)
                    if cause is Cause.CANCEL:
                        self._settler.put(claim, conclude(claim, Canceled("canceled before it started")))
                        self._bell.set()
                    else:
                        self.held.pop(job, None)
                    return

    def renewal_failed(self, error: StokerError) -> None:
        """The lease could not be renewed: take nothing new, let handlers run, show it."""
        if self.healthy:
            logger.error("the lease cannot be renewed: %s. Nothing is claimed until it can.", error)
        self.healthy = False

    def expelled(self, former: str, fresh: str) -> None:
        """Others took this worker for dead: its claims are theirs now. Stop the handlers, go on under a new id."""
        logger.error(
            "lease lost: worker %s was taken for dead and its jobs were passed on; %d handlers are stopped, "
            "the worker goes on as %s",
            former,
            len(self.runs),
            fresh,
        )
        self.id = fresh
        self.on_identity(fresh)
        for lane in self.lanes:
            lane.buffer.clear()
        self.held.clear()
        for slot in list(self.runs.values()):
            self._interrupt(slot, Cause.LOST, "the worker's lease was lost")
        self.healthy = True
        self._fetcher.wake()
        self._bell.set()

    def keeper_failed(self, error: BaseException) -> None:
        """The keeper's thread died: without it nothing may be claimed."""
        logger.critical("the keeper died: %r; the worker stops", error, exc_info=error)
        self.healthy = False
        self._ask_stop()

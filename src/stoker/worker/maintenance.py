"""What a worker does beside running jobs: listen, reap, write notes and events, warn, run services."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from random import random
from typing import TYPE_CHECKING

import msgspec

from stoker.engines.base import Engine, Feature
from stoker.model import ids
from stoker.model.errors import AWAY, PASSING, StokerError, sentence
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import Claim, Settlement, Status, Verdict
from stoker.model.lifecycle import Rules, conclude
from stoker.model.outcome import Crashed, Lost, Outcome
from stoker.model.query import WAITING
from stoker.model.time import SECOND
from stoker.services import Service, ServiceContext
from stoker.worker.introduction import Introduction
from stoker.worker.running import jobs_of
from stoker.worker.startup_warnings import StartupWarnings

if TYPE_CHECKING:
    from stoker.worker.state import WorkerContext
    from stoker.worker.store_loop import StoreLoop

RulesOf = Callable[[str], Rules]


@dataclass
class Death:
    """A death of a process that was seen: how, the ids it claimed under, and the jobs it met, as far as known."""

    how: str
    workers: list[str]
    jobs: set[JobId] = field(default_factory=set)


async def reap(
    engine: Engine,
    by: str,
    rules_of: RulesOf,
    *,
    limit: int,
    death: Death | None = None,
) -> tuple[list[Claim], list[Settlement], list[Verdict]]:
    """Take over and settle jobs of lapsed workers, once. `death`: of a process, that was seen."""
    claims = await engine.jobs.reap(by, limit, dead=() if death is None else death.workers)
    if not claims:
        return [], [], []
    if death is not None:
        death.jobs.update(claim.id for claim in claims if claim.former in death.workers)
    settlements = [_settlement(claim, rules_of(claim.kind), death) for claim in claims]
    return claims, settlements, (await engine.jobs.settle(settlements)).verdicts


def _settlement(claim: Claim, rules: Rules, death: Death | None) -> Settlement:
    outcome: Outcome = Lost()
    if death is not None and claim.former in death.workers:
        outcome = Crashed(f"{death.how} (worker {claim.former})", shared=len(death.jobs) > 1)
    return conclude(claim, outcome, msgspec.structs.replace(rules, roll=random()))


logger = logging.getLogger("stoker.worker")

TEND_EVERY = 1.0
"""Seconds between two rounds of maintenance."""

LOOK_FOR_UNSERVED, FIRST_LOOK = 120, 10
"""Rounds between two checks for queues without workers; the first check gives other workers time to start."""

TELL_COUNTS = 60
"""Rounds between two lines that count what ended."""

REAP_EVERY, PROMPT_REAP = 1.0, 0.5
"""Seconds between two reaps, and between two on engines that detect dead processes; no more than a third of a lease."""


SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a service that failed starts again: twice as long after each failure, unless it ran well between."""


async def keep_running(service: Service, context: ServiceContext) -> None:
    """Run a service until it returns or is canceled; start it again after an error, unless the worker stops."""
    pause = SHORTEST_PAUSE
    while True:
        began = time.monotonic()
        try:
            await service.run(context)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error: BaseException = StokerError("it canceled itself")
        except Exception as raised:  # noqa: BLE001 - one service must not stop the worker nor the other services
            error = raised
        else:
            return None
        if time.monotonic() - began > LONGEST_PAUSE:
            pause = SHORTEST_PAUSE
        delay = pause * (0.5 + random())  # so that workers do not start it in step
        level = logging.DEBUG if isinstance(error, AWAY) else logging.WARNING
        trace = None if isinstance(error, StokerError) else error
        logger.log(
            level,
            "service %s failed: %s It starts again in %.1f s.",
            service.name,
            sentence(error),
            delay,
            exc_info=trace,
        )
        # A worker that drains waits for a service that the store kept from its work, one that stops for none.
        with context.under_way.one() if isinstance(error, PASSING) else nullcontext(), suppress(TimeoutError):
            async with asyncio.timeout(delay):
                return await context.stopping
        pause = min(pause * 2, LONGEST_PAUSE)


class Interval:
    """Says when a periodic action is due; its caller checks every `nap` seconds."""

    def __init__(self, every: float, nap: float, *, first: float = 1.0) -> None:
        self._every = every
        self._slack = nap / 2
        self._due = time.monotonic() + every * first

    def is_due(self) -> bool:
        """Is the action due now? If so, the next interval begins."""
        now = time.monotonic()
        if now < self._due - self._slack:
            return False
        self._due = now + self._every
        return True


class Maintenance:
    """The loops of a worker around its store loop."""

    def __init__(self, context: WorkerContext, store_loop: StoreLoop) -> None:
        self._context = context
        self._engine = context.engine
        self._settings = context.settings
        self._state = context.state
        self._fetcher = context.fetcher
        self._running_jobs = context.running_jobs
        self._due_timer = context.due_timer
        self._progress = context.progress
        self._publisher = context.publisher
        self._failures = context.failures
        self._rules_of = context.task_runners.rules_of
        self._store_loop = store_loop
        self._gates: Mapping[str, object] = {}
        self._introduction = Introduction()
        self._tend_now = asyncio.Event()
        self._warned: set[JobId] = set()
        self._told = dict(self._state.counts)
        self._entangled: set[tuple[str, str]] = set()
        self.warnings = StartupWarnings(context)

    async def listen(self) -> None:
        """Ask for jobs after a wake-up and at every poll: a lost wake-up delays a job by one poll at most.

        A poll reaches every open queue, whatever is woken at the same time. It skips queues that are paused or cooling
        down: a wake-up, a changed setting or the due timer opens them. The same loop reaps and starts the rounds of
        maintenance, so that an idle worker wakes as seldom as possible.
        """
        queues = [queue for lane in self._fetcher.lanes for queue in lane.queues]
        poll = self._settings.poll / SECOND
        detects_death = Feature.SIGN_OF_LIFE in self._engine.features
        pause = min(PROMPT_REAP if detects_death else REAP_EVERY, self._settings.renew_every / SECOND)
        nap = min(poll, pause, TEND_EVERY)
        look, tend = Interval(poll, nap), Interval(TEND_EVERY, nap)
        reap = Interval(pause * (0.9 + 0.1 * random()), nap, first=random())  # so that workers do not reap in step
        while True:
            try:
                woken = await self._engine.jobs.wait(queues, nap)
            except StokerError:
                await asyncio.sleep(nap)
                woken = frozenset()
            polls, known = look.is_due() and not self._due_timer.sleeps, self._due_timer.open
            if polls or woken:
                self._fetcher.wake(woken if not polls else None if known is None else known | woken)
                await self._store_loop.answer()
                await asyncio.sleep(0)  # a slot with a new claim goes first
                self._due_timer.reset()
            if tend.is_due():
                self._tend_now.set()
            if reap.is_due():
                await self._reap()

    async def _reap(self) -> None:
        """Reap until no lapsed job is left."""
        try:
            while await self._reap_once():
                await asyncio.sleep(0)
        except StokerError as error:
            self._failed("could not reap the jobs of dead workers: %s Trying again.", error)

    async def _reap_once(self) -> bool:
        limit = self._settings.reap_batch
        claims, settlements, verdicts = await reap(self._engine, self._state.id, self._rules_of, limit=limit)
        self._publisher.settled(claims, settlements, verdicts)
        self._failures.applied(claims, settlements, verdicts)
        return len(claims) == limit

    async def tend(self) -> None:
        """Every second: notes, stale claims, long runs; less often: presence, queue settings, events."""
        tick = 0
        while True:
            try:
                self._progress.gather([slot.context for slot in self._running_jobs.slots() if slot.context is not None])
                await self._progress.write()
                self._store_loop.hand_back(self._fetcher.stale())
                self._name_long_runs()
                await self._name_deadlocks()
                self._failures.flush()
                await self._store_loop.resender.send_rejected()
                if tick % 5 == 0:
                    await self.show_and_tune()
                if tick % 2 == 0:
                    await self._publisher.flush()
                if tick % LOOK_FOR_UNSERVED == FIRST_LOOK:
                    await self.warnings.look()
                if tick % TELL_COUNTS == TELL_COUNTS - 1:
                    self._tell_counts()
            except StokerError as error:
                self._failed("maintenance failed: %s Trying again.", error)
            tick += 1
            await self._tend_now.wait()
            self._tend_now.clear()

    def _tell_counts(self) -> None:
        """Log what became of the jobs of the last minute; nothing where nothing ended."""
        now, before = dict(self._state.counts), self._told
        self._told = now
        grown = {status: n - before[status] for status, n in now.items()}
        self._state.hour.append((grown[Status.DONE], grown[Status.RETRYING] + grown[Status.DEAD]))
        ended = [f"{n - before[status]:,} {status.value}" for status, n in now.items() if n > before[status]]
        if ended:
            running = count(len(self._running_jobs.runs), "job")
            logger.info("runs that ended in the last minute: %s; %s running now", ", ".join(ended), running)

    async def show_and_tune(self) -> None:
        """Show presence, and read the settings of the queues: limits and retention."""
        presence = self._context.presence()
        await self._engine.control.beat(presence)
        await self._introduction.show(self._engine, presence)
        served = {queue for lane in self._fetcher.lanes for queue in lane.queues}
        every = await self._engine.control.queues()
        self.warnings.learn(every)
        queues = [queue for queue in every if queue.name in served]
        keep, keeps = self._context.app.defaults.keep, self._context.task_runners.keeps
        if keep is not None:
            own = {queue.name for queue in queues if queue.keep_done != self._engine.keep_done}
            keeps.clear()
            keeps.update(dict.fromkeys(served - own, keep))
        gates = {queue.name: (queue.pause, queue.cooldown, queue.bucket and queue.bucket.rate) for queue in queues}
        if gates != self._gates:  # a wake-up for it may have been lost
            self._gates = gates
            self._due_timer.reset()
        limited = any(queue.workers is not None for queue in queues)
        limits = self._fetcher.limits
        if limits.learn(self._state.id, queues, await self._engine.control.workers() if limited else ()):
            self._store_loop.hand_back(limits.surplus(self._fetcher.lanes))
            self._fetcher.wake()
            self._store_loop.wakeup.set()

    def _failed(self, text: str, error: StokerError) -> None:
        """Log a failure; an absent store only at debug level, because the store loop logs it once."""
        logger.log(logging.DEBUG if isinstance(error, AWAY) else logging.WARNING, text, sentence(error))

    def _name_long_runs(self) -> None:
        limit = self._settings.long_running / SECOND
        for slot in self._running_jobs.slots():
            context = slot.context
            if context is not None and context.claim.id not in self._warned and context.elapsed > limit:
                self._warned.add(context.claim.id)
                logger.warning(
                    "%s (%s) has been running for more than %g s; it has no timeout, or a longer one",
                    jobs_of(context),
                    context.kind,
                    limit,
                )
        self._warned.intersection_update(self._running_jobs.runs)

    async def _name_deadlocks(self) -> None:
        """Warn of a run that waits for a job which needs the very slots that are all taken, once per pair of kinds."""
        for lane in self._fetcher.lanes:
            if lane.busy < lane.slots:
                continue
            runs = [slot.context for slot in self._running_jobs.slots()]
            waiting = {
                job: run for run in runs if run is not None and run.queue in lane.queues for job in list(run.awaited)
            }
            for job in await self._engine.operator.get(list(waiting)) if waiting else ():
                if job is None or job.queue not in lane.queues or job.status not in WAITING:
                    continue
                run = waiting[job.id]
                if (run.kind, job.kind) in self._entangled:
                    continue
                self._entangled.add((run.kind, job.kind))
                logger.warning(
                    "deadlock: every slot of queue %s is taken (%d), and in one %s (%s) waits for job %s (%s) "
                    "of the same queue, which needs such a slot. Unless another worker serves the queue, neither goes "
                    "on. Let the handler return and continue in a follow-up (current().follow_up), or give %s a queue "
                    "of its own.",
                    job.queue,
                    lane.slots,
                    jobs_of(run),
                    run.kind,
                    ids.text(job.id),
                    job.kind,
                    job.kind,
                )

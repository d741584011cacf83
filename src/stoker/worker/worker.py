"""The worker: an app's tasks, a store, and slots that run jobs.

`Fetcher` decides what to claim, `ChunkRunner` runs jobs, `StoreLoop` settles and claims, `RunningJobs` interrupts runs,
`LeaseKeeper` renews the lease in a thread of its own, `LeaseReports` acts on it, `DueTimer` knows when the next job is
due, `Maintenance` does the rest. This module creates, starts and stops them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from stoker.context import Context, name_jobs_in_logs
from stoker.engines import notices
from stoker.engines.base import Feature, outbox_of
from stoker.engines.sql.user_handles.handles import running_loop
from stoker.executors import Executors
from stoker.executors.outcomes import Cause
from stoker.joining import outside
from stoker.model.emitted import Ring
from stoker.model.errors import InvalidInput, StokerError, sentence
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import DEFAULT_QUEUE, Claim, Note, Settlement, Status, Verdict, check_name
from stoker.model.lifecycle import Rules
from stoker.model.measures import Measures, Recorder
from stoker.model.orders import Work
from stoker.model.steps import Save, Step, StepState
from stoker.model.time import SECOND, Instant
from stoker.outage import Outage
from stoker.services import ServiceContext, UnderWay
from stoker.settings import RetentionSettings, WorkerSettings, resolve
from stoker.stopping import Stopping
from stoker.sync import check_no_loop
from stoker.worker.chunks import ChunkLane, ChunkQueue, ChunkRunner, chunk_queues
from stoker.worker.due_timer import DueTimer
from stoker.worker.emit_buffer import EmitBuffer
from stoker.worker.event_publisher import EventPublisher
from stoker.worker.failures import FailureLog
from stoker.worker.fetcher import Fetcher, Lane, Order, QueueLimits
from stoker.worker.janitor import GroupSweeper, Janitor
from stoker.worker.lease import LeaseKeeper, LeaseReports
from stoker.worker.maintenance import Maintenance, keep_running
from stoker.worker.orders import OrderTaker
from stoker.worker.progress_buffer import ProgressBuffer
from stoker.worker.rollup import RollUp
from stoker.worker.rollup import close as close_minutes
from stoker.worker.running import Ended, RunningJobs
from stoker.worker.schedules import Ticker
from stoker.worker.state import HeldClaims, UnwrittenOutcomes, WorkerContext, WorkerState, version
from stoker.worker.step_store import StepStore
from stoker.worker.store_loop import StoreLoop
from stoker.worker.task_runners import TaskRunners

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine

logger = logging.getLogger("stoker.worker")

LAST_WAIT = 5.0
"""Seconds a handler gets to unwind after it was interrupted by a shutdown."""


def served_queues(
    app: Stoker, given: Mapping[str, int | None] | Sequence[str] | None, settings: WorkerSettings
) -> dict[str, int]:
    """Return the queues that a worker serves, with its slots for each."""
    if isinstance(given, str):
        given = resolve(WorkerSettings, {"queues": given}).queues
    if given is None:
        given = settings.queues
    if given is None:
        given = sorted(app.served_queues()) or [app.defaults.queue or DEFAULT_QUEUE]
    if not given and not len(app.services):
        raise InvalidInput("queues", given, "must name at least one queue, for this app has no services either")
    numbers = given if isinstance(given, Mapping) else dict.fromkeys(given)
    return {check_name("queue", name): settings.slots if n is None else n for name, n in numbers.items()}


class Worker:
    """Runs an app's jobs: `async with jobs, Worker(jobs): …`, or `Worker(jobs).run()` in a script.

    `queues` maps queues to slots; without it the queues of the registered tasks are served. With `{}` the worker only
    runs the app's services, such as the delivery of its outboxes. `order` says whether each
    queue has its own slots or all share them. With `drain` the worker stops when nothing is due any more.
    """

    def __init__(
        self,
        app: Stoker,
        queues: Mapping[str, int | None] | Sequence[str] | None = None,
        *,
        order: Order = "own",
        drain: bool = False,
        **settings: Any,
    ) -> None:
        self.app = app
        self.settings = resolve(WorkerSettings, settings, environ=app.environ)
        self.retention = resolve(RetentionSettings, environ=app.environ)
        self._state = WorkerState(draining=drain)
        self.states: dict[Any, Any] = {}
        self.stopping = Stopping()
        self.shares_store = True
        self.failures = FailureLog(app.errors)
        self.outage = Outage()
        self.claims = HeldClaims()
        self.running_jobs = RunningJobs(app.find_task, self.rules_of, self._replace_slot)
        self.limits = QueueLimits(self.running_jobs.count)
        self._served = served_queues(app, queues, self.settings)
        self.fetcher = Fetcher(self._served, order, self.settings.claim_batch, self.limits)
        self.lanes = self.fetcher.lanes
        self.outcomes = UnwrittenOutcomes(self.settings.settle_batch)
        self.executors = Executors(self.settings)
        self.recorder: Recorder | None = None if app.metering is None else app.metering(self._gauges)
        self._stop_asked = False
        self.stop_ordered = False
        """Was it told to stop from afar?"""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[Any]] = []
        self._serving: list[asyncio.Task[Any]] = []
        self._under_way = UnderWay()
        self._closed_after = 0
        self._closings: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def check(self) -> dict[str, ChunkQueue]:
        """Raise for tasks that no worker can run as declared; returns the queues whose jobs run in chunks."""
        self.executors.check(self.app.tasks.values())
        return chunk_queues(self.app)

    def supervised_by(self, supervisor: str | None, on_identity: Callable[[str], object]) -> None:
        """Make the id of a supervisor a part of every id of this worker, and report each id to it."""
        self._state.supervised_by(supervisor)
        self._state.on_identity = on_identity

    @property
    def served(self) -> list[str]:
        """The queues that it serves, by name."""
        return sorted(self._served)

    def measure(self) -> None:
        """Measure runs and store calls from the next start on; `measured` returns them."""
        self.recorder = self.recorder or Recorder()

    def measured(self) -> Measures:
        """Everything that was measured so far, and the gauges as they are now. Empty unless `measure` was called."""
        if self.recorder is None:
            return Measures()
        return self.recorder.measures(*self._gauges())

    def _gauges(self) -> tuple[dict[str, int], float]:
        """Busy slots by queue, and how late the latest renewal was."""
        busy = {"+".join(lane.queues): lane.busy for lane in self.lanes}
        late = self.lease_keeper.late[-1:] if self.state == "running" else []
        return busy, sum(late)

    def _observe_calls(self, *engines: Engine) -> None:
        """Count calls of the store; those of the lease keeper come from its own thread."""
        recorder, lock = self.recorder, threading.Lock()
        if recorder is None:
            return

        def called(name: str, seconds: float) -> None:
            with lock:
                recorder.called(name, seconds)

        for engine in engines:
            engine.call_times.observer = called

    @property
    def id(self) -> str:
        """The id under which the worker claims; another one after a lost lease."""
        return self._state.id

    @property
    def state(self) -> str:
        """One of new, starting, running, stopping and stopped."""
        return self._state.phase

    @property
    def draining(self) -> bool:
        """Does the worker stop when nothing is due any more?"""
        return self._state.draining

    @property
    def counts(self) -> dict[Status, int]:
        """How many settlements of each status the store accepted."""
        return self._state.counts

    @property
    def lost(self) -> int:
        """How many outcomes the store refused, because their claim had passed on."""
        return self._state.lost

    @property
    def ready(self) -> bool:
        """Is the worker running, with a lease and a reachable store?"""
        return self._state.healthy and self._state.running and not self.store_loop.away

    @property
    def resting(self) -> bool:
        """Does it claim no more, and hold no claim?"""
        return self._state.quiet and not self.claims.tokens and not self.store_loop.asking

    @property
    def is_quiet(self) -> bool:
        """Does the worker claim nothing for now, because a user asked for that?"""
        return self._state.quiet

    @property
    def runs(self) -> int:
        """How many jobs are running."""
        return len(self.running_jobs.runs)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, take a lease, open lifespans, start the slots. A worker that has stopped may start again."""
        if self.state not in ("new", "stopped"):
            raise StokerError(f"this worker is {self.state} already; make another one")
        before, self._state.phase = self.state, "starting"
        self.loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._stop_asked = self.stop_ordered = False
        try:
            await self._prepare(again=before == "stopped")
        except BaseException:
            self._state.phase = before
            self._stopped.set()
            raise
        name_jobs_in_logs()
        self.executors.warm_up(self.app.tasks.values())
        self._state.on_identity(self.id)
        self._state.healthy = True
        self._state.phase = "running"
        self._serving = self._services()
        self._pump = self._spawn(self.store_loop.pump(), "pump")
        self._loops = [
            self._pump,
            self._spawn(self.maintenance.listen(), "listen"),
            self._spawn(self.due_timer.run(self.store_loop.answer), "alarm"),
            self._spawn(self.maintenance.tend(), "tend"),
            self._spawn(self._context.publisher.flush_crowded(), "events"),
            self._spawn(self.store_loop.resender.serve(), "held-outcomes"),
            *self._serving,
        ]
        for lane in self.lanes:
            for _ in range(lane.slots):
                self._start_slot(lane)
        self.store_loop.wakeup.set()
        served = ", ".join(f"{'+'.join(lane.queues)}:{lane.slots}" for lane in self.lanes) or "none, services only"
        logger.info(
            "worker %s started on %s %s; queues and slots %s; %s; stoker %s",
            self.id,
            self.engine.name,
            self.engine.where,
            served,
            count(len(self.app.tasks), "task"),
            version(),
        )
        notices.log_kept(self.engine.where)
        with suppress(StokerError):  # advice only: a store that is away is noticed elsewhere
            await self.maintenance.warnings.look_at_start()
        if self._stop_asked:
            self.ask_stop()

    async def _prepare(self, *, again: bool) -> None:
        """Do everything that can fail; after a failure close what was opened."""
        if again:
            self._state.id = self._state.next_id()
            self._state.quiet = False
            self.outcomes.aside.clear()
            self.executors = Executors(self.settings)
            self.stopping = Stopping()
        self.fetcher.make_lanes(self.check())
        self.engine: Engine = await self.app.engine()
        self._make_parts()
        self.fetcher.wake()
        self._lifespans = AsyncExitStack()
        try:
            for lifespan in self.app.lifespans:
                self.states[lifespan] = await self._lifespans.enter_async_context(lifespan.open())
            await self.app.declarations.store(self.engine, [queue for lane in self.lanes for queue in lane.queues])
            await self.maintenance.show_and_tune()
            keeper_engine = self.app.new_engine()
            self._observe_calls(self.engine, keeper_engine)
            orders = OrderTaker(self._context, keeper_engine, self.executors, self._obey)
            self.lease_keeper = LeaseKeeper(
                self._context, keeper_engine, self.lease_reports, orders, self._lease_keeper_failed
            )
            await self.lease_keeper.start()
        except BaseException:
            await self._lifespans.aclose()
            raise

    def _make_parts(self) -> None:
        """Make the parts that need the engine; they share a context."""
        engine = self.engine
        self.emits = EmitBuffer(engine)
        self.progress = ProgressBuffer(engine, self.emits)
        self.step_store = StepStore(engine)
        self.due_timer = DueTimer(engine, self.fetcher, self.settings.poll / SECOND)
        self.task_runners = TaskRunners(self.app, self.executors, self.settings.unknown_task_grace)
        self._context = WorkerContext(
            app=self.app,
            engine=engine,
            settings=self.settings,
            state=self._state,
            claims=self.claims,
            fetcher=self.fetcher,
            running_jobs=self.running_jobs,
            outcomes=self.outcomes,
            task_runners=self.task_runners,
            progress=self.progress,
            emits=self.emits,
            publisher=EventPublisher(engine, self.app.timeline, self.app.listeners),
            due_timer=self.due_timer,
            failures=self.failures,
            outage=self.outage,
            recorder=self.recorder,
        )
        self.store_loop = StoreLoop(self._context, self._notice_drained)
        self.lease_reports = LeaseReports(self._context, self.store_loop)
        self.runner = ChunkRunner(
            self._context,
            self.store_loop,
            self.lease_reports,
            runtime=self,
            ends=self._loop_ends,
            ask_stop=self.ask_stop,
        )
        self.maintenance = Maintenance(self._context, self.store_loop)

    def _services(self) -> list[asyncio.Task[Any]]:
        self._under_way = UnderWay(self._services_rest)
        state, stopping, under_way = self._state, self.stopping, self._under_way
        context = ServiceContext(self.app, self.engine, lambda: state.id, lambda: state.taking, stopping, under_way)
        services = [Janitor(self.retention), GroupSweeper(), RollUp(), Ticker(), *self.app.services]
        return [self._spawn(keep_running(service, context), f"service-{service.name}") for service in services]

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"stoker-{name}", context=outside())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if self.state == "running" and task in self._loops:
                self._end_with_the_loop()
        elif (error := task.exception()) is not None:
            logger.critical("%s died; the worker stops", task.get_name(), exc_info=error)
            self._state.healthy = False
            self.ask_stop()

    def _loop_ends(self) -> bool:
        """Does the event loop end around this worker?"""
        return any(loop.cancelling() for loop in self._loops)

    def _end_with_the_loop(self) -> None:
        """Give up: the event loop cancels the tasks of a worker that was not stopped."""
        logger.error(
            "the event loop ends under a running worker. Its jobs run again when its lease has lapsed. "
            "Use `async with Worker(jobs)`, or await stop() before the loop ends."
        )
        self._state.phase = "stopped"
        self._state.healthy = False
        self.running_jobs.stop_timer()
        self.lease_keeper.let_go()
        for lane in self.lanes:
            lane.wake_all()
        self._stopped.set()

    def ask_stop(self) -> None:
        """Begin to stop, without waiting."""
        self._begin_to_stop(None)

    async def stop(self, grace: float | None = None) -> None:
        """Claim no more, let running jobs finish within `grace` seconds, hand the rest back, release the lease."""
        self._begin_to_stop(grace)
        if self._ending is not None:
            # In a Task of its own: the caller may be canceled, even a handler of this worker.
            await asyncio.shield(self._ending)
        elif self.state == "starting":
            await self._stopped.wait()

    def _begin_to_stop(self, grace: float | None) -> None:
        self._stop_asked = True
        if self.state == "running":
            self._state.phase = "stopping"
            self.stopping.set()
            self.executors.processes.tell_stopping()
            self._ending = self._spawn(self._end(grace), "stop")

    async def _end(self, grace: float | None) -> None:
        limit = self.settings.shutdown_grace / SECOND if grace is None else grace
        try:
            self.store_loop.hand_back(self.fetcher.empty())
            await self._rest(limit)
            self._interrupt("the worker is shutting down")
            await self._rest(LAST_WAIT)
            for slot in self.running_jobs.slots():
                self.running_jobs.abandon(slot)
            await self._close()
        finally:
            self._state.phase = "stopped"
            self._state.healthy = False
            self._ending = None
            self._stopped.set()

    def hurry(self) -> None:
        """Interrupt running jobs: the second request to stop."""
        self._interrupt("the worker is shutting down in a hurry")

    def _interrupt(self, why: str) -> None:
        """Stop handlers and services, which hand back what they have in hand."""
        self.running_jobs.interrupt_all(Cause.SHUTDOWN, why)
        if self.state == "stopping":
            for service in self._serving:
                service.cancel()

    def quiet(self) -> None:
        """Claim no more, but let running jobs finish."""
        self._state.quiet = True
        self.store_loop.hand_back(self.fetcher.empty())

    def resume(self) -> None:
        """Claim again after `quiet`."""
        self._state.quiet = False
        self.fetcher.wake()
        self.store_loop.wakeup.set()

    def _obey(self, work: Work) -> None:
        """Do what a user told this worker from afar, and show it."""
        if not self._state.running:
            return
        running = count(self.runs, "running job")
        match work:
            case "quiet":
                logger.info("quiet, as told from afar: no new jobs are claimed, with %s to go on", running)
                self.quiet()
            case "resume":
                logger.info("claiming goes on, as told from afar")
                self.resume()
            case "stop":
                logger.info("stopping, as told from afar: no new jobs are claimed, with %s to finish", running)
                self.stop_ordered = True
                self.ask_stop()
        self._spawn(self._show(), "show")

    async def _show(self) -> None:
        with suppress(StokerError):  # the next round of maintenance shows it
            await self.engine.control.beat(self._context.presence())

    async def _rest(self, limit: float) -> None:
        """Wait for running jobs and what services have in hand, no longer than `limit`."""
        end = time.monotonic() + limit
        while (self.fetcher.busy or self._under_way) and time.monotonic() < end:
            await asyncio.sleep(0.005)

    async def _close(self) -> None:
        """Write the last outcomes, release the lease, close everything; a failure does not stop the other steps."""
        for lane in self.lanes:
            lane.wake_all()
        await self.store_loop.calm()
        while left := [loop for loop in self._loops[1:] if not loop.done()]:
            # Again if need be: before Python 3.12 `wait_for`, in any library, may swallow a cancellation.
            for loop in left:
                loop.cancel()
            await asyncio.wait(left, timeout=0.5)
        await asyncio.gather(*self._loops[1:], return_exceptions=True)
        try:
            for step in (
                partial(self.store_loop.finish, self._pump),
                self.progress.write,
                self.emits.close,
                self.lease_keeper.stop,
                self._leave,
            ):
                try:
                    await step()
                except StokerError as error:
                    logger.warning(
                        "a last call of worker %s failed: %s Jobs that it still holds run again when its lease has "
                        "lapsed.",
                        self.id,
                        sentence(error),
                    )
        finally:
            self.failures.flush(everything=True)
            self.running_jobs.stop_timer()
            await self.executors.close()
            await self._lifespans.aclose()
            self.states.clear()

    async def _leave(self) -> None:
        await self.engine.jobs.renew(self.id, [], lease=0)
        await self.engine.control.beat(msgspec.structs.replace(self._context.presence(), state="stopped"))
        with suppress(StokerError):  # the app keeps what cannot be written, tries again, and warns when it closes
            await self._context.publisher.flush()
            await close_minutes(self.engine, self.id)

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
        from stoker.worker.main import run_worker

        check_no_loop("await worker.serve()")
        run_worker(self)

    # --- slots --------------------------------------------------------------------------------------------------

    def _replace_slot(self, ended: Ended, settled: Ended) -> None:
        """Settle the jobs of an abandoned slot, but for those that blocks have settled, and start a new slot."""
        lane = self.fetcher.lane_of((*ended, *settled)[0][0].queue)
        lane.busy -= 1
        for claim, settlement in ended:
            self.store_loop.finished(claim, settlement, last=True)
        for claim, settlement in settled:
            self._spawn(self.store_loop.settled_already(claim, settlement), "settled")
        if self.state == "running":
            self._start_slot(lane)

    def _start_slot(self, lane: Lane) -> None:
        serve = self.runner.serve_chunks(lane) if isinstance(lane, ChunkLane) else self.runner.serve(lane)
        self._spawn(serve, "slot")

    # --- calls of the other parts -------------------------------------------------------------------------------

    def note(self, claim: Claim, progress: float | None, lines: tuple[str, ...]) -> None:
        """Keep progress and log lines of a handler until they are written."""
        self.progress.put(claim, progress, lines)

    def emit(self, claim: Claim, ring: Ring, entry: bytes) -> None:  # noqa: ARG002 - it is in the ring
        """Write what a handler has emitted soon."""
        self.emits.put(claim, ring)

    def withhold_notes(self, claim: Claim) -> None:
        """Leave to a block what the run notes and emits."""
        self.progress.withhold(claim)
        self.emits.withhold(claim)

    def take_note(self, claim: Claim) -> Note | None:
        """Return what the run has noted and is not written."""
        return self.progress.take(claim)

    def release_notes(self, claim: Claim) -> None:
        """Go on to write what the run notes and emits."""
        self.progress.release(claim)
        self.emits.release(claim)

    async def read_steps(self, job: JobId) -> list[Step]:
        """Return the rows of a job."""
        return await self.step_store.read(job)

    async def save_steps(self, save: Save) -> Verdict:
        """Store rows of a run under its claim."""
        return await self.step_store.save(save)

    def store_now(self, context: Context) -> Instant:  # noqa: ARG002 - all runs have one store
        """Return the store's time, counted on from the last claim."""
        if (clock := self.engine.clock) is not None:
            return clock()
        at, heard = self._state.heard
        return at + round((time.monotonic() - heard) * SECOND)

    def main_line(self, context: Context) -> tuple[asyncio.Task[Any], Any] | None:
        """Return the slot that runs a handler, and the handler's coroutine."""
        slot = self.running_jobs.runs.get(context.claim.id)
        return None if slot is None or slot.context is not context else (slot.task, context.main)

    def suspend(self, context: Context) -> None:
        """Interrupt a run that only waits."""
        slot = self.running_jobs.runs.get(context.claim.id)
        if slot is not None and slot.context is context:
            self.running_jobs.interrupt(slot, Cause.SUSPEND, "suspended")

    def rules_of(self, kind: str) -> Rules:
        """Return the rules by which jobs of this kind are settled."""
        return self.task_runners.rules_of(kind)

    def settled(self, claim: Claim, settlement: Settlement) -> None:
        """Note that a block has settled a running job: a renewal must not take it for lost, and callers wait for it."""
        if self.claims.tokens.get(claim.id) == claim.token:
            self.claims.tokens.pop(claim.id, None)
        self._call_soon(outbox_of(self.engine).notify_settled, [settlement])

    def stepped(self, claim: Claim, state: StepState) -> None:
        """Count a step that a run has stored, as done or failed."""
        if self.recorder is not None:
            self._call_soon(self.recorder.stepped, claim.kind, state)

    def _call_soon(self, fn: Callable[..., object], *args: object) -> None:
        """Call on the worker's loop soon, from any thread."""
        loop = self.loop
        call = loop.call_soon if running_loop() is loop else loop.call_soon_threadsafe
        with suppress(RuntimeError):  # the loop is closed
            call(fn, *args)

    def waits(self, claim: Claim, job: JobId, *, over: bool) -> None:
        """Note that a handler begins or ends to wait for another job."""
        slot = self.running_jobs.runs.get(claim.id)
        context = None if slot is None else slot.context
        if context is not None:
            others = tuple(other for other in context.awaited if other != job)
            context.awaited = others if over else (*others, job)

    def _notice_drained(self) -> None:
        """In drain mode: stop when a claim found nothing and nothing is running."""
        if self.state != "running":
            return
        resting = not (self.fetcher.busy or len(self.outcomes) or self.outcomes.flying or self.outcomes.held)
        if resting and not self._under_way and all(not lane.may_have_more and not lane.buffer for lane in self.lanes):
            ended = sum(self.counts.values())
            if self._closings is not None and not self._closings.done():
                return
            if ended != self._closed_after and Feature.CLOSES_AT_ONCE not in self.engine.features:
                self._closed_after = ended
                self._closings = self._spawn(self._close_groups(), "closings")
            else:
                self.ask_stop()

    async def _close_groups(self) -> None:
        """Close groups whose last members this worker has ended: a drain includes what that lets start."""
        with suppress(StokerError):
            await self.engine.groups.sweep()
        self.fetcher.wake()
        self.store_loop.wakeup.set()

    def _services_rest(self) -> None:
        """In drain mode: look once more whether nothing is due, now that the services have nothing in hand."""
        if self.state == "running" and self.draining:
            self.fetcher.wake()
            self.store_loop.wakeup.set()

    def _lease_keeper_failed(self, error: BaseException) -> None:
        """Stop: without the lease keeper's thread the worker must not claim."""
        logger.critical("the lease keeper died: %r; the worker stops", error, exc_info=error)
        self._state.healthy = False
        self.ask_stop()

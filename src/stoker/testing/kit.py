"""TestKit: tests an app that was made at import, on a store and a clock of the test's own.

Inside `with TestKit(jobs) as kit:` the app is the same object with the same tasks, and everything that asks it for its
store (handles, groups, locks, budgets, outboxes, inboxes) gets the kit's. The kit moves the clock and runs workers;
nothing runs by itself, and no time passes unless the test says so.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Self
from weakref import WeakKeyDictionary

from stoker.app import Stoker
from stoker.engine_pool import LoopEngine
from stoker.engines.base import Engine, Transaction, outbox_of
from stoker.executors import Executors
from stoker.handle import JobHandle
from stoker.hooks import FailedRun, Next
from stoker.joining import joined
from stoker.model import ids
from stoker.model.errors import EngineRefused, InvalidArgument, JobFailed, StokerError
from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.job import Draft, Receipt, Status, Stored
from stoker.model.query import RunNow, Selection
from stoker.model.time import Instant, Seconds, span
from stoker.settings import WorkerSettings, resolve
from stoker.sync import in_sync
from stoker.task import Task
from stoker.testing import single_run, told
from stoker.testing.clock import VirtualClock
from stoker.testing.crash_runs import Crashes, CrashRun
from stoker.testing.enqueued import EnqueuedJob, Wanted, find
from stoker.testing.faulty_engine import faulty
from stoker.testing.handler_faults import Faults
from stoker.testing.mortal_worker import MortalWorker
from stoker.testing.stores import OwnStore, aside
from stoker.worker.schedules import declare, fire_due

SEED = "STOKER_TEST_SEED"
"""Where the seed of this call of pytest stands."""

WAITING = (Status.PENDING, Status.RETRYING)

_open: WeakKeyDictionary[Stoker, TestKit] = WeakKeyDictionary()
_lock = Lock()

INLINE = ("insert_drafts", "seal_group")
"""What an app does in another way inside of `inline`."""


class TestKit:
    """Gives an app a fresh store and a virtual clock, as long as the block lasts: `with` or `async with`.

    `store`: "memory" (the default), "sqlite", or the URL of a real store, where the kit makes a file, a schema or a
    prefix of its own and removes it at the end. `clock` starts at the beginning of 2030. One kit at a time has an app.
    """

    __test__ = False  # pytest would take the class for one with tests
    gives_way: bool = False
    """Does it end when another kit is opened on its app?"""

    def __init__(self, jobs: Stoker, store: str = "memory", *, clock: VirtualClock | None = None) -> None:
        if not isinstance(jobs, Stoker):
            raise InvalidArgument("jobs", jobs, "must be the Stoker object whose tasks are tested")
        self.app = jobs
        self.clock = VirtualClock() if clock is None else clock
        self._where = store
        self._swapped: list[tuple[OwnStore, Callable[[], list[LoopEngine]]]] = []
        """The stores that the app works on, each with what gives it the one before; the last is in use."""
        self._failures: dict[str, deque[BaseException | type[BaseException]]] = {}
        self._faults = Faults()
        self._served: frozenset[str] = frozenset()
        self._at_work = 0

    @property
    def where(self) -> str:
        """Where the store is, such as the path of its SQLite file; a session of the test may connect to it.

        A store in memory is nowhere to connect to: then it is the text "in this process".
        """
        self._check_open("where")
        return self.app.root().where

    def __repr__(self) -> str:
        return f"<TestKit of {self.app!r} on {self._where.partition('://')[0]}>"

    # --- the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        running = _running_loop()
        store = self._swap()
        if running is not None and not store.in_memory:
            self._swap_back()
            aside(store.remove)
            raise StokerError(
                f"this thread runs an event loop, on which a {self._where.partition('://')[0]} store is closed. "
                f"Write `async with TestKit(jobs, ...)` here."
            )
        try:
            aside(self._prepare)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        running = _running_loop()
        while self._swapped:
            store, left = self._swap_back()
            for member in left:
                if member.loop is not running:
                    close_elsewhere(member)
            aside(store.remove)

    async def __aenter__(self) -> Self:
        self._swap()
        try:
            await self._prepare()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        while self._swapped:
            await self._leave_store()

    async def _leave_store(self) -> None:
        """Close and remove the store that the app has now; it has the one before again."""
        here = asyncio.get_running_loop()
        store, left = self._swap_back()
        for member in left:
            if member.loop is here:
                await member.close(None)
            else:
                await asyncio.to_thread(close_elsewhere, member)
        await store.remove()

    def _swap(self) -> OwnStore:
        former = _open.get(self.app)
        if former is not None and former.gives_way:
            former.__exit__()
        with _lock:
            other = _open.get(self.app)
            if other is not None:
                which = "this TestKit is open already" if other is self else f"{other!r} is open on this app already"
                raise StokerError(f"{which}: an app has one TestKit at a time. Use that one, or end its block first.")
            self._failures.clear()
            self._faults = Faults()
            store = self._use_new_store()
            self.app.middleware.insert(0, self._around)
            _open[self.app] = self
        return store

    def _use_new_store(self) -> OwnStore:
        store = OwnStore(self._where, self.clock)
        if store.user_transactions is not None:
            store.user_transactions.committed = self._faults.committed
        self._swapped.append((store, self.app.use_store(faulty(store.engine, self._faults), self._unattended)))
        return store

    def _swap_back(self) -> tuple[OwnStore, list[LoopEngine]]:
        """Give the app the store that it had before; returns the kit's, and the engines on it, to be closed."""
        with _lock:
            store, back = self._swapped.pop()
            if not self._swapped:
                _open.pop(self.app, None)
            return store, back()

    async def _prepare(self) -> None:
        """Store what code declares, as the first worker would."""
        engine = self.app.new_engine()
        await engine.open()
        try:
            await self._declare(engine)
        finally:
            await engine.close()

    async def _declare(self, engine: Engine) -> None:
        await self.app.declarations.store(engine, self._queues_of_tasks())
        await declare(self.app, engine)

    async def _unattended(self) -> str:
        """What a caller who waits can do, since nothing runs by itself; empty: something runs now."""
        workers = await (await self.app.engine()).control.workers()
        if self._at_work or any(one.state != "stopped" for one in workers):
            return ""
        return (
            "nothing runs by itself in a TestKit; call kit.drain(), or kit.advance(seconds) for what is due later, or "
            "job.signal(name, value) where a job waits for an answer"
        )

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1

    def _check_open(self, verb: str) -> None:
        if not self._swapped:
            called = verb if verb == "where" else f"{verb}()"
            raise StokerError(
                f"kit.{called} works inside the block of the kit only: the app has its own store now. "
                f"Write `with TestKit(jobs) as kit:` around it."
            )

    def _check_task(self, verb: str, task: Any) -> None:
        self._check_open(verb)
        if not isinstance(task, Task) or task.app is not self.app:
            raise InvalidArgument("task", task, "must be a task of the app that this kit was made for")

    def _name(self, verb: str, task: Any) -> str:
        """The name of a task that is given, or given by its name."""
        self._check_task(verb, self.app.find_task(task) or task if isinstance(task, str) else task)
        return task if isinstance(task, str) else task.name

    # --- running ------------------------------------------------------------------------------------------------

    async def drain(self, *, slots: int = 1) -> dict[Status, int]:
        """Run what is due and what that brings about at once; returns how many runs ended in which status.

        A real worker runs the jobs, fires schedules that are due and delivers messages of outboxes. It runs the jobs
        of a queue one after the other, unless `slots` says how many at a time. Handlers that want a process of their
        own run in this one.
        """
        self._check_open("drain")
        _check_slots(slots)
        with self._working():
            return dict(await self._drain(await self.app.engine(), slots))

    async def advance(self, by: Seconds, *, slots: int = 1) -> dict[Status, int]:
        """Let time pass: run what is due now, then whatever becomes due, each at its time; returns as `drain` does."""
        self._check_open("advance")
        _check_slots(slots)
        end = self.clock.now() + span(by, "advance", InvalidArgument)
        with self._working():
            engine = await self.app.engine()
            counts = await self._drain(engine, slots)
            while (due := await self._next_due(engine)) is not None and due <= end:
                self.clock.set(due)
                counts += await self._drain(engine, slots)
        if self.clock.now() < end:
            self.clock.set(end)
        return dict(counts)

    async def run(
        self,
        task: Task[..., Any],
        /,
        *args: Any,
        attempt: int = 1,
        metadata: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run one handler with a real `current()`, middleware and lifespans; returns or raises what it does.

        The job is in no store, so it is not retried and `current().transaction()` is refused; a step that has attempts
        of its own is tried again at once. Follow-ups are enqueued when the handler has returned.
        """
        self._check_task("run", task)
        draft, now = task.draft(*args, **kwargs), self.clock.now()
        executors = self._executors(resolve(WorkerSettings, environ=self.app.environ))
        return await single_run.run(self.app, task, draft, now, executors, attempt=attempt, metadata=metadata)

    drain_sync = in_sync(drain)
    advance_sync = in_sync(advance)
    run_sync = in_sync(run)

    # --- faults -------------------------------------------------------------------------------------------------

    async def crash_everywhere(
        self,
        task: Task[..., Any],
        /,
        *args: Any,
        reset: Callable[[], object] | None = None,
        answer: Callable[[JobHandle[Any]], object] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[CrashRun, None]:
        """Run a job once for each point at which its worker can die, and let another worker go on each time.

        A worker can die before the handler starts, before and after it enqueues, appends, receives, notes something,
        stores a step or commits a block, and before the job is suspended or its end is stored. The first run is one in
        which no worker dies. Every run has an empty store, in which it leaves what came of it until the next one
        begins, and starts at the same time. `reset` is called on that store before each run: it puts back what the
        handler changes elsewhere, and stores what it needs. `answer` is called with the job's handle whenever a run was
        suspended, and may send the signal that it waits for. Both may return something to be awaited. After the last
        run the kit has its own store again.
        """
        crashes = self._crashes(task, args, kwargs, reset, answer)
        while crashes.left:
            await self._fresh_store(crashes)
            await _result_of(reset)
            yield self._tell(await crashes.run())
        await self._own_store(crashes)

    def crash_everywhere_sync(
        self,
        task: Task[..., Any],
        /,
        *args: Any,
        reset: Callable[[], object] | None = None,
        answer: Callable[[JobHandle[Any]], object] | None = None,
        **kwargs: Any,
    ) -> Iterator[CrashRun]:
        """`crash_everywhere` for code without a loop; `reset` is called in the caller's thread."""
        crashes = self._crashes(task, args, kwargs, reset, answer)
        run = functools.partial(self.app.run, instead="`async for` with `kit.crash_everywhere(...)`")
        while crashes.left:
            run(self._fresh_store(crashes))
            found = None if reset is None else reset()
            if inspect.isawaitable(found):
                run(found)
            yield self._tell(run(crashes.run()))
        run(self._own_store(crashes))

    def _crashes(self, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], reset: Any, answer: Any) -> Crashes:
        self._check_task("crash_everywhere", task)
        for name, given in (("reset", reset), ("answer", answer)):
            if given is not None and not callable(given):
                raise InvalidArgument(name, given, "must be a function, such as charges.clear without parentheses")
        return Crashes(self.app, self.clock, self._faults, self._drain_all, (task, args, kwargs), answer)

    async def _fresh_store(self, crashes: Crashes) -> None:
        """Give the app an empty store instead of that of the run before."""
        await self._own_store(crashes)
        with _lock:
            self._use_new_store()
        await self._prepare()

    async def _own_store(self, crashes: Crashes) -> None:
        """Give the app the kit's own store back."""
        self._check_open("crash_everywhere")
        while len(self._swapped) > 1:
            await self._leave_store()
        crashes.rewind()
        told.lines.pop("crash_everywhere", None)

    def _tell(self, run: CrashRun) -> CrashRun:
        told.lines["crash_everywhere"] = str(run)
        return run

    async def _drain_all(self, engine: Engine) -> None:
        with self._working():
            await self._drain(engine, 1)

    def twice(self, task: Task[..., Any] | str) -> None:
        """Have the next run of a task that ends well be forgotten: its worker dies before its end is stored.

        So the job runs once more, as it does when a worker is killed at the worst moment. Several calls line up.
        """
        self._faults.twice[self._name("twice", task)] += 1

    def late(self, task: Task[..., Any] | str, *, by: Seconds) -> None:
        """Have the next run of a task start `by` seconds late, as behind a long queue; several calls line up."""
        name = self._name("late", task)
        self._faults.late.setdefault(name, deque()).append(span(by, "by", InvalidArgument))

    def lose_commit_answer(self) -> None:
        """Have the next commit raise `EngineUnavailable` after it has happened, as when a connection breaks then.

        A commit is the end of a block or of a transaction that was given as `tx=`, and every enqueue or append outside
        of them. A kit on a real store refuses: it does not see the commits of your handles.
        """
        self._check_open("lose_commit_answer")
        store, _ = self._swapped[-1]
        if not store.in_memory:
            raise StokerError("kit.lose_commit_answer() is for a TestKit in memory: use TestKit(jobs).")
        self._faults.lost_answers += 1

    def reorder(self, seed: int | None = None) -> None:
        """Have jobs that may run at the same time run in another order from now on, which the seed decides.

        Without a seed it is that of `--stoker-seed`, else one by chance, which the plugin of pytest prints with a
        failure. Jobs that a limit holds apart keep their order.
        """
        self._check_open("reorder")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InvalidArgument("seed", seed, "must be a whole number, or be left out")
        chosen = _seed() if seed is None else seed
        told.lines["reorder"] = f"the jobs ran in the order of --stoker-seed={chosen}"
        self._faults.reorder(chosen)

    # --- transactions of the user's, in memory --------------------------------------------------------------------

    def commit(self) -> None:
        """Store the jobs and messages that wait for the commit of a transaction, as if it came now.

        For tests whose transaction is rolled back at the end. A kit on a real store refuses: there the handle decides.
        """
        self._check_open("commit")
        store, _ = self._swapped[-1]
        if store.user_transactions is None:
            raise StokerError("kit.commit() is for a TestKit in memory. On a real store commit your own transaction.")
        store.user_transactions.commit()

    # --- looking ------------------------------------------------------------------------------------------------

    def enqueued(
        self, task: Task[..., Any] | str, /, *, args: Mapping[str, Any] | None = None, tx: Any = None, **filters: Any
    ) -> list[EnqueuedJob]:
        """The jobs of a task in any status, in the order in which they were enqueued, with decoded `arguments`.

        `filters` are as for `assert_enqueued`. A kind that has no task here is given by name. With `tx` they are read
        through that handle, so those that wait for the commit of its transaction are among them.
        """
        self._check_open("enqueued")
        if not isinstance(task, str) and (not isinstance(task, Task) or task.app is not self.app):
            raise InvalidArgument("task", task, "must be a task of the app that this kit was made for, or a kind")
        wanted = Wanted(task, args, filters)
        return [job for job in find(self.app, task, tx) if not wanted.differences(job)]

    # --- steering -----------------------------------------------------------------------------------------------

    def fail_next(self, task: Task[..., Any] | str, error: BaseException | type[BaseException]) -> None:
        """Have the next run of a task raise `error` instead of calling its handler; several calls line up.

        The task may be given by its name, as in `twice` and `late`.
        """
        name = self._name("fail_next", task)
        if not isinstance(error, BaseException) and not (isinstance(error, type) and issubclass(error, BaseException)):
            raise InvalidArgument("error", error, "must be an exception, such as ConnectionError()")
        self._failures.setdefault(name, deque()).append(error)

    async def _around(self, call: Next[Any, Any], context: Any) -> Any:
        """Surround every handler as middleware."""
        waiting = self._failures.get(context.kind)
        if waiting:
            raise waiting.popleft()
        worker = context.runtime
        return await (worker.around(call, context) if isinstance(worker, MortalWorker) else call(context))

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Run jobs at their enqueue, as long as the block lasts, with all their attempts and without their delays.

        The enqueue raises what the last attempt raised. Jobs that are enqueued in a transaction wait for `drain`, and a
        job that snoozes waits for its time. Whatever else is due runs as well.
        """
        self._check_open("inline")
        app = self.app
        before = {
            name: vars(app)[name] for name in INLINE if name in vars(app)
        }  # of a block of this kind around this one
        plain = functools.partial(Stoker.insert_drafts, app)

        async def insert_and_run(
            drafts: Sequence[Draft], tx: Transaction | None = None, group: Group | None = None
        ) -> list[Receipt]:
            at_once = joined(app, tx) is None
            receipts = await plain(drafts, tx, group)
            if at_once:
                await self._run_now([one.id for one in receipts if one.stored is not Stored.EXISTING])
                if group is not None:
                    await self._run_callbacks(group.id)
            return receipts

        async def seal_and_run(group: JobId, *, abandoned: bool) -> bool:
            sealed = await Stoker.seal_group(app, group, abandoned=abandoned)
            await self._run_callbacks(group)
            return sealed

        vars(app).update(zip(INLINE, (insert_and_run, seal_and_run), strict=True))
        try:
            yield
        finally:
            for name in INLINE:
                vars(app).pop(name)
            vars(app).update(before)

    async def _run_callbacks(self, group: JobId) -> None:
        """Run what the closing of a group has stored, if it is closed."""
        engine = await self.app.engine()
        [found] = await engine.groups.get([group])
        if found is not None and found.closed_at is not None:
            jobs = await engine.operator.get([draft.job_id for draft in found.callbacks])
            await self._run_now([job.id for job in jobs if job is not None and job.status in WAITING])

    async def _run_now(self, jobs: list[JobId]) -> None:
        """Run jobs to their end and raise the error of the first that died."""
        raised: dict[str, FailedRun] = {}
        engine = await self.app.engine()
        listener = self.app.on_error(lambda failed: raised.__setitem__(failed.job, failed))
        try:
            started: dict[JobId, int] = dict.fromkeys(jobs, -1)
            while started:
                await engine.operator.alter(Selection(tuple(started)), RunNow(first=True))
                await self._drain_all(engine)
                found = [job for job in await engine.operator.get(list(started)) if job is not None]
                again = [job for job in found if job.status is Status.RETRYING and job.attempts > started[job.id]]
                started = {job.id: job.attempts for job in again}
        finally:
            self.app.errors.remove(listener)
        for job in jobs:
            failed = raised.get(ids.text(job))
            if failed is not None and failed.dead:
                if failed.exception is not None:
                    raise failed.exception
                raise JobFailed(failed.job, failed.kind, Status.DEAD, failed.attempt, failed.error)

    # --- how it runs --------------------------------------------------------------------------------------------

    def _executors(self, settings: WorkerSettings) -> Executors:
        """What runs the handlers."""
        return single_run.InThisProcess(settings)

    async def _drain(self, engine: Engine, slots: int) -> Counter[Status]:
        counts: Counter[Status] = Counter()
        await self._declare(engine)
        await fire_due(self.app, engine, await engine.schedules.read())
        served, again = await self._queues(engine), True
        while again:
            worker = MortalWorker(self.app, dict.fromkeys(sorted(served), slots), self._faults)
            worker.executors = self._executors(worker.settings)
            async with worker:
                await worker.join()
            if worker.died is not None:
                await worker.release()
                if self._faults.death is not None:
                    self._faults.death.over = True
            ran = {status: n for status, n in worker.counts.items() if n}
            counts.update(ran)
            await engine.groups.sweep()  # some stores close a group a moment after its last member has ended
            queues = served | await self._queues(engine)
            again = (
                queues != served
                or worker.died is not None
                or (bool(ran) and (await engine.jobs.ahead(sorted(served))).wait == 0)
            )
            served = queues
        self._served = served
        return counts

    def _queues_of_tasks(self) -> frozenset[str]:
        return frozenset(self.app.served_queues())

    async def _queues(self, engine: Engine) -> frozenset[str]:
        """The queues of the app's tasks, and those that its jobs wait in."""
        app = self.app
        known, census = app.tasks, await engine.operator.census()
        waiting = {one.queue for one in census.counts if one.kind in known and one.status in WAITING}
        return self._queues_of_tasks() | waiting or frozenset((app.defaults.queue or "default",))

    async def _next_due(self, engine: Engine) -> Instant | None:
        """When something happens next, after now: a job, the end of a pause, a schedule, a message."""
        now = self.clock.now()
        ahead = await engine.jobs.ahead(sorted(self._served))
        waits = [wait for wait in (ahead.wait, ahead.later) if wait]
        times = [now + min(waits)] if waits else []
        times += [one.next_fire for one in await engine.schedules.read() if one.enabled and one.next_fire is not None]
        times += await self._messages_due(engine)
        return min((at for at in times if at > now), default=None)

    async def _messages_due(self, engine: Engine) -> list[Instant]:
        """When messages are delivered again that could not be."""
        if not len(self.app.services):
            return []
        try:
            streams = await outbox_of(engine).streams()
        except EngineRefused:  # this store has none
            return []
        return [
            one.cursor.due
            for state in streams
            for one in state.cursors
            if one.cursor.position < state.last[one.cursor.partition]
        ]


async def _result_of(reset: Callable[[], object] | None) -> None:
    found = None if reset is None else reset()
    if inspect.isawaitable(found):
        await found


def _check_slots(slots: object) -> None:
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise InvalidArgument("slots", slots, "must be how many jobs of a queue run at a time, at least 1")


def _seed() -> int:
    """The seed that the caller of pytest gave, else one by chance."""
    given = os.environ.get(SEED)
    if given is None:
        return random.randrange(1_000_000)
    if not given.isdecimal():
        raise InvalidArgument(f"${SEED}", given, "must be a whole number")
    return int(given)


def kit_of(app: Stoker) -> TestKit | None:
    """The kit that is open on an app."""
    return _open.get(app)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def close_elsewhere(member: LoopEngine) -> None:
    """Close the engine of a loop that does not run in this thread."""
    loop = member.loop
    if loop.is_closed():
        return  # what it had open went with it
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(member.close(None), loop).result()
    else:
        loop.run_until_complete(member.close(None))

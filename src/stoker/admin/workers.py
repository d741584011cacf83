"""Workers for operators: who is there, what they serve and run, and orders to them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from stoker import views
from stoker.admin import documents
from stoker.admin.audit import audited
from stoker.admin.context import Noun
from stoker.engines.base import CONTROL, Engine
from stoker.hand_back import BATCH, hand_back, publish
from stoker.model import ids, orders
from stoker.model.audit import Deed
from stoker.model.control import STOPPED, Presence, is_silent, remembered
from stoker.model.errors import NotFound, StokerError, shown
from stoker.model.job import LEASE, Status
from stoker.model.operator_metrics import became, runs_long
from stoker.model.orders import Orders, Verb
from stoker.model.query import LARGEST_PAGE, Query
from stoker.model.time import Instant, moment

SILENT = "silent"

ANSWERS_WITHIN = 20.0
"""Seconds that a worker is given to tell where its handlers stand."""

LOOK_AGAIN = 0.2
"""Seconds between two looks for its answer."""

MOST_TRIES = 10
"""Tries of a change that other calls make at the same time."""


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it reported itself last.

    `state` is running, quiet (it claims nothing for now), stopping, silent (not seen for 10 s) or stopped.

    Its jobs go to another worker when its `lease` has passed since `seen_at`. `memory` is in bytes. `hour` is how many
    of its runs succeeded and failed in each of its last sixty minutes, the latest last.
    """

    worker: str
    host: str
    pid: int
    state: str
    queues: dict[str, int]
    kinds: tuple[str, ...]
    slots: int
    running: int
    version: str
    release: str
    seen_at: datetime
    lease: timedelta
    uptime: timedelta
    memory: int
    hour: tuple[tuple[int, int], ...]


class FormerJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a silent worker ran when it was seen last, and what became of it.

    `became` is held (the worker still has it), taken over (another one runs it), gone (it has no record any more), or
    its status since.
    """

    id: str
    kind: str | None
    became: str


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs; `long` marks one that has run for over five minutes without a timeout."""

    job: views.Job
    long: bool


class WorkerDetail(WorkerView, frozen=True, kw_only=True):
    """A worker with what it runs, the longest running first; of a silent one also what became of its jobs."""

    jobs: list[RunningJob]
    former: list[FormerJob]


class OrderView(msgspec.Struct, frozen=True, kw_only=True):
    """An order that a worker takes with its next renewal, if that comes before `lapses_at`.

    `note` says what becomes of it if the worker has not shown itself lately.
    """

    worker: str
    order: Verb
    lapses_at: datetime
    note: str = ""


class StandView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a handler stands: what runs it, for how long, and its stack; `more` counts further jobs of its chunk."""

    job: str
    kind: str
    place: str
    elapsed: timedelta
    stack: str
    more: int


class StackView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the handlers of a worker stood at a moment, the longest running first. `left_out` did not fit."""

    worker: str
    at: datetime
    stands: list[StandView]
    left_out: int


class WorkersAdmin(Noun):
    """Questions about workers, orders to them, and how to take their jobs back."""

    async def get(self, worker: str) -> WorkerDetail:
        """One worker, also one that was lost within the last hour. Raises `NotFound`."""
        engine = await self._context.engine()
        now, found = await engine.now(), orders.find(worker, await engine.control.workers())
        [view], silent = worker_views([found], now, forget=False), is_silent(found, now)
        former = await former_jobs(engine, found, now) if silent else []
        fields = {name: getattr(view, name) for name in view.__struct_fields__}
        return WorkerDetail(**fields, jobs=await self.jobs(found.worker), former=former)

    async def jobs(self, worker: str | None = None) -> list[RunningJob]:
        """What a worker runs, or all workers run, the longest running first."""
        engine = await self._context.engine()
        now = await engine.now()
        query = Query(statuses=frozenset({Status.RUNNING}), worker=worker, limit=LARGEST_PAGE)
        found: list[RunningJob] = []
        while True:
            page = await engine.operator.find(query)
            found += [
                RunningJob(job=self._context.listed(job), long=runs_long(job, now))
                for job in page.jobs
                if worker is None or job.worker == worker
            ]
            if page.cursor is None:
                return sorted(found, key=lambda one: (one.job.started_at is None, one.job.started_at))
            query = msgspec.structs.replace(query, cursor=page.cursor)

    async def take_back(self, worker: str, *, reason: str | None = None) -> int:
        """Hand the jobs that a worker holds back now, without waiting for its lease; return how many.

        They run again, elsewhere or there, without having used an attempt. Whatever their former runs still write is
        refused. A worker that lives stops its handlers at its next renewal and goes on under another id. The locks
        that the worker holds under its id are released too. Raises `NotFound` for a worker that the store does not
        know.
        """
        engine = await self._context.engine()
        if worker not in {one.worker for one in await engine.control.workers()} and not await self.jobs(worker):
            raise NotFound(f"worker {shown(worker)} is not in the store: `stoker workers` lists those that are known")
        me, taken = uuid.uuid4().hex, 0
        await engine.jobs.renew(me, [], lease=LEASE, first=True)
        try:
            while True:
                handed_on = await hand_back(engine, me, [worker])
                publish(self._context.app, handed_on)
                taken += sum(claim.former == worker for claim in handed_on[0])
                if len(handed_on[0]) < BATCH:
                    break
        finally:
            await engine.jobs.renew(me, [], lease=0)
        await audited(self._context, "workers.take_back", f"worker {worker}", reason=reason, after={"jobs": taken})
        return taken

    async def order(self, worker: str, order: Verb, *, reason: str | None = None) -> OrderView:
        """Tell a worker to claim no more (`quiet`), to claim again (`resume`), to `stop`, or to report its stacks.

        The worker takes the order with its next renewal, which a wake-up starts at once. A worker that stops finishes
        its running jobs within its grace and hands the rest back. `worker` may be shortened. Raises `NotFound`, and
        `WrongState` if the worker has stopped or was told to.
        """
        found, given, now = await self._order(worker, order, reason)
        lapses = moment((given.stack_at if order == "stack" else given.work_at) + orders.LAPSES)
        return OrderView(worker=found.worker, order=order, lapses_at=lapses, note=orders.outlook(found, now))

    async def stack(
        self, worker: str, *, reason: str | None = None, within: float = ANSWERS_WITHIN
    ) -> StackView | None:
        """Ask a worker where its running handlers stand, and wait for the answer; None: there was none in time."""
        found, given, _ = await self._order(worker, "stack", reason)
        engine = await self._context.engine()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while True:
                    for one in await documents.stacks(engine):
                        if one.worker == found.worker and one.asked >= given.stack_at:
                            return self._stack_view(one)
                    await asyncio.sleep(LOOK_AGAIN)
        return None

    async def last_stack(self, worker: str) -> StackView | None:
        """Where the handlers of a worker stood when it was asked last; kept for ten minutes. None: it was not."""
        engine = await self._context.engine()
        found = orders.find(worker, await engine.control.workers())
        known = (one for one in await documents.stacks(engine) if one.worker == found.worker)
        return next(map(self._stack_view, known), None)

    async def _order(self, worker: str, order: Verb, reason: str | None) -> tuple[Presence, Orders, Instant]:
        engine = await self._context.engine()
        presences, now = await engine.control.workers(), await engine.now()
        found = orders.find(worker, presences)
        orders.check_takes(found, order)
        await _forget_old(engine, presences, now)
        by = self._context.signed(reason)
        deed = Deed(action=f"workers.{order}", target=f"worker {found.worker}")
        for _ in range(MOST_TRIES):
            before = next((one for one in await documents.orders(engine) if one.worker == found.worker), None)
            after = orders.ordered(before, found.worker, order, now)
            if await documents.put_orders(engine, before, after, by=None if by is None else (by, deed)):
                await engine.jobs.wake([CONTROL])
                return found, after, now
        raise StokerError(f"others give worker {found.worker} orders all the time. Nothing was changed; try again.")

    def _stack_view(self, one: orders.StackReport) -> StackView:
        stands = [
            StandView(
                job=stand.job,
                kind=stand.kind,
                place=stand.place,
                elapsed=timedelta(microseconds=stand.elapsed),
                stack=self._context.redact.text(stand.stack),
                more=stand.more,
            )
            for stand in one.stands
        ]
        return StackView(worker=one.worker, at=moment(one.at), stands=stands, left_out=one.left_out)

    async def list(self) -> list[WorkerView]:
        """Every worker that reported itself and was not forgotten yet, by id."""
        engine = await self._context.engine()
        presences = await engine.control.workers()
        return worker_views(presences, await engine.now())


async def _forget_old(engine: Engine, presences: Sequence[Presence], now: Instant) -> None:
    """Remove the orders of workers that are gone, and reports that were kept for long enough."""
    known = {one.worker for one in presences if one.state != STOPPED}
    for gone in [one for one in await documents.orders(engine) if one.worker not in known]:
        await documents.drop(engine, gone)
    for old in orders.outdated(await documents.stacks(engine), now):
        await documents.drop(engine, old)


async def former_jobs(engine: Engine, lost: Presence, now: Instant) -> list[FormerJob]:
    """The jobs that a worker ran when it was seen last, as far as it named them."""
    found = await engine.operator.get([ids.parse(one) for one in lost.jobs]) if lost.jobs else []
    return [
        FormerJob(id=id_, kind=None if job is None else job.kind, became=became(job, lost.worker, now))
        for id_, job in zip(lost.jobs, found, strict=True)
    ]


def worker_views(presences: Sequence[Presence], now: Instant, *, forget: bool = True) -> list[WorkerView]:
    """Each worker as it reported itself last, silent ones marked; those that stopped a while ago are left out."""
    shown_ = remembered(presences, now) if forget else presences
    return [_view(one, SILENT if is_silent(one, now) else one.state) for one in shown_]


def _view(one: Presence, state: str) -> WorkerView:
    return WorkerView(
        worker=one.worker,
        host=one.host,
        pid=one.pid,
        state=state,
        queues=one.queues,
        kinds=tuple(sorted(one.kinds)),
        slots=one.slots,
        running=one.running,
        version=one.version,
        release=one.release,
        seen_at=moment(one.seen_at),
        lease=timedelta(microseconds=one.lease),
        uptime=timedelta(microseconds=one.uptime),
        memory=one.memory,
        hour=one.hour,
    )

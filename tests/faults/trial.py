"""A real worker and real producers over a store that is being hurt, and the judgement in the end.

    async with Trial(engine_through_a_bad_network, direct_engine) as trial:
        await trial.consuming()            # all is well
        proxy.reset()
        await trial.consuming()            # and again, without a restart
    # leaving the block: everything that was acknowledged is done, once, and the history broke no law

Producers put jobs all the time. What is refused with an error of Stoker's own is put again under the same id, as
callers are told to; any other error fails the trial. Everything that passes the engine's doors is written down.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, cast

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.errors import EngineError
from stoker.model.events import Transition
from stoker.model.ids import JobId
from stoker.model.job import FINISHED, Draft, Job, Settlement, Status, Verdict
from stoker.model.retry import Fixed
from stoker.model.time import MILLISECOND
from stoker.testing.faults import Recorded, survey
from stoker.testing.history import Entry, check, read, report
from stoker.worker import Worker

PROMISED = 5.0
BOUND = 12 * PROMISED
"""Seconds until jobs are consumed again: what is promised holds on a quiet machine, this on any."""

OPEN = tuple(status for status in Status if status not in FINISHED)
LEASE = 3.0
SOON = 1_500 * MILLISECOND
MOMENT = 0.01
ASYNCHRONOUS = 1_000_000_000
"""Nanoseconds in which a server writes to disk what it did not promise to have there; Postgres takes 0.6 s at most."""


class Recorder(Recorded):
    """An engine of any kind that writes a history, and so do its twins."""

    def __init__(self, engine: Engine, write: Callable[[bytes], object]) -> None:
        super().__init__(engine, uuid.uuid4().hex, write)

    @property
    def jobs(self) -> Any:
        return self

    def __getattr__(self, door: str) -> Any:
        return getattr(self.engine.jobs if hasattr(self.engine.jobs, door) else self.engine, door)

    def leaves_open(self, settlement: Settlement, verdict: Verdict) -> bool:
        """On Redis a call whose answer was lost is sent again: one that puts its job back is refused when the job was
        claimed in between. Elsewhere the worker itself sends it again, as a call of its own.
        """
        put_back = settlement.status in (Status.PENDING, Status.RETRYING) and self.engine.name.startswith("redis")
        return super().leaves_open(settlement, verdict) or (put_back and verdict is Verdict.LOST)

    def for_loop(self, *, read_limit: float | None = None) -> Recorder:
        return Recorder(self.engine.for_loop(read_limit=read_limit), self._write)


class Trial:
    """One app whose store is hurt. `direct` is an engine on the same store that is not disturbed, for the judgement."""

    def __init__(
        self, engine: Engine, direct: Engine, *, workers: int = 1, slots: int = 10, flow: bool = True, **settings: Any
    ) -> None:
        self._lines: list[bytes] = []
        self.app = Stoker(cast("Engine", Recorder(engine, self._lines.append)), attempts=1_000, backoff=Fixed(0.01))
        self.direct = direct
        self.workers = [Worker(self.app, {"default": slots}, **{"lease": LEASE, **settings}) for _ in range(workers)]
        self.acknowledged: set[JobId] = set()
        self.ends: Counter[JobId] = Counter()
        self.runs: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """What producers were told, by kind of error."""
        self.waits: list[float] = []
        """Seconds that each `consuming` took."""
        self._excused: set[str] = set()
        self._crashes: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._flowing = flow
        self._flow: asyncio.Task[None] | None = None
        self._chance = random.Random(7)
        self.app.task(self.work)
        self.app.listener(self._hear)

    async def work(self, n: int, seconds: float = 0) -> int:
        self.runs[current().id] += 1
        if seconds:
            await asyncio.sleep(seconds)
        return n

    def _hear(self, change: Transition) -> None:
        if change.after in FINISHED:
            self.ends[ids.parse(change.job)] += 1

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.direct.open()
        for worker in self.workers:
            await worker.start()
        self._flow = asyncio.create_task(self._produce())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._flow
        try:
            if kind is None:
                await self.calm()
                await self.judge()
        finally:
            self._flow.cancel()
            async with in_time("all tasks end"):
                await asyncio.gather(self._flow, return_exceptions=True)
                for worker in self.workers:
                    await worker.stop(0)
                await self.app.close()
                await self.direct.close()

    def recorder(self, engine: Engine) -> Recorder:
        """Let what passes this engine too be part of the history."""
        return Recorder(engine, self._lines.append)

    # --- what goes on -------------------------------------------------------------------------------------------

    def draft(self, seconds: float = 0) -> Draft:
        return self.app.draft("work", {"n": next(self._numbers), "seconds": seconds})

    async def put(self, *drafts: Draft) -> None:
        """Enqueue until it is acknowledged."""
        while True:
            try:
                receipts = await self.app.enqueue_many(drafts)
            except EngineError as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(MOMENT)
                continue
            self.acknowledged.update(ids.parse(receipt.id) for receipt in receipts)
            return

    async def _produce(self) -> None:
        """A few jobs every moment, some of which take a while, so that every fault meets some that run."""
        while self._flowing:
            batch = [self.draft() for _ in range(self._chance.choice((1, 1, 4)))]
            await self.put(*batch, self.draft(self._chance.uniform(0.02, 0.2)))
            await asyncio.sleep(MOMENT)

    async def consuming(self, within: float = BOUND) -> float:
        """A job that is put now is done in time; how many seconds it took."""
        began = time.monotonic()
        draft = self.draft()
        async with in_time("jobs are consumed", within):
            await self.put(draft)
            while not self.ends[draft.job_id]:
                self._look()
                await asyncio.sleep(0.002)
        self.waits.append(time.monotonic() - began)
        return self.waits[-1]

    def _look(self) -> None:
        """No task may have given up: producers go on, and workers are the ones that were started."""
        assert self._flow
        if self._flow.done() and not self._flow.cancelled():
            self._flow.result()
        assert {worker.state for worker in self.workers} == {"running"}, "without a restart"

    async def until(self, condition: Callable[[], Any], what: str, within: float = BOUND) -> None:
        """Wait for what a fault brings about."""
        give_up = time.monotonic() + within
        while not condition():
            self._look()
            assert time.monotonic() < give_up, f"not within {within:g} s: {what}"
            await asyncio.sleep(0.002)

    @property
    def ready(self) -> bool:
        """Are all workers at work?"""
        return all(worker.ready for worker in self.workers)

    async def calm(self) -> None:
        """Nothing more is put, and everything that was is over."""
        assert self._flow
        self._look()
        self._flow.cancel()
        await asyncio.gather(self._flow, return_exceptions=True)
        async with in_time("everything is over"):
            while await self.left():
                await asyncio.sleep(0.02)

    @contextmanager
    def crash(self) -> Iterator[None]:
        """Around a crash of the server: claims that were answered just before it may not have reached its disk.

        That is allowed, as a lost claim does no harm: its job is claimed again, under a higher
        token, and its former worker is refused. Inserts and settlements must be there.
        """
        began = time.monotonic_ns()
        yield
        self._crashes.append((began - ASYNCHRONOUS, time.monotonic_ns()))

    def _undone(self, entries: list[Entry]) -> set[int]:
        """Claims that a crash undid: the next claim of the job starts the same attempt."""
        claims: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            if entry.op == "claim" and entry.phase == "done":
                claims[entry.job].append(entry)
        return {
            id(former)
            for found in claims.values()
            for former, later in itertools.pairwise(sorted(found, key=lambda entry: entry.token))
            if former.attempt == later.attempt and any(low < former.mono < high for low, high in self._crashes)
        }

    def excuse(self, *jobs: JobId) -> None:
        """Leave these out of the judgement: the test itself says what may become of them."""
        self.acknowledged.difference_update(jobs)
        self._excused.update(job.hex() for job in jobs)

    def forget(self) -> None:
        """The store lost everything, as it had said it might: what went before is not judged."""
        self._lines.clear()
        for told in (self.acknowledged, self.ends, self.runs):
            told.clear()

    async def left(self) -> int:
        found = (await self.direct.operator.census()).by_status()
        return sum(found[status] for status in OPEN)

    # --- the end ------------------------------------------------------------------------------------------------

    async def records(self) -> list[Job]:
        wanted = sorted(self.acknowledged)
        found: list[Job | None] = []
        for first in range(0, len(wanted), 500):
            found += await self.direct.operator.get(wanted[first : first + 500])
        missing = [ids.text(job) for job, record in zip(wanted, found, strict=True) if record is None]
        assert not missing, f"{len(missing)} of {len(wanted)} acknowledged jobs are lost: {missing[:5]}"
        return [record for record in found if record is not None]

    async def judge(self) -> None:
        """Nothing is lost, everything is done, and it ended once."""
        records = await self.records()
        assert {job.status for job in records} == {Status.DONE}, Counter(job.status for job in records)
        twice = [ids.text(job) for job, n in self.ends.items() if n > 1]
        assert not twice, f"told twice that they ended: {twice[:5]}"
        assert all(self.runs[ids.text(job.id)] for job in records), "done without having run"
        entries: list[Entry] = [*read(b"".join(self._lines)), *await survey(self.direct)]
        undone = self._undone(entries)
        violations = check(entry for entry in entries if id(entry) not in undone and entry.job not in self._excused)
        assert not violations, report(violations)
        again = sum(n - 1 for n in self.runs.values())
        slowest = max(self.waits, default=0)
        print(
            f"{len(records)} jobs, {again} runs again, refused {dict(self.errors)}; "
            f"consumed again within {slowest:.2f} s in each of {len(self.waits)} trials"
        )


@asynccontextmanager
async def in_time(what: str, within: float = 2 * BOUND) -> AsyncIterator[None]:
    """Rather than hang, fail, and show who waits for what."""
    try:
        async with asyncio.timeout(within):
            yield
    except TimeoutError:
        for task in asyncio.all_tasks():
            task.print_stack(limit=8)
        raise AssertionError(f"not within {within:g} s: {what}") from None


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[Engine]:
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()

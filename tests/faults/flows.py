"""A storm over durable jobs: workers that are killed while flows step, sleep, wait for signals and call other jobs.

A ledger outside of the store, one file that all processes append to, says what happened in which order: `ran` before
the effect of a step, `seen` after the step returned to its handler. The judge wants that no step ran after it was seen,
that a step has one value for ever, that every flow ended with the value of its signal, and that what was written in the
transaction of a step is there once. A process that was frozen past its lease may begin one more step before it learns
that its claim is lost: such steps are counted apart. `BUGS` are designs that look right, and the judge must find them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from stoker.app import Stoker
from stoker.context import current
from stoker.durable import suspension
from stoker.durable.run import DurableRun
from stoker.durable.step_participant import StepParticipant
from stoker.durable.stored_rows import StoredRows
from stoker.durable.suspension import Suspension
from stoker.durable.values import done
from stoker.handle import JobHandle
from stoker.model import ids
from stoker.model.errors import EngineError, JobFailed, StepFailed
from stoker.model.job import FINISHED, Status
from stoker.model.retry import Fixed
from stoker.model.steps import Step, StepState
from stoker.worker import Worker
from tests.faults.fork_server import forked
from tests.faults.members import Members

LEASE = 1.0
CALM = 240.0
"""Seconds that the last worker, which nobody kills, has for what is left: then a flow counts as stuck."""

LULL = 0.2
"""Seconds between two kills, on average: hardly more than a worker needs to start."""

REFUSALS = (EngineError, psycopg.Error, sqlite3.Error)
"""What a caller is told by a store that is away, here or by the driver of its own transaction."""

FROZEN_FOR = 2.5 * LEASE

IN_TRANSACTIONS = 0.3
"""How many of the signals are sent in a transaction; a third of these is rolled back first."""


class Site(NamedTuple):
    """Where jobs, the rows of steps in transactions and the ledger are."""

    url: str
    ledger: str
    parallel: int
    bug: str | None = None

    @property
    def schema(self) -> str | None:
        """On Postgres, where it is the last option of the URL."""
        return self.url.partition("schema=")[2] or None

    @property
    def transactional(self) -> bool:
        return not self.url.startswith("redis")

    @property
    def table(self) -> str:
        return f"{self.schema}.paid" if self.schema else "paid"

    def connect(self) -> Any:
        if self.schema:
            return psycopg.connect(self.url.partition("schema=")[0][:-1])
        return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """What a statement returns, as soon as the server is there."""
        while True:
            try:
                with closing(self.connect()) as raw, raw:
                    cursor = raw.execute(text)
                    return cursor.fetchall() if cursor.description else []
            except psycopg.OperationalError:  # between two crashes
                time.sleep(0.05)


class Ledger:
    """Lines that processes append; each is one write, so they are in the order in which they happened."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, flow: str, step: str, value: Any = None) -> None:
        os.write(self._file, json.dumps([what, flow, step, value, os.getpid()]).encode() + b"\n")


# --- the flows ------------------------------------------------------------------------------------------------------


def app_on(site: Site) -> Stoker:
    """The app that producers and workers share."""
    ledger = Ledger(site.ledger)
    jobs = Stoker(site.url, attempts=1_000, backoff=Fixed(0.01), timeline=False)

    async def effect(flow: str, step: str, longest: float = 0.004) -> int:
        ledger.write("ran", flow, step)
        await asyncio.sleep(random.uniform(0, longest))
        return random.getrandbits(40)

    async def stepped(flow: str, name: str, key: str | None = None, longest: float = 0.004) -> int:
        row = name if key is None else f"{name}:{key}"
        value = await current().step(name, effect, flow, row, longest, key=key)
        ledger.write("seen", flow, row, value)
        return value

    async def pay(tx: Any, n: int) -> int:
        mark = "$1" if site.schema else "?"
        await tx.execute(f"insert into {site.table} values ({mark})", n)
        return n

    async def late(flow: str) -> str:
        try:
            await current().wait("never", timeout=random.uniform(0.05, 0.3))
        except TimeoutError:
            ledger.write("seen", flow, "never", "late")
            return "late"
        return "signaled"

    def declined(flow: str) -> None:
        ledger.write("ran", flow, "declined")
        raise ValueError(random.getrandbits(40))

    @jobs.task(crashes=None)
    async def child(flow: str, k: int) -> int:
        name = f"{flow}/{k}"
        value = await stepped(name, "first")
        if k % 2:
            await current().sleep(random.uniform(0.0, 0.3))
        await stepped(name, "second")
        return value

    @jobs.task(crashes=None, attempts=1)
    async def dies() -> None:
        raise ValueError("always")

    @jobs.task(crashes=None)
    async def flow(n: int, children: int) -> dict[str, Any]:
        run, me = current(), str(n)
        await stepped(me, "first")
        await asyncio.gather(*(stepped(me, "part", str(part)) for part in range(site.parallel)))
        error = ""
        try:
            await run.step("declined", declined, me)
        except StepFailed as failed:
            error = failed.error.partition("\n")[0]
        await run.sleep(random.uniform(0.15, 0.3) if n % 3 else 0.05)
        answer = await run.wait("go", int)
        ledger.write("seen", me, "go", answer)
        if site.transactional:
            await run.step("pay", pay, n, tx=True)
        found, _ = await asyncio.gather(late(me), stepped(me, "beside", longest=0.2))
        ledger.write("seen", me, "declined", error)  # a failure that was caught is stored with the next step
        called = await asyncio.gather(
            *(run.call(child.draft(me, k)) for k in range(children)), stepped(me, "meanwhile", longest=0.02)
        )
        ledger.write("seen", me, "called", called[:-1])
        if n % 7 == 0:
            try:
                await run.call(dies.draft())
            except JobFailed:
                ledger.write("seen", me, "dies", "failed")
        await stepped(me, "last")
        return {"answer": answer, "late": found}

    return jobs


async def work(site: Site, slots: int) -> None:
    """A worker for ever; it is killed."""
    if site.bug is not None:
        plant(site.bug)
    while True:
        with suppress(EngineError):  # the server is away: begin anew
            async with Worker(app_on(site), {"default": slots}, lease=LEASE, poll=0.05):
                await asyncio.Event().wait()
        await asyncio.sleep(0.05)


async def produce(site: Site, flows: int, over: float, seed: int) -> None:
    """Enqueue flows and signal each at a random moment: before it runs, while it does, or long after it waits."""
    chance, ledger = random.Random(seed), Ledger(site.ledger)
    async with app_on(site) as jobs, asyncio.TaskGroup() as signals:
        for n in range(flows):
            draft = jobs.tasks["flow"].draft(n, chance.randint(1, 3))
            while True:
                try:
                    await jobs.enqueue_many([draft])
                except EngineError:
                    await asyncio.sleep(0.05)
                else:
                    break
            job = jobs.handle(draft.job_id)
            ledger.write("made", str(n), "", job.id)
            pause = 0.0 if chance.random() < 0.3 else min(chance.expovariate(1 / 0.5), 3.0)
            signals.create_task(_signal(site, job, n, pause, chance))
            await asyncio.sleep(over / flows)


async def _signal(site: Site, job: JobHandle[Any], n: int, pause: float, chance: random.Random) -> None:
    """Send the signal of a flow until it is stored: what a store refuses is sent again, as callers are told to."""
    await asyncio.sleep(pause)
    inside = site.transactional and chance.random() < IN_TRANSACTIONS
    if inside and chance.random() < 0.3:
        with suppress(*REFUSALS):
            await asyncio.to_thread(_signal_inside, site, job, -n, commits=False)
    while True:
        try:
            if inside:
                await asyncio.to_thread(_signal_inside, site, job, 7 * n, commits=True)
            else:
                await job.signal("go", 7 * n)
        except REFUSALS:
            await asyncio.sleep(0.05)
        else:
            return


def _signal_inside(site: Site, job: JobHandle[Any], value: int, *, commits: bool) -> None:
    with closing(site.connect()) as raw:
        raw.execute("begin immediate" if site.schema is None else "select 1")
        job.signal_sync("go", value, tx=raw)
        time.sleep(random.uniform(0, 0.005))
        raw.commit() if commits else raw.rollback()


# --- the storm and its judge ------------------------------------------------------------------------------------------


def storm(
    url: str,
    path: str,
    flows: int,
    kills: int,
    workers: int,
    seed: int,
    parallel: int = 3,
    calm: float = CALM,
    bug: str | None = None,
    through: str | None = None,
    freezing: float = 0.0,
) -> dict[str, Any]:
    """Kill worker processes at random while flows are made and run; runs in a process that may fork.

    `through`: the URL by which the workers that are killed reach the store, such as a proxy's. `freezing`: how many of
    the faults freeze a process beyond its lease instead.
    """
    logging.disable(logging.CRITICAL)
    site, chance = Site(url, path, parallel, bug), random.Random(seed)
    asyncio.run(_prepare(site))
    slots = 20 if flows < 1_000 else 100
    works = [partial(work, site._replace(url=through or url), slots)] * workers
    members = Members(works, chance, freezing=freezing, frozen_for=FROZEN_FOR)
    began = time.monotonic()
    producer = forked(lambda: asyncio.run(produce(site, flows, kills * LULL, seed)))
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 2 * LULL))
        members.fault()
    _, status = os.waitpid(producer, 0)
    members.end()
    raged = time.monotonic() - began
    made = {job: int(n) for what, n, _, job, _ in lines_of(site) if what == "made"}
    found = judge(site, made, asyncio.run(finish(site, made, calm)), members.were_frozen)
    if status or len(made) != flows:
        found["wrong"].append(f"the producer made {len(made)} flows and ended with {status}")
    return {
        **found,
        **members.tally,
        "raging": round(raged, 1),
        "finishing": round(time.monotonic() - began - raged, 1),
    }


def lines_of(site: Site) -> Iterator[list[Any]]:
    """What the ledger says, in its order."""
    with Path(site.ledger).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


async def _prepare(site: Site) -> None:
    async with app_on(site) as jobs:
        await jobs.engine()
    if site.transactional:
        site.rows(f"create table {site.table} (n integer)")


async def finish(site: Site, made: dict[str, int], calm: float) -> dict[int, Any]:
    """Let one worker that nobody kills end everything; returns the results, and of what is stuck its rows."""
    if site.bug is not None:
        plant(site.bug)
    while True:
        try:
            return await _finish(site, made, calm)
        except EngineError:  # the last crash of the server was not long ago
            await asyncio.sleep(0.1)


async def _finish(site: Site, made: dict[str, int], calm: float) -> dict[int, Any]:
    jobs, found = app_on(site), dict[int, Any]()
    end = time.monotonic() + calm
    async with jobs, Worker(jobs, {"default": 100}, lease=LEASE, poll=0.05):
        engine = await jobs.engine()
        open_ = {ids.parse(job): n for job, n in made.items()}
        while open_ and time.monotonic() < end:
            some = list(open_)[:500]
            ended = [job for job in await engine.operator.get(some) if job is not None and job.status in FINISHED]
            for job in ended:
                n = open_.pop(job.id)
                found[n] = json.loads(job.result or b"null") if job.status is Status.DONE else job.last_error
            await asyncio.sleep(0.0 if ended else 0.1)
        for stuck, n in open_.items():
            [record], [rows] = await engine.operator.get([stuck]), await engine.steps.get([stuck])
            shown = [(row.name, row.state.name) for row in rows if row.state is not StepState.DONE]
            found[n] = f"stuck: {None if record is None else (record.status.value, record.settled)} {shown}"
    return found


def judge(site: Site, made: dict[str, int], results: dict[int, Any], frozen: set[int]) -> dict[str, Any]:
    """Everything that is not as it must be, and how much there was of it all; `frozen` are processes that were."""
    wrong: list[str] = []
    for n in made.values():
        found = results.get(n)
        wrong += [] if found == {"answer": 7 * n, "late": "late"} else [f"flow {n} ended with {found}"]
    seen: dict[tuple[str, str], Any] = {}
    runs: dict[tuple[str, str], int] = defaultdict(int)
    again = thawed = 0
    for what, flow, step, value, pid in lines_of(site):
        place = flow, step
        if what == "ran":
            runs[place] += 1
            again += runs[place] > 1
            if place in seen and pid in frozen:
                thawed += 1
            elif place in seen:
                wrong.append(f"step {step} of {flow} ran again after it had returned")
        elif what == "seen" and seen.setdefault(place, value) != value:
            wrong.append(f"step {step} of {flow} is {value} and was {seen[place]}")
    if site.transactional:
        paid = sorted(n for (n,) in site.rows(f"select n from {site.table}"))
        if paid != sorted(made.values()):
            wrong.append(f"{len(paid)} rows of {len(made)} steps in transactions")
    return {
        "wrong": wrong[:40],
        "flows": len(made),
        "steps": len(runs),
        "repeated": again,
        "of these after they were stored, by a thawed process": thawed,
    }


# --- designs that look right ------------------------------------------------------------------------------------------


def plant(bug: str) -> None:
    """Plant a bug into this process, before it makes an engine."""
    run: Any = DurableRun
    rows: Any = StoredRows
    suspension_of: Any = Suspension
    if bug == "trusts its memory":  # only the first run of a job that failed reads what is stored
        rows.read = _unread
    elif bug == "sleeps anew":  # each run begins its sleeps from their beginning
        sleep = run._sleep

        async def anew(self: Any, row: str, until: int | None, pause: int) -> None:
            self._rows.by_name.pop(row, None)
            await sleep(self, row, until, pause)

        run._sleep = anew
    elif bug == "pays apart":  # a step's writes are one commit, its row is the next
        run._in_transaction = _paid_apart
    elif bug == "forgets failures":  # a failure that the handler caught is not stored
        run.left = lambda *_: ()
        ask = run._ask

        def forget(self: Any, what: str) -> None:
            ask(self, what)
            unsaved = self._rows.unsaved
            self._rows.unsaved = {name: row for name, row in unsaved.items() if row.state is not StepState.FAILED}

        run._ask = forget
    elif bug == "starts children anew":  # each run calls jobs of its own
        module: Any = suspension
        derived = ids.derived

        class Anew:
            text = staticmethod(ids.text)

            @staticmethod
            def derived(parent: bytes, name: str) -> bytes:
                return derived(parent, f"{name} {random.random()}")

        module.ids = Anew
        suspension_of._store_calls = _called_before_stored
    elif bug == "saves later":  # a step goes on before it is stored
        save = rows.save
        tasks = set[asyncio.Task[bool]]()

        async def later(self: Any, *steps: Step, **more: Any) -> bool:
            tasks.add(asyncio.create_task(save(self, *steps, **more)))
            self.by_name.update((step.name, step) for step in steps)
            return True

        rows.save = later
    else:
        raise AssertionError(bug)


async def _paid_apart(self: Any, row: str, fn: Any, args: tuple[Any, ...], tries: Any) -> Step:
    part: Any = StepParticipant(self._context, row)
    part.end = _unsaved
    async with self._block(part, tries) as handle:
        step = done(row, await self._run(row, fn, (handle, *args), tries.timeout))
    await asyncio.sleep(0.05)
    await self._rows.save(step)
    return step


async def _unsaved(*_: Any) -> bool:
    return True


async def _unread(self: Any, *, fresh_too: bool = False) -> dict[str, Step]:
    return dict[str, Step](self.by_name)


async def _called_before_stored(self: Any) -> None:
    """The children first, their rows afterwards."""
    called = self._called.copy()
    with self.working():
        rows, waits, drafts, groups = self._children()
        await self._rows.save(*waits, drafts=tuple(drafts), groups=tuple(groups))
        await asyncio.sleep(0.02)
        await self._rows.save(*rows)
    for step in rows:
        if not (answer := called[step.name]).done():
            answer.set_result(step)


BUGS = (
    "trusts its memory",
    "sleeps anew",
    "pays apart",
    "forgets failures",
    "starts children anew",
    "saves later",
)

SOON_FOUND = "forgets failures"
"""One that leaves no flow stuck, which only time would tell."""

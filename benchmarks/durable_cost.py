"""What durable jobs cost: their calls, a step in a worker, many suspended jobs in a store, and how late waits end.

Each cost stands beside that of what a job without steps does: a saved step beside a plain settlement, a suspension
beside a snooze, a signal beside `run_now`, one more step beside one more job.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from benchmarks.app import AFTER, ASK, CALL, CALLED, NAP, QUEUE, STAMP, make_app
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.doors import WORKER, drafts, successes
from benchmarks.grounds import NAMES, Name
from benchmarks.group_cost import servers
from benchmarks.rows import Bar, Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter, Pair, in_turns, percentile, times
from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model.job import Claim, Demand, Draft
from stoker.model.lifecycle import conclude
from stoker.model.markers import RESULTS
from stoker.model.outcome import Done, Snoozed, Suspended
from stoker.model.query import RunNow, Selection
from stoker.model.steps import Save, Signal, Step, StepState, told
from stoker.model.time import HOUR, SECOND
from stoker.registry import mint
from stoker.worker import Worker

VALUE = b'{"ok":true,"id":"ch_123456789"}'
GO = Step("go", StepState.WAITING)
BATCH = 100
SLOTS = 100
TALKERS, WORDS = 100, 50
"""Runs that emit, and how many values each of them emits a second."""

MORE = 5
"""Steps that one side of the worker row has more than the other."""

TAKEN = 10
"""Jobs of one claim beside the suspended ones."""

CENSUS = 100.0
"""Milliseconds that a census may take."""

ASKED, QUESTIONS = 20, 20.0
"""Jobs that ask a person, and milliseconds in which they are found."""

SHORTEST, LONGEST = 0.3, 2.0
"""Seconds that a job sleeps: more than what it would sleep in its slot."""

Stores: TypeAlias = tuple[Callable[[], str], Callable[[str], None]]
"""How to make an empty store, and how to drop it."""


class _opened:  # noqa: N801 - read as a verb
    """An engine on a store, with a worker that never falls silent."""

    def __init__(self, url: str) -> None:
        self._engine = engine_from_url(url)

    async def __aenter__(self) -> Engine:
        await self._engine.open()
        await self._engine.jobs.renew(WORKER, [], lease=HOUR, first=True)
        return self._engine

    async def __aexit__(self, *exc: object) -> None:
        await self._engine.jobs.renew(WORKER, [], lease=0)
        await self._engine.close()


async def _taken(engine: Engine, n: int) -> list[Claim]:
    claims = await engine.jobs.claim(Demand(WORKER, ((QUEUE, n),)))
    assert len(claims) == n
    return claims


async def _new(engine: Engine, n: int) -> list[Claim]:
    await engine.jobs.insert(drafts([mint() for _ in range(n)]))
    return await _taken(engine, n)


def _times(name: str, unit: str, pairs: list[Pair[float]], bar: Bar | None, note: str) -> Row:
    """A row that says how many times the limit something takes."""
    ratios = sorted(pair.value / pair.limit for pair in pairs)
    value, limit = (median(pair[side] for pair in pairs) for side in (0, 1))
    note = f"{note}; rounds {ratios[0]:.2f}–{ratios[-1]:.2f}"
    return Row(name, unit, value, limit, times(pairs), bar, note=note)


# --- calls of an engine -----------------------------------------------------------------------------------------


async def _called(url: str, batch: int, rounds: int, repeats: int) -> list[dict[str, float]]:
    """Microseconds per job of each call, round by round. The two sides change who goes first."""
    found = []
    async with _opened(url) as engine:
        await _durable(engine, batch, defaultdict(Meter))  # the first calls find nothing prepared
        await _plain(engine, batch, defaultdict(Meter))
        for _ in range(rounds):
            meters: defaultdict[str, Meter] = defaultdict(Meter)
            for number in range(repeats):
                for side in (_durable, _plain) if number % 2 else (_plain, _durable):
                    await side(engine, batch, meters)
            found.append({name: meter.pace for name, meter in meters.items()})
    return found


async def _timed(meter: Meter, jobs: int, call: Awaitable[Any]) -> Any:
    with meter:
        found = await call
    meter.jobs += jobs
    return found


async def _durable(engine: Engine, batch: int, meters: defaultdict[str, Meter]) -> None:
    """Save a step, suspend, signal."""
    claims = await _new(engine, batch)
    saves = [Save(one.id, one.worker, one.token, (Step("charge", value=VALUE),), ref=one.ref) for one in claims]
    assert set(await _timed(meters["save"], batch, engine.steps.save(saves))) == {"applied"}
    ends = [conclude(one, Suspended((GO,))) for one in claims]
    await _timed(meters["suspend"], batch, engine.jobs.settle(ends))
    signals = [Signal(one.id, GO.name, VALUE) for one in claims]
    assert set(await _timed(meters["signal"], batch, engine.steps.signal(signals))) == {"taken"}
    await engine.jobs.settle(successes(await _taken(engine, batch)))


async def _plain(engine: Engine, batch: int, meters: defaultdict[str, Meter]) -> None:
    """Settle; snooze, run now."""
    ends = [conclude(one, Done(VALUE)) for one in await _new(engine, batch)]
    await _timed(meters["settle"], batch, engine.jobs.settle(ends))
    claims = await _new(engine, batch)
    ends = [conclude(one, Snoozed(HOUR)) for one in claims]
    await _timed(meters["snooze"], batch, engine.jobs.settle(ends))
    chosen = Selection(tuple(one.id for one in claims))
    await _timed(meters["run_now"], batch, engine.operator.alter(chosen, RunNow()))
    await engine.jobs.settle(successes(await _taken(engine, batch)))


def calls(session: Session, name: str, stores: Stores) -> Iterator[Row]:
    fresh, drop = stores
    rounds = max(session.rounds, FEWEST_ROUNDS)
    for batch, repeats in ((BATCH, session.sized(6, 20)), (1, session.sized(20, 100))):
        url = fresh()
        found = asyncio.run(_called(url, batch, rounds, repeats))
        drop(url)

        def row(value: str, limit: str, bar: Bar | None, batch: int = batch, found: Any = found) -> Row:
            pairs = [Pair(one[value], one[limit]) for one in found]
            note = f"against {limit}, {batch} a call"
            return _times(f"durable.{name}.{value}.{batch}", "µs/job", pairs, bar, note)

        yield row("save", "settle", at_most(1.3, "ratio"))
        if batch == BATCH:
            yield row("suspend", "snooze", at_most(2.0 if name == "redis" else 1.3, "ratio"))
        else:
            yield row("signal", "run_now", at_most(1.5, "ratio") if name == "postgres" else None)


# --- a worker ---------------------------------------------------------------------------------------------------


async def _drained(url: str, number: int, steps: int) -> float:
    """Microseconds that a worker takes for a job with so many steps."""
    jobs = Stoker(url, timeline=False)

    def small(n: int) -> dict[str, int]:
        return {"n": n}

    @jobs.task
    async def work(n: int) -> None:
        for _ in range(steps):
            await current().step("small", small, n)

    async with jobs:
        for start in range(0, number, 1_000):
            await jobs.enqueue_many([work.draft(n) for n in range(start, min(start + 1_000, number))])
        worker, meter = Worker(jobs, {"default": SLOTS}, drain=True), Meter()
        await worker.start()
        with meter:
            await worker.join()
        await worker.stop()
    meter.jobs = number
    return meter.pace


def one_more_step(session: Session, name: str, stores: Stores) -> Iterator[Row]:
    fresh, drop = stores
    number = session.sized(1_000, 5_000)

    url = fresh()

    def run(steps: int) -> float:
        return asyncio.run(_drained(url, number, steps))

    run(1)  # the first run finds nothing prepared
    pairs = in_turns(session.rounds, lambda: (run(1 + MORE) - run(1)) / MORE, partial(run, 0))
    drop(url)
    note = f"one more step against one more job, {SLOTS} slots"
    yield _times(f"durable.{name}.step", "µs/step", pairs, at_most(2.5, "ratio"), note)


# --- beside runs that emit --------------------------------------------------------------------------------------


async def _beside_talkers(url: str, number: int, *, emit: bool) -> float:
    """Microseconds that a worker takes for a plain job while `TALKERS` other runs emit, or do the same without it."""
    jobs, over = Stoker(url, timeline=False), asyncio.Event()

    @jobs.task
    async def work(n: int) -> None:
        pass

    @jobs.task(queue="talk")
    async def talk() -> None:
        run, words = current(), 0
        while not over.is_set():
            words += 1
            if emit:
                run.emit({"token": words, "text": "word"})
            await asyncio.sleep(1 / WORDS)

    async with jobs:
        await jobs.enqueue_many([talk.draft() for _ in range(TALKERS)])
        for start in range(0, number, 1_000):
            await jobs.enqueue_many([work.draft(n) for n in range(start, start + 1_000)])
        last = await work.enqueue(number)
        worker, meter = Worker(jobs, {"default": SLOTS, "talk": TALKERS}), Meter()
        await worker.start()
        with meter:
            await last.result()
        over.set()
        await worker.stop()
    meter.jobs = number
    return meter.pace


def beside_talkers(session: Session, name: str, stores: Stores) -> Iterator[Row]:
    fresh, drop = stores
    number = session.sized(10_000, 60_000)
    url = fresh()

    def run(*, emit: bool) -> float:
        return asyncio.run(_beside_talkers(url, number, emit=emit))

    run(emit=True)  # the first run finds nothing prepared
    pairs = in_turns(max(session.rounds, FEWEST_ROUNDS), partial(run, emit=True), partial(run, emit=False))
    drop(url)
    note = f"a plain job while {TALKERS} runs emit {WORDS} values a second each, against the same without emitting"
    yield _times(f"durable.{name}.emit", "µs/job", pairs, at_most(1.1, "ratio"), note)


# --- beside suspended jobs --------------------------------------------------------------------------------------


class _Beside(NamedTuple):
    """Milliseconds of claims, censuses and lists of questions beside suspended jobs, and of claims beside none.

    `stored` are the seconds that suspending each of them took.
    """

    claims: list[Pair[float]]
    censuses: list[float]
    questions: list[float]
    stored: float


async def _suspended(engine: Engine, n: int, row: Step = GO) -> None:
    for start in range(0, n, 1_000):
        claims = await _new(engine, min(1_000, n - start))
        await engine.jobs.settle([conclude(one, Suspended((row,))) for one in claims])


async def _beside(full: str, none: str, n: int, rounds: int, vacuum: Callable[[], Awaitable[None]]) -> _Beside:
    """Claims of both stores in turns; a round is the median of ten."""
    async with _opened(full) as crowded, _opened(none) as lonely:
        await _suspended(crowded, ASKED, Step("approval", StepState.WAITING, told(ask="May we?")))
        began = time.perf_counter()
        await _suspended(crowded, n)
        found = _Beside([], [], [], (time.perf_counter() - began) / n)
        await vacuum()
        for _ in range(rounds + 1):
            took: dict[Engine, list[float]] = {crowded: [], lonely: []}
            for number in range(10):
                for engine in (crowded, lonely) if number % 2 else (lonely, crowded):
                    await engine.jobs.insert(drafts([mint() for _ in range(TAKEN)]))
                    began = time.perf_counter()
                    claims = await _taken(engine, TAKEN)
                    took[engine].append((time.perf_counter() - began) * 1e3)
                    await engine.jobs.settle(successes(claims))
            found.claims.append(Pair(median(took[crowded]), median(took[lonely])))
            began = time.perf_counter()
            await crowded.operator.census()
            found.censuses.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            asking = await crowded.steps.asking()
            assert len(await crowded.operator.get(asking)) == len(await crowded.steps.get(asking)) == ASKED
            found.questions.append((time.perf_counter() - began) * 1e3)
    return found


async def _no_vacuum() -> None:
    pass


def beside_suspended(name: str, stores: Stores, n: int, rounds: int) -> _Beside:
    """Claims and censuses beside `n` suspended jobs; the first of either finds nothing prepared."""
    fresh, drop = stores
    full, none = fresh(), fresh()

    async def vacuum() -> None:
        """What the server does by itself within a minute."""
        import asyncpg

        link = await asyncpg.connect(full.partition("?")[0])
        await link.execute("VACUUM ANALYZE")
        await link.close()

    found = asyncio.run(_beside(full, none, n, rounds, vacuum if name == "postgres" else _no_vacuum))
    drop(full)
    drop(none)
    return found


def beside(session: Session, name: str, stores: Stores) -> Iterator[Row]:
    n = session.sized(10_000, 100_000)
    found = beside_suspended(name, stores, n, max(session.rounds, FEWEST_ROUNDS))
    note = f"{TAKEN} jobs beside {n:,} suspended, against beside none"
    yield _times(f"durable.{name}.claim", "ms/claim", found.claims[1:], at_most(1.1, "ratio"), note)
    note = f"beside {n:,} suspended jobs; first {found.censuses[0]:.1f} ms"
    yield absolute(f"durable.{name}.census", "ms p50", median(found.censuses[1:]), at_most(CENSUS), note)
    note = f"{ASKED} jobs that ask, with their rows, beside {n:,} that sleep; first {found.questions[0]:.1f} ms"
    yield absolute(f"durable.{name}.questions", "ms p50", median(found.questions[1:]), at_most(QUESTIONS), note)


# --- how late waits end -----------------------------------------------------------------------------------------


async def _wait_for(app: Stoker, n: int) -> list[float]:
    """Let jobs of another process wait in every way, and others beside them; how long a read of steps takes, in ms."""
    engine = await app.engine()
    chance = random.Random(17)
    reads = []
    for _ in range(n):  # asleep, while the rest is measured
        due = time.time_ns() + round(chance.uniform(SHORTEST, LONGEST) * 1e9)
        await engine.jobs.insert([Draft(mint(), NAP, b'{"due":%d}' % due, QUEUE)])
        delay = chance.uniform(SHORTEST, LONGEST)
        stamp = b'{"sent":%d}' % (time.monotonic_ns() + round(delay * 1e9))
        await engine.jobs.insert([Draft(mint(), STAMP, stamp, QUEUE, delay=round(delay * SECOND))])
    await asyncio.sleep(LONGEST + 1)
    for _ in range(n):
        job = mint()
        await engine.jobs.insert([Draft(job, ASK, b"{}", QUEUE)])
        while not [row for row in (await engine.steps.get([job]))[0] if row.state is StepState.WAITING]:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        began = time.perf_counter()
        await engine.steps.get([job])
        reads.append((time.perf_counter() - began) * 1e3)
        await engine.steps.signal([Signal(job, "go", b"%d" % time.monotonic_ns())])
        await app.handle(job).result(30)
        await asyncio.sleep(0.02)
        job = mint()
        await engine.jobs.insert([Draft(job, STAMP, b'{"sent":%d}' % time.monotonic_ns(), QUEUE)])
        await app.handle(job).result(30)
    called, after = app.tasks[CALLED], app.tasks[AFTER]
    for _ in range(n):
        await asyncio.sleep(0.02)
        job = mint()
        await engine.jobs.insert([Draft(job, CALL, b"{}", QUEUE)])
        await app.handle(job).result(30)
        group = await app.group([called.draft()], then=after.draft(RESULTS))
        await group.wait(timeout=30)
    await asyncio.sleep(0.5)
    return reads


async def _waited(url: str, n: int) -> list[float]:
    async with make_app(engine_from_url(url)) as app:
        return await _wait_for(app, n)


def late(session: Session, name: str, stores: Stores) -> Iterator[Row]:
    fresh, drop = stores
    n, url = session.sized(30, 200), fresh()
    with Child("worker", url=url) as child:
        reads = asyncio.run(_waited(url, n))
        figures = child.stop()
    drop(url)
    woken, stamps, read = figures["woken"], figures["stamps"], median(reads)

    def rows(what: str, kind: str, beside: list[float], more: float, note: str) -> Iterator[Row]:
        for part, percent in (("", 50), (".p95", 95)):
            value, limit = percentile(woken[kind], percent), percentile(beside, percent) + more
            bar = None if part else at_most(1.0, "ratio")
            row = f"durable.{name}.{what}{part}"
            yield Row(row, f"ms p{percent}", value, limit, value / limit, bar, note=f"{note}; {len(woken[kind])} jobs")

    plus = f"and a read of {read:.1f} ms"
    yield from rows("sleep", NAP, stamps[:n], read, f"a sleep ends late, against a delayed job {plus}")
    yield from rows("signal.line", ASK, stamps[n:], read, f"signal to the next line, against enqueue to start {plus}")
    yield from rows("call.line", CALL, woken[AFTER], read, f"end of a called job, against a group's callback {plus}")


# --- the list ---------------------------------------------------------------------------------------------------


def measured(session: Session, name: str, stores: Stores) -> Iterator[Row]:
    for part in (calls, one_more_step, beside_talkers, beside, late):
        yield from part(session, name, stores)


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session), 7) as paths:
        waiting = [f"sqlite:///{path}" for path in paths]
        yield from measured(session, "sqlite", (waiting.pop, lambda _: None))


def on_server(session: Session, name: Name) -> Iterator[Row]:
    yield from measured(session, name, servers(session, name))


BENCHMARKS = [
    Benchmark("durable.sqlite", ("sqlite",), on_sqlite),
    *(Benchmark(f"durable.{name}", (name,), partial(on_server, name=name)) for name in NAMES),
]

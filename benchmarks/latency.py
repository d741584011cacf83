"""How long a caller waits for one enqueue, and how long news take to reach another process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import doors
from benchmarks.app import NOOP, PAYLOAD, QUEUE
from benchmarks.bare import Bare
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.rows import Bar, Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import WORDS, Durability, empty
from benchmarks.stats import Pair, over, percentile, times
from stoker.engines.sqlite import SqliteEngine
from stoker.engines.sqlite.columns import INSERT_BODY
from stoker.registry import mint

_BODY = INSERT_BODY


def _micros(action: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - began) / 1000


def _lone_insert(bare: Bare, seq: int) -> None:
    """The least that any store in a SQLite file could do: one row, one commit."""
    now = time.time_ns() // 1000
    bare.raw.execute("BEGIN IMMEDIATE")
    bare.raw.execute(_BODY, (seq, mint(), 1, 0, now, NOOP, PAYLOAD, 5, now, None, None, None, None, None))
    bare.raw.execute("COMMIT")


async def _rounds(paths: list[Path], durability: Durability, rounds: int, calls: int) -> list[tuple[float, ...]]:
    """Per round the p50 of an awaited enqueue, of its bare statements, and of a lone INSERT, in µs."""
    engine = SqliteEngine(paths[0], durability=durability)
    await engine.open()
    medians: list[tuple[float, ...]] = []
    try:
        with Bare(paths[1], durability) as same, Bare(paths[2], durability) as lone:
            for number in range(rounds + 1):
                mine, statements, inserts = [], [], []
                # One of each in turn: the disk's mood changes within milliseconds.
                for call in range(calls):
                    [draft] = doors.drafts([mint()])
                    began = time.perf_counter_ns()
                    await engine.jobs.insert([draft])
                    mine.append((time.perf_counter_ns() - began) / 1000)
                    statements.append(_micros(partial(same.insert, [mint()])))
                    inserts.append(_micros(partial(_lone_insert, lone, 1_000_000 + number * calls + call)))
                medians.append((median(mine), median(statements), median(inserts)))
    finally:
        await engine.close()
    return medians[1:]  # the first round warms up


def enqueue(session: Session, durability: Durability) -> Iterator[Row]:
    """One awaited enqueue against the bare commit of the same statements, and of a single INSERT."""
    with session.copies(empty(session), 3) as paths:
        rounds = asyncio.run(_rounds(paths, durability, session.sized(8, 20), session.sized(30, 60)))
    name = f"enqueue.{WORDS[durability]}"
    bar: Bar = at_most(2.0, "ratio") if durability == "power" else at_most(200.0, "over")
    for suffix, limit in (("", 1), (".insert", 2)):
        pairs = [Pair(medians[0], medians[limit]) for medians in rounds]
        more = over(pairs)
        yield Row(
            name + suffix,
            "µs p50",
            median(pair.value for pair in pairs),
            median(pair.limit for pair in pairs),
            times(pairs),
            bar,
            more,
            f"{more:+.0f} µs over " + ("one INSERT and its commit" if suffix else "a commit of the same statements"),
        )


async def _ring(path: Path, rings: int) -> list[float]:
    engine = SqliteEngine(path)
    await engine.open()
    rung: list[int] = []
    try:
        with Child("listener", path=str(path)) as child:
            for _ in range(rings):
                await asyncio.sleep(0.01)
                rung.append(time.monotonic_ns())
                await engine.jobs.wake([QUEUE])
            await asyncio.sleep(0.1)
            heard: list[int] = child.stop()["heard"]
    finally:
        await engine.close()
    # Each wake-up belongs to the ring before it, unless the next ring came first.
    return [
        (stamp - sent) / 1e6
        for sent, following in zip(rung, [*rung[1:], rung[-1] + 10**10], strict=True)
        for stamp in [next((stamp for stamp in heard if stamp >= sent), following)]
        if stamp < following
    ]


def wake(session: Session) -> Iterator[Row]:
    """From `wake` in one process to the end of `wait` in another that was idle."""
    with session.copies(empty(session)) as [path]:
        waits = asyncio.run(_ring(path, session.sized(60, 200)))
    note = f"p99 {percentile(waits, 99):.2f} ms, {len(waits)} wake-ups heard"
    yield absolute("wake", "ms p50", median(waits), at_most(1.0), note)


BENCHMARKS = [
    Benchmark("enqueue.full", ("sqlite",), partial(enqueue, durability="power")),
    Benchmark("enqueue.normal", ("sqlite",), partial(enqueue, durability="process")),
    Benchmark("wake", ("sqlite",), wake),
]

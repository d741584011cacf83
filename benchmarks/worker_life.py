"""How a worker behaves over time: idle, late, quick to start, growing. Each in a process of its own, as in life."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import stores
from benchmarks.app import BURN, QUEUE, STAMP
from benchmarks.bare import Bare, bell_of
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import WORDS, Durability, empty
from benchmarks.stats import percentile
from stoker.engines.sqlite import SqliteEngine
from stoker.engines.url import engine_from_url
from stoker.model.job import Draft
from stoker.registry import mint

LEASE = 1.5
"""Short, so that a few seconds show several renewals."""

STRETCH = 5
"""Seconds in which an idle worker did each of its chores at least once, retention apart."""


def at_rest(session: Session, url: str) -> tuple[float, str]:
    """The percentage of a core an idle worker takes, and a note.

    A process that does nothing but sleep and wake three times a second is billed anything between 0.03 and 0.7 % here,
    by the minute: a virtual core's way to sleep and back counts as the sleeper's. It only adds, so the best stretch is
    nearest to the truth.
    """
    rounds = session.sized(4, 12)
    with Child("idle", url=url, seconds=STRETCH, rounds=rounds) as child:
        percents: list[float] = child.figures()["percents"]
    return min(percents), f"best of {rounds} times {STRETCH} s, median {median(percents):.2f}"


def idle(session: Session) -> Iterator[Row]:
    """A worker on an empty queue, with everything it does now and then."""
    with session.copies(empty(session)) as [path]:
        percent, note = at_rest(session, f"sqlite:///{path}")
    yield absolute("worker.idle", "% CPU", percent, at_most(0.25), note)


def keeper(session: Session, name: str, burn: float) -> Iterator[Row]:
    """The lease's renewals of a worker that has more to do than it can."""
    path = session.fresh()
    total = 2_000 if burn else session.sized(150_000, 600_000)
    stores.build(path, ready=0 if burn else total)
    if burn:
        asyncio.run(_enqueue(path, BURN, b'{"seconds":%g}' % burn, total))
    with Child("keeper", path=str(path), seconds=session.sized(4, 10), lease=LEASE) as child:
        figures = child.figures()
    session.discard(path)
    late = figures["late"]
    note = f"latest of {len(late)}, p50 {median(late):.0f} ms; {figures['done']} jobs done"
    if figures["done"] >= total:
        note += "; it ran out of jobs before the end"
    yield absolute(name, "ms late", max(late), at_most(LEASE / 3 * 1000 if burn else 100.0), note)


async def _enqueue(path: Path, kind: str, payload: bytes, n: int) -> None:
    engine = SqliteEngine(path, durability="process")
    await engine.open()
    for _ in range(n // 500):
        await engine.jobs.insert([Draft(mint(), kind, payload, QUEUE) for _ in range(500)])
    await engine.close()


def pickup(session: Session, durability: Durability) -> Iterator[Row]:
    """From the enqueue call in one process to the handler's first line in an idle worker's."""
    with session.copies(empty(session), 2) as [path, other]:
        url = f"sqlite:///{path}?durability={durability}"
        with (
            Child("worker", url=url) as child,
            Child("bare_sqlite", path=str(other), durability=durability) as beside,
        ):
            calls, commits, began = asyncio.run(_one_by_one(url, other, durability, session.sized(60, 200)))
            waits: list[float] = child.stop()["stamps"]
            taken = beside.stop()["taken"]
    limit = median((took - sent) / 1e6 for sent, took in zip(began, taken, strict=True))
    note = (
        f"p99 {percentile(waits, 99):.1f} ms of {len(waits)}; the enqueue call itself took p50 {median(calls):.2f} ms, "
        f"a bare commit at this pace {median(commits):.2f} ms"
    )
    value = median(waits)
    yield Row(f"worker.pickup.{WORDS[durability]}", "ms p50", value, limit, value / limit, at_most(2.5), note=note)


async def _one_by_one(
    url: str, other: Path, durability: Durability, n: int
) -> tuple[list[float], list[float], list[int]]:
    """Enqueue now and then. Answers how long each call took, in ms, the same of each bare commit in between on another
    store, and when that was begun.
    """
    engine = engine_from_url(url)
    await engine.open()
    calls, commits, began = [], [], []
    with Bare(other, durability) as bare, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as voice:
        for _ in range(n):
            await asyncio.sleep(0.02)
            sent = time.monotonic_ns()
            bare.insert([mint()])
            commits.append((time.monotonic_ns() - sent) / 1e6)
            voice.sendto(b"", bell_of(other))
            began.append(sent)
            await asyncio.sleep(0.02)
            sent = time.monotonic_ns()
            await engine.jobs.insert([Draft(mint(), STAMP, b'{"sent":%d}' % sent, QUEUE)])
            calls.append((time.monotonic_ns() - sent) / 1e6)
        await asyncio.sleep(0.3)
    await engine.close()
    return calls, commits, began


def memory(session: Session) -> Iterator[Row]:
    """Private memory of a worker on a store with a long queue; given time, with its timeline."""
    first, total = 100_000, session.sized(200_000, 1_000_000)
    path = session.fresh()
    stores.build(path, ready=total)
    with Child("memory", path=str(path), first=first, timeline=not session.quick) as child:
        figures = child.figures()
    session.discard(path)
    early, late = figures["early"], figures["late"]
    yield absolute("worker.rss", "MiB RssAnon", early, at_most(80.0), f"after {first:,} jobs")
    slope = (late - early) / (figures["done"] - first) * 100_000
    note = f"{late:.1f} MiB after {figures['done']:,} jobs"
    yield absolute("worker.rss.slope", "MiB/100k jobs", slope, at_most(1.0), note)


BENCHMARKS = [
    *(
        Benchmark(f"worker.pickup.{word}", ("worker",), partial(pickup, durability=durability))
        for durability, word in WORDS.items()
    ),
    Benchmark("worker.idle", ("worker",), idle),
    Benchmark("worker.keeper.busy", ("worker",), partial(keeper, name="worker.keeper.busy", burn=0.0)),
    Benchmark("worker.keeper.burn", ("worker",), partial(keeper, name="worker.keeper.burn", burn=0.02)),
    Benchmark("worker.rss", ("worker",), memory),
]

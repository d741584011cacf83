"""Jobs that come one by one while others do: from the enqueue call to the handler's first line, at several rates.

The worker is `stoker work` with its default settings. Every engine but memory has its producers in other processes;
the memory engine lives in one, so there the app itself produces beside its worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.catalog import Benchmark
from benchmarks.children import ROOT, Child
from benchmarks.rows import Row, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import percentile

RATES = (10, 50, 200, 1_000)
ALONE = 3
"""Jobs a second that never meet one another."""

TRICKLE = 200
"""Jobs a second up to which each job must start as soon as one that comes alone."""

LATER, LATEST = 2.0, 25.0
"""By how many ms the p50 may be later than that of one that comes alone, and how many ms the p99 may be."""

PATIENCE = 30.0


@contextmanager
def working(url: str, waits: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """`stoker work`, ready, until the end of the block; it writes how long each job waited when it ends."""
    ready = waits.with_suffix(".ready")
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "work", "benchmarks.trickling:jobs", "--log-level", "error"]
        + ([] if url.startswith("memory") else ["--health-file", str(ready)]),
        cwd=ROOT,
        env={**os.environ, "STOKER_URL": url, "TRICKLE_WAITS": str(waits), **environ},
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (ready.exists() or url.startswith("memory")):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError("the worker did not start")
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        ready.unlink(missing_ok=True)


def waits_at(url: str, rate: int, seconds: float, producers: int = 1) -> list[float]:
    """How many ms each job waited."""
    with tempfile.TemporaryDirectory() as folder:
        waits = Path(folder) / "waits"
        if url.startswith("memory"):
            with working(url, waits, TRICKLE_RATE=str(rate), TRICKLE_SECONDS=str(seconds)) as process:
                process.wait(PATIENCE + seconds)
        else:
            with working(url, waits):
                children = [
                    Child("trickler", url=url, rate=rate / producers, seconds=seconds) for _ in range(producers)
                ]
                try:
                    for child in children:
                        child.ready()
                    time.sleep(0.5)  # the worker has nothing to do and goes to sleep
                    for child in children:
                        child.go()
                    for child in children:
                        child.figures()
                finally:
                    for child in children:
                        child.close()
                time.sleep(0.5)
        found = array("d")
        found.frombytes(waits.read_bytes())
        return found.tolist()


def rows(engine: str, session: Session, url: str) -> Iterator[Row]:
    """The rows of one engine. Every figure of a trickle stands beside that of jobs that come alone."""
    name = f"{engine}.pickup.trickle"
    seconds = session.sized(4, 10)
    alone = waits_at(url, ALONE, seconds * 2)
    limit = median(alone)
    for rate, producers in (*((rate, 1) for rate in RATES), (TRICKLE, 4)):
        waits = waits_at(url, rate, seconds, producers) if producers == 1 or engine != "memory" else []
        if not waits:
            continue
        value, late = median(waits), percentile(waits, 99)
        word = f"{rate}.four" if producers > 1 else str(rate)
        held = rate <= TRICKLE
        note = f"p99 {late:.1f} ms of {len(waits)}; alone p99 {percentile(alone, 99):.1f} ms of {len(alone)}"
        bar = at_most(LATER, "over") if held else None
        yield Row(f"{name}.{word}", "ms p50", value, limit, value / limit, bar, value - limit, note)
        if held:
            yield Row(f"{name}.{word}.p99", "ms p99", late, LATEST, late / LATEST, at_most(LATEST))


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session)) as [path]:
        yield from rows("sqlite", session, f"sqlite:///{path}")


def on_server(session: Session, name: str) -> Iterator[Row]:
    ground = session.ground(name)  # type: ignore[arg-type]
    place = ground.waiting(0)
    yield from rows(name, session, place.url)
    ground.drop(place)


def in_memory(session: Session) -> Iterator[Row]:
    yield from rows("memory", session, "memory://")


BENCHMARKS = [
    Benchmark("memory.pickup.trickle", ("memory",), in_memory),
    Benchmark("sqlite.pickup.trickle", ("sqlite",), on_sqlite),
    Benchmark("postgres.pickup.trickle", ("postgres",), partial(on_server, name="postgres")),
    Benchmark("redis.pickup.trickle", ("redis",), partial(on_server, name="redis")),
]

"""Six processes on one file: four that enqueue without pause, two that work. Fair shares, bounded waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.rows import Row, absolute, at_least, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import percentile

PRODUCERS, WORKERS = 4, 2


def contend(session: Session, name: str, *, batch: int, burn: float = 0.0) -> Iterator[Row]:
    """`burn`: seconds of CPU each handler takes."""
    seconds = session.sized(2, 10)
    with session.copies(empty(session)) as [path], ExitStack() as stack:

        def child(role: str, **arguments: Any) -> Child:
            started = Child(role, **arguments)
            stack.callback(started.close)
            return started

        producers = [
            child("producer", path=str(path), seconds=seconds, batch=batch, burn=burn) for _ in range(PRODUCERS)
        ]
        workers = [child("worker", url=f"sqlite:///{path}") for _ in range(WORKERS)]
        all_roles = [*workers, *producers]
        for one in all_roles:
            one.ready()
        for one in all_roles:
            one.go()
        time.sleep(seconds)
        waits: list[list[float]] = [one.figures()["waits"] for one in producers]
        done: list[int] = [one.stop()["done"] for one in workers]
    calls = [len(one) for one in waits]
    every = [wait for one in waits for wait in one]
    note = f"{sum(calls) * batch / seconds / 1000:.1f} k enqueued/s, {sum(done) / seconds / 1000:.1f} k done/s"
    yield Row(
        f"{name}.share",
        "calls, slowest",
        min(calls),
        max(calls),
        min(calls) / max(calls),
        at_least(0.8),
        note=f"against the fastest; {note}; workers did {min(done)} and {max(done)}",
    )
    bar = at_most(500.0 if burn else 250.0)
    note = f"p50 {median(every):.1f}, p99 {percentile(every, 99):.0f}, max {max(every):.0f} ms of {len(every)} calls"
    yield absolute(f"{name}.wait", "ms p99.9", percentile(every, 99.9), bar, note)


BENCHMARKS = [
    Benchmark("contend.one", ("sqlite",), partial(contend, name="contend.one", batch=1)),
    Benchmark("contend.bulk", ("sqlite",), partial(contend, name="contend.bulk", batch=100)),
    Benchmark("contend.burn", ("sqlite",), partial(contend, name="contend.burn", batch=1, burn=0.02)),
]

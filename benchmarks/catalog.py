"""The list of benchmarks: each has a name, a group, and a function from a session to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.rows import Row
from benchmarks.session import Session

Measure: TypeAlias = Callable[[Session], Iterable[Row]]
GROUPS = ("sqlite", "memory", "worker")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`name` begins the names of its rows."""

    name: str
    groups: tuple[str, ...]
    measure: Measure


def everything() -> list[Benchmark]:
    """All benchmarks in the order they are run: what takes long comes last."""
    from benchmarks import contention, latency, sizes, sqlite_cost, worker_cost, worker_life

    return [
        benchmark
        for module in (sqlite_cost, latency, worker_cost, worker_life, contention, sizes)
        for benchmark in module.BENCHMARKS
    ]


def chosen(benchmarks: Sequence[Benchmark], engines: Sequence[str], names: Sequence[str]) -> list[Benchmark]:
    """Those of the groups asked for (none: all) whose name contains one of the words asked for (none: all)."""
    return [
        benchmark
        for benchmark in benchmarks
        if (not engines or set(engines) & set(benchmark.groups))
        and (not names or any(name in benchmark.name or name.startswith(f"{benchmark.name}.") for name in names))
    ]

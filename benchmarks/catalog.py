"""The list of benchmarks: each has a name, a group, and a function from a session to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.rows import Row
from benchmarks.session import Session

Measure: TypeAlias = Callable[[Session], Iterable[Row]]
GROUPS = ("sqlite", "memory", "worker", "postgres", "redis")
SERVERS = frozenset({"postgres", "redis"})
"""Groups that start a server: only on request."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`name` begins the names of its rows."""

    name: str
    groups: tuple[str, ...]
    measure: Measure


def everything() -> list[Benchmark]:
    """All benchmarks in the order they are run: what takes long comes last."""
    from benchmarks import (
        block_cost,
        contention,
        draft_cost,
        due,
        durable_cost,
        group_cost,
        latency,
        limit_cost,
        off_cost,
        operator_cost,
        outbox_cost,
        postgres_cost,
        questions,
        redis_cost,
        results,
        scale,
        seal_cost,
        server_cost,
        server_life,
        sizes,
        sqlite_cost,
        tick_cost,
        trickle,
        web_cost,
        worker_cost,
        worker_life,
    )

    local = (sqlite_cost, latency, worker_cost, worker_life, contention, sizes, due, results, draft_cost, questions)
    beside = (
        tick_cost,
        group_cost,
        limit_cost,
        off_cost,
        seal_cost,
        operator_cost,
        web_cost,
        block_cost,
        outbox_cost,
        durable_cost,
    )
    servers = (server_cost, server_life, trickle, redis_cost, postgres_cost, scale)
    return [benchmark for module in (*local, *beside, *servers) for benchmark in module.BENCHMARKS]


def chosen(benchmarks: Sequence[Benchmark], engines: Sequence[str], names: Sequence[str]) -> list[Benchmark]:
    """Those of the groups asked for (none: all but servers) whose name contains one of the words asked for (none: all).

    A word with a server's name in it, as `redis.drain` or `scale.redis`, asks for its group as well.
    """
    return [
        benchmark
        for benchmark in benchmarks
        if _of_groups(benchmark, engines, names)
        and (not names or any(name in benchmark.name or name.startswith(f"{benchmark.name}.") for name in names))
    ]


def _of_groups(benchmark: Benchmark, engines: Sequence[str], names: Sequence[str]) -> bool:
    groups = set(benchmark.groups)
    if engines:
        return bool(groups & set(engines))
    return not groups & SERVERS or any((groups & SERVERS).intersection(name.split(".")) for name in names)

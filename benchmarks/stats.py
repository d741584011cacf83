"""How figures are taken and condensed.

Other programs run beside a benchmark and shift absolute figures by a factor of two. So the thing and its limit are
measured in turns, round by round, and what counts is the median of the rounds' own ratios: within a round both had the
same neighbours. Costs are CPU time of this process, which neighbours hardly touch; only latencies are wall time.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Generic, NamedTuple, Self, TypeVar

from benchmarks.rows import Bar, Row

T = TypeVar("T")

FEWEST_ROUNDS = 5


class Pair(NamedTuple, Generic[T]):
    """What one round measured: the thing itself, and its limit."""

    value: T
    limit: T


class Meter:
    """Adds up CPU and wall time of the stretches it is entered for."""

    __slots__ = ("_cpu", "_running", "_wall", "cpu", "jobs", "wall")

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        self.jobs = 0
        self._running = False

    def __enter__(self) -> Self:
        self._running = True
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leaving twice counts once."""
        if self._running:
            self.cpu += time.process_time() - self._cpu
            self.wall += time.perf_counter() - self._wall
            self._running = False

    @property
    def running(self) -> bool:
        """Is it entered now?"""
        return self._running

    @property
    def cost(self) -> float:
        """Microseconds of CPU per job."""
        return self.cpu / self.jobs * 1e6

    @property
    def pace(self) -> float:
        """Microseconds of wall time per job."""
        return self.wall / self.jobs * 1e6

    @property
    def rate(self) -> float:
        """Jobs per second of wall time."""
        return self.jobs / self.wall


class Cores:
    """How busy the machine's cores are while it is entered, whichever process keeps them busy."""

    def __enter__(self) -> Self:
        self._before = _core_time()
        return self

    def __exit__(self, *exc: object) -> None:
        after = _core_time()
        passed = after[1] - self._before[1]
        self.share = (after[0] - self._before[0]) / passed if passed else math.nan


def _core_time() -> tuple[float, float]:
    """Ticks in which a core had something to do, and all ticks; zeros where the system does not tell."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    except OSError:
        return 0.0, 0.0
    waited = ticks[3] + ticks[4]  # idle, and idle while a disk is written to
    return float(sum(ticks) - waited), float(sum(ticks))


def in_turns(rounds: int, value: Callable[[], T], limit: Callable[[], T]) -> list[Pair[T]]:
    """Measure both in every round; who goes first changes, so that neither always follows the other."""
    pairs: list[Pair[T]] = []
    for number in range(max(rounds, FEWEST_ROUNDS)):
        gc.collect()
        if number % 2:
            second = limit()
            gc.collect()
            pairs.append(Pair(value(), second))
        else:
            first = value()
            gc.collect()
            pairs.append(Pair(first, limit()))
    return pairs


def share(pairs: Iterable[Pair[float]]) -> float:
    """Of costs: the part of the limit's speed that is reached."""
    return median(pair.limit / pair.value for pair in pairs)


def times(pairs: Iterable[Pair[float]]) -> float:
    """Of latencies: how many times the limit's."""
    return median(pair.value / pair.limit for pair in pairs)


def over(pairs: Iterable[Pair[float]]) -> float:
    """How much more than the limit."""
    return median(pair.value - pair.limit for pair in pairs)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def cost_row(name: str, pairs: Sequence[Pair[Meter]], bar: Bar | None, note: str = "") -> Row:
    """A row of CPU costs against their limit."""
    costs = [Pair(pair.value.cost, pair.limit.cost) for pair in pairs]
    ratios = sorted(pair.limit / pair.value for pair in costs)
    rates = [median(pair[side].rate for pair in pairs) / 1000 for side in (0, 1)]
    spread = f"rounds {ratios[0]:.2f}–{ratios[-1]:.2f}; by the clock {rates[0]:.1f} of {rates[1]:.1f} k jobs/s"
    return Row(
        name,
        "µs CPU/job",
        median(pair.value for pair in costs),
        median(pair.limit for pair in costs),
        share(costs),
        bar,
        note=f"{spread}; {note}" if note else spread,
    )


def pace_row(name: str, pairs: Sequence[Pair[Meter]], bar: Bar | None, note: str = "") -> Row:
    """A row of wall time per job against its limit, where a part of the work is done by another process."""
    paces = [Pair(pair.value.pace, pair.limit.pace) for pair in pairs]
    ratios = sorted(pair.limit / pair.value for pair in paces)
    costs = [median(pair[side].cost for pair in pairs) for side in (0, 1)]
    spread = f"rounds {ratios[0]:.2f}–{ratios[-1]:.2f}; of CPU of our processes {costs[0]:.1f} of {costs[1]:.1f} µs"
    return Row(
        name,
        "µs/job",
        median(pair.value for pair in paces),
        median(pair.limit for pair in paces),
        share(paces),
        bar,
        note=f"{spread}; {note}" if note else spread,
    )

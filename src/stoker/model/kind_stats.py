"""What jobs of a kind did lately: how many runs, how many failed, how long they took and waited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from stoker.model.events import Point
from stoker.model.stats import blended, of_kind
from stoker.model.time import MINUTE, Instant

BARS = 30
"""Bars of a row, over the time that is looked at."""

COMPLETED, FAILED, RETRIED = of_kind("completed"), of_kind("failed"), of_kind("retried")
PROCESSING, WAIT = of_kind("processing"), of_kind("wait")


class Ranks(NamedTuple):
    """Percentiles of some times, in microseconds."""

    p50: float
    p95: float
    p99: float


class KindStats(NamedTuple):
    """The runs of a kind in a time: how many succeeded, died and are tried again; None where nothing was measured.

    `bars` are the runs that ended in each part of the time.
    """

    completed: int = 0
    failed: int = 0
    retried: int = 0
    run: Ranks | None = None
    wait: Ranks | None = None
    bars: tuple[int, ...] = (0,) * BARS

    @property
    def runs(self) -> int:
        """All runs that ended in success or failure."""
        return self.completed + self.failed + self.retried

    @property
    def failure_ratio(self) -> float | None:
        """The part of the runs that failed, between 0 and 1; None without a run."""
        return (self.failed + self.retried) / self.runs if self.runs else None


def kind_stats(points: Iterable[Point], since: Instant, minutes: int) -> dict[str, KindStats]:
    """The stats of each kind over so many minutes from `since` on, from its points, minute by minute."""
    found: defaultdict[str, defaultdict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for one in points:
        found[one.queue][one.metric].append(one)
    return {kind: _stats(metrics, since, minutes) for kind, metrics in found.items()}


def _stats(metrics: defaultdict[str, list[Point]], since: Instant, minutes: int) -> KindStats:
    completed, failed, retried = (sum(one.count for one in metrics[name]) for name in (COMPLETED, FAILED, RETRIED))
    bars = [0] * BARS
    for name in (COMPLETED, FAILED, RETRIED):
        for one in metrics[name]:
            bars[min((one.bucket - since) // MINUTE * BARS // minutes, BARS - 1)] += one.count
    run, wait = (Ranks(*blended(metrics[name])) if metrics[name] else None for name in (PROCESSING, WAIT))
    return KindStats(completed, failed, retried, run, wait, tuple(bars))

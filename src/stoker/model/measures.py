"""What a worker process measures for monitoring: histograms that add up over processes, and gauges.

A process sends its measures to its supervisor every few seconds; the supervisor adds up those of all processes, and
keeps those of processes that have exited, so that no counter ever falls.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from stoker.model.job import Claim, Status
from stoker.model.steps import StepState
from stoker.model.time import SECOND

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Upper bounds of the buckets in seconds; a last one holds what is longer."""

OUTCOMES: Final[dict[Status | None, str]] = {
    Status.DONE: "completed",
    Status.RETRYING: "retried",
    Status.DEAD: "failed",
    Status.CANCELED: "canceled",
    Status.PENDING: "released",
    None: "waiting",
}
"""What became of a run, as events name it; None: it was suspended."""


MANY = 1_000
"""After how many values a recorder sorts them into its histogram."""


class Histogram(msgspec.Struct):
    """How many values lie in each bucket, and their sum in seconds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one value; a negative one, from a clock that stepped back, counts as none at all."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += max(seconds, 0.0)

    def plus(self, other: Histogram) -> Histogram:
        """Both together."""
        return Histogram([a + b for a, b in zip(self.counts, other.counts, strict=True)], self.sum + other.sum)


def histogram_of(values: Sequence[float]) -> Histogram:
    """The histogram of some values, as if each had been added."""
    ordered = sorted(values)
    ends = [0, *(bisect_right(ordered, bound) for bound in BOUNDS), len(ordered)]
    return Histogram([end - start for start, end in pairwise(ends)], sum(ordered[bisect_right(ordered, 0.0) :]))


class Measures(msgspec.Struct):
    """Run times by kind and outcome, waits by queue, store calls by name, steps by kind and state; gauges.

    The gauges are busy slots by queue and the lag of renewals.
    """

    runs: dict[str, dict[str, Histogram]] = {}
    waits: dict[str, Histogram] = {}
    calls: dict[str, Histogram] = {}
    busy: dict[str, int] = {}
    renewal_lag: float = 0.0
    steps: dict[str, dict[str, int]] = {}

    def counters(self) -> Measures:
        """What stays when the process has exited."""
        return Measures(self.runs, self.waits, self.calls, steps=self.steps)


class _Series:
    """Values of a histogram. They are counted many at a time: that costs a third of counting one by one."""

    __slots__ = ("_counted", "values")

    def __init__(self) -> None:
        self.values: list[float] = []
        self._counted = Histogram()

    def histogram(self) -> Histogram:
        """All values so far."""
        values, self.values = self.values, []
        self._counted = self._counted.plus(histogram_of(values))
        return self._counted


class Recorder:
    """Counts runs, steps and store calls of one process; all in the thread of its loop but for `called`."""

    __slots__ = ("_calls", "_runs", "_steps", "_waits")

    def __init__(self) -> None:
        self._runs: dict[tuple[str, Status | None], _Series] = {}
        self._waits: dict[str, _Series] = {}
        self._calls: dict[str, Histogram] = {}
        self._steps: Counter[tuple[str, StepState]] = Counter()

    def ran(self, claim: Claim, status: Status | None, seconds: float) -> None:
        """Count one run of a job; without a status it was suspended.

        On the hot path: two look-ups and two additions to a list.
        """
        key, queue = (claim.kind, status), claim.queue
        run, wait = self._runs.get(key), self._waits.get(queue)
        if run is None:
            run = self._runs[key] = _Series()
        if wait is None:
            wait = self._waits[queue] = _Series()
        run.values.append(seconds)
        wait.values.append((claim.claimed_at - claim.scheduled_at) / SECOND)
        if len(run.values) >= MANY or len(wait.values) >= MANY:
            run.histogram()
            wait.histogram()

    def stepped(self, kind: str, state: StepState) -> None:
        """Count one step that a run has finished: done or failed."""
        self._steps[kind, state] += 1

    def called(self, name: str, seconds: float) -> None:
        """Count one call of the store."""
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = Histogram()
        call.add(seconds)

    def measures(self, busy: dict[str, int], renewal_lag: float) -> Measures:
        """Everything so far, with the gauges as they are now."""
        runs: dict[str, dict[str, Histogram]] = {}
        for (kind, status), series in self._runs.items():
            runs.setdefault(kind, {})[OUTCOMES[status]] = series.histogram()
        waits = {queue: series.histogram() for queue, series in self._waits.items()}
        steps: dict[str, dict[str, int]] = {}
        for (kind, state), n in self._steps.items():
            steps.setdefault(kind, {})[state.name.lower()] = n
        return Measures(runs, waits, self._calls.copy(), busy, renewal_lag, steps)


def added(many: Iterable[Measures]) -> Measures:
    """All of them together: histograms, steps and busy slots add up, of the lag the longest counts."""
    total = Measures()
    for one in many:
        for kind, outcomes in one.runs.items():
            _add(total.runs.setdefault(kind, {}), outcomes)
        _add(total.waits, one.waits)
        _add(total.calls, one.calls)
        for kind, states in one.steps.items():
            total.steps[kind] = Counter(total.steps.get(kind, {})) + Counter(states)
        for queue, n in one.busy.items():
            total.busy[queue] = total.busy.get(queue, 0) + n
        total.renewal_lag = max(total.renewal_lag, one.renewal_lag)
    return total


def _add(total: dict[str, Histogram], more: dict[str, Histogram]) -> None:
    for name, histogram in more.items():
        total[name] = total[name].plus(histogram) if name in total else histogram

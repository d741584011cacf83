"""The durations of an engine's store calls, kept until a caller drains them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from stoker.model.events import MOST_SAMPLES, Timings

T = TypeVar("T")
P = ParamSpec("P")
Method = Callable[P, Coroutine[Any, Any, T]]


class CallTimes:
    """Durations of store calls in microseconds, kept until `drain`.

    An `observer` gets each of them, in seconds, with the name of the call.
    """

    __slots__ = ("_dropped", "_reads", "_writes", "observer")

    def __init__(self) -> None:
        self.observer: Callable[[str, float], object] | None = None
        self._reads: list[int] = []
        self._writes: list[int] = []
        self._dropped = 0

    def add(self, micros: int, name: str, *, write: bool) -> None:
        if self.observer is not None:
            self.observer(name, micros / 1e6)
        kind = self._writes if write else self._reads
        if len(kind) < MOST_SAMPLES:
            kind.append(micros)
        else:
            self._dropped += 1

    def drain(self) -> Timings:
        found = Timings(self._reads, self._writes, self._dropped)
        self._reads, self._writes, self._dropped = [], [], 0
        return found


def timed(*, write: bool, name: str | None = None) -> Callable[[Method[P, T]], Method[P, T]]:
    """Measure a method of a facet, also when it raises, into its `call_times`.

    `name` is what the call is reported as where the method's own name would not say what it is about.
    """

    def around(method: Method[P, T]) -> Method[P, T]:
        called = name or method.__name__

        @functools.wraps(method)
        async def sampled(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.perf_counter_ns()
            try:
                return await method(*args, **kwargs)
            finally:
                facet: Any = args[0]
                facet.call_times.add((time.perf_counter_ns() - began) // 1000, called, write=write)

        return sampled

    return around

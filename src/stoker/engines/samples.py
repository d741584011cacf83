"""Samples of an engine's own store calls: how long they took, until somebody drains them."""

from __future__ import annotations

from stoker.model.events import MOST_SAMPLES, Timings


class Samples:
    """How long store calls took, in microseconds, until somebody drains them."""

    __slots__ = ("_dropped", "_reads", "_writes")

    def __init__(self) -> None:
        self._reads: list[int] = []
        self._writes: list[int] = []
        self._dropped = 0

    def add(self, micros: int, *, write: bool) -> None:
        kind = self._writes if write else self._reads
        if len(kind) < MOST_SAMPLES:
            kind.append(micros)
        else:
            self._dropped += 1

    def drain(self) -> Timings:
        found = Timings(self._reads, self._writes, self._dropped)
        self._reads, self._writes, self._dropped = [], [], 0
        return found

"""What the facets of an engine have in common: its store, and the durations of its calls."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from stoker.engines.call_times import CallTimes


class Measured(Protocol):
    """A store that keeps the durations of calls."""

    call_times: CallTimes


S = TypeVar("S", bound=Measured)


class Facet(Generic[S]):
    """A facet of an engine, or a part of one: methods on the engine's store, measured by `timed`."""

    def __init__(self, store: S) -> None:
        self._store = store
        self.call_times = store.call_times

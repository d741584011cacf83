"""What the facets of an engine have in common: its store, and the durations of its calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from stoker.engines.base import Audit, Control, Documents, Groups, Jobs, Operator, Outbox, Schedules, Timeline
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


class _Names:
    """A facet whose methods have other names on the engine."""

    def __init__(self, engine: Any, **names: str) -> None:
        self._engine = engine
        self._names = names

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._engine, self._names.get(name, name))  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._engine, self._names.get(name, name), value)

    def __delattr__(self, name: str) -> None:
        with suppress(AttributeError):
            delattr(self._engine, self._names.get(name, name))


class OneObject:
    """Every facet is the engine itself."""

    @property
    def jobs(self) -> Jobs:
        return self  # type: ignore[return-value]

    @property
    def operator(self) -> Operator:
        return self  # type: ignore[return-value]

    @property
    def control(self) -> Control:
        return self  # type: ignore[return-value]

    @property
    def timeline(self) -> Timeline:
        return self  # type: ignore[return-value]

    @property
    def documents(self) -> Documents:
        return self  # type: ignore[return-value]

    @property
    def outbox(self) -> Outbox:
        return self  # type: ignore[return-value]

    @property
    def groups(self) -> Groups:
        return _Names(self, get="get_groups", sweep="sweep_groups")

    @property
    def schedules(self) -> Schedules:
        return _Names(self, read="read_schedules")

    @property
    def audit(self) -> Audit:
        return _Names(self, read="read_audit", write="write_audit")

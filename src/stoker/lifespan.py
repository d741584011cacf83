"""Resources that a worker process opens once for its handlers: pools, clients, models.

`@jobs.lifespan` takes an async generator function that yields the resource. Inside a handler the decorated object's
`state` is that resource, with its type.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar, cast

from stoker.context import current
from stoker.model.errors import StokerError

T = TypeVar("T")


class Lifespan(Generic[T]):
    """One resource of the worker process."""

    def __init__(self, fn: Callable[[], AsyncIterator[T]]) -> None:
        self.name = getattr(fn, "__name__", "lifespan")
        self.open = asynccontextmanager(fn)

    @property
    def state(self) -> T:
        """The yielded resource, inside a running handler."""
        opened: dict[Any, Any] = current().runtime.states
        if self not in opened:
            raise StokerError(f"lifespan {self.name!r} is not open in this worker")
        return cast(T, opened[self])

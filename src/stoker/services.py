"""Services: what a worker runs beside jobs, such as cleaning, schedules or relays.

A service is an object with a name and an async `run`; `app.services.add(service)` registers it. Every worker of the app
runs all services on its event loop. It starts them when it starts, starts one again after an error, with a pause, and
cancels them when it stops. A service that must run only once per store takes a named lock (`engine.control.lock`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from stoker.model.errors import InvalidInput
from stoker.model.job import check_name
from stoker.stopping import Stopping

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine


class UnderWay:
    """How many pieces of work the services of a worker have in hand.

    A worker that stops lets them finish within its grace, and one that drains waits until there are none. `rested` is
    called when the last is done.
    """

    def __init__(self, rested: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._rested = rested

    def __bool__(self) -> bool:
        return self.count > 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more piece of work while the block runs."""
        self.add(1)
        try:
            yield
        finally:
            self.add(-1)

    def add(self, n: int) -> None:
        """Count more pieces of work, or fewer."""
        self.count += n
        if n < 0 and not self.count:
            self._rested()


def _always() -> bool:
    return True


class ServiceContext(NamedTuple):
    """What a service works with. The engine belongs to the worker's event loop."""

    app: Stoker
    engine: Engine
    worker_id: Callable[[], str]
    """Returns the worker's id, which changes when the worker has lost its lease."""

    taking: Callable[[], bool] = _always
    """Returns whether the worker takes new work: not while it is quiet, stops, or has no lease."""

    stopping: Stopping = Stopping()
    """True, and awaitable, from the beginning of a stop; the service is canceled when the grace is over."""

    under_way: UnderWay = UnderWay()
    """What the worker waits for when it stops."""


class Service(Protocol):
    """A named activity beside jobs."""

    @property
    def name(self) -> str:
        """Names the service in logs; unique within an app."""
        ...

    async def run(self, context: ServiceContext) -> None:
        """Work until canceled. Returning ends the service for this worker; raising starts it again after a pause."""
        ...


S = TypeVar("S", bound=Service)


class Services:
    """The services of an app, in the order they were added."""

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}

    def add(self, service: S) -> S:
        """Register a service with every worker that starts from now on. Raises when its name is taken."""
        name = check_name("service", service.name)
        if name in self._services:
            raise InvalidInput("service", name, "is registered already")
        self._services[name] = service
        return service

    def __iter__(self) -> Iterator[Service]:
        return iter(tuple(self._services.values()))

    def __len__(self) -> int:
        return len(self._services)

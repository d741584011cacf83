"""The base class of facets that are the same in every SQL engine.

A shared facet holds the exchanges; an engine's class names its statements and adds what locks or packs differently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, TypeVar

from stoker.engines.call_times import CallTimes
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.engines.sql.exchanges import Exchange
from stoker.model.time import Instant

T = TypeVar("T")
U = TypeVar("U", bound=UnitOfWork)
U_co = TypeVar("U_co", bound=UnitOfWork, covariant=True)

Sql: TypeAlias = Callable[[str], str]
"""Looks up a statement of an engine; an unknown name raises."""


class SqlStore(Protocol[U_co]):
    """What a shared facet needs of an engine's store, whose units of work are `U_co`."""

    call_times: CallTimes

    def read(self, make: Callable[[Instant], Exchange[T]], /) -> Awaitable[T]:
        """Run a reading exchange in one snapshot."""
        ...

    def change(self, make: Callable[[U_co], Exchange[T]], /) -> Awaitable[T]:
        """Run an operator's change in one transaction; it is fsynced when the call returns."""
        ...

    def refresh(self, make: Callable[[U_co], Exchange[T]], /) -> Awaitable[T]:
        """Run a write that is soon repeated in one transaction; a power loss may take it back."""
        ...

    def column(self, document: bytes, /) -> bytes | str:
        """Return JSON as a column of this store takes it."""
        ...


class SqlFacet(Facet[SqlStore[U]]):
    """A facet over exchanges. An engine's class sets the statements, so that they are looked up at import."""

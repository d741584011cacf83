"""The base class of what the engine's facets are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.engines.shared import facets

if TYPE_CHECKING:
    from stoker.engines.sqlite.store import Store


class Facet(facets.Facet["Store"]):
    """Methods on the engine's open file. The store itself uses modules of facets, so it is imported for types only."""

    _store: Store

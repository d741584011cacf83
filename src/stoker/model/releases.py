"""Releases of an app: when workers showed each of them first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stoker.model.time import Instant

MOST: Final = 50
"""Releases that a store remembers: the latest."""


class Release(msgspec.Struct, frozen=True):
    """A release, and when a worker showed it first."""

    name: str
    first: Instant


def outdated(known: Iterable[Release]) -> list[Release]:
    """Those that a store forgets, because there are too many after them."""
    return sorted(known, key=lambda one: (one.first, one.name), reverse=True)[MOST:]


def new_in(known: Sequence[Release], first: Instant) -> str:
    """The latest release, if something was seen first since then; empty otherwise.

    A store that has known one release only does not tell what came with it.
    """
    if len(known) < 2:
        return ""
    latest = max(known, key=lambda one: one.first)
    return latest.name if first >= latest.first else ""

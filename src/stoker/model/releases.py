"""Releases of an app: when workers showed each of them first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stoker.model.time import MINUTE, Instant

MOST: Final = 50
"""Releases that a store remembers: the latest."""


class Release(msgspec.Struct, frozen=True):
    """A release, and when a worker showed it first."""

    name: str
    first: Instant


def outdated(known: Iterable[Release]) -> list[Release]:
    """Those that a store forgets, because there are too many after them."""
    return sorted(known, key=lambda one: (one.first, one.name), reverse=True)[MOST:]


def new_in(known: Sequence[Release], first: Instant, seen_in: Sequence[str] = ()) -> str:
    """The latest release, if something was seen first since then; empty otherwise.

    `seen_in` names the releases in which it was seen, the first one first; where they are known, what was seen first in
    another one is not new, though both may run side by side. `first` is a minute. A store that has known one release
    only does not tell what came with it.
    """
    if len(known) < 2:
        return ""
    latest = max(known, key=lambda one: one.first)
    if seen_in:
        return latest.name if seen_in[0] == latest.name and first > latest.first - MINUTE else ""
    return latest.name if first >= latest.first else ""


def in_words(seen_in: Sequence[str]) -> str:
    """The releases in which something was seen: all of a few, else the first and the last."""
    return ", ".join(seen_in) if len(seen_in) <= 3 else f"{seen_in[0]} … {seen_in[-1]}"

"""Several sorted lists read as one: of each only a few entries ahead, however many lists there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stoker.model.ids import JobId
from stoker.model.query import Place

K = TypeVar("K", JobId, Place)

AHEAD = 4
"""Entries that each list reads beyond its share."""


@dataclass
class _List(Generic[K]):
    last: K
    asked: int = 0
    entries: deque[tuple[K, Any]] = field(default_factory=deque)
    ended: bool = False


class MergedLists(Generic[K]):
    """Entries of several lists, each a key with a value, in the order of their keys.

    The engine reads what `hungry` names, hands it over with `feed`, and takes what is certain with `take`: entries that
    come before everything that no list has read yet.
    """

    def __init__(self, lists: int, start: K, *, descending: bool) -> None:
        self._lists: list[_List[K]] = [_List(start) for _ in range(lists)]
        self._descending = descending
        self._certain: list[tuple[K, Any]] = []

    def hungry(self, n: int) -> list[tuple[int, K, int]]:
        """The lists that must be read before `n` entries are certain.

        Each comes with the key to go on behind, and how many to read; a list that gave much is asked for more.
        """
        if len(self._certain) < n:
            self._settle()
        if len(self._certain) >= n:
            return []
        least = n // max(len(self._lists), 1) + AHEAD
        found = []
        for number, one in enumerate(self._lists):
            if not one.entries and not one.ended:
                one.asked = min(max(2 * one.asked, least), n)
                found.append((number, one.last, one.asked))
        return found

    def feed(self, number: int, entries: Sequence[tuple[K, Any]]) -> None:
        """Add the next entries of a list, in order; fewer than it was asked for are its last."""
        one = self._lists[number]
        one.entries.extend(entries)
        one.ended = len(entries) < one.asked
        if entries:
            one.last = entries[-1][0]

    def take(self, n: int) -> list[tuple[K, Any]]:
        """The next entries, at most `n`; fewer only behind the last one."""
        taken, self._certain = self._certain[:n], self._certain[n:]
        return taken

    def _settle(self) -> None:
        """Move entries that are certain by now: no list that goes on can still bring one before them."""
        down = self._descending
        unread = [one.last for one in self._lists if not one.ended]
        bound = (max(unread) if down else min(unread)) if unread else None
        passed: list[tuple[K, Any]] = []
        for one in self._lists:
            entries = one.entries
            while entries and (bound is None or (entries[0][0] >= bound if down else entries[0][0] <= bound)):
                passed.append(entries.popleft())
        self._certain += sorted(passed, key=lambda entry: entry[0], reverse=down)

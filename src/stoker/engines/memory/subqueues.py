"""The subqueues of one queue: their lines, their states, and in which order claims visit them.

States are found by heaps of what they were when they were stored. An item is valid while the state still says the same;
others are skipped, and removed when they are the majority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from stoker.engines.memory.ready_queue import Entry, ReadyQueue
from stoker.engines.shared.subqueue_claim import Exchange
from stoker.model.limit import Slot
from stoker.model.subqueues import (
    AT_ONCE,
    Head,
    Line,
    Look,
    State,
    made,
    released,
    renumbered,
    repinned,
    touched,
    wakes_at,
)
from stoker.model.time import Instant

MOST_STALE = 1_000
"""How many invalid items a heap may have before it is rebuilt."""


class Order:
    """States in one order."""

    __slots__ = ("_heap", "_key", "_states")

    def __init__(self, states: Mapping[str, State], key: Callable[[State], Any]) -> None:
        self._states = states
        self._key = key
        self._heap: list[tuple[Any, str]] = []

    def put(self, state: State) -> None:
        """A state that is new or changed."""
        if (key := self._key(state)) is not None:
            heappush(self._heap, (key, state.name))
        if len(self._heap) > 2 * len(self._states) + MOST_STALE:
            self._heap = [(found, name) for name, one in self._states.items() if (found := self._key(one)) is not None]
            heapify(self._heap)

    def first(self, most: int, wanted: Callable[[State], bool]) -> list[State]:
        """The first of those that are wanted; the walk ends at the first that is not, if `wanted` follows the order."""
        found: dict[str, State] = {}
        passed: list[tuple[Any, str]] = []
        while self._heap and len(found) < most:
            item = heappop(self._heap)
            state = self._states.get(item[1])
            if state is None or self._key(state) != item[0] or state.name in found:
                continue
            passed.append(item)
            if wanted(state):
                found[state.name] = state
        for item in passed:
            heappush(self._heap, item)
        return list(found.values())

    def until(self, most: int, end: Instant) -> list[State]:
        """The first of those whose key is at most `end`."""
        found: dict[str, State] = {}
        passed: list[tuple[Any, str]] = []
        while self._heap and len(found) < most and self._heap[0][0] <= end:
            item = heappop(self._heap)
            state = self._states.get(item[1])
            if state is not None and self._key(state) == item[0] and state.name not in found:
                found[state.name] = state
                passed.append(item)
        for item in passed:
            heappush(self._heap, item)
        return list(found.values())


class Subqueues:
    """All subqueues of one queue. `claims`: how many claims they served."""

    def __init__(self) -> None:
        self.lines: dict[str, ReadyQueue] = {}
        self.states: dict[str, State] = {}
        self.claims = 0
        self.heads = Order(self.states, lambda state: state.head if state.open else None)
        self.turns = Order(self.states, lambda state: (state.at, state.turn) if state.open else None)
        self.timers = Order(self.states, lambda state: state.next)

    def put(self, state: State, now: Instant) -> None:
        """Store a state, or remove one that is gone."""
        if state.gone(now):
            self.states.pop(state.name, None)
            line = self.lines.get(state.name)
            if line is not None and not line.waits:
                del self.lines[state.name]
            return
        self.states[state.name] = state
        for order in (self.heads, self.turns, self.timers):
            order.put(state)

    def join(
        self, name: str, entry: Entry, slot: Slot | None, pins: Mapping[str, int], now: Instant, *, anew: bool
    ) -> None:
        """Put a waiting job into its line; `anew`: it sets the number of its key."""
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = ReadyQueue()
        line.add(entry, now)
        state = self.states.get(name)
        if state is None:
            state = made(name, slot, pins, now)
        elif anew and slot is not None:
            state = renumbered(state, slot, now)
        self.put(touched(state, max(entry.record.scheduled_at, now)), now)

    def leave(self, name: str, entry: Entry, now: Instant) -> None:
        """Take a waiting job out of its line."""
        self.lines[name].leave(entry, now)
        self.put(touched(self.states[name], AT_ONCE), now)

    def free(self, name: str, now: Instant) -> bool:
        """Give a slot back; returns whether a job waits for it."""
        state = released(self.states[name])
        self.put(state, now)
        return state.head is not None or state.next is not None

    def dues(self) -> list[Instant | None]:
        """When time alone lets claims take a job: of an open subqueue, and of the next to be looked at."""
        states = (*self.heads.first(1, lambda _: True), *self.timers.first(1, lambda state: not state.full))
        return [wakes_at(state) for state in states]

    def pin(self, pins: Mapping[str, int], now: Instant) -> None:
        """An operator changed numbers."""
        for state in list(self.states.values()):
            self.put(repinned(state, pins), now)


class QueueLines:
    """The lines of one queue for one claim (`shared.subqueue_claim.Lines`); no method of it yields."""

    heads_may_be_locked = False

    def __init__(self, main: ReadyQueue, subqueues: Subqueues, now: Instant) -> None:
        self._main = main
        self._subqueues = subqueues
        self._now = now
        self.claims = subqueues.claims
        self.taken: list[Entry] = []

    def touched(self, most: int) -> Exchange[list[State]]:
        yield from ()
        return self._subqueues.timers.until(most, self._now)

    def look(self, names: Sequence[str]) -> Exchange[Mapping[str, Look]]:
        yield from ()
        return {name: self._look(name) for name in names}

    def _look(self, name: str) -> Look:
        line = self._subqueues.lines.get(name)
        return Look() if line is None else line.look(self._now)

    def write(self, states: Sequence[State]) -> Exchange[None]:
        yield from ()
        for state in states:
            self._subqueues.put(state, self._now)

    def by_head(self, most: int) -> Exchange[list[State]]:
        yield from ()
        return self._subqueues.heads.first(most, self._settled)

    def by_turn(self, most: int) -> Exchange[list[State]]:
        yield from ()
        return self._subqueues.turns.first(most, self._settled)

    def _settled(self, state: State) -> bool:
        return state.next is None or state.next > self._now

    def first(self, wanted: Mapping[Line, int]) -> Exchange[Mapping[Line, Sequence[Head]]]:
        yield from ()
        return {name: [_head(one) for one in self._line(name).first(n, self._now)] for name, n in wanted.items()}

    def take(self, picked: Sequence[tuple[Line, Head]], *, counts: bool) -> Exchange[Sequence[tuple[Line, Head]]]:
        yield from ()
        self._subqueues.claims += counts
        lines: dict[Line, Iterator[Entry]] = {}
        for name in {line for line, _ in picked}:
            n = sum(line == name for line, _ in picked)
            lines[name] = iter(self._line(name).take(n, self._now))
        self.taken += [next(lines[line]) for line, _ in picked]
        return picked

    def _line(self, name: Line) -> ReadyQueue:
        return self._main if name is None else self._subqueues.lines[name]


def _head(entry: Entry) -> Head:
    record = entry.record
    return record.priority, record.scheduled_at, record.id

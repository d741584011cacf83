"""The subqueues of one queue: their lines, their states, and the orders in which claims visit them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import filterfalse, islice, takewhile
from typing import Any

from stoker.engines.memory.ready_queue import ReadyQueue
from stoker.engines.shared.subqueue_claim import Exchange
from stoker.model.ids import JobId
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


class Order:
    """The names of subqueues whose state has a key, sorted by that key."""

    def __init__(self, key: Callable[[State], Any]) -> None:
        self._key = key
        self._sorted: list[tuple[Any, str]] = []

    def replace(self, before: State | None, after: State | None) -> None:
        """A state was stored in the place of another."""
        if before is not None and (key := self._key(before)) is not None:
            del self._sorted[bisect_left(self._sorted, (key, before.name))]
        if after is not None and (key := self._key(after)) is not None:
            insort(self._sorted, (key, after.name))

    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._sorted)


class Subqueues:
    """All subqueues of one queue. `claims`: how many claims they served."""

    def __init__(self) -> None:
        self.lines: dict[str, ReadyQueue] = {}
        self.states: dict[str, State] = {}
        self.claims = 0
        self._by_head = Order(lambda state: state.head if state.open else None)
        self._by_turn = Order(lambda state: (state.at, state.turn) if state.open else None)
        self._by_next = Order(lambda state: state.next)

    def put(self, state: State, now: Instant) -> None:
        """Store a state, or remove one that is gone."""
        before, after = self.states.pop(state.name, None), None if state.gone(now) else state
        for order in (self._by_head, self._by_turn, self._by_next):
            order.replace(before, after)
        if after is not None:
            self.states[state.name] = after
        elif state.name in self.lines and not self.lines[state.name].heads:
            del self.lines[state.name]

    def by_head(self) -> Iterator[State]:
        """Those that may give a job, by their first one."""
        return map(self.states.__getitem__, self._by_head)

    def by_turn(self) -> Iterator[State]:
        """Those that may give a job, by their place in the round."""
        return map(self.states.__getitem__, self._by_turn)

    def by_next(self) -> Iterator[State]:
        """Those that are to be looked at some time, the next one first."""
        return map(self.states.__getitem__, self._by_next)

    def join(
        self, name: str, head: Head, slot: Slot | None, pins: Mapping[str, int], now: Instant, *, anew: bool
    ) -> None:
        """Put a waiting job into its line; `anew`: it sets the number of its key."""
        self.lines.setdefault(name, ReadyQueue()).add(head)
        state = self.states.get(name)
        if state is None:
            state = made(name, slot, pins, now)
        elif anew and slot is not None:
            state = renumbered(state, slot, now)
        self.put(touched(state, max(head[1], now)), now)

    def leave(self, name: str, head: Head, now: Instant) -> None:
        """Take a waiting job out of its line."""
        self.lines[name].leave(head)
        self.put(touched(self.states[name], AT_ONCE), now)

    def free(self, name: str, now: Instant) -> bool:
        """Give a slot back; returns whether a job waits for it."""
        state = released(self.states[name])
        self.put(state, now)
        return state.head is not None or state.next is not None

    def dues(self) -> list[Instant | None]:
        """When time alone lets claims take a job: of an open subqueue, and of the next to be looked at."""
        timers = (state for state in self.by_next() if not state.full)
        return [wakes_at(state) for state in (*islice(self.by_head(), 1), *islice(timers, 1))]

    def waiting(self, now: Instant) -> dict[str, int]:
        """How many jobs of each line are due."""
        return {name: line.count_due(now) for name, line in self.lines.items()}

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
        self.taken: list[JobId] = []

    def touched(self, most: int) -> Exchange[list[State]]:
        yield from ()
        return list(islice(takewhile(self._is_touched, self._subqueues.by_next()), most))

    def look(self, names: Sequence[str]) -> Exchange[Mapping[str, Look]]:
        yield from ()
        lines = self._subqueues.lines
        return {name: lines[name].look(self._now) for name in names if name in lines}

    def write(self, states: Sequence[State]) -> Exchange[None]:
        yield from ()
        for state in states:
            self._subqueues.put(state, self._now)

    def by_head(self, most: int) -> Exchange[list[State]]:
        yield from ()
        return list(islice(filterfalse(self._is_touched, self._subqueues.by_head()), most))

    def by_turn(self, most: int) -> Exchange[list[State]]:
        yield from ()
        return list(islice(filterfalse(self._is_touched, self._subqueues.by_turn()), most))

    def _is_touched(self, state: State) -> bool:
        return state.next is not None and state.next <= self._now

    def first(self, wanted: Mapping[Line, int]) -> Exchange[Mapping[Line, Sequence[Head]]]:
        yield from ()
        return {name: self._line(name).due(n, self._now) for name, n in wanted.items()}

    def take(self, picked: Sequence[tuple[Line, Head]], *, counts: bool) -> Exchange[Sequence[tuple[Line, Head]]]:
        yield from ()
        self._subqueues.claims += counts
        for name in {line for line, _ in picked}:
            self._line(name).take([head for line, head in picked if line == name])
        self.taken += [head[2] for _, head in picked]
        return picked

    def _line(self, name: Line) -> ReadyQueue:
        return self._main if name is None else self._subqueues.lines[name]

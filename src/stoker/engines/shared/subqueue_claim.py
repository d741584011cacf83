"""A claim of a queue that has subqueues, once for every engine that runs it outside of its store.

`model.subqueues` decides; an engine offers the reads and writes as `Lines`. They are generators, as the statements of
the SQL engines are; those of an engine that needs no statements never yield. Claims of one queue must not overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from stoker.model.control import Starts
from stoker.model.job import FIRST
from stoker.model.subqueues import (
    MOST_LOOKS,
    NOTHING,
    Head,
    Line,
    Look,
    State,
    joins_at,
    looked,
    pick,
    room,
    served,
    served_at,
    share,
    take_turns,
)
from stoker.model.time import Instant

FEWEST_READ = 4
"""How many jobs of a subqueue a claim reads at first, if as many may start."""

T = TypeVar("T")
Exchange: TypeAlias = Generator[Any, Any, T]


def run(exchange: Exchange[T]) -> T:
    """Run an exchange of an engine that needs no statements; returns its result."""
    try:
        next(exchange)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("an engine without statements yielded one")


class Lines(Protocol):
    """What a claim needs of one queue's lines. `claims`: how many claims were served by subqueues so far."""

    claims: int

    @property
    def heads_may_be_locked(self) -> bool:
        """Must jobs be read before they are picked, because another transaction may have locked them?"""
        ...

    def touched(self, most: int) -> Exchange[list[State]]:
        """Subqueues whose `next` is now or before, by `next` and name."""
        ...

    def look(self, names: Sequence[str]) -> Exchange[Mapping[str, Look]]:
        """What these subqueues hold."""
        ...

    def write(self, states: Sequence[State]) -> Exchange[None]:
        """Store states; one that is `gone` is removed."""
        ...

    def by_head(self, most: int) -> Exchange[list[State]]:
        """Open subqueues by head; not those that are touched, whose head may be gone."""
        ...

    def by_turn(self, most: int) -> Exchange[list[State]]:
        """The same by `at`, `turn` and name."""
        ...

    def first(self, wanted: Mapping[Line, int]) -> Exchange[Mapping[Line, Sequence[Head]]]:
        """The first due jobs of lines, at most so many of each, in order."""
        ...

    def take(self, picked: Sequence[tuple[Line, Head]], *, counts: bool) -> Exchange[Sequence[tuple[Line, Head]]]:
        """Make these jobs claims; those of a line are its first due ones. Returns them without those that another
        transaction has locked or changed. `counts`: store that subqueues served one more claim.
        """
        ...


def claim(lines: Lines, starts: Starts, now: Instant, *, fair: bool) -> Exchange[int]:
    """Take as many jobs of a queue as may start; returns how many."""
    n, before, taken, counted, met_locks = starts.n, lines.claims, 0, False, False
    while taken < n:
        more = yield from _look_again(lines, now, joins_at(before))
        wanted = n - taken
        if fair and not starts.first_only:
            picked, states = yield from _turns(lines, wanted, now)
        else:
            picked, states = yield from _in_order(lines, wanted, now)
        if starts.first_only:
            picked = [(line, head) for line, head in picked if head[0] == FIRST]
        given: Sequence[tuple[Line, Head]] = picked
        if picked:
            counts = not counted and any(line is not None for line, _ in picked)
            given = yield from lines.take(picked, counts=counts)
            counted = counted or counts
            taken += len(given)
            yield from _serve(lines, given, states, now, served_at(before))
        if len(given) < len(picked) and not met_locks:
            met_locks = True  # what stands behind a locked job may start
        elif not more and (not given or not fair):
            break
    return taken


def _serve(
    lines: Lines, given: Sequence[tuple[Line, Head]], states: Mapping[str, State], now: Instant, turn: int
) -> Exchange[None]:
    """Write the states of subqueues that gave jobs."""
    counts = Counter(line for line, _ in given if line is not None)
    if counts:
        looks = yield from lines.look(list(counts))
        yield from lines.write(
            [served(states[name], n, looks.get(name, NOTHING), now, turn) for name, n in counts.items()]
        )


def _look_again(lines: Lines, now: Instant, turn: int) -> Exchange[bool]:
    """Look at what was touched; returns whether there may be more of it."""
    states = yield from lines.touched(MOST_LOOKS)
    if not states:
        return False
    looks = yield from lines.look([state.name for state in states])
    yield from lines.write([looked(state, looks.get(state.name, NOTHING), now, turn) for state in states])
    return len(states) == MOST_LOOKS


_Picked: TypeAlias = tuple[list[tuple[Line, Head]], Mapping[str, State]]


def _in_order(lines: Lines, n: int, now: Instant) -> Exchange[_Picked]:
    """The first jobs by priority, due time and id. They are among those of the first `n` subqueues by head.

    Of each subqueue some are read, and more of those whose jobs are all picked: else a claim of a hundred jobs would
    read a hundred of each of a hundred keys.
    """
    states = {state.name: state for state in (yield from lines.by_head(n))}
    rooms = {name: room(state, n, now) for name, state in states.items()}
    depth = max(FEWEST_READ, 2 * share(n, max(1, len(states))))
    read = _unknown(lines, {name: min(n, depth) for name, n in rooms.items()})
    heads: dict[Line, Sequence[Head]] = {}
    picked: list[tuple[Line, Head]] = []
    missing: dict[Line, int] = {None: n, **read}
    while missing:
        heads |= yield from lines.first(missing)
        picked = pick(heads.get(None, ()), _given(lines, states.values(), rooms, heads, now), n)
        counts = Counter(line for line, _ in picked)
        missing = {
            name: min(2 * depth, rooms[name])
            for name, depth in read.items()
            if name is not None and counts[name] == depth < rooms[name]
        }
        read |= missing
    return picked, states


def _turns(lines: Lines, n: int, now: Instant) -> Exchange[_Picked]:
    """The main line first: it holds what was stored before the queue became fair. Then subqueues in turn."""
    found = yield from lines.by_turn(n)
    each = share(n, len(found)) if found else 0
    heads = yield from lines.first({None: n, **_unknown(lines, {one.name: room(one, each, now) for one in found})})
    picked: list[tuple[Line, Head]] = [(None, head) for head in heads.get(None, ())]
    left = n - len(picked)
    states = {state.name: state for state in found[:left]}
    if states:
        each = share(left, len(states))
        rooms = {name: room(state, each, now) for name, state in states.items()}
        lists: dict[Line, Sequence[Head]] = {name: heads.get(name, ())[: rooms[name]] for name in states}
        picked += take_turns(_given(lines, states.values(), rooms, lists, now).items(), left)
    return picked, states


def _unknown(lines: Lines, rooms: Mapping[str, int]) -> dict[Line, int]:
    """Subqueues of which more than the head may be taken, which the state names already."""
    known = 0 if lines.heads_may_be_locked else 1
    return {name: n for name, n in rooms.items() if n > known}


def _given(
    lines: Lines, states: Iterable[State], rooms: Mapping[str, int], heads: Mapping[Line, Sequence[Head]], now: Instant
) -> dict[str, Sequence[Head]]:
    """What each subqueue may give; nothing where a clock that was set back made the head a later one."""
    return {
        state.name: [state.head][: rooms[state.name]]
        if rooms[state.name] <= 1 and not lines.heads_may_be_locked
        else heads.get(state.name, ())
        for state in states
        if state.head is not None and state.head[1] <= now
    }

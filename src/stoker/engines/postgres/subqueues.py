"""Subqueues: their states, which only claims write, and the log in which other calls note what changed.

A call that stores, removes or ends a job appends a row to the log and never waits for a subqueue: a user's transaction
may stay open for long. Job and row become visible by one commit. A claim of a divided queue takes the queue's lock,
applies the rows to the states and goes on as `shared.subqueue_claim` says; every statement of it sees what was
committed when it began, after the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.engines.postgres.statements import sql
from stoker.engines.sql.packing import read_options
from stoker.engines.sql.settings import NO_BUCKET, pack_bucket, read_bucket
from stoker.engines.sql.steps import Row, Steps
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import salvaged
from stoker.model.limit import Slot
from stoker.model.query import Repair
from stoker.model.subqueues import (
    TENANT,
    Head,
    Line,
    Look,
    State,
    SubqueueView,
    made,
    recounted,
    released,
    renumbered,
    repinned,
    suspicious_since,
    touched,
    view,
)
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.postgres.unit_of_work import Unit
    from stoker.model.control import Queue

_POST, _PENDING, _APPEND = sql("subqueue_post"), sql("subqueue_pending"), sql("subqueue_append")
_NAMED, _ALL = sql("subqueue_named"), sql("subqueue_all")
_TOUCHED, _BY_HEAD, _BY_TURN = sql("subqueue_touched"), sql("subqueue_by_head"), sql("subqueue_by_turn")
_WRITE, _DROP = sql("subqueue_write"), sql("subqueue_drop")
_LOOK, _FIRST = sql("subqueue_look"), sql("subqueue_first")
_COUNT_CLAIM, _TAKE = sql("subqueue_count_claim"), sql("claim_picked")
_HOLDERS = sql("subqueue_holders")
_FULL_QUEUES, _FULL = sql("subqueue_full_queues"), sql("subqueue_full")

MOST_POST = 2_000
"""Rows of the log that a claim applies at once."""


class Entry(NamedTuple):
    """What the log says about a subqueue: slots given back, when to look at it, the options of a job that joined."""

    queue: str
    name: str
    freed: int = 0
    look: Instant | None = None
    options: str | None = None
    anew: bool = False


def appended(entries: Sequence[Entry]) -> tuple[str, Row]:
    """Return the statement that appends to the log."""
    return _APPEND, tuple(list(column) for column in zip(*entries, strict=True))


def read(row: Row) -> State:
    """Make a state of its row."""
    name, limited, number, pinned, running, *bucket, priority, due, job, next_, at, turn, since = row
    head = None if priority is None else (priority, due, job)
    return State(name, limited, number, pinned, running, read_bucket(*bucket), head, next_, at, turn, since)


def _row(state: State) -> Row:
    bucket = NO_BUCKET if state.bucket is None else pack_bucket(state.bucket)
    head = (None, None, None) if state.head is None else state.head
    values = (state.limit, state.number, state.pinned, state.running, *bucket, *head, state.next, state.at, state.turn)
    return (state.name, *values, state.since, state.open)


def write(queue: str, states: Sequence[State], now: Instant) -> Steps[None]:
    """Write states; those that are gone are deleted."""
    gone = [state.name for state in states if state.gone(now)]
    rows = [_row(state) for state in states if not state.gone(now)]
    if gone:
        yield _DROP, (queue, gone)
    if rows:
        yield _WRITE, (queue, *(list(column) for column in zip(*rows, strict=True)))


def folded(states: dict[str, State], rows: Sequence[Row], pins: Mapping[str, int], now: Instant) -> dict[str, State]:
    """The states of the subqueues that rows of the log are about, as they are with them."""
    found: dict[str, State] = {}
    for _, name, freed, look, options, anew in sorted(rows):
        state = found.get(name) or states.get(name)
        slot = None if options is None else _slot(options)
        if state is None:
            if slot is None and not name.startswith(TENANT):
                continue  # a job left or ended whose subqueue is gone
            state = made(name, slot, pins, now)
        elif anew and slot is not None:
            state = renumbered(state, slot, now)
        if freed:
            state = released(state, freed)
        if look is not None:
            state = touched(state, look)
        found[name] = repinned(state, pins)
    return found


def _slot(options: Any) -> Slot | None:
    try:
        return read_options(options).limit
    except CorruptRecord:
        return salvaged(options).limit


class QueueLines:
    """The lines of one queue for one claim. `rows` are those of `claim_picked`, `order` the ids as they were picked."""

    heads_may_be_locked = True

    def __init__(self, queue: str, worker: str, now: Instant, claims: int) -> None:
        self._queue = queue
        self._worker = worker
        self._now = now
        self.claims = claims
        self.rows: list[Row] = []
        self.order: list[JobId] = []

    def touched(self, most: int) -> Steps[list[State]]:
        return [read(row) for row in (yield _TOUCHED, (self._queue, self._now, most))]

    def look(self, names: Sequence[str]) -> Steps[Mapping[str, Look]]:
        firsts: dict[str, Head] = {}
        laters: dict[str, Instant] = {}
        lines = {self._line(name): name for name in names}
        for line, priority, due, job, later in sorted((yield _LOOK, (list(lines), self._now)), key=lambda row: row[:2]):
            name = lines[line]
            if due <= self._now:
                firsts.setdefault(name, (priority, due, job))
            if later is not None:
                laters[name] = min(later, laters.get(name, later))
        return {name: Look(firsts.get(name), laters.get(name)) for name in names}

    def write(self, states: Sequence[State]) -> Steps[None]:
        yield from write(self._queue, states, self._now)

    def by_head(self, most: int) -> Steps[list[State]]:
        return [read(row) for row in (yield _BY_HEAD, (self._queue, self._now, most))]

    def by_turn(self, most: int) -> Steps[list[State]]:
        return [read(row) for row in (yield _BY_TURN, (self._queue, self._now, most))]

    def first(self, wanted: Mapping[Line, int]) -> Steps[Mapping[Line, Sequence[Head]]]:
        lines = {self._line(name): name for name in wanted}
        found: dict[Line, list[Head]] = {name: [] for name in wanted}
        for line, *head in (yield _FIRST, (list(lines), list(wanted.values()), self._now)):
            found[lines[line]].append(tuple(head))
        return {name: sorted(heads)[: wanted[name]] for name, heads in found.items()}

    def take(self, picked: Sequence[tuple[Line, Head]]) -> Steps[None]:
        ids = [head[2] for _, head in picked]
        self.rows += yield _TAKE, (self._now, self._worker, self._queue, ids)
        self.order += ids

    def count_claim(self) -> Steps[None]:
        yield _COUNT_CLAIM, (self._queue,)

    def _line(self, name: Line) -> str:
        return self._queue if name is None else f"{self._queue}/{name}"


def lines_of(queue: Queue, worker: str, now: Instant, claims: int) -> Steps[QueueLines]:
    """Apply the log to the states of a queue, and return its lines. The caller holds the queue's lock."""
    pins = dict(queue.limits)
    while rows := (yield _POST, (queue.name, MOST_POST)):
        names = sorted({row[1] for row in rows})
        states = {state.name: state for state in map(read, (yield _NAMED, (queue.name, names)))}
        yield from write(queue.name, list(folded(states, rows, pins, now).values()), now)
        if len(rows) < MOST_POST:
            break
    return QueueLines(queue.name, worker, now, claims)


def subqueues(
    queue: Queue, after: str | None, limit: int, names: Sequence[str] | None, now: Instant
) -> Steps[list[SubqueueView]]:
    """Return subqueues, by name, as the log leaves them."""
    states = {state.name: state for state in map(read, (yield _ALL, (queue.name,)))}
    states |= folded(states, (yield _PENDING, (queue.name,)), dict(queue.limits), now)
    chosen = [
        name
        for name, state in sorted(states.items())
        if not state.gone(now) and (after is None or name > after) and (names is None or name in names)
    ]
    page = chosen[: max(limit, 0)]
    holders: dict[str, list[JobId]] = {}
    for job, options in (yield _HOLDERS, (queue.name,)) if page else ():
        slot = _slot(options)
        if slot is not None:
            holders.setdefault(slot.subqueue, []).append(job)
    return [view(queue.name, states[name], sorted(holders.get(name, ()))) for name in page]


def full_queues(now: Instant) -> Steps[list[str]]:
    """Return the queues of which a subqueue has been full for long."""
    return [queue for (queue,) in (yield _FULL_QUEUES, (suspicious_since(now),))]


def miscounted(queue: str, now: Instant) -> Steps[dict[str, tuple[int, Repair]]]:
    """Return what has been full for long with a wrong number, by name: the right one of its state, and its repair.

    One statement reads the states, the log and the claims: slots that the log gives back are still in the state.
    """
    full: list[tuple[str, int, int]] = []
    holders: Counter[str] = Counter()
    for name, running, freed, options in (yield _FULL, (queue, suspicious_since(now))):
        if name is not None:
            full.append((name, running, freed))
        elif (slot := _slot(options)) is not None:
            holders[slot.subqueue] += 1
    return {
        name: (holders[name] + freed, Repair(queue, name, running - freed, holders[name]))
        for name, running, freed in sorted(full)
        if running - freed != holders[name]
    }


def recount(unit: Unit, queue: str, limit: int) -> Steps[list[Repair]]:
    """Repair up to `limit` wrong numbers of a queue. The caller holds the queue's lock."""
    wrong = yield from miscounted(queue, unit.now)
    names = list(wrong)[: max(limit, 0)]
    if not names:
        return []
    states = [recounted(state, wrong[state.name][0]) for state in map(read, (yield _NAMED, (queue, names)))]
    yield from write(queue, [state for state in states if state is not None], unit.now)
    unit.woken.add(queue)
    return [wrong[name][1] for name in names]

"""Subqueues: their states, and the lines of a queue for a claim.

One transaction at a time writes to a file, so a call that stores, removes or ends a job changes the state at once, and
claims of a queue never overlap (`shared.subqueue_claim`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.engines.sql.exchanges import Exchange, Many, Row
from stoker.engines.sql.packing import NO_BUCKET, pack_bucket, read_bucket, read_options
from stoker.engines.sqlite.columns import PICK
from stoker.engines.sqlite.statements import sql
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import salvaged
from stoker.model.limit import Slot
from stoker.model.query import Repair
from stoker.model.subqueues import (
    AT_ONCE,
    NOTHING,
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
    from stoker.engines.sqlite.unit_of_work import QueueRow, Unit

_STATE = sql("subqueue")
_BY_LINE = sql("subqueue_by_line")
_WRITE = sql("subqueue_write")
_NAMED = sql("subqueues_named")
_CHANGE = sql("subqueue_change")
_DROP_STATE = sql("subqueue_drop")
_TOUCHED = sql("subqueues_touched")
_BY_HEAD = sql("subqueues_by_head")
_BY_TURN = sql("subqueues_by_turn")
_LOOK = sql("subqueue_look")
_FIRST = sql("subqueue_first")
_TAKE = sql("subqueue_take")
_DROP = sql("claim_drop")
_PRIORITY = sql("claim_priority")
_PAGE = sql("subqueues")
_OF_QUEUE = sql("subqueues_of_queue")
_HOLDERS = sql("subqueue_holders")
_WAITING = sql("subqueue_waiting")
_FULL = sql("subqueues_full")
_CLAIMS = sql("queue_claims_read")
_COUNT_CLAIM = sql("queue_claims")

BEFORE_ALL = -1_000_000
"""Less than any priority."""


def read(row: Row) -> State:
    """Make a state of its row, which begins with the number of the line."""
    _, name, limited, number, pinned, running, *bucket, priority, due, job, next_, at, turn, since = row
    head = None if priority is None else (priority, due, job)
    return State(name, limited, number, pinned, running, read_bucket(*bucket), head, next_, at, turn, since)


def find(qid: int, name: str) -> Exchange[State | None]:
    """Return a subqueue's state."""
    rows = yield _STATE, (qid, name)
    return read(rows[0]) if rows else None


def write(qid: int, state: State, now: Instant) -> Exchange[int]:
    """Write a state, or delete one that is gone; returns the number of its line."""
    if state.gone(now):
        yield _DROP_STATE, (qid, state.name)
        return 0
    [(sid,)] = yield _WRITE, _values(qid, state)
    return -int(sid)


def _values(qid: int, state: State) -> Row:
    bucket = NO_BUCKET if state.bucket is None else pack_bucket(state.bucket)
    head = (None, None, None) if state.head is None else state.head
    values = (state.limit, state.number, state.pinned, state.running, *bucket, *head, state.next, state.at, state.turn)
    return (qid, state.name, *values, state.since, int(state.open))


def change(qid: int, states: Sequence[State], now: Instant) -> Exchange[None]:
    """Write the states of subqueues that are there, or delete those that are gone."""
    gone = [(qid, state.name) for state in states if state.gone(now)]
    kept = [_values(qid, state) for state in states if not state.gone(now)]
    if gone:
        yield Many(_DROP_STATE, gone)
    if kept:
        yield Many(_CHANGE, kept)


def join(unit: Unit, queue: QueueRow, name: str, slot: Slot | None, when: Instant, *, anew: bool) -> Exchange[int]:
    """Touch a subqueue for a job that is due `when`; returns the line it waits in."""
    state = yield from find(queue.qid, name)
    if state is None:
        unit.divided.add(queue.qid)
        state = made(name, slot, dict(queue.queue.limits), unit.now)
    elif anew and slot is not None:
        state = renumbered(state, slot, unit.now)
    return (yield from write(queue.qid, touched(state, max(when, unit.now)), unit.now))


def leave(unit: Unit, line: int) -> Exchange[None]:
    """Touch the subqueue of a line that a job has left."""
    for qid, *row in (yield _BY_LINE, (line,)):
        yield from write(qid, touched(read(tuple(row)), AT_ONCE), unit.now)


def free(unit: Unit, qid: int, name: str, n: int = 1) -> Exchange[None]:
    """Give slots back, and wake a worker if a job waits for one."""
    state = yield from find(qid, name)
    if state is None:
        return
    state = released(state, n)
    yield from write(qid, state, unit.now)
    if state.head is not None or state.next is not None:
        unit.woken.add((yield from unit.queue_of(qid)).queue.name)


def free_all(unit: Unit, qid: int, slots: Mapping[str, int]) -> Exchange[None]:
    """Give so many slots of each of these subqueues back, in the engine's own transaction."""
    states = [read(row) for row in (yield _NAMED, (qid, json.dumps(list(slots))))]
    states = [released(state, slots[state.name]) for state in states]
    yield from change(qid, states, unit.now)
    if any(state.head is not None or state.next is not None for state in states):
        unit.woken.add((yield from unit.queue_of(qid)).queue.name)


def pin(unit: Unit, queue: QueueRow) -> Exchange[None]:
    """Apply the numbers that an operator set."""
    pins = dict(queue.queue.limits)
    for row in (yield _OF_QUEUE, (queue.qid,)):
        before = read(row)
        if (after := repinned(before, pins)) is not before:
            yield from write(queue.qid, after, unit.now)


# --- claiming ---------------------------------------------------------------------------------------------------


class QueueLines:
    """The lines of one queue for one claim. `taken` are rows of `PICK` with their priority, as the claim took them."""

    heads_may_be_locked = False

    def __init__(self, qid: int, wid: int, now: Instant, claims: int) -> None:
        self._qid = qid
        self._wid = wid
        self._now = now
        self._lines: dict[str, int] = {}
        self.claims = claims
        self.taken: list[tuple[int, Row]] = []

    def _states(self, rows: list[Row]) -> list[State]:
        states = [read(row) for row in rows]
        self._lines.update((state.name, -row[0]) for state, row in zip(states, rows, strict=True))
        return states

    def touched(self, most: int) -> Exchange[list[State]]:
        return self._states((yield _TOUCHED, (self._qid, self._now, most)))

    def look(self, names: Sequence[str]) -> Exchange[Mapping[str, Look]]:
        lines = {self._lines[name]: name for name in names}
        looks: dict[str, Look] = {}
        for line, priority, due, job, later in (yield _LOOK, (json.dumps(list(lines)), self._now)):
            first, soonest = looks.get(lines[line], NOTHING)
            if first is None and due <= self._now:
                first = (priority, due, job)
            if later is not None and (soonest is None or later < soonest):
                soonest = later
            looks[lines[line]] = Look(first, soonest)
        return looks

    def write(self, states: Sequence[State]) -> Exchange[None]:
        yield from change(self._qid, states, self._now)

    def by_head(self, most: int) -> Exchange[list[State]]:
        return self._states((yield _BY_HEAD, (self._qid, self._now, most)))

    def by_turn(self, most: int) -> Exchange[list[State]]:
        return self._states((yield _BY_TURN, (self._qid, self._now, most)))

    def first(self, wanted: Mapping[Line, int]) -> Exchange[Mapping[Line, Sequence[Head]]]:
        found: dict[Line, Sequence[Head]] = {}
        for name, n in wanted.items():
            found[name] = yield from self._first(self._line(name), n)
        return found

    def _first(self, line: int, n: int) -> Exchange[list[Head]]:
        heads: list[Head] = []
        priority = BEFORE_ALL
        while len(heads) < n and (rows := (yield _PRIORITY, (line, priority))):
            priority = rows[0][0]
            more = yield _FIRST, (line, priority, self._now, n - len(heads))
            heads += [(priority, due, job) for due, job in more]
        return heads

    def _line(self, name: Line) -> int:
        return self._qid if name is None else self._lines[name]

    def take(self, picked: Sequence[tuple[Line, Head]], *, counts: bool) -> Exchange[Sequence[tuple[Line, Head]]]:
        if counts:
            yield _COUNT_CLAIM, (self._qid,)
        parts: dict[tuple[int, int], list[Head]] = {}
        for line, head in picked:
            parts.setdefault((self._line(line), head[0]), []).append(head)
        rows: dict[JobId, Row] = {}
        for (number, priority), heads in parts.items():
            rows.update((row[0], row) for row in (yield PICK, (number, priority, self._now, len(heads))))
        upto = [(*part, *heads[-1][1:]) for part, heads in parts.items()]
        yield Many(_TAKE, [(*last, self._wid, self._now, self._qid) for last in upto])
        yield Many(_DROP, upto)
        self.taken += [(head[0], rows[head[2]]) for _, head in picked]
        return picked


def lines_of(qid: int, wid: int, now: Instant) -> Exchange[QueueLines]:
    """Return the lines of a queue."""
    [(claims,)] = yield _CLAIMS, (qid,)
    return QueueLines(qid, wid, now, claims)


# --- operators --------------------------------------------------------------------------------------------------


def subqueues(
    queue: QueueRow | None, after: str | None, limit: int, names: Sequence[str] | None, counted_at: Instant | None
) -> Exchange[list[SubqueueView]]:
    """Return subqueues, by name; with an instant also how many of their jobs are due then."""
    if queue is None:
        return []
    if names is None:
        rows: list[Row] = yield _PAGE, (queue.qid, after or "", max(limit, 0))
    else:
        rows = []
        for name in sorted(set(names)):
            if after is None or name > after:
                rows += yield _STATE, (queue.qid, name)
        rows = rows[: max(limit, 0)]
    held = yield from holders(queue.qid)
    states = [read(row) for row in rows]
    waiting: dict[str, int] | None = None
    if counted_at is not None:
        waiting = {}
        for row in rows:
            [(waiting[row[1]],)] = yield _WAITING, (-row[0], counted_at)
    return [view(queue.queue.name, state, sorted(held.get(state.name, ())), waiting) for state in states]


def miscounted(now: Instant) -> Exchange[list[tuple[int, State, int]]]:
    """Return what has been full for long with a wrong number: its queue's number, its state, and the right number."""
    found: list[tuple[int, State, int]] = []
    held: dict[int, dict[str, list[JobId]]] = {}
    for qid, *row in sorted((yield _FULL, (suspicious_since(now),)), key=lambda row: (row[0], row[2])):
        if qid not in held:
            held[qid] = yield from holders(qid)
        state = read(tuple(row))
        n = len(held[qid].get(state.name, ()))
        if state.running != n:
            found.append((qid, state, n))
    return found


def recount(unit: Unit, limit: int) -> Exchange[list[Repair]]:
    """Repair up to `limit` wrong numbers."""
    repairs: list[Repair] = []
    for qid, state, n in (yield from miscounted(unit.now))[: max(limit, 0)]:
        if (after := recounted(state, n)) is not None:
            yield from write(qid, after, unit.now)
            queue = (yield from unit.queue_of(qid)).queue.name
            unit.woken.add(queue)
            repairs.append(Repair(queue, state.name, state.running, n))
    return repairs


def holders(qid: int) -> Exchange[dict[str, list[JobId]]]:
    """Return the jobs that hold slots, by subqueue."""
    found: dict[str, list[JobId]] = {}
    rows: list[tuple[JobId, Any]] = yield _HOLDERS, (qid,)
    for job, packed in rows:
        try:
            slot = read_options(packed).limit
        except CorruptRecord:
            slot = salvaged(packed).limit
        if slot is not None:
            found.setdefault(slot.subqueue, []).append(job)
    return found

"""Subqueues: their states, which only claims write, and the log in which other calls note what changed.

A call that stores, removes or ends a job appends a row to the log and never waits for a subqueue: a user's transaction
may stay open for long. Job and row become visible by one commit. A claim of a divided queue takes the queue's lock,
applies the rows to the states and goes on as `shared.subqueue_claim` says; every statement of it sees what was
committed when it began, after the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from stoker.engines.postgres.columns import listed
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import NO_BUCKET, pack_bucket, read_bucket, read_options
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

_PENDING, _APPEND = sql("subqueue_pending"), sql("subqueue_append")
_NAMED, _ALL = sql("subqueue_named"), sql("subqueue_all")
_TOUCHED, _BY_HEAD, _BY_TURN = sql("subqueue_touched"), sql("subqueue_by_head"), sql("subqueue_by_turn")
_WRITE, _TAKE = sql("subqueue_write"), sql("claim_picked")
_LOOK, _FIRST = sql("subqueue_look"), sql("subqueue_first")
_HOLDERS, _WAITING = sql("subqueue_holders"), sql("subqueue_waiting")
_FULL_QUEUES, _FULL = sql("subqueue_full_queues"), sql("subqueue_full")

MOST_POST = 2_000
"""Rows of the log that one transaction applies."""

MOST_KEPT = 300
"""States that a claim keeps without writing them."""

COLUMNS = 18
"""Of a state, without its queue."""

ID, ID_OF_HEAD = 5, 12
"""Where the job's id is in a row of a claim, and in a row of a state."""

NO_HEAD: Head = (0, 0, b"")

_decode = msgspec.json.Decoder().decode


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
    head = (None, None, None) if state.head is None else (*state.head[:2], state.head[2].hex())
    values = (state.limit, state.number, state.pinned, state.running, *bucket, *head, state.next, state.at, state.turn)
    return (state.name, *values, state.since, state.open)


def write(queue: str, states: Sequence[State], now: Instant) -> Exchange[None]:
    """Write states; those that are gone are deleted."""
    if states:
        gone = [state.name for state in states if state.gone(now)]
        rows = [_row(state) for state in states if not state.gone(now)]
        names, limits, *others = [*zip(*rows, strict=True)] or [()] * COLUMNS
        yield _WRITE, (queue, list(names), list(limits), *map(listed, others), gone)


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


@lru_cache(maxsize=1_000)
def _slot(options: str) -> Slot | None:
    """The limit of a job; the jobs of a key mostly have the same options."""
    try:
        return read_options(options).limit
    except CorruptRecord:
        return salvaged(options).limit


class Offer(NamedTuple):
    """The first due jobs of a line, of which the first `sure` are complete (None: all); and the next due time."""

    heads: list[Head]
    sure: int | None
    later: Instant | None


class QueueLines:
    """The lines of one queue for one claim. `rows` are those of `claim_picked`, `order` the ids as they were taken.

    `behind`: the log may have more rows than this transaction applies.

    States that the claim reads or changes are kept here and written once, by `flush`. Jobs are read without locks, with
    one more of each line than may be taken: so what is left of a line is known without a second look. If another
    transaction has locked some of them, the claim goes on with reads that lock.
    """

    heads_may_be_locked = True

    def __init__(self, queue: str, worker: str, now: Instant, claims: int, states: dict[str, State]) -> None:
        self._queue = queue
        self._worker = worker
        self._now = now
        self._states = states
        self._changed: set[str] = set()
        self._listed = {name for name, state in states.items() if state.open}
        """Subqueues that statements list as open, whatever the claim made of them."""
        self._offers: dict[Line, Offer] = {}
        self._locking = False
        self._touched_read = True
        self.claims = claims
        self.behind = False
        self.rows: list[Row] = []
        self.order: list[JobId] = []

    # --- states -------------------------------------------------------------------------------------------------

    def touched(self, most: int) -> Exchange[list[State]]:
        if not self._touched_read:
            yield from self.flush()
            self.know(map(read, (yield _TOUCHED, (self._queue, self._now, most))))
        self._touched_read = False
        found = [(one.next, one.name, one) for one in self._states.values() if one.next is not None]
        return [state for when, _, state in sorted(found, key=lambda one: one[:2]) if when <= self._now][:most]

    def write(self, states: Sequence[State]) -> Exchange[None]:
        yield from ()
        for state in states:
            self._states[state.name] = state
            self._changed.add(state.name)

    def flush(self) -> Exchange[None]:
        """Write what was changed, and forget all states."""
        yield from write(self._queue, [self._states[name] for name in sorted(self._changed)], self._now)
        self._changed.clear()
        self._states.clear()
        self._listed.clear()

    def by_head(self, most: int) -> Exchange[list[State]]:
        yield from self._open(_BY_HEAD, most)
        return sorted(self._settled(), key=lambda state: state.head or NO_HEAD)[:most]

    def by_turn(self, most: int) -> Exchange[list[State]]:
        yield from self._open(_BY_TURN, most)
        return sorted(self._settled(), key=lambda state: (state.at or 0, state.turn, state.name))[:most]

    def _open(self, statement: str, most: int) -> Exchange[None]:
        """Read open subqueues beside those that the claim knows."""
        if len(self._states) > MOST_KEPT:
            yield from self.flush()
        known = sum(name in self._states for name in self._listed)
        rows = yield statement, (self._queue, self._now, most + known)
        self.know(map(read, rows))

    def know(self, states: Iterable[State]) -> None:
        """Keep states as they are stored, except those that the claim has changed."""
        for state in states:
            self._states.setdefault(state.name, state)
            if state.open:
                self._listed.add(state.name)

    def _settled(self) -> list[State]:
        return [one for one in self._states.values() if one.open and (one.next is None or one.next > self._now)]

    # --- jobs ---------------------------------------------------------------------------------------------------

    def look(self, names: Sequence[str]) -> Exchange[Mapping[str, Look]]:
        yield from self._read(dict.fromkeys((name for name in names if name not in self._offers), 0))
        looks: dict[str, Look] = {}
        for name in names:
            heads, _, later = self._offers[name]
            looks[name] = Look(heads[0] if heads else None, later)
        return looks

    def first(self, wanted: Mapping[Line, int]) -> Exchange[Mapping[Line, Sequence[Head]]]:
        if self._locking:
            return (yield from self._locked(wanted))
        yield from self._read({name: n for name, n in wanted.items() if not self._suffices(name, n)})
        return {name: self._offers[name].heads[:n] for name, n in wanted.items()}

    def _suffices(self, name: Line, n: int) -> bool:
        offer = self._offers.get(name)
        return offer is not None and (offer.sure is None or offer.sure > n)

    def _read(self, wanted: Mapping[Line, int]) -> Exchange[None]:
        """Read the first due jobs of lines, one more than wanted of each."""
        if not wanted:
            return
        lines = {self._line(name): name for name in wanted}
        heads: dict[Line, list[Head]] = {name: [] for name in wanted}
        laters: dict[Line, Instant] = {}
        for line, priority, dues, jobs, later in (yield _LOOK, (list(lines), list(wanted.values()), self._now)):
            name = lines[line]
            heads[name] += [(priority, due, job) for due, job in zip(dues or (), jobs or (), strict=True)]
            if later is not None:
                laters[name] = min(later, laters.get(name, later))
        for name, n in wanted.items():
            sure = None if len(heads[name]) <= n else n + 1
            self._offers[name] = Offer(sorted(heads[name]), sure, laters.get(name))

    def _locked(self, wanted: Mapping[Line, int]) -> Exchange[Mapping[Line, Sequence[Head]]]:
        """Lock the first due jobs of lines that no other transaction has locked."""
        lines = {self._line(name): name for name in wanted}
        found: dict[Line, list[Head]] = {name: [] for name in wanted}
        for line, *head in (yield _FIRST, (list(lines), list(wanted.values()), self._now)):
            found[lines[line]].append(tuple(head))
        return {name: sorted(heads)[: wanted[name]] for name, heads in found.items()}

    def take(self, picked: Sequence[tuple[Line, Head]], *, counts: bool) -> Exchange[Sequence[tuple[Line, Head]]]:
        names, priorities, dues, jobs = zip(*((self._line(name), *head) for name, head in picked), strict=True)
        columns = (list(names), listed(priorities), listed(dues), listed(job.hex() for job in jobs))
        rows = yield _TAKE, (self._now, self._worker, self._queue, *columns, counts)
        self.rows += rows
        ids = {row[ID] for row in rows}
        taken = [one for one in picked if one[1][2] in ids]
        self.order += [head[2] for _, head in taken]
        if self._locking or len(taken) < len(picked):
            self._locking = True
            self._offers.clear()
        else:
            self._forget(taken)
        return taken

    def _forget(self, taken: Sequence[tuple[Line, Head]]) -> None:
        """Take jobs out of what is known of their lines: they were the first."""
        for name, n in Counter(name for name, _ in taken).items():
            heads, sure, later = self._offers[name]
            self._offers[name] = Offer(heads[n:], None if sure is None else sure - n, later)

    def _line(self, name: Line) -> str:
        return self._queue if name is None else f"{self._queue}/{name}"


def lines_of(
    queue: Queue, worker: str, now: Instant, claims: int, log: str | None, stored: str | None
) -> Exchange[QueueLines]:
    """Return the lines of a queue with the states and rows of the log that `subqueue_news` returned.

    The caller holds the queue's lock.
    """
    states = {state.name: state for state in map(_from_json, _decode(stored or "[]"))}
    rows: list[Row] = [tuple(row) for row in _decode(log or "[]")]
    lines = QueueLines(queue.name, worker, now, claims, states)
    lines.behind = len(rows) == MOST_POST
    yield from lines.write(list(folded(states, rows, dict(queue.limits), now).values()))
    return lines


def _from_json(row: list[Any]) -> State:
    row[ID_OF_HEAD] = None if row[ID_OF_HEAD] is None else UUID(row[ID_OF_HEAD]).bytes
    return read(tuple(row))


def subqueues(
    queue: Queue, after: str | None, limit: int, names: Sequence[str] | None, now: Instant, *, counted: bool
) -> Exchange[list[SubqueueView]]:
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
    waiting: dict[str, int] | None = None
    if counted:
        lines = [f"{queue.name}/{name}" for name in page]
        waiting = {name: n for name, (n,) in zip(page, (yield _WAITING, (lines, now)), strict=True)}
    return [view(queue.name, states[name], sorted(holders.get(name, ())), waiting) for name in page]


def full_queues(now: Instant) -> Exchange[list[str]]:
    """Return the queues of which a subqueue has been full for long."""
    return [queue for (queue,) in (yield _FULL_QUEUES, (suspicious_since(now),))]


def miscounted(queue: str, now: Instant) -> Exchange[dict[str, tuple[int, Repair]]]:
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


def recount(unit: Unit, queue: str, limit: int) -> Exchange[list[Repair]]:
    """Repair up to `limit` wrong numbers of a queue. The caller holds the queue's lock."""
    wrong = yield from miscounted(queue, unit.now)
    names = list(wrong)[: max(limit, 0)]
    if not names:
        return []
    states = [recounted(state, wrong[state.name][0]) for state in map(read, (yield _NAMED, (queue, names)))]
    yield from write(queue, [state for state in states if state is not None], unit.now)
    unit.woken.add(queue)
    return [wrong[name][1] for name in names]

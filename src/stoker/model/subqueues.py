"""Subqueues: the jobs of a queue that share a limit key, or in a fair queue a tenant.

Such jobs do not stand in the main line of their queue but in a line of their own, in the same order: priority, due
time, id. A store keeps a small `State` for each subqueue, so that a claim never reads jobs it may not take. A call that
stores, removes or ends a job only *touches* the state: it asks the next claim to look at the subqueue from an instant
on, or gives a slot back. Claims do everything else: they look at what was touched, pick, and write what is left.

A slot is a claim. `running` changes only in the write that starts or ends one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from stoker.model.ids import JobId
from stoker.model.job import FIRST, Status
from stoker.model.limit import Slot
from stoker.model.record import PUT_BACK, WAITING, Record
from stoker.model.throttle import Bucket, full, level, retuned, take, until_token
from stoker.model.time import MINUTE, SECOND, Instant, Span

TENANT = "@"
"""With what the name of a tenant's subqueue begins; no limit's name does. Alone: jobs without a tenant."""

FULL_FOR: Span = MINUTE
"""A subqueue that has been full for longer is counted again by `expire`."""

MOST_LOOKS = 1_000
"""How many touched subqueues one round of a claim looks at."""

MOST_HOLDERS = 10
"""How many of the jobs that hold the slots of a subqueue a view names."""

Head: TypeAlias = tuple[int, Instant, JobId]
"""A waiting job by what orders it: priority, scheduled time, id."""

Line: TypeAlias = str | None
"""The name of a subqueue; None: the main line of the queue."""


class Look(NamedTuple):
    """What a line holds: its first job that is due, and when the first of the others is due; None: there is none."""

    first: Head | None = None
    later: Instant | None = None


NOTHING = Look()


class State(msgspec.Struct, frozen=True, gc=False):
    """A subqueue as a store keeps it.

    `limit` is the name of the limit, None for a tenant. `number` is what the newest job of the key brought, `pinned`
    what an operator set instead. `head` is the first job that may start, as of the last look; `next` is when to look
    again. `at` and `turn` are the place in the round of a fair queue, while there is a head. `since`: when a claim or a
    look found it full.
    """

    name: str
    limit: str | None = None
    number: int | None = None
    pinned: int | None = None
    running: int = 0
    bucket: Bucket | None = None
    head: Head | None = None
    next: Instant | None = None
    at: Instant | None = None
    turn: int = 0
    since: Instant | None = None

    @property
    def most(self) -> int | None:
        """How many of its jobs may run at once; None: any number."""
        return self.number if self.pinned is None else self.pinned

    @property
    def full(self) -> bool:
        """Are all slots taken?"""
        return self.most is not None and self.running >= self.most

    @property
    def open(self) -> bool:
        """May a claim take a job of it?"""
        return self.head is not None and not self.full

    def gone(self, now: Instant) -> bool:
        """Does nothing wait, run, or fill up again, so that the state need not be kept?"""
        kept = self.head is not None or self.next is not None or self.running > 0
        return not kept and (self.bucket is None or level(self.bucket, now) >= self.bucket.rate.capacity)


class SubqueueView(msgspec.Struct, frozen=True):
    """A subqueue as an operator reads it: `holders` are the first of the jobs that hold its slots.

    `turn` is its place in the round of a fair queue; None: as of the last claim none of its jobs may start. `bucket`
    holds the tokens of its rate. `waiting` is how many of its jobs are due and hold no slot; None: not counted.
    """

    queue: str
    name: str
    limit: str | None = None
    key: str | None = None
    running: int = 0
    most: int | None = None
    pinned: bool = False
    due: Instant | None = None
    holders: tuple[JobId, ...] = ()
    turn: tuple[Instant, int] | None = None
    bucket: Bucket | None = None
    waiting: int | None = None

    @property
    def full(self) -> bool:
        """Are all places taken?"""
        return self.most is not None and self.running >= self.most


# --- where a job stands -----------------------------------------------------------------------------------------


def tenant_line(tenant: str | None) -> str:
    """The subqueue of a tenant in a fair queue."""
    return TENANT + (tenant or "")


def position(slot: Slot | None, tenant: str | None, *, fair: bool) -> Line:
    """The line that a job which holds no slot stands in."""
    if slot is not None:
        return slot.subqueue
    return tenant_line(tenant) if fair else None


def line_of(record: Record, *, fair: bool) -> Line:
    """The line a waiting job stands in; one that kept its slot waits in the main line."""
    return None if keeps_slot(record) else position(record.options.limit, record.tenant, fair=fair)


def keeps_slot(record: Record) -> bool:
    """Does a waiting job hold the slot of its last run? `hold="retrying"`: until it ends, moves or is replaced."""
    slot = record.options.limit
    return slot is not None and slot.hold == "retrying" and record.status in WAITING and record.settled in PUT_BACK


def slot_of(record: Record | None) -> tuple[str, str] | None:
    """Queue and subqueue in which a job holds a slot; None: it holds none."""
    if record is None or record.options.limit is None:
        return None
    if record.status is Status.RUNNING or keeps_slot(record):
        return record.queue, record.options.limit.subqueue
    return None


def freed(before: Record | None, after: Record | None) -> tuple[str, str] | None:
    """Queue and subqueue of the slot that a change of a job gives back; None: it gives none."""
    held = slot_of(before)
    return held if held != slot_of(after) else None


def renumbers(before: Record | None, after: Record) -> bool:
    """Does storing this job set the number of its key? Only a job that is stored anew does."""
    return before is None or before.options.limit != after.options.limit


# --- touching: by calls that store, remove or end jobs ----------------------------------------------------------


def made(name: str, slot: Slot | None, pins: Mapping[str, int], now: Instant) -> State:
    """The state of a subqueue that gets its first job."""
    if slot is None:
        return State(name)
    bucket = None if slot.rate is None else full(slot.rate, now)
    return State(name, slot.name, slot.n, pins.get(slot.name), bucket=bucket)


def renumbered(state: State, slot: Slot, now: Instant) -> State:
    """The newest job of a key sets its number and its rate."""
    if slot.rate is None:
        bucket = None
    else:
        bucket = full(slot.rate, now) if state.bucket is None else retuned(state.bucket, slot.rate, now)
    return replace(state, number=slot.n, bucket=bucket)


AT_ONCE: Instant = 0
"""The instant to touch a subqueue for that a job has left: its head may be gone, so no claim may trust it."""


FRONT: Instant = 0
"""The place in the round of a subqueue whose head an operator put first."""


def touched(state: State, when: Instant) -> State:
    """To be looked at from this instant on: when a job that joins it is due, but not before now."""
    return state if state.next is not None and state.next <= when else replace(state, next=when)


def released(state: State, n: int = 1) -> State:
    """After so many of its claims ended."""
    running = max(0, state.running - n)
    left = replace(state, running=running)
    return left if left.full else replace(left, since=None)


def repinned(state: State, pins: Mapping[str, int]) -> State:
    """After an operator changed numbers: what is pinned counts, and the next claim looks at it."""
    pinned = None if state.limit is None else pins.get(state.limit)
    return state if pinned == state.pinned else touched(replace(state, pinned=pinned), AT_ONCE)


# --- claiming ---------------------------------------------------------------------------------------------------


def looked(state: State, look: Look, now: Instant, turn: int) -> State:
    """After a claim looked at it; one that has jobs again joins the round with the instant that it was touched for.

    One whose head an operator put first is the next in the round; without that job it joins anew.
    """
    waits = look.later
    head = look.first
    if state.bucket is not None:
        token = until_token(state.bucket, now)
        if head is not None and token:
            head, waits = None, now + token
        elif head is None and waits is None and level(state.bucket, now) < state.bucket.rate.capacity:
            waits = now + _until_full(state.bucket, now)
    if head is None:
        return _since(replace(state, head=None, next=waits, at=None, turn=0), now)
    if head[0] == FIRST:
        state = replace(state, at=FRONT, turn=0)
    elif state.at is None or state.at == FRONT:
        state = replace(state, at=min(state.next or now, now), turn=turn)
    return _since(replace(state, head=head, next=waits), now)


def room(state: State, wanted: int, now: Instant) -> int:
    """How many of the wanted jobs it may start: as many as it has free slots and whole tokens."""
    if state.most is not None:
        wanted = min(wanted, state.most - state.running)
    if state.bucket is not None:
        wanted = min(wanted, math.floor(level(state.bucket, now)))
    return max(0, wanted)


def served(state: State, n: int, look: Look, now: Instant, turn: int) -> State:
    """After a claim took `n` jobs: it goes to the end of the round. `look` is what is left."""
    after = replace(
        state,
        running=state.running + n if state.limit is not None else 0,
        bucket=None if state.bucket is None else take(state.bucket, n, now),
        head=None,
        next=now,
        at=None,
    )
    return looked(after, look, now, turn)


def pick(main: Sequence[Head], lines: Mapping[str, Sequence[Head]], n: int) -> list[tuple[Line, Head]]:
    """The first `n` jobs by priority, due time and id, over the main line and what each subqueue may give."""
    found: list[tuple[Head, Line]] = [(head, None) for head in main]
    for name, heads in lines.items():
        found += [(head, name) for head in heads]
    found.sort(key=lambda one: one[0])
    return [(line, head) for head, line in found[:n]]


def share(n: int, subqueues: int) -> int:
    """The most jobs that a claim of `n` takes from each of `subqueues`."""
    return -(-n // subqueues)


def take_turns(lines: Iterable[tuple[str, Sequence[Head]]], n: int) -> list[tuple[Line, Head]]:
    """The jobs of subqueues in the order of their turns: the first of each, then the second of each, and so on."""
    found = [(place, turn, name, head) for turn, (name, heads) in enumerate(lines) for place, head in enumerate(heads)]
    found.sort(key=lambda one: one[:2])
    return [(name, head) for _, _, name, head in found[:n]]


def joins_at(claims: int) -> int:
    """Turn number of a subqueue that joins after `claims`; sorts after those already served."""
    return 2 * claims + 1


def served_at(claims: int) -> int:
    """Turn number of a subqueue that the next claim serves; sorts after those that joined."""
    return 2 * claims + 2


# --- operators --------------------------------------------------------------------------------------------------


def wakes_at(state: State) -> Instant | None:
    """When a claim can take a job of it, as far as time alone decides; None: it is full, or nothing waits."""
    if state.full:
        return None
    times = [when for when in (state.next, None if state.head is None else state.head[1]) if when is not None]
    return min(times, default=None)


def recounted(state: State, holders: int) -> State | None:
    """The state with the right number of claims; None where there is nothing to repair."""
    return None if state.running == holders else touched(replace(state, running=holders, since=None), AT_ONCE)


def suspicious(state: State, now: Instant) -> bool:
    """Has it been full for so long that its claims are counted again?"""
    return state.since is not None and state.since <= suspicious_since(now)


def suspicious_since(now: Instant) -> Instant:
    """What has been full since this instant or before is counted again."""
    return now - FULL_FOR


def view(
    queue: str, state: State, holders: Iterable[JobId] = (), waiting: Mapping[str, int] | None = None
) -> SubqueueView:
    """A state as an operator reads it. `waiting` is how many jobs wait, by subqueue, if they were counted."""
    _, slash, key = state.name.partition("/")
    if state.limit is None:
        slash, key = state.name[len(TENANT) :], state.name[len(TENANT) :]
    times = [when for when in (state.next, None if state.head is None else state.head[1]) if when is not None]
    return SubqueueView(
        queue,
        state.name,
        state.limit,
        key if slash else None,
        state.running,
        state.most,
        state.pinned is not None,
        min(times, default=None),
        tuple(holders)[:MOST_HOLDERS],
        (state.at, state.turn) if state.open and state.at is not None else None,
        state.bucket,
        None if waiting is None else waiting.get(state.name, 0),
    )


def before_in_round(name: str, views: Iterable[SubqueueView]) -> int:
    """How many of these subqueues take their turn before one; one that has no place yet joins at the end."""
    turns = {one.name: (one.turn, one.name) for one in views if one.turn is not None}
    mine = turns.get(name)
    return len(turns) if mine is None else sum(turn < mine for turn in turns.values())


def _since(state: State, now: Instant) -> State:
    if not state.full:
        return state if state.since is None else replace(state, since=None)
    return state if state.since is not None else replace(state, since=now)


def _until_full(bucket: Bucket, now: Instant) -> Span:
    missing = bucket.rate.capacity - level(bucket, now)
    return min(max(1, math.ceil(missing / bucket.rate.refill * SECOND)), MINUTE)

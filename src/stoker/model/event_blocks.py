"""Blocks of events: what engines store instead of a row for each event.

A block holds events of one minute, column by column, so that a batch of events costs about as much as one row. Blocks
of different minutes never overlap in time. A block is found by its times and by the smallest and largest id of its
jobs; the ids stand in its body as they are, so that a store can look for one without unpacking.

A block never changes. Events of a job that was removed are hidden when they are listed: a `Removal` says which. They
still count: that jobs were completed in a minute stays true when their records are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Final

import msgspec

from stoker.model.errors import CorruptRecord
from stoker.model.events import Event, EventCount, EventTally, EventType, Failing, Latency, Window
from stoker.model.ids import JobId
from stoker.model.time import MINUTE, Instant, Span

ID_SIZE: Final = 16

TICK: Final[Span] = 100
"""Waits are stored in tenths of a millisecond: most of them fit in three bytes."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """Events of one minute, packed: when the first and the last of them happened, and the ends of their jobs' ids."""

    first: Instant
    last: Instant
    low: JobId
    high: JobId
    count: int
    body: bytes


class StoredBlock(msgspec.Struct, frozen=True, gc=False):
    """A block as it is read back. Blocks are numbered in the order in which they were stored."""

    number: int
    first: Instant
    last: Instant
    body: bytes


class Removal(msgspec.Struct, frozen=True, gc=False):
    """Which events of a removed job are hidden.

    Those in blocks up to a number, and those up to an instant, whichever block brings them. Of an expired job that is
    `NEVER`: events of it that come later are shown.
    """

    block: int
    at: Instant

    def hides(self, block: int, at: Instant) -> bool:
        """Whether it hides an event of that time in that block."""
        return block <= self.block or at <= self.at


NEVER: Final[Instant] = -1


class _Columns(msgspec.Struct, array_like=True, gc=False):
    """The body of a block. `named` says which of `names` an event has.

    `at` counts from the first event or, if it is `stepwise`, from the event before: most steps fit in one byte. Blocks
    were not always. `waits` has an entry for each event with a total, in their order. `errors` and `releases` are those
    of names, by their place: few events have one, and the others pay nothing for it.
    """

    names: list[tuple[EventType, str, str]]
    named: list[int]
    jobs: bytes
    at: list[Span]
    attempts: list[int]
    durations: list[Span | None]
    totals: list[Span | None]
    waits: list[Span | None] = []
    errors: dict[int, str] = {}
    releases: dict[int, str] = {}
    stepwise: bool = False

    def ids(self) -> list[JobId]:
        return [self.jobs[start : start + ID_SIZE] for start in range(0, len(self.jobs), ID_SIZE)]

    def times(self) -> list[Span]:
        """How long after the first event each of them happened."""
        return list(accumulate(self.at)) if self.stepwise else self.at


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Columns).decode


def pack(events: Sequence[Event], shift: Span = 0) -> list[Block]:
    """The blocks of some events, whose times are shifted, those of the latest minute first. None: `[]`.

    Late events get a later block number, by which `late_minutes` finds them.
    """
    if not events:
        return []
    times = [one.at for one in events]
    if (min(times) + shift) // MINUTE == (max(times) + shift) // MINUTE:
        return [_packed(events, shift)]
    minutes: dict[Instant, list[Event]] = {}
    for event in events:
        minutes.setdefault((event.at + shift) // MINUTE, []).append(event)
    return [_packed(minutes[minute], shift) for minute in sorted(minutes, reverse=True)]


def _packed(events: Sequence[Event], shift: Span) -> Block:
    names: dict[Failing, int] = {}
    named = [names.setdefault((one.type, one.queue, one.kind, one.error, one.release), len(names)) for one in events]
    jobs, times = [one.job for one in events], [one.at for one in events]
    first = min(times)
    columns = _Columns(
        [name[:3] for name in names],
        named,
        b"".join(jobs),
        [at - before for before, at in pairwise((first, *times))],
        [one.attempt for one in events],
        [one.duration for one in events],
        [one.total for one in events],
        [one.wait if one.wait is None else one.wait // TICK for one in events if one.total is not None],
        {place: name[3] for name, place in names.items() if name[3]},
        {place: name[4] for name, place in names.items() if name[4]},
        stepwise=True,
    )
    return Block(first + shift, max(times) + shift, min(jobs), max(jobs), len(events), _encode(columns))


def _unpacked(body: bytes) -> _Columns:
    try:
        return _decode(body)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"a block of events cannot be read: {error}") from error


def jobs_of(block: StoredBlock) -> list[JobId]:
    """The jobs of a block's events, each once."""
    return list(dict.fromkeys(_unpacked(block.body).ids()))


Removals = Mapping[JobId, Removal]
"""The removals of a block's jobs; most blocks have none."""

NOTHING_REMOVED: Final[Removals] = MappingProxyType({})


def unpack(block: StoredBlock, window: Window, removals: Removals) -> Iterator[Event]:
    """The events of a block that belong to a window and are not hidden, in the order in which they were recorded."""
    columns = _unpacked(block.body)
    wanted = {named for named, (_, queue, _) in enumerate(columns.names) if window.queue in (None, queue)}
    since, until = window.since - block.first, window.until - block.first
    whole = since <= 0 and block.last < window.until
    waits = iter(columns.waits)
    for named, job, at, attempt, duration, total in zip(
        columns.named,
        columns.ids(),
        columns.times(),
        columns.attempts,
        columns.durations,
        columns.totals,
        strict=True,
    ):
        stored = None if total is None else next(waits, None)
        wait = stored if stored is None else stored * TICK
        if named not in wanted or not (whole or since <= at < until) or window.job not in (None, job):
            continue
        if removals and job in removals and removals[job].hides(block.number, block.first + at):
            continue
        type_, queue, kind = columns.names[named]
        error, release = columns.errors.get(named, ""), columns.releases.get(named, "")
        yield Event(block.first + at, type_, job, queue, kind, attempt, duration, total, wait, error, release)


def _completed(block: StoredBlock, window: Window) -> list[Latency]:
    """How long the jobs took that were completed, as a block tells it, also those that were removed."""
    columns = _unpacked(block.body)
    wanted = [
        (queue, kind) if type_ is EventType.COMPLETED and window.queue in (None, queue) else None
        for type_, queue, kind in columns.names
    ]
    since, until, first = window.since - block.first, window.until - block.first, block.first
    only = None if window.job is None else {n for n, job in enumerate(columns.ids()) if job == window.job}
    waits, times = iter(columns.waits), columns.times()
    found: list[Latency] = []
    for place, total in enumerate(columns.totals):
        if total is None:
            continue
        wait, name = next(waits, None), wanted[columns.named[place]]
        at, duration = times[place], columns.durations[place]
        if name is None or duration is None or not since <= at < until or (only is not None and place not in only):
            continue
        wait = wait if wait is None else wait * TICK
        found.append(Latency(name[0], first + at, duration, total, name[1], wait))
    return found


class EventCounter:
    """Counts the events of blocks by queue, type, kind and error, also those of removed jobs."""

    hides: Final = False

    def __init__(self, since: Instant, until: Instant) -> None:
        self._window = Window(since, until)
        self._found = EventTally()

    def suffices(self, block: StoredBlock) -> bool:
        """Whether this block and those after it lie behind the window."""
        return block.first >= self._window.until

    def add(self, block: StoredBlock, _: Removals = NOTHING_REMOVED) -> None:
        """Count a block; one that lies in the window as a whole is counted without making its events."""
        if block.first < self._window.since or block.last >= self._window.until:
            for event in unpack(block, self._window, NOTHING_REMOVED):
                self._found.add_event(event)
            return
        columns = _unpacked(block.body)
        counted = Counter(columns.named)
        if errors := columns.errors:
            newest: dict[int, JobId] = {}
            for place, named in [failed for failed in enumerate(columns.named) if failed[1] in errors]:
                job = columns.jobs[place * ID_SIZE : place * ID_SIZE + ID_SIZE]
                newest[named] = max(newest.get(named, b""), job)
            for named, job in newest.items():
                name = *columns.names[named], errors[named], columns.releases.get(named, "")
                self._found.add_failed(name, counted.pop(named), job)
        self._found.add(columns.names, counted)

    def counts(self) -> list[EventCount]:
        """What was counted, by queue, type, kind and error."""
        return self._found.counts()


class EventList:
    """Collects the events of a window from blocks, which come minute by minute.

    `latest`: the latest minute first, and only how long completed jobs took, also of those that were removed.
    """

    def __init__(self, window: Window, *, latest: bool = False) -> None:
        self._window = window
        self._latest = latest
        self.hides = not latest
        self._events: list[tuple[int, list[Event]]] = []
        self._runs: list[tuple[int, list[Latency]]] = []
        self._n = 0
        self._minute: Instant | None = None

    def suffices(self, block: StoredBlock) -> bool:
        """Whether the window's limit is reached without this block and those after it."""
        return self._n >= self._window.limit and block.first // MINUTE != self._minute

    def add(self, block: StoredBlock, removals: Removals = NOTHING_REMOVED) -> None:
        """Add a block's events; of the latest, those that say how long a completed job took."""
        if self._latest:
            runs = _completed(block, self._window)
            self._runs.append((block.number, runs))
            self._n += len(runs)
        else:
            found = list(unpack(block, self._window, removals))
            self._events.append((block.number, found))
            self._n += len(found)
        self._minute = block.first // MINUTE

    def events(self) -> list[Event]:
        """Everything that was added, oldest first, up to the limit. Events of one instant: as they were stored."""
        found = [event for _, part in sorted(self._events, key=_number) for event in part]
        return sorted(found, key=_at)[: max(self._window.limit, 0)]

    def latencies(self) -> list[Latency]:
        """The times of the completed jobs among them, latest first, up to the limit."""
        found = [run for _, part in sorted(self._runs, key=_number) for run in part]
        return sorted(found, key=_finished)[::-1][: max(self._window.limit, 0)]


def _number(part: tuple[int, object]) -> int:
    return part[0]


_at, _finished = attrgetter("at"), attrgetter("finished")

"""The app's event buffer: collects events and writes them to the store's timeline every few seconds.

An event is buffered only after the store accepted the write it describes; losing events in a crash never touches a
job. The buffer keeps whole batches and converts them to events when it is flushed, so the hot path pays one append.
Batches with large payloads are converted at once, because the buffer must not keep the payloads alive.

Events are written in chunks with an id each. A chunk whose write was canceled, or whose reply was lost, is written
again under the same id; the store ignores a chunk it has already.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stoker.engines.base import Timeline
from stoker.model import events
from stoker.model.errors import EngineUnavailable, StokerError
from stoker.model.events import Event, EventType
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Receipt, Settlement, Verdict
from stoker.model.time import Instant, Span
from stoker.release import release

CAPACITY = 50_000
CHUNK = 2_000
HEAVY = 256 * 1024
"""A batch with more bytes of payloads and results is converted to events at once."""

logger = logging.getLogger("stoker.app")


class _Inserted(msgspec.Struct, frozen=True):
    at: Instant
    drafts: Sequence[Draft]
    receipts: Sequence[Receipt]

    def events(self) -> list[Event]:
        return events.of_insert(self.drafts, self.receipts, self.at)


class _Claimed(msgspec.Struct, frozen=True):
    claims: Sequence[Claim]
    off: Span

    def events(self) -> list[Event]:
        return events.of_claims(self.claims, self.off)


class _Settled(msgspec.Struct, frozen=True):
    at: Instant
    claims: Sequence[Claim]
    settlements: Sequence[Settlement]
    verdicts: Sequence[Verdict]
    stored: frozenset[JobId]
    off: Span

    def events(self) -> list[Event]:
        found = events.of_settlements(self.claims, self.settlements, self.verdicts, self.at, self.off, release())
        for settlement, verdict in zip(self.settlements, self.verdicts, strict=True):
            if settlement.followups and verdict is Verdict.APPLIED:
                found += (
                    Event(self.at, EventType.ENQUEUED, draft.job_id, draft.queue, draft.kind)
                    for draft in settlement.followups
                    if draft.unique is None or draft.job_id in self.stored
                )
        return found


class _Events(msgspec.Struct, frozen=True):
    """Events already converted. With a `chunk` id they were sent before and stay together."""

    rest: list[Event]
    chunk: bytes | None = None

    def events(self) -> list[Event]:
        return self.rest


Batch: TypeAlias = _Inserted | _Claimed | _Settled | _Events


def wall() -> Instant:
    """This process's wall clock; the store shifts events to its own."""
    return time.time_ns() // 1000


class EventBuffer:
    """A bounded, thread-safe buffer; it counts dropped events and logs them at the next flush."""

    def __init__(self, capacity: int = CAPACITY, chunk: int = CHUNK) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self._held = 0
        self._capacity = capacity
        self._chunk = chunk
        self.dropped = 0
        self._reported = 0
        self._off: Span = 0
        """How far this host's clock is ahead of the store's, by the last claims."""

    @property
    def lost(self) -> int:
        """How many events were dropped, ever."""
        return self._reported + self.dropped

    def __len__(self) -> int:
        return self._held

    def inserted(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """Add the events of an acknowledged insert."""
        self._push(_Inserted(wall(), drafts, receipts), len(drafts), _weight(drafts))

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Add the events of new claims."""
        if claims:
            off = events.off_by(claims, wall())
            self._off = self._off if off is None else off
            self._push(_Claimed(claims, self._off), len(claims), _weight(claims))

    def settled(
        self,
        claims: Sequence[Claim],
        settlements: Sequence[Settlement],
        verdicts: Sequence[Verdict],
        stored: frozenset[JobId] = frozenset(),
    ) -> None:
        """Add the events of settlements; `stored` names the keyed follow-ups that were inserted."""
        weight = _weight(claims) + sum(len(one.result) for one in settlements if one.result is not None)
        self._push(_Settled(wall(), claims, settlements, verdicts, stored, self._off), len(settlements), weight)

    def add(self, event: Event) -> None:
        """Add one event."""
        self._push(_Events([event]), 1, 0)

    def _push(self, batch: Batch, count: int, weight: int) -> None:
        if weight > HEAVY:
            batch = _Events(batch.events())
            count = len(batch.rest)
        with self._lock:
            room = self._capacity - self._held
            if count > room:
                found = batch.events()
                batch, count = _Events(found[:room]), min(len(found), room)
                self.dropped += len(found) - count
            if count:
                self._batches.append(batch)
                self._held += count

    async def flush(self, store: Timeline) -> int:
        """Write all events in chunks, keep those that failed; returns how many were written.

        A chunk that no store can write is left out, so that it does not hold up the others.
        """
        with self._lock:
            batches, self._batches, self._held = self._batches, deque(), 0
        chunks = self._chunks(batches)
        batches.clear()
        written = 0
        try:
            while chunks:
                events, chunk = chunks[0].rest, chunks[0].chunk or os.urandom(16)
                chunks[0] = _Events(events, chunk)
                try:
                    await store.record(events, now=wall(), chunk=chunk)
                    written += len(events)
                except StokerError:
                    raise
                except OSError as error:
                    raise EngineUnavailable(f"{error}.") from error
                except Exception:
                    logger.exception("%s missing from the timeline: not to be written", count(len(events), "event"))
                chunks.popleft()
        finally:
            self._put_back(chunks)
        if dropped := self.take_dropped():
            logger.warning("%s missing from the timeline: the buffer was full", count(dropped, "event"))
        return written

    def _chunks(self, batches: Sequence[Batch]) -> deque[_Events]:
        """The chunks to write, one per call; chunks that were sent before stay unchanged."""
        chunks: deque[_Events] = deque()
        loose: list[Event] = []
        for batch in batches:
            if isinstance(batch, _Events) and batch.chunk is not None:
                chunks.append(batch)
            else:
                loose += batch.events()
        chunks.extend(_Events(loose[start : start + self._chunk]) for start in range(0, len(loose), self._chunk))
        return chunks

    def _put_back(self, chunks: deque[_Events]) -> None:
        """Put unwritten chunks back at the front, as far as there is room."""
        with self._lock:
            kept: list[Batch] = []
            for one in chunks:
                room = self._capacity - self._held
                self.dropped += max(0, len(one.rest) - room)
                if room > 0:
                    kept.append(_Events(one.rest[:room], one.chunk))
                    self._held += min(room, len(one.rest))
            self._batches.extendleft(reversed(kept))

    def take_dropped(self) -> int:
        """Return and reset the number of dropped events."""
        with self._lock:
            dropped, self.dropped = self.dropped, 0
            self._reported += dropped
            return dropped


def _weight(bearers: Sequence[Draft] | Sequence[Claim]) -> int:
    return sum([len(one.payload) for one in bearers])

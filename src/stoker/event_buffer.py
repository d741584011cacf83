"""The app's event buffer: collects events and writes them to the store's timeline every few seconds.

An event is buffered only after the store accepted the write it describes; losing events in a crash never touches a
job. Claims and settlements are converted to events at once: a buffer that kept them until its flush, with their
payloads, would make the worker take fresh memory for every job, which costs more than the conversion.

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
CROWDED = 5
"""From how many chunks on the buffer is written before its next flush."""

logger = logging.getLogger("stoker.app")


class _Events(msgspec.Struct, frozen=True):
    """Events that came in together. With a `chunk` id they were sent before and stay together."""

    rest: list[Event]
    chunk: bytes | None = None


def wall() -> Instant:
    """This process's wall clock; the store shifts events to its own."""
    return time.time_ns() // 1000


class EventBuffer:
    """A bounded, thread-safe buffer; it counts dropped events and logs them at the next flush."""

    def __init__(self, capacity: int = CAPACITY, chunk: int = CHUNK) -> None:
        self._lock = threading.Lock()
        self._batches: deque[_Events] = deque()
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

    @property
    def crowded(self) -> bool:
        """Are there so many events that they should be written before their time?"""
        return self._held >= min(CROWDED * self._chunk, self._capacity // 2)

    def inserted(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """Add the events of an acknowledged insert."""
        self._push(events.of_insert(drafts, receipts, wall()))

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Add the events of new claims."""
        if claims:
            off = events.off_by(claims, wall())
            self._off = self._off if off is None else off
            self._push(events.of_claims(claims, self._off))

    def settled(
        self,
        claims: Sequence[Claim],
        settlements: Sequence[Settlement],
        verdicts: Sequence[Verdict],
        stored: frozenset[JobId] = frozenset(),
    ) -> None:
        """Add the events of settlements; `stored` names the keyed follow-ups that were inserted."""
        at = wall()
        found = events.of_settlements(claims, settlements, verdicts, at, self._off, release())
        for settlement, verdict in zip(settlements, verdicts, strict=True):
            if settlement.followups and verdict is Verdict.APPLIED:
                found += (
                    Event(at, EventType.ENQUEUED, draft.job_id, draft.queue, draft.kind)
                    for draft in settlement.followups
                    if draft.unique is None or draft.job_id in stored
                )
        self._push(found)

    def add(self, event: Event) -> None:
        """Add one event."""
        self._push([event])

    def _push(self, found: list[Event]) -> None:
        with self._lock:
            room = self._capacity - self._held
            if len(found) > room:
                self.dropped += len(found) - room
                found = found[:room]
            if found:
                self._batches.append(_Events(found))
                self._held += len(found)

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

    def _chunks(self, batches: Sequence[_Events]) -> deque[_Events]:
        """The chunks to write, one per call; chunks that were sent before stay unchanged."""
        chunks: deque[_Events] = deque()
        loose: list[Event] = []
        for batch in batches:
            if batch.chunk is not None:
                chunks.append(batch)
            else:
                loose += batch.rest
        chunks.extend(_Events(loose[start : start + self._chunk]) for start in range(0, len(loose), self._chunk))
        return chunks

    def _put_back(self, chunks: deque[_Events]) -> None:
        """Put unwritten chunks back at the front, as far as there is room."""
        with self._lock:
            kept: list[_Events] = []
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

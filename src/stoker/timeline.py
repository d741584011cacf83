"""The app's event buffer: what happened is remembered here and written every few seconds.

Events are told only after the write they describe was accepted, and losing them in a crash never touches a job. The
buffer keeps whole batches as they came and turns them into events when it is flushed, so the hot path pays an append;
only batches with large payloads are turned at once, because the buffer must not keep those alive.

Events are written in chunks with an id each. A chunk whose write was canceled, or whose answer was lost, is written
again under the same id, and the store changes nothing if it has it already.
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
from stoker.model.events import Event, EventType
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Receipt, Settlement, Verdict
from stoker.model.time import Instant

CAPACITY = 50_000
CHUNK = 100
HEAVY = 256 * 1024
"""Bytes of payloads and results from which on a batch is not kept as it came."""

logger = logging.getLogger("stoker.app")


class _Inserted(msgspec.Struct, frozen=True):
    at: Instant
    drafts: Sequence[Draft]
    receipts: Sequence[Receipt]

    def events(self) -> list[Event]:
        return events.of_insert(self.drafts, self.receipts, self.at)


class _Claimed(msgspec.Struct, frozen=True):
    claims: Sequence[Claim]

    def events(self) -> list[Event]:
        return events.of_claims(self.claims)


class _Settled(msgspec.Struct, frozen=True):
    at: Instant
    claims: Sequence[Claim]
    settlements: Sequence[Settlement]
    verdicts: Sequence[Verdict]
    stored: frozenset[JobId] = frozenset()

    def events(self) -> list[Event]:
        told = map(events.of_settlement, self.claims, self.settlements, self.verdicts, [self.at] * len(self.claims))
        found = [event for event in told if event is not None]
        for settlement, verdict in zip(self.settlements, self.verdicts, strict=True):
            if settlement.followups and verdict is Verdict.APPLIED:
                found += (
                    Event(self.at, EventType.ENQUEUED, draft.id, draft.queue, draft.kind)
                    for draft in settlement.followups
                    if draft.unique is None or draft.id in self.stored
                )
        return found


class _Again(msgspec.Struct, frozen=True):
    """Events as such. With a `chunk` they were sent under that id before, and stay together."""

    rest: list[Event]
    chunk: bytes | None = None

    def events(self) -> list[Event]:
        return self.rest


Batch: TypeAlias = _Inserted | _Claimed | _Settled | _Again


def wall() -> Instant:
    """This process's wall clock; the store shifts events to its own."""
    return time.time_ns() // 1000


class Buffer:
    """Bounded and thread safe. What does not fit is counted and reported with the next flush."""

    def __init__(self, capacity: int = CAPACITY, chunk: int = CHUNK) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self._held = 0
        self._capacity = capacity
        self._chunk = chunk
        self.dropped = 0

    def __len__(self) -> int:
        return self._held

    def inserted(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """An insert was acknowledged."""
        self._push(_Inserted(wall(), drafts, receipts), len(drafts), _weight(drafts))

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Claims were handed out."""
        if claims:
            self._push(_Claimed(claims), len(claims), _weight(claims))

    def settled(
        self,
        claims: Sequence[Claim],
        settlements: Sequence[Settlement],
        verdicts: Sequence[Verdict],
        stored: frozenset[JobId] = frozenset(),
    ) -> None:
        """Settlements were answered. `stored` are the follow-ups with a key that were stored."""
        weight = _weight(claims) + sum(len(one.result) for one in settlements if one.result is not None)
        self._push(_Settled(wall(), claims, settlements, verdicts, stored), len(settlements), weight)

    def told(self, event: Event) -> None:
        """Something happened that is an event already."""
        self._push(_Again([event]), 1, 0)

    def _push(self, batch: Batch, count: int, weight: int) -> None:
        if weight > HEAVY:
            batch = _Again(batch.events())
            count = len(batch.rest)
        with self._lock:
            room = self._capacity - self._held
            if count > room:
                told = batch.events()
                batch, count = _Again(told[:room]), min(len(told), room)
                self.dropped += len(told) - count
            if count:
                self._batches.append(batch)
                self._held += count

    async def flush(self, store: Timeline) -> int:
        """Write what is buffered, in chunks; what could not be written goes back. Returns how many were written."""
        with self._lock:
            batches, self._batches, self._held = self._batches, deque(), 0
        chunks = self._chunks(batches)
        batches.clear()
        written = 0
        try:
            while chunks:
                events, chunk = chunks[0].rest, chunks[0].chunk or os.urandom(16)
                chunks[0] = _Again(events, chunk)
                await store.record(events, now=wall(), chunk=chunk)
                written += len(events)
                chunks.popleft()
        finally:
            self._put_back(chunks)
        if dropped := self.take_dropped():
            logger.warning("%d events did not fit into the buffer and are missing from the timeline", dropped)
        return written

    def _chunks(self, batches: Sequence[Batch]) -> deque[_Again]:
        """What to write, call by call; what was sent before stays as it was sent."""
        chunks: deque[_Again] = deque()
        loose: list[Event] = []
        for batch in batches:
            if isinstance(batch, _Again) and batch.chunk is not None:
                chunks.append(batch)
            else:
                loose += batch.events()
        chunks.extend(_Again(loose[start : start + self._chunk]) for start in range(0, len(loose), self._chunk))
        return chunks

    def _put_back(self, chunks: deque[_Again]) -> None:
        """What a flush could not write goes first next time, as far as there is room."""
        with self._lock:
            kept: list[Batch] = []
            for one in chunks:
                room = self._capacity - self._held
                self.dropped += max(0, len(one.rest) - room)
                if room > 0:
                    kept.append(_Again(one.rest[:room], one.chunk))
                    self._held += min(room, len(one.rest))
            self._batches.extendleft(reversed(kept))

    def take_dropped(self) -> int:
        """How many events did not fit since the last time somebody asked."""
        with self._lock:
            dropped, self.dropped = self.dropped, 0
            return dropped


def _weight(bearers: Sequence[Draft] | Sequence[Claim]) -> int:
    return sum([len(one.payload) for one in bearers])

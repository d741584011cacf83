"""The app's event buffer: what happened is remembered here and written every few seconds.

Events are told only after the write they describe was accepted, and losing them in a crash never touches a job. The
buffer keeps whole batches as they came and turns them into events when it is flushed, so the hot path pays an append;
only batches with large payloads are turned at once, because the buffer must not keep those alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
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

    def events(self) -> list[Event]:
        told = map(events.of_settlement, self.claims, self.settlements, self.verdicts, [self.at] * len(self.claims))
        found = [event for event in told if event is not None]
        for settlement, verdict in zip(self.settlements, self.verdicts, strict=True):
            if settlement.followups and verdict is Verdict.APPLIED:
                # Whether one with a key was stored or met its holder nobody knows here.
                found += (
                    Event(self.at, EventType.ENQUEUED, draft.id, draft.queue, draft.kind)
                    for draft in settlement.followups
                    if draft.unique is None
                )
        return found


class _Again(msgspec.Struct, frozen=True):
    rest: list[Event]

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
        self._flushes = 0
        self._forgotten: set[JobId] = set()
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

    def settled(self, claims: Sequence[Claim], settlements: Sequence[Settlement], verdicts: Sequence[Verdict]) -> None:
        """Settlements were answered."""
        weight = _weight(claims) + sum(len(one.result) for one in settlements if one.result is not None)
        self._push(_Settled(wall(), claims, settlements, verdicts), len(settlements), weight)

    def told(self, event: Event) -> None:
        """Something happened that is an event already."""
        self._push(_Again([event]), 1, 0)

    def forget(self, jobs: Iterable[JobId]) -> None:
        """Jobs were deleted: what is still buffered about them, or on its way, must not appear later."""
        with self._lock:
            if self._held or self._flushes:
                self._forgotten.update(jobs)

    def _push(self, batch: Batch, count: int, weight: int) -> None:
        if weight > HEAVY:
            batch = _Again(batch.events())
            count = len(batch.rest)
        with self._lock:
            if self._held + count > self._capacity:
                self.dropped += count
                return
            self._batches.append(batch)
            self._held += count

    async def flush(self, store: Timeline) -> int:
        """Write what is buffered, in chunks; what could not be written goes back. Answers how many were written."""
        with self._lock:
            batches, self._batches, self._held = self._batches, deque(), 0
            self._flushes += 1
        waiting = [event for batch in batches for event in batch.events()]
        batches.clear()
        written = done = 0
        try:
            while done < len(waiting):
                chunk = [event for event in waiting[done : done + self._chunk] if event.job not in self._forgotten]
                if chunk:
                    await store.record(chunk, now=wall())
                    written += len(chunk)
                done += self._chunk
        finally:
            self._end(waiting[done:])
        if dropped := self.take_dropped():
            logger.warning("%d events did not fit into the buffer and are missing from the timeline", dropped)
        return written

    def _end(self, rest: list[Event]) -> None:
        """A flush is over: what it could not write goes first next time, as far as there is room."""
        with self._lock:
            kept = rest[: self._capacity - self._held]
            self.dropped += len(rest) - len(kept)
            if kept:
                self._batches.appendleft(_Again(kept))
                self._held += len(kept)
            self._flushes -= 1
            if not self._held and not self._flushes:
                self._forgotten.clear()

    def take_dropped(self) -> int:
        """How many events did not fit since the last time somebody asked."""
        with self._lock:
            dropped, self.dropped = self.dropped, 0
            return dropped


def _weight(bearers: Sequence[Draft] | Sequence[Claim]) -> int:
    return sum([len(one.payload) for one in bearers])

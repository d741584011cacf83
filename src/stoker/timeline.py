"""The app's event buffer: what happened is remembered here and written every few seconds.

Events are told only after the write they describe was accepted, and losing them in a crash never touches a job. The
buffer keeps whole batches as they came and turns them into events when it is flushed, so the hot path pays an append.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from stoker.engines.base import Timeline
from stoker.model import events
from stoker.model.events import Event
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Receipt, Settlement, Verdict
from stoker.model.time import Instant

CAPACITY = 50_000
CHUNK = 100


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
        return [event for event in told if event is not None]


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

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self._held = 0
        self._capacity = capacity
        self._forgotten: set[JobId] = set()
        self.dropped = 0

    def __len__(self) -> int:
        return self._held

    def inserted(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """An insert was acknowledged."""
        self._push(_Inserted(wall(), drafts, receipts), len(drafts))

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Claims were handed out."""
        if claims:
            self._push(_Claimed(claims), len(claims))

    def settled(self, claims: Sequence[Claim], settlements: Sequence[Settlement], verdicts: Sequence[Verdict]) -> None:
        """Settlements were answered."""
        self._push(_Settled(wall(), claims, settlements, verdicts), len(settlements))

    def forget(self, jobs: Iterable[JobId]) -> None:
        """Jobs were deleted: what is still buffered about them must not appear later."""
        with self._lock:
            if self._held:
                self._forgotten.update(jobs)

    def _push(self, batch: Batch, count: int) -> None:
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
            forgotten, self._forgotten = self._forgotten, set()
        waiting = [event for batch in batches for event in batch.events() if event.job not in forgotten]
        written = 0
        try:
            while written < len(waiting):
                chunk = waiting[written : written + CHUNK]
                await store.record(chunk, now=wall())
                written += len(chunk)
        finally:
            if written < len(waiting):
                self._put_back(waiting[written:])
        return written

    def _put_back(self, rest: list[Event]) -> None:
        with self._lock:
            room = self._capacity - self._held
            self.dropped += max(0, len(rest) - room)
            self._batches.appendleft(_Again(rest[:room]))
            self._held += len(rest[:room])

    def take_dropped(self) -> int:
        """How many events did not fit since the last time somebody asked."""
        with self._lock:
            dropped, self.dropped = self.dropped, 0
            return dropped

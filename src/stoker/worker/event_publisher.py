"""Publishes what the store accepted: to the timeline and to the app's listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.event_buffer import EventBuffer, wall
from stoker.hooks import Listeners
from stoker.model import ids
from stoker.model.errors import StokerError
from stoker.model.events import (
    Event,
    Transition,
    of_settlements,
    transition_of,
    transition_to_pending,
    transition_to_running,
)
from stoker.model.humanize import count, span
from stoker.model.ids import JobId
from stoker.model.job import Claim, Settlement, Verdict

if TYPE_CHECKING:
    from stoker.engines.base import Engine

logger = logging.getLogger("stoker.worker")


def _log(about: Claim | Event, text: str) -> None:
    """One line about the start or the end of a run."""
    job = ids.text(about.id if isinstance(about, Claim) else about.job)
    extra = {"job": job, "kind": about.kind, "queue": about.queue, "attempt": about.attempt}
    logger.debug("job %s (%s, queue %s) %s", job, about.kind, about.queue, text, extra=extra)


class EventPublisher:
    """`timeline` is None if the app keeps none."""

    def __init__(self, engine: Engine, timeline: EventBuffer | None, listeners: Listeners[Transition]) -> None:
        self._engine = engine
        self._timeline = timeline
        self._listeners = listeners
        self._crowded = asyncio.Event()

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Publish that jobs begin to run."""
        if logger.isEnabledFor(logging.DEBUG):
            for claim in claims:
                _log(claim, f"started, attempt {claim.attempt} of {claim.base + claim.budget}")
        if claims and self._timeline is not None:
            self._timeline.claimed(claims)
            self._look()
        if claims and self._listeners:
            for claim in claims:
                self._listeners.emit(transition_to_running(claim))

    async def flush(self) -> None:
        """Write buffered events to the timeline."""
        if self._timeline is not None:
            await self._timeline.flush(self._engine.timeline)

    def _look(self) -> None:
        if self._timeline is not None and self._timeline.crowded:
            self._crowded.set()

    async def flush_crowded(self) -> None:
        """Write events whenever many of them wait: a fast worker has more in a second than the buffer holds."""
        while True:
            await self._crowded.wait()
            self._crowded.clear()
            with suppress(StokerError):  # the next round of maintenance tries again, and warns
                await self.flush()

    async def stored(self, settlements: list[Settlement], verdicts: list[Verdict]) -> frozenset[JobId]:
        """Return the follow-ups with a unique key that were stored; the others met a holder of their key."""
        keyed = [
            draft.job_id
            for settlement, verdict in zip(settlements, verdicts, strict=True)
            if settlement.followups and verdict is Verdict.APPLIED
            for draft in settlement.followups
            if draft.unique is not None
        ]
        if not keyed or (self._timeline is None and not self._listeners):
            return frozenset()
        try:
            found = await self._engine.operator.get(keyed)
        except StokerError as error:
            logger.warning("%s missing from timeline and listeners: %s", count(len(keyed), "follow-up"), error)
            return frozenset()
        return frozenset(job.id for job in found if job is not None)

    def settled(
        self,
        claims: Sequence[Claim],
        settlements: Sequence[Settlement],
        verdicts: Sequence[Verdict],
        stored: frozenset[JobId] = frozenset(),
    ) -> None:
        """Publish what applied to timeline and listeners; `stored`: the follow-ups with a unique key that exist."""
        if logger.isEnabledFor(logging.DEBUG):
            for event in of_settlements(claims, settlements, verdicts, wall()):
                _log(event, f"{event.type.value} after {span(event.duration or 0)}, attempt {event.attempt}")
        if self._timeline is not None and claims:
            self._timeline.settled(claims, settlements, verdicts, stored)
            self._look()
        if self._listeners:
            for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
                if verdict is Verdict.APPLIED:
                    self._emit(claim, settlement, stored)

    def _emit(self, claim: Claim, settlement: Settlement, stored: frozenset[JobId]) -> None:
        self._listeners.emit(transition_of(claim, settlement))
        for draft in settlement.followups:
            if draft.unique is None or draft.job_id in stored:
                self._listeners.emit(transition_to_pending(draft))

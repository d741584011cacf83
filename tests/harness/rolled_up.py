"""What happened, recorded and rolled up, as a worker does it once a minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from stoker.app import Stoker
from stoker.model.events import Event, EventType
from stoker.model.same_error import signature
from stoker.model.time import MINUTE, Instant
from stoker.registry import mint
from stoker.testing.clock import VirtualClock
from stoker.worker.rollup import write_points


def died(
    at: Instant, error: str, kind: str = "send", queue: str = "default", n: int = 1, release: str = ""
) -> list[Event]:
    """Deaths of jobs that are not stored any more."""
    made = Event(at, EventType.FAILED, b"", queue, kind, 1, 5, error=signature(error), release=release)
    return [msgspec.structs.replace(made, job=mint()) for _ in range(n)]


async def rolled_up(app: Stoker, clock: VirtualClock, events: Sequence[Event]) -> None:
    """Record events, let their minute close, and roll it up."""
    engine = await app.engine()
    await engine.timeline.record(events, now=await engine.now())
    clock.advance(timedelta(microseconds=MINUTE))
    await write_points(engine)

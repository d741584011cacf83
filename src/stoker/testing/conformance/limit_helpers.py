"""What cases about limits by key share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Options
from stoker.model.limit import Slot
from stoker.model.query import Selection
from stoker.testing.conformance.harness import QUEUE, Store


def limited(store: Store, key: str | None = "a", n: int | None = 1, **options: Any) -> Draft:
    """A draft under a limit."""
    slot = Slot(options.pop("name", "api"), key, n, options.pop("hold", "running"), options.pop("rate", None))
    return store.draft(options.pop("kind", "work"), options=Options(limit=slot), **options)


def ids(claims: Sequence[Claim]) -> list[JobId]:
    return [claim.id for claim in claims]


async def running(store: Store, queue: str = QUEUE) -> dict[str, int]:
    """What the store says runs in each subqueue of which something runs or waits."""
    views = await store.engine.control.subqueues(queue)
    return {one.name: one.running for one in views if one.running or one.due is not None}


async def alter(store: Store, change: Any, *jobs: JobId) -> None:
    """Change jobs; every one of them must be changed or asked to stop."""
    tally = await store.engine.operator.alter(Selection(tuple(jobs)), change)
    assert tally.changed + tally.cancel_requested == len(jobs)

"""What the cases about operators' changes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.model.ids import JobId
from stoker.model.job import Status
from stoker.model.outcome import Done, Failed, Rejected
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Discard,
    Selection,
    Tally,
)
from stoker.model.time import HOUR, Instant
from stoker.testing.conformance.harness import Store


async def alter(
    store: Store, change: Change, *jobs: JobId, statuses: Sequence[Status] = (), bound: Instant | None = None
) -> Tally:
    """Apply a change to jobs by id, as an operator saw them."""
    return await store.engine.operator.alter(Selection(jobs, tuple(statuses), bound), change)


def plain(tally: Tally) -> Tally:
    """A tally without what the jobs were before."""
    return msgspec.structs.replace(tally, former=())


async def each_status(store: Store) -> dict[Status, JobId]:
    """One job in every status, each brought there by the steps that lead to it, in a queue named after it."""
    jobs: dict[Status, JobId] = {
        status: await store.add(queue=status.value) for status in Status if status is not Status.PENDING
    }
    jobs = {Status.PENDING: await store.add(queue=Status.PENDING.value, delay=HOUR), **jobs}
    for status, outcome in (
        (Status.RETRYING, Failed("again", after=HOUR)),
        (Status.DONE, Done(b"1")),
        (Status.DEAD, Rejected("no")),
        (Status.DISCARDED, Rejected("no")),
        (Status.RETRIED, Rejected("no")),
    ):
        await store.finish(await store.take(queue=status.value), outcome)
    await store.take(queue=Status.RUNNING.value)
    await alter(store, Cancel(), jobs[Status.CANCELED])
    await alter(store, Discard(), jobs[Status.DISCARDED])
    await alter(store, Clone((store.mint(),)), jobs[Status.RETRIED])
    assert [await store.status(job) for job in jobs.values()] == list(jobs)
    return jobs


async def dead_job(store: Store, why: str = "no", **options: Any) -> JobId:
    """A job that ran once and died of it."""
    job = await store.add(**options)
    claim = await store.take(queue=options.get("queue", "default"))
    assert claim.id == job
    await store.finish(claim, Rejected(why))
    return job


async def retrying_job(store: Store, after: int = HOUR, **options: Any) -> JobId:
    """A job that ran once and waits for its retry."""
    job = await store.add(**options)
    claim = await store.take(queue=options.get("queue", "default"))
    assert claim.id == job
    await store.finish(claim, Failed("again", after=after))
    return job

"""What the cases of `find` share: a walk over all pages, and jobs to find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from stoker.model.ids import JobId
from stoker.model.outcome import Rejected
from stoker.model.query import LONGEST_WALK, Page, Query
from stoker.model.time import SECOND
from stoker.testing.conformance.harness import Store


async def walk(store: Store, query: Query, between: Callable[[Page], Awaitable[object]] | None = None) -> list[JobId]:
    """The ids of all pages, in the order they came; `between` runs after each page."""
    found: list[JobId] = []
    for _ in range(10_000):
        page = await store.engine.operator.find(query)
        assert len(page.jobs) <= query.limit
        assert len(page.jobs) <= page.scanned <= LONGEST_WALK
        found += [job.id for job in page.jobs]
        if between is not None:
            await between(page)
        if page.cursor is None:
            return found
        query = after(query, page.cursor)
    raise AssertionError("the walk does not end")


def after(query: Query, cursor: bytes) -> Query:
    """The same query for the next page."""
    return Query(
        **{field: getattr(query, field) for field in query.__struct_fields__ if field != "cursor"}, cursor=cursor
    )


async def found_ids(store: Store, **filters: Any) -> list[JobId]:
    """Everything a filter finds, oldest first."""
    return await walk(store, Query(order="oldest", limit=100, **filters))


async def dead_job(store: Store, error: str = "broken", **options: Any) -> JobId:
    """Add a job that its handler rejected."""
    options.setdefault("queue", "graves")
    job = await store.add(**options)
    await store.finish(await store.take(queue=options["queue"]), Rejected(error))
    return job


async def ended_job(store: Store, outcome: Any, queue: str = "mail", **options: Any) -> JobId:
    """Add a job that has ended, a second ago."""
    job = await store.add(queue=queue, **options)
    await store.finish(await store.take(queue=queue), outcome)
    store.pass_time(SECOND)
    return job

"""What the cases about groups share."""

from __future__ import annotations

import msgspec

from stoker.engines.base import Feature
from stoker.model.groups import Group, into_group, new_group
from stoker.model.ids import JobId
from stoker.model.job import Draft
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.testing.conformance.harness import Store

AFTER = "after"
"""The queue of the callbacks, so that a case can claim members alone."""


class Callbacks(msgspec.Struct):
    """One callback of each sort."""

    then: Draft
    on_failure: Draft
    on_finish: Draft


def each_callback(store: Store) -> Callbacks:
    """Return drafts of callbacks, in a queue of their own."""
    return Callbacks(*(store.draft(kind, queue=AFTER) for kind in ("then", "on_failure", "on_finish")))


async def make(store: Store, *drafts: Draft, sealed: bool = True, **callbacks: Draft) -> tuple[JobId, list[JobId]]:
    """A group with these members; callbacks unless given: one of each sort."""
    group = store.mint()
    chosen = callbacks or msgspec.structs.asdict(each_callback(store))
    members = into_group(group, drafts)
    receipts = await store.engine.jobs.insert(members, group=new_group(group, sealed=sealed, **chosen))
    return group, [receipt.id for receipt in receipts]


async def add(store: Store, group: JobId, *drafts: Draft) -> list[JobId]:
    """Add members to a group."""
    return [receipt.id for receipt in await store.engine.jobs.insert(into_group(group, drafts))]


async def close(store: Store) -> None:
    """Where closing a group is a write of its own, do it now."""
    if Feature.CLOSES_AT_ONCE not in store.engine.features:
        await store.engine.groups.sweep()


async def look(store: Store, group: JobId) -> Group:
    """The group; where closing is a write of its own, after that write."""
    await close(store)
    [found] = await store.engine.groups.get([group])
    assert found is not None
    return found


async def called(store: Store) -> list[str]:
    """The kinds of the callbacks that are stored, waiting or not."""
    await close(store)
    claims = await store.claim("caller", 10, AFTER)
    await store.settle(*(conclude(claim, Done()) for claim in claims))
    return [claim.kind for claim in claims]


async def counts_of(store: Store, group: JobId) -> tuple[int, int, int, int, int]:
    """Return how many members there are in all, done, dead, canceled and waiting."""
    found = await look(store, group)
    return found.total, found.done, found.dead, found.canceled, found.waiting

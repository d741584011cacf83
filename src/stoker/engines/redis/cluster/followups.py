"""Follow-ups on a cluster: those for other queues cannot be part of the step that ends a job.

They are stored right before it, while the claim is valid. Should the process die in between, the job runs again and
stores its follow-ups again: at least once, as everywhere; none is ever lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from stoker.engines.redis import groups, record_format
from stoker.engines.redis.claim import Ref
from stoker.engines.redis.insert import insert, keep_keys_together
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.store import Store
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import one_by_one
from stoker.model.errors import EngineRefused
from stoker.model.ids import JobId, text
from stoker.model.job import Draft, Settlement, Stored
from stoker.model.lifecycle import accepts

log = logging.getLogger("stoker.engines.redis")


async def store_followups(store: Store, shard: Shard, given: Sequence[tuple[Settlement, Ref]]) -> None:
    """Store the follow-ups of these settlements in other shards, as far as their claims are valid."""
    for one, ref in given:
        there = [draft for draft in one.followups if store.shard(draft.queue) is not shard]
        if not there and not one.groups:
            continue
        state = await store.connection.call("HGET", shard.key("state"), one.id)
        fence = record_format.fence(one.worker, one.token)
        if state is None or not state.startswith(fence):
            continue
        if not accepts(one.status, cancel_requested=state[len(fence) : len(fence) + 1] == b"1"):
            continue
        if one.groups:
            await call_elsewhere(store, shard, ref[0], one.id, one.groups, one.followups)
        else:
            await store_elsewhere(store, shard, await allowed(store, there, one.id))


async def call_elsewhere(
    store: Store, shard: Shard, queue: str, parent: JobId, new: Sequence[JobId], drafts: Sequence[Draft]
) -> None:
    """Store called jobs and their new groups in other shards than that of their caller, whose queue is given.

    All groups are made known at home, also those that the caller's own write stores. What is stored already stays as it
    is, so a repetition is harmless.
    """
    for group, where in _queues_of(queue, new, drafts).items():
        await groups.make_known(store, group, where)
    drafts = await allowed(store, drafts, parent)
    others = {draft.queue: store.shard(draft.queue) for draft in drafts if store.shard(draft.queue) is not shard}
    await store.introduce(others)
    for other in others.values():
        part = [draft for draft in drafts if store.shard(draft.queue) is other]
        here = groups_of(store, other, queue, new, drafts)

        async def call(unit: Unit, part: Sequence[Draft] = part, here: Sequence[JobId] = here) -> None:
            await unit.load(one_by_one.wanted_by_drafts(part)._replace(groups=frozenset(here)))
            one_by_one.call_jobs(unit, parent, here, part)

        await store.work(other, call, repeat=True)


def groups_of(store: Store, shard: Shard, queue: str, new: Sequence[JobId], drafts: Sequence[Draft]) -> list[JobId]:
    """Those of the new groups that belong into a shard: a group is where its members are, else with their caller."""
    if not store.connection.cluster:
        return list(new)
    return [group for group, where in _queues_of(queue, new, drafts).items() if store.shard(where) is shard]


def _queues_of(queue: str, new: Sequence[JobId], drafts: Sequence[Draft]) -> dict[JobId, str]:
    found = dict.fromkeys(new, queue)
    for draft in reversed(drafts):
        if draft.options.group in found:
            found[draft.options.group] = draft.queue
    return found


async def store_elsewhere(store: Store, shard: Shard, drafts: Sequence[Draft]) -> list[Draft]:
    """Store those of the drafts that belong into other shards; returns those that were new there."""
    there = [draft for draft in drafts if store.shard(draft.queue) is not shard]
    receipts = await insert(store, [_not_raising(draft) for draft in there]) if there else []
    return [draft for draft, receipt in zip(there, receipts, strict=True) if receipt.stored is Stored.INSERTED]


async def allowed(store: Store, drafts: Sequence[Draft], job: JobId) -> list[Draft]:
    """Follow-ups with keys and groups that a cluster can keep; another one loses its key or group, with a warning."""
    found = []
    for draft in drafts:
        if not await groups.fits(store, draft):
            log.warning("a follow-up of job %s joins no group: it goes to another queue, %s", text(job), draft.queue)
            draft = msgspec.structs.replace(draft, options=msgspec.structs.replace(draft.options, group=None))
        try:
            await keep_keys_together(store, [draft])
        except EngineRefused as error:
            log.warning("a follow-up of job %s is stored without its unique key: %s", text(job), error)
            found.append(msgspec.structs.replace(draft, unique=None))
        else:
            found.append(draft)
    return found


def _not_raising(draft: Draft) -> Draft:
    """A follow-up has no caller to raise to: when its key is taken, the existing job is enough."""
    if draft.unique is None or draft.unique.mode != "raise":
        return draft
    return msgspec.structs.replace(draft, unique=msgspec.structs.replace(draft.unique, mode="existing"))

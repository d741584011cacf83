"""Follow-ups on a cluster: those for other queues cannot be part of the step that ends a job.

They are stored right before it, while the claim is valid. Should the process die in between, the job runs again and
stores its follow-ups again: at least once, as everywhere; none is ever lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from stoker.engines.redis import groups, record_format
from stoker.engines.redis.insert import insert, keep_keys_together
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.store import Store
from stoker.model.errors import EngineRefused
from stoker.model.ids import JobId, text
from stoker.model.job import Draft, Settlement, Stored

log = logging.getLogger("stoker.engines.redis")


async def store_followups(store: Store, shard: Shard, settlements: Sequence[Settlement]) -> None:
    """Store the follow-ups of these settlements in other shards, as far as their claims are valid."""
    for one in settlements:
        there = [draft for draft in one.followups if store.shard(draft.queue) is not shard]
        if not there:
            continue
        state = await store.connection.call("HGET", shard.key("state"), one.id)
        if state is not None and state.startswith(record_format.fence(one.worker, one.token)):
            await store_elsewhere(store, shard, await allowed(store, there, one.id))


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

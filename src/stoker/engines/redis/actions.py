"""What people do to jobs, shard by shard.

On one Redis a call is atomic with all that belongs to it. On a cluster it is atomic per queue; a move between queues is
a further step, which the next move or `expire` finishes if this one could not, and so is the removal of a deleted job's
events, which are otherwise removed when they are old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stoker.engines.redis.action import Action
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.spread import spread
from stoker.engines.redis.store import Store
from stoker.engines.redis.work import Work
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Status
from stoker.model.query import Change, Clone, Move, Selection, Tally


async def alter(store: Store, selection: Selection, change: Change) -> Tally:
    """Apply a change to the selected jobs."""
    if isinstance(change, Clone) and len(change.ids) != len(selection.ids):
        raise InvalidInput("clone ids", len(change.ids), f"must be one for each of {len(selection.ids)} jobs")
    store.connection.inside()
    if not selection.ids:
        return Tally()
    if isinstance(change, Move):
        await store.introduce([change.queue])
    actions: list[Action] = []
    for shard, places in (await _where(store, selection.ids)).items():

        async def act(unit: Work, places: Sequence[int] = places) -> Action:
            action = Action(store, unit, selection, change, places)
            await action.run()
            return action

        actions.append(await store.work(shard, act))
    for action in actions:
        await action.follow_up()
    return _summed(selection, actions)


async def _where(store: Store, ids: Sequence[JobId]) -> dict[Shard, list[int]]:
    """Which of the selected jobs are in which shard, by their places in the selection."""
    shards = await store.shards()
    if len(shards) == 1:
        return {shards[0]: list(range(len(ids)))}
    found: dict[Shard, list[int]] = {}
    answers = await spread(shards, lambda shard: store.read(shard, ids))
    for shard, (_, rows) in zip(shards, answers, strict=True):
        places = [place for place, row in enumerate(rows) if row is not None]
        if places:
            found[shard] = places
    return found


def _summed(selection: Selection, actions: list[Action]) -> Tally:
    """One tally, in the order of the selection."""
    changed = sorted(place for action in actions for place in action.changed)
    created = sorted((place, job) for action in actions for place, job in action.created.items())
    refused: Counter[Status] = sum((action.refused for action in actions), Counter())
    asked, blocked = sum(action.asked for action in actions), sum(action.blocked for action in actions)
    return Tally(
        changed=len(changed),
        cancel_requested=asked,
        missing=len(selection.ids) - len(changed) - asked - blocked - refused.total(),
        blocked=blocked,
        refused=dict(refused),
        created=tuple(job for _, job in created),
        changed_ids=tuple(selection.ids[place] for place in changed),
    )

"""A queue's settings and its cool-down: flat fields of one hash, so that scripts read just what they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.engines.redis.keys import Shard
from stoker.model.control import Queue
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.retry import OFF, Curve
from stoker.model.throttle import OPEN, Cooldown
from stoker.model.time import HOUR, Span

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store

KEEP_DONE: Span = HOUR
"""Done jobs of a queue nobody tuned: here they take memory, so they are kept for less than elsewhere."""

FIELDS = ("paused", "workers", "keep_done", "keep_dead", "curve", "until", "count")

_write_curve = msgspec.json.Encoder().encode
_read_curve = msgspec.json.Decoder(Curve).decode


def curve(stored: bytes | None) -> Curve:
    """A queue's curve; one that cannot be read is off."""
    try:
        return OFF if stored is None else _read_curve(stored)
    except msgspec.MsgspecError:
        return OFF


async def read(store: Store, shard: Shard, names: Sequence[str]) -> dict[str, Queue]:
    """The settings of queues, stored or not."""
    fields = [f"{name}/{field}" for name in names for field in FIELDS]
    found = await store.connection.call("HMGET", shard.key("queues"), *fields)
    size = len(FIELDS)
    return {
        name: shown(name, dict(zip(FIELDS, found[at * size : (at + 1) * size], strict=True)))
        for at, name in enumerate(names)
    }


def shown(name: str, stored: Mapping[str, bytes | None]) -> Queue:
    """A queue as its fields say."""
    number = {field: int(stored.get(field) or 0) for field in ("keep_done", "keep_dead", "until", "count")}
    workers = stored.get("workers")
    cooling = stored.get("until") is not None or number["count"] > 0
    return Queue(
        name=name,
        paused=stored.get("paused") is not None,
        workers=None if workers is None else int(workers),
        keep_done=KEEP_DONE if stored.get("keep_done") is None else number["keep_done"],
        keep_dead=KEEP_DEAD if stored.get("keep_dead") is None else number["keep_dead"],
        curve=curve(stored.get("curve")),
        cooldown=Cooldown(number["until"], number["count"]) if cooling else OPEN,
    )


def changes(queue: Queue) -> dict[str, Any]:
    """What to write for a queue's settings, its cool-down apart; None for a field to be removed."""
    return {
        "paused": "1" if queue.paused else None,
        "workers": queue.workers,
        "keep_done": queue.keep_done,
        "keep_dead": queue.keep_dead,
        "curve": None if queue.curve == OFF else _write_curve(queue.curve),
    }

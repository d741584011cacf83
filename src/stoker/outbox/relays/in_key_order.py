"""Publish many messages at a time without breaking the order of any key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from stoker.model.outcome import Exit
from stoker.outbox.message import Message
from stoker.outbox.relays.base import Partial

LONGEST: Final = 10.0
"""Seconds after which no further message is sent: the rest comes in the next turn, long before the lease ends."""


async def publish_in_key_order(
    messages: Sequence[Message[Any]],
    send: Callable[[Message[Any]], Awaitable[None]],
    *,
    at_once: int,
) -> None:
    """Send messages, at most `at_once` side by side, those of one key one after the other.

    Returns when all are accepted. After the first error nothing more is sent. Raises that of the first message that was
    not accepted, or `Partial` from it when those before it were.
    """
    by_key: dict[str, list[int]] = {}
    for place, one in enumerate(messages):
        by_key.setdefault(one.key, []).append(place)
    accepted: set[int] = set()
    errors: dict[int, BaseException] = {}
    until = asyncio.get_running_loop().time() + LONGEST
    waiting = iter(by_key.values())

    async def work() -> None:
        for places in waiting:  # shared: each task takes the next key
            for place in places:
                if errors or asyncio.get_running_loop().time() > until:
                    return
                try:
                    await send(messages[place])
                except (Exception, Exit) as error:  # noqa: BLE001 - raised below
                    errors[place] = error
                    return
                accepted.add(place)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(at_once, len(by_key))):
            tasks.create_task(work())
    done = next((place for place in range(len(messages)) if place not in accepted), len(messages))
    if done == len(messages):
        return
    error = errors.get(done) or next(iter(errors.values()), None)
    if done == 0 and error is not None:
        raise error
    raise Partial(done) from error

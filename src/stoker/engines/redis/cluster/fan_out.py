"""Calls many shards at once, but never more than 16: each call takes a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE = 16


async def spread(asked: Iterable[A], ask: Callable[[A], Awaitable[T]]) -> list[T]:
    """The results, in the order of the shards."""
    shards = list(asked)
    if len(shards) == 1:
        return [await ask(shards[0])]
    limit = asyncio.Semaphore(AT_ONCE)

    async def limited(one: A) -> T:
        async with limit:
            return await ask(one)

    return list(await asyncio.gather(*map(limited, shards)))

"""Asking many shards at once, but not all of them: each question takes a connection while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE = 16


async def spread(asked: Iterable[A], ask: Callable[[A], Awaitable[T]]) -> list[T]:
    """The answers, in the order of whom was asked."""
    everyone = list(asked)
    if len(everyone) == 1:
        return [await ask(everyone[0])]
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(one: A) -> T:
        async with turn:
            return await ask(one)

    return list(await asyncio.gather(*map(in_turn, everyone)))

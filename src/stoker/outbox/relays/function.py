"""Relay messages to a function of your own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stoker.model.errors import InvalidInput
from stoker.outbox.message import Message
from stoker.task import is_async_function


class To:
    """Calls a function with each list of messages: `To(publish)`.

    It returns when all are accepted, raises `Partial(n)` when only the first n are and `Reject(why)` for a message that
    can never be. A plain function runs in a thread.
    """

    def __init__(self, fn: Callable[[Sequence[Message[Any]]], Awaitable[None] | None]) -> None:
        if not callable(fn):
            raise InvalidInput("fn", fn, "must be a function that takes a list of messages")
        self._fn: Callable[[Sequence[Message[Any]]], Any] = fn
        self._is_async = is_async_function(fn)

    def __repr__(self) -> str:
        return f"<To {getattr(self._fn, '__name__', repr(self._fn))}>"

    async def open(self) -> None:
        """Nothing to connect."""

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        """Call the function."""
        if self._is_async:
            await self._fn(messages)
        else:
            await asyncio.to_thread(self._fn, messages)

    async def close(self) -> None:
        """Nothing to disconnect."""

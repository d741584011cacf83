"""Batches the concurrent inserts of one engine: drafts, or ticks of schedules with their drafts.

A call that finds no insert under way is stored at once. Calls that arrive while batches are under way share the next
one. When one call of a batch is refused, each is stored alone, so no call fails because of another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from stoker.model.errors import EngineClosed

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Put: TypeAlias = Callable[[Sequence[Item]], Awaitable[list[Answer]]]
Request: TypeAlias = tuple[Sequence[Item], asyncio.Future[list[Answer]]]


class InsertBatcher(Generic[Item, Answer]):
    """Stores concurrent calls together by `put`, an answer for each item. Lives on the engine's loop.

    `parallel` batches may be under way, each of at most `most` items and `most_bytes` by `weigh`; a single call may
    have more. A call of more than `small` items is never stored at once: it waits one turn of the loop for others.
    `put` raises one of `refusals` when it refuses some call of a batch; then `alone` stores each call.
    """

    def __init__(
        self,
        put: Put[Item, Answer],
        *,
        parallel: int,
        most: int,
        small: int,
        most_bytes: int | None = None,
        weigh: Callable[[Item], int] = lambda _: 0,
        alone: Put[Item, Answer] | None = None,
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self._put = put
        self._parallel = parallel
        self._most = most
        self._small = small
        self._most_bytes = most_bytes
        self._weigh = weigh
        self._alone = put if alone is None else alone
        self._refusals = refusals
        self._waiting: deque[Request[Item, Answer]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._armed = False
        self._first: asyncio.Future[None] | None = None

    async def put(self, items: Sequence[Item]) -> list[Answer]:
        """Store items; answers in their order."""
        if len(items) <= self._small and self._first is None and not self._tasks and not self._armed:
            return await self._at_once(items)
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, future))
        if not self._armed and len(self._tasks) < self._parallel:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._send)
        return await future

    async def close(self) -> None:
        """Store what is waiting."""
        if self._first is not None:
            await self._first
        while self._tasks or self._waiting:
            if not self._tasks:
                self._send()
            await asyncio.wait(self._tasks)  # takes a turn of the loop even if all are done, and so takes in their end

    async def _at_once(self, items: Sequence[Item]) -> list[Answer]:
        self._first = first = asyncio.get_running_loop().create_future()
        try:
            return await self._put(items)
        except self._refusals:
            return await self._alone(items)
        finally:
            self._first = None
            first.set_result(None)

    def _send(self) -> None:
        self._armed = False
        batch = self._next_batch()
        if batch:
            task = asyncio.get_running_loop().create_task(self._store(batch), name="stoker-insert")
            self._tasks.add(task)
            task.add_done_callback(self._stored)

    def _next_batch(self) -> list[Request[Item, Answer]]:
        batch: list[Request[Item, Answer]] = []
        n = size = 0
        while self._waiting:
            request = self._waiting[0]
            n += len(request[0])
            size += 0 if self._most_bytes is None else sum(map(self._weigh, request[0]))
            if batch and (n > self._most or (self._most_bytes is not None and size > self._most_bytes)):
                break
            self._waiting.popleft()
            # A caller that was canceled before its batch began wants nothing stored.
            if not request[1].done():
                batch.append(request)
        return batch

    def _stored(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting and not self._armed:
            self._send()

    async def _store(self, batch: list[Request[Item, Answer]]) -> None:
        try:
            answers = await self._put([item for items, _ in batch for item in items])
            start = 0
            for items, future in batch:
                _resolve(future, answers[start : start + len(items)])
                start += len(items)
        except self._refusals:
            await asyncio.gather(*(self._store_alone(items, future) for items, future in batch))
        except asyncio.CancelledError:
            error = EngineClosed(
                "the engine was closed while jobs were being stored; it is unknown whether they were stored"
            )
            for _, future in batch:
                _reject(future, error)
        except Exception as error:  # noqa: BLE001 - raised in every caller
            for _, future in batch:
                _reject(future, error)

    async def _store_alone(self, items: Sequence[Item], future: asyncio.Future[list[Answer]]) -> None:
        try:
            _resolve(future, await self._alone(items))
        except Exception as error:  # noqa: BLE001 - raised in the caller
            _reject(future, error)


def _resolve(future: asyncio.Future[list[Answer]], answers: list[Answer]) -> None:
    if not future.done():
        future.set_result(answers)


def _reject(future: asyncio.Future[list[Answer]], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

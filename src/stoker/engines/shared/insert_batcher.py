"""Batches the concurrent inserts of one engine.

A call that finds no insert under way is stored at once. Calls that arrive while batches are under way share the next
one. When one call of a batch is refused, each is stored alone, so no call fails because of another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from stoker.model.errors import EngineClosed
from stoker.model.job import Draft, Receipt

Put: TypeAlias = Callable[[Sequence[Draft]], Awaitable[list[Receipt]]]
Request: TypeAlias = tuple[Sequence[Draft], asyncio.Future[list[Receipt]]]


class InsertBatcher:
    """Stores concurrent calls together by `put`. Lives on the engine's loop.

    `parallel` batches may be under way, each of at most `most` drafts and `most_bytes` by `weigh`; a single call may
    have more. A call of more than `small` drafts is never stored at once: it waits one turn of the loop for others.
    `put` raises one of `refusals` when it refuses some call of a batch; then `alone` stores each call.
    """

    def __init__(
        self,
        put: Put,
        *,
        parallel: int,
        most: int,
        small: int,
        most_bytes: int | None = None,
        weigh: Callable[[Draft], int] = lambda draft: len(draft.payload),
        alone: Put | None = None,
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
        self._waiting: deque[Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._armed = False
        self._first: asyncio.Future[None] | None = None

    async def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store drafts; receipts in their order."""
        if len(drafts) <= self._small and self._first is None and not self._tasks and not self._armed:
            return await self._at_once(drafts)
        future: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        self._waiting.append((drafts, future))
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
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _at_once(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self._first = first = asyncio.get_running_loop().create_future()
        try:
            return await self._put(drafts)
        except self._refusals:
            return await self._alone(drafts)
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

    def _next_batch(self) -> list[Request]:
        batch: list[Request] = []
        drafts = size = 0
        while self._waiting:
            request = self._waiting[0]
            drafts += len(request[0])
            size += 0 if self._most_bytes is None else sum(map(self._weigh, request[0]))
            if batch and (drafts > self._most or (self._most_bytes is not None and size > self._most_bytes)):
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

    async def _store(self, batch: list[Request]) -> None:
        try:
            receipts = await self._put([draft for drafts, _ in batch for draft in drafts])
            start = 0
            for drafts, future in batch:
                _resolve(future, receipts[start : start + len(drafts)])
                start += len(drafts)
        except self._refusals:
            await asyncio.gather(*(self._store_alone(drafts, future) for drafts, future in batch))
        except asyncio.CancelledError:
            error = EngineClosed(
                "the engine was closed while jobs were being stored; it is unknown whether they were stored"
            )
            for _, future in batch:
                _reject(future, error)
        except Exception as error:  # noqa: BLE001 - raised in every caller
            for _, future in batch:
                _reject(future, error)

    async def _store_alone(self, drafts: Sequence[Draft], future: asyncio.Future[list[Receipt]]) -> None:
        try:
            _resolve(future, await self._alone(drafts))
        except Exception as error:  # noqa: BLE001 - raised in the caller
            _reject(future, error)


def _resolve(future: asyncio.Future[list[Receipt]], receipts: list[Receipt]) -> None:
    if not future.done():
        future.set_result(receipts)


def _reject(future: asyncio.Future[list[Receipt]], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

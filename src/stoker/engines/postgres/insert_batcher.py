"""Batching the concurrent inserts of one engine into shared statements.

A small call that finds no insert under way is stored at once. Calls that arrive while a statement is under way become
the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from stoker.engines.postgres.connection import Conflict
from stoker.engines.postgres.insert import in_rounds, together
from stoker.model.errors import EngineClosed, InvalidInput
from stoker.model.job import LARGEST_BATCH, Draft, Receipt

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

UNDER_WAY = 2
"""Concurrent statements of a batcher: one waits for the fsync while the next is built."""

SMALL = 100
"""A call with more drafts waits for one turn of the loop: several such calls may be worth a COPY."""

MOST = 5 * LARGEST_BATCH
"""Drafts without keys in one batch: concurrent calls of an import fill a COPY."""

Request: TypeAlias = tuple[Sequence[Draft], asyncio.Future[list[Receipt]]]


class InsertBatchers:
    """The two batchers of an engine: one for drafts without unique keys, one for those with keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._plain = InsertBatcher(store, together, MOST)
        self._keyed = InsertBatcher(store, in_rounds, LARGEST_BATCH)

    async def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store drafts; receipts in their order."""
        if not drafts:
            self._store.inside()
            return []
        modes = {draft.unique.mode for draft in drafts if draft.unique is not None}
        if "raise" in modes:
            return await in_rounds(self._store, drafts)
        return await (self._keyed if modes else self._plain).put(drafts)

    async def close(self) -> None:
        """Store what is still waiting."""
        await self._plain.close()
        await self._keyed.close()


class InsertBatcher:
    """Stores concurrent calls together, at most `most` drafts at once. Lives on the engine's loop."""

    def __init__(
        self, store: Store, put: Callable[[Store, Sequence[Draft]], Awaitable[list[Receipt]]], most: int
    ) -> None:
        self._store = store
        self._put = put
        self._most = most
        self._waiting: deque[Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._armed = False
        self._first: asyncio.Future[None] | None = None

    async def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        if len(drafts) <= SMALL and self._first is None and not self._tasks and not self._armed:
            return await self._at_once(drafts)
        self._store.inside()
        future: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        self._waiting.append((drafts, future))
        if not self._armed and len(self._tasks) < UNDER_WAY:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._send)
        return await future

    async def _at_once(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store one call without batching: no other insert is waiting."""
        self._first = first = asyncio.get_running_loop().create_future()
        try:
            return await self._put(self._store, drafts)
        except Conflict:
            return await in_rounds(self._store, drafts)
        finally:
            self._first = None
            first.set_result(None)

    async def close(self) -> None:
        if self._first is not None:
            await self._first
        while self._tasks or self._waiting:
            if not self._tasks:
                self._send()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self) -> None:
        self._armed = False
        group: list[Request] = []
        weight = 0
        while self._waiting and (not group or weight + len(self._waiting[0][0]) <= self._most):
            request = self._waiting.popleft()
            # A caller that was canceled before its batch began wants nothing stored.
            if not request[1].done():
                group.append(request)
                weight += len(request[0])
        if group:
            task = asyncio.get_running_loop().create_task(self._store_group(group), name="stoker-insert")
            self._tasks.add(task)
            task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting and not self._armed:
            self._send()

    async def _store_group(self, group: list[Request]) -> None:
        """Store a batch. If one call is refused, store each alone, so that no call fails for another."""
        try:
            receipts = await self._put(self._store, [draft for drafts, _ in group for draft in drafts])
            start = 0
            for drafts, future in group:
                _resolve(future, receipts[start : start + len(drafts)])
                start += len(drafts)
        except (Conflict, InvalidInput):
            await asyncio.gather(*(self._alone(drafts, future) for drafts, future in group))
        except asyncio.CancelledError:
            error = EngineClosed(
                "the engine was closed while jobs were being stored; it is unknown whether they were stored"
            )
            for _, future in group:
                _reject(future, error)
        except Exception as error:  # noqa: BLE001 - passed on to every caller
            for _, future in group:
                _reject(future, error)

    async def _alone(self, drafts: Sequence[Draft], future: asyncio.Future[list[Receipt]]) -> None:
        try:
            _resolve(future, await in_rounds(self._store, drafts))
        except Exception as error:  # noqa: BLE001 - passed on to the caller
            _reject(future, error)


def _resolve(future: asyncio.Future[list[Receipt]], receipts: list[Receipt]) -> None:
    if not future.done():
        future.set_result(receipts)


def _reject(future: asyncio.Future[list[Receipt]], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

"""Where the inserts of one engine meet: calls that come at the same time are stored together.

Whoever comes first with little leaves at once; whatever arrives while a statement is under way becomes the next one.
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
"""Statements of a tray on their way at once: one waits for the disk while the next is made."""

SMALL = 100
"""A call with more drafts waits a moment for company: together they may be worth a COPY."""

MOST = 5 * LARGEST_BATCH
"""Drafts without keys that are stored together: the calls of an import that come side by side fill a COPY."""

Request: TypeAlias = tuple[Sequence[Draft], asyncio.Future[list[Receipt]]]


class InsertBatchers:
    """Where the inserts of one engine meet: those without keys in one tray, those with keys in another."""

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
        """Finish what was asked for."""
        await self._plain.close()
        await self._keyed.close()


class InsertBatcher:
    """Calls that are stored together, `most` drafts at once. Lives on the engine's loop."""

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
        """Nobody else is there to share the way with."""
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
            # Whoever gave up before anything was done wants nothing done.
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
        """One go for all; when it cannot be, each is stored alone, so that nobody fails for somebody else."""
        try:
            receipts = await self._put(self._store, [draft for drafts, _ in group for draft in drafts])
            start = 0
            for drafts, future in group:
                _resolve(future, receipts[start : start + len(drafts)])
                start += len(drafts)
        except (Conflict, InvalidInput):
            await asyncio.gather(*(self._alone(drafts, future) for drafts, future in group))
        except asyncio.CancelledError:
            error = EngineClosed("the engine was closed while jobs were being stored; whether they are is not known")
            for _, future in group:
                _reject(future, error)
        except Exception as error:  # noqa: BLE001 - carried to everybody who asked
            for _, future in group:
                _reject(future, error)

    async def _alone(self, drafts: Sequence[Draft], future: asyncio.Future[list[Receipt]]) -> None:
        try:
            _resolve(future, await in_rounds(self._store, drafts))
        except Exception as error:  # noqa: BLE001 - carried to whoever asked
            _reject(future, error)


def _resolve(future: asyncio.Future[list[Receipt]], receipts: list[Receipt]) -> None:
    if not future.done():
        future.set_result(receipts)


def _reject(future: asyncio.Future[list[Receipt]], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

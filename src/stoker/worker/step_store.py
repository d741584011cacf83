"""Reads and writes the steps of running jobs: those of one turn of the loop share a call.

Steps that finish while a write is under way are the next write; the caller of each goes on when its own is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from stoker.engines.base import Engine
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Verdict
from stoker.model.steps import Save, Step

Given = TypeVar("Given")
Answer = TypeVar("Answer")


class StepStore:
    """The steps of a worker's runs."""

    def __init__(self, engine: Engine) -> None:
        self._saves = _Batches(engine.steps.save, engine.parallel_calls)
        self._reads = _Batches(engine.steps.get, engine.parallel_calls)

    async def save(self, save: Save) -> Verdict:
        """Store rows of a run under its claim."""
        return await self._saves.call(save)

    async def read(self, job: JobId) -> list[Step]:
        """The rows of a job."""
        return await self._reads.call(job)


class _Batches(Generic[Given, Answer]):
    """Calls for many that are asked for one by one."""

    def __init__(self, call: Callable[[Sequence[Given]], Awaitable[Sequence[Answer]]], most: int) -> None:
        self._call = call
        self._most = most
        self._waiting: list[tuple[Given, asyncio.Future[Answer]]] = []
        self._serving = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, given: Given) -> Answer:
        """The answer to this one."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((given, answer))
        if self._serving < self._most:
            self._serving += 1
            caller = asyncio.create_task(self._serve(), name="stoker-steps")
            self._tasks.add(caller)
            caller.add_done_callback(self._tasks.discard)
        return await answer

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # what else is asked for in this turn of the loop comes along
                batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
                if batch := [(given, answer) for given, answer in batch if not answer.done()]:
                    await self._answer(batch)
        finally:
            self._serving -= 1  # in the same turn in which nothing was found: what is asked for next starts another

    async def _answer(self, batch: list[tuple[Given, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._call([given for given, _ in batch])
        except BaseException as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error) if isinstance(error, Exception) else answer.cancel()
            if not isinstance(error, Exception):
                raise
        else:
            for (_, answer), found in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)

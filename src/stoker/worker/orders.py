"""How a worker takes orders from afar: what its renewals return it does, or answers.

Orders are taken in the lease keeper's thread, so that a worker whose event loop is blocked can still tell where its
handlers stand.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.engines.base import STACKS, Engine
from stoker.executors import Executors
from stoker.executors.processes import is_in_child
from stoker.executors.stacks import abandoned, stack_of
from stoker.model import ids
from stoker.model.errors import StokerError, sentence
from stoker.model.ids import JobId
from stoker.model.orders import KEPT, Orders, Stand, Work, encode, new_stack, new_work, read, report
from stoker.model.time import SECOND, Instant

if TYPE_CHECKING:
    from stoker.context import Context
    from stoker.worker.state import WorkerContext

logger = logging.getLogger("stoker.worker")

CHILDREN_ANSWER_WITHIN = 2.0
"""Seconds to wait for the worker's loop, which asks the processes of handlers."""

NO_ANSWER = "Its process did not answer: it is busy outside of Python, or the worker's event loop is blocked."


class OrderTaker:
    """Takes each order once. Made on the worker's loop, used on that of the lease keeper."""

    def __init__(
        self, context: WorkerContext, engine: Engine, executors: Executors, obey: Callable[[Work], None]
    ) -> None:
        self._running_jobs = context.running_jobs
        self._engine = engine
        self._executors = executors
        self._obey = obey
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._taken: Orders | None = None
        self._told: dict[str, bytes] = {}
        self._answers: set[asyncio.Task[None]] = set()

    async def take(self, worker: str, stored: bytes | str | None) -> None:
        """Do what is new in the orders that a renewal of this worker returned; raises if the store is away."""
        orders = read(stored)
        if orders is None or orders == self._taken:
            return
        now = await self._engine.now()
        before = self._taken if self._taken is not None and self._taken.worker == worker else None
        work, asked = new_work(orders, before, now), new_stack(orders, before, now)
        self._taken = orders
        if work is not None:
            with suppress(RuntimeError):  # the worker's loop is closed
                self._main.call_soon_threadsafe(self._obey, work)
        if asked is not None:
            answer = asyncio.ensure_future(self._answer(worker, asked))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    async def close(self) -> None:
        """End what is under way."""
        for answer in self._answers:
            answer.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    async def _answer(self, worker: str, asked: Instant) -> None:
        """Store where the handlers stand, and remove that after a while."""
        documents = self._engine.documents
        try:
            told = encode(report(worker, asked, await self._engine.now(), await self._stands()))
            before, self._told[worker] = self._told.get(worker), told
            if not await documents.swap(STACKS, worker, before, told):  # it was removed meanwhile
                await documents.swap(STACKS, worker, None, told)
            await asyncio.sleep(KEPT / SECOND)
            await documents.swap(STACKS, worker, told, None)
        except StokerError as error:
            logger.warning("could not tell where the handlers stand: %s Ask again.", sentence(error))
        except Exception:
            logger.exception("could not tell where the handlers stand; jobs are run as before")

    async def _stands(self) -> list[Stand]:
        slots = {id(slot): slot for slot in self._running_jobs.runs.copy().values()}
        runs = [(slot, context) for slot in slots.values() if (context := slot.context) is not None]
        inside = await self._in_children() if any(is_in_child(context) for _, context in runs) else {}
        stands: list[Stand] = []
        for slot, context in sorted(runs, key=lambda run: run[1].began):
            if is_in_child(context):
                place, stack = inside.get(context.claim.id, ("a process of its own", NO_ANSWER))
            else:
                place, stack = stack_of(
                    context, slot.task, context.main, self._main, self._main_thread, self._executors.threads
                )
            stands.append(_stand(context, place, stack))
        known = {id(context) for _, context in runs}
        return stands + [_stand(*one) for one in abandoned(known, self._executors.threads)]

    async def _in_children(self) -> dict[JobId, tuple[str, str]]:
        asked = asyncio.run_coroutine_threadsafe(self._executors.processes.stacks(), self._main)
        try:
            async with asyncio.timeout(CHILDREN_ANSWER_WITHIN):
                return await asyncio.wrap_future(asked)
        except TimeoutError:
            return {}


def _stand(context: Context, place: str, stack: str) -> Stand:
    return Stand(
        job=ids.text(context.claim.id),
        kind=context.kind,
        place=place,
        stack=stack,
        elapsed=round(context.elapsed * SECOND),
        more=len(context.items) - 1,
    )

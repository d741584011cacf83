"""Calls a handler with a batch, in the form that it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from stoker.executors.threads import Threads
from stoker.model.outcome import Reject, gravest
from stoker.outbox.batch import Batch
from stoker.outbox.handlers import Handler
from stoker.outbox.message import Message
from stoker.outbox.publisher import Publisher


class Caller:
    """A handler, or the publisher of a relay, in one process."""

    def __init__(self, handler: Handler, threads: Threads) -> None:
        self._handler = handler
        self._threads = threads
        self._publisher = None if handler.relay is None else Publisher(handler.relay)
        self._fn = handler.fn if self._publisher is None else self._publisher.publish

    async def call(self, batch: Batch[Any], *handle: Any) -> BaseException | None:
        """Call the handler for the whole batch; returns what it raised, even SystemExit. `handle`: its transaction."""
        try:
            match self._handler.form:
                case "batch":
                    await self._invoke(batch, *handle)
                case "message":
                    while (one := batch.next()) is not None:
                        await self._unit(batch, [one], one, *handle)
                case "list":
                    while chunk := batch.chunk(self._handler.chunk or self._handler.rules.pace.batch):
                        await self._unit(batch, chunk, chunk, *handle)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            return error
        return None

    async def _unit(self, batch: Batch[Any], unit: list[Message[Any]], *given: Any) -> None:
        """Call the handler for one unit. A reject concerns only this one, unless all of it is one transaction."""
        try:
            await self._invoke(*given)
        except BaseException as error:
            signal = gravest(error)
            if not isinstance(signal, Reject) or self._handler.rules.mode == "transactional":
                raise
            for one in unit:
                batch.reject(one, signal.why)

    async def _invoke(self, *given: Any) -> None:
        if self._handler.is_async:
            await self._fn(*given)
        else:
            await self._threads.run(self._fn, given, {})

    async def close(self) -> None:
        """Close what was opened."""
        if self._publisher is not None:
            await self._publisher.close()

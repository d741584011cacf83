"""Calls a handler with a batch, in the form that it takes."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from stoker.executors.threads import Threads
from stoker.model.errors import StokerError
from stoker.model.outcome import Reject, gravest
from stoker.outbox.batch import Batch
from stoker.outbox.handlers import Handler
from stoker.outbox.message import Message
from stoker.outbox.relay_handler import RelayHandler


class Caller:
    """A handler, or a relay in the place of one, in one process."""

    def __init__(self, handler: Handler, threads: Threads) -> None:
        self.handler = handler
        self.threads = threads
        self._transactional = handler.rules.mode == "transactional"
        self._chunk = handler.chunk or handler.rules.pace.batch
        self._relay = None if handler.relay is None else RelayHandler(handler.relay)
        self._fn: Any = handler.fn
        if self._relay is not None:
            self._fn = self._relay.publish_in if self._transactional else self._relay.publish

    async def call(self, batch: Batch[Any], *handle: Any) -> BaseException | None:
        """Call the handler for the whole batch; returns what it raised, even SystemExit. `handle`: its transaction."""
        if not self.handler.is_async:
            error: BaseException | None = await self.threads.run(self.call_here, (batch, *handle), {})
            return error
        try:
            match self.handler.form:
                case "batch":
                    await self._fn(batch, *handle)
                case "message":
                    while (one := batch.next()) is not None:
                        try:
                            await self._fn(one, *handle)
                        except BaseException as error:  # noqa: BLE001 - judged there
                            self._rejected(batch, [one], error)
                case "list":
                    while chunk := batch.chunk(self._chunk):
                        try:
                            await self._fn(chunk, *handle)
                        except BaseException as error:  # noqa: BLE001 - judged there
                            self._rejected(batch, chunk, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            return error
        return None

    def call_here(self, batch: Batch[Any], *handle: Any) -> BaseException | None:
        """`call` of a plain handler, in this thread."""
        try:
            match self.handler.form:
                case "batch":
                    self._plain(batch, *handle)
                case "message":
                    while (one := batch.next()) is not None:
                        try:
                            self._plain(one, *handle)
                        except BaseException as error:  # noqa: BLE001 - judged there
                            self._rejected(batch, [one], error)
                case "list":
                    while chunk := batch.chunk(self._chunk):
                        try:
                            self._plain(chunk, *handle)
                        except BaseException as error:  # noqa: BLE001 - judged there
                            self._rejected(batch, chunk, error)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            return error
        return None

    def _plain(self, *given: Any) -> None:
        answer = self._fn(*given)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise StokerError(
                f"handler {self.handler.name} returned an awaitable from a plain function, so nothing was delivered. "
                "Declare it with async def."
            )

    def _rejected(self, batch: Batch[Any], unit: list[Message[Any]], error: BaseException) -> None:
        """A reject concerns only the unit in hand, unless all of the batch is one transaction; others go on."""
        raised = gravest(error)
        if not isinstance(raised, Reject) or self._transactional:
            raise error
        for one in unit:
            batch.reject(one, raised.why)

    async def close(self) -> None:
        """Close what was opened."""
        if self._relay is not None:
            await self._relay.close()

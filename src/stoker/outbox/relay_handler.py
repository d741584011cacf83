"""Runs a relay as a handler; separates accepted from rejected messages."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from stoker.codec.error_text import describe_error, one_line
from stoker.engines.base import Transaction
from stoker.model.outcome import Exit, Reject, Retry, Snooze, gravest
from stoker.outbox.batch import Batch
from stoker.outbox.message import Message
from stoker.outbox.relays.base import Partial, Relay

logger = logging.getLogger("stoker.outbox")


class RelayHandler:
    """One relay in one worker. Its lanes share it."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._opening = asyncio.Lock()
        self._open = False

    async def publish(self, batch: Batch[Any]) -> None:
        """Publish a batch. A message that the target rejects becomes a letter, and the others go on."""
        await self._opened()
        messages = batch.rest()
        if not messages:
            return
        try:
            await self._publish(batch, messages)
        except BaseException as error:
            raised = gravest(error)
            if not isinstance(raised, Reject):
                raise
            if len(messages) == 1:
                batch.reject(messages[0], raised.why)
                return
            await self._one_by_one(batch, messages[batch.processed :])

    async def publish_in(self, batch: Batch[Any], tx: Transaction) -> None:
        """Publish a batch in the transaction that moves the cursor. Smaller batches tell apart what is rejected."""
        await self._opened()
        relay: Any = self._relay
        messages = batch.rest()
        try:
            await relay.publish_in(messages, tx)
        except BaseException as error:
            raised = gravest(error)
            if not isinstance(raised, Reject) or len(messages) == 1:
                raise
            raise Retry(raised.why, delay=0) from error

    async def _publish(self, batch: Batch[Any], messages: list[Message[Any]]) -> None:
        try:
            await self._relay.publish(messages)
        except Partial as partial:
            if partial.n > 0:
                batch.done(messages[min(partial.n, len(messages)) - 1])
            if partial.n >= len(messages):
                return
            cause = partial.__cause__
            if cause is not None and isinstance(raised := gravest(cause), Exit):
                raise raised from None  # with the delay that it asks for
            if cause is None and partial.n > 0:
                raise Snooze(0) from None  # nothing failed: the rest comes in the next turn
            why = str(partial) if cause is None else f"{partial}, then {describe_error(cause, 1_000)}"
            raise Retry(one_line(why, 2_000)) from partial

    async def _one_by_one(self, batch: Batch[Any], messages: list[Message[Any]]) -> None:
        """Publish messages alone, to learn which of them is rejected."""
        for one in messages:
            if batch.remaining <= 0:
                raise Retry("there was no time to publish the rest one by one")
            try:
                await self._relay.publish([one])
            except BaseException as error:
                raised = gravest(error)
                if not isinstance(raised, Reject):
                    raise
                batch.reject(one, raised.why)
            else:
                batch.done(one)

    async def _opened(self) -> None:
        async with self._opening:
            if not self._open:
                await self._relay.open()
                self._open = True

    async def close(self) -> None:
        """Close the relay if it was opened; an error is only logged."""
        async with self._opening:
            if self._open:
                self._open = False
                try:
                    await self._relay.close()
                except Exception as error:  # noqa: BLE001 - a client of the user's may raise anything
                    logger.warning("relay %r could not be closed: %r", self._relay, error)

"""Streams for operators: what waits for each consumer, letters, and how to steer them."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.admin.asking import Asking
from stoker.model.redact import Redaction
from stoker.outbox.letters import LetterPage
from stoker.outbox.steering import ConsumerState, StreamHandle, StreamState, states


class OutboxAdmin:
    """Questions about streams; `stream(name)` has the actions."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def list(self) -> list[StreamState]:
        """Every stream of the store, by name, with its consumers."""
        return [_masked(one, self._asking.redact) for one in await states(self._asking.app)]

    def stream(self, name: str) -> StreamHandle:
        """A stream to look at and steer: `state`, `letters`, `replay`, `release`, `seek`, `pause`, `resume`, `drop`."""
        return _Shown(self._asking, name)


class _Shown(StreamHandle):
    """A stream with secrets masked in what it shows."""

    def __init__(self, asking: Asking, name: str) -> None:
        super().__init__(asking.app, name, by=asking.signed())
        self._redact = asking.redact

    async def state(self) -> StreamState:
        """The stream with its consumers: what waits for each, how old it is, and what failed."""
        return _masked(await super().state(), self._redact)

    async def letters(self, **chosen: Any) -> LetterPage:
        """List letters, latest failure first."""
        page = await super().letters(**chosen)
        shown = tuple(
            msgspec.structs.replace(
                one,
                payload=one.payload if one.raw else self._redact.json(one.payload),
                headers=self._redact.values(one.headers),
                reason=self._redact.text(one.reason),
            )
            for one in page.letters
        )
        return LetterPage(shown, page.next)


def _masked(state: StreamState, redact: Redaction) -> StreamState:
    consumers = tuple(_masked_consumer(one, redact) for one in state.consumers)
    return msgspec.structs.replace(state, consumers=consumers)


def _masked_consumer(consumer: ConsumerState, redact: Redaction) -> ConsumerState:
    partitions = tuple(
        one if one.last_error is None else msgspec.structs.replace(one, last_error=redact.text(one.last_error))
        for one in consumer.partitions
    )
    return msgspec.structs.replace(consumer, partitions=partitions)

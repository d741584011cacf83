"""Streams for operators: what waits for each consumer, letters, and how to steer them."""

from __future__ import annotations

from stoker.app import Stoker
from stoker.outbox.steering import StreamHandle, StreamState, states


class OutboxAdmin:
    """Questions about streams; `stream(name)` has the actions."""

    def __init__(self, app: Stoker) -> None:
        self._app = app

    async def list(self) -> list[StreamState]:
        """Every stream of the store, by name, with its consumers."""
        return await states(self._app)

    def stream(self, name: str) -> StreamHandle:
        """A stream to look at and steer: `state`, `letters`, `replay`, `release`, `seek`, `pause`, `resume`, `drop`."""
        return StreamHandle(self._app, name)

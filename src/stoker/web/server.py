"""The HTTP server of `stoker serve`: it waits ten seconds for the head of a request, and not for too many at once.

A client that sends nothing, or a byte now and then, would else hold one of the connections that the server allows.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 400
HEAD_SECONDS = 10.0
"""Seconds from a connection, or from its last answer, until the next request must have come with its whole head."""


class PromptHeads(H11Protocol):
    """A connection that is closed when the head of a request is late, or when too many others wait for theirs.

    At most half of the connections wait: when one more comes, the one that has waited longest is closed.
    """

    seconds: ClassVar[float] = HEAD_SECONDS
    _waiting: ClassVar[dict[PromptHeads, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._wait()

    def handle_events(self) -> None:
        """Read what came; a head ends the wait."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop()

    def on_response_complete(self) -> None:
        """Wait for the next head, which may be here already."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self._waiting[self] = self.loop.call_later(self.seconds, self.transport.close)
        if self.limit_concurrency is not None and len(self._waiting) > self.limit_concurrency // 2:
            longest = next(iter(self._waiting))
            longest._stop()  # noqa: SLF001 - it is one of us
            longest.transport.close()

    def _stop(self) -> None:
        timer = self._waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


def config(board: Any, **options: Any) -> uvicorn.Config:
    """How a dashboard is served by itself."""

    class Heads(PromptHeads):
        """The connections of this server."""

        _waiting: ClassVar[dict[PromptHeads, asyncio.TimerHandle]] = {}

    return uvicorn.Config(
        board,
        http=Heads,
        ws="none",
        log_config=None,  # its loggers speak through the handlers of the command line
        log_level="warning",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=3,
        **options,
    )

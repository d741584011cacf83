"""The dashboard in a host that is no ASGI server: one request at a time, as a scope and a body, for one whole answer.

A WSGI host calls `answer_sync`: the dashboard then lives on the loop of Stoker's sync callers, with the connections
that it keeps there. Give it a `Dashboard` without streams (`without_streams`): its live pages ask every 15 seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Scope

from stoker.sync import shared
from stoker.web.board import Limits


class Answer(NamedTuple):
    """What the dashboard answered; `rest` is what a live page still sends."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    rest: AsyncIterator[bytes] | None = None


def without_streams(limits: Limits | None = None) -> Limits:
    """Limits under which no live page streams."""
    return replace(limits or Limits(), streams=0)


async def answer(board: ASGIApp, scope: Scope, body: bytes) -> Answer:
    """Let the dashboard answer on this loop. A live page's answer goes on in `rest`, to be read or closed."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=4)
    given, gone = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

    async def receive() -> Message:
        if given:
            return given.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def serve() -> None:
        try:
            await board(scope, receive, messages.put)
        finally:
            await messages.put(None)

    serving = asyncio.ensure_future(serve())

    async def parts() -> AsyncIterator[bytes]:
        try:
            while (message := await messages.get()) is not None:
                yield message.get("body", b"")
        finally:
            gone.set()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    start = await messages.get()
    if start is None:
        await serving
        raise RuntimeError("the dashboard gave no answer")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    streams = ("content-type", "text/event-stream") in [(name, value.partition(";")[0]) for name, value in headers]
    if streams:
        return Answer(start["status"], headers, rest=parts())
    return Answer(start["status"], headers, b"".join([part async for part in parts()]))


def answer_sync(board: ASGIApp, scope: Scope, body: bytes) -> Answer:
    """`answer` for a thread without a loop."""
    return shared.run(answer(board, scope, body), "`await answer(...)`")


def http_scope(
    *,
    method: str,
    scheme: str,
    path: str,
    root: str,
    query: str,
    headers: list[tuple[str, str]],
    client: str | None = None,
    **more: Any,
) -> Scope:
    """A request as ASGI writes it; `path` includes `root`, the path below which the dashboard is mounted."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "path": path,
        "raw_path": path.encode(),
        "root_path": root,
        "query_string": query.encode("latin-1"),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": None if client is None else (client, 0),
        **more,
    }

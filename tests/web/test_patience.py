"""What a client costs before it has signed in, or when it takes its time: heads, bodies, requests and streams."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from stoker.app import Stoker
from stoker.web import Dashboard, Key, Limits, dashboard
from stoker.web.server import HEAD_SECONDS, PromptHeads, config
from tests.harness.apps import PATIENCE, until
from tests.web.conftest import Client, enqueue

SECRET = "a-key-of-24-letters-1234"
BEARER = f"Bearer {SECRET}"


@pytest.fixture
async def board(app: Stoker) -> AsyncIterator[Dashboard]:
    await enqueue(app)
    limits = Limits(seconds=30, body_seconds=600, requests=2, streams=10, streams_each=10)
    board = dashboard(app, auth=Key(SECRET), limits=limits)
    yield board
    await board.close()


class Slow:
    """A request whose body never ends, held by the dashboard."""

    def __init__(self, board: Dashboard, method: str, path: str) -> None:
        self.messages: list[Any] = []
        self.asked = 0
        headers = [(b"host", b"127.0.0.1"), (b"authorization", BEARER.encode()), (b"content-length", b"100")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 80),
        }
        self.task = asyncio.create_task(board(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        self.asked += 1
        if self.asked > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.mark.spec("WEBSEC-24")
async def test_a_body_that_does_not_come_is_given_up_on_every_route(app: Stoker) -> None:
    assert Limits().body_seconds == 10
    board = dashboard(app, auth=Key(SECRET), limits=Limits(seconds=30, body_seconds=0.005))
    changing = [way for way in board.routes if way.changes]
    assert len(changing) > 70
    for way in changing:
        slow = Slow(board, way.method, re.sub(r"{\w+}", "x", way.path))
        async with asyncio.timeout(PATIENCE):
            await slow.task
        assert slow.messages[0]["status"] == 408, way
    await board.close()


@pytest.mark.spec("WEBSEC-24")
async def test_requests_before_signing_in_keep_no_others_out(board: Dashboard) -> None:
    client = Client(board, authorization=BEARER)
    slow = [Slow(board, "POST", "/theme") for _ in range(4)]
    await until(lambda: sum(one.asked > 1 for one in slow) == 2)  # as many as may be; the others are refused
    await until(lambda: sum(bool(one.messages) for one in slow) == 2)
    assert (await client.get("/sign-in")).status_code == 503
    assert (await client.get("/queues")).status_code == 200
    for one in slow:
        await one.end()
    assert (await client.get("/sign-in")).status_code == 303
    busy = [Slow(board, "POST", "/queues/mail/pause") for _ in range(2)]
    await until(lambda: all(one.asked > 1 for one in busy))
    assert (await client.get("/queues")).status_code == 503
    assert (await client.get("/sign-in")).status_code == 303
    for one in busy:
        await one.end()
    assert (await client.get("/queues")).status_code == 200
    await client.close()


@pytest.mark.spec("WEBSEC-24")
async def test_streams_are_no_requests_and_ten_are_ten(board: Dashboard) -> None:
    """They are all asked for at once, and none has begun when the last is counted; requests are bounded by two."""
    client = Client(board, authorization=BEARER)
    board.limits = Limits(seconds=30, requests=30, streams=10, streams_each=10)
    streams = [asyncio.create_task(client.get("/live?page=overview")) for _ in range(14)]
    await until(lambda: sum(one.done() for one in streams) == 4)
    assert [one.result().status_code for one in streams if one.done()] == [429] * 4
    await until(lambda: board.hub.viewers == 10)
    board.limits = Limits(seconds=30, requests=2)
    assert (await client.get("/queues")).status_code == 200
    for one in streams:
        one.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    assert (board.hub.viewers, board.streams) == (0, {})
    await client.close()


@contextmanager
def serving(board: Dashboard, **options: Any) -> Iterator[int]:
    """The dashboard behind the server of `stoker serve`; yields its port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        made = config(board)
        for name, value in options.items():
            setattr(made, name, value)
        server = uvicorn.Server(made)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until_ = time.monotonic() + PATIENCE
        while not server.started:
            assert time.monotonic() < until_
            time.sleep(0.01)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(90)


def connect(port: int, sent: bytes = b"") -> socket.socket:
    """A connection, on which something may have been sent."""
    found = socket.create_connection(("127.0.0.1", port), PATIENCE)
    found.sendall(sent)
    return found


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with connection:
        try:
            while connection.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return True


HEAD = f"GET /queues HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {BEARER}\r\n".encode()


@pytest.mark.spec("WEBSEC-25")
def test_a_head_that_does_not_come_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, a part of a head, a part of a second one, and a body after its request was refused."""
    assert PromptHeads.seconds == HEAD_SECONDS == 10
    monkeypatch.setattr(PromptHeads, "seconds", 0.3)
    board = dashboard(Stoker("memory://"), auth=Key(SECRET), limits=Limits(seconds=30))
    with serving(board, timeout_keep_alive=600) as port:
        late = [connect(port), connect(port, HEAD), connect(port, HEAD + b"\r\n" + HEAD)]
        late.append(connect(port, b"POST /queues/x/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nx"))
        assert all(is_closed(one) for one in late)
        monkeypatch.setattr(PromptHeads, "seconds", 600)
        with connect(port, HEAD + b"\r\n") as prompt:
            assert prompt.recv(12) == b"HTTP/1.1 200"


@pytest.mark.spec("WEBSEC-25")
def test_connections_without_a_head_are_half_of_the_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest waiting one goes, and those that send a head at once are served."""
    monkeypatch.setattr(PromptHeads, "seconds", 600)
    board = dashboard(Stoker("memory://"), auth=Key(SECRET), limits=Limits(seconds=30))
    with serving(board, limit_concurrency=8) as port:
        idle = [connect(port) for _ in range(12)]
        assert all(is_closed(one) for one in idle[:8])
        with connect(port, HEAD + b"\r\n") as prompt:
            assert prompt.recv(12) == b"HTTP/1.1 200"
        for one in idle[8:]:
            one.close()

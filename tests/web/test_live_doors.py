"""Live streams are for those who may look, so many at a time, and not for clients that take nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.model.access import Identity
from stoker.web import Dashboard, Limits, dashboard
from stoker.web import hub as hub_module
from tests.harness.apps import PATIENCE, until
from tests.web.conftest import Client, enqueue


def who(request: Any) -> Identity | None:
    name = request.headers.get("x-user")
    return None if name is None else Identity(name)


@pytest.fixture
async def shared(app: Stoker) -> AsyncIterator[Dashboard]:
    await enqueue(app)
    limits = Limits(seconds=30, streams=3, streams_each=2, send_seconds=0.2)
    board = dashboard(app, auth=who, limits=limits)
    yield board
    await board.close()


@pytest.mark.spec("WEBSEC-19")
async def test_a_stream_is_only_for_those_who_may_look(shared: Dashboard) -> None:
    client = Client(shared)
    assert (await client.get("/live?page=overview")).status_code == 401
    foreign = await client.get("/live?page=overview", headers={"x-user": "ann", "origin": "https://evil.example"})
    assert (foreign.status_code, shared.hub.viewers) == (403, 0)
    await client.close()


@pytest.mark.spec("WEBSEC-19")
async def test_streams_are_counted_for_each_name_and_in_all(shared: Dashboard) -> None:
    ann, bob, eve = (Client(shared, **{"x-user": name}) for name in ("ann", "bob", "eve"))
    streams = [asyncio.create_task(ann.get("/live?page=overview")) for _ in range(2)]
    await until(lambda: shared.hub.viewers == 2)
    third = await ann.get("/live?page=overview")
    assert (third.status_code, "Too many live pages" in third.text) == (429, True)
    streams.append(asyncio.create_task(bob.get("/live?page=overview")))
    await until(lambda: shared.hub.viewers == 3)
    assert (await eve.get("/live?page=overview")).status_code == 429
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    assert (shared.hub.viewers, shared.streams) == (0, {})
    for client in (ann, bob, eve):
        await client.close()


@pytest.mark.spec("WEBSEC-19")
async def test_a_client_that_takes_nothing_is_dropped(shared: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server tells an app that a client is slow by not returning from `send`."""
    monkeypatch.setattr(hub_module, "EVERY", 0.01)
    sent = 0

    async def send(_: Any) -> None:
        nonlocal sent
        sent += 1
        if sent > 3:
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/live",
        "raw_path": b"/live",
        "root_path": "",
        "query_string": b"page=overview",
        "headers": [(b"host", b"127.0.0.1"), (b"x-user", b"ann")],
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 80),
    }
    async with asyncio.timeout(PATIENCE):
        await shared(scope, receive, send)
    assert (sent, shared.hub.viewers, shared.streams) == (4, 0, {})

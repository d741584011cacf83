"""The shared reading: what viewers cost the store, and what they see when it does not answer."""

from __future__ import annotations

import asyncio

import pytest

from stoker.app import Stoker
from stoker.model.errors import EngineUnavailable
from stoker.web import Limits, Open, dashboard
from stoker.web import hub as module
from stoker.web.hub import Hub
from tests.web.conftest import Client, enqueue


@pytest.mark.spec("WEB-15")
async def test_many_viewers_cost_one_store_call_a_beat(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    await enqueue(app)
    hub = Hub(app)
    first = await hub.reading()
    assert await hub.reading() is first  # pages share a young reading
    before = hub.calls
    await asyncio.sleep(0.02)
    assert hub.calls == before  # nobody looks, nothing is asked
    for _ in range(20):
        hub.enter()
    seen = hub.generation
    for _ in range(12):
        seen = await hub.news(seen, 5)
    assert hub.generation >= 12
    assert hub.calls - before <= hub.generation
    for _ in range(20):
        hub.leave()
    assert hub.viewers == 0
    quiet = hub.calls
    await asyncio.sleep(0.02)
    assert hub.calls == quiet
    await hub.close()


@pytest.mark.spec("WEB-15")
async def test_a_store_that_is_away_is_said_once_and_asked_again(
    app: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    hub = Hub(app)
    good = await hub.reading()
    engine = await app.engine()

    async def away() -> None:
        raise EngineUnavailable("the driver's own words")

    monkeypatch.setattr(engine, "census", away)
    hub.enter()
    seen = 0
    for _ in range(6):
        seen = await hub.news(seen, 5)
    assert hub.last is not None
    assert hub.last.census is good.census
    assert "the driver's own words" not in caplog.text
    hub.leave()
    await hub.close()


@pytest.mark.spec("WEB-16")
async def test_a_live_page_without_a_stream_asks_for_its_parts(app: Stoker, client: Client) -> None:
    await enqueue(app)
    for page in ("overview", "jobs", "queues", "kinds"):
        parts = await client.get(f"/pieces?page={page}")
        assert parts.status_code == 200
        assert 'id="live_' in parts.text
    assert (await client.get("/pieces?page=none")).status_code == 422


@pytest.mark.spec("WEB-16")
async def test_a_stream_begins_with_what_changed_since_the_page_was_made(app: Stoker) -> None:
    client = Client(dashboard(app, auth=Open(), limits=Limits(seconds=30, stream_seconds=0)))
    await client.get("/")
    await enqueue(app)
    client.board.hub.forget()  # as if the page were older than the shared reading
    stream = await client.get("/live?page=overview")
    assert stream.text.startswith("event: hello")
    assert 'hx-target="#live_tiles"' in stream.text
    await client.close()
    await client.board.close()

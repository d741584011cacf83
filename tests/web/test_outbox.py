"""Streams on pages: consumers, cursors, letters, and what an operator does about them."""

from __future__ import annotations

import pytest

from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.stream import Entry, Stream
from tests.web.conftest import Client, text

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")]


async def streams(app: Stoker) -> None:
    engine = outbox_of(await app.engine())
    orders = Stream("orders", 4)
    await engine.register(orders, [Consumer("warehouse")])
    await engine.append(orders, [Entry(bytes([n]) * 16, f"customer-{n}", n % 4, b"{}", "Placed") for n in range(6)])


@pytest.mark.spec("WEB-14")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_streams_are_shown_and_consumers_paused(app: Stoker, client: Client) -> None:
    assert "No stream yet" in text(await client.get("/outbox"))
    await streams(app)
    client.board.hub.forget()  # a page shares what another one has just read
    page = text(await client.get("/outbox"))
    assert "4 partitions, 6 messages so far" in page
    assert "warehouse" in page
    cursors = text(await client.get("/outbox/orders/warehouse"))
    assert "6 messages undelivered" in cursors
    assert (await client.post("/outbox/orders/warehouse/pause")).status_code == 303
    assert "paused" in text(await client.get("/outbox"))
    assert (await client.post("/outbox/orders/warehouse/resume")).status_code == 303
    assert (await client.get("/outbox/orders/elsewhere")).status_code == 404
    for page, shown in (("outbox", "6 messages so far"), ("consumer&stream=orders&consumer=warehouse", "6 messages")):
        assert shown in text(await client.get(f"/pieces?page={page}")), page
    assert (await client.post("/outbox/orders/warehouse/explode")).status_code == 404
    assert (await client.post("/outbox/letters/orders/replay")).status_code == 422


@pytest.mark.spec("WEB-14")
async def test_a_store_without_streams_says_so(client: Client) -> None:
    page = text(await client.get("/outbox"))
    assert "This store has no streams" in page or "No stream yet" in page

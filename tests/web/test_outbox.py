"""Streams on pages: consumers, cursors, letters, and what an operator does about them."""

from __future__ import annotations

import asyncio

import pytest

from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.stream import Entry, Stream
from stoker.testing.clock import VirtualClock
from stoker.web.counter_rates import Pace
from tests.harness.apps import PATIENCE
from tests.harness.letters import letters
from tests.web.conftest import Client, text
from tests.web.test_api import send

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")]


async def streams(app: Stoker, n: int = 6) -> None:
    engine = outbox_of(await app.engine())
    orders = Stream("orders", 4)
    await engine.register(orders, [Consumer("warehouse")])
    entries = [Entry(bytes([one, n]) * 8, f"customer-{one}", one % 4, b"{}", "Placed") for one in range(n)]
    await engine.append(orders, entries)


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


@pytest.mark.spec("WEB-30")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_messages_per_second_come_from_two_readings(app: Stoker, client: Client) -> None:
    now = 0.0
    client.board.pace = Pace(clock=lambda: now)
    await streams(app)
    assert "– in per second" in text(await client.get("/outbox"))
    now += 4
    await letters(await app.engine(), 12, stream="bills")
    await streams(app, 40)
    client.board.hub.forget()
    page = text(await client.get("/outbox"))
    assert "10 in per second" in page  # forty in four seconds
    assert "– in per second" in page  # the other stream was not there before
    now += 100
    client.board.hub.forget()
    assert "– in per second" in text(await client.get("/outbox"))  # what is older says nothing about now


@pytest.mark.spec("WEB-31", "WEB-65")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_letters_are_filtered_and_all_that_match_replayed(app: Stoker, client: Client) -> None:
    engine = await app.engine()
    await letters(engine, 3)
    await letters(engine, 2, stream="bills", type_="Sent", at=50)
    above = text(await client.get("/outbox"))
    assert "Replay all 5…" in above
    assert "2 streams. 5 letters wait for a decision." in above
    assert "Every consumer keeps up" not in above
    assert "5 shown" in text(await client.get("/outbox/letters"))
    assert "2 shown" in (page := text(await client.get("/outbox/letters?stream=bills&type=Sent")))
    assert "orders / 0" not in page
    assert "1 shown" in text(await client.get("/outbox/letters?key=k1&stream=orders"))
    assert "None has consumer nobody , status pending" in text(await client.get("/outbox/letters?consumer=nobody"))
    assert (await client.get("/outbox/letters?status=odd")).status_code == 422
    preview = await client.get("/operations/letters/new?do=replay&stream=orders&consumer=warehouse")
    assert "Replay 3 letters?" in text(preview)
    form = {"do": "replay", "stream": "orders", "consumer": "warehouse", "of": "2"}
    grown = await client.post("/operations/letters", form)
    assert (grown.status_code, "3 letters would be changed now" in text(grown)) == (409, True)
    assert (await client.post("/operations/letters", form | {"do": "burn"})).status_code == 422
    begun = await client.post("/operations/letters", form | {"of": "3"})
    assert begun.status_code == 303
    done = await ended(client, begun.headers["location"])
    assert "3 letters to be delivered again" in done
    assert "Show the letters" in done
    assert "Replay of letters" in text(await client.get("/operations"))
    assert "replays" in text(await client.get("/outbox/letters?stream=orders"))
    assert (await client.post("/outbox/letters/bills/discard", {"id": "x"})).status_code == 422


async def ended(client: Client, page: str) -> str:
    """The page of an operation, once it is done."""
    async with asyncio.timeout(PATIENCE):
        while "is done" not in (found := text(await client.get(page))):
            await asyncio.sleep(0.01)
    return found


@pytest.mark.spec("WEB-31")
@pytest.mark.parametrize("engine_name", [pytest.param("sqlite", marks=pytest.mark.engine("sqlite"))])
async def test_more_than_a_hundred_letters_need_their_number(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await letters(await app.engine(), 101)
    assert 'data-count="101"' in (await client.get("/operations/letters/new?do=discard")).text
    older = (await client.get("/outbox/letters")).text
    assert 'rel="next"' in older
    form = {"do": "discard", "of": "101"}
    refused = await client.post("/operations/letters", form)
    assert (refused.status_code, "You typed nothing" in text(refused)) == (422, True)
    found = (await client.get("/api/v1/preview/letters?action=discard")).json()
    assert (found["count"], found["complete"]) == (101, True)
    body = {"action": "discard", "count": 101, "counted_at": found["counted_at"]}
    assert (await send(client, "POST", "/operations/letters", {"action": "discard", "count": 101})).status_code == 422
    few = await send(client, "POST", "/operations/letters", {**body, "count": 100})
    assert (few.status_code, few.json()["code"], few.json()["count"]) == (409, "count", 101)
    clock.advance(1)
    await letters(await app.engine(), 2, at=200)
    all_ = await send(client, "POST", "/operations/letters", body)
    assert (all_.status_code, all_.json()["left"]) == (202, 101), "what fails after the count is no reason to refuse"
    await ended(client, f"/operations/{all_.json()['id']}")
    assert (await client.get("/api/v1/preview/letters?action=replay")).json()["count"] == 2


@pytest.mark.spec("WEB-32")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_parked_keys_are_listed_and_released(app: Stoker, client: Client) -> None:
    engine = await app.engine()
    await letters(engine, 1, parks=True)
    await letters(engine, 3, keys="k0", at=9)
    page = text(await client.get("/outbox/orders/warehouse"))
    assert "Parked keys" in page
    assert "k0 4" in page
    assert (await client.post("/outbox/orders/warehouse/release", {"key": "k0"})).status_code == 303
    assert (await client.post("/outbox/orders/warehouse/release", {"key": "k7"})).status_code == 404

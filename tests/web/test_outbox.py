"""Streams on pages: consumers, cursors, letters, and what an operator does about them."""

from __future__ import annotations

import asyncio
import html
import re

import httpx
import pytest

from stoker.admin import Admin
from stoker.admin.outbox import ShownStream
from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model import ids
from stoker.model.access import Role
from stoker.model.errors import InvalidInput
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest
from stoker.model.outbox.delivery import Rejected, Rules, conclude_batch
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


READERS: tuple[Role, ...] = ("read", "operate")


async def a_letter(app: Stoker, body: bytes = b'{"to": "nowhere", "api_key": "s3cret"}', id_: bytes = bytes(16)) -> str:
    """A message of stream `orders` that its consumer refused; returns its id."""
    engine = await app.engine()
    streams = outbox_of(engine)
    orders = Stream("orders")
    await streams.register(orders, [Consumer("warehouse")])
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await streams.append(orders, [Entry(id_, "ada", 0, body, "Placed", trace)])
    await engine.jobs.renew("w", [], first=True)
    lease = await streams.lease(LeaseRequest("orders", "warehouse", "w", 1_000))
    assert isinstance(lease, Lease)
    assert (await streams.advance(conclude_batch(lease, Rejected("no\nvat_id"), await engine.now(), Rules()))).applied
    return ids.text(id_)


def undo_of(page: httpx.Response) -> dict[str, list[str]]:
    """The fields of the form that takes back what a page has just said."""
    form = re.search(r"<form[^>]*letters/orders/restore.*?</form>", page.text, re.DOTALL)
    assert form is not None, text(page)
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form[0]):
        fields.setdefault(name, []).append(value)
    return fields


@pytest.mark.spec("WEB-70")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_letter_has_a_page(app: Stoker, client: Client) -> None:
    id_ = await a_letter(app)
    await a_letter(app, b"{}", b"1" * 16)
    listed = html.unescape(text(await client.get("/outbox/letters")))
    assert '{"to": "nowhere", "api_key": "[hidden]"}' in listed
    assert "ada" in listed
    answer = await client.get(f"/outbox/letters/orders/warehouse/{id_}")
    page = text(answer)
    assert "s3cret" not in answer.text
    assert "nowhere" not in page
    trace = "Trace 0af7651916cd43dd8448eb211c80319c"
    for part in ("no vat_id", trace, "Tries 1", "Key ada", "Number 2", "this letter"):
        assert part in page, part
    revealed = await client.post("/outbox/letters/orders/reveal", {"id": id_, "consumer": "warehouse"})
    address = revealed.headers["location"].partition("#")[0]
    for _ in range(2):  # also when the page is loaded again
        assert "nowhere" in text(await client.get(address))
    other = Client(client.board)
    await other.get("/")
    assert "nowhere" not in text(await other.get(address)), "a link that is passed on shows nothing"
    await other.close()
    entries = await Admin(app).audit.list(60, target=f"letter {id_} of orders")
    assert [one.action for one in entries] == ["letters.reveal"]
    assert (await client.get(f"/outbox/letters/orders/nobody/{id_}")).status_code == 404
    assert (await client.get("/outbox/letters/orders/warehouse/odd")).status_code == 404


@pytest.mark.spec("WEB-71", "LETTER-06")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("verb", ["replay", "resolve", "discard"])
async def test_what_is_done_to_a_letter_can_be_undone_once(app: Stoker, client: Client, verb: str) -> None:
    id_ = await a_letter(app)
    handle = Admin(app).outbox.stream("orders")
    before = await handle.letter(id_)
    done = await client.post(f"/outbox/letters/orders/{verb}", {"id": id_, "consumer": "warehouse"})
    assert done.status_code == 303
    assert await handle.letter(id_) != before
    undo = undo_of(await client.get(done.headers["location"]))
    fields = {name: values[0] for name, values in undo.items() if name != "csrf"}
    assert (await client.post("/outbox/letters/orders/restore", fields)).status_code == 303
    assert await handle.letter(id_) == before
    assert (await client.post("/outbox/letters/orders/restore", fields)).status_code == 409


@pytest.mark.spec("WEB-71", "LETTER-07")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_letter_is_edited_and_replayed(app: Stoker, client: Client) -> None:
    id_ = await a_letter(app)
    where = {"id": id_, "consumer": "warehouse"}
    refused = await client.post("/outbox/letters/orders/replace", {**where, "payload": "{"})
    assert refused.status_code == 422
    assert "must be JSON" in text(refused)
    body = '{"to": "Turin", "api_key": "[hidden]"}'
    done = await client.post("/outbox/letters/orders/replace", {**where, "payload": body})
    assert done.status_code == 303, text(done)
    handle = Admin(app).outbox.stream("orders")
    assert (await handle.letter(id_)).status == "resolved"
    engine = await app.engine()
    lease = await outbox_of(engine).lease(LeaseRequest("orders", "warehouse", "w", 1_000))
    assert isinstance(lease, Lease)
    [message] = lease.messages
    assert message.payload == b'{"to": "Turin", "api_key": "s3cret"}', "what was masked is kept"
    assert (message.key, message.type, message.headers["replaces"]) == ("ada", "Placed", id_)
    assert ids.text(message.id) != id_
    [entry] = [one for one in await Admin(app).audit.list(60) if one.action == "letters.replace"]
    assert entry.after == {"message": ids.text(message.id)}
    again = await client.post("/outbox/letters/orders/replace", {**where, "payload": body})
    assert again.status_code == 409, "it is resolved"


@pytest.mark.spec("WEB-70", "LETTER-07")
@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_who_may_not_reveal_a_body_sees_nothing_of_it_and_who_may_not_see_secrets_changes_none(
    app: Stoker,
) -> None:
    id_ = await a_letter(app)

    def seen_as(role: Role) -> ShownStream:
        return Admin(app, role=role).outbox.stream("orders")

    assert [(await seen_as(role).letter(id_)).preview[:6] for role in READERS] == ["", '{"to":']
    assert b"s3cret" not in await seen_as("operate").reveal(id_)
    assert b"s3cret" in await seen_as("admin").reveal(id_)
    with pytest.raises(InvalidInput, match="api_key"):
        await seen_as("operate").replace(id_, b'{"to": "Turin", "api_key": "mine"}')
    assert (await seen_as("read").letter(id_)).status == "pending"
    await seen_as("operate").replace(id_, b'{"to": "Turin", "api_key": "[hidden]"}')
    assert (await seen_as("read").letter(id_)).status == "resolved"

"""Messages into JetStream of a real NATS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from stoker.model.errors import InvalidOption, StokerError
from stoker.outbox import Message, ToNats
from tests.outbox.relays.conftest import Make
from tests.services import Server


@pytest.fixture
async def client(nats_server: Server) -> AsyncIterator[Client]:
    found = await nats.connect(nats_server.url)
    await found.jetstream().add_stream(name="orders", subjects=["orders.>"])
    yield found
    await found.close()
    async with await nats.connect(nats_server.url) as other:  # the first one may have lost its server
        await other.jetstream().delete_stream("orders")


async def read(client: Client) -> list[Any]:
    """Every message of the stream."""
    stream = client.jetstream()
    state = (await stream.stream_info("orders")).state
    return [await stream.get_msg("orders", seq) for seq in range(state.first_seq, state.last_seq + 1)]


@pytest.mark.spec("RELAY-08")
async def test_messages_are_stored_once_within_the_duplicate_window(
    nats_server: Server, client: Client, make: Make
) -> None:
    relay = ToNats(nats_server.url, "orders.placed")
    messages = [make(str(n % 7), headers={"a": "ü", "Nats-Rollup": "all"}) for n in range(300)]
    await relay.publish(messages)
    await relay.publish(messages)
    await relay.close()
    found = await read(client)
    assert sorted(one.headers["Nats-Msg-Id"] for one in found) == sorted(one.id for one in messages)
    for key in map(str, range(7)):
        numbers = [int(one.headers["stoker-number"]) for one in found if one.headers["stoker-key"] == key]
        assert numbers == sorted(numbers)
    assert found[0].headers["a"] == "%C3%BC"
    assert found[0].headers["Content-Type"] == "application/json"
    assert "Nats-Rollup" not in found[0].headers


@pytest.mark.spec("RELAY-08")
async def test_a_subject_that_no_stream_listens_to_is_an_error(nats_server: Server, client: Client, make: Make) -> None:
    relay = ToNats(nats_server.url, "nobody")
    with pytest.raises(StokerError, match=r"no stream of JetStream listens to subject 'nobody'.*tried again"):
        await relay.publish([make()])
    await relay.close()


@pytest.mark.spec("RELAY-08")
async def test_a_server_that_was_away_gets_what_comes_next(nats_server: Server, client: Client, make: Make) -> None:
    relay = ToNats(nats_server.url, "orders.placed", timeout=2)
    sent: list[Message[Any]] = [make(), make()]
    await relay.publish(sent[:1])
    nats_server.kill()
    with pytest.raises(Exception, match=r"(?i)connect|closed|timeout|EOF"):
        await relay.publish(sent[1:])
    nats_server.start()
    await relay.publish(sent[1:])
    await relay.close()
    other = await nats.connect(nats_server.url)
    assert [one.headers["stoker-id"] for one in await read(other)] == [one.id for one in sent]
    await other.close()


@pytest.mark.spec("RELAY-03")
def test_options_are_checked_where_they_are_written() -> None:
    with pytest.raises(InvalidOption, match="nats://"):
        ToNats("http://127.0.0.1", "orders")
    for subject in ("", "orders.*", "orders.>", "a b", "a\n", 7):
        with pytest.raises(InvalidOption, match="subject"):
            ToNats("nats://127.0.0.1", subject)  # type: ignore[arg-type]
    assert repr(ToNats("nats://u:pw@127.0.0.1", "orders")) == "<ToNats orders>"

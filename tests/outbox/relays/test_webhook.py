"""Messages to a real HTTP server, signed, and what its answers do."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import httpcore2
import pytest

from stoker.model.errors import InvalidInput, InvalidOption, StokerError
from stoker.model.outbox.webhook import endpoint
from stoker.model.outcome import Reject, Retry
from stoker.model.time import SECOND
from stoker.outbox import Partial, ToWebhook, verify_webhook
from stoker.outbox.relays.webhook_connection import CheckedAddresses, system_addresses
from tests.outbox.relays.conftest import Make
from tests.outbox.relays.receiver import OK, Receiver, certificate, listening, status

OLD, NEW = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
LOOPBACK = ["127.0.0.0/8", "::1/128"]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with listening() as found:
        yield found


@pytest.fixture
async def relay(receiver: Receiver) -> AsyncIterator[ToWebhook]:
    made = ToWebhook(f"http://127.0.0.1:{receiver.port}/hook?a=b", OLD, allow=LOOPBACK, timeout=30)
    yield made
    await made.close()


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-09")
async def test_a_message_is_a_signed_request(receiver: Receiver, make: Make) -> None:
    relay = ToWebhook(f"http://127.0.0.1:{receiver.port}/hook?a=b", [OLD, NEW], allow=LOOPBACK)
    message = make("ä", b'{"id":7}', headers={"traceparent": "00-1", "Host": "evil", "webhook-id": "forged"})
    await relay.open()
    await relay.publish([message])
    await relay.close()
    [request] = receiver.requests
    assert (request.line, request.body) == ("POST /hook?a=b HTTP/1.1", b'{"id":7}')
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["webhook-id"] == request.headers["stoker-id"] == message.id
    assert request.headers["content-type"] == "application/json"
    assert (request.headers["stoker-key"], request.headers["traceparent"]) == ("%C3%A4", "00-1")
    for secret in (OLD, NEW):
        assert verify_webhook(request.headers, request.body, secret) == message.id
    with pytest.raises(InvalidInput, match="was changed"):
        verify_webhook(request.headers, b'{"id":8}', OLD)


@pytest.mark.spec("RELAY-02", "RELAY-09")
async def test_keys_side_by_side_over_few_connections(receiver: Receiver, relay: ToWebhook, make: Make) -> None:
    messages = [make(str(n % 3)) for n in range(60)]
    await relay.publish(messages)
    assert 1 <= receiver.connections <= 8
    for key in "012":
        numbers = [int(one.headers["stoker-number"]) for one in receiver.requests if one.headers["stoker-key"] == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 20


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-12")
@pytest.mark.parametrize("code", [400, 401, 404, 410, 422])
async def test_a_refusal_rejects_the_message(receiver: Receiver, relay: ToWebhook, make: Make, code: int) -> None:
    receiver.answer = lambda _: status(code, body=b"go away")
    with pytest.raises(Reject, match=rf"answered {code} to message .*go away"):
        await relay.publish([make()])


@pytest.mark.spec("RELAY-12")
@pytest.mark.parametrize("code", [301, 408, 429, 500, 503])
async def test_what_may_pass_later_is_tried_again_when_asked(
    receiver: Receiver, relay: ToWebhook, make: Make, code: int
) -> None:
    receiver.answer = lambda _: status(code, "Retry-After: 7", "Location: http://127.0.0.1:1/")
    with pytest.raises(Retry, match=f"answered {code}") as retry:
        await relay.publish([make()])
    assert retry.value.after == 7 * SECOND
    receiver.answer = lambda _: status(code)
    with pytest.raises(Retry) as retry:
        await relay.publish([make()])
    assert retry.value.after is None
    assert len(receiver.requests) == 2, "a redirect is not followed"


@pytest.mark.spec("RELAY-12")
async def test_the_first_refusal_ends_a_call_and_says_how_far_it_came(
    receiver: Receiver, relay: ToWebhook, make: Make
) -> None:
    receiver.answer = lambda request: status(400) if request.headers["stoker-number"] == "3" else OK
    messages = [make() for _ in range(5)]
    with pytest.raises(Partial) as partial:
        await relay.publish(messages)
    assert partial.value.n == 2
    assert isinstance(partial.value.__cause__, Reject)
    with pytest.raises(Reject):
        await relay.publish(messages[2:])
    await relay.publish(messages[3:])


@pytest.mark.spec("RELAY-12")
async def test_a_receiver_that_does_not_answer_is_left_in_time(receiver: Receiver, make: Make) -> None:
    relay = ToWebhook(f"http://127.0.0.1:{receiver.port}/", OLD, allow=LOOPBACK, timeout=0.2)
    receiver.answer = lambda _: b""
    with pytest.raises(StokerError, match=r"did not answer in 0\.2 s"):
        await relay.publish([make()])
    await relay.close()


@pytest.mark.spec("RELAY-12")
async def test_of_a_long_answer_only_the_beginning_is_read(receiver: Receiver, relay: ToWebhook, make: Make) -> None:
    receiver.answer = lambda _: status(500, body=b"x" * (32 << 20))
    with pytest.raises(Retry, match=r"'x{200}'$"):
        await relay.publish([make()])
    while not receiver.cut:
        await asyncio.sleep(0.01)
    receiver.answer = lambda _: OK
    await relay.publish([make()])


@pytest.mark.spec("RELAY-12")
async def test_a_receiver_that_was_away_gets_what_comes_next(make: Make) -> None:
    async with listening() as first:
        relay = ToWebhook(f"http://127.0.0.1:{first.port}", OLD, allow=LOOPBACK)
        await relay.publish([make()])
    with pytest.raises((httpcore2.NetworkError, httpcore2.ProtocolError)):
        await relay.publish([make()])
    async with listening(port=first.port) as again:
        await relay.publish([make()])
        assert [one.headers["stoker-number"] for one in again.requests] == ["3"]
    await relay.close()


# --- where requests go ----------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-10")
async def test_a_name_of_this_machine_is_not_called(receiver: Receiver, make: Make) -> None:
    relay = ToWebhook(f"https://localhost:{receiver.port}/", OLD)
    with pytest.raises(StokerError, match=r"its host localhost is .*private network"):
        await relay.publish([make()])
    await relay.close()
    assert receiver.connections == 0


@pytest.mark.spec("RELAY-10")
async def test_the_address_that_was_checked_is_the_one_that_is_called(receiver: Receiver) -> None:
    """Spec: a name that stands for another address at the second look does not lead there."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    target = endpoint("http://shop.example/", ["127.0.0.1/32"])
    async with httpcore2.AsyncConnectionPool(network_backend=CheckedAddresses(target, rebinding)) as pool:
        url = f"http://shop.example:{receiver.port}/"
        answer = await pool.request("POST", url, headers={"host": "shop.example", "content-length": "0"})
        assert answer.status == 200
        assert asked == ["shop.example"]
    async with httpcore2.AsyncConnectionPool(network_backend=CheckedAddresses(target, rebinding)) as pool:
        with pytest.raises(StokerError, match=r"is 127\.0\.0\.2"):
            await pool.request("POST", url)
    assert receiver.connections == 1


@pytest.mark.spec("RELAY-10")
async def test_tls_goes_by_the_name_and_its_certificate_is_checked(tmp_path: Path, make: Make) -> None:
    server, client = certificate(tmp_path, "localhost")
    async with listening(server) as receiver:
        trusting = ToWebhook(f"https://localhost:{receiver.port}/", OLD, allow=LOOPBACK, tls=client)
        await trusting.publish([make()])
        await trusting.close()
        assert receiver.names == ["localhost"]
        strict = ToWebhook(f"https://localhost:{receiver.port}/", OLD, allow=LOOPBACK)
        with pytest.raises(httpcore2.ConnectError, match=r"(?i)certificate"):
            await strict.publish([make()])
        await strict.close()
        assert len(receiver.requests) == 1


@pytest.mark.spec("RELAY-10")
async def test_every_address_of_a_name_is_looked_at() -> None:
    assert {"127.0.0.1", "::1"} & set(await system_addresses("localhost", 80))
    assert await system_addresses("127.0.0.1", 80) == ["127.0.0.1"]


@pytest.mark.spec("RELAY-03")
def test_options_are_checked_where_they_are_written() -> None:
    with pytest.raises(InvalidOption, match="timeout"):
        ToWebhook("https://shop.example", OLD, timeout=0)
    with pytest.raises(InvalidOption, match="secret"):
        ToWebhook("https://shop.example", "secret")
    relay = ToWebhook("https://shop.example/secret-path", OLD)
    assert repr(relay) == "<ToWebhook shop.example>"
    asyncio.run(relay.close())

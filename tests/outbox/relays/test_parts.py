"""What the relays share: headers, order by key, libraries."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.model.errors import InvalidInput, StokerError
from stoker.model.outcome import Reject
from stoker.outbox import Message, Partial, To
from stoker.outbox.relays.headers import ascii_headers, content_type, headers_of
from stoker.outbox.relays.in_key_order import LONGEST, publish_in_key_order
from stoker.outbox.relays.library import needs
from tests.outbox.relays.conftest import Make


@pytest.mark.spec("RELAY-01")
def test_every_target_gets_the_id_and_the_place_of_a_message(make: Make) -> None:
    message = make("ä", headers={"traceparent": "00-1", "stoker-id": "forged", "Stoker-Other": "forged"})
    assert headers_of(message) == {
        "traceparent": "00-1",
        "stoker-id": message.id,
        "stoker-stream": "orders",
        "stoker-partition": "3",
        "stoker-number": "1",
        "stoker-key": "ä",
        "stoker-type": "OrderPlaced",
        "stoker-created": "2030-01-01T00:00:00+00:00",
    }


@pytest.mark.spec("RELAY-01")
def test_headers_of_ascii_lines_cannot_be_broken_nor_forged(make: Make) -> None:
    message = make("ä\r\nx: y", headers={"a b\n": "100%", "Nats-Rollup": "all", "te": "1", "test": "2"})
    headers = ascii_headers(message, ("nats-", "te"))
    assert headers["stoker-key"] == "%C3%A4%0D%0Ax: y"
    assert headers["a%20b%0A"] == "100%25"
    assert headers["test"] == "2"
    assert not {"Nats-Rollup", "te"} & set(headers)


@pytest.mark.spec("RELAY-01")
def test_the_media_type_is_json_unless_bytes_name_another(make: Make) -> None:
    assert content_type(make()) == "application/json"
    assert content_type(make(raw=True, type="image/png")) == "image/png"
    assert content_type(make(raw=True, type="Picture")) == "application/octet-stream"


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-02")
async def test_keys_go_side_by_side_and_each_in_order(make: Make) -> None:
    chance = random.Random(1)
    messages = [make(chance.choice("abcdefgh")) for _ in range(200)]
    sent: defaultdict[str, list[int]] = defaultdict(list)
    busy: list[int] = []

    async def send(message: Message[Any]) -> None:
        busy.append(1)
        assert len(busy) <= 3
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        busy.pop()
        sent[message.key].append(message.number)

    await publish_in_key_order(messages, send, at_once=3)
    assert sum(map(len, sent.values())) == 200
    assert all(numbers == sorted(numbers) for numbers in sent.values())


@pytest.mark.spec("RELAY-02")
@pytest.mark.parametrize("error", [OSError("away"), Reject("never")])
async def test_a_failure_says_how_many_before_it_were_accepted(make: Make, error: BaseException) -> None:
    messages = [make(key) for key in "abacada"]

    def failing_at(number: int) -> Any:
        async def send(message: Message[Any]) -> None:
            if message.number == number:
                raise error

        return send

    with pytest.raises(type(error)):
        await publish_in_key_order(messages, failing_at(1), at_once=2)
    with pytest.raises(Partial) as partial:
        await publish_in_key_order(messages, failing_at(3), at_once=1)
    assert partial.value.n == 1, "the key goes first, so that number 2 was not sent yet"
    assert partial.value.__cause__ is error
    await publish_in_key_order([], failing_at(1), at_once=1)


@pytest.mark.spec("RELAY-02")
async def test_nothing_more_is_sent_after_the_time_is_over(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    real, passed = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + passed)

    async def slow(message: Message[Any]) -> None:
        nonlocal passed
        passed += LONGEST + 1

    with pytest.raises(Partial) as partial:
        await publish_in_key_order([make() for _ in range(9)], slow, at_once=1)
    assert partial.value.n == 1
    assert partial.value.__cause__ is None


# --- functions ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-03")
async def test_a_function_gets_the_messages_a_plain_one_in_a_thread(make: Make) -> None:
    got: list[Any] = []

    async def one(messages: Sequence[Message[Any]]) -> None:
        got.append([message.number for message in messages])

    def other(messages: Sequence[Message[Any]]) -> None:
        got.append(threading.current_thread() is threading.main_thread())
        raise Partial(1)

    relay = To(one)
    await relay.open()
    await relay.publish([make(), make()])
    await relay.close()
    with pytest.raises(Partial):
        await To(other).publish([make()])
    assert got == [[1, 2], False]
    assert repr(relay) == "<To one>"
    with pytest.raises(InvalidInput, match="must be a function"):
        To(7)  # type: ignore[arg-type]


@pytest.mark.spec("RELAY-03")
def test_a_missing_library_is_named_where_the_relay_is_made() -> None:
    with pytest.raises(StokerError, match=r"str needs the library no_such.*pip install 'stoker\[rabbit\]'"):
        needs("", "no_such", "rabbit")

"""What `@outbox.deliver` and `outbox.relay` accept and refuse."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.model.errors import InvalidInput, InvalidOption, UnknownOption
from stoker.model.outbox.batch_size import PROFILES
from stoker.model.time import SECOND, instant
from stoker.outbox import Batch, Message, Outbox, Pace


@pytest.fixture
def outbox() -> Outbox[Any]:
    return Outbox[Any](Stoker("memory://"), stream="orders")


async def publish(message: Message[int]) -> None: ...


async def project(batch: Batch[int], session: object) -> None: ...


@pytest.mark.spec("DELIVER-01")
def test_defaults(outbox: Outbox[Any]) -> None:
    assert outbox.deliver(publish) is publish
    handler = outbox.handlers["publish"]
    assert (handler.form, handler.is_async, handler.lanes) == ("message", True, 4)
    assert (handler.terms.lease, handler.terms.headroom) == (30 * SECOND, 2 * SECOND)
    assert (handler.rules.mode, handler.rules.attempts, handler.rules.then) == ("leased", None, "letter")
    assert handler.rules.pace == PROFILES["default"]
    assert handler.consumer.start == "beginning"


@pytest.mark.spec("DELIVER-01")
def test_options(outbox: Outbox[Any]) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    outbox.deliver(
        name="other",
        batch=7,
        pace=Pace(idle=timedelta(seconds=3), retry_base=2),
        lanes=2,
        lease=timedelta(minutes=1),
        headroom=5,
        start=at,
        attempts=9,
        then="park",
    )(publish)
    handler = outbox.handlers["other"]
    assert (handler.rules.pace.batch, handler.rules.pace.idle, handler.rules.pace.retry_base) == (
        7,
        3 * SECOND,
        2 * SECOND,
    )
    assert handler.consumer.start == instant(at)
    assert (handler.rules.attempts, handler.rules.then, handler.terms.lease) == (9, "park", 60 * SECOND)
    outbox.deliver(pace="low_latency")(publish)
    assert outbox.handlers["publish"].rules.pace == PROFILES["low_latency"]


@pytest.mark.spec("DELIVER-01")
def test_a_transactional_handler_takes_the_transaction_too(outbox: Outbox[Any]) -> None:
    outbox.deliver(mode="transactional", transaction=dict, keep_writes=True)(project)
    handler = outbox.handlers["project"]
    assert (handler.form, handler.rules.mode, handler.transaction, handler.keep_writes) == (
        "batch",
        "transactional",
        dict,
        True,
    )


@pytest.mark.spec("DELIVER-01")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bach": 3}, "known are attempts, batch"),
        ({"batch": 0}, "batch"),
        ({"batch": 1.5}, "whole number"),
        ({"chunk": 5}, r"list\[Message\[T\]\]"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": True}, "lanes"),
        ({"lease": 0}, "lease"),
        ({"lease": 2, "headroom": 2}, "headroom"),
        ({"start": "middle"}, "start"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),
        ({"attempts": 0}, "attempts"),
        ({"then": "forget"}, "letter, park"),
        ({"mode": "eventual"}, "leased, transactional"),
        ({"pace": "hasty"}, "low_latency"),
        ({"transaction": dict}, "transactional"),
        ({"keep_writes": True}, "transactional"),
        ({"name": "no name"}, "consumer"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_written(outbox: Outbox[Any], options: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        outbox.deliver(**options)(publish)
    assert outbox.handlers == {}


@pytest.mark.spec("DELIVER-01")
def test_a_pace_is_checked_when_it_is_made() -> None:
    with pytest.raises(InvalidOption, match="retry_max"):
        Pace(retry_base=60, retry_max=1)


@pytest.mark.spec("DELIVER-01")
def test_a_transactional_handler_without_a_place_for_its_transaction_is_refused(outbox: Outbox[Any]) -> None:
    with pytest.raises(InvalidInput, match="takes two arguments"):
        outbox.deliver(mode="transactional")(publish)
    with pytest.raises(InvalidInput, match="also wants 'session'"):
        outbox.deliver(name="x")(project)
    with pytest.raises(InvalidInput, match="context manager"):
        outbox.deliver(mode="transactional", transaction=3)(project)  # type: ignore[call-overload]


async def untyped(message) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - refused because of that


async def other(message: int) -> None: ...


async def lists(messages: list[int]) -> None: ...


async def nothing() -> None: ...


async def undefined(message: Mesage[int]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.spec("DELIVER-01")
@pytest.mark.parametrize("fn", [untyped, other, lists, nothing])
def test_a_handler_of_another_form_is_told_the_three(outbox: Outbox[Any], fn: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Message\[T\].*Batch\[T\].*list\[Message\[T\]\]"):
        outbox.deliver(fn)


@pytest.mark.spec("DELIVER-01")
def test_hints_that_cannot_be_read_are_named(outbox: Outbox[Any]) -> None:
    with pytest.raises(InvalidInput, match=r"undefined\(\).*Mesage"):
        outbox.deliver(undefined)


@pytest.mark.spec("DELIVER-01")
def test_a_name_is_taken_once(outbox: Outbox[Any]) -> None:
    outbox.deliver(publish)
    with pytest.raises(InvalidOption, match="already"):
        outbox.deliver(publish)
    with pytest.raises(InvalidOption, match="use that one"):
        Outbox[Any](outbox.app, stream="orders")


class Sink:
    async def open(self) -> None: ...

    async def publish(self, messages: Any) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.spec("DELIVER-18")
def test_a_relay_is_a_consumer_of_large_batches(outbox: Outbox[Any]) -> None:
    outbox.relay(Sink(), name="out", lanes=2)
    handler = outbox.handlers["out"]
    assert (handler.rules.pace.batch, handler.lanes, handler.rules.attempts) == (500, 2, None)
    with pytest.raises(InvalidOption, match=r"async method open\(\)"):
        outbox.relay(object(), name="x")  # type: ignore[arg-type]
    with pytest.raises(UnknownOption, match="chunk"):
        outbox.relay(Sink(), name="x", chunk=3)  # type: ignore[call-arg]

"""Real targets, and messages to relay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest

from stoker.model.outbox import stream as stored
from stoker.model.time import instant
from stoker.outbox import Message
from stoker.registry import mint
from tests import services
from tests.harness.absent import absent
from tests.services import Server, Unavailable

Make: TypeAlias = Callable[..., Message[Any]]


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Server]:
    try:
        with services.rabbitmq_server() as server:
            yield server
    except Unavailable as why:
        absent(f"no RabbitMQ: {why}")


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Server]:
    try:
        with services.nats_server() as server:
            yield server
    except Unavailable as why:
        absent(f"no NATS: {why}")


@pytest.fixture
def make() -> Make:
    """Makes messages of a stream, numbered from 1."""
    made: list[Message[Any]] = []

    def message(key: str = "a", payload: bytes = b"{}", **fields: Any) -> Message[Any]:
        given: dict[str, Any] = {"id": mint(), "type": "OrderPlaced", "partition": 3, **fields}
        created = instant(datetime(2030, 1, 1, tzinfo=UTC), "created")
        found = stored.Message(key=key, payload=payload, number=len(made) + 1, created=created, **given)
        one: Message[Any] = Message(found, "orders")
        made.append(one)
        return one

    return message

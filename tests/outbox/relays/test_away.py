"""A target that is taken away and comes back, behind a relay in a worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aio_pika
import nats
import pytest
import redis

from stoker.app import Stoker
from stoker.outbox import Outbox, Pace, Relay, ToNats, ToRabbit, ToRedisStream
from stoker.outbox.failed_turns import PAUSE
from tests import services
from tests.harness.absent import absent
from tests.harness.apps import working
from tests.services import Server, Unavailable

KEYS = 5
QUICK = Pace(batch=20, idle=0.05, retry_base=0.02, retry_max=0.1)


class Target(NamedTuple):
    """A server with its data on disk, a relay to it, and what it has: the key and number of each message, in order."""

    server: Server
    relay: Relay
    read: Callable[[], Awaitable[list[tuple[str, int]]]]
    kills: int = 2


@asynccontextmanager
async def on_redis(_request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    with services.redis_server(appendfsync="always") as server:

        async def read() -> list[tuple[str, int]]:
            with redis.Redis.from_url(server.url) as client:
                found: Any = client.xrange("orders")
            return [(one[b"stoker-key"].decode(), int(one[b"payload"])) for _, one in found]

        yield Target(server, ToRedisStream(server.url, "orders", timeout=2), read)


@asynccontextmanager
async def on_nats(_request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(services.nats_server())
        except Unavailable as why:
            absent(f"no NATS: {why}")
        async with await nats.connect(running.url) as client:
            await client.jetstream().add_stream(name="orders", subjects=["orders.>"])

        async def read() -> list[tuple[str, int]]:
            async with await nats.connect(running.url) as client:
                stream = client.jetstream()
                state = (await stream.stream_info("orders")).state
                got = [await stream.get_msg("orders", seq) for seq in range(state.first_seq, state.last_seq + 1)]
            return [((one.headers or {})["stoker-key"], int(one.data or b"")) for one in got]

        yield Target(running, ToNats(running.url, "orders.placed", timeout=2), read)


@asynccontextmanager
async def on_rabbit(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    """It takes seconds to come back, so it is killed once, and it is the one of the other tests."""
    server: Server = request.getfixturevalue("rabbitmq")
    async with await aio_pika.connect(server.url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("away", "fanout", durable=True)
        await (await channel.declare_queue("away", durable=True)).bind(exchange)

    async def read() -> list[tuple[str, int]]:
        found = []
        async with await aio_pika.connect(server.url) as connection:
            queue = await (await connection.channel()).get_queue("away")
            while (one := await queue.get(fail=False, no_ack=True)) is not None:
                found.append((str(one.headers["stoker-key"]), int(one.body)))
        return found

    yield Target(server, ToRabbit(server.url, "away", timeout=2), read, kills=1)


@pytest.mark.spec("RELAY-15")
@pytest.mark.parametrize("opened", [on_redis, on_nats, on_rabbit])
async def test_a_broker_that_was_taken_away_gets_everything_in_order(
    request: pytest.FixtureRequest, opened: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is killed while messages come; what was published and not confirmed may come again."""
    caplog.set_level(logging.DEBUG, "stoker.outbox")
    jobs = Stoker(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox: Outbox[int] = Outbox(jobs, stream="orders", partitions=4)
    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            await outbox.append(f"k{sent % KEYS}", sent)
            sent += 1

    async def waiting() -> int:
        return sum(one.waiting for one in (await outbox.state()).consumers)

    async def all_is_delivered() -> None:
        async with asyncio.timeout(60):
            while await waiting():
                await asyncio.sleep(0.02)

    def failures(level: int) -> list[logging.LogRecord]:
        return [one for one in caplog.records if "could not deliver" in one.getMessage() and one.levelno == level]

    async with opened(request) as target, jobs:
        outbox.relay(target.relay, name="broker", pace=QUICK, batch=None)
        async with working(jobs, {}):
            began = time.monotonic()
            await send(40)
            await all_is_delivered()
            for _ in range(target.kills):
                target.server.kill()
                seen = len(failures(logging.DEBUG))
                await send(60)
                async with asyncio.timeout(60):
                    while len(failures(logging.DEBUG)) < seen + 6:
                        await asyncio.sleep(0.02)
                assert await waiting() == 60
                await asyncio.to_thread(target.server.start)
                await all_is_delivered()
            took = time.monotonic() - began
        found = await target.read()
    first: dict[str, list[int]] = defaultdict(list)
    for key, n in found:
        if n not in first[key]:
            first[key].append(n)
    assert first == {f"k{k}": list(range(k, sent, KEYS)) for k in range(KEYS)}
    told = [one.getMessage() for one in failures(logging.WARNING)]
    assert 1 <= len(told) <= 1 + took / PAUSE
    assert "the lease" not in told[0]  # the reason is the target's, and no deadline of ours

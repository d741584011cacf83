"""A relay that is killed after the target accepted messages and before the cursor moved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import nats
import pytest
import redis

from stoker import Stoker
from stoker.engines.base import outbox_of
from stoker.outbox import Outbox
from tests.harness.apps import PATIENCE
from tests.services import Server

ROOT = Path(__file__).resolve().parents[3]


class Relayed:
    """Where a target is, and how to read (key, number, id) of every message it has."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    async def read(self) -> list[tuple[str, int, str]]:
        raise AssertionError("each target has its own")


def place(headers: Any) -> tuple[str, int, str]:
    return str(headers["stoker-key"]), int(str(headers["stoker-number"])), str(headers["stoker-id"])


class Redis(Relayed):
    async def read(self) -> list[tuple[str, int, str]]:
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            return [place(fields) for _, fields in client.xrange(self.name)]


class Nats(Relayed):
    async def read(self) -> list[tuple[str, int, str]]:
        async with await nats.connect(self.url) as client:
            stream = client.jetstream()
            state = (await stream.stream_info("killed")).state
            found = [await stream.get_msg("killed", seq) for seq in range(1, state.last_seq + 1)]
            return [place(one.headers) for one in found]


class Rabbit(Relayed):
    async def read(self) -> list[tuple[str, int, str]]:
        async with await aio_pika.connect(self.url) as connection:
            queue = await (await connection.channel()).get_queue("killed")
            found = []
            while (one := await queue.get(fail=False, no_ack=True)) is not None:
                found.append(place(one.headers))
            return found


@pytest.fixture(params=["redis", "nats", "rabbitmq"])
async def relayed(request: pytest.FixtureRequest) -> AsyncIterator[Relayed]:
    if request.param == "redis":
        yield Redis(request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix"))
        return
    server: Server = request.getfixturevalue("nats_server" if request.param == "nats" else "rabbitmq")
    if request.param == "nats":
        async with await nats.connect(server.url) as client:
            await client.jetstream().add_stream(name="killed", subjects=["killed"])
        yield Nats(server.url, "killed")
        return
    async with await aio_pika.connect(server.url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("killed", "fanout", durable=True)
        await (await channel.declare_queue("killed", durable=True)).bind(exchange)
    yield Rabbit(server.url, "killed")


@contextlib.contextmanager
def worker(relayed: Relayed, store: str, mark: Path) -> Iterator[None]:
    """A worker under its supervisor."""
    names = {"STORE": store, "MARK": str(mark), "TARGET": relayed.url, "NAME": relayed.name}
    given = {f"KILLED_{name}": value for name, value in names.items()}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "work", "tests.outbox.relays.killed:jobs"],
        env={**os.environ, **given, "PYTHONPATH": path},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.engine("sqlite")
@pytest.mark.spec("RELAY-14")
async def test_a_relay_killed_before_the_advance_repeats_the_same_ids(tmp_path: Path, relayed: Relayed) -> None:
    store, mark = f"sqlite:///{tmp_path}/shop.db", tmp_path / "died"
    async with Stoker(store) as jobs:
        outbox = Outbox[int](jobs, stream="orders", partitions=4)
        ids = await outbox.append_many([outbox.entry(f"k{n % 8}", n) for n in range(80)])
        with worker(relayed, store, mark):  # its supervisor starts another process when one is killed
            async with asyncio.timeout(3 * PATIENCE):
                while await undelivered(jobs):
                    await asyncio.sleep(0.05)
        assert mark.exists()
    found = await relayed.read()
    counts = Counter(one for *_, one in found)
    assert set(counts) == set(ids)
    if not isinstance(relayed, Nats):  # JetStream drops what comes again with the same id
        assert 1 <= sum(counts.values()) - len(ids) <= 40
    firsts: defaultdict[str, list[int]] = defaultdict(list)
    for key, number, _ in dict.fromkeys(found):
        firsts[key].append(number)
    assert len(firsts) == 8
    assert all(numbers == sorted(numbers) for numbers in firsts.values())


async def undelivered(jobs: Stoker) -> int:
    """Messages that the consumer has not passed."""
    [state] = await outbox_of(await jobs.engine()).streams(["orders"])
    return sum(state.last) - sum(one.cursor.position for one in state.cursors)

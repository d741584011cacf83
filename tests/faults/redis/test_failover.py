"""A failover to a replica that lags behind and whose clock is wrong."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from stoker.model.job import Demand, Settlement, Status
from stoker.model.time import SECOND
from tests import services
from tests.faults.redis.trials import Make, whole
from tests.faults.trial import BOUND, opened
from tests.harness.proxy import Proxy
from tests.services import RedisServer

pytestmark = [pytest.mark.engine("redis"), pytest.mark.timeout(900)]


HOUR = 3_600


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[services.WrongClock]:
    try:
        wrong = services.WrongClock(-HOUR)
        services.redis_binary(tmp_path, wrong.environ)
    except services.Unavailable as error:
        pytest.skip(f"no server with a wrong clock on this machine: {error}")
    with wrong:
        yield wrong


@pytest.fixture
def server(clock: services.WrongClock) -> Iterator[RedisServer]:
    """Its clock is right. A replica follows only a server of its own version, so both are the same program."""
    with services.WrongClock(0) as right, services.redis_server(**{**clock.environ, **right.environ}) as found:
        yield found


@pytest.fixture
def replica(server: RedisServer, clock: services.WrongClock) -> Iterator[RedisServer]:
    """It follows the server and has everything, but its clock is an hour behind."""
    with services.redis_server(replicaof=f"127.0.0.1 {server.port}", **clock.environ) as found:
        with redis.Redis.from_url(found.url) as client:
            give_up = time.monotonic() + 60
            while client.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < give_up, "the replica does not follow"
                time.sleep(0.01)
        yield found


@pytest.mark.spec("RDFAULT-20", "RDFAULT-21")
async def test_what_a_lagging_replica_lacks_is_lost_and_said_and_nothing_else(
    server: RedisServer,
    client: redis.Redis,
    replica: RedisServer,
    clock: services.WrongClock,
    proxy: Proxy,
    make: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    running = whole(make, proxy.url, flow=False)
    async with running:
        await running.consuming()
        async with opened(make()) as engine:
            # A worker that will never be heard of again: its lease must not last for the hour that was set back.
            ghost = running.recorder(engine)
            await ghost.renew("ghost", [], lease=SECOND, first=True)
            await ghost.insert([running.app.draft("work", {"n": -1}, queue="attic")])
            [claim] = await ghost.claim(Demand("ghost", (("attic", 1),)))
        long = [running.draft(2.5) for _ in range(5)]
        await running.put(*long)
        await running.until(lambda: len(running.runs) >= 6, "they run")
        client.wait(1, 60_000)
        with redis.Redis.from_url(replica.url) as lagging:
            lagging.replicaof("NO", "ONE")
        lost = [running.draft() for _ in range(5)]
        await running.put(*lost)
        await running.until(lambda: all(running.ends[one.job_id] for one in lost), "done before the failover")
        running.excuse(claim.id, *(one.job_id for one in lost))
        await asyncio.to_thread(server.kill)
        running.direct, gone = make(replica.url, timeout=10.0, patience=10.0), running.direct
        await gone.close()
        await running.direct.open()
        proxy.redirect(replica.url)
        await running.consuming()
        found = await running.direct.operator.get([one.job_id for one in lost])
        assert found == [None] * 5
        await running.until(lambda: all(running.ends[one.job_id] for one in long), "what ran goes on", within=BOUND)
        assert {running.ends[one.job_id] for one in long} == {1}
        clock.set(-HOUR + 20)  # longer than a lease, far less than an hour
        heir = running.recorder(running.direct)
        async with asyncio.timeout(BOUND):
            await heir.renew("heir", [], first=True)
            while not (freed := await heir.claim(Demand("heir", (("attic", 1),)))):
                await asyncio.sleep(0.02)
        [again] = freed
        assert (again.id, again.token > claim.token) == (claim.id, True)
        await heir.settle([Settlement(again.id, "heir", again.token, Status.DONE, ref=again.ref)])
        assert "lost" in caplog.text

"""Two hundred workers at once on one Postgres."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.model.job import Demand, Draft, Settlement, Status
from stoker.model.time import MINUTE
from stoker.registry import mint
from stoker.testing.faults import Recorded, survey
from stoker.testing.history import check, read, report
from tests.faults.postgres.trials import Make
from tests.faults.trial import opened
from tests.services import PostgresServer

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]

FLEET = 200
BATCH = 5


async def member(engine: PostgresEngine, name: str, lines: list[bytes], go: asyncio.Event) -> int:
    """Claim and settle until nothing is left."""
    recorded = Recorded(engine, name, lines.append)
    await engine.open()
    try:
        await recorded.renew(name, [], first=True, lease=10 * MINUTE)  # a busy machine takes longer than a lease
        await go.wait()
        done = 0
        demand = Demand(name, (("default", BATCH),))
        claims = await recorded.claim(demand)
        while claims:
            settlements = [Settlement(one.id, name, one.token, Status.DONE, ref=one.ref) for one in claims]
            settled = await recorded.settle(settlements, demand=demand)
            done += len(claims)
            claims = settled.claims
        return done
    finally:
        await engine.close()


@pytest.mark.spec("PGFAULT-50")
async def test_two_hundred_workers_share_what_there_is(server: PostgresServer, make: Make, campaign: bool) -> None:
    await asyncio.to_thread(server.restart, "fast", max_connections=str(2 * FLEET + 20))
    lines, go = list[bytes](), asyncio.Event()
    jobs = 20_000 if campaign else 2_000
    async with opened(make(timeout=60.0)) as engine:
        recorded = Recorded(engine, "producer", lines.append)
        for _ in range(jobs // 1_000):
            await recorded.insert(
                [Draft(job_id=mint(), kind="work", queue="default", payload=b"{}") for _ in range(1_000)]
            )
        members = [asyncio.create_task(member(make(timeout=60.0), f"w{number}", lines, go)) for number in range(FLEET)]
        go.set()
        shares = await asyncio.gather(*members)
        assert sum(shares) == jobs
        violations = check([*read(b"".join(lines)), *await survey(engine)])
        assert not violations, report(violations)
        assert (await engine.operator.census()).by_status()[Status.DONE] == jobs
    await asyncio.to_thread(server.restart, "fast", max_connections="100")

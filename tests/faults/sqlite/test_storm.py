"""Processes killed with SIGKILL at random instants, over and over."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.model.job import Claim, Demand, Settlement, Status
from stoker.testing.faults import Recorded, survey
from stoker.testing.history import Entry, check, read, report
from tests.faults.fork_server import ForkServer
from tests.faults.sqlite.audit import audit
from tests.faults.sqlite.storm import QUEUES, storm

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(600)]


async def drained(path: Path, write: Any, **options: Any) -> list[Entry]:
    """Reap and run every job that is left; returns what is stored then."""
    engine = SqliteEngine(path, **options)
    await engine.open()
    try:
        recorded = Recorded(engine, "last", write)
        await recorded.renew("last", [], first=True)
        demand = Demand("last", tuple((queue, 500) for queue in QUEUES))
        async with asyncio.timeout(60):
            while await left(engine):
                claims: list[Claim] = [*await recorded.reap("last", 500), *await recorded.claim(demand)]
                await recorded.settle(
                    [Settlement(one.id, one.worker, one.token, Status.DONE, ref=one.ref) for one in claims]
                )
                await asyncio.sleep(0.005)
        return await survey(engine)
    finally:
        await engine.close()


async def left(engine: SqliteEngine) -> int:
    found = (await engine.operator.census()).by_status()
    return found[Status.PENDING] + found[Status.RUNNING] + found[Status.RETRYING]


@pytest.mark.spec("FAULT-01", "FAULT-02", "FAULT-03")
@pytest.mark.parametrize(
    ("durability", "journal", "share"), [("process", "wal", 0.6), ("power", "wal", 0.3), ("power", "delete", 0.1)]
)
async def test_killed_at_any_instant_nothing_acknowledged_is_lost(
    fork_server: ForkServer, tmp_path: Path, campaign: bool, durability: str, journal: str, share: float
) -> None:
    seed = secrets.randbits(32)
    kills = round((2_000 if campaign else 200) * share)
    print(f"seed {seed}")
    options: dict[str, Any] = {"durability": durability, "journal": journal}
    tally = fork_server.call(storm, within=400, folder=str(tmp_path), kills=kills, seed=seed, **options).answer
    path = tmp_path / "jobs.db"
    lines: list[bytes] = []
    stored = await drained(path, lines.append, **options)
    entries = [entry for log in sorted(tmp_path.glob("*.jsonl")) for entry in read(log.read_bytes())]
    entries += read(b"".join(lines))
    acknowledged = sum(entry.op == "insert" and entry.phase == "done" for entry in entries)
    settled = sum(entry.op == "settle" and entry.phase == "done" for entry in entries)
    lost = sum(entry.op == "settle" and entry.phase == "refused" for entry in entries)
    print(f"{tally}: {acknowledged} inserts and {settled} settlements acknowledged, {lost} settlements came too late")
    assert tally["killed"] == kills
    assert acknowledged > kills / 4
    violations = check([*entries, *stored])
    assert not violations, f"seed {seed}: {report(violations)}"
    assert audit(path) == []

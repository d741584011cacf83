"""Clocks that jump and stores restored from a backup: tokens still rise."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.model.job import Claim, Demand, Draft, Settlement, Status, Verdict
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.testing.clock import VirtualClock
from stoker.testing.faults import Recorded, survey
from stoker.testing.history import check, read, report
from tests.faults.sqlite.audit import audit

pytestmark = [pytest.mark.engine("sqlite")]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[SqliteEngine]:
    made = SqliteEngine(tmp_path / "jobs.db", clock=clock, durability="process")
    await made.open()
    yield made
    await made.close()


def demand(worker: str) -> Demand:
    return Demand(worker, (("default", 100),))


async def insert(engine: SqliteEngine | Recorded, n: int = 3, **options: Any) -> None:
    jobs = engine if isinstance(engine, Recorded) else engine.jobs
    await jobs.insert([Draft(os.urandom(16), "send", **options) for _ in range(n)])


def ending(claim: Claim, status: Status = Status.DONE, **options: Any) -> Settlement:
    return Settlement(claim.id, claim.worker, claim.token, status, ref=claim.ref, **options)


@pytest.mark.spec("FAULT-60")
async def test_a_renewal_after_a_small_step_back_counts_from_the_clock_of_the_store(
    engine: SqliteEngine, clock: VirtualClock
) -> None:
    """The host's clock is half a minute behind that of the store: the lease is not half a minute shorter for it."""
    await engine.jobs.renew("w1", [], lease=MINUTE, first=True)
    await insert(engine, 1)
    [claim] = await engine.jobs.claim(demand("w1"))
    before = clock()
    clock.set(before - 30 * SECOND)
    assert (await engine.jobs.renew("w1", [(claim.id, claim.token)], lease=MINUTE)).known
    clock.set(before + 45 * SECOND)
    await engine.jobs.renew("w2", [], lease=MINUTE, first=True)
    assert await engine.jobs.reap("w2", 10) == []
    clock.set(before + 61 * SECOND)
    assert [one.id for one in await engine.jobs.reap("w2", 10)] == [claim.id]


@pytest.mark.spec("FAULT-60")
@pytest.mark.parametrize("jump", [-DAY, -HOUR, -SECOND, SECOND, HOUR, DAY])
async def test_a_jumping_clock_costs_no_safety(engine: SqliteEngine, clock: VirtualClock, jump: int) -> None:
    lines: list[bytes] = []
    recorded = Recorded(engine, "p", lines.append)
    tokens: dict[bytes, int] = {}
    await insert(recorded, 4, attempts=100)
    for number in range(8):
        worker = f"w{number}"
        await engine.jobs.renew(worker, [], lease=MINUTE, first=True)
        taken = [*await recorded.reap(worker, 10), *await recorded.claim(demand(worker))]
        assert len(taken) == 4
        for claim in taken:
            assert claim.token > tokens.get(claim.id, 0)
            tokens[claim.id] = claim.token
        stale = [ending(claim) for claim in taken]
        clock.set(clock() + jump + SECOND)
        if number % 2:
            # A worker that comes back from a jump still holds its claims, except those that were reaped.
            verdicts = (await recorded.settle([ending(one, Status.RETRYING, error="x") for one in taken])).verdicts
            assert verdicts == [Verdict.APPLIED] * 4
        else:
            clock.set(clock() + 2 * MINUTE)
            await engine.jobs.renew(f"v{number}", [], lease=MINUTE, first=True)
            again = await recorded.reap(f"v{number}", 10, dead=[worker])
            for claim in again:
                assert claim.token > tokens[claim.id]
                tokens[claim.id] = claim.token
            assert set((await recorded.settle(stale)).verdicts) == {Verdict.LOST}
            await recorded.settle([ending(claim, Status.RETRYING, error="x") for claim in again])
    violations = check([*read(b"".join(lines)), *await survey(engine)])
    assert not violations, report(violations)
    assert audit(engine.path) == []


@pytest.mark.spec("FAULT-61")
async def test_a_step_back_of_less_than_a_minute_does_not_show(engine: SqliteEngine, clock: VirtualClock) -> None:
    await insert(engine)
    high = await engine.now()
    clock.rewind(30)
    assert high - SECOND < await engine.now() <= high
    await engine.jobs.renew("w", [], lease=MINUTE, first=True)
    assert len(await engine.jobs.claim(demand("w"))) == 3, "what was due stays due"


@pytest.mark.spec("FAULT-61")
async def test_a_longer_step_back_is_followed_and_said(
    engine: SqliteEngine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(DAY / SECOND)
    await insert(engine)
    clock.rewind(DAY / SECOND)
    with caplog.at_level(logging.WARNING, "stoker.engines.sqlite"):
        await insert(engine)
    assert await engine.now() == clock()
    assert any("ahead of this machine's" in record.message for record in caplog.records)
    await engine.jobs.renew("w", [], lease=MINUTE, first=True)
    assert len(await engine.jobs.claim(demand("w"))) == 3, "those of the wrong day wait for it"


@pytest.mark.spec("FAULT-62")
async def test_a_backup_that_is_restored_hands_out_no_token_twice(tmp_path: Path, clock: VirtualClock) -> None:
    path, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
    engine = SqliteEngine(path, clock=clock)
    await engine.open()
    await insert(engine, 5)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as copy:
        source.backup(copy)
    await engine.jobs.renew("w", [], lease=HOUR, first=True)
    first = await engine.jobs.claim(demand("w"))
    await engine.jobs.settle([ending(claim) for claim in first[:2]])
    await engine.close()
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    shutil.copy(backup, path)
    clock.advance(600)
    again = SqliteEngine(path, clock=clock)
    await again.open()
    await again.jobs.renew("x", [], lease=HOUR, first=True)
    second = await again.jobs.claim(demand("x"))
    assert {claim.id for claim in second} == {claim.id for claim in first}
    handed_out = {(claim.id, claim.token) for claim in first}
    assert not handed_out & {(claim.id, claim.token) for claim in second}
    assert min(claim.token for claim in second) > max(claim.token for claim in first)
    # A worker that still holds a claim from before the restore is unknown now.
    assert (await again.jobs.settle([ending(claim) for claim in first])).verdicts == [Verdict.LOST] * 5
    assert not (await again.jobs.renew("w", [(claim.id, claim.token) for claim in first])).known
    assert (await again.jobs.settle([ending(claim) for claim in second])).verdicts == [Verdict.APPLIED] * 5
    await again.close()
    assert audit(path) == []


@pytest.mark.spec("FAULT-62")
async def test_an_open_engine_notices_that_a_backup_took_its_files_place(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    engine = SqliteEngine(path)
    await engine.open()
    await insert(engine)
    shutil.copy(path, tmp_path / "backup.db")
    (tmp_path / "backup.db").replace(path)
    with pytest.raises(Exception, match="deleted or replaced"):
        await insert(engine)
    await engine.close()

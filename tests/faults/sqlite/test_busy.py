"""A busy database: another program's transaction, a reader that never ends, a process that forked."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from stoker.engines.sqlite import SqliteEngine, describe
from stoker.model.errors import EngineBusy, EngineUnavailable
from stoker.model.job import Claim, Demand, Draft, Settlement, Status, Verdict
from tests.faults.sqlite.audit import audit, dump, stored_ids

pytestmark = pytest.mark.engine("sqlite")

DEMAND = Demand("w", (("default", 100),))
PATIENT = 60.0
"""Seconds within which everything here must be over on the slowest machine."""


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    made = SqliteEngine(tmp_path / "jobs.db", busy_timeout=0.1)
    await made.open()
    yield made
    await made.close()


@contextmanager
def holding(path: str) -> Iterator[sqlite3.Connection]:
    """A write transaction that is left open."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def drafts(n: int = 3) -> list[Draft]:
    return [Draft(os.urandom(16), "send") for _ in range(n)]


async def claimed(engine: SqliteEngine, n: int = 3) -> list[Claim]:
    await engine.jobs.renew("w", [], first=True)
    await engine.jobs.insert(drafts(n))
    return await engine.jobs.claim(DEMAND)


def ending(claim: Claim) -> Settlement:
    return Settlement(claim.id, claim.worker, claim.token, Status.DONE, ref=claim.ref)


@pytest.mark.spec("FAULT-50")
async def test_a_settlement_waits_for_a_foreign_transaction_that_ends_in_time(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db", busy_timeout=PATIENT)
    await engine.open()
    claims = await claimed(engine)
    with holding(engine.path) as other:
        threading.Timer(0.2, other.execute, ["COMMIT"]).start()
        settled = await asyncio.wait_for(
            engine.jobs.settle([ending(claim) for claim in claims], demand=DEMAND), PATIENT
        )
        assert settled.verdicts == [Verdict.APPLIED] * 3
    await engine.close()
    assert audit(tmp_path / "jobs.db") == []


@pytest.mark.spec("FAULT-50")
async def test_a_foreign_transaction_that_does_not_end_makes_everything_busy_and_changes_nothing(
    engine: SqliteEngine,
) -> None:
    claims = await claimed(engine)
    before = dump(engine.path)
    with holding(engine.path):
        questions = (
            lambda: engine.jobs.settle([ending(claim) for claim in claims], demand=DEMAND),
            lambda: engine.jobs.insert(drafts()),
            lambda: engine.jobs.claim(DEMAND),
            lambda: engine.jobs.renew("w", []),
            lambda: engine.jobs.reap("w", 5, dead=["v"]),
        )
        for question in questions:
            with pytest.raises(EngineBusy):
                await asyncio.wait_for(question(), PATIENT)
        # Readers go on.
        assert (await engine.operator.census()).by_status()[Status.RUNNING] == 3
    assert dump(engine.path) == before
    assert (await engine.jobs.settle([ending(claim) for claim in claims])).verdicts == [Verdict.APPLIED] * 3


@pytest.mark.spec("FAULT-50")
async def test_all_waiting_writers_are_served_when_it_ends(tmp_path: Path) -> None:
    engines = [SqliteEngine(tmp_path / "jobs.db", busy_timeout=PATIENT) for _ in range(4)]
    for engine in engines:
        await engine.open()
    with holding(engines[0].path) as other:
        waiting = [asyncio.create_task(engine.jobs.insert(drafts())) for engine in engines for _ in range(3)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        other.execute("ROLLBACK")
        receipts = await asyncio.wait_for(asyncio.gather(*waiting), PATIENT)
    ids = {receipt.id for batch in receipts for receipt in batch}
    assert len(ids) == 36
    assert ids <= stored_ids(engines[0].path)
    for engine in engines:
        await engine.close()


@pytest.mark.spec("FAULT-51")
async def test_a_keeper_is_stuck_behind_a_users_transaction_no_longer_than_it_is_held(tmp_path: Path) -> None:
    """Other writers queue for the write lock; none of them may keep it while it waits for the user."""
    path = tmp_path / "jobs.db"
    worker, keeper = (SqliteEngine(path, busy_timeout=PATIENT) for _ in range(2))
    await worker.open()
    await keeper.open()
    claims = await claimed(worker)
    with holding(str(path)) as other:
        others = [asyncio.create_task(worker.jobs.insert(drafts())) for _ in range(3)]
        renewing = asyncio.create_task(keeper.jobs.renew("w", [(claim.id, claim.token) for claim in claims]))
        await asyncio.sleep(0.3)
        other.execute("COMMIT")
        began = time.monotonic()
        renewal = await asyncio.wait_for(renewing, PATIENT)
        waited = time.monotonic() - began
    await asyncio.wait_for(asyncio.gather(*others), PATIENT)
    assert renewal.known
    assert not renewal.lost
    assert waited < PATIENT, "it naps for 50 ms at most"
    await keeper.close()
    await worker.close()


@pytest.mark.spec("FAULT-52")
async def test_a_reader_that_never_ends_shows_as_a_growing_log(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(describe, "LARGEST_LOG", 6 << 20)
    with closing(sqlite3.connect(engine.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM stoker_body").fetchone()
        for _ in range(40):
            await engine.jobs.insert([Draft(os.urandom(16), "send", b'"%s"' % (b"x" * 20_000)) for _ in range(10)])
        described = await engine.describe()
        assert any("write-ahead log" in warning and "old transaction" in warning for warning in described.warnings)
        reader.execute("ROLLBACK")
    found = await engine.describe()
    assert int(found.facts["wal_bytes"]) > 6 << 20
    for _ in range(3):
        await engine.jobs.insert(drafts())
    assert audit(engine.path) == []


@pytest.mark.spec("FAULT-22")
@pytest.mark.parametrize("durability", ["power", "process"])
async def test_a_rollback_that_fails_too_leaves_no_caller_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Literal["power", "process"]
) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db", durability=durability)
    await engine.open()
    connection = engine._store.resources().connection
    roll_back = connection.rollback

    def broken_commit(*, checkpoint: bool) -> None:
        raise EngineUnavailable("no disk")

    def broken_rollback() -> None:
        roll_back()
        raise EngineUnavailable("still no disk")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "commit", broken_commit)
        patch.setattr(connection, "rollback", broken_rollback)
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match=r"^no disk"):
                await asyncio.wait_for(engine.jobs.insert(drafts()), PATIENT)
    assert len(await asyncio.wait_for(engine.jobs.insert(drafts()), PATIENT)) == 3
    await engine.close()
    assert len(stored_ids(engine.path)) == 3

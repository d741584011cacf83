"""The engine's core beyond the common contract: grouping, modes, fences, faults."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.engines.sqlite import SqliteEngine, connection, write_queue
from stoker.engines.sqlite.liveness import LivenessFiles
from stoker.model.control import Tuning
from stoker.model.errors import (
    Duplicate,
    EngineBusy,
    EngineClosed,
    EngineFull,
    EngineRefused,
    EngineUnavailable,
    InvalidTransition,
)
from stoker.model.ids import JobId, Mint
from stoker.model.job import Claim, Demand, Draft, Options, Receipt, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Suspended
from stoker.model.query import Cancel, Query, Retention, Selection
from stoker.model.steps import Signal, Signaled, Step, StepState
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE
from stoker.model.unique import Unique
from stoker.testing.clock import VirtualClock

pytestmark = pytest.mark.engine("sqlite")

mint = Mint(lambda: time.time_ns() // 1_000, os.urandom)


def draft(**options: Any) -> Draft:
    return Draft(mint(), "work", **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    made = SqliteEngine(path, busy_timeout=60.0)
    await made.open()
    yield made
    await made.close()


def modes(engine: SqliteEngine) -> dict[str, int]:
    return dict(engine._store.resources().write_queue.modes)


async def claimed(engine: SqliteEngine, n: int = 1, **options: Any) -> list[Claim]:
    await engine.jobs.insert([draft(**options) for _ in range(n)])
    await engine.jobs.renew("w", [], first=True)
    return await engine.jobs.claim(Demand("w", (("default", n),)))


async def one(engine: SqliteEngine, job: JobId) -> Any:
    return (await engine.operator.get([job]))[0]


# --- grouping ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-04")
async def test_what_is_asked_in_one_tick_shares_a_transaction(engine: SqliteEngine) -> None:
    drafts = [draft() for _ in range(50)]
    before = sum(modes(engine).values())
    receipts = await asyncio.gather(*(engine.jobs.insert([one]) for one in drafts))
    assert [receipt.id for [receipt] in receipts] == [one.job_id for one in drafts]
    assert sum(modes(engine).values()) == before + 1


@pytest.mark.spec("SQLITE-04")
async def test_a_claim_of_the_same_tick_sees_what_was_inserted_and_settled(engine: SqliteEngine) -> None:
    [held] = await claimed(engine)
    fresh = draft()
    claims, settled, _ = await asyncio.gather(
        engine.jobs.claim(Demand("w", (("default", 5),))),
        engine.jobs.settle([conclude(held, Failed("again", after=0))]),
        engine.jobs.insert([fresh]),
    )
    assert settled.verdicts == [Verdict.APPLIED]
    assert [claim.id for claim in claims] == [held.id, fresh.job_id]


@pytest.mark.spec("SQLITE-05")
async def test_a_request_that_fails_does_not_fail_its_neighbours(engine: SqliteEngine) -> None:
    holder = draft(unique=Unique("k"))
    await engine.jobs.insert([holder])
    first, second = draft(), draft()
    bad = engine.jobs.insert([draft(), draft(unique=Unique("k", mode="raise"))])
    results = await asyncio.gather(
        engine.jobs.insert([first]), bad, engine.jobs.insert([second]), return_exceptions=True
    )
    assert results[0] == [Receipt(first.job_id, Stored.INSERTED)]
    assert isinstance(results[1], Duplicate)
    assert results[2] == [Receipt(second.job_id, Stored.INSERTED)]
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 3


@pytest.mark.spec("SQLITE-05")
async def test_an_insert_canceled_before_the_tick_stores_nothing(engine: SqliteEngine) -> None:
    task = asyncio.create_task(engine.jobs.insert([draft()]))
    await asyncio.sleep(0)
    kept = engine.jobs.insert([draft()])
    task.cancel()
    await kept
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 1


@pytest.mark.spec("SQLITE-04")
async def test_a_long_queue_of_requests_is_cut_into_groups(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "LARGEST_GROUP", 10)
    before = sum(modes(engine).values())
    await asyncio.gather(*(engine.jobs.insert([draft() for _ in range(4)]) for _ in range(5)))
    assert sum(modes(engine).values()) == before + 3
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 20


@pytest.mark.spec("SQLITE-06")
async def test_closing_finishes_what_was_asked_for(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    asked = [asyncio.ensure_future(engine.jobs.insert([draft()])) for _ in range(3)]
    await asyncio.sleep(0)
    await engine.close()
    assert [len(await one) for one in asked] == [1, 1, 1]
    with pytest.raises(EngineClosed):
        await engine.jobs.insert([draft()])


# --- where the work is done -------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-07")
async def test_only_a_commit_that_waits_for_the_disk_leaves_the_loop(engine: SqliteEngine) -> None:
    await engine.jobs.renew("w", [], first=True)
    before = modes(engine)
    await engine.jobs.insert([draft()])
    [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    await engine.jobs.renew("w", [(claim.id, claim.token)])
    await engine.jobs.settle([conclude(claim, Done())])
    after = modes(engine)
    assert {mode: after[mode] - before[mode] for mode in after} == {"inline": 2, "split": 2, "thread": 0}


@pytest.mark.spec("SQLITE-88")
async def test_the_loop_commits_lone_inserts_and_leaves_checkpoints_to_the_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAL_PAGES", 1)  # every commit that may make a checkpoint makes one
    engine = SqliteEngine(path)
    await engine.open()
    checkpoints = []
    for _ in range(2 * write_queue.CHECKPOINT_EVERY):
        before = path.stat().st_mtime_ns
        await engine.jobs.insert([draft()])
        checkpoints.append(path.stat().st_mtime_ns > before)
    await engine.close()
    assert checkpoints == ([False] * (write_queue.CHECKPOINT_EVERY - 1) + [True]) * 2


@pytest.mark.spec("SQLITE-07")
async def test_relaxed_durability_never_leaves_the_loop(path: Path) -> None:
    engine = SqliteEngine(path, durability="process")
    await engine.open()
    [claim] = await claimed(engine)
    await engine.jobs.settle([conclude(claim, Done())])
    assert modes(engine)["split"] == modes(engine)["thread"] == 0
    assert "not power loss" in (await engine.describe()).durability
    await engine.close()


@pytest.mark.spec("SQLITE-80")
async def test_a_job_inserted_alone_is_stored_like_one_of_a_batch(engine: SqliteEngine) -> None:
    later = draft(priority=-3, at=4_000_000_000_000_000, tenant="t", options=Options(timeout=MINUTE), payload=b"[1]")
    assert await engine.jobs.insert([later]) == [Receipt(later.job_id, Stored.INSERTED)]
    together = msgspec.structs.replace(later, job_id=mint())
    await engine.jobs.insert([together, draft()])
    alone, company = await engine.operator.get([later.job_id, together.job_id])
    assert alone is not None
    assert company is not None
    assert msgspec.structs.replace(alone, id=company.id, created_at=company.created_at) == company
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 3


@pytest.mark.spec("SQLITE-80")
async def test_a_job_that_is_stored_already_is_answered_with_its_id(engine: SqliteEngine) -> None:
    await engine.jobs.insert([draft()])
    twice = draft()
    assert await engine.jobs.insert([twice]) == [Receipt(twice.job_id, Stored.INSERTED)]
    assert await engine.jobs.insert([twice]) == [Receipt(twice.job_id, Stored.EXISTING)]
    keyed = draft(unique=Unique("k"))
    assert await engine.jobs.insert([keyed]) == [Receipt(keyed.job_id, Stored.INSERTED)]
    assert await engine.jobs.insert([draft(unique=Unique("k"))]) == [Receipt(keyed.job_id, Stored.EXISTING)]


@pytest.mark.spec("SQLITE-81")
@pytest.mark.parametrize("n", [1, 3])
async def test_a_job_may_start_before_its_enqueue_is_answered(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    await engine.jobs.insert([draft(queue="before")])
    worker = engine.for_loop()
    await worker.open()
    await worker.jobs.renew("w", [], first=True)
    disk = threading.Event()
    monkeypatch.setattr(connection, "_sync", lambda file: disk.wait(60))
    async with asyncio.TaskGroup() as group:
        inserting = group.create_task(engine.jobs.insert([draft(queue="new") for _ in range(n)]))
        assert await worker.jobs.wait(["new"], 30.0) == {"new"}
        assert len(await worker.jobs.claim(Demand("w", (("new", 5),)))) == n
        assert not inserting.done()
        disk.set()
    assert len(inserting.result()) == n
    await worker.close()


@pytest.mark.spec("SQLITE-81")
async def test_a_job_may_go_on_before_its_signal_is_answered(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    [claim] = await claimed(engine)
    await engine.jobs.settle([conclude(claim, Suspended((Step("go", StepState.WAITING),)))])
    worker = engine.for_loop()
    await worker.open()
    disk = threading.Event()
    monkeypatch.setattr(connection, "_sync", lambda file: disk.wait(60))
    async with asyncio.TaskGroup() as group:
        signaling = group.create_task(engine.steps.signal([Signal(claim.id, "go", b"1")]))
        assert await worker.jobs.wait(["default"], 30.0) == {"default"}
        assert [one.id for one in await worker.jobs.claim(Demand("w", (("default", 5),)))] == [claim.id]
        assert not signaling.done()
        disk.set()
    assert signaling.result() == [Signaled.TAKEN]
    await worker.close()


@pytest.mark.spec("SQLITE-81", "FAULT-24")
@pytest.mark.parametrize("n", [1, 3])
async def test_a_disk_that_does_not_confirm_is_an_error_and_the_call_can_be_repeated(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    drafts = [draft() for _ in range(n)]
    await engine.jobs.renew("w", [], first=True)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_sync", refuse)
        inserting = asyncio.ensure_future(engine.jobs.insert(drafts))
        claiming = asyncio.ensure_future(engine.jobs.claim(Demand("w", (("default", 1),))))
        with pytest.raises(EngineUnavailable, match=r"Input/output error.*same job ids"):
            await inserting
        assert len(await claiming) == 1, "a claim is not strict, so a failed fsync does not fail it"
    before = logs(engine)
    receipts = await engine.jobs.insert(drafts)
    assert [receipt.stored for receipt in receipts] == [Stored.EXISTING] * n
    await engine.jobs.insert([draft()])
    assert logs(engine) == before + 1, "the log was restarted"


@pytest.mark.spec("FAULT-26")
async def test_nothing_is_written_behind_what_a_failed_sync_forgot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    engine = SqliteEngine(path, busy_timeout=0.05)
    await engine.open()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_sync", refuse)
        with pytest.raises(EngineUnavailable):
            await engine.jobs.insert([draft()])
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM stoker_body").fetchall() == [(1,)]
        for drafts in ([draft()], [draft(), draft()]):
            with pytest.raises(EngineBusy, match="restarted"):
                await engine.jobs.insert(drafts)
    await engine.jobs.insert([draft()])
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 2
    await engine.close()


def logs(engine: SqliteEngine) -> int:
    """Return how often the log was restarted: a number in its header."""
    return int.from_bytes(Path(f"{engine.path}-wal").read_bytes()[12:16])


@pytest.mark.spec("SQLITE-08")
async def test_the_loop_goes_on_while_another_connection_writes(engine: SqliteEngine, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(engine.jobs.insert([draft()]))
        for _ in range(50):  # turns of the loop
            await asyncio.sleep(0.001)
        assert not waiting.done()
        other.execute("COMMIT")
        assert len(await waiting) == 1
    assert modes(engine)["thread"] == 1


@pytest.mark.spec("SQLITE-08")
async def test_patience_ends_in_a_typed_error_and_nothing_is_stored(path: Path) -> None:
    engine = SqliteEngine(path, busy_timeout=0.1)
    await engine.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EngineBusy):
            await engine.jobs.insert([draft()])
    assert (await engine.operator.census()).counts == ()
    assert len(await engine.jobs.insert([draft()])) == 1
    await engine.close()


@pytest.mark.spec("SQLITE-09")
async def test_readers_never_wait_for_a_writer(engine: SqliteEngine, path: Path) -> None:
    job = draft()
    await engine.jobs.insert([job])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM stoker_ready")
        assert (await one(engine, job.job_id)).status is Status.PENDING
        assert (await engine.operator.find(Query())).jobs[0].id == job.job_id
        other.execute("ROLLBACK")


# --- fences -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-10")
async def test_a_settlement_needs_no_reference(engine: SqliteEngine) -> None:
    plain, keyed = await claimed(engine, 1), await claimed(engine, 1, unique=Unique("k"))
    bare = [msgspec.structs.replace(conclude(claim, Done(b"1")), ref=None) for claim in plain + keyed]
    assert (await engine.jobs.settle(bare)).verdicts == [Verdict.APPLIED] * 2
    assert (await engine.jobs.settle(bare)).verdicts == [Verdict.REPEATED] * 2


@pytest.mark.spec("SQLITE-10")
async def test_one_lost_claim_in_a_large_batch_is_found(engine: SqliteEngine) -> None:
    claims = await claimed(engine, 200)
    await engine.operator.alter(Selection((claims[77].id,)), Cancel(force=True))
    verdicts = (await engine.jobs.settle([conclude(claim, Done()) for claim in claims])).verdicts
    assert [place for place, verdict in enumerate(verdicts) if verdict is Verdict.LOST] == [77]
    assert (await engine.operator.census()).by_status()[Status.DONE] == 199


@pytest.mark.spec("SQLITE-10")
async def test_the_reference_of_another_job_is_not_followed(engine: SqliteEngine) -> None:
    """The id, the worker and the token decide which claim is settled; a reference only makes that faster."""
    first, second = await claimed(engine, 2)
    mixed = msgspec.structs.replace(conclude(first, Done()), ref=second.ref)
    assert (await engine.jobs.settle([mixed])).verdicts == [Verdict.APPLIED]
    assert (await one(engine, first.id)).status is Status.DONE
    assert (await one(engine, second.id)).status is Status.RUNNING
    stranger = msgspec.structs.replace(mixed, id=mint())
    assert (await engine.jobs.settle([stranger])).verdicts == [Verdict.LOST]
    assert (await one(engine, second.id)).status is Status.RUNNING


@pytest.mark.spec("SQLITE-11")
async def test_a_number_is_never_used_for_two_jobs(path: Path) -> None:
    """A settlement of a deleted job must not settle the job stored after it, not even at the same instant."""
    engine = SqliteEngine(path, clock=VirtualClock())
    await engine.open()
    [old] = await claimed(engine, 1, options=Options(keep=0))
    settlement = conclude(old, Done())
    assert (await engine.jobs.settle([settlement])).verdicts == [Verdict.APPLIED]
    [new] = await claimed(engine)
    assert new.token == old.token
    assert (await engine.jobs.settle([settlement])).verdicts == [Verdict.LOST]
    assert (await one(engine, new.id)).status is Status.RUNNING
    await engine.close()


@pytest.mark.spec("SQLITE-10")
async def test_an_impossible_settlement_is_refused_before_anything_is_written(engine: SqliteEngine) -> None:
    [claim] = await claimed(engine)
    with pytest.raises(InvalidTransition):
        await engine.jobs.settle([Settlement(claim.id, claim.worker, claim.token, Status.RUNNING)])
    assert (await one(engine, claim.id)).status is Status.RUNNING


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-12")
@pytest.mark.parametrize(
    "damage",
    ["options = x'7b'", "options = 7", "ukey = 'k', utraits = 99"],
    ids=["broken JSON", "a number", "an unknown trait"],
)
async def test_a_record_that_cannot_be_read_is_set_aside(engine: SqliteEngine, path: Path, damage: str) -> None:
    bad, good = draft(), draft()
    await engine.jobs.insert([bad, good])
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"UPDATE stoker_body SET {damage} WHERE id = ?", (bad.job_id,))
        other.commit()
    await engine.jobs.renew("w", [], first=True)
    claims = await engine.jobs.claim(Demand("w", (("default", 5),)))
    assert [claim.id for claim in claims] == [good.job_id]
    record = await one(engine, bad.job_id)
    assert (record.status, record.attempts) == (Status.DEAD, 0)
    assert record.last_error.startswith("corrupt record")
    assert (await engine.operator.census()).by_status() == {
        **dict.fromkeys(Status, 0),
        Status.RUNNING: 1,
        Status.DEAD: 1,
    }
    assert {job.id for job in (await engine.operator.find(Query())).jobs} == {bad.job_id, good.job_id}


@pytest.mark.spec("SQLITE-13")
async def test_a_full_disk_stores_nothing_and_heals(engine: SqliteEngine) -> None:
    await engine.jobs.insert([draft()])
    connection = engine._store.resources().connection
    connection.pragma("max_page_count", connection.pragma("page_count") + 2)
    with pytest.raises(EngineFull):
        await engine.jobs.insert([draft(payload=b'"' + b"x" * 100_000 + b'"')])
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 1
    connection.pragma("max_page_count", 1_000_000)
    await engine.jobs.insert([draft(payload=b'"' + b"x" * 100_000 + b'"')])
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 2


@pytest.mark.spec("SQLITE-14")
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
async def test_a_file_that_went_away_is_never_written_to(engine: SqliteEngine, path: Path, replaced: bool) -> None:
    await engine.jobs.insert([draft()])
    path.rename(path.with_name("elsewhere.db"))
    if replaced:
        path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="deleted or replaced"):
            await engine.jobs.insert([draft()])
    assert not replaced or path.read_bytes() == b""
    path.unlink(missing_ok=True)
    path.with_name("elsewhere.db").rename(path)
    assert len(await engine.jobs.insert([draft()])) == 1


@pytest.mark.spec("SQLITE-15")
def test_a_forked_child_must_make_its_own_engine(path: Path) -> None:
    async def parent() -> int:
        engine = SqliteEngine(path)
        await engine.open()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            message = b"nothing"
            try:
                coroutine = engine.jobs.insert([draft()])
                coroutine.send(None)
            except EngineClosed as error:
                message = str(error).encode()
            finally:
                os.write(write, message)
                os._exit(0)
        os.waitpid(child, 0)
        assert b"fork" in os.read(read, 1000)
        await engine.jobs.insert([draft()])
        found = (await engine.operator.census()).by_status()[Status.PENDING]
        await engine.close()
        return found

    assert asyncio.run(parent()) == 1


@pytest.mark.spec("SQLITE-15")
async def test_another_loop_must_make_its_own_engine(engine: SqliteEngine) -> None:
    def elsewhere() -> None:
        with pytest.raises(EngineRefused, match="for_loop"):
            asyncio.run(_insert(engine))

    await asyncio.to_thread(elsewhere)


async def _insert(engine: SqliteEngine) -> None:
    await engine.jobs.insert([draft()])


# --- the clock --------------------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-16")
async def test_the_clock_never_goes_back_by_a_little(path: Path) -> None:
    clock = VirtualClock()
    engine = SqliteEngine(path, clock=clock)
    await engine.open()
    job = draft()
    await engine.jobs.insert([job])
    shown = await engine.now()
    clock.rewind(30)
    assert await engine.now() == shown
    [claim] = await claimed(engine)
    assert (claim.id, claim.claimed_at) == (job.job_id, shown)
    await engine.close()


@pytest.mark.spec("SQLITE-16")
async def test_a_mark_far_ahead_is_dropped_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    engine = SqliteEngine(path, clock=clock)
    await engine.open()
    clock.advance(3600)
    await engine.jobs.insert([draft()])
    clock.rewind(1800)
    assert await engine.now() == clock()
    await engine.jobs.insert([draft()])
    assert "ahead" in caplog.text
    assert await engine.now() == clock()
    await engine.close()


# --- liveness and wake-ups --------------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-17")
async def test_a_dead_process_is_reaped_before_its_lease_lapses(engine: SqliteEngine, path: Path) -> None:
    [claim] = await claimed(engine)
    await engine.jobs.renew("reaper", [], first=True)
    assert await engine.jobs.reap("reaper", 10) == []
    # What a killed process leaves behind: its file, unlocked.
    liveness = engine._store.resources().liveness
    os.close(liveness._held.pop("w"))
    [taken] = await engine.jobs.reap("reaper", 10)
    assert (taken.id, taken.former) == (claim.id, "w")
    assert not (await engine.jobs.renew("w", [])).known
    assert LivenessFiles(f"{path}.live").dead(["w"]) == []


@pytest.mark.spec("SQLITE-17")
async def test_a_worker_of_a_twin_is_alive(engine: SqliteEngine) -> None:
    twin = engine.for_loop()
    await twin.open()
    await twin.jobs.renew("w", [], first=True)
    assert (await engine.jobs.renew("w", [])).known
    await engine.jobs.insert([draft()])
    assert len(await engine.jobs.claim(Demand("w", (("default", 1),)))) == 1
    await engine.jobs.renew("reaper", [], first=True)
    assert await engine.jobs.reap("reaper", 10) == []
    await twin.close()
    assert await engine.jobs.reap("reaper", 10) == []


@pytest.mark.spec("SQLITE-18")
async def test_an_insert_wakes_the_waiter_of_another_engine_at_once(engine: SqliteEngine) -> None:
    twin = engine.for_loop()
    await twin.open()
    sleeper = asyncio.create_task(twin.jobs.wait(["default"], 3600))
    await asyncio.sleep(0.05)
    await engine.jobs.insert([draft(), draft(queue="other"), draft(delay=HOUR, queue="later")])
    assert await asyncio.wait_for(sleeper, 60) == {"default"}
    assert await twin.jobs.wait(["other"], 60) == {"other"}
    assert await twin.jobs.wait(["later"], 0.05) == frozenset()
    await twin.close()


@pytest.mark.spec("SQLITE-18")
async def test_a_waiter_is_sent_home_when_the_engine_closes(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    sleeper = asyncio.create_task(engine.jobs.wait(["default"], 30))
    await asyncio.sleep(0.01)
    await engine.close()
    assert await sleeper == frozenset()


# --- its own transaction ----------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-19")
async def test_an_own_transaction_is_all_or_nothing(engine: SqliteEngine) -> None:
    [claim] = await claimed(engine)
    with pytest.raises(RuntimeError):
        async with engine.transaction() as tx:
            await engine.jobs.insert([draft() for _ in range(3)], tx=tx)
            assert (await engine.jobs.settle([conclude(claim, Done())], tx=tx)).verdicts == [Verdict.APPLIED]
            raise RuntimeError
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 0
    async with engine.transaction() as tx:
        await engine.jobs.insert([draft() for _ in range(3)], tx=tx)
        await engine.jobs.settle([conclude(claim, Done())], tx=tx)
        assert (await one(engine, claim.id)).status is Status.RUNNING
    found = (await engine.operator.census()).by_status()
    assert (found[Status.PENDING], found[Status.DONE]) == (3, 1)
    with pytest.raises(EngineClosed):
        await engine.jobs.insert([draft()], tx=tx)


@pytest.mark.spec("SQLITE-19")
async def test_a_refused_insert_leaves_the_rest_of_an_own_transaction_alone(engine: SqliteEngine) -> None:
    await engine.jobs.insert([draft(unique=Unique("k"))])
    async with engine.transaction() as tx:
        await engine.jobs.insert([draft()], tx=tx)
        with pytest.raises(Duplicate):
            await engine.jobs.insert([draft(), draft(unique=Unique("k", mode="raise"))], tx=tx)
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 2


@pytest.mark.spec("SQLITE-19")
async def test_a_transaction_of_another_engine_is_refused(engine: SqliteEngine) -> None:
    twin = engine.for_loop()
    await twin.open()
    async with engine.transaction() as tx:
        with pytest.raises(EngineRefused):
            await twin.jobs.insert([draft()], tx=tx)
    await twin.close()


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("SQLITE-20")
async def test_a_job_that_moves_while_a_page_is_walked_is_shown_once(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two slices of a walk jobs are claimed and settled; nothing is missed and nothing raises."""
    monkeypatch.setattr("stoker.engines.sqlite.store.SLICE", 0)
    monkeypatch.setattr("stoker.engines.sqlite.find.PORTION", 1)
    jobs = [draft() for _ in range(20)]
    await engine.jobs.insert(jobs)
    await engine.jobs.renew("w", [], first=True)

    async def work() -> None:
        while claims := await engine.jobs.claim(Demand("w", (("default", 1),))):
            await asyncio.sleep(0)
            await engine.jobs.settle([conclude(claims[0], Done())])

    page, _ = await asyncio.gather(engine.operator.find(Query(limit=100)), work())
    assert sorted(job.id for job in page.jobs) == sorted(job.job_id for job in jobs)


@pytest.mark.spec("SQLITE-21")
async def test_few_active_jobs_among_many_finished_are_found_on_the_first_page(path: Path) -> None:
    clock = VirtualClock()
    engine = SqliteEngine(path, clock=clock, durability="process")
    await engine.open()
    needle = draft(delay=MINUTE, queue="rare")
    await engine.jobs.insert([needle])
    await engine.jobs.renew("w", [], first=True, lease=HOUR)
    for _ in range(11):
        await engine.jobs.insert([draft() for _ in range(1_000)])
        claims = await engine.jobs.claim(Demand("w", (("default", 1_000),)))
        await engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    for query in (
        Query(statuses=frozenset({Status.PENDING})),
        Query(due="later"),
        Query(queues=frozenset({"rare"}), statuses=frozenset({Status.PENDING, Status.RETRYING, Status.RUNNING})),
    ):
        page = await engine.operator.find(query)
        assert ([job.id for job in page.jobs], page.cursor, page.scanned) == ([needle.job_id], None, 1)
    await engine.close()


@pytest.mark.spec("SQLITE-22")
async def test_a_renewal_writes_once_and_needs_no_transaction(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.jobs.renew("w", [], first=True)
    connection = engine._store.resources().connection
    seen: list[str] = []
    connection._raw.set_trace_callback(seen.append)
    await engine.jobs.renew("w", [])
    connection._raw.set_trace_callback(None)
    assert [line.split()[0] for line in seen] == ["UPDATE", "SELECT"]


@pytest.mark.spec("RATE-13")
async def test_a_claim_from_a_queue_with_a_rate_writes_its_tokens_and_no_other_does(engine: SqliteEngine) -> None:
    """One statement more for the queue with a rate; none for the others."""
    await engine.jobs.insert([draft(queue=queue) for queue in ("plain", "rated") for _ in range(5)])
    await engine.control.tune("rated", Tuning(rate=Rate(3, per=60)))
    await engine.jobs.renew("w", [], first=True)
    connection = engine._store.resources().connection
    seen: dict[str, list[str]] = {}
    for queue in ("plain", "rated"):
        statements: list[str] = []
        connection._raw.set_trace_callback(statements.append)
        assert len(await engine.jobs.claim(Demand("w", ((queue, 3),)))) == 3
        connection._raw.set_trace_callback(None)
        seen[queue] = [line for line in statements if "stoker_queues" in line]
    assert [line.split()[0] for line in seen["plain"]] == ["SELECT"]
    assert [line.split()[0] for line in seen["rated"]] == ["SELECT", "UPDATE"]


@pytest.mark.spec("SQLITE-23")
async def test_names_of_workers_that_were_reaped_long_ago_are_forgotten(engine: SqliteEngine, path: Path) -> None:
    await engine.jobs.renew("alive", [], first=True)
    [claim] = await claimed(engine)
    await engine.jobs.reap("alive", 10, dead=["w", *(f"gone-{n}" for n in range(1_200))])
    await engine.jobs.renew("young", [], first=True)
    await engine.operator.expire(Retention())
    with closing(sqlite3.connect(path)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM stoker_workers")}
    assert len(names) == 1_000 + 2, "the last ones, the living, and the former worker of a claim"
    assert {"alive", "young", "w", "gone-1199"} <= names
    for worker in ("gone-0", "gone-1199"):
        assert not (await engine.jobs.renew(worker, [])).known
    assert (await engine.jobs.settle([conclude(claim, Done())])).verdicts == [Verdict.LOST]


@pytest.mark.spec("CENSUS-10")
async def test_a_census_counts_on_where_many_jobs_are_due_and_many_are_not(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.engines.sqlite.census.COUNT_LIMIT", 2)
    await engine.jobs.insert([draft(priority=n % 3) for n in range(60)])
    await engine.jobs.insert([draft(priority=n % 3, delay=HOUR) for n in range(40)])
    census = await engine.operator.census()
    assert (census.later, census.ready("default")) == ({"default": 40}, 60)

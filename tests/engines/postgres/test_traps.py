"""Interleavings that broke designs before this one, each held still between two statements of real connections."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, claim_cursor, connection, leases
from stoker.engines.postgres.columns import listed
from stoker.engines.sql.exchanges import Row
from stoker.model.errors import EngineUnavailable, InvalidPayload
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, HandedBack, Snoozed
from stoker.model.query import Cancel, Selection
from stoker.model.time import HOUR, SECOND
from stoker.model.unique import SUPERSEDED, Unique
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.engine("postgres")

BOUNDS = (claim_cursor.LOWEST, claim_cursor.HIGHEST, claim_cursor.START, claim_cursor.END)
EVERYWHERE: list[list[str]] = [*([listed([number])] for number in BOUNDS), []]
"""The whole of a queue; no kind gets leases of its own."""

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)


def draft(**options: Any) -> Draft:
    return Draft(job_id=mint(), kind="work", **options)


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w1", [], first=True)
    await engine.jobs.renew("w2", [], first=True)
    yield engine
    await engine.close()


@pytest.fixture
async def twin(engine: PostgresEngine) -> AsyncIterator[PostgresEngine]:
    twin = engine.for_loop()
    await twin.open()
    yield twin
    await twin.close()


@pytest.fixture
def counted(postgres_url: str, postgres_schema: str) -> Any:
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def count(table: str) -> int:
            found = connection.execute(f"select count(*) from {postgres_schema}.{table}".encode()).fetchone()
            assert found is not None
            return int(found[0])

        yield count


async def take(engine: PostgresEngine, n: int = 1, worker: str = "w1") -> list[Claim]:
    return await engine.jobs.claim(Demand(worker, (("default", n),)))


@asynccontextmanager
async def uncommitted(engine: PostgresEngine, name: str, *values: Any) -> AsyncIterator[list[Row]]:
    """One of the engine's statements, held open in a transaction that commits when the block ends."""
    store = engine._store
    connection = await store.connect("jobs")
    await connection.command("BEGIN", 5)
    yield await connection.run(store.texts[name], values, 5)
    await connection.command("COMMIT", 5)
    await connection.close()


async def blocked(engine: PostgresEngine, task: asyncio.Task[Any]) -> None:
    """Wait until a task's statement waits for a lock."""
    store = engine._store
    connection = await store.connect("admin")
    look = "select count(*) from pg_locks where not granted"
    deadline = time.monotonic() + 60
    while not task.done() and (await connection.run(look, (), 5))[0][0] == 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    await connection.close()
    assert not task.done()


# --- the fence --------------------------------------------------------------------------------------------------


@pytest.mark.spec("PGRACE-01")
@pytest.mark.parametrize("outcome", [Failed("boom", after=0), Snoozed(0), Done()], ids=["retry", "snooze", "done"])
async def test_a_settlement_whose_reply_was_lost_applies_once(
    engine: PostgresEngine, twin: PostgresEngine, counted: Any, outcome: Any
) -> None:
    """Sent again while the first is still on its way, it waits and is told that it was applied: one row, not two."""
    await engine.jobs.insert([draft(), draft()])
    mine, other = await take(engine, 2)
    settlement = conclude(mine, outcome)
    async with engine.transaction() as tx:
        assert (await engine.jobs.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]
        again = asyncio.create_task(twin.jobs.settle([settlement, conclude(other, Done())]))
        await blocked(engine, again)
    assert (await again).verdicts == [Verdict.REPEATED, Verdict.APPLIED]
    assert counted("ready") + counted("done") == 2
    assert counted("lease") == 0


@pytest.mark.spec("PGRACE-01")
async def test_an_old_settlement_does_not_touch_the_jobs_next_claim(engine: PostgresEngine, counted: Any) -> None:
    """After the retry was claimed by another worker the first one's resent word is lost."""
    await engine.jobs.insert([draft()])
    [first] = await take(engine)
    old = conclude(first, Failed("boom", after=0))
    await engine.jobs.settle([old])
    [second] = await take(engine, worker="w2")
    assert (await engine.jobs.settle([old])).verdicts == [Verdict.LOST]
    assert (counted("ready"), counted("lease")) == (0, 1)
    assert (await engine.jobs.settle([conclude(second, Done())])).verdicts == [Verdict.APPLIED]


@pytest.mark.spec("PGRACE-11")
async def test_a_worker_that_renews_while_it_is_reaped_keeps_its_jobs(
    engine: PostgresEngine,
    postgres_url: str,
    postgres_schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease had ended when the reap looked, and no longer when the reap takes hold of it."""
    await engine.jobs.insert([draft()])
    [mine] = await take(engine)
    renews = f"update {postgres_schema}.worker set until = %s, lease = 0 where name = 'w1'".encode()
    reap, held = leases._reap, []
    with psycopg.connect(postgres_url, autocommit=True) as other:

        def held_still(*given: Any) -> Generator[Any, Any, list[Claim]]:
            exchange, answer = reap(*given), None
            while True:
                try:
                    asked = exchange.send(answer)
                except StopIteration as end:
                    return list(end.value)
                if asked[0] == leases._HOLD:
                    held.append(asked[1])
                    other.execute(renews, [time.time_ns() // 1000 + HOUR])
                answer = yield asked

        monkeypatch.setattr(leases, "_reap", held_still)
        other.execute(renews, [0])
        assert await engine.jobs.reap("w2", 10) == []
    assert len(held) == 1
    assert (await engine.jobs.settle([conclude(mine, Done())])).verdicts == [Verdict.APPLIED]


@pytest.mark.spec("LEASE-09")
async def test_a_reap_beside_a_settlement_takes_only_what_still_runs(
    engine: PostgresEngine, twin: PostgresEngine, counted: Any
) -> None:
    """It neither waits for the transaction that ends one of two jobs of a lease, nor takes that job."""
    await engine.jobs.insert([draft(), draft()])
    mine, other = await take(engine, 2)
    async with engine.transaction() as tx:
        assert (await engine.jobs.settle([conclude(mine, Done())], tx=tx)).verdicts == [Verdict.APPLIED]
        assert await twin.jobs.reap("w2", 10, dead=["w1"]) == []
    [taken] = await twin.jobs.reap("w2", 10, dead=["w1"])
    assert taken.id == other.id
    counts = (await engine.operator.census()).by_status()
    assert (counts[Status.DONE], counts[Status.RUNNING]) == (1, 1)
    assert [job.status for job in await engine.operator.get([mine.id, other.id]) if job] == [
        Status.DONE,
        Status.RUNNING,
    ]
    assert (await twin.jobs.settle([conclude(taken, Done())])).verdicts == [Verdict.APPLIED]
    assert counted("lease") == 0


@pytest.mark.spec("PGRACE-02")
async def test_a_lease_lives_exactly_as_long_as_a_job_of_it_runs(engine: PostgresEngine, counted: Any) -> None:
    """It goes with its last bit, so that a renewal never meets an empty one."""
    await engine.jobs.insert([draft() for _ in range(3)])
    held = await take(engine, 3)
    for left, claim in zip((1, 1, 0), held, strict=True):
        await engine.jobs.settle([conclude(claim, Done())])
        assert counted("lease") == left
    assert (await engine.jobs.renew("w1", [])).orphaned == []


@pytest.mark.spec("PGRACE-02")
async def test_settlements_over_the_same_leases_in_any_order_do_not_stop_each_other(
    engine: PostgresEngine, twin: PostgresEngine
) -> None:
    """Two processes end halves of the same leases, in opposite orders, over and over."""
    for _ in range(10):
        await engine.jobs.insert([draft() for _ in range(8)])
        pairs = [await take(engine, 2) for _ in range(4)]
        one, two = [pair[0] for pair in pairs], [pair[1] for pair in reversed(pairs)]
        ended = await asyncio.gather(
            engine.jobs.settle([conclude(claim, Done()) for claim in one]),
            twin.jobs.settle([conclude(claim, Failed("x", after=HOUR)) for claim in two]),
        )
        assert [set(settled.verdicts) for settled in ended] == [{Verdict.APPLIED}] * 2


@pytest.mark.spec("PGRACE-03")
async def test_a_cancel_of_several_jobs_of_one_lease_reaches_all(engine: PostgresEngine) -> None:
    """Masks are joined before they are written; jobs of the lease that were not named go on."""
    await engine.jobs.insert([draft() for _ in range(4)])
    held = await take(engine, 4)
    tally = await engine.operator.alter(Selection((held[0].id, held[2].id)), Cancel())
    assert tally.cancel_requested == 2
    renewal = await engine.jobs.renew("w1", [(claim.id, claim.token) for claim in held])
    assert [job for job, _ in renewal.canceling] == [held[0].id, held[2].id]
    verdicts = (await engine.jobs.settle([conclude(claim, HandedBack()) for claim in held])).verdicts
    assert verdicts == [Verdict.CANCELING, Verdict.APPLIED, Verdict.CANCELING, Verdict.APPLIED]


@pytest.mark.spec("PGRACE-03")
async def test_a_job_that_hops_while_it_is_canceled_is_found(engine: PostgresEngine, twin: PostgresEngine) -> None:
    """Claimed in the moment of the cancel, it is asked to stop: it is neither missed nor canceled and run."""
    job = draft()
    await engine.jobs.insert([job])
    values = (None, "w1", ["default"], listed([1]), 1, *EVERYWHERE)
    async with uncommitted(engine, "claim", *values) as rows:
        assert len(rows) == 1
        cancel = asyncio.create_task(twin.operator.alter(Selection((job.job_id,)), Cancel()))
        await blocked(engine, cancel)
    assert (await cancel).cancel_requested == 1
    [record] = await engine.operator.get([job.job_id])
    assert record is not None
    assert (record.status, record.cancel_requested) == (Status.RUNNING, True)


# --- keys -------------------------------------------------------------------------------------------------------


async def _weak(engine: PostgresEngine) -> Claim:
    await engine.jobs.insert([draft(unique=Unique("k"))])
    [claim] = await take(engine)
    await engine.jobs.settle([conclude(claim, Failed("boom", after=HOUR))])
    return claim


@pytest.mark.spec("PGRACE-04")
async def test_of_two_that_supersede_the_second_is_told_the_first(engine: PostgresEngine, twin: PostgresEngine) -> None:
    """Not the job that both found: that one is dead by then."""
    weak = await _weak(engine)
    first, second = draft(unique=Unique("k")), draft(unique=Unique("k"))
    async with engine.transaction() as tx:
        await engine.jobs.insert([first], tx=tx)
        late = asyncio.create_task(twin.jobs.insert([second]))
        await blocked(engine, late)
    [receipt] = await late
    assert (receipt.id, receipt.stored) == (first.job_id, Stored.EXISTING)
    old, new, none = await engine.operator.get([weak.id, first.job_id, second.job_id])
    assert old is not None
    assert new is not None
    assert (old.status, old.last_error, new.status, none) == (Status.DEAD, SUPERSEDED, Status.PENDING, None)


@pytest.mark.spec("RACE-02")
async def test_of_two_that_take_a_free_key_the_second_is_told_the_first(
    engine: PostgresEngine, twin: PostgresEngine
) -> None:
    """The key was free for both when they looked; the second waits for the commit of the first."""
    first, second = draft(unique=Unique("k")), draft(unique=Unique("k"))
    async with engine.transaction() as tx:
        await engine.jobs.insert([first], tx=tx)
        late = asyncio.create_task(twin.jobs.insert([second]))
        await blocked(engine, late)
    [receipt] = await late
    assert (receipt.id, receipt.stored) == (first.job_id, Stored.EXISTING)
    assert await engine.operator.get([second.job_id]) == [None]


@pytest.mark.spec("PGRACE-04")
async def test_a_holder_that_is_claimed_while_it_is_superseded_stays(
    engine: PostgresEngine, twin: PostgresEngine
) -> None:
    """The newcomer waits for the claim and then meets a running job: existing."""
    await engine.jobs.insert([draft(unique=Unique("k"))])
    [claim] = await take(engine)
    await engine.jobs.settle([conclude(claim, Failed("boom", after=0))])
    async with uncommitted(engine, "claim", None, "w1", ["default"], listed([1]), 1, *EVERYWHERE) as rows:
        assert len(rows) == 1
        late = asyncio.create_task(twin.jobs.insert([draft(unique=Unique("k"))]))
        await blocked(engine, late)
    [receipt] = await late
    assert (receipt.id, receipt.stored) == (claim.id, Stored.EXISTING)
    [record] = await engine.operator.get([claim.id])
    assert record is not None
    assert record.status is Status.RUNNING


@pytest.mark.spec("PGRACE-05")
async def test_a_claim_beside_a_replacement_never_runs_the_old_payload(
    engine: PostgresEngine, twin: PostgresEngine
) -> None:
    """Until the replacement commits the job is passed over; afterwards it is the new one."""
    old = draft(unique=Unique("k"), payload=b'"old"')
    await engine.jobs.insert([old])
    async with engine.transaction() as tx:
        new = draft(unique=Unique("k", mode="replace"), payload=b'"new"')
        assert (await engine.jobs.insert([new], tx=tx))[0].stored is Stored.REPLACED
        assert await take(twin) == []
    [claim] = await take(twin)
    assert (claim.id, claim.payload) == (old.job_id, b'"new"')


@pytest.mark.spec("PGRACE-05")
async def test_a_replacement_beside_a_claim_comes_too_late(engine: PostgresEngine, twin: PostgresEngine) -> None:
    """The job runs as it was claimed, and who wanted to replace it is told that it exists."""
    old = draft(unique=Unique("k"), payload=b'"old"')
    await engine.jobs.insert([old])
    async with uncommitted(engine, "claim", None, "w1", ["default"], listed([1]), 1, *EVERYWHERE) as rows:
        assert rows[0][7] == '"old"'
        late = asyncio.create_task(twin.jobs.insert([draft(unique=Unique("k", mode="replace"), payload=b'"new"')]))
        await blocked(engine, late)
    [receipt] = await late
    assert (receipt.id, receipt.stored) == (old.job_id, Stored.EXISTING)
    [record] = await engine.operator.get([old.job_id])
    assert record is not None
    assert (record.status, record.payload) == (Status.RUNNING, b'"old"')


# --- marks in the line ------------------------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Marks are used from the first claim on, and heads are not looked at by the clock."""
    monkeypatch.setattr(claim_cursor, "MIN_TAKEN", 1)
    monkeypatch.setattr(claim_cursor, "FULL_SCAN_EVERY", 1e9)
    return monkeypatch


@pytest.mark.spec("PGRACE-06")
async def test_what_lies_before_the_marks_is_found_when_they_give_too_little(
    engine: PostgresEngine, twin: PostgresEngine, eager: Any
) -> None:
    """Jobs of the past, of a new priority and of a late commit are not lost behind the marks."""
    await engine.jobs.insert([draft() for _ in range(4)])
    now = await engine.now()
    async with twin.transaction() as late:
        slow = draft()
        await twin.jobs.insert([slow], tx=late)
        await take(engine, 2)
        past, urgent = draft(at=now - 3600 * SECOND), draft(priority=-5)
        await twin.jobs.insert([past, urgent])
        assert len(await take(engine, 1)) == 1
    found = await take(engine, 10)
    assert {past.job_id, urgent.job_id, slow.job_id} <= {claim.id for claim in found}


@pytest.mark.spec("PGRACE-06")
async def test_the_head_of_a_line_is_looked_at_again_in_time(
    engine: PostgresEngine, twin: PostgresEngine, eager: pytest.MonkeyPatch
) -> None:
    """A queue that never runs dry still finds, once its time has come, what was put before its marks."""
    await engine.jobs.insert([draft() for _ in range(9)])
    await take(engine, 2)
    urgent = draft(priority=-5)
    await twin.jobs.insert([urgent])
    passed_over = await take(engine, 2)
    assert urgent.job_id not in {claim.id for claim in passed_over}
    eager.setattr(claim_cursor, "FULL_SCAN_EVERY", 0.0)
    assert (await take(engine))[0].id == urgent.job_id


@pytest.mark.spec("PGRACE-06")
async def test_an_engines_own_inserts_are_never_behind_its_marks(engine: PostgresEngine, eager: Any) -> None:
    """What an engine itself puts before its marks it takes first."""
    await engine.jobs.insert([draft() for _ in range(9)])
    await take(engine, 2)
    urgent, past = draft(priority=-5), draft(at=1)
    await engine.jobs.insert([urgent])
    assert (await take(engine))[0].id == urgent.job_id
    await engine.jobs.insert([past])
    assert (await take(engine))[0].id == past.job_id


# --- connections ------------------------------------------------------------------------------------------------


@pytest.mark.spec("PGRACE-07")
async def test_a_connection_killed_in_the_middle_is_an_answer_and_the_next_call_works(
    engine: PostgresEngine, postgres_url: str, postgres_schema: str
) -> None:
    """A backend that dies under a statement leaves a typed error; the same insert again stores the job once."""
    mine = draft()
    with psycopg.connect(postgres_url) as holder, psycopg.connect(postgres_url, autocommit=True) as admin:
        holder.execute(f"lock table {postgres_schema}.ready".encode())
        stuck = asyncio.create_task(engine.jobs.insert([mine]))
        await blocked(engine, stuck)
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'stoker jobs' and wait_event_type = 'Lock' and query like %s",
            (f"%{postgres_schema}%",),
        )
        with pytest.raises(EngineUnavailable):
            await stuck
        holder.rollback()
    assert (await engine.jobs.insert([mine]))[0].id == mine.job_id
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 1


@pytest.mark.spec("PGRACE-08")
async def test_concurrent_inserts_of_one_process_share_statements(engine: PostgresEngine, counted: Any) -> None:
    """Two hundred callers at once need a handful of statements, and each gets its own receipt."""
    drafts = [draft() for _ in range(200)]
    receipts = await asyncio.gather(*(engine.jobs.insert([one]) for one in drafts))
    assert [receipt.id for [receipt] in receipts] == [one.job_id for one in drafts]
    assert counted("ready") == 200
    assert counted("delta") < 20


@pytest.mark.spec("PGRACE-08")
async def test_concurrent_inserts_with_keys_share_transactions(engine: PostgresEngine, counted: Any) -> None:
    """Each caller is told who holds its key, whether it came first or not.

    The first call of all is stored at once, beside the transaction of the others: with one of their keys it could
    come second.
    """
    first = draft(unique=Unique("of its own"))
    drafts = [draft(unique=Unique(f"k{n % 40}")) for n in range(120)]
    _, *receipts = await asyncio.gather(*(engine.jobs.insert([one]) for one in (first, *drafts)))
    assert [receipt.id for [receipt] in receipts] == [one.job_id for one in drafts[:40]] * 3
    assert (counted("ready"), counted("dedupe")) == (41, 41)
    assert counted("delta") < 20


@pytest.mark.spec("PGRACE-08")
async def test_one_draft_that_cannot_be_stored_does_not_stop_the_others(engine: PostgresEngine, counted: Any) -> None:
    """A payload that is no text fails for its own caller only."""
    drafts = [draft(), draft(payload=b"\xff"), draft()]
    good, bad, other = await asyncio.gather(*(engine.jobs.insert([one]) for one in drafts), return_exceptions=True)
    assert isinstance(bad, InvalidPayload)
    assert not isinstance(good, BaseException)
    assert not isinstance(other, BaseException)
    assert counted("ready") == 2


@pytest.mark.spec("PGRACE-08")
async def test_one_draft_that_is_stored_already_does_not_stop_the_others(engine: PostgresEngine, counted: Any) -> None:
    """A repeated insert among the others is told so; the others are stored."""
    drafts = [draft() for _ in range(10)]
    await engine.jobs.insert([drafts[3]])
    receipts = await asyncio.gather(*(engine.jobs.insert([one]) for one in drafts))
    stored = [receipt.stored for [receipt] in receipts]
    assert stored == [Stored.EXISTING if n == 3 else Stored.INSERTED for n in range(10)]
    assert counted("ready") == 10


@pytest.mark.spec("PGRACE-09")
async def test_a_call_that_is_abandoned_at_any_moment_leaves_no_error_behind(
    engine: PostgresEngine, postgres_url: str, postgres_schema: str
) -> None:
    """Neither while it connects nor while the server works for it; the next call works."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    with Proxy(postgres_url) as proxy:
        proxy.latency(0.001)
        for moment in range(100):
            twin = PostgresEngine(proxy.url, schema=postgres_schema)
            with suppress(TimeoutError):
                async with asyncio.timeout(moment / 5_000):
                    await twin.open()
            await twin.close()
        with psycopg.connect(postgres_url) as holder:
            holder.execute(f"lock table {postgres_schema}.ready".encode())
            for moment in range(10):
                with suppress(TimeoutError):
                    async with asyncio.timeout(moment / 500):
                        await engine.jobs.insert([draft()])
        async with asyncio.timeout(60):
            while connection._ABANDONED:
                await asyncio.sleep(0.01)
    gc.collect()
    await engine.jobs.insert([draft()])
    assert reported == []

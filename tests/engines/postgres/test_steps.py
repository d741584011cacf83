"""Steps on Postgres: how few statements they take, and what an open transaction of the user's holds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.engines.sql.user_handles.handles import drive
from stoker.model.job import Claim, Demand, Draft, Settlement, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Suspended
from stoker.model.query import Delete, Selection
from stoker.model.steps import Save, Signal, Signaled, Step, StepState, Wakes
from tests.engines.postgres.test_alter import mint
from tests.engines.postgres.test_round_trips import Sent, sent

__all__ = ["sent"]

pytestmark = pytest.mark.engine("postgres")

GO = Step("go", StepState.WAITING)


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w", [], first=True)
    yield engine
    await engine.close()


async def claims(engine: PostgresEngine, n: int) -> list[Claim]:
    await engine.jobs.insert([Draft(mint(), "work") for _ in range(n)])
    return await engine.jobs.claim(Demand("w", (("default", n),)))


def suspended(claim: Claim, wakes: Wakes = Wakes.ANY) -> Settlement:
    return conclude(claim, Suspended((GO,), wakes=wakes))


def saved(claim: Claim, *steps: Step) -> Save:
    return Save(claim.id, claim.worker, claim.token, steps, ref=claim.ref)


@pytest.mark.spec("STEP-40")
async def test_a_plain_job_never_touches_steps(
    engine: PostgresEngine, sent: Sent, postgres_url: str, postgres_schema: str
) -> None:
    """No statement is about steps, and that of a claim, which reads those of suspended jobs, never looks there."""
    sent.clear()
    batch = await claims(engine, 10)
    settled = await engine.jobs.settle([conclude(claim, Done(b"1")) for claim in batch])
    assert settled.verdicts == [Verdict.APPLIED] * 10
    texts = [text for texts in sent.texts.values() for text in texts]
    assert texts
    assert {text for text in texts if ".step" in text} <= {engine._store.texts["claim"]}
    await engine.close()
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        counted, scans = 0, 0
        while counted < 10:  # a server process tells what it has read when it ends
            found = await connection.execute(
                "SELECT j.n_tup_ins, s.idx_scan + s.seq_scan "
                "- (SELECT count(*) FROM pg_index WHERE indrelid = s.relid) "  # making one read the table
                "FROM pg_stat_user_tables AS j JOIN pg_stat_user_tables AS s USING (schemaname) "
                "WHERE schemaname = %s AND j.relname = 'job' AND s.relname = 'step'",
                (postgres_schema,),
            )
            [(counted, scans)] = await found.fetchall()
    assert scans == 0


@pytest.mark.spec("STEP-41")
async def test_steps_of_many_jobs_are_one_statement(engine: PostgresEngine, sent: Sent) -> None:
    batch = await claims(engine, 100)
    sent.clear()
    verdicts = await engine.steps.save([saved(claim, Step("a"), Step("b")) for claim in batch])
    assert verdicts == [Verdict.APPLIED] * 100
    [texts] = [texts for texts in sent.texts.values() if any(".step" in text for text in texts)]
    assert len(texts) == 1


@pytest.mark.spec("STEP-41")
async def test_suspensions_and_signals_of_many_jobs_send_few_statements(engine: PostgresEngine, sent: Sent) -> None:
    batch = await claims(engine, 100)
    sent.clear()
    settled = await engine.jobs.settle([suspended(claim) for claim in batch])
    assert settled.verdicts == [Verdict.APPLIED] * 100
    assert len(sent.transaction) <= 9, sent.transaction
    sent.clear()
    answers = await engine.steps.signal([Signal(claim.id, "go") for claim in batch])
    assert answers == [Signaled.TAKEN] * 100
    assert len(sent.transaction) <= 10, sent.transaction
    assert len(await engine.jobs.claim(Demand("w", (("default", 200),)))) == 100


@pytest.mark.spec("PGTX-12")
@pytest.mark.parametrize("commits", [True, False])
async def test_an_open_transaction_that_signals_holds_up_that_job_alone(
    engine: PostgresEngine, postgres_url: str, commits: bool
) -> None:
    """Its suspension and its opened waits are held, with nothing stored; sent again, they find the answer, or none."""
    first, second, third = await claims(engine, 3)
    with psycopg.connect(postgres_url) as theirs:
        assert await engine.steps.signal([Signal(first.id, "go", b"7")], tx=theirs) == [Signaled.EARLY]
        opened = [saved(first, GO), saved(second, Step("side", StepState.WAITING)), saved(first, Step("x"))]
        assert await engine.steps.save(opened) == [Verdict.HELD, Verdict.APPLIED, Verdict.HELD]
        assert await engine.steps.save([saved(first, Step("done"))]) == [Verdict.APPLIED]
        batch = [suspended(first), suspended(second), conclude(third, Done())]
        settled = await engine.jobs.settle(batch)
        assert settled.verdicts == [Verdict.HELD, Verdict.APPLIED, Verdict.APPLIED]
        assert await engine.jobs.claim(Demand("w", (("default", 9),))) == []
        if commits:
            theirs.commit()
        else:
            theirs.rollback()
    assert (await engine.jobs.settle([suspended(first)])).verdicts == [Verdict.APPLIED]
    again = await engine.jobs.claim(Demand("w", (("default", 9),)))
    assert [claim.id for claim in again] == ([first.id] if commits else [])


@pytest.mark.spec("PGTX-12")
async def test_an_open_transaction_that_signals_a_suspended_job(engine: PostgresEngine, postgres_url: str) -> None:
    """Claims step over the job; another signal waits, and sees what was committed."""
    [first, second] = await claims(engine, 2)
    await engine.jobs.settle([suspended(first), suspended(second)])
    with psycopg.connect(postgres_url) as theirs:
        assert await engine.steps.signal([Signal(first.id, "go", b"7")], tx=theirs) == [Signaled.TAKEN]
        assert await engine.steps.signal([Signal(second.id, "go")]) == [Signaled.TAKEN]
        [claim] = await engine.jobs.claim(Demand("w", (("default", 9),)))
        assert claim.id == second.id
        other = asyncio.ensure_future(engine.steps.signal([Signal(first.id, "go", b"8")]))
        theirs.commit()
        assert await other == [Signaled.ANSWERED]
    [claim] = await engine.jobs.claim(Demand("w", (("default", 9),)))
    assert claim.id == first.id
    [[row]] = await engine.steps.get([first.id])
    assert row.value == b"7"


@pytest.mark.spec("PGTX-12")
async def test_of_two_signals_that_answer_at_once_the_second_is_told_so(
    engine: PostgresEngine, postgres_url: str
) -> None:
    """It has seen the open wait, and stands behind the first one's lock: the first answer stays."""
    [claim] = await claims(engine, 1)
    await engine.jobs.settle([suspended(claim)])
    with psycopg.connect(postgres_url) as theirs, psycopg.connect(postgres_url, autocommit=True) as watch:
        assert await engine.steps.signal([Signal(claim.id, "go", b"7")], tx=theirs) == [Signaled.TAKEN]
        second = asyncio.ensure_future(engine.steps.signal([Signal(claim.id, "go", b"8")]))
        behind = "select 1 from pg_stat_activity where %s = any(pg_blocking_pids(pid)) and query like '%%UPDATE%%'"
        while not watch.execute(behind, (theirs.info.backend_pid,)).fetchall():
            await asyncio.sleep(0.001)
        theirs.commit()
        assert await second == [Signaled.ANSWERED]
    [[row]] = await engine.steps.get([claim.id])
    assert (row.state, row.value) == (StepState.DONE, b"7")


@pytest.mark.spec("PGTX-13")
async def test_signals_in_a_transaction_do_not_fall_victim_to_a_bulk_change(
    engine: PostgresEngine, postgres_url: str
) -> None:
    """They lock jobs in an order of their own, which may be against that of the change: the change lets go."""
    batch = await claims(engine, 2)
    low, high = sorted(claim.id for claim in batch)
    await engine.jobs.settle([suspended(claim) for claim in batch])
    with psycopg.connect(postgres_url) as theirs:
        theirs.execute("set local deadlock_timeout = '600ms'")  # sooner than that of the change
        assert await engine.steps.signal([Signal(high, "go")], tx=theirs) == [Signaled.TAKEN]
        change = asyncio.ensure_future(engine.operator.alter(Selection((low, high)), Delete()))
        with psycopg.connect(postgres_url, autocommit=True) as watch:
            while not watch.execute("select 1 from pg_stat_activity where wait_event_type = 'Lock'").fetchall():
                await asyncio.sleep(0.001)
        answers = await asyncio.to_thread(lambda: drive(engine.steps.signal([Signal(low, "go")], tx=theirs)))
        assert answers == [Signaled.TAKEN]
        theirs.commit()
        assert (await change).changed == 2


@pytest.mark.spec("STEP-07")
async def test_a_claim_that_moved_to_a_lease_of_its_own_saves(engine: PostgresEngine) -> None:
    """A block held it, rolled back, and left its first reference behind."""
    first, _ = await claims(engine, 2)
    with pytest.raises(RuntimeError):
        async with engine.transaction() as tx:
            assert await engine.outbox.hold(first, tx=tx) is not None
            raise RuntimeError
    assert await engine.steps.save([saved(first, Step("a"))]) == [Verdict.APPLIED]
    assert await engine.steps.save([saved(first, GO)]) == [Verdict.APPLIED]
    [found] = await engine.steps.get([first.id])
    assert sorted(row.name for row in found) == ["a", "go"]

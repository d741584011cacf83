"""Retention without an index: finished jobs are walked over, piece by piece, and counts are added up on the way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, counters, expire
from stoker.model.control import Presence
from stoker.model.events import Event, EventType, Window
from stoker.model.ids import JobId, Mint
from stoker.model.job import Demand, Draft, Options, Settlement, Status
from stoker.model.query import Query, Retention
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique
from stoker.testing.clock import VirtualClock

pytestmark = pytest.mark.engine("postgres")

START = 1_800_000_000_000_000


class Setup:
    """An engine, its clock, and a look behind its back."""

    def __init__(self, engine: PostgresEngine, clock: VirtualClock, look: psycopg.Connection) -> None:
        self.engine = engine
        self.clock = clock
        self.look = look
        entropy = itertools.count(1)
        self.mint = Mint(clock, lambda n: next(entropy).to_bytes(n))

    def pass_time(self, span: int) -> None:
        self.clock.set(self.clock() + span)

    async def finished(self, n: int, status: Status = Status.DONE, keep: int | None = None, **more: Any) -> list[JobId]:
        """Jobs that ran and ended, each minted in a millisecond of its own."""
        ids = []
        for _ in range(n):
            self.pass_time(1_000)
            ids.append(self.mint())
        await self.engine.jobs.insert([Draft(job, "work", **more) for job in ids])
        await self.engine.jobs.renew("w", [], first=True)
        claims = await self.engine.jobs.claim(Demand("w", (("default", n),)))
        error = None if status is Status.DONE else "no"
        await self.engine.jobs.settle(
            [Settlement(claim.id, "w", claim.token, status, error=error, keep=keep, ref=claim.ref) for claim in claims]
        )
        return ids

    async def left(self) -> set[JobId]:
        return {job.id for job in (await self.engine.operator.find(Query(limit=1_000))).jobs}

    def rows(self, table: str) -> int:
        found = self.look.execute(f"select count(*) from {table}".encode()).fetchone()
        assert found is not None
        return int(found[0])


@pytest.fixture
async def setup(postgres_url: str, postgres_schema: str) -> AsyncIterator[Setup]:
    clock = VirtualClock(START)
    engine = PostgresEngine(postgres_url, schema=postgres_schema, clock=clock)
    await engine.open()
    with psycopg.connect(postgres_url, autocommit=True) as look:
        look.execute(f"set search_path = {postgres_schema}".encode())
        yield Setup(engine, clock, look)
    await engine.close()


@pytest.fixture
def short_sighted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """One call looks at few jobs, as it does in a store of millions."""

    def shorten() -> None:
        monkeypatch.setattr(expire, "STEP", 4)
        monkeypatch.setattr(expire, "OLD_STRETCH", 14)
        monkeypatch.setattr(expire, "WHOLE_STRETCH", 7)

    return shorten


@pytest.mark.spec("PGOP-10")
async def test_a_walk_in_pieces_reaches_everything_that_expired(
    setup: Setup, short_sighted: Callable[[], None]
) -> None:
    """Expired jobs between kept ones all go within as many calls as the walk needs for a round, and nothing else."""
    kept = await setup.finished(20, Status.DEAD)
    gone = await setup.finished(30)
    brief = await setup.finished(5, keep=SECOND)
    kept += await setup.finished(25, keep=300 * DAY)
    setup.pass_time(8 * DAY)
    kept += await setup.finished(20)
    short_sighted()
    removed = [(await setup.engine.operator.expire(Retention())).jobs for _ in range(25)]
    assert sum(removed) == len(gone) + len(brief)
    assert max(removed) <= 21, "a call looks at no more than its stretches"
    assert await setup.left() == set(kept)


@pytest.mark.spec("PGOP-10")
async def test_old_jobs_go_first(setup: Setup, short_sighted: Callable[[], None]) -> None:
    """What is as old as the youngest are going to be is found at once, however many young ones there are."""
    old = await setup.finished(10)
    setup.pass_time(6 * DAY)
    young = await setup.finished(200)
    short_sighted()
    assert (await setup.engine.operator.expire(Retention())).jobs == 0
    setup.pass_time(DAY + HOUR)
    assert (await setup.engine.operator.expire(Retention())).jobs == len(old)
    assert await setup.left() == set(young)


@pytest.mark.spec("PGOP-10")
async def test_the_limit_is_kept_across_both_walks(setup: Setup, short_sighted: Callable[[], None]) -> None:
    await setup.finished(23)
    setup.pass_time(8 * DAY)
    short_sighted()
    assert [(await setup.engine.operator.expire(Retention(limit=10))).jobs for _ in range(4)] == [10, 10, 3, 0]


@pytest.mark.spec("PGOP-11")
async def test_nothing_of_an_expired_job_is_left(setup: Setup) -> None:
    jobs = await setup.finished(3, Status.DEAD, options=Options(timeout=SECOND), unique=None)
    jobs += await setup.finished(1, unique=Unique("k"))
    at = setup.clock()
    await setup.engine.timeline.record([Event(at, EventType.STARTED, job, "default", "work") for job in jobs], now=at)
    assert setup.rows("failure") == 3
    setup.pass_time(40 * DAY)
    swept = await setup.engine.operator.expire(Retention(events=90 * DAY))
    assert (swept.jobs, swept.events) == (4, 0)
    assert await setup.engine.timeline.events(Window(0, at + DAY)) == []
    for table in ("job", "done", "ready", "lease", "past", "failure", "dedupe", "delta"):
        assert setup.rows(table) == 0, table
    assert setup.rows("removed") == 4
    setup.pass_time(60 * DAY)
    assert (await setup.engine.operator.expire(Retention(events=90 * DAY))).events == 4
    assert setup.rows("event") == setup.rows("removed") == 0


@pytest.mark.spec("PGOP-11")
async def test_a_job_that_is_being_changed_waits_for_the_next_sweep(setup: Setup) -> None:
    """Retention never waits for a person, and a person never for retention."""
    first, *others = await setup.finished(5)
    setup.pass_time(8 * DAY)
    with setup.look.transaction():
        setup.look.execute("select 1 from done where id = %s for update", (first.hex(),))
        assert (await setup.engine.operator.expire(Retention())).jobs == len(others)
    assert await setup.left() == {first}
    assert (await setup.engine.operator.expire(Retention())).jobs == 1


@pytest.mark.spec("PGOP-11")
async def test_old_events_go_in_bounded_pieces(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engines.postgres.expire.LEAST_EVENTS", 2)
    at = setup.clock()
    for _ in range(5):
        await setup.engine.timeline.record([Event(at, EventType.STARTED, setup.mint(), "q", "k")] * 3, now=at)
    setup.pass_time(31 * DAY)
    assert [(await setup.engine.operator.expire(Retention(limit=1))).events for _ in range(4)] == [6, 6, 3, 0]


@pytest.mark.spec("PGOP-12")
async def test_counts_are_the_same_before_and_after_folding(setup: Setup) -> None:
    await setup.finished(4)
    await setup.finished(2, Status.DEAD)
    await setup.engine.jobs.insert([Draft(setup.mint(), "other", queue="q", delay=HOUR)])
    before = await setup.engine.operator.census()
    assert setup.rows("delta") > 0
    await setup.engine.operator.expire(Retention())
    assert (setup.rows("delta"), setup.rows("trouble")) == (0, 1)
    assert await setup.engine.operator.census() == before
    await setup.finished(1)
    await setup.engine.control.beat(Presence(worker="w", host="h", pid=1, queues={}))
    assert setup.rows("delta") == setup.rows("trouble") == 0, "living workers fold as well"


@pytest.mark.spec("PGOP-12")
async def test_many_who_fold_at_once_count_nothing_twice(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MOST", 3)
    twins = [setup.engine.for_loop() for _ in range(3)]
    for twin in twins:
        await twin.open()
    try:
        for turn in range(10):
            drafts = [Draft(setup.mint(), f"k{turn % 3}", queue=f"q{n % 4}") for n in range(8)]
            inserts = [setup.engine.jobs.insert([draft]) for draft in drafts]
            await asyncio.gather(*inserts, *(twin.operator.expire(Retention()) for twin in twins))
    finally:
        for twin in twins:
            await twin.close()
    assert (await setup.engine.operator.census()).by_status()[Status.PENDING] == 80
    await setup.engine.operator.expire(Retention())
    assert setup.rows("delta") == 0
    assert (await setup.engine.operator.census()).by_status()[Status.PENDING] == 80


@pytest.mark.spec("PGOP-11")
async def test_names_of_reaped_workers_are_forgotten_in_the_end(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expire, "OLD_NAMES", 2)
    for n in range(6):
        await setup.engine.jobs.renew(f"w{n}", [], first=True)
    setup.pass_time(HOUR)
    await setup.engine.jobs.renew("alive", [], first=True)
    await setup.engine.jobs.reap("alive", 10)
    assert setup.rows("retired") == 6
    await setup.engine.operator.expire(Retention())
    assert setup.rows("retired") == 2
    for n in range(6):
        assert not (await setup.engine.jobs.renew(f"w{n}", [])).known
    assert (await setup.engine.jobs.renew("alive", [])).known

"""A census under a held snapshot reads no more dead entries from call to call, and stays right."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, census_bounds
from stoker.engines.postgres.census_bounds import FULL_EVERY, MOST_PRIORITIES, CensusBounds
from stoker.model.job import Claim, Demand, Draft
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, HandedBack
from stoker.model.query import Census
from stoker.model.time import HOUR, SECOND
from stoker.testing.clock import VirtualClock
from tests.engines.postgres.sleepers import Make

pytestmark = pytest.mark.engine("postgres")

DEAD = 300
FEW = 20


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of each census: whether it read from the start, and how many dead entries."""
    seen: list[tuple[bool, int]] = []
    finish = CensusBounds.finish

    def noted(self: CensusBounds, look: Any, found: Any, **facts: Any) -> None:
        seen.append((look.full, facts["dead"]))
        finish(self, look, found, **facts)

    monkeypatch.setattr(CensusBounds, "finish", noted)
    monkeypatch.setattr(census_bounds, "MANY_DEAD", DEAD // 2)
    monkeypatch.setattr(census_bounds, "LEASE_SLACK", 0)
    return seen


@pytest.fixture
def oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are read as if many jobs waited in them."""
    monkeypatch.setattr(census_bounds, "MOST_NEWEST_FIRST", 0)


@pytest.fixture
def held(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A session that holds a snapshot from before the case, until it is rolled back."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select pg_current_snapshot()")
        yield connection
        connection.rollback()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(make: Make, clock: VirtualClock) -> PostgresEngine:
    engine = await make(clock=clock)
    await engine.jobs.renew("w", [], first=True, lease=HOUR)
    return engine


async def put(engine: PostgresEngine, n: int = 1, **options: Any) -> None:
    await engine.jobs.insert([Draft(uuid.uuid4().bytes, "work", **options) for _ in range(n)])


async def take(engine: PostgresEngine, n: int = 1, queue: str = "default") -> list[Claim]:
    claims = await engine.jobs.claim(Demand("w", ((queue, n),)))
    assert len(claims) == n
    return claims


async def run(engine: PostgresEngine, n: int) -> None:
    """Jobs from enqueue to done, ten by ten: they leave dead entries of jobs and of leases."""
    await put(engine, n)
    for _ in range(n // 10):
        await engine.jobs.settle([conclude(claim, Done()) for claim in await take(engine, 10)])


def take_for_empty(connection: psycopg.Connection, schema: str) -> None:
    """Let the server plan for tables with many dead entries, of which it knows, and few rows."""
    for statement in (
        f"""insert into {schema}.ready (due, token, id, attempts, priority, status, settled, past, queue)
            select i, 0, gen_random_uuid(), 0, 0, 0, -1, false, 'default' from generate_series(1, 30000) as i""",
        f"""insert into {schema}.lease (id, token, claimed, worker, queue, open, ids)
            select -i, 0, 0, 'w', 'default', B'1', '{{}}' from generate_series(1, 3000) as i""",
        f"delete from {schema}.lease",
        f"delete from {schema}.ready where due > 20",
        f"vacuum analyze {schema}.ready",
        f"vacuum analyze {schema}.lease",
        f"delete from {schema}.ready",
    ):
        connection.execute(statement.encode())


async def dear(engine: PostgresEngine, clock: VirtualClock) -> Census:
    """Censuses until the engine begins at its bounds, with one job that waits and one that runs."""
    await run(engine, DEAD)
    clock.advance(60)
    await put(engine, 2)
    await take(engine)
    await engine.operator.census()
    return await engine.operator.census()


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held", "oldest_first")
async def test_a_census_does_not_read_dead_entries_again_and_again(
    engine: PostgresEngine, clock: VirtualClock, reads: list[tuple[bool, int]]
) -> None:
    first = await dear(engine, clock)
    assert [full for full, _ in reads] == [True, True]
    assert min(dead for _, dead in reads) >= DEAD
    assert max(dead for _, dead in reads) < DEAD * 3 // 2, "those of jobs once, and those of leases"
    for _ in range(3):
        assert await engine.operator.census() == first
    assert [full for full, _ in reads[2:]] == [False] * 3
    assert max(dead for _, dead in reads[2:]) < FEW


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("oldest_first")
async def test_a_census_of_a_store_that_is_cleaned_up_reads_from_the_start(
    engine: PostgresEngine,
    held: psycopg.Connection,
    clock: VirtualClock,
    reads: list[tuple[bool, int]],
    postgres_url: str,
    postgres_schema: str,
) -> None:
    await dear(engine, clock)
    held.rollback()
    with psycopg.connect(postgres_url, autocommit=True) as cleaner:
        for table in ("ready", "lease"):
            cleaner.execute(f"vacuum {postgres_schema}.{table}".encode())
    clock.advance(FULL_EVERY / SECOND)
    for _ in range(3):
        await engine.operator.census()
    assert [full for full, _ in reads[2:]] == [True] * 3
    assert max(dead for _, dead in reads[2:]) < FEW


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held", "reads", "oldest_first")
async def test_counts_are_exact_and_only_the_oldest_job_lags(engine: PostgresEngine, clock: VirtualClock) -> None:
    """Jobs are put before the bounds: a handed back one, and one of a priority that had none."""
    await put(engine, priority=-5)
    old = clock()
    [early] = await take(engine)
    waiting = await dear(engine, clock)
    assert waiting.oldest_ready == {"default": clock()}
    assert waiting.oldest_running == {"default": old}
    await engine.jobs.settle([conclude(early, HandedBack())])
    await put(engine, 2, priority=7, delay=HOUR)
    await put(engine, priority=8)
    await put(engine, queue="other", priority=3)
    found = await engine.operator.census()
    assert (found.ready("default"), found.ready("other"), found.later) == (3, 1, {"default": 2})
    assert found.oldest_ready == {"default": clock(), "other": clock()}, "the one handed back lags"
    assert found.oldest_running == {"default": clock()}
    clock.advance(FULL_EVERY / SECOND)
    assert (await engine.operator.census()).oldest_ready["default"] == old


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held", "oldest_first")
async def test_bounds_follow_what_is_taken_and_what_becomes_due(
    engine: PostgresEngine, clock: VirtualClock, reads: list[tuple[bool, int]]
) -> None:
    await dear(engine, clock)
    await put(engine, delay=2 * SECOND)
    for _ in range(3):
        clock.advance(1)
        await engine.jobs.settle([conclude(claim, Done()) for claim in await take(engine)])
        await run(engine, 100)
        await put(engine)
        assert (await engine.operator.census()).oldest_ready["default"] <= clock()
    for _ in range(2):
        assert (await engine.operator.census()).oldest_ready["default"] > clock() - 3 * SECOND
    assert [full for full, _ in reads[2:]] == [False] * 5
    assert max(dead for _, dead in reads[2:]) < DEAD


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held")
async def test_the_first_census_of_an_engine_reads_few_dead_entries(
    engine: PostgresEngine, make: Make, clock: VirtualClock, reads: list[tuple[bool, int]]
) -> None:
    """A command or a new process knows no bounds: where few jobs wait it needs none."""
    await run(engine, DEAD)
    clock.advance(1)
    since = clock()
    await put(engine, 2)
    clock.advance(1)
    await put(engine, 2, delay=HOUR)
    found = await (await make(clock=clock)).operator.census()
    assert (found.ready("default"), found.later, found.oldest_ready) == (2, {"default": 2}, {"default": since})
    assert reads[-1] == (True, min(reads[-1][1], DEAD // 10 + FEW)), "each tenth was a lease"
    for priority in (4, -4, -4):
        await put(engine, priority=priority)
    found = await (await make(clock=clock)).operator.census()
    assert (found.ready("default"), found.later, found.oldest_ready) == (5, {"default": 2}, {"default": since})
    await engine.jobs.settle([conclude(claim, Done()) for claim in await take(engine, 4)])
    found = await (await make(clock=clock)).operator.census()
    assert (found.ready("default"), found.oldest_ready) == (1, {"default": clock()})


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held")
async def test_a_census_does_not_read_what_was_taken_since_the_last_one(
    engine: PostgresEngine,
    clock: VirtualClock,
    reads: list[tuple[bool, int]],
    postgres_url: str,
    postgres_schema: str,
) -> None:
    """Few jobs wait: the newest is read first. None runs in between, and the bound of the leases moves all the same."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        take_for_empty(connection, postgres_schema)
    await run(engine, DEAD)
    await put(engine)
    for _ in range(2):
        await engine.operator.census()
    await engine.jobs.settle([conclude(claim, Done()) for claim in await take(engine)])
    for _ in range(4):
        await run(engine, DEAD)
        clock.advance(0.2)
        since = clock()
        await put(engine, 5)
        await put(engine, 3, delay=HOUR)
        found = await engine.operator.census()
        assert (found.ready("default"), found.oldest_ready) == (5, {"default": since})
        await engine.jobs.settle([conclude(claim, Done()) for claim in await take(engine, 5)])
    assert [full for full, _ in reads[2:]] == [False] * 4
    assert max(dead for _, dead in reads[2:]) < DEAD // 10 + FEW, "each tenth was a lease"


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held")
async def test_leases_are_read_along_their_ids(engine: PostgresEngine, postgres_url: str, postgres_schema: str) -> None:
    """The index by worker has the ids too, behind the workers: to read from one id on, the server reads all of it."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        take_for_empty(connection, postgres_schema)
        connection.execute("set enable_seqscan = off")
        text = engine._store.texts["census_running"].replace("$1", "0")
        [[plan]] = connection.execute(f"explain (analyze, buffers, format json) {text}".encode()).fetchall()
    assert "lease_pkey" in str(plan)
    assert plan[0]["Plan"]["Shared Hit Blocks"] < FEW


def test_ranges_cover_every_priority_once() -> None:
    bounds = CensusBounds()
    look = bounds.begin(1_000 * SECOND)._replace(full=False)
    assert len(bounds.ranges(look, {"q": 9})) == 1
    bounds.finish(look, [("q", p, 0, None, 0) for p in (-5, 3, 4, census_bounds.HIGHEST)], first_lease=0, dead=0)
    ranges = bounds.ranges(look, {"q": 9})
    assert [low for _, low, *_ in ranges] == [census_bounds.LOWEST, *(high + 1 for _, _, high, *_ in ranges[:-1])]
    assert ranges[-1][2] == census_bounds.HIGHEST
    earlier = look._replace(now=SECOND)
    assert {since for *_, since, _ in bounds.ranges(earlier, {"q": 9})} == {SECOND}, "a clock that went back"
    many: list[census_bounds.Found] = [("q", p, 0, None, 0) for p in range(MOST_PRIORITIES + 1)]
    bounds.finish(look, many, first_lease=0, dead=0)
    assert [since for *_, since, _ in bounds.ranges(look, {"q": 9})] == [census_bounds.START]
    bounds.forget_others([])
    assert bounds.ranges(look, {"q": 9}) == [("q", census_bounds.LOWEST, census_bounds.HIGHEST, census_bounds.START, 9)]


def test_queues_with_few_waiting_jobs_are_read_newest_first() -> None:
    bounds = CensusBounds()
    look = bounds.begin(1_000 * SECOND)
    most = census_bounds.MOST_NEWEST_FIRST
    waiting = {"large": most, "small": 2, "middle": most - 2}
    for full in (True, False):
        found = bounds.ranges(look._replace(full=full), waiting)
        assert {queue: few for queue, *_, few in found} == {"small": 2, "middle": most - 2, "large": None}

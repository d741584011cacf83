"""What people do while workers work: every action finds a job wherever it has gone meanwhile, and counts stay true."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from stoker.engines.base import CONTROL
from stoker.engines.postgres import PostgresEngine
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Settlement, Status
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Prioritize,
    Query,
    Requeue,
    Retention,
    RunNow,
    Selection,
)
from stoker.model.time import HOUR, MILLISECOND
from stoker.model.unique import Unique

pytestmark = pytest.mark.engine("postgres")

PLACES = """
select id from ready union all select id from done
union all select u.id from lease l, unnest(l.ids) with ordinality u(id, pos) where get_bit(l.open, u.pos::int - 1) = 1
"""


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w", [], first=True)
    yield engine
    await engine.close()


@pytest.fixture
def aside(postgres_url: str, postgres_schema: str) -> Callable[[], psycopg.Connection]:
    """Sessions beside the engine's, in whose transactions things stay half done."""

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(postgres_url)
        connection.execute(f"set search_path = {postgres_schema}".encode())
        connection.commit()
        return connection

    return connect


def mint() -> JobId:
    return uuid.uuid4().bytes


async def stored(engine: PostgresEngine, n: int, **options: object) -> list[JobId]:
    drafts = [Draft(mint(), "work", **options) for _ in range(n)]  # type: ignore[arg-type]
    await engine.jobs.insert(drafts)
    return [draft.job_id for draft in drafts]


async def taken(engine: PostgresEngine, n: int) -> list[Claim]:
    claims = await engine.jobs.claim(Demand("w", (("default", n),)))
    assert len(claims) == n
    return claims


async def blocked(connection: psycopg.Connection, n: int = 1) -> None:
    """Wait until another session waits for what this session holds."""
    asked = "select count(*) from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    async with asyncio.timeout(60):
        while True:
            connection.execute("select pg_stat_clear_snapshot()")
            found = connection.execute(asked, (connection.info.backend_pid,)).fetchone()
            if found is not None and found[0] >= n:
                return
            await asyncio.sleep(0.01)


# --- leases -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("PGOP-13")
async def test_several_jobs_of_one_claim_are_asked_to_stop_at_once(engine: PostgresEngine) -> None:
    await stored(engine, 6)
    claims = await taken(engine, 6)
    asked = [claims[place] for place in (0, 2, 5)]
    tally = await engine.operator.alter(Selection((*(claim.id for claim in asked), asked[0].id)), Cancel("enough"))
    assert tally.cancel_requested == 4
    renewal = await engine.jobs.renew("w", [(claim.id, claim.token) for claim in claims])
    assert sorted(renewal.canceling) == sorted((claim.id, claim.token) for claim in asked)
    await engine.operator.alter(Selection((claims[1].id,)), Cancel())
    assert len((await engine.jobs.renew("w", [(claim.id, claim.token) for claim in claims])).canceling) == 4


@pytest.mark.spec("PGOP-13")
async def test_a_claim_taken_away_job_by_job_leaves_nothing(
    engine: PostgresEngine, aside: Callable[[], psycopg.Connection]
) -> None:
    await stored(engine, 3)
    first, *others = await taken(engine, 3)
    await engine.operator.alter(Selection((first.id,)), Cancel(force=True))
    renewal = await engine.jobs.renew("w", [(claim.id, claim.token) for claim in (first, *others)])
    assert renewal.lost == [(first.id, first.token)]
    tally = await engine.operator.alter(Selection(tuple(claim.id for claim in others)), Cancel(force=True))
    assert tally.changed == 2
    with aside() as look:
        assert look.execute("select count(*) from lease").fetchone() == (0,)
    assert (await engine.operator.census()).by_status()[Status.CANCELED] == 3


# --- jobs that change their place under our eyes ----------------------------------------------------------------


@pytest.mark.spec("PGOP-14")
async def test_a_job_that_is_being_claimed_is_found_where_it_went(
    engine: PostgresEngine, aside: Callable[[], psycopg.Connection]
) -> None:
    """The claim takes the row away and commits while the cancel waits for it: the cancel becomes a request."""
    [job] = await stored(engine, 1)
    await engine.jobs.wait([CONTROL], 0)
    with aside() as claimer, aside() as look:
        claimer.execute("delete from ready where id = %s", (job.hex(),))
        claimer.execute(
            "insert into lease (id, token, claimed, worker, queue, open, ids)"
            " values (nextval('lease_number'), 77, 1, 'w', 'default', '1', array[%s::uuid])",
            (job.hex(),),
        )
        action = asyncio.create_task(engine.operator.alter(Selection((job,)), Cancel()))
        await blocked(claimer)
        claimer.commit()
        tally = await action
        assert (tally.changed, tally.cancel_requested, tally.missing) == (0, 1, 0)
        assert look.execute("select cancel::text from lease").fetchone() == ("1",)


@pytest.mark.spec("PGOP-14")
@pytest.mark.parametrize("to", ["ready", "done"])
async def test_a_job_that_is_being_settled_is_found_where_it_went(
    engine: PostgresEngine, aside: Callable[[], psycopg.Connection], to: str
) -> None:
    [job] = await stored(engine, 1)
    await taken(engine, 1)
    with aside() as settler:
        settler.execute("delete from lease")
        if to == "ready":
            settler.execute(
                "insert into ready (due, token, id, attempts, priority, status, settled, past, queue)"
                " values (1, 1, %s, 1, 0, 0, 0, false, 'default')",
                (job.hex(),),
            )
            settler.execute("insert into delta (queue, kind, pending, running) values ('default', 'work', 1, -1)")
        else:
            settler.execute(
                "insert into done (id, finished, expires, token, attempts, status, settled, cancel, queue)"
                " values (%s, 1, 1, 1, 1, 3, 3, false, 'default')",
                (job.hex(),),
            )
            settler.execute("insert into delta (queue, kind, done, running) values ('default', 'work', 1, -1)")
        action = asyncio.create_task(engine.operator.alter(Selection((job,)), Cancel()))
        await blocked(settler)
        settler.commit()
    tally = await action
    if to == "ready":
        assert tally.changed == 1
        assert (await engine.operator.census()).by_status()[Status.CANCELED] == 1
    else:
        assert tally.refused == {Status.DONE: 1}


@pytest.mark.spec("PGOP-14")
async def test_a_claim_steps_over_what_is_being_moved(
    engine: PostgresEngine, aside: Callable[[], psycopg.Connection]
) -> None:
    first, second = await stored(engine, 2)
    with aside() as operator:
        operator.execute("select 1 from ready where id = %s for update", (first.hex(),))
        assert [claim.id for claim in await engine.jobs.claim(Demand("w", (("default", 5),)))] == [second]


# --- words ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("PGOP-15")
@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
async def test_any_reason_can_be_stored(engine: PostgresEngine, running: bool) -> None:
    [job] = await stored(engine, 1)
    if running:
        await taken(engine, 1)
    await engine.operator.alter(Selection((job,)), Cancel("null \0 and half a pair \ud800"))
    [record] = await engine.operator.get([job])
    assert record is not None
    said = record.metadata["stoker.cancel_reason"] if running else record.last_error
    assert said == "null \\x00 and half a pair \\ud800"


@pytest.mark.spec("PGOP-15")
async def test_a_key_that_cannot_be_read_is_let_go_of(
    engine: PostgresEngine, aside: Callable[[], psycopg.Connection]
) -> None:
    [job] = await stored(engine, 1, unique=Unique("k"))
    with aside() as hand:
        hand.execute("update job set utraits = 999")
        hand.commit()
        assert (await engine.operator.alter(Selection((job,)), Delete())).changed == 1
        assert hand.execute("select count(*) from dedupe").fetchone() == (0,)


# --- everything at once -----------------------------------------------------------------------------------------


async def work(engine: PostgresEngine, worker: str, dice: random.Random, rounds: int) -> None:
    """Take jobs and end them in every way there is."""
    await engine.jobs.renew(worker, [], first=True)
    for _ in range(rounds):
        claims = await engine.jobs.claim(Demand(worker, (("default", 8), ("other", 8))))
        settlements = []
        for claim in claims:
            status = dice.choice([Status.DONE, Status.DEAD, Status.RETRYING, Status.PENDING])
            settlements.append(
                Settlement(
                    claim.id,
                    worker,
                    claim.token,
                    status,
                    after=dice.choice([0, MILLISECOND]),
                    error="no" if status in (Status.DEAD, Status.RETRYING) else None,
                    ref=claim.ref,
                )
            )
        await engine.jobs.settle(settlements)
        await engine.operator.expire(Retention())


async def meddle(engine: PostgresEngine, dice: random.Random, rounds: int) -> None:
    """Do whatever people can do, to a random handful of jobs."""
    for _ in range(rounds):
        page = await engine.operator.find(Query(limit=200))
        jobs = tuple(job.id for job in dice.sample(page.jobs, min(12, len(page.jobs))))
        changes: list[Change] = [
            Cancel(),
            Cancel(force=True),
            Requeue(),
            Clone(tuple(mint() for _ in jobs)),
            Discard(),
            Move(dice.choice(["default", "other"])),
            Prioritize(dice.randint(-3, 3)),
            RunNow(),
        ]
        await engine.operator.alter(Selection(jobs), dice.choice(changes))
        if dice.random() < 0.2:
            await engine.operator.alter(Selection(jobs[:2]), Delete())


async def produce(engine: PostgresEngine, dice: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        drafts = [
            Draft(
                mint(),
                dice.choice(["a", "b"]),
                queue=dice.choice(["default", "other"]),
                delay=dice.choice([0, 0, HOUR]),
                unique=Unique(f"k{dice.randint(0, 5)}") if dice.random() < 0.4 else None,
            )
            for _ in range(10)
        ]
        await engine.jobs.insert(drafts)


@pytest.mark.spec("PGOP-16")
async def test_workers_and_people_at_once_leave_every_job_in_one_place(
    engine: PostgresEngine, aside: Callable[[], psycopg.Connection], campaign: bool
) -> None:
    """After a storm each job is in one place, the counts equal a recount, and keys are held by active jobs alone."""
    seed = random.randrange(1 << 30) if campaign else 7
    rounds = 150 if campaign else 12
    twins = [engine.for_loop() for _ in range(3)]
    for twin in twins:
        await twin.open()
    dice = [random.Random(seed + n) for n in range(8)]
    try:
        await asyncio.gather(
            *(work(twin, f"w{n}", dice[n], rounds) for n, twin in enumerate(twins)),
            *(meddle(one, dice[3 + n], rounds) for n, one in enumerate((engine, twins[0], twins[1]))),
            *(produce(one, dice[6 + n], rounds) for n, one in enumerate((engine, twins[2]))),
        )
    finally:
        for twin in twins:
            await twin.close()
    with aside() as look:
        places = Counter(job for (job,) in look.execute(PLACES.encode()))
        bodies = {job for (job,) in look.execute("select id from job")}
        assert set(places) == bodies, f"seed {seed}"
        assert set(places.values()) == {1}, f"seed {seed}"
        assert look.execute("select count(*) from lease where open = open # open").fetchone() == (0,)
        idle = "select count(*) from dedupe d where not exists (select 1 from job where id = d.id)"
        assert look.execute(idle.encode()).fetchone() == (0,)
        loose = "select count(*) from dedupe d join done using (id)"
        assert look.execute(loose.encode()).fetchone() == (0,)
        keyless = """
            select count(*) from job j where ukey is not null
            and not exists (select 1 from dedupe d where d.id = j.id)
            and not exists (select 1 from done where id = j.id)
        """
        assert look.execute(keyless.encode()).fetchone() == (0,)
    found: Counter[tuple[str, str, Status]] = Counter()
    cursor: JobId | None = None
    while True:
        page = await engine.operator.find(Query(limit=1_000, cursor=cursor))
        found.update((job.queue, job.kind, job.status) for job in page.jobs)
        cursor = page.cursor
        if cursor is None:
            break
    census = await engine.operator.census()
    assert {(count.queue, count.kind, count.status): count.n for count in census.counts} == found, f"seed {seed}"


@pytest.mark.spec("CENSUS-10")
async def test_a_census_counts_on_where_many_jobs_are_due_and_many_are_not(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.engines.postgres.census.COUNT_LIMIT", 2)
    drafts = [(queue, n) for queue, due in (("even", 40), ("few", 1), ("late", 60)) for n in range(due)]
    await engine.jobs.insert([Draft(uuid.uuid4().bytes, "work", queue=queue, priority=n % 3) for queue, n in drafts])
    later = [Draft(uuid.uuid4().bytes, "work", queue=queue, priority=n % 3, delay=HOUR) for queue, n in drafts[::2]]
    await engine.jobs.insert(later)
    census = await engine.operator.census()
    assert census.later == Counter(draft.queue for draft in later)
    assert {queue: census.ready(queue) for queue in ("even", "few", "late")} == {"even": 40, "few": 1, "late": 60}


@pytest.mark.spec("LEASE-17")
async def test_after_a_start_of_the_server_a_lease_has_its_own_length_to_be_renewed(
    engine: PostgresEngine, aside: Callable[[], psycopg.Connection]
) -> None:
    for worker, lease in (("long", 10_000 * HOUR), ("short", MILLISECOND)):
        await engine.jobs.insert([Draft(uuid.uuid4().bytes, "work")])
        await engine.jobs.renew(worker, [], first=True)
        assert len(await engine.jobs.claim(Demand(worker, (("default", 1),)))) == 1
        await engine.jobs.renew(worker, [], lease=lease)
    with aside() as connection:
        connection.execute("update worker set until = 0 where name <> 'w'")  # as if it had been down for long
    assert [claim.former for claim in await engine.jobs.reap("w", 10)] == ["short"]

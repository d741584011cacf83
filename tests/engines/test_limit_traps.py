"""Limits by key in the interleavings and states that broke designs before this one."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest

from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.postgres import PostgresEngine, claim, subqueues
from stoker.engines.postgres.connection import FOR_JOBS, Connection
from stoker.engines.postgres.statements import STATEMENTS, placed
from stoker.engines.sqlite import SqliteEngine
from stoker.engines.sqlite.connection import Connection as SqliteConnection
from stoker.model.control import Tuning
from stoker.model.errors import EngineUnavailable
from stoker.model.ids import JobId, Mint
from stoker.model.job import Claim, Demand, Draft, Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Done, Failed
from stoker.model.query import Delete, Selection
from stoker.model.steps import Save, Step
from stoker.model.time import HOUR, MILLISECOND, MINUTE
from stoker.testing.clock import VirtualClock

START = 1_800_000_000_000_000

Make: TypeAlias = Callable[[VirtualClock], Awaitable[Engine]]
"""Opens one more engine on the test's store, with this clock."""

Run: TypeAlias = Callable[..., None]
"""Runs a statement on the store's tables, behind the engines' backs."""


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on these engines."""
    return pytest.mark.parametrize(
        "kind", [pytest.param(name, marks=pytest.mark.engine(name)) for name in names], ids=names
    )


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
async def make(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[MemoryEngine] = []
    async with AsyncExitStack() as stack:

        async def opened(clock: VirtualClock) -> Engine:
            engine: Engine
            if kind == "memory":
                engine = made[0].for_loop() if made else MemoryEngine(clock)
                made.append(engine)
            elif kind == "sqlite":
                engine = SqliteEngine(request.getfixturevalue("tmp_path") / "jobs.db", clock=clock)
            else:
                engine = PostgresEngine(
                    request.getfixturevalue("postgres_url"),
                    clock=clock,
                    schema=request.getfixturevalue("postgres_schema"),
                )
            await engine.open()
            stack.push_async_callback(engine.close)
            return engine

        yield opened


@pytest.fixture
async def engine(make: Make, clock: VirtualClock) -> Engine:
    engine = await make(clock)
    for worker in ("w1", "w2"):
        await engine.jobs.renew(worker, [], lease=HOUR, first=True)
    return engine


@pytest.fixture
def run(kind: str, request: pytest.FixtureRequest) -> Run:
    def on_sqlite(statement: str, *values: Any) -> None:
        path: Path = request.getfixturevalue("tmp_path") / "jobs.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(statement.replace("{}", "stoker_").replace("%s", "?"), values).rowcount

    def on_postgres(statement: str, *values: Any) -> None:
        schema = request.getfixturevalue("postgres_schema")
        with psycopg.connect(request.getfixturevalue("postgres_url"), autocommit=True) as connection:
            assert connection.execute(statement.replace("{}", f"{schema}.").encode(), values).rowcount

    return on_sqlite if kind == "sqlite" else on_postgres


_mint = Mint(lambda: START, os.urandom)


def limited(key: str | None = "a", n: int = 1, **options: Any) -> Draft:
    slot = Slot("api", key, n, options.pop("hold", "running"), None)
    return Draft(options.pop("id", None) or _mint(), "work", options=Options(limit=slot), **options)


async def take(engine: Engine, n: int = 9, worker: str = "w1") -> list[Claim]:
    return await engine.jobs.claim(Demand(worker, (("default", n),)))


async def end(engine: Engine, *claims: Claim) -> None:
    settled = await engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    assert settled.verdicts == [Verdict.APPLIED] * len(claims)


async def running(engine: Engine) -> dict[str, int]:
    return {one.name: one.running for one in await engine.control.subqueues("default") if one.running}


async def drain(engine: Engine, *claims: Claim, most: int) -> list[JobId]:
    """End these claims and all jobs that are left, never more than `most` of a key at once; returns whom it claimed."""
    order: list[JobId] = []
    held = list(claims)
    while held or (held := await take(engine)):
        assert await running(engine) == dict(Counter(_line(claim) for claim in held))
        await end(engine, *held)
        held = await take(engine)
        order += [claim.id for claim in held]
        assert max(Counter(map(_line, held)).values(), default=0) <= most
    assert await engine.control.subqueues("default") == []
    assert set((await engine.operator.census()).by_status().items()) >= {(Status.PENDING, 0), (Status.RUNNING, 0)}
    return order


def _line(claim: Claim) -> str:
    assert claim.options.limit is not None
    return claim.options.limit.subqueue


# --- records that cannot be read --------------------------------------------------------------------------------


_DAMAGES = {
    "options": "UPDATE {}%s SET options = replace(options, '60000000', '-6') WHERE id = %%s",
    "key": "UPDATE {}%s SET ukey = 'k', utraits = 99 WHERE id = %%s",
}


@pytest.mark.spec("LIMIT-13")
@on("sqlite", "postgres")
@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES)
@pytest.mark.parametrize("hold", ["running", "retrying"])
async def test_a_job_that_cannot_be_read_gives_its_slot_back(
    engine: Engine, run: Run, kind: str, damage: str, hold: Any
) -> None:
    """It is set aside as dead when a claim meets it; the jobs behind it run, of its key and of others."""
    slot = Slot("api", "a", 1, hold, None)
    drafts = [Draft(_mint(), "work", options=Options(limit=slot, timeout=MINUTE)) for _ in range(3)]
    plain = Draft(_mint(), "work")
    await engine.jobs.insert([*drafts, plain])
    bad = drafts[0].job_id
    run(damage % ("body" if kind == "sqlite" else "job"), bad if kind == "sqlite" else bad.hex())
    first = await take(engine)
    first += await take(engine)
    assert {claim.id for claim in first} == {drafts[1].job_id, plain.job_id}
    [record] = await engine.operator.get([bad])
    assert record is not None
    assert (record.status, record.attempts) == (Status.DEAD, 0)
    assert (record.last_error or "").startswith("corrupt record: ")
    assert await running(engine) == {"api/a": 1}
    await end(engine, *first)
    assert [one.id for one in await take(engine)] == [drafts[2].job_id]


@pytest.mark.spec("LIMIT-13")
@on("sqlite", "postgres")
async def test_a_running_job_that_cannot_be_read_gives_its_slot_back_when_it_is_reaped(
    engine: Engine, run: Run, kind: str, clock: VirtualClock
) -> None:
    drafts = [limited(), limited(), limited("b")]
    await engine.jobs.insert(drafts)
    assert len(await take(engine)) == 2
    table, bad = ("body", drafts[0].job_id) if kind == "sqlite" else ("job", drafts[0].job_id.hex())
    run(_DAMAGES["key"] % table, bad)
    clock.advance(2 * 3_600)
    await engine.jobs.renew("w2", [], lease=HOUR, first=True)
    [passed] = await engine.jobs.reap("w2", 9)
    assert passed.id == drafts[2].job_id
    [record] = await engine.operator.get([drafts[0].job_id])
    assert record is not None
    assert (record.status, record.attempts) == (Status.DEAD, 1)
    assert [one.id for one in await take(engine, worker="w2")] == [drafts[1].job_id]
    assert await running(engine) == {"api/a": 1, "api/b": 1}


@pytest.mark.spec("FAULT-40", "FAULT-41")
@on("postgres")
async def test_a_plain_job_that_cannot_be_read_is_set_aside(engine: Engine, run: Run, clock: VirtualClock) -> None:
    """By a claim, by the renewal of a worker that does not know it, and by the one who reaps it."""
    drafts = [Draft(_mint(), "work", options=Options(timeout=MINUTE)) for _ in range(4)]
    await engine.jobs.insert(drafts)
    run(_DAMAGES["options"] % "job", drafts[0].job_id.hex())
    assert [one.id for one in await take(engine)] == [one.job_id for one in drafts[1:]]
    run(_DAMAGES["options"] % "job", drafts[1].job_id.hex())
    clock.advance(3_000)
    renewal = await engine.jobs.renew("w1", [], lease=MINUTE)
    assert [one.id for one in renewal.orphaned] == [one.job_id for one in drafts[2:]]
    run(_DAMAGES["key"] % "job", drafts[2].job_id.hex())
    clock.advance(300)
    assert [one.id for one in await engine.jobs.reap("w2", 9)] == [drafts[3].job_id]
    found = [job for job in await engine.operator.get([one.job_id for one in drafts]) if job is not None]
    assert [job.status for job in found] == [Status.DEAD] * 3 + [Status.RUNNING]
    assert [job.attempts for job in found] == [0, 1, 1, 1]
    assert all((job.last_error or "").startswith("corrupt record: ") for job in found[:3])
    assert (await engine.operator.census()).by_status()[Status.DEAD] == 3


# --- claims beside claims, inserts and ends ---------------------------------------------------------------------


class Held:
    """Stops one claim before a statement of it, and lets it go on."""

    def __init__(self, engine: PostgresEngine, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = 0
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(engine._store, "play", self._play)
        self._before = before
        self._texts = engine._store.texts

    async def _play(self, connection: Connection, steps: Any) -> Any:
        answer: Any = None
        try:
            while True:
                name, values = steps.send(answer)
                self.seen += 1
                if self.seen == self._before:
                    self.reached.set()
                    await self.go_on.wait()
                answer = await connection.run(self._texts[name], values, 5)
        except StopIteration as ended:
            return ended.value


@pytest.mark.spec("LIMIT-45")
@on("postgres")
@pytest.mark.parametrize("fair", [False, True], ids=["in order", "fair"])
@pytest.mark.parametrize("before", range(1, 12))
async def test_a_claim_that_is_held_before_any_of_its_statements(
    engine: Engine, make: Make, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, before: int, fair: bool
) -> None:
    """Beside it jobs of its key are stored and end without waiting, and another claim waits and then goes without.

    The key has no state when the first claim begins; later ones find what was stored while they waited.
    """
    monkeypatch.setattr(claim, "LOCK_WAIT", 0.05)
    assert isinstance(engine, PostgresEngine)
    twin = await make(clock)
    if fair:
        await engine.control.tune("default", Tuning(fair=True))
    first, second, third, other = limited(), limited(), limited(), limited("b")
    await engine.jobs.insert([first, other])
    running_first, running_other = sorted(await take(twin, worker="w2"), key=lambda one: one.id)
    assert running_other.id == other.job_id
    await end(twin, running_first)
    await engine.jobs.insert([second])
    held = Held(engine, before, monkeypatch)
    waiting = asyncio.create_task(take(engine))
    reached = asyncio.create_task(held.reached.wait())
    await asyncio.wait([waiting, reached], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    if not waiting.done():
        async with asyncio.timeout(60):
            await twin.jobs.insert([third])
            await end(twin, running_other)
            assert await take(twin, worker="w2") == []
            await twin.jobs.insert([limited("b")])
    else:
        await twin.jobs.insert([third, limited("b")])
        await end(twin, running_other)
    held.go_on.set()
    claims = await waiting
    claims += await take(twin, worker="w2")
    assert Counter(_line(one) for one in claims) == {"api/a": 1, "api/b": 1}
    assert second.job_id in {one.id for one in claims}
    assert await drain(twin, *claims, most=1) == [third.job_id]


@pytest.mark.spec("LIMIT-45")
@on("postgres")
async def test_claims_that_wait_for_each_other_never_stop(
    engine: Engine, make: Make, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four engines that claim two divided queues in opposite orders each takes one lock at a time."""
    monkeypatch.setattr(claim, "LOCK_WAIT", 5.0)
    engines = [engine, *[await make(clock) for _ in range(3)]]
    drafts = [limited(f"k{n % 7}", 2, queue=queue) for n in range(40) for queue in ("left", "right")]
    await engine.jobs.insert(drafts)
    orders = [("left", "right"), ("right", "left")]
    done: list[JobId] = []
    async with asyncio.timeout(60):
        while len(done) < len(drafts):
            demands = [Demand(f"w{n % 2 + 1}", tuple((queue, 5) for queue in orders[n % 2])) for n in range(4)]
            found = await asyncio.gather(
                *(one.jobs.claim(demand) for one, demand in zip(engines, demands, strict=True))
            )
            claims = [claim for some in found for claim in some]
            assert claims
            assert max(Counter((claim.queue, _line(claim)) for claim in claims).values()) <= 2
            await asyncio.gather(*(end(engines[n % 4], claim) for n, claim in enumerate(claims)))
            done += [claim.id for claim in claims]
    assert len(set(done)) == len(done)


@pytest.mark.spec("LIMIT-45")
@on("memory", "sqlite", "postgres")
@pytest.mark.parametrize("ahead", [5, -5])
async def test_claims_whose_clocks_differ_leave_no_job_behind(
    engine: Engine, make: Make, kind: str, clock: VirtualClock, ahead: int
) -> None:
    """What one is called for is in the future for the other, which looks, finds nothing due, and closes nothing."""
    other_clock = clock if kind == "memory" else VirtualClock(START + ahead * MILLISECOND)
    twin = await make(other_clock)
    drafts = [limited(at=START + n * MILLISECOND) for n in range(4)]
    await engine.jobs.insert(drafts)
    found: list[JobId] = []
    for n in range(12):
        one = (engine, twin)[n % 2]
        for claim_ in await take(one):
            found.append(claim_.id)
            await end(one, claim_)
        for hands in {id(clock): clock, id(other_clock): other_clock}.values():
            hands.set(hands() + MILLISECOND)
    assert found == [one.job_id for one in drafts]
    assert await running(engine) == {}


@pytest.mark.spec("LIMIT-45")
@on("postgres")
@pytest.mark.parametrize("commit", [True, False])
async def test_a_job_whose_transaction_is_open_while_the_last_slot_is_freed(
    engine: Engine, make: Make, clock: VirtualClock, commit: bool
) -> None:
    """No insert decides that it must wait: it runs when it is committed, though its key was gone."""
    twin = await make(clock)
    first, second = limited(), limited()
    await engine.jobs.insert([first])
    [running_first] = await take(engine)

    class Undone(Exception):
        pass

    try:
        async with engine.transaction() as tx:
            await engine.jobs.insert([second], tx=tx)
            await end(twin, running_first)
            assert await take(twin, worker="w2") == []
            assert await twin.control.subqueues("default") == []
            if not commit:
                raise Undone
    except Undone:
        pass
    assert [one.id for one in await take(twin, worker="w2")] == ([second.job_id] if commit else [])


@pytest.mark.spec("LIMIT-45")
@on("postgres")
@pytest.mark.parametrize("fair", [False, True], ids=["in order", "fair"])
@pytest.mark.parametrize("deleted", [False, True], ids=["rolled back", "committed"])
async def test_a_job_that_another_transaction_has_locked_is_passed_over(
    engine: Engine, postgres_url: str, postgres_schema: str, fair: bool, deleted: bool
) -> None:
    """The next of its key starts instead, no worker waits; if its transaction is rolled back it starts in its turn."""
    if fair:
        await engine.control.tune("default", Tuning(fair=True))
    drafts = [limited(key, 2, priority=n) for n in range(4) for key in ("a", "b")]
    plain = [Draft(_mint(), "work", priority=n) for n in (0, 9)]
    await engine.jobs.insert([*drafts, *([] if fair else plain)])
    locked = {drafts[0].job_id, drafts[3].job_id, plain[0].job_id}
    with psycopg.connect(postgres_url) as connection:
        for job in locked:
            connection.execute(f"delete from {postgres_schema}.ready where id = %s".encode(), (job.hex(),))
        async with asyncio.timeout(60):
            first = await take(engine)
        expected = {
            drafts[1].job_id,
            drafts[2].job_id,
            drafts[4].job_id,
            drafts[5].job_id,
            *([] if fair else [plain[1].job_id]),
        }
        assert {one.id for one in first} == expected
        assert await running(engine) == {"api/a": 2, "api/b": 2}
        (connection.commit if deleted else connection.rollback)()
    assert [one.id for one in await take(engine)] == ([] if deleted or fair else [plain[0].job_id])
    await end(engine, *[one for one in first if one.options.limit is not None])
    rest = [one.id for one in await take(engine)]
    left = [one.job_id for one in drafts if one.job_id not in expected and not (deleted and one.job_id in locked)]
    assert set(rest) == set(left)


@pytest.mark.spec("LIMIT-45")
@on("memory", "sqlite", "postgres")
async def test_slots_are_counted_for_jobs_that_were_claimed_only(
    engine: Engine, make: Make, clock: VirtualClock
) -> None:
    """While others store jobs of the same keys, what is counted as running is what was handed out."""
    twin = await make(clock)
    keys = {f"k{n}": n % 3 + 1 for n in range(6)}
    stored: list[JobId] = []

    async def produce() -> None:
        for n in range(60):
            key = f"k{n % 6}"
            draft = limited(key, keys[key])
            stored.append(draft.job_id)
            await twin.jobs.insert([draft])

    done: list[JobId] = []
    producing = asyncio.create_task(produce())
    async with asyncio.timeout(60):
        while not producing.done() or len(done) < len(stored):
            found = await take(engine, 7)
            counted = await running(engine)
            assert counted == {f"api/{key}": n for key, n in Counter(_line(one)[4:] for one in found).items()}
            assert all(n <= keys[name[4:]] for name, n in counted.items())
            await end(engine, *found)
            done += [one.id for one in found]
            await asyncio.sleep(0)
    await producing
    assert sorted(done) == sorted(stored)


# --- heads, keys and numbers ------------------------------------------------------------------------------------


@pytest.mark.spec("LIMIT-03", "LIMIT-36")
@on("memory", "sqlite", "postgres")
async def test_equal_heads_start_by_id_and_a_head_that_is_gone_is_looked_for_again(engine: Engine) -> None:
    """Of jobs with the same priority and due time the id decides, over keys and main line; also after a removal."""
    drafts = [limited("ab"[n % 2], 9, at=START) if n % 3 else Draft(_mint(), "work", at=START) for n in range(9)]
    await engine.jobs.insert(drafts[::-1])
    order = sorted(one.job_id for one in drafts)
    assert [one.id for one in await take(engine, 4)] == order[:4]
    await engine.operator.alter(Selection((order[4], order[6])), Delete())
    assert [one.id for one in await take(engine)] == [order[5], *order[7:]]


@pytest.mark.spec("LIMIT-36")
@on("memory", "sqlite", "postgres")
async def test_the_head_of_a_full_key_may_go(engine: Engine) -> None:
    """It is removed, or a better one is rolled back, while the key is full: the next one starts in order."""
    drafts = [limited(priority=n) for n in range(4)]
    await engine.jobs.insert(drafts)
    [first] = await take(engine)
    await engine.operator.alter(Selection((drafts[1].job_id,)), Delete())
    late = limited(priority=0)
    with pytest.raises(ZeroDivisionError):
        async with engine.transaction() as tx:
            await engine.jobs.insert([late], tx=tx)
            raise ZeroDivisionError
    assert await take(engine) == []
    await end(engine, first)
    second = await take(engine)
    assert [one.id for one in second] == [drafts[2].job_id]
    assert await drain(engine, *second, most=1) == [drafts[3].job_id]


@pytest.mark.spec("LIMIT-19", "LIMIT-20")
@on("memory", "sqlite", "postgres")
async def test_no_change_of_a_number_forgets_who_runs(engine: Engine) -> None:
    """Set, cleared, changed by a deployment, in any order: slots that are held stay held."""
    await engine.jobs.insert([limited(n=2) for _ in range(6)])
    held = await take(engine)
    assert len(held) == 2
    for number in (1, None, 2):
        await engine.control.tune("default", Tuning(limits=(("api", number),)))
        assert await take(engine) == []
        assert await running(engine) == {"api/a": 2}
    await engine.jobs.insert([limited(n=1)])
    assert await take(engine) == []
    await engine.control.tune("default", Tuning(limits=(("api", None),)))
    await end(engine, held[0])
    assert await take(engine) == []
    await engine.jobs.insert([limited(n=3)])
    assert len(await take(engine)) == 2
    assert await running(engine) == {"api/a": 3}


def watched(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list that gets every statement from now on, with the number of its rows; wake-ups go beside it."""
    rows: list[tuple[str, int]] = []
    if isinstance(engine, PostgresEngine):
        run_ = Connection.run

        async def counted(self: Connection, *args: Any, **options: Any) -> Any:
            found = await run_(self, *args, **options)
            if "pg_notify" not in args[0]:
                rows.append((args[0], len(found)))
            return found

        monkeypatch.setattr(Connection, "run", counted)
        return rows
    run_exchange = SqliteConnection.run_exchange

    def counting(steps: Any) -> Any:
        found: Any = None
        while True:
            try:
                step = steps.send(found)
            except StopIteration as ended:
                return ended.value
            found = yield step
            text, n = (step.statement, found) if isinstance(found, int) else (step[0], len(found))
            rows.append((text, n))

    monkeypatch.setattr(SqliteConnection, "run_exchange", lambda self, steps: run_exchange(self, counting(steps)))
    return rows


@pytest.mark.spec("LIMIT-47")
@on("sqlite", "postgres")
async def test_a_queue_without_keys_runs_the_same_statements_beside_queues_with_keys(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Insert, claim and settle of its jobs: the statements of a store without limits."""

    async def life() -> None:
        await engine.jobs.insert([Draft(_mint(), "work", queue="plain") for _ in range(5)])
        claims = await engine.jobs.claim(Demand("w1", (("plain", 3),)))
        settled = await engine.jobs.settle(
            [conclude(one, Done()) for one in claims], demand=Demand("w1", (("plain", 9),))
        )
        await end(engine, *settled.claims)

    for _ in range(2):  # until the engine knows the queue
        await life()
    rows = watched(engine, monkeypatch)
    await life()
    alone = {text for text, _ in rows}
    await engine.jobs.insert([limited(f"k{n}") for n in range(50)])
    await engine.control.tune("fair", Tuning(fair=True))
    await engine.jobs.insert([Draft(_mint(), "work", queue="fair", tenant=f"t{n}") for n in range(50)])
    assert len(await take(engine, 20)) == 20
    rows.clear()
    await life()
    assert rows
    assert {text for text, _ in rows} <= alone


@pytest.mark.spec("EMIT-15")
@on("sqlite", "postgres")
async def test_a_plain_job_runs_the_same_statements_beside_jobs_that_emit(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Insert, claim and settle: counted alone, and beside a run that has emitted and is watched."""

    async def life() -> None:
        await engine.jobs.insert([Draft(_mint(), "work", queue="plain")])
        await end(engine, *await engine.jobs.claim(Demand("w1", (("plain", 1),))))

    talker = Draft(_mint(), "talk", queue="talk")
    await engine.jobs.insert([talker])
    [talking] = await engine.jobs.claim(Demand("w1", (("talk", 1),)))
    for _ in range(2):  # until the engine knows the queue
        await life()
    rows = watched(engine, monkeypatch)
    await life()
    alone = list(rows)
    page = Step("!00", value=b'[1,0,1,[[1,0,"x"]]]', until=1)
    await engine.jobs.news(talker.job_id, 0, 0)
    assert await engine.steps.save([Save(talking.id, "w1", talking.token, (page,), ref=talking.ref)]) == ["applied"]
    rows.clear()
    await life()
    assert rows == alone


@pytest.mark.spec("PASS-13")
@on("sqlite", "postgres")
async def test_a_link_with_a_marker_runs_the_statements_of_one_without(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: the result travels in the write that ends the job before."""

    async def life(options: Options) -> None:
        link = Draft(_mint(), "link", b'{"n":"PREVIOUS"}', queue="plain", options=options)
        await engine.jobs.insert([Draft(_mint(), "first", queue="plain").then(link)])
        for _ in range(2):
            await end(engine, *await engine.jobs.claim(Demand("w1", (("plain", 1),))))

    for _ in range(2):  # until the engine knows the queue
        await life(Options())
    rows = watched(engine, monkeypatch)
    await life(Options())
    without = list(rows)
    rows.clear()
    await life(Options(previous=("n",)))
    assert rows == without


@pytest.mark.spec("LIMIT-46")
@on("sqlite", "postgres")
@pytest.mark.parametrize("fair", [False, True], ids=["in order", "fair"])
async def test_a_claim_visits_no_more_keys_than_it_wants_jobs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fair: bool
) -> None:
    """Two thousand open keys and two hundred full ones cost a claim as many rows as twenty open ones."""
    if fair:
        await engine.control.tune("default", Tuning(fair=True))

    await engine.jobs.insert([limited(f"full {n}") for n in range(200)])
    assert len(await take(engine, 200)) == 200
    await engine.jobs.insert([limited(f"full {n}") for n in range(200)])
    await engine.jobs.insert([limited(f"few {n}") for n in range(20)])
    await take(engine, 1)
    rows = watched(engine, monkeypatch)
    await take(engine, 5)
    few = sum(n for _, n in rows)
    for part in range(2):
        await engine.jobs.insert([limited(f"many {part} {n}") for n in range(1_000)])
        await take(engine, 1)  # which looks at what is new
    await take(engine, 1)
    rows.clear()
    assert len(await take(engine, 5)) == 5
    assert sum(n for _, n in rows) <= few


@pytest.mark.spec("LIMIT-48")
@on("postgres")
async def test_a_long_log_is_applied_in_short_transactions_before_jobs_are_taken(
    engine: Engine, postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that fails on the way keeps what was applied; the last job of the import goes first by its priority."""
    assert isinstance(engine, PostgresEngine)
    monkeypatch.setattr(subqueues, "MOST_POST", 10)
    first = limited("urgent", priority=-9)
    many = [limited(f"k{n}") for n in range(95)]
    await engine.jobs.insert([*many, first])
    run_, news = Connection.run, engine._store.texts["subqueue_news"]
    seen = itertools.count(1)

    async def breaking(self: Connection, text: str, *args: Any, **options: Any) -> Any:
        if text == news and next(seen) == 4:
            raise EngineUnavailable("the connection died")
        return await run_(self, text, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "run", breaking)
        with pytest.raises(EngineUnavailable):
            await take(engine, 3)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        rows = connection.execute(f"SELECT count(*) FROM {postgres_schema}.subqueue_log".encode()).fetchone()
    assert rows == (96 - 30,)
    assert [one.id for one in await take(engine, 3)] == [first.job_id, many[0].job_id, many[1].job_id]


@pytest.mark.spec("LIMIT-46")
@on("postgres")
async def test_states_are_found_by_name_and_not_by_walking_the_queue(
    engine: Engine, postgres_url: str, postgres_schema: str
) -> None:
    """Each name is a search in the key of the table, however many names the queue has."""
    await engine.jobs.insert([limited(f"k{n}") for n in range(1_000)])
    await take(engine, 5)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name, value in FOR_JOBS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        text = placed(STATEMENTS["subqueue_named"], postgres_schema)
        connection.execute(f"prepare named as {text}".encode())
        plan = connection.execute("explain execute named ('default', array['api/k1', 'api/k2'])").fetchall()
    [condition] = [line for (line,) in plan if "Index Cond" in line]
    assert "queue" in condition
    assert "name" in condition
    assert not any("Filter" in line for (line,) in plan)


@pytest.mark.spec("LIMIT-14", "HOLD-06", "HOLD-07")
@on("memory", "sqlite", "postgres")
async def test_a_job_that_kept_its_slot_gives_it_back_once_by_whatever_door(
    engine: Engine, clock: VirtualClock
) -> None:
    """A retry that waits holds it; deleting the dead one, a second end, and a late settlement give nothing back."""
    drafts = [limited(hold="retrying") for _ in range(4)]
    await engine.jobs.insert(drafts)
    [first] = await take(engine)
    await engine.jobs.settle([conclude(first, Failed("broken", after=MINUTE))])
    assert await take(engine) == []
    clock.advance(60)
    [again] = await take(engine)
    assert again.id == first.id
    assert (await engine.jobs.settle([conclude(first, Done())])).verdicts == [Verdict.LOST]
    assert await take(engine) == []
    await engine.jobs.settle([conclude(again, Failed("hopeless", retry=False))])
    await engine.operator.alter(Selection((first.id,)), Delete())
    second = await take(engine)
    assert [one.id for one in second] == [drafts[1].job_id]
    assert await running(engine) == {"api/a": 1}
    assert await drain(engine, *second, most=1) == [drafts[2].job_id, drafts[3].job_id]

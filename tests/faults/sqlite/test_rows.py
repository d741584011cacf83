"""A record that cannot be read, whatever wrote it, must not affect other jobs."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.base import CORRUPT
from stoker.engines.sqlite import SqliteEngine
from stoker.model.control import Tuning
from stoker.model.errors import CorruptRecord
from stoker.model.groups import into_group, new_group
from stoker.model.ids import JobId, text
from stoker.model.job import FINISHED, Claim, Demand, Draft, Note, Options, Settlement, Status, Verdict
from stoker.model.limit import Slot
from stoker.model.query import Change, Clone, Delete, Discard, Query, Requeue, Retention, Selection
from stoker.model.schedule import NO_ID, Schedule
from stoker.model.throttle import Rate
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.clock import VirtualClock
from tests.faults.sqlite.audit import audit

pytestmark = [pytest.mark.engine("sqlite")]

DEMAND = Demand("w", (("default", 100),))
OPTIONS = "UPDATE stoker_body SET options = x'7b7b' WHERE id = ?"
OPTIONS_NUMBER = "UPDATE stoker_body SET options = 7 WHERE id = ?"
OPTIONS_VALUE = """UPDATE stoker_body SET options = '{"timeout":-5}' WHERE id = ?"""
TRAITS = "UPDATE stoker_body SET ukey = 'k', utraits = 99 WHERE id = ?"
METADATA = "UPDATE stoker_past SET metadata = x'ff' WHERE seq = (SELECT seq FROM stoker_body WHERE id = ?)"
LOG = "UPDATE stoker_past SET log = '[1]' WHERE seq = (SELECT seq FROM stoker_body WHERE id = ?)"
BODIES = {"options": OPTIONS, "a number": OPTIONS_NUMBER, "a value": OPTIONS_VALUE, "traits": TRAITS}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[SqliteEngine]:
    made = SqliteEngine(tmp_path / "jobs.db", clock=clock, durability="process")
    await made.open()
    await made.jobs.renew("w", [], lease=HOUR, first=True)
    yield made
    await made.close()


def spoil(engine: SqliteEngine, statement: str, *values: Any) -> None:
    """Write to the database without constraints."""
    with closing(sqlite3.connect(engine.path, timeout=10)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        changed = connection.execute(statement, values).rowcount
        connection.commit()
    assert changed == 1


async def insert(engine: SqliteEngine, n: int = 3, **options: Any) -> list[JobId]:
    drafts = [Draft(number.to_bytes(1) + os.urandom(15), "send", **options) for number in range(n)]
    return [receipt.id for receipt in await engine.jobs.insert(drafts)]


def ending(claim: Claim, status: Status = Status.DONE, **options: Any) -> Settlement:
    return Settlement(claim.id, claim.worker, claim.token, status, ref=claim.ref, **options)


async def status(engine: SqliteEngine, job: JobId) -> Status:
    [record] = await engine.operator.get([job])
    assert record is not None
    return record.status


async def everything_else_works(engine: SqliteEngine, bad: JobId) -> None:
    """Operators see the job and can remove it; new jobs run; the file passes the audit."""
    assert bad in {job.id for job in (await engine.operator.find(Query())).jobs}
    await engine.operator.census()
    await insert(engine, 2)
    claims = await engine.jobs.claim(DEMAND)
    assert len(claims) == 2
    assert (await engine.jobs.settle([ending(claim) for claim in claims])).verdicts == [Verdict.APPLIED] * 2
    tally = await engine.operator.alter(Selection((bad,)), Delete())
    assert (tally.changed, tally.refused) == (1, {})
    assert await engine.operator.get([bad]) == [None]
    assert audit(engine.path) == []


@pytest.mark.spec("FAULT-40", "HEALTH-10")
@pytest.mark.parametrize("statement", BODIES.values(), ids=BODIES)
async def test_a_waiting_job_that_cannot_be_read_is_set_aside(engine: SqliteEngine, statement: str) -> None:
    first, bad, last = await insert(engine)
    spoil(engine, statement, bad)
    assert [claim.id for claim in await engine.jobs.claim(DEMAND)] == [first, last]
    [record] = await engine.operator.get([bad])
    assert record is not None
    assert record.status is Status.DEAD
    assert "corrupt" in (record.last_error or "")
    assert audit(engine.path) == []
    assert await engine.jobs.claim(DEMAND) == []
    [named] = [one.read for one in await Admin(Stoker(engine)).health.check() if one.name == "damaged data"]
    assert named == f"job {text(bad)} cannot be read: {record.metadata[CORRUPT]}"
    await everything_else_works(engine, bad)


@pytest.mark.spec("FAULT-40", "GROUP-03")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE stoker_body SET options = replace(options, '60', '-60') WHERE id = ?",
        "UPDATE stoker_body SET kind = x'ff' WHERE id = ?",
        TRAITS,
    ],
)
async def test_a_member_that_cannot_be_read_is_dead_for_its_group(engine: SqliteEngine, statement: str) -> None:
    group, drafts = os.urandom(16), [Draft(os.urandom(16), "send", options=Options(timeout=60)) for _ in range(2)]
    failure = Draft(os.urandom(16), "failure")
    await engine.jobs.insert(into_group(group, drafts), group=new_group(group, on_failure=failure, sealed=True))
    spoil(engine, statement, drafts[0].job_id)
    [claim] = await engine.jobs.claim(DEMAND)
    await engine.jobs.settle([ending(claim)])
    [found] = await engine.groups.get([group])
    assert found is not None
    assert (found.done, found.dead, found.closed_at is not None) == (1, 1, True)
    assert await status(engine, failure.job_id) is Status.PENDING


@pytest.mark.spec("FAULT-40")
@pytest.mark.parametrize("code", [1, 3, 9, 77])
async def test_a_waiting_job_with_an_unknown_status_is_set_aside(engine: SqliteEngine, code: int) -> None:
    first, bad, last = await insert(engine)
    spoil(engine, "UPDATE stoker_ready SET status = ? WHERE id = ?", code, bad)
    assert [claim.id for claim in await engine.jobs.claim(DEMAND)] == [first, last]
    assert await status(engine, bad) is Status.DEAD
    totals = (await engine.operator.census()).totals["send"]
    assert (totals.enqueued, totals.completed, totals.canceled) == (3, 0, 0)


@pytest.mark.spec("FAULT-40")
async def test_a_waiting_job_whose_past_is_gone_is_set_aside(engine: SqliteEngine) -> None:
    await insert(engine)
    claims = await engine.jobs.claim(DEMAND)
    await engine.jobs.settle([ending(claim, Status.RETRYING, error="no") for claim in claims])
    bad = claims[1].id
    spoil(engine, "DELETE FROM stoker_past WHERE seq = (SELECT seq FROM stoker_body WHERE id = ?)", bad)
    assert [claim.id for claim in await engine.jobs.claim(DEMAND)] == [claims[0].id, claims[2].id]
    assert await status(engine, bad) is Status.DEAD


@pytest.mark.spec("FAULT-40")
@pytest.mark.parametrize("column", ["kind", "payload"])
async def test_a_job_without_a_part_is_set_aside(engine: SqliteEngine, column: str) -> None:
    first, bad, last = await insert(engine)
    with closing(sqlite3.connect(engine.path, timeout=10)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for before, after in (("NOT NULL", "        "), ("        ", "NOT NULL")):
            kind = "TEXT" if column == "kind" else "BLOB"
            connection.execute(
                "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'stoker_body'",
                (f"{column} {kind} {before}", f"{column} {kind} {after}"),
            )
            connection.execute("PRAGMA writable_schema = RESET")
            connection.execute("PRAGMA writable_schema = ON")
            if after != "NOT NULL":
                connection.execute(f"UPDATE stoker_body SET {column} = NULL WHERE id = ?", (bad,))
            connection.commit()
    assert [claim.id for claim in await engine.jobs.claim(DEMAND)] == [first, last]
    assert await engine.jobs.claim(DEMAND) == []
    assert (await engine.operator.find(Query())).jobs


@pytest.mark.spec("FAULT-41")
@pytest.mark.parametrize("statement", BODIES.values(), ids=BODIES)
async def test_a_running_job_that_cannot_be_read_does_not_keep_the_others_from_being_reaped(
    engine: SqliteEngine, clock: VirtualClock, statement: str
) -> None:
    first, bad, last = await insert(engine)
    await engine.jobs.renew("v", [], lease=SECOND, first=True)
    await engine.jobs.claim(Demand("v", (("default", 100),)))
    spoil(engine, statement, bad)
    clock.advance(60)
    claims = await engine.jobs.reap("w", 10)
    assert {claim.id for claim in claims} == {first, last}
    assert (await engine.jobs.settle([ending(claim) for claim in claims])).verdicts == [Verdict.APPLIED] * 2
    assert await engine.jobs.reap("w", 10) == []
    assert await status(engine, bad) in FINISHED
    await everything_else_works(engine, bad)


@pytest.mark.spec("FAULT-41")
async def test_a_running_job_that_cannot_be_read_does_not_keep_its_worker_from_renewing(
    engine: SqliteEngine, clock: VirtualClock
) -> None:
    first, bad, last = await insert(engine)
    await engine.jobs.claim(DEMAND)
    spoil(engine, OPTIONS, bad)
    clock.advance(60)
    renewal = await engine.jobs.renew("w", [], lease=HOUR)
    assert renewal.known
    assert {claim.id for claim in renewal.orphaned} == {first, last}
    clock.advance(7200)
    await engine.jobs.renew("v", [], lease=HOUR, first=True)
    assert {claim.id for claim in await engine.jobs.reap("v", 10)} == {first, last}
    assert await status(engine, bad) is Status.DEAD


@pytest.mark.spec("FAULT-42")
@pytest.mark.parametrize("statement", [METADATA, LOG, OPTIONS, TRAITS], ids=["metadata", "log", "options", "traits"])
@pytest.mark.parametrize("status_", [Status.DONE, Status.RETRYING, Status.DEAD])
async def test_a_run_ends_whatever_became_of_its_record(engine: SqliteEngine, statement: str, status_: Status) -> None:
    await insert(engine)
    claims = await engine.jobs.claim(DEMAND)
    bad = claims[1]
    await engine.jobs.note([Note(bad.id, "w", bad.token, 0.5, {"a": "b"}, ("line",))])
    spoil(engine, statement, bad.id)
    noted = await engine.jobs.note([Note(one.id, "w", one.token, 0.7, {"c": "d"}, ("more",)) for one in claims])
    assert noted == [Verdict.APPLIED] * 3
    endings = [ending(one, status_, metadata={"x": "y"}, error="no" if status_ != "done" else None) for one in claims]
    assert (await engine.jobs.settle(endings)).verdicts == [Verdict.APPLIED] * 3
    assert await status(engine, bad.id) is status_
    if status_ in FINISHED:
        await everything_else_works(engine, bad.id)


@pytest.mark.spec("FAULT-43")
@pytest.mark.parametrize("statement", BODIES.values(), ids=BODIES)
async def test_operators_can_act_on_jobs_beside_one_that_cannot_be_read(engine: SqliteEngine, statement: str) -> None:
    first, bad, last = await insert(engine)
    claims = await engine.jobs.claim(DEMAND)
    await engine.jobs.settle([ending(claim, Status.DEAD, error="no") for claim in claims])
    spoil(engine, statement, bad)
    tally = await engine.operator.alter(Selection((first, bad, last)), Requeue())
    assert {first, last} <= set(tally.changed_ids)
    assert await status(engine, first) is Status.PENDING
    assert (await engine.operator.alter(Selection((bad,)), Delete())).changed == 1
    assert audit(engine.path) == []


@pytest.mark.spec("FAULT-56")
@pytest.mark.parametrize("statement", BODIES.values(), ids=BODIES)
async def test_a_dead_job_that_cannot_be_read_is_neither_copied_nor_put_back(
    engine: SqliteEngine, statement: str
) -> None:
    """A copy would have the default options: another timeout, no key, no limit."""
    [bad] = await insert(engine, 1)
    await engine.jobs.settle([ending(claim, Status.DEAD, error="no") for claim in await engine.jobs.claim(DEMAND)])
    spoil(engine, statement, bad)
    copy = os.urandom(16)
    for change in (Clone((copy,)), Requeue()):
        tally = await engine.operator.alter(Selection((bad,)), change)
        assert (tally.changed, tally.refused, tally.created) == (0, {Status.DEAD: 1}, ())
    assert await engine.operator.get([copy]) == [None]
    admin = Admin(Stoker(engine))
    for call in (admin.jobs.retry, admin.jobs.requeue):
        with pytest.raises(CorruptRecord, match=r"cannot be read.*It is unchanged; delete removes it"):
            await call(text(bad))
    assert (await engine.operator.alter(Selection((bad,)), Discard())).changed == 1
    await everything_else_works(engine, bad)


@pytest.mark.spec("FAULT-43")
@pytest.mark.parametrize("statement", BODIES.values(), ids=BODIES)
async def test_retention_goes_on_beside_a_job_that_cannot_be_read(
    engine: SqliteEngine, clock: VirtualClock, statement: str
) -> None:
    jobs = await insert(engine)
    await engine.jobs.settle([ending(claim, keep=MINUTE) for claim in await engine.jobs.claim(DEMAND)])
    spoil(engine, statement, jobs[1])
    clock.advance(2 * DAY / 1e6)
    assert (await engine.operator.expire(Retention())).jobs == 3
    assert audit(engine.path) == []


@pytest.mark.spec("FAULT-43")
async def test_a_finished_job_with_an_unknown_status_blocks_no_other(engine: SqliteEngine, clock: VirtualClock) -> None:
    jobs = await insert(engine)
    await engine.jobs.settle([ending(claim, keep=MINUTE) for claim in await engine.jobs.claim(DEMAND)])
    spoil(engine, "UPDATE stoker_done SET status = 77 WHERE id = ?", jobs[1])
    await engine.operator.census()
    assert {jobs[0], jobs[2]} <= {job.id for job in (await engine.operator.find(Query())).jobs}
    await engine.operator.get(jobs)
    clock.advance(2 * DAY / 1e6)
    assert (await engine.operator.expire(Retention())).jobs == 3


@pytest.mark.spec("FAULT-43")
async def test_a_key_held_by_a_job_that_cannot_be_read_can_be_taken_again_once_it_is_removed(
    engine: SqliteEngine,
) -> None:
    [bad] = await insert(engine, 1, unique=Unique("k"))
    spoil(engine, OPTIONS, bad)
    await engine.jobs.claim(DEMAND)
    [job] = await insert(engine, 1, unique=Unique("k"))
    assert job != bad
    assert [claim.id for claim in await engine.jobs.claim(DEMAND)] == [job]


# --- what is missing --------------------------------------------------------------------------------------------

SIDE_ROW = "DELETE FROM stoker_ready WHERE id = ?"


@pytest.mark.spec("FAULT-44")
@pytest.mark.parametrize("change", [Delete(), Discard()], ids=["delete", "discard"])
async def test_a_job_without_its_place_is_shown_named_and_removed(engine: SqliteEngine, change: Change) -> None:
    first, bad, last = await insert(engine)
    spoil(engine, SIDE_ROW, bad)
    shown = {job.id: job for job in (await engine.operator.find(Query())).jobs}
    assert shown.keys() == {first, bad, last}
    assert [CORRUPT in shown[job].metadata for job in (first, bad, last)] == [False, True, False]
    assert (shown[bad].status, shown[bad].kind) == (Status.DEAD, "send")
    assert await engine.operator.get([bad]) == [shown[bad]]
    [named] = (await engine.diagnose()).damaged
    assert text(bad) in named
    assert (await engine.operator.alter(Selection((first, bad)), Requeue())).refused == {
        Status.PENDING: 1,
        Status.DEAD: 1,
    }
    assert (await engine.operator.alter(Selection((bad,)), change)).changed == 1
    assert (await engine.diagnose()).damaged == ()
    assert [claim.id for claim in await engine.jobs.claim(DEMAND)] == [first, last]


@pytest.mark.spec("FAULT-45")
async def test_a_waiting_job_without_a_body_is_dropped_and_counts_no_longer(
    engine: SqliteEngine, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = await insert(engine, 5)
    limited = await insert(engine, 3, options=Options(limit=Slot("api", "a", 5)))
    for job in (*jobs[:3], limited[0]):
        spoil(engine, "DELETE FROM stoker_body WHERE id = ?", job)
    assert len((await engine.diagnose()).damaged) == 4
    claims = [claim for _ in range(8) for claim in await engine.jobs.claim(Demand("w", (("default", 1),)))]
    assert {claim.id for claim in claims} == {*jobs[3:], *limited[1:]}
    assert (await engine.jobs.settle([ending(claim) for claim in claims])).verdicts == [Verdict.APPLIED] * 4
    assert (await engine.diagnose()).damaged == ()
    assert len([one for one in caplog.records if "body" in one.getMessage()]) == 4
    await engine.operator.expire(Retention())
    assert {status: n for status, n in (await engine.operator.census()).by_status().items() if n} == {Status.DONE: 4}
    assert [one for one in (await engine.diagnose()).counters if one.counter != one.found] == []


@pytest.mark.spec("FAULT-45")
async def test_a_running_job_without_a_body_ends_with_its_worker(engine: SqliteEngine, clock: VirtualClock) -> None:
    jobs = await insert(engine)
    await engine.jobs.renew("v", [], lease=SECOND, first=True)
    assert len(await engine.jobs.claim(Demand("v", (("default", 100),)))) == 3
    spoil(engine, "DELETE FROM stoker_body WHERE id = ?", jobs[1])
    clock.advance(60)
    claims = await engine.jobs.reap("w", 10)
    assert {claim.id for claim in claims} == {jobs[0], jobs[2]}
    await engine.jobs.settle([ending(claim) for claim in claims])
    await engine.jobs.reap("w", 10)
    await engine.operator.expire(Retention())
    assert (await engine.operator.census()).by_status()[Status.RUNNING] == 0


@pytest.mark.spec("FAULT-46")
async def test_jobs_of_a_lost_limit_row_run_within_the_limit(
    engine: SqliteEngine, caplog: pytest.LogCaptureFixture
) -> None:
    limited = await insert(engine, 5, options=Options(limit=Slot("api", "a", 2)))
    held = await engine.jobs.claim(DEMAND)
    assert len(held) == 2
    spoil(engine, "DELETE FROM stoker_subqueues WHERE name = ?", "api/a")
    assert await engine.jobs.claim(DEMAND) == []
    await engine.operator.expire(Retention())
    [view] = await engine.control.subqueues("default")
    assert (view.name, view.running, view.most) == ("api/a", 2, 2)
    assert await engine.jobs.claim(DEMAND) == []
    assert len([one for one in caplog.records if "api/a" in one.getMessage()]) == 1
    done = list(held)
    while held:
        await engine.jobs.settle([ending(claim) for claim in held])
        held = await engine.jobs.claim(DEMAND)
        assert len(held) <= 2
        done += held
    assert {claim.id for claim in done} == set(limited)
    assert await engine.control.subqueues("default") == []


@pytest.mark.spec("FAULT-47")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE stoker_group_jobs SET callbacks = x'7b' WHERE id = ?",
        "DELETE FROM stoker_group_jobs WHERE id = ?",
    ],
    ids=["unreadable", "missing"],
)
async def test_a_group_that_cannot_be_read_stops_no_settlement(
    engine: SqliteEngine, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    groups = [os.urandom(16), os.urandom(16)]
    callbacks = [Draft(os.urandom(16), "then", queue="other") for _ in groups]
    for group, callback in zip(groups, callbacks, strict=True):
        members = [Draft(os.urandom(16), "send") for _ in range(2)]
        await engine.jobs.insert(into_group(group, members), group=new_group(group, then=callback, sealed=True))
    spoil(engine, statement, groups[0])
    claims = await engine.jobs.claim(DEMAND)
    assert (await engine.jobs.settle([ending(claim) for claim in claims])).verdicts == [Verdict.APPLIED] * 4
    assert [claim.id for claim in await engine.jobs.claim(Demand("w", (("other", 9),)))] == [callbacks[1].job_id]
    assert len([one for one in caplog.records if text(groups[0]) in one.getMessage()]) == 1
    [bad, good] = await engine.groups.get(groups)
    assert bad is not None
    assert good is not None
    assert (bad.closed_at is not None, good.closed_at is not None) == (True, True)
    [named] = (await engine.diagnose()).damaged
    assert text(groups[0]) in named


@pytest.mark.spec("FAULT-48")
async def test_settings_that_cannot_be_read_count_as_not_declared(engine: SqliteEngine) -> None:
    await engine.control.tune("default", Tuning(workers=3), declared=True)
    await engine.control.tune("llm", Rate(5), declared=True)
    spoil(engine, "UPDATE stoker_queues SET declared = '{' WHERE name = ?", "default")
    spoil(engine, """UPDATE stoker_budgets SET budget = json_set(budget, '$[2]', 'x') WHERE name = ?""", "llm")
    [queue] = await engine.control.queues()
    [budget] = await engine.control.budgets()
    assert (queue.workers, queue.declared, budget.declared) == (3, None, None)
    damaged = (await engine.diagnose()).damaged
    assert len(damaged) == 2
    assert ("default" in damaged[0], "llm" in damaged[1]) == (True, True)
    await engine.control.tune("default", Tuning(workers=4), declared=True)
    await engine.control.tune("llm", Rate(6), declared=True)
    assert (await engine.diagnose()).damaged == ()


@pytest.mark.spec("FAULT-49")
async def test_a_schedule_that_cannot_be_read_is_named_until_it_is_declared_anew(tmp_path: Path) -> None:
    jobs = Stoker(f"sqlite:///{tmp_path / 'app.db'}?durability=process")
    declared = Schedule(name="digest", expression="0 9 * * *", template=Draft(NO_ID, "digest"), source="code")

    async def named() -> list[str]:
        return [one.read for one in await Admin(jobs).health.check() if one.name == "damaged data"]

    async with jobs:
        engine = await jobs.engine()
        assert isinstance(engine, SqliteEngine)
        await engine.schedules.put(declared, keep_edited=True)
        sound = await named()
        spoil(engine, "UPDATE stoker_schedules SET schedule = x'7b' WHERE name = ?", "digest")
        assert ["digest" in one for one in await named()] == [True]
        await engine.schedules.put(declared, keep_edited=True)
        assert await named() == sound
        [found] = await engine.schedules.read()
        assert (found.enabled, found.expression) == (True, "0 9 * * *")

"""Schedules: stored, edited and fired, one job for each occurrence."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from stoker.engines.base import CONTROL, Engine, Feature
from stoker.model import ids
from stoker.model.errors import InvalidInput, InvalidSchedule
from stoker.model.job import Draft, Options, Status, Stored
from stoker.model.outcome import Done, Failed
from stoker.model.query import Query
from stoker.model.retry import Fixed
from stoker.model.schedule import (
    NO_ID,
    OCCURRENCE,
    SCHEDULE,
    Action,
    Edit,
    Fired,
    Schedule,
    Tick,
    after_tick,
    draft_of,
    failed,
    tick,
)
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, Instant
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store, at_once, needs

WORK = Draft(NO_ID, "work")
replace = msgspec.structs.replace


def _hourly(name: str = "report", **more: Any) -> Schedule:
    return Schedule(**{"name": name, "expression": "0 * * * *", "template": WORK, **more})


async def _stored(store: Store, name: str = "report") -> Schedule:
    [found] = [one for one in await store.engine.schedules.read() if one.name == name]
    return found


async def _put(store: Store, schedule: Schedule, **how: Any) -> Schedule:
    found = await store.engine.schedules.put(schedule, **how)
    assert found is not None
    return found


async def _fire(engine: Engine, schedule: Schedule, now: Instant) -> Fired:
    decision = tick(schedule, now)
    return await engine.schedules.fire(decision, [draft_of(schedule, at) for at in decision.fires])


async def _seeded(store: Store, **more: Any) -> Schedule:
    """A stored schedule with its next fire, at which the clock stands now."""
    new = await _put(store, _hourly(**more))
    fired = await _fire(store.engine, new, store.now())
    assert fired.applied
    assert fired.schedule is not None
    assert fired.schedule.next_fire is not None
    store.clock.set(fired.schedule.next_fire)
    return fired.schedule


async def _ids(store: Store) -> list[bytes]:
    return [job.id for job in (await store.engine.operator.find(Query(order="oldest", limit=1_000))).jobs]


# --- storing ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("SCHED-01")
async def test_schedules_are_stored_and_listed_by_name(store: Store) -> None:
    """What is put is listed, stamped with the store's time, without a next fire; putting it again changes nothing."""
    assert await store.engine.schedules.read() == []
    for name in ("b", "a", "c"):
        assert await store.engine.schedules.put(_hourly(name)) == _hourly(name, changed_at=store.now())
    stored = await store.engine.schedules.read()
    assert stored == [_hourly(name, changed_at=store.now()) for name in ("a", "b", "c")]
    store.pass_time(SECOND)
    await store.engine.schedules.put(_hourly("b"))
    assert await store.engine.schedules.read() == stored


@pytest.mark.core
@pytest.mark.spec("SCHED-01")
async def test_schedules_are_dropped_once(store: Store) -> None:
    """Dropping returns whether there was one; a job that it made stays."""
    assert not await store.engine.schedules.drop("report")
    seeded = await _seeded(store)
    await _fire(store.engine, seeded, store.now())
    await _put(store, _hourly("other"))
    assert await store.engine.schedules.drop("report")
    assert not await store.engine.schedules.drop("report")
    assert [one.name for one in await store.engine.schedules.read()] == ["other"]
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.core
@pytest.mark.spec("SCHED-01")
async def test_schedules_keep_their_whole_template(store: Store) -> None:
    """Payload, options, key, tenant and everything else come back byte for byte."""
    template = Draft(
        NO_ID,
        "work",
        b'{"text":"\xc3\xa9 \\u0000","n":1.0}',
        queue="slow",
        priority=-7,
        delay=MINUTE,
        attempts=2,
        unique=Unique("k", hold="retrying"),
        tenant="acme & söhne",
        options=Options(backoff=Fixed(1), timeout=SECOND, keep=0, metadata={"a": "b"}),
    )
    given = _hourly(template=template, tz="Europe/Paris", misfire="skip", grace=0, jitter=9, source="code")
    await _put(store, given)
    assert await _stored(store) == replace(given, changed_at=store.now())


@pytest.mark.core
@pytest.mark.spec("SCHED-02")
async def test_schedules_are_edited_field_by_field(store: Store) -> None:
    """An edit changes what it names and marks the schedule; an edit of one that does not exist stores nothing."""
    assert await store.engine.schedules.put(Edit(name="report", enabled=False)) is None
    assert await store.engine.schedules.read() == []
    seeded = await _seeded(store)
    off = await store.engine.schedules.put(Edit(name="report", enabled=False))
    assert off == replace(seeded, enabled=False, changed_at=store.now())
    store.pass_time(1)
    changed = await store.engine.schedules.put(
        Edit(name="report", jitter=SECOND, template=replace(WORK, payload=b"[1]"))
    )
    assert changed is not None
    assert (changed.enabled, changed.jitter, changed.template.payload, changed.edited) == (False, SECOND, b"[1]", True)
    assert await _stored(store) == changed
    store.pass_time(1)
    on = await store.engine.schedules.put(Edit(name="report", enabled=True))
    assert on is not None
    assert on.next_fire is None, "switched on, it starts afresh"


@pytest.mark.core
@pytest.mark.spec("SCHED-02")
async def test_schedules_that_operators_edited_are_kept_from_the_code(store: Store) -> None:
    """`keep_edited` leaves an edited schedule alone and lets others follow the code, next fire included."""
    code = _hourly(source="code")
    seeded = await _seeded(store, source="code")
    followed = await _put(store, replace(code, jitter=SECOND), keep_edited=True)
    assert (followed.jitter, followed.next_fire, followed.edited) == (SECOND, seeded.next_fire, False)
    edited = await store.engine.schedules.put(Edit(name="report", expression="30 * * * *"))
    assert await store.engine.schedules.put(code, keep_edited=True) == edited
    assert await _stored(store) == edited
    store.pass_time(SECOND)
    reset = await _put(store, code)
    assert (reset.expression, reset.edited, reset.next_fire) == (code.expression, False, None)


@pytest.mark.spec("SCHED-02")
async def test_schedules_switched_off_stay_off_when_the_code_is_deployed(store: Store) -> None:
    """Switching off is no edit: the definition follows the code, and the switch stays."""
    await _put(store, _hourly(source="code"))
    await store.engine.schedules.put(Edit(name="report", enabled=False))
    store.pass_time(SECOND)
    found = await _put(store, _hourly(source="code", expression="30 * * * *"), keep_edited=True)
    assert (found.enabled, found.expression, found.edited) == (False, "30 * * * *", False)


@pytest.mark.core
@pytest.mark.spec("SCHED-03")
@pytest.mark.parametrize(
    "wrong",
    [{"expression": "61 * * * *"}, {"expression": "0 0 30 2 *"}, {"expression": "@every 0s"}, {"tz": "Mars/Olympus"}],
)
async def test_schedules_that_can_never_fire_are_refused(store: Store, wrong: dict[str, Any]) -> None:
    """`InvalidSchedule`, and nothing is stored: neither a new one nor an edit."""
    with pytest.raises(InvalidSchedule):
        await store.engine.schedules.put(_hourly(**wrong))
    assert await store.engine.schedules.read() == []
    before = await _put(store, _hourly())
    with pytest.raises(InvalidSchedule):
        await store.engine.schedules.put(_hourly(**wrong))
    with pytest.raises(InvalidSchedule):
        await store.engine.schedules.put(Edit(name="report", **wrong))
    assert await store.engine.schedules.read() == [before]


@pytest.mark.spec("SCHED-04")
async def test_schedules_that_change_wake_the_tickers(store: Store) -> None:
    """A new or changed schedule wakes `CONTROL`; one that is stored again as it is does not."""
    assert await store.engine.jobs.wait([CONTROL], 0) == frozenset()
    for given, woken in (
        (_hourly(), True),
        (_hourly(), False),
        (Edit(name="report", jitter=SECOND), True),
        (Edit(name="report", jitter=SECOND), False),
        (Edit(name="other", jitter=SECOND), False),
    ):
        await store.engine.schedules.put(given)
        assert bool(await store.engine.jobs.wait([CONTROL], 30 if woken else 0.05)) == woken


@pytest.mark.spec("SCHED-02")
async def test_schedules_edited_at_once_keep_every_edit(store: Store) -> None:
    """Four operators change one schedule at the same time: no edit undoes another."""
    await _put(store, _hourly())
    edits = [
        Edit(name="report", jitter=SECOND),
        Edit(name="report", grace=HOUR),
        Edit(name="report", enabled=False),
        Edit(name="report", misfire="skip"),
    ]
    await at_once(store, [lambda engine, one=one: engine.schedules.put(one) for one in edits])  # type: ignore[misc]
    found = await _stored(store)
    assert (found.jitter, found.grace, found.enabled, found.misfire) == (SECOND, HOUR, False, "skip")


# --- firing -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("SCHED-05")
async def test_schedules_are_seeded_before_they_fire(store: Store) -> None:
    """The first tick stores the next fire and makes no job, however long the schedule has been stored."""
    new = await _put(store, _hourly())
    store.pass_time(DAY)
    fired = await _fire(store.engine, new, store.now())
    assert fired.applied
    assert fired.schedule == await _stored(store) == after_tick(new, tick(new, store.now()))
    assert (await _stored(store)).next_fire == (store.now() // HOUR + 1) * HOUR
    assert await store.counts() == {}


@pytest.mark.core
@pytest.mark.spec("SCHED-05", "SCHED-06")
async def test_schedules_fire_a_job_and_move_on(store: Store) -> None:
    """The job has the id of its occurrence and knows its schedule; a worker of its queue gets it."""
    template = replace(WORK, queue="mail", payload=b'{"a":1}', priority=3, tenant="acme", attempts=2)
    seeded = await _seeded(store, template=template)
    at = store.now()
    fired = await _fire(store.engine, seeded, at)
    job = ids.occurrence("report", at)
    assert fired.applied
    assert [(one.id, one.stored) for one in fired.receipts] == [(job, Stored.INSERTED)]
    assert fired.schedule == await _stored(store)
    moved = await _stored(store)
    assert (moved.last_fire, moved.next_fire, moved.last_status) == (at, at + HOUR, Action.FIRE)
    record = await store.job(job)
    assert (record.queue, record.payload, record.priority, record.tenant, record.budget, record.scheduled_at) == (
        "mail",
        b'{"a":1}',
        3,
        "acme",
        2,
        at,
    )
    claim = await store.take(queue="mail")
    assert claim.id == job
    assert claim.options.metadata is not None
    assert claim.options.metadata[SCHEDULE] == "report"
    assert claim.options.metadata[OCCURRENCE].startswith("2027-01-15T")
    assert (await store.engine.operator.census()).totals["work"].enqueued == 1


@pytest.mark.spec("SCHED-06")
async def test_schedules_wake_a_worker_of_the_queue(store: Store) -> None:
    """A job that is due wakes a waiter of its queue, as after an insert."""
    seeded = await _seeded(store, template=replace(WORK, queue="mail"))
    assert await store.engine.jobs.wait(["mail"], 0) == frozenset()
    await _fire(store.engine, seeded, store.now())
    assert await store.engine.jobs.wait(["mail"], 30) == {"mail"}


@pytest.mark.core
@pytest.mark.spec("SCHED-06")
async def test_schedules_with_jitter_make_jobs_that_are_due_later(store: Store) -> None:
    """The timetable does not move; the job is due within the jitter behind its occurrence."""
    seeded = await _seeded(store, jitter=MINUTE)
    at = store.now()
    fired = await _fire(store.engine, seeded, at)
    record = await store.job(fired.receipts[0].id)
    assert at < record.scheduled_at < at + MINUTE
    assert record.scheduled_at == draft_of(seeded, at).at
    assert (await _stored(store)).next_fire == at + HOUR
    assert await store.claim() == []
    store.clock.set(record.scheduled_at)
    assert (await store.take()).id == record.id


@pytest.mark.core
@pytest.mark.spec("SCHED-07")
@pytest.mark.parametrize(
    "meanwhile",
    [
        Edit(name="report", enabled=False),
        Edit(name="report", template=replace(WORK, payload=b"[2]")),
        Edit(name="report", expression="15 * * * *"),
        Edit(name="report", tz="Europe/Paris"),
    ],
)
async def test_schedules_edited_meanwhile_do_not_fire(store: Store, meanwhile: Edit) -> None:
    """A tick that saw the schedule before the edit changes nothing."""
    seeded = await _seeded(store)
    changed = await store.engine.schedules.put(meanwhile)
    assert changed is not None
    fired = await _fire(store.engine, seeded, store.now())
    assert (fired.applied, fired.schedule, fired.receipts) == (False, changed, ())
    assert await store.engine.schedules.read() == [changed]
    assert await store.counts() == {}


@pytest.mark.core
@pytest.mark.spec("SCHED-07")
async def test_schedules_do_not_fire_by_a_stale_or_early_tick(store: Store) -> None:
    """Not twice, not before the store's own clock says so, and not after the schedule was dropped."""
    seeded = await _seeded(store)
    due = store.now()
    store.clock.set(due - 1)
    early = await _fire(store.engine, seeded, due)
    assert (early.applied, early.now) == (False, due - 1)
    ahead = await _fire(store.engine, seeded, due + DAY)
    assert not ahead.applied
    assert await store.engine.schedules.read() == [seeded]
    store.clock.set(due)
    assert (await _fire(store.engine, seeded, due)).applied
    after = await store.engine.schedules.read()
    assert not (await _fire(store.engine, seeded, due)).applied
    assert await store.engine.schedules.read() == after
    assert await store.counts() == {Status.PENDING: 1}
    await store.engine.schedules.drop("report")
    store.pass_time(HOUR)
    gone = await _fire(store.engine, after[0], store.now())
    assert (gone.applied, gone.schedule) == (False, None)
    assert await store.engine.schedules.read() == []
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.spec("SCHED-07")
async def test_schedules_made_anew_are_not_fired_by_an_old_tick(store: Store) -> None:
    """Dropped and stored again, it is another schedule."""
    old = await _put(store, _hourly())
    seed = tick(old, store.now())
    await store.engine.schedules.drop("report")
    store.pass_time(1)
    new = await _put(store, _hourly())
    assert not (await store.engine.schedules.fire(seed)).applied
    assert await store.engine.schedules.read() == [new]


@pytest.mark.core
@pytest.mark.spec("SCHED-08")
async def test_schedules_fire_once_however_many_tickers_there_are(store: Store) -> None:
    """Six tickers on engines of their own fire three occurrences at once: each has one job, and one ticker wins it."""
    schedule = await _seeded(store, misfire="all")
    expected: list[bytes] = []
    for _ in range(3):
        seen, now = schedule, store.now()
        expected.append(ids.occurrence("report", now))
        fired = await at_once(store, [lambda engine, seen=seen, now=now: _fire(engine, seen, now)] * 6)  # type: ignore[misc]
        assert sum(one.applied for one in fired) == 1
        schedule = await _stored(store)
        store.pass_time(HOUR)
    assert await _ids(store) == expected
    assert await store.counts() == {Status.PENDING: 3}


@pytest.mark.core
@pytest.mark.spec("SCHED-08")
async def test_schedules_catch_up_with_a_job_for_each_occurrence(store: Store) -> None:
    """`misfire="all"`: a hundred jobs in one step, each under the id of its own occurrence, oldest first."""
    seeded = await _seeded(store, misfire="all")
    first = store.now()
    store.pass_time(120 * HOUR)
    fired = await _fire(store.engine, seeded, store.now())
    assert [one.id for one in fired.receipts] == [ids.occurrence("report", first + n * HOUR) for n in range(100)]
    moved = await _stored(store)
    assert (moved.last_fire, moved.next_fire) == (first + 99 * HOUR, first + 100 * HOUR)
    rest = await _fire(store.engine, moved, store.now())
    assert len(rest.receipts) == 21
    assert await store.counts() == {Status.PENDING: 121}
    assert [claim.id for claim in await store.claim(n=2)] == [one.id for one in fired.receipts[:2]]


@pytest.mark.core
@pytest.mark.spec("SCHED-08")
async def test_schedules_put_back_by_a_restored_backup_make_no_second_job(store: Store) -> None:
    """The id of an occurrence is stored already: the schedule moves on, and there is still one job."""
    seeded = await _seeded(store)
    now = store.now()
    await _fire(store.engine, seeded, now)
    await store.finish(await store.take(), Done())
    await store.engine.schedules.drop("report")
    again = await _put(store, _hourly())
    assert (await store.engine.schedules.fire(replace(tick(again, now - 1), at=now))).applied
    restored = await _stored(store)
    assert restored.next_fire == now
    fired = await _fire(store.engine, restored, now)
    assert fired.applied
    assert [(one.id, one.stored) for one in fired.receipts] == [(ids.occurrence("report", now), Stored.EXISTING)]
    assert await store.counts() == {Status.DONE: 1}
    moved = await _stored(store)
    assert (moved.last_status, moved.last_fire, moved.next_fire) == (Action.FIRE, now, now + HOUR)


@pytest.mark.core
@pytest.mark.spec("SCHED-22")
@pytest.mark.parametrize("other", [{"kind": "foreign"}, {"queue": "foreign"}], ids=["kind", "queue"])
async def test_schedules_show_that_another_job_has_the_id_of_an_occurrence(store: Store, other: dict[str, Any]) -> None:
    """It is never taken for the schedule's own job: the tick makes none and leaves an error; the next one fires."""
    if "queue" in other:
        needs(store, Feature.ACROSS_QUEUES)
    schedule, now = await _seeded(store), store.now()
    [taken] = await store.insert(replace(WORK, job_id=ids.occurrence("report", now), **other))
    fired = await _fire(store.engine, schedule, now)
    assert (fired.applied, fired.receipts) == (True, ())
    moved = await _stored(store)
    assert (moved.last_status, moved.last_fire, moved.last_missed, moved.enabled) == (Action.FAIL, None, 1, True)
    assert "foreign" in (moved.last_error or "")
    assert ids.text(taken) in (moved.last_error or "")
    store.pass_time(HOUR)
    assert len((await _fire(store.engine, moved, store.now())).receipts) == 1


@pytest.mark.core
@pytest.mark.spec("SCHED-24")
@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_schedules_due_at_once_are_fired_each_by_itself(store: Store, overlap: Any) -> None:
    """Forty ticks at the same moment, two of them twice and one refused: each schedule moves on once, with its job."""
    names = [f"s{n:02}" for n in range(40)]
    for name in names:
        await _put(store, _hourly(name, overlap=overlap))
    now = store.now()
    seeds = await asyncio.gather(*(_fire(store.engine, one, now) for one in await store.engine.schedules.read()))
    seeded = {one.schedule.name: one.schedule for one in seeds if one.schedule is not None}
    assert sorted(seeded) == names
    at = min(one.next_fire or 0 for one in seeded.values())
    store.clock.set(at)
    await store.insert(replace(WORK, job_id=ids.occurrence("s07", at), kind="foreign"))
    calls = [*names, "s00", "s39"]
    fired = await asyncio.gather(*(_fire(store.engine, seeded[name], at) for name in calls))
    applied = Counter(name for name, one in zip(calls, fired, strict=True) if one.applied)
    assert applied == Counter(names)
    after = {one.name: one for one in await store.engine.schedules.read()}
    assert {name for name, one in after.items() if one.last_status is Action.FAIL} == {"s07"}
    assert {one.next_fire for one in after.values()} == {at + HOUR}
    assert await _ids(store) == sorted(ids.occurrence(name, at) for name in names)
    assert await store.counts() == {Status.PENDING: 40}


@pytest.mark.core
@pytest.mark.spec("SCHED-09")
@pytest.mark.parametrize(
    "exclusive", [{"overlap": "skip"}, {"template": replace(WORK, unique=Unique("one", mode="raise"))}]
)
async def test_schedules_skip_an_occurrence_whose_predecessor_is_active(
    store: Store, exclusive: dict[str, Any]
) -> None:
    """While its last job is pending, running or waits for a retry; a finished one is no hindrance."""
    schedule = await _seeded(store, **exclusive)
    assert (await _fire(store.engine, schedule, store.now())).applied
    first = ids.occurrence("report", store.now())

    async def skips() -> None:
        store.pass_time(HOUR)
        before = await _stored(store)
        fired = await _fire(store.engine, before, store.now())
        assert fired.applied
        assert [(one.id, one.stored) for one in fired.receipts] == [(first, Stored.EXISTING)]
        after = await _stored(store)
        assert (after.last_status, after.last_missed, after.missed) == (Action.SKIP, 1, before.missed + 1)
        assert (after.last_fire, after.next_fire) == (before.last_fire, store.now() + HOUR)

    await skips()
    claim = await store.take()
    await skips()
    await store.finish(claim, Failed("broken", after=DAY))
    assert await store.status(first) is Status.RETRYING
    await skips()
    store.pass_time(DAY)
    await store.finish(await store.take(), Done())
    fired = await _fire(store.engine, await _stored(store), store.now())
    assert fired.receipts[0].stored is Stored.INSERTED
    assert (await _stored(store)).last_status is Action.FIRE


@pytest.mark.core
@pytest.mark.spec("SCHED-10")
async def test_schedules_go_on_after_a_job_that_could_not_be_stored(store: Store) -> None:
    """The reason is the last error, the occurrence is not repeated, the next fire that works clears it."""
    seeded = await _seeded(store)
    now = store.now()
    fired = await store.engine.schedules.fire(failed(tick(seeded, now), "no room"))
    assert fired.applied
    moved = await _stored(store)
    assert (moved.enabled, moved.last_error, moved.last_status, moved.missed) == (True, "no room", Action.FAIL, 1)
    assert (moved.next_fire, moved.last_fire) == (now + HOUR, None)
    assert await store.counts() == {}
    store.pass_time(HOUR)
    await _fire(store.engine, moved, store.now())
    assert (await _stored(store)).last_error is None
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.core
@pytest.mark.spec("SCHED-10")
async def test_schedules_that_cannot_be_read_are_disabled_alone(store: Store) -> None:
    """A tick that found the expression unreadable stores its reason; other schedules are untouched."""
    other = await _put(store, _hourly("other"))
    seeded = await _seeded(store)
    disable = replace(tick(seeded, store.now()), action=Action.DISABLE, next_fire=None, fires=(), error="unknown zone")
    assert (await store.engine.schedules.fire(disable)).applied
    found = await _stored(store)
    assert (found.enabled, found.last_error, found.last_status) == (False, "unknown zone", Action.DISABLE)
    assert await _stored(store, "other") == other
    assert tick(found, store.now() + DAY).action is Action.IDLE


@pytest.mark.spec("SCHED-05")
async def test_schedules_need_a_draft_for_each_instant(store: Store) -> None:
    """A tick and drafts that do not belong together are refused, and nothing changes."""
    seeded = await _seeded(store)
    decision = tick(seeded, store.now())
    with pytest.raises(InvalidInput, match="drafts"):
        await store.engine.schedules.fire(decision)
    with pytest.raises(InvalidInput, match="drafts"):
        await store.engine.schedules.fire(decision, [draft_of(seeded, store.now())] * 2)
    assert await store.engine.schedules.read() == [seeded]
    assert await store.counts() == {}


@pytest.mark.core
@pytest.mark.spec("SCHED-02")
async def test_schedules_change_their_queue(store: Store) -> None:
    """An edit of the queue keeps the next fire, and the next job goes to the new one."""
    seeded = await _seeded(store, template=replace(WORK, queue="red"))
    await store.engine.schedules.put(Edit(name="report", template=replace(WORK, queue="blue")))
    moved = await _stored(store)
    assert (moved.next_fire, moved.enabled, moved.template.queue) == (seeded.next_fire, True, "blue")
    assert [one.name for one in await store.engine.schedules.read()] == ["report"]
    stale: Tick = tick(seeded, store.now())
    assert not (await store.engine.schedules.fire(stale, [draft_of(seeded, store.now())])).applied
    assert (await _fire(store.engine, moved, store.now())).applied
    assert (await store.take(queue="blue")).id == ids.occurrence("report", store.now())
    assert await store.counts("red") == {}
    back = await _put(store, _hourly(template=replace(WORK, queue="red")))
    assert await store.engine.schedules.read() == [back]
    assert await store.engine.schedules.drop("report")
    assert await store.engine.schedules.read() == []

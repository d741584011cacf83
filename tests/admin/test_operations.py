"""Bulk actions as records in the store: shown, stopped and resumed by any process."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stoker.admin import Admin, Filter, InvalidFilter, bulk
from stoker.admin.operations import OperationView
from stoker.admin.preview import Lasts
from stoker.app import Stoker
from stoker.model.audit import By
from stoker.model.errors import EngineUnavailable, InvalidInput, NotFound, WrongState
from stoker.model.events import Point
from stoker.model.job import Demand, Settlement, Status
from stoker.model.operations import SILENT_AFTER
from stoker.model.query import Change, Selection, Tally
from stoker.model.time import MINUTE, moment
from stoker.model.unique import Unique
from stoker.testing.clock import VirtualClock
from tests.harness.apps import PATIENCE


async def waiting(app: Stoker, n: int) -> None:
    for _ in range(n):
        await app.enqueue(app.draft("send"))


async def everything_dies(app: Stoker) -> None:
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    claims = await engine.jobs.claim(Demand("w", (("default", 100),), 100))
    await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DEAD, error="boom") for one in claims])
    await engine.jobs.renew("w", [], lease=0)


async def statuses(admin: Admin) -> dict[str, int]:
    return {status: n for status, n in (await admin.overview()).counts.items() if n and status != "ready"}


@pytest.mark.spec("BULK-01")
async def test_an_operation_walks_to_its_end(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(app, by="ada")
    monkeypatch.setattr(bulk, "PAGE", 2)
    await waiting(app, 5)
    started = await admin.operations.start("cancel", "is:ready", {"reason": "not today"})
    assert (started.state, started.who, started.action, started.filter) == ("running", "ada", "cancel", "is:ready")
    seen: list[OperationView] = []
    ended = await admin.operations.finish(started.id, seen.append)
    assert (ended.state, ended.changed) == ("done", 5)
    assert await statuses(admin) == {"canceled": 5}
    assert [one.id for one in await admin.operations.list()] == [started.id]
    assert await Admin(app).operations.finish(started.id) == await admin.operations.get(started.id)


@pytest.mark.spec("BULK-01")
@pytest.mark.parametrize(
    "action, given, left",
    [
        ("move", {"queue": "bulk", "create": True}, {"pending": 2}),
        ("prioritize", {"priority": 5}, {"pending": 2}),
        ("delete", {}, {}),
        ("run-now", {}, {"pending": 2}),
        ("retry", {}, {"pending": 2}),
        ("discard", {}, {"pending": 2}),
        ("requeue", {}, {"pending": 2}),
    ],
)
async def test_every_action_is_an_operation(
    admin: Admin, app: Stoker, action: str, given: dict[str, Any], left: dict[str, int]
) -> None:
    await waiting(app, 2)
    ended = await admin.operations.finish((await admin.operations.start(action, "kind:send", given)).id)
    refused = {Status.PENDING: 2} if action in {"retry", "discard", "requeue"} else {}
    assert (ended.state, ended.changed + sum(ended.refused.values()), ended.refused) == ("done", 2, refused)
    assert await statuses(admin) == left


@pytest.mark.spec("BULK-02")
async def test_a_stop_reaches_an_operation_within_one_page(
    admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    await waiting(app, 6)
    gate, first = asyncio.Event(), asyncio.Event()
    real = bulk.Walk.step

    async def step(self: bulk.Walk) -> Any:
        tally = await real(self)
        first.set()
        await gate.wait()
        return tally

    monkeypatch.setattr(bulk.Walk, "step", step)
    started = await admin.operations.start("cancel", "is:ready")
    await first.wait()
    elsewhere = Admin(app)
    assert (await elsewhere.operations.stop(started.id)).state == "stopping"
    assert (await elsewhere.operations.stop(started.id)).state == "stopping"
    gate.set()
    ended = await admin.operations.finish(started.id)
    assert (ended.state, ended.changed) == ("stopped", 2)
    assert (await elsewhere.operations.stop(started.id)).state == "stopped"
    await elsewhere.operations.resume(started.id)
    ended = await elsewhere.operations.finish(started.id)
    assert (ended.state, ended.changed) == ("done", 6)
    with pytest.raises(WrongState, match="is done, which 'resume' does not apply to"):
        await admin.operations.resume(started.id)


@pytest.mark.spec("BULK-03")
async def test_an_operation_whose_process_died_is_interrupted_and_goes_on_elsewhere(
    app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    dying, living = Admin(app), Admin(app)
    await waiting(app, 5)
    real, never, first = bulk.Walk.step, asyncio.Event(), asyncio.Event()

    async def step(self: bulk.Walk) -> Any:
        if first.is_set():
            await never.wait()
        first.set()
        return await real(self)

    monkeypatch.setattr(bulk.Walk, "step", step)
    started = await dying.operations.start("cancel", "is:ready")
    while (await living.operations.get(started.id)).changed < 2:
        await asyncio.sleep(0.001)
    [task] = dying.operations._walking.values()
    task.cancel()
    with pytest.raises(WrongState, match="is running"):
        await living.operations.resume(started.id)
    await waiting(app, 1)  # after the operation began: not touched
    clock.advance(timedelta(microseconds=SILENT_AFTER + 1))
    assert (await living.operations.get(started.id)).state == "interrupted"
    monkeypatch.setattr(bulk.Walk, "step", real)
    await living.operations.resume(started.id)
    ended = await living.operations.finish(started.id)
    assert (ended.state, ended.changed) == ("done", 5)
    assert await statuses(living) == {"pending": 1, "canceled": 5}


@pytest.mark.spec("BULK-03", "ADMIN-08")
async def test_a_page_that_is_repeated_after_a_death_touches_no_job_twice(
    app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the change of a page and the record of it; the requeued jobs have died again by then."""
    monkeypatch.setattr(bulk, "PAGE", 2)
    dying, living = Admin(app), Admin(app)
    await waiting(app, 5)
    await everything_dies(app)
    real, requeued = bulk.Walk.step, asyncio.Event()

    async def step(self: bulk.Walk) -> Any:
        tally = await real(self)
        if self.bulk.changed == 4:
            requeued.set()
            await asyncio.Event().wait()
        return tally

    monkeypatch.setattr(bulk.Walk, "step", step)
    started = await dying.operations.start("requeue", "is:dead")
    await requeued.wait()
    [task] = dying.operations._walking.values()
    task.cancel()
    clock.advance(timedelta(microseconds=SILENT_AFTER + 1))
    await everything_dies(app)
    monkeypatch.setattr(bulk.Walk, "step", real)
    await living.operations.resume(started.id)
    assert (await living.operations.finish(started.id)).state == "done"
    runs = sorted([job.attempts for job in (await living.jobs.find("is:dead")).jobs])
    assert runs == [2, 2, 2, 2], "four were requeued by the dead process, and run again once"
    assert await statuses(living) == {"pending": 1, "dead": 4}


@pytest.mark.spec("ADMIN-08")
async def test_a_job_whose_status_changed_since_its_page_was_read_is_left_alone(
    admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another job of the page is in the status that it has now."""
    jobs = [(await app.enqueue(app.draft("send"))).id for _ in range(3)]
    await everything_dies(app)
    await admin.jobs.requeue(jobs[0])
    await admin.jobs.cancel(jobs[0])
    engine = await app.engine()
    real = engine.operator.alter

    async def overtaken(selection: Selection, change: Change, by: By | None = None) -> Tally:
        monkeypatch.setattr(engine.operator, "alter", real)
        await admin.jobs.requeue(jobs[2])
        await admin.jobs.cancel(jobs[2])
        return await real(selection, change, by=by)

    monkeypatch.setattr(engine.operator, "alter", overtaken)
    done = await admin.jobs.requeue(Filter.parse("is:finished"))
    assert (done.changed, done.refused) == (2, {Status.CANCELED: 1})
    assert await statuses(admin) == {"pending": 2, "canceled": 1}


@pytest.mark.spec("BULK-03")
async def test_stopping_an_interrupted_operation_ends_it(
    admin: Admin, app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()

    async def step(self: bulk.Walk) -> Any:
        await never.wait()

    monkeypatch.setattr(bulk.Walk, "step", step)
    started = await admin.operations.start("cancel", "is:ready")
    [task] = admin.operations._walking.values()
    await asyncio.sleep(0)
    task.cancel()
    clock.advance(timedelta(microseconds=SILENT_AFTER + 1))
    assert (await admin.operations.stop(started.id)).state == "stopped"


@pytest.mark.spec("BULK-04")
async def test_an_operation_that_fails_says_why_and_can_be_resumed(
    admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await waiting(app, 2)
    real = bulk.Walk.step

    async def away(self: bulk.Walk) -> Any:
        raise EngineUnavailable("the store is away")

    monkeypatch.setattr(bulk.Walk, "step", away)
    started = await admin.operations.start("cancel", "is:ready")
    ended = await admin.operations.finish(started.id)
    assert (ended.state, ended.error) == ("failed", "EngineUnavailable: the store is away")
    assert f"failed after 0 changes: the store is away. `stoker operations resume {started.id}`" in caplog.text
    monkeypatch.setattr(bulk.Walk, "step", real)
    await admin.operations.resume(started.id)
    assert (await admin.operations.finish(started.id)).changed == 2


@pytest.mark.spec("BULK-05")
@pytest.mark.parametrize(
    "action, filter_, given, field",
    [
        ("explode", "is:ready", {}, "action"),
        ("move", "is:ready", {}, "queue"),
        ("requeue", "is:ready", {"queue": "x"}, "queue"),
        ("prioritize", "is:ready", {"priority": "high"}, "priority"),
        ("prioritize", "is:ready", {"priority": 5_000}, "priority"),
        ("requeue", "0193b0f0-0000-7000-8000-000000000001", {}, "filter"),
        ("requeue", "is:daed", {}, "is"),
    ],
)
async def test_what_cannot_be_done_is_refused_before_it_is_stored(
    admin: Admin, action: str, filter_: str, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await admin.operations.start(action, filter_, given)
    assert refused.value.field == field
    assert await admin.operations.list() == []
    for call in (admin.operations.get, admin.operations.stop, admin.operations.resume):
        with pytest.raises(NotFound):
            await call("none")


@pytest.mark.spec("BULK-06")
async def test_closing_stops_what_runs(admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 1)
    await waiting(app, 30)
    started = await admin.operations.start("cancel", "is:ready")
    await admin.operations.close()
    ended = await admin.operations.get(started.id)
    assert (ended.state, ended.changed < 30) == ("stopped", True)
    assert ended.ended
    with pytest.raises(InvalidFilter):
        await admin.jobs.act("delete", Filter.parse("queue:nowhere"))


@pytest.mark.spec("OPERATION-05", "OPERATION-06")
async def test_an_operation_shows_how_far_it_is_and_what_became_of_each(
    admin: Admin, app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    await waiting(app, 5)
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    await engine.jobs.claim(Demand("w", (("default", 1),), 1))
    gates, first = [asyncio.Event() for _ in range(4)], asyncio.Event()
    turns = iter(gates)
    real = bulk.Walk.step

    async def step(self: bulk.Walk) -> Any:
        first.set()
        await next(turns).wait()
        first.clear()
        return await real(self)

    monkeypatch.setattr(bulk.Walk, "step", step)
    started = await admin.operations.start("delete", "kind:send", total=6)
    assert (started.total, started.seen, started.share, started.fates) == (6, 0, 0.0, {"changed": 0})
    await first.wait()
    clock.advance(2)
    gates[0].set()
    async with asyncio.timeout(PATIENCE):
        while (await admin.operations.get(started.id)).seen == 0:
            await asyncio.sleep(0.01)
    under_way = await Admin(app).operations.get(started.id)
    assert (under_way.seen, under_way.rate, under_way.lasts) == (2, 1.0, timedelta(seconds=4))
    assert under_way.share == pytest.approx(1 / 3)
    for gate in gates:
        gate.set()
    ended = await admin.operations.finish(started.id)
    assert ended.fates == {"changed": 4, "left: running": 1, "changed before their turn": 1}
    assert (ended.seen, ended.share) == (5, 1.0)
    known = await admin.operations.finish((await admin.operations.start("cancel", "is:running")).id)
    assert (known.total, known.cancel_requested) == (1, 1), "it counts by itself without a preview"


@pytest.mark.spec("OPERATION-07")
async def test_a_preview_says_what_would_be_skipped_and_how_long_it_takes(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    for n in range(3):
        await app.enqueue(app.draft("send", unique=Unique(f"k{n}")))
    await everything_dies(app)
    await app.enqueue(app.draft("send", unique=Unique("k1")))
    await waiting(app, 1)
    found = await admin.jobs.preview("kind:send", action="requeue")
    assert (found.count, found.skipped, found.lasts) == (5, {"pending": 2, "key taken": 1}, None)
    engine = await app.engine()
    minute = clock() // MINUTE * MINUTE - MINUTE
    points = [Point("default", "completed", minute, 3), Point("", "counted", minute, 1)]
    await engine.timeline.record([], points, now=clock())
    found = await admin.jobs.preview("is:dead", action="requeue", counted_at=moment(clock()))
    assert found.lasts == Lasts("default", timedelta(seconds=100)), "two wait, three more come, three a minute"
    assert str(found.lasts) == "At its rate of the last 15 minutes queue default needs about 1 min 40 s for them."
    assert (await admin.jobs.preview("is:dead", action="discard")).lasts is None
    await admin.queues.pause("default")
    assert (await admin.jobs.preview("is:dead", action="requeue")).lasts is None
    assert (await admin.jobs.preview("is:ready", action="requeue")).skipped == {"pending": 2}

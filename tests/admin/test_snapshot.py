"""Five lists of jobs with numbered pages."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.model import ids
from stoker.model.errors import EngineUnavailable, InvalidInput
from stoker.model.job import Claim, Demand, Settlement, Status
from stoker.model.query import Cancel, Selection
from stoker.model.time import rfc3339
from stoker.testing.clock import VirtualClock


async def ran(app: Stoker, status: Status, n: int = 1) -> list[Claim]:
    engine = await app.engine()
    for _ in range(n):
        await app.enqueue(app.draft("send", {"user_id": 7}))
    await engine.jobs.renew("w", [], first=True)
    claims = await engine.jobs.claim(Demand("w", (("default", n),), n))
    after = 10**9 if status is Status.RETRYING else 0
    if status is not Status.RUNNING:
        ends = [Settlement(one.id, "w", one.token, status, after=after, error="boom", keep=10**13) for one in claims]
        await engine.jobs.settle(ends)
    return claims


@pytest.mark.spec("SNAPSHOT-01")
async def test_each_list_holds_its_status(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    for status in (Status.DONE, Status.DEAD, Status.RETRYING, Status.RUNNING):
        await ran(app, status)
    await app.enqueue(app.draft("send"))
    canceled = await app.enqueue(app.draft("send"))
    await engine.operator.alter(Selection((ids.parse(canceled.id),)), Cancel())
    await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
    found = await admin.snapshot()
    lists = (found.enqueued, found.running, found.retrying, found.completed, found.failed)
    assert [(one.total, one.pages, one.page, one.per_page) for one in lists] == [(1, 1, 1, 25)] * 5
    [dead] = found.failed.records
    assert (dead.status, dead.attempt, dead.attempts, dead.principal) == (Status.DEAD, 1, 5, "7")
    assert (dead.last_error, dead.finished_at) == ("boom", rfc3339(clock()))
    assert [(one.name, one.schedule, one.next_run) for one in found.schedules] == [("nightly", "0 3 * * *", None)]
    assert found.problem is None


@pytest.mark.spec("PEOPLE-02")
async def test_the_correlation_is_that_of_the_metadata_before_the_arguments(admin: Admin, app: Stoker) -> None:
    await app.enqueue(app.draft("send", {"request_id": "r"}, metadata={"correlation_id": "c"}))
    [waiting] = (await admin.snapshot()).enqueued.records
    assert waiting.correlation == "c"


@pytest.mark.spec("SNAPSHOT-02")
async def test_finished_jobs_are_listed_for_a_day_and_a_week(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    await ran(app, Status.DONE)
    await ran(app, Status.DEAD)
    clock.advance(timedelta(days=1))
    found = await admin.snapshot()
    assert (found.completed.total, found.failed.total) == (1, 1), "the end of the window is inside"
    clock.advance(timedelta(microseconds=1))
    assert (await admin.snapshot()).completed.total == 0
    clock.advance(timedelta(days=6, microseconds=-1))
    assert (await admin.snapshot()).failed.total == 1
    clock.advance(timedelta(microseconds=1))
    assert (await admin.snapshot()).failed.total == 0


@pytest.mark.spec("SNAPSHOT-03")
async def test_each_list_has_its_own_page(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    ends = []
    for _ in range(5):
        ends += await ran(app, Status.DEAD)
        clock.advance(timedelta(seconds=1))
    jobs = [await app.enqueue(app.draft("send")) for _ in range(3)]
    found = await admin.snapshot({"failed": 2, "enqueued": 9, "running": 0}, per_page=2)
    assert (found.failed.page, found.failed.total, found.failed.pages) == (2, 5, 3)
    assert [one.finished_at for one in found.failed.records] == [rfc3339(clock() - 1_000_000 * n) for n in (3, 4)]
    assert (found.enqueued.records, found.enqueued.total, found.enqueued.pages) == ([], 3, 2)
    assert (found.running.page, found.running.records) == (1, [])
    first = await admin.snapshot(per_page=2)
    assert [one.id for one in first.enqueued.records] == [jobs[2].id, jobs[1].id]


@pytest.mark.spec("SNAPSHOT-04")
async def test_running_jobs_come_latest_start_first(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    starts = []
    for _ in range(3):
        starts += await ran(app, Status.RUNNING)
        clock.advance(timedelta(seconds=1))
    found = await admin.snapshot(per_page=2)
    assert [one.started_at for one in found.running.records] == [
        rfc3339(one.claimed_at) for one in (starts[2], starts[1])
    ]
    assert found.running.total == 3


@pytest.mark.spec("SNAPSHOT-05")
async def test_a_store_that_is_away_gives_empty_lists(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> None:
        raise EngineUnavailable("connection to 10.0.0.7 refused")

    monkeypatch.setattr(app, "engine", away)
    found = await Admin(app).snapshot(per_page=10)
    assert (found.failed.total, found.failed.per_page, found.failed.pages) == (0, 10, 0)
    assert found.problem is not None
    assert "10.0.0.7" not in found.problem


@pytest.mark.spec("ADMIN-25")
async def test_a_purge_removes_what_ended_strictly_before(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    await ran(app, Status.DONE)
    clock.advance(timedelta(days=2))
    await ran(app, Status.DONE)
    await ran(app, Status.DEAD)
    assert (await admin.queues.purge("default", older_than=timedelta(days=2))).changed == 0
    clock.advance(timedelta(microseconds=1))
    assert (await admin.queues.purge(None, older_than=timedelta(days=2))).changed == 1
    assert (await admin.queues.purge(None, status="dead", older_than=timedelta(microseconds=1))).changed == 0
    assert (await admin.queues.purge("default", status="dead", older_than=0)).changed == 1
    with pytest.raises(InvalidInput, match="must be one of canceled, dead"):
        await admin.queues.purge("default", status="running", older_than=0)
    assert (await admin.snapshot()).completed.total == 1


@pytest.mark.spec("ADMIN-25")
async def test_a_purge_counts_from_the_moment_of_its_preview(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    """What has become old enough since then stays."""
    await ran(app, Status.DONE)
    clock.advance(timedelta(days=1))
    await ran(app, Status.DONE)
    shown = await admin.jobs.preview("is:done finished:9d..1h")
    assert shown.count == 1
    clock.advance(timedelta(days=1))
    purged = partial(admin.queues.purge, None, older_than=timedelta(hours=1))
    assert (await purged(counted_at=shown.counted_at)).changed == 1
    assert (await purged(counted_at=shown.counted_at)).changed == 0
    with pytest.raises(InvalidInput, match="counted_at"):
        await purged(counted_at=shown.counted_at + timedelta(days=3))
    assert (await purged()).changed == 1

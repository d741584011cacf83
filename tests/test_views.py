from __future__ import annotations

import typing
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from stoker import views
from stoker.app import Stoker
from stoker.engines.base import CORRUPT
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.events import Transition
from stoker.model.job import Failure, Options, Status, Stored
from stoker.model.run_origins import RunOrigin
from stoker.model.time import HOUR, SECOND
from stoker.testing.clock import VirtualClock
from stoker.views import FailedRun, Job
from tests.harness.apps import drain

NAME = "01010101-0101-0101-0101-010101010101"


@pytest.mark.spec("API-23")
async def test_ids_are_text_wherever_a_user_meets_one(jobs: Stoker) -> None:
    received: list[Transition] = []
    jobs.listener(received.append)

    @jobs.task
    async def work() -> None: ...

    handle = await work.enqueue()
    [receipt] = await jobs.enqueue_many([work.draft()])
    assert (await handle.refresh()).id == handle.id
    assert receipt == views.Receipt(jobs.handle(receipt.id).id, Stored.INSERTED)
    await drain(jobs)
    assert await jobs.handle(receipt.id).result(0) is None
    assert {change.job for change in received} == {handle.id, receipt.id}
    assert [change.after for change in received if change.job == receipt.id] == ["pending", "running", "done"]


@pytest.mark.spec("API-24")
async def test_instants_and_durations_are_those_of_the_standard_library(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    @timed_jobs.task(timeout=1.5, keep=timedelta(hours=2), expires=60)
    async def work() -> None: ...

    job = await work.using(delay=30).enqueue()
    record = await job.refresh()
    assert record.created_at == clock.moment() == datetime(2030, 1, 1, tzinfo=UTC)
    assert record.scheduled_at - record.created_at == timedelta(seconds=30)
    assert (record.started_at, record.finished_at, record.expires_at) == (None, None, None)
    options = (record.timeout, record.expires, record.keep)
    assert options == (timedelta(seconds=1.5), timedelta(seconds=60), timedelta(hours=2))
    clock.advance(30)
    await drain(timed_jobs)
    record = await job.refresh()
    assert record.started_at == record.finished_at == clock.moment()
    assert record.expires_at == clock.moment() + timedelta(hours=2)


@pytest.mark.spec("API-24")
def test_a_record_shows_everything_the_store_has_about_a_job() -> None:
    record = stored.Job(
        id=b"\1" * 16,
        kind="send",
        queue="mail",
        payload=b"{}",
        status=Status.RETRIED,
        priority=1,
        attempts=2,
        base=0,
        budget=5,
        created_at=SECOND,
        scheduled_at=2 * SECOND,
        options=Options(timeout=SECOND, keep=HOUR, isolation="process"),
        started_at=3 * SECOND,
        history=(Failure(4 * SECOND, 1, "boom", 7), Failure(5 * SECOND, 2, "boom", 8)),
        successor=b"\1" * 16,
        origin=7,
    )
    shown = views.job(record, {7: RunOrigin(7, "w", "web-3", 11, "r42")})
    assert (shown.id, shown.successor) == (NAME, NAME)
    place = views.Origin("w", "web-3", 11, "r42")
    assert shown.history == (
        FailedRun(datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC), 1, "boom", place),
        FailedRun(datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), 2, "boom"),
    )
    assert (shown.origin, views.job(record).origin) == (place, None)
    options = {"timeout", "expires", "keep", "backoff", "isolation", "then", "group", "limit", "label"}
    flat: dict[str, set[str]] = {"options": options, "settled": {"suspended"}, "known_as": set()}
    wanted = {name for field in stored.Job.__struct_fields__ for name in flat.get(field, {field})}
    assert set(Job.__struct_fields__) == wanted | {"unreadable"}
    assert not shown.unreadable
    assert views.job(msgspec.structs.replace(record, metadata={CORRUPT: "no state"})).unreadable
    plain = [field for field in msgspec.structs.fields(stored.Job) if field.type in (str, bytes, int, Status)]
    for field in plain:
        if field.name not in ("id", "created_at", "scheduled_at", "origin"):
            assert getattr(shown, field.name) == getattr(record, field.name)
    hints = typing.get_type_hints(Job)
    assert [
        name for name in hints if name.endswith("_at") and datetime not in (hints[name], *typing.get_args(hints[name]))
    ] == []


@pytest.mark.spec("ID-04")
def test_text_and_bytes_of_an_id_are_the_same_uuid() -> None:
    import uuid

    for number in (0, 1, 1 << 127, (1 << 128) - 1, 0x0123456789ABCDEF0123456789ABCDEF):
        job = number.to_bytes(16)
        assert ids.text(job) == str(uuid.UUID(bytes=job))
        assert ids.parse(ids.text(job)) == job

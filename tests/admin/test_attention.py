"""What needs a person, on every engine: it is found, it ends with its cause, and every skin says the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stoker import Limit
from stoker.admin import Admin, Filter, attention, documents
from stoker.app import Stoker
from stoker.engines.base import Feature, outbox_of
from stoker.model.control import Presence
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.events import Event, EventType, Point
from stoker.model.findings import Acknowledged, Finding
from stoker.model.health.check import Grade
from stoker.model.job import Claim, Demand, Settlement, Status
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.stream import Entry, Stream
from stoker.model.query import Query
from stoker.model.time import HOUR, MINUTE, SECOND, Instant, moment
from stoker.observe import metrics, prometheus
from stoker.registry import mint
from stoker.testing.clock import VirtualClock
from stoker.worker.rollup import write_points
from tests.harness.letters import letters


async def beat(app: Stoker, worker: str = "v", **given: Any) -> None:
    fields = {"host": "h", "pid": 7, "queues": {"default": 5}, **given}
    await (await app.engine()).control.beat(Presence(worker=worker, **fields))


async def claim(app: Stoker, worker: str = "w", n: int = 100) -> list[Claim]:
    engine = await app.engine()
    await engine.jobs.renew(worker, [], first=True)
    return await engine.jobs.claim(Demand(worker, (("default", n),), n))


async def die(app: Stoker, clock: VirtualClock, error: str = "Timeout: after 1 s") -> int:
    """Let everything that is due die, as a worker would tell it."""
    engine, claims = await app.engine(), await claim(app)
    await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DEAD, error=error) for one in claims])
    told = [Event(clock(), EventType.FAILED, one.id, one.queue, one.kind) for one in claims]
    await engine.timeline.record(told, now=clock())
    return len(claims)


def later(clock: VirtualClock, span: int) -> None:
    clock.advance(timedelta(microseconds=span))


async def found(admin: Admin) -> list[Finding]:
    return (await admin.overview()).findings


async def died(admin: Admin) -> list[tuple[str, str]]:
    return [(one.tone, f"{one.name} {one.text}") for one in await found(admin) if one.noun == "jobs"]


@pytest.mark.spec("NEED-10", "NEED-14")
async def test_deaths_are_those_of_jobs_that_are_dead(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    """Also in the minute that is not over, and not after they were requeued, discarded or deleted."""
    await beat(app)
    await app.enqueue(app.draft("send"))
    await die(app, clock)
    assert await died(admin) == [("plain", "1 job died in the last hour")]
    for _ in range(11):
        await app.enqueue(app.draft("send"))
    await die(app, clock)
    assert await died(admin) == [("bad", "12 jobs died in the last hour, all with the same error")]
    await admin.jobs.requeue(Filter.parse("is:dead"))
    assert await died(admin) == [], "they wait again"
    assert await die(app, clock) == 12
    since = "; with those that were requeued, discarded or deleted since there were 24 deaths"
    assert await died(admin) == [("bad", f"12 jobs died in the last hour, all with the same error{since}")]
    ids = [job.id for job in (await admin.jobs.find("is:dead")).jobs]
    await admin.jobs.discard(ids[:6])
    await admin.jobs.delete(ids[6:8])
    [(tone, text)] = await died(admin)
    assert (tone, text.partition(",")[0]) == ("plain", "4 jobs died in the last hour")
    later(clock, HOUR + 1)
    assert await died(admin) == []


@pytest.mark.spec("NEED-24", "NEED-10")
async def test_of_many_deaths_what_was_rolled_up_tells(
    admin: Admin, app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "ONE_BY_ONE", 3)
    monkeypatch.setattr(attention, "MOST_COUNTED", 9)
    await beat(app)
    for _ in range(12):
        await app.enqueue(app.draft("send"))
    await die(app, clock, "Timeout: after 1 s")
    text = "12 jobs died in the last hour, all with the same error"
    assert await died(admin) == [("bad", text)], "nothing was rolled up: the jobs were read"
    engine = await app.engine()
    signed = [
        Event(clock(), EventType.FAILED, mint(), "default", "send", error="Timeout: after … s") for _ in range(12)
    ]
    await engine.timeline.record(signed, now=clock())
    later(clock, 3 * MINUTE)
    await write_points(engine)
    finds = 0
    find = engine.operator.find

    async def counted(query: Query, **more: Any) -> Any:
        nonlocal finds
        finds += Status.DEAD in query.statuses
        return await find(query, **more)

    monkeypatch.setattr(engine.operator, "find", counted)
    assert await died(admin) == [("bad", "About 12 jobs died in the last hour, 12 of them with the same error")]
    assert finds == 1
    [found] = [one for one in await admin.health.findings() if one.noun == "jobs"]
    assert found.detail == "Timeout: after 1 s in send", "the newest of them have one text"
    await admin.jobs.requeue(Filter.parse("is:dead"))
    assert await died(admin) == []


@pytest.mark.spec("NEED-04")
async def test_deaths_are_compared_with_those_of_the_day(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    later(clock, 2 * 24 * HOUR)
    for _ in range(12):
        await app.enqueue(app.draft("send"))
    await die(app, clock)
    await beat(app)
    assert [tone for tone, _ in await died(admin)] == ["bad"]
    minute = clock() // MINUTE * MINUTE - 2 * MINUTE
    usual = [Point("", "all_failed", minute - n * HOUR, 12) for n in range(1, 23)]
    await (await app.engine()).timeline.record([], usual, now=clock())
    assert [tone for tone, _ in await died(admin)] == ["plain"], "as many die every hour"


@pytest.mark.spec("NEED-10")
async def test_a_dead_worker_is_history_once_its_jobs_were_taken_over(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    await app.enqueue(app.draft("send"))
    await claim(app, "w")
    await beat(app, "w", running=1, lease=20 * SECOND)
    later(clock, 12 * SECOND)
    await beat(app, "v")
    [one] = await found(admin)
    assert (one.tone, one.noun, one.name) == ("bad", "worker", "h / 7")
    assert "goes to another worker at 00:00:20" in one.detail, "by the lease that it reported"
    assert [view.lease.total_seconds() for view in (await admin.overview()).workers] == [15, 20]
    assert await admin.workers.take_back("w") == 1
    assert await found(admin) == [], "although it reported to run one"


@pytest.mark.spec("NEED-13")
async def test_no_worker_is_one_finding_over_everything_that_is_due(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    await beat(app, "w", state="stopped")
    for n in range(3):
        await app.enqueue(app.draft("send", queue=f"q{n}"))
    later(clock, MINUTE)
    assert [one.tone for one in await found(admin)] == ["plain"]
    later(clock, 1)
    [one] = await found(admin)
    assert (one.tone, one.detail) == ("bad", "3 due jobs wait for one.")


@pytest.mark.spec("NEED-13")
async def test_a_retry_that_is_due_waits_for_a_worker_too(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    await app.enqueue(app.draft("send"))
    engine = await app.engine()
    [job] = await claim(app)
    again = Settlement(job.id, job.worker, job.token, Status.RETRYING, after=MINUTE, error="Timeout: after 1 s")
    await engine.jobs.settle([again])
    assert await found(admin) == [], "it is not due yet"
    later(clock, 2 * MINUTE)
    [finding] = await found(admin)
    assert (finding.tone, finding.text) == ("bad", "No worker is at work")
    assert finding.detail == "1 due job waits for one."
    await beat(app, queues={"other": 5})
    [finding] = await found(admin)
    assert (finding.tone, finding.name, finding.text) == ("bad", "default", "has 1 ready job and no worker")
    await admin.queues.pause("default")
    assert "default" not in {one.name for one in await found(admin) if one.tone == "bad"}


@pytest.mark.spec("NEED-15")
async def test_a_wait_is_late_by_what_is_usual_in_its_queue(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    later(clock, 2 * 24 * HOUR)
    await app.enqueue(app.draft("send"))
    later(clock, 5 * MINUTE)
    await beat(app)
    assert [one.text for one in await found(admin)] == ["is falling behind"]
    await (await app.engine()).timeline.record([], usual(clock(), lag=2 * MINUTE), now=clock())
    assert await found(admin) == []
    await (await app.engine()).timeline.record([], usual(clock(), lag=30 * SECOND), now=clock())
    assert [one.text for one in await found(admin)] == ["is falling behind"]


def usual(now: Instant, lag: int) -> list[Point]:
    """Every hour of the last day ten jobs that waited so long."""
    buckets = [now // MINUTE * MINUTE - n * HOUR for n in range(1, 24)]
    lags = [Point("default", "lag", at, 1, lag, lag, lag, lag, lag) for at in buckets]
    return [*lags, *(Point("default", "completed", at, 10) for at in buckets)]


@pytest.mark.spec("NEED-16")
async def test_a_queue_whose_oldest_job_is_held_by_a_limit_is_not_late(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    limit = Limit(1, name="api")
    for _ in range(2):
        await app.enqueue(app.draft("send", limit=limit))
    assert len(await claim(app)) == 1
    later(clock, 5 * MINUTE)
    await beat(app)
    assert [(one.tone, one.text) for one in await found(admin)] == [("plain", "is held back by its limit api")]
    await app.enqueue(app.draft("send"))
    later(clock, 2 * MINUTE)
    await beat(app)
    assert [one.tone for one in await found(admin)] == ["plain"], "the oldest is the one that is held"


@pytest.mark.spec("NEED-09")
async def test_letters_count_and_consumers_that_are_behind(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    await beat(app)
    if Feature.OUTBOX not in engine.features:
        assert await found(admin) == []
        return
    outbox, stream = outbox_of(engine), Stream("orders", 1)
    await outbox.register(stream, [Consumer("analytics")])
    await outbox.append(stream, [Entry(id=bytes(16), key="7", partition=0, payload=b"{}", type="paid")])
    later(clock, MINUTE)
    await beat(app)
    assert [(one.noun, one.name) for one in await found(admin)] == [("consumer", "orders / analytics")]
    await letters(engine, 2, stream="bills")
    told = [f"{one.name} {one.text}" for one in await found(admin)]
    assert "bills / warehouse has 2 letters to decide on" in told


@pytest.mark.spec("NEED-09")
async def test_the_check_up_and_the_metrics_say_what_the_overview_says(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    await app.enqueue(app.draft("send", queue="maill"))
    for _ in range(12):
        await app.enqueue(app.draft("send"))
    await die(app, clock)
    await app.enqueue(app.draft("send"))
    later(clock, 5 * MINUTE)
    await beat(app, queues={"default": 5, "mail": 1})
    said = await found(admin)
    assert [(one.tone, one.name) for one in said] == [("bad", "maill"), ("bad", "12 jobs"), ("warn", "default")]
    grades = {"bad": Grade.WRONG, "warn": Grade.WARNING, "plain": Grade.NOTE}
    checks = {(check.read, check.verdict) for check in await admin.health.check()}
    assert {(f"{one.name} {one.text}", grades[one.tone]) for one in said} <= checks
    work = (await metrics.read(app)).work
    text = prometheus.text(await metrics.read(app))
    assert 'stoker_findings{tone="bad"} 2.0' in text
    assert 'stoker_findings{tone="warn"} 1.0' in text
    assert "stoker_died_last_hour 12.0" in text
    assert 'stoker_queue_late{queue="default"} 1.0' in text
    assert 'stoker_queue_late{queue="maill"} 0.0' in text
    assert work.deaths is not None
    assert work.deaths.times == 12


@pytest.mark.spec("NEED-21", "NEED-22")
async def test_a_finding_is_acknowledged_for_a_while(app: Stoker, clock: VirtualClock) -> None:
    admin = Admin(app, by="ada")
    for _ in range(2):
        await app.enqueue(app.draft("send", queue="bulk"))
    await beat(app)
    assert (await admin.overview()).wrong
    shown = await admin.health.acknowledge("no worker: bulk", reason=" a migration ", for_=3600)
    assert (shown.tone, shown.acknowledged) == ("plain", Acknowledged("ada", moment(clock() + HOUR), "a migration"))
    overview = await admin.overview()
    assert (overview.wrong, overview.needs_attention, overview.verdict) == (False, False, "Everything keeps up")
    assert [one.id for one in overview.findings] == ["no worker: bulk"]
    [check] = [one for one in await admin.health.check() if one.name == "queues"]
    assert check.verdict is not Grade.WRONG, "the check-up knows it, too"
    clock.advance(1)
    again = await admin.health.acknowledge("no worker: bulk", reason="still", for_=60)
    assert again.acknowledged is not None
    assert again.acknowledged.reason == "still"
    [second, first] = await admin.audit.list(action="findings.acknowledge")
    assert (first.who, first.target, first.reason) == ("ada", "finding no worker: bulk", "a migration")
    assert first.after["reason"] == "a migration"
    assert second.after["reason"] == "still"
    for _ in range(2):
        await app.enqueue(app.draft("send", queue="bulk"))
    assert (await admin.overview()).wrong, "four are twice as many as two"
    await admin.health.withdraw("no worker: bulk")
    with pytest.raises(NotFound, match="is not acknowledged"):
        await admin.health.withdraw("no worker: bulk")
    assert [one.action for one in await admin.audit.list(action="findings.withdraw")] == ["findings.withdraw"]
    await admin.health.acknowledge("no worker: bulk", reason="ok", for_=60)
    later(clock, 61 * SECOND)
    await beat(app)
    assert (await admin.overview()).wrong, "its time has passed"
    assert len(await documents.acknowledgements(await app.engine())) == 1
    await app.enqueue(app.draft("send", queue="other"))
    await admin.health.acknowledge("no worker: other", reason="ok")
    assert [one.finding for one in await documents.acknowledgements(await app.engine())] == ["no worker: other"]


@pytest.mark.spec("NEED-21")
async def test_an_acknowledgement_needs_a_reason_a_time_and_a_finding(app: Stoker) -> None:
    admin = Admin(app)
    await app.enqueue(app.draft("send", queue="bulk"))
    await beat(app)
    for wrong in (
        {"reason": " "},
        {"reason": "x" * 501},
        {"reason": "ok", "for_": 0},
        {"reason": "ok", "for_": 86_401},
    ):
        with pytest.raises(InvalidInput, match=r"must be (1 to 500 characters|more than 0 and at most 86400 seconds)"):
            await admin.health.acknowledge("no worker: bulk", **wrong)
    with pytest.raises(NotFound, match="there is no finding 'late: mail': `stoker findings` lists them"):
        await admin.health.acknowledge("late: mail", reason="ok")
    assert (await admin.overview()).wrong

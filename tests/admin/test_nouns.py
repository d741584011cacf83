"""Jobs in detail, queues, schedules, budgets, workers, kinds, the past, and the overview, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from stoker.admin import Admin, InvalidFilter
from stoker.admin.admin import lacking
from stoker.admin.history import EventPage
from stoker.app import Stoker
from stoker.engines.base import Feature
from stoker.limits import Limit
from stoker.model import ids
from stoker.model.control import Presence, Tuning
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.events import Event, EventType, Point, Window
from stoker.model.job import Claim, Demand, Settlement, Status, Verdict, chain
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.throttle import Cool, Rate
from stoker.model.time import HOUR, MINUTE, SECOND, moment
from stoker.testing.clock import VirtualClock
from stoker.views import Curve
from tests.harness.calls import counted

UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"


async def claim(app: Stoker, *queues: str) -> list[Claim]:
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    return await engine.jobs.claim(Demand("w", tuple((queue, 100) for queue in queues or ("default",)), 100))


async def end(app: Stoker, claims: list[Claim], status: Status, error: str | None = None, **more: Any) -> None:
    engine = await app.engine()
    await engine.jobs.settle([Settlement(one.id, one.worker, one.token, status, error=error, **more) for one in claims])


async def present(app: Stoker, *queues: str, **fields: Any) -> None:
    given: dict[str, Any] = {"worker": "w", "host": "h", "pid": 7, "queues": dict.fromkeys(queues, 5), **fields}
    await (await app.engine()).control.beat(Presence(**given))


def later(clock: VirtualClock, span: int) -> None:
    clock.advance(timedelta(microseconds=span))


# --- one job ---


@pytest.mark.spec("ADMIN-11")
async def test_a_job_is_shown_with_everything_it_belongs_to(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    group = await app.group([app.draft("send", {"to": "ada", "user_id": 7, "request_id": "r"})])
    engine = await app.engine()
    [running] = await claim(app)
    await present(app, "default")
    event = Event(clock(), EventType.STARTED, running.id, "default", "send", 1)
    await engine.timeline.record([event], now=clock())
    later(clock, 6 * MINUTE)
    found = await admin.jobs.get(ids.text(running.id))
    assert (found.view, found.host, found.pid, found.runs_long) == ("running", "h", 7, True)
    assert (found.arguments, found.principal, found.correlation) == (
        {"to": "ada", "user_id": 7, "request_id": "r"},
        "7",
        "r",
    )
    noted = await app.enqueue(app.draft("send", {"request_id": "r"}, metadata={"correlation_id": "c"}))
    assert (await admin.jobs.get(noted.id)).correlation == "c", "metadata go first, as in logs"
    assert found.group is not None
    assert (found.group.id, found.group.total, found.group.members) == (group.id, 1, (found.job.id,))
    assert [(one.type, one.attempt) for one in found.events if one.type == "started"] == [("started", 1)]
    await engine.jobs.renew("w", [(running.id, running.token)])
    await end(app, [running], Status.DONE, result=b'{"sent": 1}')
    found = await admin.jobs.get(ids.text(running.id))
    assert (found.view, found.value, found.host, found.runs_long) == ("done", {"sent": 1}, None, False)


@pytest.mark.spec("EVENT-12")
async def test_the_life_of_a_job_is_told_where_its_events_were_lost(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    """As by a process that died before it wrote them, or for a job of a user's transaction that no worker claimed."""
    engine = await app.engine()
    draft = app.draft("send")
    await engine.jobs.insert([draft])
    assert [one.type for one in (await admin.jobs.get(draft.id)).events] == ["enqueued"]
    later(clock, MINUTE)
    claims = await claim(app)
    later(clock, MINUTE)
    await engine.jobs.renew("w", [(one.id, one.token) for one in claims])
    await end(app, claims, Status.DEAD, "boom")
    told = (await admin.jobs.get(draft.id)).events
    assert [(one.type, one.attempt) for one in told] == [("enqueued", 0), ("started", 1), ("failed", 1)]
    assert [one.at - told[0].at for one in told] == [timedelta(minutes=n) for n in range(3)]


@pytest.mark.spec("ADMIN-11")
async def test_a_copy_a_chain_and_a_schedule_are_named(admin: Admin, app: Stoker) -> None:
    first = await app.enqueue(chain(app.draft("send"), app.draft("resize")))
    claims = await claim(app)
    await end(app, claims, Status.DONE, followups=claims[0].options.then)
    [second] = await claim(app)
    assert (await admin.jobs.get(ids.text(second.id))).parent == first.id
    assert (await admin.jobs.get(first.id)).job.then == ("resize",)
    await end(app, [second], Status.DEAD, "boom")
    [copy] = (await admin.jobs.retry(ids.text(second.id))).created
    assert (await admin.jobs.get(copy)).original == ids.text(second.id)
    await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
    job = await admin.schedules.run_now("nightly")
    assert (await admin.jobs.get(job)).schedule == "nightly"


@pytest.mark.spec("ADMIN-12")
async def test_secrets_are_masked_in_every_answer(app: Stoker) -> None:
    secret = {"password": "hunter2", "to": "ada"}
    job = await app.enqueue(app.draft("send", secret))
    claims = await claim(app)
    await end(app, claims, Status.DEAD, "LoginError: password=hunter2")
    await app.schedule("nightly", app.draft("send", secret), cron="0 3 * * *")
    admin = Admin(app)
    shown = [
        await admin.jobs.get(job.id),
        await admin.jobs.find("is:dead"),
        await admin.jobs.explain(job.id),
        await admin.jobs.errors(),
        await admin.schedules.list(),
        await admin.schedules.get("nightly"),
        await admin.overview(),
        await admin.kinds.list(),
    ]
    assert "hunter2" not in str(shown)
    assert (await admin.jobs.get(job.id)).arguments == {"password": "[hidden]", "to": "ada"}
    assert (await Admin(app, redact=None).jobs.get(job.id)).arguments == secret


@pytest.mark.spec("ADMIN-13")
async def test_a_tail_gives_each_event_once(
    admin: Admin, app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await app.engine()
    begun, events = asyncio.Event(), engine.timeline.events

    async def asked(window: Window) -> list[Event]:
        begun.set()
        return await events(window)

    monkeypatch.setattr(engine.timeline, "events", asked)
    before = await app.enqueue(app.draft("send"))
    await app.enqueue(app.draft("resize", queue="bulk"))
    tail = admin.jobs.tail("queue:default", every=0.001)
    coming = asyncio.ensure_future(anext(tail))
    await begun.wait()
    job = ids.parse(before.id)
    await engine.timeline.record([Event(clock() + 1, EventType.STARTED, job, "default", "send", 1)], now=clock())
    await engine.timeline.record([Event(clock() + 1, EventType.STARTED, job, "bulk", "resize", 1)], now=clock())
    later(clock, SECOND)
    first = await asyncio.wait_for(coming, 60)
    await engine.timeline.record([Event(clock(), EventType.COMPLETED, job, "default", "send", 1, SECOND)], now=clock())
    second = await asyncio.wait_for(anext(tail), 60)
    assert [(one.type, one.job, one.seconds) for one in (first, second)] == [
        ("started", before.id, None),
        ("completed", before.id, 1.0),
    ]
    await tail.aclose()
    with pytest.raises(InvalidFilter, match="only its queue and kind"):
        await anext(admin.jobs.tail("is:dead"))


# --- queues, schedules, budgets, workers, kinds ---


@pytest.mark.spec("ADMIN-14")
async def test_a_queue_is_shown_with_what_goes_through_it(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    for n in range(3):
        await app.enqueue(app.draft("send", queue="mail", delay=n * 3600))
    await present(app, "mail")
    later(clock, 20 * MINUTE)
    minute = clock() // MINUTE * MINUTE - MINUTE
    points = [
        Point("mail", "enqueued", minute, 30),
        Point("mail", "completed", minute, 15),
        Point("mail", "total", minute, 15, 60e6, 2e6, 5e6, 9e6, 9e6),
        Point("mail", "completed", minute - 20 * MINUTE, 1_000),
        *(Point("", "counted", minute - n * MINUTE, 1) for n in range(3)),
    ]
    await engine.timeline.record([], points, now=clock())
    await present(app, "mail")
    view = await admin.queues.get("mail")
    assert (view.ready, view.scheduled, view.workers, view.slots) == (1, 2, 1, 5)
    assert (view.lag, view.flow.completed, view.flow.growing) == (timedelta(minutes=20), 15, True)
    assert view.flow.minutes == 3, "the other twelve were not counted"
    assert view.clear_in == timedelta(seconds=12)
    assert view.total is not None
    assert (view.total.p50, view.total.p95, view.total.p99, view.processing) == (2.0, 5.0, 9.0, None)
    with pytest.raises(NotFound, match="Did you mean mail"):
        await admin.queues.get("maill")


@pytest.mark.spec("ADMIN-14")
async def test_a_queue_is_paused_by_name_and_resumed(app: Stoker, clock: VirtualClock) -> None:
    admin = Admin(app, by="ada", way="page")
    with pytest.raises(NotFound, match="queue 'mail' is not known"):
        await admin.queues.pause("mail")
    assert await admin.queues.list() == []
    await admin.queues.pause("mail", for_=1800, reason="a migration", create=True)
    view = await admin.queues.get("mail")
    assert (view.paused, view.paused_by, view.paused_why) == (True, "ada", "a migration")
    assert view.paused_until == moment(clock() + 30 * MINUTE)
    await admin.queues.pause("mail", until=moment(clock() + HOUR))
    assert (await admin.queues.get("mail")).paused_until == moment(clock() + HOUR)
    for wrong in ({"for_": 1, "until": moment(clock() + HOUR)}, {"until": moment(clock())}, {"for_": 0}):
        with pytest.raises(InvalidInput):
            await admin.queues.pause("mail", **wrong)
    await admin.queues.resume("mail")
    await admin.queues.tune("mail", Tuning(workers=3, rate=Rate(5), curve=Curve(5, 600).stored()))
    view = await admin.queues.get("mail")
    assert (view.paused, view.limit, view.rate, view.curve) == (False, 3, Rate(5), Curve(5, 600))


@pytest.mark.spec("ADMIN-28")
async def test_a_cool_down_is_ended(admin: Admin, app: Stoker) -> None:
    await app.enqueue(app.draft("send", queue="mail"))
    await end(app, await claim(app, "mail"), Status.PENDING, refund=True, cool=Cool(0, HOUR))
    assert (await admin.queues.get("mail")).cooling_until is not None
    await admin.queues.reopen("mail")
    assert (await admin.queues.get("mail")).cooling_until is None
    assert len(await claim(app, "mail")) == 1


@pytest.mark.spec("ADMIN-15")
async def test_schedules_are_listed_and_steered(admin: Admin, app: Stoker) -> None:
    await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
    assert [one.name for one in await admin.schedules.list()] == ["nightly"]
    await admin.schedules.pause("nightly")
    assert not (await admin.schedules.get("nightly")).enabled
    await admin.schedules.resume("nightly")
    assert (await admin.schedules.edit("nightly", cron="0 4 * * *")).cron == "0 4 * * *"
    assert [at.hour for at in await admin.schedules.next("nightly", 2)] == [4, 4]
    await admin.schedules.drop("nightly")
    for call in (admin.schedules.get, admin.schedules.pause, admin.schedules.run_now, admin.schedules.drop):
        with pytest.raises(NotFound, match="nightly"):
            await call("nightly")


@pytest.mark.spec("ADMIN-45")
async def test_a_name_that_is_not_known_is_refused_unless_it_is_created(admin: Admin, app: Stoker) -> None:
    """What the code declares is known before a worker has stored it; what only ends something creates nothing."""
    await app.enqueue(app.draft("send", queue="mail"))
    app.budget("declared", rate=Rate(1))
    await admin.limits.tune("declared", Rate(2))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: admin.queues.pause("maill"),
        lambda: admin.queues.resume("maill"),
        lambda: admin.queues.reopen("maill"),
        lambda: admin.queues.tune("maill", Tuning(workers=1)),
        lambda: admin.limits.set("maill", "call", 2),
        lambda: admin.limits.clear("maill", "call"),
        lambda: admin.limits.set("mail", "calll", 2),
        lambda: admin.limits.clear("mail", "cal"),
        lambda: admin.limits.tune("declaredd", Rate(2)),
        lambda: admin.tokens.create("ci", "operate", queues=["mail", "maill"]),
        lambda: admin.jobs.enqueue("send", queue="maill", create=False),
    ]
    await app.enqueue(app.draft("send", queue="mail", limit=Limit(1, "@tenant", name="call"), tenant="acme"))
    for call in calls:
        with pytest.raises(NotFound, match=r"Did you mean (mail|call|declared)\? Nothing was changed"):
            await call()
    assert [view.name for view in await admin.queues.list()] == ["mail"]
    assert [view.name for view in await admin.limits.list()] == ["declared"]
    assert await admin.tokens.list() == []
    await admin.tokens.create("ci", "operate", queues=["early"], create=True)
    await admin.jobs.enqueue("send", queue="mail", create=False)
    await admin.limits.set("early", "call", 2, create=True)
    await admin.limits.set("early", "call", 3)
    await admin.limits.set("mail", "call", 2)
    await admin.limits.clear("mail", "call")
    await admin.queues.pause("bulk", create=True)
    assert [view.name for view in await admin.queues.list()] == ["bulk", "early", "mail"]


@pytest.mark.spec("ADMIN-45")
async def test_a_queue_that_only_code_names_is_shown_with_zeros(admin: Admin, app: Stoker) -> None:
    @app.task(queue="thumbs")
    async def thumb() -> None: ...

    app.declare("shrink", queue="elsewhere")
    assert (await admin.queues.get("elsewhere")).ready == 0
    view = await admin.queues.get("thumbs")
    assert (view.name, view.ready, view.running, view.workers, view.paused) == ("thumbs", 0, 0, 0, False)
    await admin.queues.pause("thumbs")
    assert (await admin.queues.get("thumbs")).paused


@pytest.mark.spec("ADMIN-16")
async def test_budgets_show_what_is_left(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    with pytest.raises(NotFound, match="budget 'mailer' is not in the store"):
        await admin.limits.tune("mailer", Rate(60, per=60))
    await admin.limits.tune("mailer", Rate(60, per=60), create=True)
    assert await app.spend("mailer", 60)
    later(clock, SECOND // 2)
    [one] = await admin.limits.list()
    assert (one.name, one.capacity, one.tokens, one.next_token) == ("mailer", 60, 0.5, timedelta(seconds=0.5))
    later(clock, HOUR)
    await admin.limits.drain("mailer")
    assert (await admin.limits.get("mailer")).tokens == 0
    for call in (admin.limits.get, admin.limits.drain):
        with pytest.raises(NotFound, match="posts"):
            await call("posts")


@pytest.mark.spec("ADMIN-16", "BUDGET-25")
async def test_measures_and_keys_of_budgets_are_shown_and_changed(app: Stoker) -> None:
    """A view for each measure, one for each measure of a key; each change is audited with what it was about."""
    admin = Admin(app, by="ada")
    app.budget("llm", requests=Rate(5), tokens=Rate(100, per=60))
    app.budget("by", tokens=Rate(10, per=60), keyed=True)
    await app.declarations.store(await app.engine())
    await app.spend("by", tokens=4, key="acme")
    found = [(one.name, one.measure, one.keyed, one.key, int(one.tokens)) for one in await admin.limits.list()]
    assert found == [
        ("by", "tokens", True, None, 10),
        ("llm", "requests", False, None, 5),
        ("llm", "tokens", False, None, 100),
    ]
    [one] = await admin.limits.buckets("by")
    assert (one.key, one.measure, int(one.tokens), one.capacity) == ("acme", "tokens", 6, 10)
    [fresh] = await admin.limits.buckets("by", key="new")
    assert (fresh.key, fresh.tokens) == ("new", 10)
    assert await admin.limits.buckets("llm") == await admin.limits.buckets("llm", key="acme") == []
    with pytest.raises(NotFound, match="budget 'lmm' is not in the store"):
        await admin.limits.buckets("lmm")
    await admin.limits.tune("llm", Rate(50, per=60), measure="tokens")
    tokens = await admin.limits.get("llm", "tokens")
    assert (tokens.capacity, tokens.declared) == (50, Rate(100, per=60))
    for measure in (None, "words"):
        with pytest.raises(InvalidInput, match="measure: must be one that budget 'llm' has: requests or tokens"):
            await admin.limits.get("llm", measure)
    with pytest.raises(InvalidInput, match="must be one that budget 'llm' has: requests or tokens"):
        await admin.limits.tune("llm", Rate(5))
    await admin.limits.drain("by", "acme")
    assert [view.tokens for view in await admin.limits.buckets("by")] == [0]
    for name, key, says in (("by", None, "has buckets for each key"), ("llm", "acme", "has no keys")):
        with pytest.raises(InvalidInput, match=says):
            await admin.limits.drain(name, key)
    entries = {(one.action, one.target) for one in await admin.audit.list()}
    assert {("limits.tune", "limit llm"), ("limits.drain", "budget by, key acme")} <= entries


@pytest.mark.spec("ADMIN-17")
async def test_workers_show_where_they_are_and_what_they_run(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    for _ in range(2):
        await app.enqueue(app.draft("send"))
    claims = await claim(app)
    await present(app, "default", kinds={"send": "app:send"}, running=2)
    [one] = await admin.workers.list()
    assert (one.worker, one.state, one.slots, one.kinds) == ("w", "running", 5, ("send",))
    later(clock, 11 * SECOND)
    assert [one.state for one in await admin.workers.list()] == ["silent"]
    assert {one.job.id for one in await admin.workers.jobs("w")} == {ids.text(one.id) for one in claims}
    assert await admin.workers.jobs("other") == []
    later(clock, 6 * MINUTE)
    assert [one.long for one in await admin.workers.jobs()] == [True, True]


@pytest.mark.spec("ADMIN-39")
async def test_the_jobs_of_one_worker_are_taken_back_now(app: Stoker, clock: VirtualClock) -> None:
    admin = Admin(app, by="ada")
    engine = await app.engine()
    for _ in range(103):
        await app.enqueue(app.draft("send", attempts=1))
    await engine.jobs.renew("other", [], first=True)
    [kept] = await engine.jobs.claim(Demand("other", (("default", 1),), 1))
    claims = [*await claim(app), *await claim(app)]
    assert len(claims) == 102
    await present(app, "default")
    seen: list[str] = []
    app.listener(lambda change: seen.append(change.job))
    assert await engine.control.lock("stoker.ticker", "w", MINUTE)
    assert await admin.workers.take_back("w", reason="its host is gone") == 102
    assert sorted(seen) == sorted(ids.text(one.id) for one in claims)
    assert await engine.control.lock("stoker.ticker", "other", MINUTE), "its locks are released too"
    for job in await engine.operator.get([claims[0].id, claims[-1].id]):
        assert job is not None
        assert (job.status, job.attempts, job.worker, job.scheduled_at) == (Status.PENDING, 0, None, job.created_at)
    [untouched] = await engine.operator.get([kept.id])
    assert untouched is not None and (untouched.status, untouched.worker) == (Status.RUNNING, "other")
    [late] = (await engine.jobs.settle([conclude(claims[0], Done())])).verdicts
    assert late is not Verdict.APPLIED, "what its runs still write is refused"
    assert not (await engine.jobs.renew("w", [])).known, "if it lives it goes on under another id"
    [entry] = await admin.audit.list()
    assert (entry.action, entry.target, entry.reason, entry.after) == (
        "workers.take_back",
        "worker w",
        "its host is gone",
        {"jobs": 102},
    )
    assert await admin.workers.take_back("w") == 0, "its presence is still known"
    with pytest.raises(NotFound, match="worker 'nobody' is not in the store"):
        await admin.workers.take_back("nobody")


@pytest.mark.spec("ADMIN-39")
async def test_a_worker_without_a_presence_is_known_by_its_jobs(admin: Admin, app: Stoker) -> None:
    await app.enqueue(app.draft("send"))
    await claim(app)
    assert await admin.workers.take_back("w") == 1
    with pytest.raises(NotFound):
        await admin.workers.take_back("w")


@pytest.mark.spec("ADMIN-18")
async def test_kinds_are_listed_from_the_start(admin: Admin, app: Stoker) -> None:
    @app.task(name="quiet")
    async def quiet() -> None: ...

    for kind in ("send", "resize"):
        await app.enqueue(app.draft(kind))
    claims = await claim(app)
    await end(app, [one for one in claims if one.kind == "resize"], Status.DEAD, "boom")
    await present(app, "default", kinds={"send": "app:send"})
    resize, *others = await admin.kinds.list()
    assert (resize.kind, resize.dead, resize.failed, resize.last_error, resize.known) == ("resize", 1, 1, "boom", False)
    assert [(one.kind, one.running, one.enqueued, one.known) for one in others] == [
        ("quiet", 0, 0, False),
        ("send", 1, 1, True),
    ]


# --- the past ---


@pytest.mark.spec("ADMIN-19")
async def test_a_series_is_merged_into_wider_buckets(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    later(clock, HOUR - clock() % HOUR + 30 * MINUTE)
    start = clock() - 20 * MINUTE
    points = [Point("mail", "completed", start + n * MINUTE, n + 1) for n in range(3)]
    times = [Point("mail", "total", start + n * MINUTE, n + 1, 4e6, 1e6 * n, 2e6, 3e6, 4e6) for n in range(2)]
    await engine.timeline.record([], [*points, *times], now=clock())
    found = await admin.history.series("completed", 1800, width=600, queue="mail")
    assert [(one.at, one.count) for one in found] == [(moment(start), 6)]
    [total] = await admin.history.series("total", 1800, width=600)
    assert (total.count, total.sum, total.p95) == (3, 8.0, 2.0)
    assert total.p50 == pytest.approx(2 / 3)
    assert await admin.history.series("completed", 60) == []
    await engine.timeline.record([], [Point("", "all_total", start, 2, 4e6, 1e6, 2e6, 3e6, 4e6)], now=clock())
    assert [(one.queue, one.count, one.p99) for one in await admin.history.series("all_total", 1800)] == [("", 2, 3.0)]
    assert [one.count for one in await admin.history.series("completed", 120, until=moment(start + MINUTE))] == [1]
    for wrong in ({"metric": "speed"}, {"metric": "total", "width": 59}, {"metric": "total", "window": 2_001 * 60}):
        with pytest.raises(InvalidInput):
            await admin.history.series(**wrong)


@pytest.mark.spec("ADMIN-20")
async def test_events_and_run_times_of_a_window(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    job = ids.parse((await app.enqueue(app.draft("send"))).id)
    done = Event(clock(), EventType.COMPLETED, job, "default", "send", 1, 2 * SECOND, 3 * SECOND)
    await engine.timeline.record([done], now=clock())
    later(clock, MINUTE)
    whole = await admin.history.events(3600, job=ids.text(job))
    [event] = [one for one in whole.events if one.type == "completed"]
    assert whole.complete
    assert (await admin.history.events(3600, limit=len(whole.events))).complete
    cut = await admin.history.events(3600, limit=len(whole.events) - 1)
    assert (cut.events, cut.complete) == (whole.events[:-1], False)
    assert (event.job, event.seconds) == (ids.text(job), 2.0)
    assert await admin.history.events(30) == EventPage([])
    [latency] = await admin.history.latencies(60)
    assert (latency.processing, latency.total) == (timedelta(seconds=2), timedelta(seconds=3))
    assert await admin.history.latencies(59) == []


@pytest.mark.spec("ADMIN-21")
async def test_errors_are_groups_of_jobs_whatever_their_kind(admin: Admin, app: Stoker) -> None:
    for kind in ("send", "send", "resize", "send"):
        await app.enqueue(app.draft(kind))
    *timeouts, last = await claim(app)
    for n, one in enumerate(timeouts):
        await end(app, [one], Status.DEAD, f"Timeout: after {n} s")
    await end(app, [last], Status.DEAD, "boom")
    found = await admin.jobs.errors()
    assert (found.looked_at, found.complete) == (4, True)
    assert [(one.error, one.count, one.kinds) for one in found.groups] == [
        ("Timeout: after … s", 3, ("resize", "send")),
        ("boom", 1, ("send",)),
    ]
    [narrow] = (await admin.jobs.errors("kind:resize")).groups
    assert (narrow.error, narrow.count) == ("Timeout: after 2 s", 1)
    assert (await admin.jobs.errors("queue:other")).since is None
    named = found.groups[0].id
    assert len((await admin.jobs.find(f"same_error:{named}")).jobs) == 3
    assert len((await admin.jobs.find(f"same_error:{named} kind:resize")).jobs) == 1
    assert (await admin.jobs.preview(f"same_error:{named}")).count == 3
    first = await admin.jobs.errors("", limit=1)
    assert (first.looked_at, first.complete, [one.count for one in first.groups]) == (1, False, [1])


# --- everything on one screen ---


@pytest.mark.spec("ADMIN-22")
async def test_the_overview_takes_six_calls_and_two_more_in_trouble(
    admin: Admin, app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(200):
        await app.enqueue(app.draft("send", queue=f"q{n}"))
    engine = await app.engine()
    await present(app, *(f"q{n}" for n in range(200)))
    calls = counted(engine, monkeypatch)
    assert (await admin.overview()).verdict == "Everything keeps up"
    assert 0 < calls.total() <= 6, calls
    later(clock, HOUR)
    calls.clear()
    found = await admin.overview()
    assert found.wrong, "no worker is there any more: what it holds is read, and what people acknowledged"
    assert 0 < calls.total() <= 8, calls
    assert len(found.queues) == 200
    assert found.counts["ready"] == found.counts["pending"] == 200
    assert found.verdict == "One thing needs you", "no worker is there"
    assert found.needs_attention


@pytest.mark.spec("ADMIN-23")
async def test_numbers_of_queues_come_in_the_order_asked(admin: Admin, app: Stoker) -> None:
    await app.enqueue(app.draft("send", queue="mail"))
    await app.enqueue(app.draft("send", queue="mail", delay=60))
    await app.enqueue(app.draft("send"))
    await end(app, await claim(app), Status.DEAD, "boom")
    found = await admin.stats(["none", "mail"])
    assert [(one.queue, one.due, one.delayed) for one in found.queues] == [("none", 0, 0), ("mail", 1, 1)]
    assert found.dead == 1


@pytest.mark.spec("INPUT-13")
async def test_no_answer_quotes_a_name_in_full(admin: Admin, app: Stoker) -> None:
    long = "x" * 1_000_000
    refused: list[Awaitable[Any]] = [
        admin.limits.get(long),
        admin.workers.take_back(long),
        admin.operations.get(long),
        admin.tokens.revoke(long),
    ]
    if Feature.OUTBOX in (await app.engine()).features:
        stream = admin.outbox.stream(long)
        refused += [stream.state(), stream.resume(long), stream.release("a", consumer=long)]
    for call in refused:
        with pytest.raises(NotFound) as error:
            await call
        assert len(str(error.value)) < 500
    assert len((await admin.jobs.find(f"queue:{long}")).hint) < 5_000


@pytest.mark.spec("ADMIN-24")
async def test_an_admin_is_a_protocol(admin: Admin) -> None:
    assert lacking(admin) == []
    assert (await admin.describe()).engine == (await admin.app.engine()).name

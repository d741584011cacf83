"""An operator finds jobs, reads them, asks why one does not run, and changes one or many."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stoker.admin import Admin, Bulk, Filter, InvalidFilter, Preview
from stoker.admin import bulk as pages
from stoker.admin import jobs as module
from stoker.app import Stoker
from stoker.model import ids
from stoker.model.audit import AuditQuery, By
from stoker.model.control import Presence, Tuning
from stoker.model.errors import InvalidInput, KeyHeld, NotFound, WrongStatus
from stoker.model.events import Transition
from stoker.model.explain import Reason
from stoker.model.job import Claim, Demand, Settlement, Status, chain
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, SECOND, moment
from stoker.testing.clock import VirtualClock
from tests.harness.calls import counted

ASKED: dict[str, dict[str, int]] = {
    "": {"find": 1},
    "is:dead order:finished": {"find": 1},
    "since:2h": {"find": 1, "now": 1},
    "queue:default": {"find": 1, "census": 1},
    "kind:send since:2h": {"find": 1, "census": 1},
}
"""Filters, and what the store is asked for them."""

UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"


async def enqueue(app: Stoker, kind: str = "send", **options: Any) -> str:
    return (await app.enqueue(app.draft(kind, **options))).id


HERE = frozenset({"default"})


async def claim(app: Stoker, queue: str = "default", n: int = 100) -> list[Claim]:
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    return await engine.jobs.claim(Demand("w", ((queue, n),), n))


async def end(app: Stoker, claims: list[Claim], status: Status = Status.DEAD, error: str | None = "boom") -> None:
    engine = await app.engine()
    await engine.jobs.settle([Settlement(one.id, one.worker, one.token, status, error=error) for one in claims])


async def dead(app: Stoker, n: int = 1, **options: Any) -> list[str]:
    found = [await enqueue(app, **options) for _ in range(n)]
    await end(app, await claim(app))
    return found


async def status(app: Stoker, job: str) -> Status:
    return (await app.handle(job).refresh()).status


# --- questions ---


@pytest.mark.spec("ADMIN-01")
async def test_a_filter_finds_jobs_page_by_page(admin: Admin, app: Stoker) -> None:
    mail = [await enqueue(app, queue="mail") for _ in range(5)]
    await enqueue(app, "resize")
    first = await admin.jobs.find("queue:mail", limit=3)
    rest = await admin.jobs.find("queue:mail", limit=3, cursor=first.cursor)
    assert [job.id for job in [*first.jobs, *rest.jobs]] == mail[::-1]
    assert rest.cursor is None
    assert [job.id for job in (await admin.jobs.find("queue:m* order:oldest is:ready")).jobs] == mail
    assert [job.id for job in (await admin.jobs.find(mail[2])).jobs] == [mail[2]]
    assert (await admin.jobs.find(UNKNOWN)).jobs == []


@pytest.mark.spec("ADMIN-02")
async def test_a_mistyped_name_is_refused_and_the_nearest_one_named(admin: Admin, app: Stoker) -> None:
    """Every way to change by a filter; reading finds nothing and hints at the name."""
    job = await enqueue(app, queue="mail")
    changes = (
        lambda: admin.jobs.delete(Filter(queues=("maill",))),
        lambda: admin.jobs.preview("queue:maill"),
        lambda: admin.operations.start("delete", "queue:maill"),
        lambda: admin.queues.purge("maill", older_than=0),
    )
    for change in changes:
        with pytest.raises(InvalidFilter, match="Did you mean mail"):
            await change()
    found = await admin.jobs.find("queue:maill", total=True)
    assert (found.jobs, found.total, found.complete, found.cursor) == ([], 0, True, None)
    assert found.hint == "queue:maill matches no queue that is known. Did you mean mail?"
    assert [one.id for one in (await admin.jobs.find("queue:maill,mail")).jobs] == [job]
    errors = await admin.jobs.errors("queue:maill")
    assert (errors.groups, errors.looked_at, errors.hint) == ([], 0, found.hint)


@pytest.mark.spec("FILTER-15")
async def test_a_part_of_a_kind_finds_it_and_a_kind_without_jobs_is_still_itself(admin: Admin, app: Stoker) -> None:
    app.declare("bill")
    app.declare("billing.charge")
    job = (await app.enqueue(app.draft("billing.charge"))).id
    assert [one.id for one in (await admin.jobs.find("kind:ing.ch")).jobs] == [job]
    assert (await admin.jobs.find("kind:bill")).jobs == [], "that is a kind, which has no jobs"
    assert (await admin.jobs.find("-kind:ing.ch")).jobs == []


@pytest.mark.spec("ADMIN-36")
async def test_an_unknown_name_that_is_left_out_is_refused(admin: Admin, app: Stoker) -> None:
    """What was to be spared would be deleted."""
    await dead(app, 2)
    for wrong in ("-queue:defualt", "-kind:sned", "is:dead -queue:defualt", "kind:zzz -queue:defualt"):
        for call in (admin.jobs.find, admin.jobs.preview, admin.jobs.errors):
            with pytest.raises(InvalidFilter, match="nothing can be left out"):
                await call(wrong)
        for change in (admin.jobs.delete, admin.jobs.cancel, admin.jobs.requeue):
            with pytest.raises(InvalidFilter, match="nothing can be left out"):
                await change(Filter.parse(wrong))
        with pytest.raises(InvalidFilter, match="nothing can be left out"):
            await admin.operations.start("delete", wrong)
        with pytest.raises(InvalidFilter, match="nothing can be left out"):
            await anext(admin.jobs.tail(wrong.removeprefix("is:dead ")))
    assert (await admin.jobs.find(total=True)).total == 2


@pytest.mark.spec("ADMIN-36")
async def test_names_that_match_nothing_delete_nothing(admin: Admin, app: Stoker) -> None:
    """A known name without jobs, and names of which none is left; an operation that goes on finds the same."""
    await dead(app, 2)
    await app.queue("idle").tune(workers=1)
    for words in ("queue:idle", "queue:default -queue:d*", "-kind:send", "kind:resize", "is:dead queue:idle"):
        assert (await admin.jobs.preview(words)).count == 0, words
        assert (await admin.jobs.delete(Filter.parse(words))).seen == 0
        done = await admin.operations.finish((await admin.operations.start("delete", words)).id)
        assert (done.state, done.changed) == ("done", 0)
        found = await admin.jobs.find(words, total=True)
        assert (found.jobs, found.total, found.hint) == ([], 0, "")
    assert (await admin.queues.purge("idle", older_than=0)).changed == 0
    assert (await admin.jobs.find("-queue:idle", total=True)).total == 2
    assert (await admin.jobs.find(total=True)).total == 2


@pytest.mark.spec("ADMIN-37")
async def test_a_name_is_known_by_settings_schedules_workers_and_the_app(admin: Admin, app: Stoker) -> None:
    await enqueue(app)
    engine = await app.engine()
    await app.queue("tuned").tune(workers=1)
    await app.schedule("nightly", app.draft("resize", queue="timed"), cron="0 3 * * *")
    await engine.control.beat(Presence(worker="w", host="h", pid=1, queues={"served": 1}, kinds={"crop": "app:crop"}))

    @app.task(queue="coded")
    async def thumb() -> None: ...

    app.queue("declared", workers=2)
    for words in (
        *(f"queue:{name}" for name in ("tuned", "timed", "served", "coded", "declared", "default")),
        *(f"kind:{name}" for name in ("resize", "crop", "thumb")),
    ):
        assert (await admin.jobs.find(words)).hint == "", words
        assert (await admin.jobs.preview(words)).complete, words
    assert (await admin.jobs.find("queue:srved")).hint.endswith("Did you mean served?")


@pytest.mark.spec("ADMIN-03")
async def test_an_unknown_id_is_not_found(admin: Admin, app: Stoker) -> None:
    for call in (admin.jobs.get, admin.jobs.explain, admin.jobs.requeue, admin.jobs.delete):
        with pytest.raises(NotFound, match=UNKNOWN):
            await call(UNKNOWN)


@pytest.mark.spec("PASS-11")
async def test_a_job_that_is_not_stored_yet_is_named_with_the_one_before_it(admin: Admin, app: Stoker) -> None:
    """But not to an operator who is limited to queues."""
    first, last = app.draft("send"), app.draft("resize")
    await app.enqueue(chain(first, last))
    with pytest.raises(NotFound, match=rf"{last.id} is waiting behind job {first.id} \(send, pending\)"):
        await admin.jobs.get(last.id)
    limited = admin.jobs._context._replace(queues=frozenset({"mail"}))
    with pytest.raises(NotFound, match=rf"{last.id} is not in the store"):
        await limited.stored(last.id)


@pytest.mark.spec("ADMIN-04")
async def test_a_preview_counts_and_changes_nothing(
    admin: Admin, app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(7):
        await enqueue(app, tenant="acme")
    monkeypatch.setattr(module, "LARGEST_PAGE", 3)
    now = moment(clock())
    assert await admin.jobs.preview("is:ready tenant:acme") == Preview(7, True, now, HERE)
    monkeypatch.setattr(module, "MOST_COUNTED", 5)
    assert await admin.jobs.preview("is:ready tenant:acme") == Preview(6, False, now, HERE)
    assert await admin.jobs.preview("is:ready") == Preview(7, True, now, HERE)
    assert await admin.jobs.preview(UNKNOWN) == Preview(0, True, now)


@pytest.mark.spec("ADMIN-04", "ADMIN-08")
async def test_what_came_or_ended_after_a_preview_is_neither_counted_nor_touched(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    early = await dead(app, 3)
    late = await enqueue(app)
    shown = await admin.jobs.preview("is:dead")
    assert shown == Preview(3, True, moment(clock()), HERE)
    clock.advance(1)
    await end(app, await claim(app))
    await dead(app, 2)
    assert (await admin.jobs.preview("is:dead")).count == 6
    assert await admin.jobs.preview("is:dead", counted_at=shown.counted_at) == shown
    done = await admin.jobs.act("requeue", Filter.parse("is:dead"), counted_at=shown.counted_at)
    assert (done.changed, done.refused) == (3, {})
    assert {await status(app, job) for job in early} == {Status.PENDING}
    assert await status(app, late) is Status.DEAD
    started = await admin.operations.start("requeue", "is:dead", counted_at=shown.counted_at)
    assert (await admin.operations.finish(started.id)).changed == 0
    for call in (
        admin.jobs.preview("is:dead", counted_at=moment(clock() + HOUR)),
        admin.jobs.act("requeue", Filter.parse("is:dead"), counted_at=moment(clock() + HOUR)),
        admin.operations.start("requeue", "is:dead", counted_at=moment(clock() + HOUR)),
    ):
        with pytest.raises(InvalidInput, match="counted_at"):
            await call


@pytest.mark.spec("ADMIN-34")
async def test_a_page_says_how_many_there_are(admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """From counters where they know, else by a walk that ends; a page that has all of them needs neither."""
    jobs = [await enqueue(app, tenant="acme", queue=queue) for queue in ("mail", "mail", "mail", "bulk")]
    await enqueue(app, "resize", queue="mail", delay=60)
    assert (await admin.jobs.find("queue:mail", limit=1)).total is None

    async def total(filter_: str, limit: int = 1) -> tuple[int | None, bool]:
        first = await admin.jobs.find(filter_, limit=limit, total=True)
        if first.cursor is not None:
            second = await admin.jobs.find(filter_, limit=limit, cursor=first.cursor, total=True)
            assert (second.total, second.complete) == (first.total, first.complete)
        return first.total, first.complete

    assert await total("queue:mail") == (4, True)
    assert await total("is:ready") == (4, True)
    assert await total("is:scheduled queue:mail") == (1, True)
    assert await total("is:pending kind:send queue:mail") == (3, True)
    assert await total("is:dead", 5) == (0, True)
    assert await total(jobs[0]) == (1, True)
    assert await total("tenant:acme") == (4, True)
    monkeypatch.setattr(module, "LARGEST_PAGE", 2)
    monkeypatch.setattr(module, "MOST_COUNTED", 2)
    assert await total("tenant:acme") == (2, False)
    assert await total("tenant:acme", 9) == (4, True)


# --- one job ---


@pytest.mark.spec("ADMIN-05")
async def test_one_job_is_changed_or_the_reason_is_an_error(admin: Admin, app: Stoker) -> None:
    [job] = await dead(app)
    assert (await admin.jobs.requeue(job)).changed == 1
    assert await status(app, job) is Status.PENDING
    for call in (admin.jobs.discard, admin.jobs.retry):
        with pytest.raises(WrongStatus, match=f"job {job} is pending"):
            await call(job)
    assert (await admin.jobs.move(job, "mail", create=True)).changed == 1
    assert (await admin.jobs.prioritize(job, -5)).changed == 1
    record = (await admin.jobs.get(job)).job
    assert (record.queue, record.priority) == ("mail", -5)
    assert (await admin.jobs.cancel(job, reason="not today")).changed == 1
    assert (await admin.jobs.get(job)).job.last_error == "not today"
    assert (await admin.jobs.delete(job)).changed == 1
    with pytest.raises(NotFound):
        await admin.jobs.get(job)


@pytest.mark.spec("ADMIN-46")
async def test_one_job_is_run_first_ahead_of_its_rate(app: Stoker) -> None:
    admin = Admin(app, by="maria")
    await (await app.engine()).control.tune("default", Tuning(rate=Rate(1, per=3_600)))
    made = [await enqueue(app) for _ in range(3)]
    running = await claim(app)
    assert (await admin.jobs.run_now(made[2], first=True)).changed == 1
    assert [ids.text(one.id) for one in await claim(app)] == [made[2]]
    assert not await admin.jobs.run_now(made[2], first=True), "it runs already"
    await end(app, running)
    with pytest.raises(WrongStatus):
        await admin.jobs.run_now(made[0], first=True)
    for many in ([made[1]], Filter.parse("is:ready")):
        with pytest.raises(InvalidInput, match="goes with the id of one job"):
            await admin.jobs.run_now(many, first=True)
    with pytest.raises(InvalidInput, match="goes with the id of one job"):
        await admin.operations.start("run-now", "is:ready", {"first": True})
    [entry] = await admin.audit.list(action="jobs.run_now")
    assert (entry.target, entry.after) == (f"job {made[2]}", {"first": True})


@pytest.mark.spec("ADMIN-05")
async def test_a_scheduled_job_runs_now(admin: Admin, app: Stoker) -> None:
    job = await enqueue(app, delay=3600)
    assert (await admin.jobs.run_now(job)).changed == 1
    assert not await admin.jobs.run_now(job), "it is due already"
    claims = await claim(app)
    assert [ids.text(one.id) for one in claims] == [job]
    assert not await admin.jobs.run_now(job), "it runs already"
    await end(app, claims, Status.RETRYING)
    assert not await admin.jobs.run_now(job), "its retry is due already"


@pytest.mark.spec("ADMIN-45")
async def test_jobs_move_to_a_queue_that_is_known(admin: Admin, app: Stoker) -> None:
    """One id, a list, a filter and an operation: a typing error would leave jobs where no worker looks."""
    job = await enqueue(app)
    await enqueue(app, queue="mail")
    for refused in (
        admin.jobs.move(job, "maill"),
        admin.jobs.move([job], "maill"),
        admin.jobs.move(Filter.parse("queue:default"), "maill"),
        admin.jobs.act("move", job, {"queue": "maill"}),
        admin.operations.start("move", "queue:default", {"queue": "maill"}),
    ):
        with pytest.raises(NotFound, match=r"queue 'maill' is not known.* Did you mean mail\?"):
            await refused
    assert (await admin.jobs.get(job)).job.queue == "default"
    assert not await admin.operations.list()
    assert (await admin.jobs.move(job, "mail")).changed == 1
    assert (await admin.jobs.move(job, "default")).changed == 1, "a queue that was used stays known"
    assert (await admin.jobs.move(job, "maill", create=True)).changed == 1


@pytest.mark.spec("ADMIN-05")
async def test_a_requeue_with_nothing_to_do_answers_false(admin: Admin, app: Stoker) -> None:
    """A job that waits or runs already is what a requeue is for; one that is done is an error."""
    [job] = await dead(app)
    assert await admin.jobs.requeue(job)
    assert not await admin.jobs.requeue(job)
    claims = await claim(app)
    assert not await admin.jobs.requeue(job)
    await end(app, claims, Status.DONE, None)
    with pytest.raises(WrongStatus, match="done"):
        await admin.jobs.requeue(job)


@pytest.mark.spec("ADMIN-07")
async def test_progress_is_called_after_the_last_page_too(
    admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 2)
    await dead(app, 5)
    seen: list[int] = []
    done = await admin.jobs.requeue(Filter.parse("is:dead"), lambda bulk: seen.append(bulk.changed))
    assert seen[-1] == done.changed == 5
    [first, *_] = [job.id for job in (await admin.jobs.find("is:ready")).jobs]
    last = await admin.jobs.cancel([first], progress=lambda _: False)
    assert (last.changed, last.stopped) == (1, False), "nothing was left to stop"
    started = await admin.operations.start("cancel", "is:ready")
    states: list[str] = []
    await admin.operations.finish(started.id, lambda one: states.append(one.state))
    assert states[-1] == "done"


@pytest.mark.spec("ADMIN-05")
async def test_a_running_job_is_asked_to_stop_or_loses_its_claim(admin: Admin, app: Stoker) -> None:
    job = await enqueue(app)
    await claim(app)
    assert (await admin.jobs.cancel(job)).cancel_requested == 1
    assert await status(app, job) is Status.RUNNING
    assert (await admin.jobs.cancel(job, force=True)).changed == 1
    assert await status(app, job) is Status.CANCELED


@pytest.mark.spec("ADMIN-05")
async def test_a_dead_job_is_retried_as_a_copy(admin: Admin, app: Stoker) -> None:
    [job] = await dead(app)
    [copy] = (await admin.jobs.retry(job)).created
    record = (await admin.jobs.get(job)).job
    assert (record.status, record.successor) == (Status.RETRIED, copy)
    assert await status(app, copy) is Status.PENDING


@pytest.mark.spec("ADMIN-05")
async def test_a_key_that_another_job_holds_refuses(admin: Admin, app: Stoker) -> None:
    [old] = await dead(app, unique="k")
    await enqueue(app, unique="k")
    with pytest.raises(KeyHeld, match="unique key 'k'"):
        await admin.jobs.requeue(old)
    assert await status(app, old) is Status.DEAD


@pytest.mark.spec("ADMIN-06")
async def test_listeners_get_the_true_former_status_of_a_cancel(admin: Admin, app: Stoker) -> None:
    changes: list[Transition] = []
    jobs = [await enqueue(app), await enqueue(app, delay=60)]
    app.listener(changes.append)
    await admin.jobs.cancel(Filter.parse("is:pending"), reason="enough")
    assert {(one.job, one.before, one.after, one.error) for one in changes} == {
        (job, Status.PENDING, Status.CANCELED, "enough") for job in jobs
    }


@pytest.mark.spec("ADMIN-06")
async def test_listeners_get_tenant_and_metadata_of_what_an_operator_changed(admin: Admin, app: Stoker) -> None:
    """Also of a copy; of a deleted job they are not known any more."""
    changes: list[Transition] = []
    [job] = await dead(app, tenant="acme", metadata={"trace": "t"})
    app.listener(changes.append)
    await admin.jobs.retry(job)
    copy = next(one for one in changes if one.before is None)
    for one in changes:
        assert (one.tenant, one.metadata["trace"], one.group) == ("acme", "t", None)
    await admin.jobs.delete(copy.job)
    assert (changes[-1].after, changes[-1].tenant, changes[-1].metadata) == (None, None, {})


# --- many jobs ---


@pytest.mark.spec("ADMIN-07")
async def test_a_filter_is_walked_in_pages_that_report(
    admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 4)
    jobs = await dead(app, 10)
    waiting = await enqueue(app)
    seen: list[int] = []
    bulk = await admin.jobs.requeue(Filter.parse("is:dead"), lambda so_far: seen.append(so_far.changed))
    assert (bulk.changed, bulk.stopped) == (10, False)
    assert seen == [4, 8, 10]
    assert {await status(app, job) for job in jobs} == {Status.PENDING}
    assert (await admin.jobs.get(waiting)).job.attempts == 0


@pytest.mark.spec("ADMIN-07")
async def test_an_action_stops_after_the_page_that_said_so(
    admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 4)
    await dead(app, 10)
    bulk = await admin.jobs.discard(Filter.parse("is:dead"), lambda _: False)
    assert (bulk.changed, bulk.stopped) == (4, True)
    assert (await admin.jobs.preview("is:dead")).count == 6


@pytest.mark.spec("ADMIN-08")
async def test_jobs_enqueued_meanwhile_are_left_alone(
    admin: Admin, app: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 2)
    for _ in range(4):
        await enqueue(app)
    late: list[asyncio.Task[str]] = []

    def progress(_: Bulk) -> None:
        clock.advance(1)
        late.append(asyncio.ensure_future(enqueue(app)))

    bulk = await admin.jobs.cancel(Filter.parse("is:ready order:oldest"), progress=progress)
    assert bulk.changed == 4
    assert {await status(app, await job) for job in late} == {Status.PENDING}


@pytest.mark.spec("ADMIN-09")
async def test_a_filter_never_deletes_running_jobs(admin: Admin, app: Stoker) -> None:
    running = await enqueue(app, queue="mail")
    await claim(app, "mail")
    waiting = await enqueue(app, queue="mail")
    assert (await admin.jobs.delete(Filter.parse("queue:mail"))).changed == 1
    assert await status(app, running) is Status.RUNNING
    with pytest.raises(NotFound):
        await admin.jobs.get(waiting)


@pytest.mark.spec("ADMIN-10")
async def test_ids_are_tallied_one_by_one(admin: Admin, app: Stoker) -> None:
    [gone] = await dead(app, unique="k")
    holder = await enqueue(app, unique="k")
    free = await enqueue(app, queue="mail")
    bulk = await admin.jobs.requeue([gone, holder, free, UNKNOWN])
    assert (bulk.changed, bulk.blocked, bulk.missing) == (0, 1, 1)
    assert bulk.refused == {Status.PENDING: 2}
    assert bulk.seen == 4


# --- why ---


async def present(app: Stoker, *queues: str) -> None:
    engine = await app.engine()
    await engine.control.beat(Presence(worker="w", host="here", pid=1, queues=dict.fromkeys(queues, 1)))


async def reason(admin: Admin, job: str) -> Reason:
    return (await admin.jobs.explain(job)).reason


@pytest.mark.spec("EXPLAIN-03")
async def test_every_engine_shows_each_reason(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    job = await enqueue(app, queue="mail")
    assert await reason(admin, job) is Reason.NO_WORKER
    await present(app, "mail")
    assert await reason(admin, job) is Reason.BEHIND
    await engine.control.tune("mail", Tuning(paused=True, reason="a migration", by="ada", pause_for=60 * SECOND))
    assert "by ada" in (await admin.jobs.explain(job)).detail
    clock.advance(60)
    await present(app, "mail")
    assert await reason(admin, job) is Reason.BEHIND, "the pause ended by itself"
    await engine.control.tune("mail", Tuning(rate=Rate(1, per=60)))
    assert [ids.text(one.id) for one in await claim(app, "mail")] == [job]
    assert await reason(admin, job) is Reason.RUNNING
    other = await enqueue(app, queue="mail")
    assert await reason(admin, other) is Reason.RATE_LIMITED
    await engine.control.tune("mail", Tuning(clear=frozenset({"rate"})))
    await admin.jobs.cancel(job)
    assert await reason(admin, job) is Reason.CANCELING
    await admin.jobs.cancel(job, force=True)
    assert await reason(admin, job) is Reason.FINISHED
    later = await enqueue(app, queue="mail", delay=3600)
    found = await admin.jobs.explain(later)
    assert found.reason is Reason.SCHEDULED
    assert found.first.until == clock() + HOUR


@pytest.mark.spec("EXPLAIN-03")
async def test_every_engine_shows_a_cooling_queue(admin: Admin, app: Stoker) -> None:
    from stoker.model.throttle import Cool

    engine = await app.engine()
    await enqueue(app, queue="mail")
    [running] = await claim(app, "mail")
    await engine.jobs.settle(
        [Settlement(running.id, "w", running.token, Status.PENDING, refund=True, cool=Cool(0, 60 * SECOND))]
    )
    await present(app, "mail")
    assert await reason(admin, ids.text(running.id)) is Reason.COOLING


@pytest.mark.spec("ADMIN-26")
async def test_a_waiting_or_dead_job_is_edited(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    @app.task(name="typed")
    async def typed(to: str) -> None: ...

    job = (await typed.enqueue("a")).id
    await admin.jobs.edit(job, payload=b'{"to": "b"}', priority=5, at=moment(clock() + HOUR), attempts=9)
    found = (await admin.jobs.get(job)).job
    assert (found.payload, found.priority, found.budget) == (b'{"to": "b"}', 5, 9)
    assert found.scheduled_at == moment(clock() + HOUR)
    for wrong in (b'{"to": 7}', b"{to}", b"7"):
        with pytest.raises(InvalidInput):
            await admin.jobs.edit(job, payload=wrong)
    with pytest.raises(InvalidInput):
        await admin.jobs.edit(job)
    with pytest.raises(InvalidInput):
        await admin.jobs.edit(job, priority=5_000)
    await admin.jobs.run_now(job)
    [running] = await claim(app)
    with pytest.raises(WrongStatus, match="is running, which 'edit' does not apply to"):
        await admin.jobs.edit(job, priority=1)
    await end(app, [running])
    await admin.jobs.edit(job, attempts=2)
    with pytest.raises(WrongStatus, match="dead"):
        await admin.jobs.edit(job, at=moment(clock()))
    with pytest.raises(NotFound):
        await admin.jobs.edit(UNKNOWN, priority=1)


@pytest.mark.spec("ADMIN-27")
async def test_a_cancel_and_a_discard_are_undone(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    later = await enqueue(app, delay=3600)
    due = (await admin.jobs.get(later)).job.scheduled_at
    canceled = await admin.jobs.cancel(Filter.parse("is:scheduled"))
    assert (await admin.jobs.restore(canceled.former)).changed == 1
    assert (await admin.jobs.get(later)).job.scheduled_at == due
    assert (await admin.jobs.restore(canceled.former)).refused == {Status.PENDING: 1}, "it is not canceled any more"
    [job] = await dead(app)
    discarded = await admin.jobs.discard(job)
    assert (await admin.jobs.restore(discarded.former)).changed == 1
    assert await status(app, job) is Status.DEAD
    keyed = await enqueue(app, unique="k", delay=60)
    canceled = await admin.jobs.cancel(keyed)
    await enqueue(app, unique="k", delay=60)
    assert (await admin.jobs.restore(canceled.former)).blocked == 1
    assert await status(app, keyed) is Status.CANCELED


@pytest.mark.spec("AUDIT-01")
async def test_what_a_person_changes_through_admin_is_in_the_audit_log(app: Stoker) -> None:
    engine, job = await app.engine(), await enqueue(app)
    named, unnamed = Admin(app, by="maria", way="page"), Admin(app)
    await unnamed.queues.pause("default")
    await named.jobs.cancel(job)
    await named.queues.resume("default")
    log = await engine.audit.read(AuditQuery())
    assert {entry.deed.action for entry in log} == {"jobs.cancel", "queues.tune"}
    assert {entry.by for entry in log} == {By("maria", "page")}


@pytest.mark.spec("EXPLAIN-03", "EXPLAIN-04")
async def test_every_engine_shows_workers_that_do_not_fit_or_report(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    engine = await app.engine()
    group = await app.group([app.draft("send", queue="mail")])
    [member] = (await engine.groups.get([ids.parse(group.id)]))[0].members  # type: ignore[union-attr]
    job = ids.text(member)

    async def beat(**fields: Any) -> None:
        await engine.control.beat(Presence(**{"worker": "w", "host": "h", "pid": 1, "queues": {"mail": 3}, **fields}))

    assert await reason(admin, job) is Reason.NO_WORKER
    await beat(kinds={"resize": "app:resize"})
    found = await admin.jobs.explain(job)
    assert found.reason is Reason.UNKNOWN_TASK
    assert found.beside == (f"it is a member of group {group.id}: 1 of 1 have not ended",)
    await beat(kinds={"send": "app:send"})
    assert await reason(admin, job) is Reason.BEHIND
    clock.advance(30)
    assert await reason(admin, job) is Reason.WORKER_UNHEALTHY
    await beat(state="stopped")
    assert await reason(admin, job) is Reason.NO_WORKER


@pytest.mark.spec("EXPLAIN-05")
async def test_a_job_in_line_is_told_its_place(admin: Admin, app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    await present(app, "mail")
    jobs = [await enqueue(app, queue="mail", priority=priority) for priority in (0, 5, 0, -5, 0)]
    await enqueue(app, queue="mail", delay=60, priority=-9)
    await enqueue(app, queue="other", priority=-9)

    async def place(job: str) -> str:
        return (await admin.jobs.explain(job)).detail.partition("'mail' ")[2].partition(", by")[0]

    assert [await place(job) for job in jobs] == [
        "behind 1 job",
        "behind 4 jobs",
        "behind 2 jobs",
        "and runs next",
        "behind 3 jobs",
    ]
    monkeypatch.setattr(module, "LARGEST_PAGE", 2)
    assert await place(jobs[1]) == "behind 4 jobs"
    monkeypatch.setattr(module, "MOST_COUNTED", 4)
    assert (await place(jobs[1])).startswith("behind at least ")


@pytest.mark.spec("ADMIN-35")
async def test_a_list_asks_only_for_what_its_filter_needs(
    app: Stoker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A census for names, the clock for times, and for a total only behind the first page."""
    for _ in range(3):
        await enqueue(app)
    calls = counted(await app.engine(), monkeypatch)
    for words, asked in ASKED.items():
        calls.clear()
        await admin.jobs.find(words)
        assert calls == asked, words
    calls.clear()
    assert (await admin.jobs.find(limit=5, total=True)).total == 3
    assert calls == {"find": 1}
    assert (await admin.jobs.find(limit=2, total=True)).total == 3
    assert calls == {"find": 2, "census": 1}


@pytest.mark.spec("ADMIN-49")
async def test_jobs_are_found_by_the_ends_of_their_ids(app: Stoker, admin: Admin) -> None:
    drafts = [
        msgspec.structs.replace(app.draft("send"), job_id=bytes.fromhex(digits.ljust(30, "0") + end))
        for digits, end in (
            *(("00000000000170008", f"{n:02x}") for n in range(12)),
            ("0190f3c2000070008", "01"),
            ("0190f3c2000070008", "02"),
            ("0190f3c3000070008", "01"),
        )
    ]
    await app.enqueue_many(drafts)

    async def found(written: str) -> list[str]:
        cut = ids.shortened(written)
        assert cut is not None
        return [one.id for one in await admin.jobs.of_id(cut)]

    assert await found("0190f3c2") == [drafts[12].id, drafts[13].id]
    assert await found("0190f3c2…02") == [drafts[13].id]
    assert await found("0190f3c3…1") == [drafts[14].id]
    assert await found("0190f3c1") == await found("0190f3c4") == []
    assert await found("00000000") == [one.id for one in drafts[:10]], "at most ten"

"""Schedules as users declare, store and steer them: SCHED-11 to SCHED-16."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from stoker import Schedule, chain, current
from stoker.app import Stoker
from stoker.context import Context
from stoker.model import ids
from stoker.model.errors import (
    DuplicateSchedule,
    DuplicateTask,
    InvalidInput,
    InvalidName,
    InvalidSchedule,
    NotFound,
    StokerError,
    UnknownOption,
)
from stoker.model.job import Status
from stoker.model.retry import Fixed
from stoker.model.schedule import SCHEDULE
from stoker.model.time import instant
from stoker.task import Task
from stoker.testing.clock import VirtualClock
from stoker.worker.schedules import declare, fire_due
from tests.harness.apps import drain

NOON = datetime(2025, 6, 15, 12, 0, tzinfo=UTC)


async def ticked(jobs: Stoker) -> list[Schedule]:
    """One tick, as the worker that has the lock makes it."""
    engine = await jobs.engine()
    await declare(jobs, engine)
    await fire_due(jobs, engine, await engine.schedules.read())
    return await jobs.schedules()


def app() -> Stoker:
    return Stoker("memory://")


# --- declaring --------------------------------------------------------------------------------------------------


@pytest.mark.spec("SCHED-11")
async def test_a_function_becomes_a_task_and_a_schedule_of_its_name(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs
    clock.set(instant(NOON))
    seen: list[tuple[str, str | None, datetime | None]] = []

    @jobs.cron("0 9 * * mon-fri", tz="Europe/Paris", queue="mail", attempts=3, backoff=Fixed(1), retry_on=OSError)
    async def digest(region: str = "eu") -> None:
        seen.append((region, current().schedule, current().occurrence))

    assert isinstance(digest, Task)
    assert (digest.options.queue, digest.options.attempts, digest.policy.retry_on) == ("mail", 3, OSError)
    [stored] = await ticked(jobs)
    assert (stored.name, stored.kind, stored.queue, stored.cron, stored.tz) == (
        "digest",
        "digest",
        "mail",
        "0 9 * * mon-fri",
        "Europe/Paris",
    )
    assert (stored.source, stored.declared, stored.edited, stored.enabled) == ("code", True, False, True)
    assert stored.next_fire == datetime(2025, 6, 16, 7, tzinfo=UTC)
    assert (stored.last_fire, stored.last_status, stored.last_job) == (None, None, None)
    clock.set(instant(stored.next_fire))
    [fired] = await ticked(jobs)
    assert (fired.last_fire, fired.last_status) == (stored.next_fire, "fired")
    assert fired.last_job is not None
    await drain(jobs)
    assert seen == [("eu", "digest", stored.next_fire)]
    record = await jobs.handle(fired.last_job).refresh()
    assert (record.status, record.budget, record.metadata[SCHEDULE]) == (Status.DONE, 3, "digest")


@pytest.mark.spec("SCHED-11")
async def test_a_task_gets_schedules_beside_its_own_name(jobs: Stoker) -> None:
    @jobs.cron("@daily")
    @jobs.task(queue="slow")
    def report(region: str = "eu") -> str:
        return region

    assert isinstance(report, Task)
    assert jobs.cron(every=90, name="often", priority=-5)(report) is report
    jobs.cron("@hourly", name="for-acme")(report.using(tenant="acme", queue="fast"))
    found = {one.name: one for one in await ticked(jobs)}
    assert {name: (one.kind, one.queue, one.cron) for name, one in found.items()} == {
        "report": ("report", "slow", "@daily"),
        "often": ("report", "slow", "@every 90s"),
        "for-acme": ("report", "fast", "@hourly"),
    }
    templates = {one.name: one.template for one in await (await jobs.engine()).schedules.read()}
    assert (templates["often"].priority, templates["for-acme"].tenant) == (-5, "acme")
    assert list(jobs.tasks) == ["report"]


@pytest.mark.spec("SCHED-11")
async def test_a_namespace_is_part_of_the_name() -> None:
    jobs = Stoker("memory://", namespace="billing")

    @jobs.cron("@daily")
    async def digest() -> None: ...

    @jobs.cron("@daily", name="own")
    async def other() -> None: ...

    assert {name: one.task.name for name, one in jobs.declared_schedules.items()} == {
        "billing.digest": "billing.digest",
        "own": "own",
    }


def _positional(first: int) -> None: ...
def _keyword(*, first: int) -> None: ...
async def _second(first: int = 1, *, second: str) -> None: ...


@pytest.mark.spec("SCHED-11")
@pytest.mark.parametrize("handler", [_positional, _keyword, _second])
def test_every_parameter_needs_a_default(handler: Callable[..., Any]) -> None:
    jobs = app()
    with pytest.raises(InvalidSchedule, match=r"needs a default for its parameter '(first|second)'.*\.draft\("):
        jobs.cron("@daily")(handler)
    with pytest.raises(InvalidSchedule, match="needs a default"):
        jobs.cron("@daily")(app().task(handler))
    assert (jobs.tasks, jobs.declared_schedules) == ({}, {})


@pytest.mark.spec("SCHED-11")
def test_variable_parameters_need_none() -> None:
    @app().cron("@daily")
    def report(*args: int, **more: int) -> None: ...

    assert report.name == "report"


@pytest.mark.spec("SCHED-11")
@pytest.mark.parametrize(
    "wrong, field",
    [
        ({"cron": "61 * * * *"}, "expression"),
        ({"cron": "0 0 30 2 *"}, "expression"),
        ({"cron": "@daily", "tz": "Mars/Olympus"}, "tz"),
        ({"cron": "@daily", "every": 5}, "every"),
        ({}, "cron"),
        ({"every": 0}, "every"),
        ({"every": -1}, "every"),
        ({"every": 1.5}, "every"),
        ({"every": 60, "tz": "Europe/Paris"}, "tz"),
        ({"cron": "@daily", "misfire": "never"}, "misfire"),
        ({"cron": "@daily", "overlap": "replace"}, "overlap"),
        ({"cron": "@daily", "grace": -1}, "grace"),
        ({"cron": "@daily", "jitter": "long"}, "jitter"),
        ({"cron": "@daily", "misfire": "all", "overlap": "skip"}, "misfire"),
        ({"cron": "@daily", "misfire": "all", "unique": "one"}, "misfire"),
        ({"cron": "@daily", "name": "no spaces"}, "task name"),
    ],
)
async def test_what_is_wrong_is_refused_where_it_is_written(wrong: dict[str, Any], field: str) -> None:
    jobs = app()
    options = dict(wrong)
    expression = options.pop("cron", None)
    with pytest.raises(InvalidInput) as caught:

        @jobs.cron(expression, **options)
        def declared() -> None: ...

    assert caught.value.field == field
    assert (jobs.tasks, jobs.declared_schedules) == ({}, {})

    @jobs.task
    def called() -> None: ...

    options = dict(wrong)
    unique, name = options.pop("unique", None), options.pop("name", "report")
    with pytest.raises(InvalidInput) as caught:
        await jobs.schedule(name, called.using(unique=unique).draft(), **options)
    assert caught.value.field == ("schedule name" if field == "task name" else field)
    assert await jobs.schedules() == []


@pytest.mark.spec("SCHED-11")
def test_two_declarations_of_one_name_are_an_error_that_names_both_places() -> None:
    jobs = app()

    @jobs.cron("@daily")
    def report() -> None: ...

    with pytest.raises(DuplicateSchedule) as caught:
        jobs.cron("@hourly")(report)
    first, second = (part.rpartition(":")[2] for part in str(caught.value).split(__file__)[1:])
    assert str(caught.value).count(__file__) == 2
    assert first != second
    with pytest.raises(DuplicateTask):
        jobs.cron("@hourly", name="report")(_no_arguments)
    jobs.cron("@hourly", name="report", replace=True)(_no_arguments)
    assert jobs.declared_schedules["report"].schedule().expression == "@hourly"


def _no_arguments() -> None: ...


@pytest.mark.spec("SCHED-11")
def test_options_of_a_task_cannot_be_given_to_its_schedule() -> None:
    jobs = app()
    task = jobs.task(_no_arguments)
    for option in ({"retry_on": OSError}, {"crashes": 1}, {"validate": False}, {"retry_if": lambda _: True}):
        with pytest.raises(InvalidInput, match="belongs to the task"):
            jobs.cron("@daily", **option)(task)
    with pytest.raises(UnknownOption, match="colour"):
        jobs.cron("@daily", colour="red")(task)  # type: ignore[call-arg]
    assert jobs.declared_schedules == {}


@pytest.mark.spec("SCHED-12")
async def test_declared_schedules_follow_the_code_and_keep_what_operators_edited(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    clock.set(instant(NOON))

    def deployed(expression: str, **options: Any) -> Stoker:
        jobs = Stoker(timed_jobs.root())
        jobs.cron(expression, name="report", **options)(_no_arguments)
        return jobs

    [first] = await ticked(deployed("@daily"))
    clock.advance(1)
    [second] = await ticked(deployed("@hourly", queue="slow"))
    assert (second.cron, second.queue, first.queue) == ("@hourly", "slow", "default")
    clock.advance(1)
    await timed_jobs.schedule_handle("report").edit(cron="@weekly")
    clock.advance(1)
    [edited] = await ticked(deployed("@yearly"))
    assert (edited.cron, edited.edited, edited.declared) == ("@weekly", True, True)
    assert [one.declared for one in await timed_jobs.schedules()] == [False], "no code of this app declares it"
    reset = await deployed("@yearly").schedule_handle("report").reset()
    assert (reset.cron, reset.edited) == ("@yearly", False)
    with pytest.raises(StokerError, match="no code of this app declares schedule 'report'"):
        await timed_jobs.schedule_handle("report").reset()


@pytest.mark.spec("SCHED-12")
async def test_a_declaration_that_cannot_be_stored_does_not_hinder_the_others(
    timed_jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    def router(kind: str) -> str:
        raise ValueError(f"no queue for {kind}")

    jobs = Stoker(timed_jobs.root(), router=router)
    jobs.cron("@daily", name="broken")(_no_arguments)
    jobs.cron("@daily", name="sound", queue="given")(_no_arguments)
    assert [one.name for one in await ticked(jobs)] == ["sound"]
    [record] = [one for one in caplog.records if "was not stored" in one.getMessage()]
    assert "schedule broken, declared at " in record.getMessage()
    assert __file__ in record.getMessage()


# --- storing ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("SCHED-13")
async def test_a_call_stores_a_schedule_with_its_whole_draft(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs
    clock.set(instant(NOON))
    ran: list[str] = []

    @jobs.task
    async def report(region: str) -> None:
        ran.append(region)

    @jobs.task
    async def tell() -> None:
        ran.append("told")

    handle = await jobs.schedule(
        "eu-report",
        chain(report.using(priority=3, tenant="acme", metadata={"team": "x"}).draft("eu"), tell.draft()),
        cron="*/15 * * * *",
        misfire="skip",
        grace=30,
        overlap="skip",
        jitter=timedelta(seconds=20),
    )
    await jobs.schedule("poll", tell.draft(), every=90)
    [stored, poll] = await ticked(jobs)
    assert (stored.name, stored.kind, stored.source, stored.declared) == ("eu-report", "report", "api", False)
    assert (stored.payload, stored.misfire, stored.overlap) == (b'{"region":"eu"}', "skip", "skip")
    assert (stored.grace, stored.jitter) == (timedelta(seconds=30), timedelta(seconds=20))
    assert (poll.cron, poll.next_fire) == ("@every 90s", NOON + timedelta(seconds=90))
    for _ in range(2):
        clock.set(clock() + 15 * 60_000_000)
        await ticked(jobs)
        clock.advance(20)
        await drain(jobs)
    assert ran.count("eu") == 2
    assert ran.count("told") == 4, "each occurrence has a chain of its own, and poll fired twice"
    record = await jobs.handle((await handle.info()).last_job or "").refresh()
    assert (record.priority, record.tenant, record.metadata["team"]) == (3, "acme", "x")
    assert await jobs.unschedule("poll") is True
    assert await jobs.unschedule("poll") is False
    assert [one.name for one in await jobs.schedules()] == ["eu-report"]


@pytest.mark.spec("SCHED-13")
async def test_drafts_that_cannot_be_a_template_are_refused(jobs: Stoker) -> None:
    @jobs.task
    def report() -> None: ...

    with pytest.raises(InvalidSchedule, match=r"as task\.draft\(...\) makes it"):
        await jobs.schedule("report", report, cron="@daily")  # type: ignore[arg-type]
    with pytest.raises(InvalidSchedule, match="nor a time of its own"):
        await jobs.schedule("report", report.using(at=NOON).draft(), cron="@daily")
    with pytest.raises(UnknownOption, match="crontab"):
        await jobs.schedule("report", report.draft(), crontab="@daily")  # type: ignore[call-arg]
    with pytest.raises(InvalidName):
        await jobs.unschedule("no spaces")
    assert await jobs.schedules() == []


@pytest.mark.spec("SCHED-13")
async def test_storing_again_replaces_and_over_the_code_it_is_an_edit(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs
    clock.set(instant(NOON))
    task = jobs.cron("@daily", name="report")(_no_arguments)
    [code] = await ticked(jobs)
    clock.advance(1)
    await jobs.schedule("report", task.draft(), cron="@daily", jitter=5)
    [changed] = await ticked(jobs)
    assert (changed.jitter, changed.edited, changed.source) == (timedelta(seconds=5), True, "code")
    assert changed.next_fire == code.next_fire


# --- steering ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("SCHED-14")
async def test_a_paused_schedule_does_not_fire_and_catches_up_nothing(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs
    clock.set(instant(NOON))
    handle = await jobs.schedule("report", jobs.task(_no_arguments).draft(), cron="@hourly", misfire="all")
    await ticked(jobs)
    clock.advance(1)
    await handle.pause()
    assert ((await handle.info()).enabled, (await handle.info()).next_fire) == (False, None)
    clock.advance(5 * 3600)
    [paused] = await ticked(jobs)
    assert paused.last_fire is None
    await handle.resume()
    clock.advance(1)
    [resumed] = await ticked(jobs)
    assert (resumed.enabled, resumed.next_fire, resumed.missed) == (True, NOON + timedelta(hours=6), 0)
    assert (await (await jobs.engine()).operator.census()).by_status()[Status.PENDING] == 0
    assert repr(handle) == "<ScheduleHandle report>"


@pytest.mark.spec("SCHED-14")
async def test_run_now_enqueues_beside_the_timetable(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs
    clock.set(instant(NOON))
    contexts: list[Context] = []

    @jobs.task
    async def report() -> None:
        contexts.append(current())

    handle = await jobs.schedule("report", report.draft(), cron="@hourly")
    [before] = await ticked(jobs)
    assert (await handle.run_now()).id != (await handle.run_now()).id
    await drain(jobs)
    assert [(one.schedule, one.occurrence) for one in contexts] == [("report", None)] * 2
    assert await jobs.schedules() == [before]
    clock.advance(1)
    await handle.edit(overlap="skip")
    first, again = await handle.run_now(), await handle.run_now()
    assert first.id == again.id, "an active job stands for it"
    await report.enqueue()
    await drain(jobs)
    assert (contexts[-1].schedule, contexts[-1].occurrence) in [(None, None), ("report", None)]


@pytest.mark.spec("SCHED-14")
async def test_edits_change_what_is_given(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs
    clock.set(instant(NOON))
    task = jobs.task(_no_arguments)
    handle = await jobs.schedule("report", task.draft(), cron="0 9 * * *", tz="Europe/Paris", jitter=5)

    async def edited(**change: Any) -> Schedule:
        clock.advance(1)
        return await handle.edit(**change)

    assert (await edited(cron="0 8 * * *")).tz == "Europe/Paris", "the zone stays"
    found = await edited(every=30)
    assert (found.cron, found.tz, found.jitter) == ("@every 30s", "UTC", timedelta(seconds=5))
    found = await edited(draft=task.using(queue="slow").draft(), misfire="skip", grace=5, overlap="skip", jitter=0)
    assert (found.queue, found.misfire, found.grace, found.overlap, found.jitter) == (
        "slow",
        "skip",
        timedelta(seconds=5),
        "skip",
        timedelta(0),
    )
    before = await handle.info()
    for wrong in ({"cron": "@daily", "every": 5}, {"cron": "nonsense"}, {"tz": "Mars/Olympus"}, {"draft": "task"}):
        with pytest.raises(InvalidSchedule):
            await edited(**wrong)
    assert await handle.info() == before


@pytest.mark.spec("SCHED-14")
async def test_next_shows_occurrences_in_the_schedules_zone(timed_jobs: Stoker, clock: VirtualClock) -> None:
    clock.set(instant(datetime(2025, 10, 25, 12, tzinfo=UTC)))
    handle = await timed_jobs.schedule(
        "night", timed_jobs.task(_no_arguments).draft(), cron="30 2 * * *", tz="Europe/Paris"
    )
    await handle.pause()
    shown = [one.isoformat() for one in await handle.next(3)]
    assert shown == ["2025-10-26T02:30:00+02:00", "2025-10-27T02:30:00+01:00", "2025-10-28T02:30:00+01:00"]


@pytest.mark.spec("SCHED-14")
async def test_a_schedule_that_is_not_stored_is_not_found(jobs: Stoker) -> None:
    handle = jobs.schedule_handle("nowhere")
    for call in (handle.info, handle.next, handle.pause, handle.resume, handle.run_now, handle.edit):
        with pytest.raises(NotFound, match="schedule 'nowhere' is not in the store"):
            await call()
    with pytest.raises(InvalidName):
        jobs.schedule_handle("no spaces")


@pytest.mark.spec("SCHED-15")
def test_every_action_has_a_sync_form() -> None:
    jobs = app()
    task = jobs.cron("@daily", name="code")(_no_arguments)
    handle = jobs.schedule_sync("report", task.draft(), cron="@hourly")
    assert [one.name for one in jobs.schedules_sync()] == ["report"]
    handle.pause_sync()
    assert not handle.info_sync().enabled
    handle.resume_sync()
    assert handle.edit_sync(jitter=5).jitter == timedelta(seconds=5)
    assert len(handle.next_sync(2)) == 2
    assert jobs.run(handle.run_now_sync().refresh()).status is Status.PENDING
    assert jobs.schedule_handle("code").reset_sync().cron == "@daily"
    assert jobs.unschedule_sync("report")
    jobs.run(jobs.close())


@pytest.mark.spec("SCHED-15")
async def test_sync_forms_inside_a_loop_name_the_async_one(jobs: Stoker) -> None:
    handle = jobs.schedule_handle("report")
    for call, form in (
        (handle.pause_sync, r"await pause\(\.\.\.\)` of <ScheduleHandle report>"),
        (jobs.schedules_sync, r"await schedules\(\.\.\.\)` of <Stoker"),
        (lambda: jobs.unschedule_sync("report"), r"await unschedule\(\.\.\.\)` of <Stoker"),
    ):
        with pytest.raises(StokerError, match=form):
            call()
    await asyncio.sleep(0)


@pytest.mark.spec("SCHED-16")
async def test_the_last_status_says_what_became_of_the_last_occurrence(
    timed_jobs: Stoker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Fired, skipped and missed, each with its count, and each in the log."""
    jobs = timed_jobs
    caplog.set_level("INFO", "stoker.worker")
    clock.set(instant(NOON))
    task = jobs.task(_no_arguments)
    handle = await jobs.schedule("report", task.draft(), cron="@hourly", misfire="skip", overlap="skip")
    await ticked(jobs)

    async def status(hours: float) -> tuple[str | None, int, int]:
        clock.advance(hours * 3600)
        await ticked(jobs)
        found = await handle.info()
        return found.last_status, found.last_missed, found.missed

    assert await status(1) == ("fired", 0, 0)
    assert await status(1) == ("skipped", 1, 1)
    await drain(jobs)
    assert await status(3.5) == ("missed", 3, 4)
    assert await status(1.5) == ("fired", 1, 5)
    texts = [record.getMessage() for record in caplog.records]
    assert "schedule report skipped an occurrence, because its last job is still active" in texts
    assert "schedule report fired nothing; due occurrences that were too old: 3" in texts
    assert "schedule report fired; other due occurrences, which made no job: 1" in texts


# --- ids that can be foreseen ---


@pytest.mark.spec("ID-05")
async def test_a_caller_cannot_take_the_id_of_an_occurrence(timed_jobs: Stoker) -> None:
    """Whatever it hides behind: a draft, a link of a chain, a callback of a group; nothing is stored."""
    foreseen = ids.occurrence("nightly", instant(NOON))
    jobs = timed_jobs
    jobs.declare("other")
    plain = jobs.draft("other")
    taken = replace(plain, job_id=foreseen)
    behind = jobs.draft("other").then(plain, jobs.draft("other").then(taken))

    for call in (
        lambda: jobs.enqueue(taken),
        lambda: jobs.enqueue_many([plain, taken]),
        lambda: jobs.enqueue(behind),
        lambda: jobs.group([plain], on_finish=taken),
    ):
        with pytest.raises(InvalidInput, match=r"id: is a UUID of version 8.*leave the id out"):
            await call()
    assert sum((await (await jobs.engine()).operator.census()).by_status().values()) == 0


@pytest.mark.spec("ID-05", "SCHED-14")
async def test_what_a_schedule_runs_beside_its_timetable_keeps_its_derived_links(timed_jobs: Stoker) -> None:
    timed_jobs.declare("other")
    first, second, third = (timed_jobs.draft("other") for _ in range(3))
    handle = await timed_jobs.schedule("nightly", chain(first, second, third), cron="0 3 * * *")
    job = await handle.run_now()
    [stored] = await (await timed_jobs.engine()).operator.get([ids.parse(job.id)])
    assert stored is not None
    [link] = stored.options.then
    assert ids.is_derived(link.job_id)

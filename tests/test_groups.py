"""Groups as callers and handlers see them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from stoker import GroupClosed, GroupFailed, InvalidInput, NotFound, Stoker, StokerError, chain, chain_before, current
from stoker import groups as face
from stoker.engines.memory import MemoryEngine
from stoker.model import ids
from stoker.model.errors import EngineUnavailable, InvalidArgument
from stoker.model.events import EventType, Transition, Window
from stoker.model.groups import ABANDONED_AFTER, MOST_KNOWN, Swept, into_group, new_group
from stoker.model.job import Demand, Draft, Status
from stoker.model.lifecycle import KEEP_DONE, conclude
from stoker.model.outcome import Done, Reject
from stoker.model.time import DAY, HOUR, SECOND
from stoker.services import ServiceContext
from stoker.testing import TestKit
from stoker.testing.clock import VirtualClock
from stoker.views import Progress
from stoker.worker import janitor
from stoker.worker.janitor import GroupSweeper
from tests.harness.apps import PATIENCE, drain, until, working
from tests.harness.doubles import Double


class Tasks:
    """Tasks that note what ran: work, refuse, and a callback that notes its group."""

    def __init__(self, jobs: Stoker) -> None:
        self.ran: list[tuple[str, Any]] = []

        @jobs.task
        async def work(number: int = 0) -> int:
            self.ran.append(("work", number))
            return number

        @jobs.task
        async def refuse() -> None:
            raise Reject("no")

        @jobs.task
        async def report(name: str = "then") -> None:
            group = current().group
            self.ran.append((name, None if group is None else group.id))

        self.work, self.refuse, self.report = work, refuse, report


@pytest.mark.spec("GROUP-22")
async def test_a_group_runs_and_then_its_callbacks(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group(
        [tasks.work.draft(number) for number in range(3)],
        then=tasks.report.draft("then"),
        on_failure=tasks.report.draft("failure"),
        on_finish=tasks.report.draft("finish"),
    )
    assert await group.progress() == Progress(total=3, done=0, dead=0, canceled=0, waiting=3)
    with pytest.raises(TimeoutError, match="3 not finished"):
        await group.wait(0)
    await drain(jobs)
    assert sorted(tasks.ran) == [("finish", group.id), ("then", group.id), ("work", 0), ("work", 1), ("work", 2)]
    assert await group.wait() == await jobs.group_handle(group.id).progress() == Progress(3, 3, 0, 0, 0)
    assert group == jobs.group_handle(ids.parse(group.id))
    assert len({group, jobs.group_handle(group.id)}) == 1
    assert repr(group) == f"<GroupHandle {group.id}>"


@pytest.mark.spec("GROUP-23")
async def test_waiting_for_a_group_that_fails_names_its_first_dead_member(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    dead = tasks.refuse.draft()
    group = await jobs.group([dead, tasks.work.draft(), tasks.refuse.using(priority=5).draft()])
    await drain(jobs)
    with pytest.raises(GroupFailed) as failed:
        await group.wait()
    assert (failed.value.group_id, failed.value.job_id) == (group.id, ids.text(dead.job_id))
    assert (failed.value.kind, failed.value.error) == ("refuse", "no")
    assert "of 3 members 1 done, 2 dead, 0 canceled" in str(failed.value)


@pytest.mark.spec("GROUP-23")
async def test_waiting_names_a_canceled_member_if_none_is_dead_and_none_if_none_is_left(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    canceled = tasks.work.draft()
    group = await jobs.group([canceled, tasks.work.using(keep=0).draft()])
    await jobs.handle(canceled.job_id).cancel(reason="enough")
    await drain(jobs)
    with pytest.raises(GroupFailed, match="enough") as failed:
        await group.wait()
    assert failed.value.job_id == ids.text(canceled.job_id)
    with pytest.raises(ZeroDivisionError):
        async with jobs.group() as empty:
            raise ZeroDivisionError
    with pytest.raises(GroupFailed, match="abandoned before it was sealed") as failed:
        await empty.wait()
    assert failed.value.job_id is None


@pytest.mark.spec("GROUP-30")
async def test_a_waiter_is_woken_by_the_last_ends(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking now and then would take an hour here."""
    monkeypatch.setattr(face, "FIRST_PAUSE", 3600)
    tasks = Tasks(jobs)
    group = await jobs.group([tasks.work.draft() for _ in range(3)])
    waiter = asyncio.create_task(group.wait(60))
    async with working(jobs):
        assert await waiter == Progress(3, 3, 0, 0, 0)


@pytest.mark.spec("GROUP-23")
async def test_a_wait_ends_with_the_closing(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group([tasks.work.draft()])
    waiter = asyncio.create_task(group.wait(PATIENCE))
    async with working(jobs):
        assert await waiter == Progress(1, 1, 0, 0, 0)


@pytest.mark.spec("GROUP-22")
async def test_a_block_takes_jobs_as_they_come_and_seals_at_its_end(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    async with jobs.group() as group:
        assert await group.progress() == Progress(0, 0, 0, 0, 0)
    assert await group.wait() == Progress(0, 0, 0, 0, 0)
    async with jobs.group([tasks.work.draft(9)], then=tasks.report.draft()) as group:
        receipts = await group.add(tasks.work.draft(1), (tasks.work.draft(number) for number in (2, 3)))
        assert [receipt.stored for receipt in receipts] == ["inserted"] * 3
        await drain(jobs)
        assert await group.progress() == Progress(4, 4, 0, 0, 0)
        await group.add([])
        assert ("then", group.id) not in tasks.ran
    await drain(jobs)
    assert tasks.ran[-1] == ("then", group.id)
    with pytest.raises(GroupClosed):
        await group.add(tasks.work.draft())


@pytest.mark.spec("GROUP-22")
async def test_a_block_that_raises_abandons_its_group(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    with pytest.raises(ZeroDivisionError):
        async with jobs.group(then=tasks.report.draft(), on_failure=tasks.report.draft("failure")) as group:
            await group.add(tasks.work.draft())
            raise ZeroDivisionError
    await drain(jobs)
    assert tasks.ran == [("work", 0), ("failure", group.id)]


@pytest.mark.spec("GROUP-22")
async def test_a_long_list_is_stored_in_portions_and_sealed_at_the_end(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group(tasks.work.using(delay=60).draft() for _ in range(MOST_KNOWN + 5))
    engine = await jobs.engine()
    [found] = await engine.groups.get([ids.parse(group.id)])
    assert found is not None
    assert (found.total, found.sealed, found.abandoned) == (MOST_KNOWN + 5, True, False)
    assert await group.cancel() == MOST_KNOWN + 5


@pytest.mark.spec("GROUP-21")
async def test_a_long_list_that_fails_half_way_is_abandoned(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    drafts = [tasks.work.using(delay=60).draft() for _ in range(MOST_KNOWN + 1)]
    await jobs.enqueue(drafts[-1])
    with pytest.raises(InvalidInput, match="stored job"):
        await jobs.group(drafts)
    assert (await jobs.handle(drafts[0].job_id).refresh()).status is Status.PENDING
    group = (await jobs.handle(drafts[0].job_id).refresh()).group
    assert group is not None
    [found] = await (await jobs.engine()).groups.get([ids.parse(group)])
    assert found is not None
    assert (found.sealed, found.abandoned, found.total) == (True, True, MOST_KNOWN)


@pytest.mark.spec("GROUP-21")
async def test_what_is_no_draft_is_refused_and_nothing_is_stored(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group: Any = jobs.group
    for wrong in ([7], 7, [tasks.work], tasks.work):
        with pytest.raises(InvalidInput, match="drafts"):
            await group(wrong)
    with pytest.raises(InvalidInput, match="a block"):
        await group(then=tasks.work.draft())
    for name in ("then", "on_failure", "on_finish"):
        with pytest.raises(InvalidInput, match=f"{name}: must be a draft"):
            group([], **{name: []})
    async with jobs.group() as open_group:
        with pytest.raises(InvalidInput, match="drafts"):
            await open_group.add(tasks.work.draft(), 7)  # type: ignore[arg-type]
    assert sum(count.n for count in (await (await jobs.engine()).operator.census()).counts) == 0


@pytest.mark.spec("GROUP-21")
async def test_a_group_is_stored_once_and_not_forgotten(jobs: Stoker) -> None:
    new = jobs.group([])
    await new
    with pytest.raises(StokerError, match="stored already"):
        await new
    with pytest.warns(RuntimeWarning, match="await jobs.group"):
        jobs.group([])


@pytest.mark.spec("GROUP-24")
async def test_canceling_a_group_cancels_its_members(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group([tasks.work.using(delay=60).draft() for _ in range(2)], then=tasks.report.draft())
    assert await group.cancel(reason="enough") == 2
    assert await group.progress() == Progress(2, 0, 0, 2, 0)
    assert await group.cancel() == 0
    with pytest.raises(GroupFailed, match="enough"):
        await group.wait()


@pytest.mark.spec("GROUP-24")
async def test_a_member_that_was_replaced_is_not_canceled_with_its_former_group(jobs: Stoker) -> None:
    from stoker import Unique

    tasks = Tasks(jobs)
    debounced = tasks.work.using(unique=Unique("k", mode="replace"), delay=60)
    draft = debounced.draft()
    group = await jobs.group([draft])
    await debounced.enqueue()
    assert await group.cancel() == 0
    assert (await jobs.handle(draft.job_id).refresh()).status is Status.PENDING


@pytest.mark.spec("GROUP-12")
async def test_a_group_that_is_not_in_the_store_is_not_found(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    foreign = await Stoker("memory://").group([])
    here = jobs.group_handle(foreign.id)
    for call in (here.progress(), here.wait(), here.cancel(), here.add(tasks.work.draft())):
        with pytest.raises(NotFound, match=foreign.id):
            await call


@pytest.mark.spec("GROUP-11")
async def test_a_member_joins_others_to_its_group(jobs: Stoker) -> None:
    tasks = Tasks(jobs)

    @jobs.task
    async def split(parts: int) -> None:
        current().join(tasks.work.draft(1), [tasks.work.draft(number) for number in range(2, parts + 1)])

    group = await jobs.group([split.draft(3)], then=tasks.report.draft())
    await drain(jobs)
    assert await group.progress() == Progress(4, 4, 0, 0, 0)
    assert tasks.ran[-1] == ("then", group.id)


@pytest.mark.spec("GROUP-12")
async def test_only_a_member_of_an_open_group_joins(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    refused: list[BaseException] = []

    @jobs.task
    async def late() -> None:
        try:
            current().join(tasks.work.draft())
        except StokerError as error:
            refused.append(error)

    await late.enqueue()
    await drain(jobs)
    group = await jobs.group([], then=late.draft())
    await drain(jobs)
    assert [type(error) for error in refused] == [StokerError, GroupClosed]
    assert group.id in str(refused[1])
    assert tasks.ran == []


@pytest.mark.spec("GROUP-11")
async def test_a_chain_in_a_group_is_waited_for_to_its_end(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group([chain(*(tasks.work.draft(number) for number in range(3)))], then=tasks.report.draft())
    await drain(jobs)
    assert tasks.ran == [("work", 0), ("work", 1), ("work", 2), ("then", group.id)]


@pytest.mark.spec("GROUP-19")
async def test_a_group_joins_a_transaction(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    engine = await jobs.engine()
    async with engine.transaction() as tx:
        drafts = [tasks.work.using(delay=60).draft() for _ in range(MOST_KNOWN + 1)]
        group = await jobs.group(drafts, tx=tx)
    assert (await group.progress()).total == MOST_KNOWN + 1
    with pytest.raises(ZeroDivisionError):
        async with engine.transaction() as tx:
            gone = await jobs.group([tasks.work.draft()], tx=tx)
            raise ZeroDivisionError
    with pytest.raises(NotFound):
        await gone.progress()
    async with engine.transaction() as tx:
        with pytest.raises(InvalidInput, match="cannot be filled by a block in a transaction"):
            async with jobs.group(tx=tx):
                pass


@pytest.mark.spec("GROUP-25")
def test_groups_work_without_a_loop() -> None:
    jobs = Stoker("memory://")
    tasks = Tasks(jobs)
    assert jobs.run(jobs.group([tasks.work.draft()])).progress_sync().total == 1
    whole = jobs.group_sync([tasks.work.using(delay=60).draft()], id=FAN_OUT)
    assert jobs.group_sync([tasks.work.using(delay=60).draft()], id=uuid.UUID(FAN_OUT)) == whole
    assert whole.progress_sync().waiting == 1
    assert whole.cancel_sync() == 1
    with pytest.raises(GroupFailed):
        whole.wait_sync(1)
    with jobs.group() as group:
        assert len(group.add_sync(tasks.work.draft())) == 1
    jobs.run(drain(jobs))
    assert group.wait_sync(5).done == 1
    jobs.run(jobs.close())


@pytest.mark.spec("GROUP-25")
def test_a_group_without_a_loop_joins_a_transaction() -> None:
    """Of the user's, also inside a running loop, and of a handler."""
    jobs = Stoker("memory://")
    tasks = Tasks(jobs)
    members = [tasks.work.draft(n) for n in range(MOST_KNOWN + 1)]

    @jobs.task
    def fan_out() -> None:
        with current().transaction():
            jobs.group_sync([tasks.work.draft()], then=tasks.report.draft("of the block"))

    async def inside_a_loop() -> None:
        with Session(create_engine("sqlite://")) as session:
            jobs.group_sync([tasks.work.draft()], tx=session)
        with pytest.raises(StokerError, match=r"use `await jobs.group\(...\)` here"):
            jobs.group_sync([tasks.work.draft()])

    with TestKit(jobs) as kit:
        with Session(create_engine("sqlite://")) as session:
            group = jobs.group_sync(members, then=tasks.report.draft(), tx=session)
            empty = jobs.group_sync([], tx=session)
            with pytest.raises(InvalidInput, match="in a transaction one commit stores all"):
                jobs.group_sync(members, id=FAN_OUT, tx=session)
            with pytest.raises(InvalidInput, match="needs its drafts"):
                jobs.group_sync(tx=session)
            assert kit.drain_sync() == {}
            with pytest.raises(NotFound):
                group.progress_sync()
            session.commit()
        assert kit.drain_sync() == {Status.DONE: len(members) + 1}
        assert (group.wait_sync(5).done, empty.wait_sync(5).total) == (len(members), 0)
        asyncio.run(inside_a_loop())
        fan_out.enqueue_sync()
        assert kit.drain_sync() == {Status.DONE: 3}
        assert tasks.ran[-1][0] == "of the block"


@pytest.mark.spec("PASS-15")
async def test_a_callback_is_found_behind_many_groups(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open and closed ones are looked through page by page."""
    monkeypatch.setattr(chain_before, "AT_ONCE", 2)
    monkeypatch.setattr(chain_before, "MOST_LOOKED", 6)
    tasks = Tasks(jobs)
    waits = [tasks.report.draft() for _ in range(7)]
    opened = [await jobs.group([tasks.work.using(delay=60).draft()], then=draft) for draft in waits]
    ended = [tasks.report.draft() for _ in range(3)]
    closed = [await jobs.group([], on_failure=draft) for draft in ended]
    for group, draft in [*zip(opened[1:], waits[1:], strict=True), *zip(closed, ended, strict=True)]:
        with pytest.raises(NotFound, match=group.id):
            await jobs.handle(draft.id).refresh()
    with pytest.raises(NotFound, match="is not in the store"):
        await jobs.handle(waits[0].id).refresh()


@pytest.mark.spec("GROUP-26")
async def test_the_sweeper_says_nothing_of_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store loop does; the sweeper sweeps again when the store is back."""
    monkeypatch.setattr(janitor, "GROUPS_EVERY", 0.001)
    calls: list[int] = []
    back = asyncio.Event()

    class Away(Double):
        async def sweep(self, limit: int = 1_000) -> Swept:
            calls.append(limit)
            if len(calls) < 3:
                raise EngineUnavailable("away")
            back.set()
            return await self.real.groups.sweep(limit)

    engine = Away()
    await engine.open()
    sweeper = asyncio.create_task(GroupSweeper().run(ServiceContext(Stoker(engine), engine, lambda: "w")))
    await asyncio.wait_for(back.wait(), PATIENCE)
    sweeper.cancel()
    await engine.close()


@pytest.mark.spec("GROUP-10")
async def test_memory_keeps_as_many_closed_groups_as_finished_jobs() -> None:
    jobs = Stoker(MemoryEngine(history=2))
    groups = [await jobs.group([]) for _ in range(3)]
    with pytest.raises(NotFound):
        await groups[0].progress()
    assert (await groups[2].progress()).total == 0
    await jobs.close()


@pytest.mark.spec("GROUP-33")
async def test_memory_keeps_a_closed_group_whose_job_is_kept() -> None:
    """Beyond the history too, until that job is gone."""
    jobs = Stoker(MemoryEngine(history=2))
    tasks = Tasks(jobs)
    kept = await jobs.group([], then=tasks.report.draft("waits"))
    groups = [await jobs.group([]) for _ in range(20)]
    assert (await kept.progress()).total == 0
    with pytest.raises(NotFound):
        await groups[0].progress()
    await drain(jobs)
    for _ in range(3):
        await jobs.enqueue(tasks.work.draft())
        await drain(jobs)
    groups = [await jobs.group([]) for _ in range(20)]
    with pytest.raises(NotFound):
        await kept.progress()
    await jobs.close()


@pytest.mark.spec("GROUP-10")
async def test_a_group_is_kept_as_long_as_the_app_keeps_what_is_done(clock: VirtualClock) -> None:
    """Made whole and by a block; without a word of the app, by the engine's default."""
    for keep, kept in ((3 * 3600, 3 * HOUR), (None, KEEP_DONE)):
        jobs = Stoker(MemoryEngine(clock), keep=keep)
        whole = await jobs.group([])
        async with jobs.group() as block:
            pass
        for group in await (await jobs.engine()).groups.get([ids.parse(whole.id), ids.parse(block.id)]):
            assert group is not None
            assert group.expires_at == clock() + kept
        await jobs.close()


@pytest.mark.spec("GROUP-09")
async def test_the_sweeper_abandons_what_stayed_unsealed(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(janitor, "GROUPS_EVERY", 0.001)
    tasks = Tasks(timed_jobs)
    new = timed_jobs.group(on_failure=tasks.report.draft("failure"))
    group = await new.__aenter__()
    await group.add(tasks.work.using(keep=0).draft())
    await drain(timed_jobs)
    clock.advance(ABANDONED_AFTER / SECOND + 1)
    sweeper = asyncio.create_task(
        GroupSweeper().run(ServiceContext(timed_jobs, await timed_jobs.engine(), lambda: "w"))
    )
    with pytest.raises(GroupFailed, match="abandoned"):
        await group.wait(PATIENCE)
    sweeper.cancel()
    await drain(timed_jobs)
    assert tasks.ran == [("work", 0), ("failure", group.id)]
    await new.__aexit__(None)
    assert (await group.progress()).done == 1
    assert "abandoned 1 group not sealed" in caplog.text


@pytest.mark.spec("GROUP-31")
async def test_a_closing_and_its_callbacks_are_events_once(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group(
        [tasks.work.draft(n) for n in range(5)], then=tasks.report.draft(), on_failure=tasks.refuse.draft()
    )
    async with working(jobs), working(jobs):
        await group.wait(PATIENCE)
        await until(lambda: bool([one for one in tasks.ran if one[0] == "then"]))
    engine = await jobs.engine()
    found = await engine.timeline.events(Window(since=0, until=await engine.now() + DAY))
    [closed] = [event for event in found if event.type is EventType.GROUP_CLOSED]
    assert (ids.text(closed.job), closed.queue) == (group.id, "default")
    enqueued = [event for event in found if event.type is EventType.ENQUEUED]
    assert sorted(event.kind for event in enqueued) == ["report", *["work"] * 5]


@pytest.mark.spec("GROUP-31")
@pytest.mark.parametrize("by", ["cancel", "seal"])
async def test_an_operator_and_a_maker_who_close_a_group_emit_it_with_its_callbacks(by: str) -> None:
    """No worker runs: an operator cancels the last member, or a block ends whose members are gone."""
    engine = MemoryEngine()
    jobs = Stoker(engine)
    seen: list[Transition] = []
    jobs.listener(seen.append)
    tasks = Tasks(jobs)
    callbacks: dict[str, Any] = {"then": tasks.report.draft(), "on_failure": tasks.report.draft("failure")}
    if by == "cancel":
        await (await jobs.group([tasks.work.draft()], **callbacks)).cancel()
    else:
        async with jobs.group(None, **callbacks):
            pass
    [stored] = [one for one in seen if (one.kind, one.after) == ("report", Status.PENDING)]
    assert stored.job == ids.text(callbacks["on_failure" if by == "cancel" else "then"].job_id)
    await jobs.close()
    await engine.open()
    found = await engine.timeline.events(Window(since=0, until=await engine.now() + DAY))
    assert [event.type for event in found].count(EventType.GROUP_CLOSED) == 1
    assert [ids.text(event.job) for event in found if event.kind == "report"] == [stored.job]
    await engine.close()


# --- in steps -------------------------------------------------------------------------------------------------------

FAN_OUT = "0193b0f0-0000-7000-8000-000000000038"


def fan_out(tasks: Tasks, n: int = 2_500) -> list[Draft]:
    return [tasks.work.using(keep=0).draft(number) for number in range(n)]


@pytest.mark.spec("GROUP-38")
async def test_a_fan_out_that_was_interrupted_goes_on(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(jobs)
    insert, steps = jobs.insert_drafts, []

    async def failing(drafts: Any, tx: Any = None, group: Any = None) -> Any:
        steps.append(len(drafts))
        if len(steps) in (2, 5):
            raise EngineUnavailable("the store is away")
        return await insert(drafts, tx, group)

    monkeypatch.setattr(jobs, "insert_drafts", failing)
    then = tasks.report.draft("all of it")
    with pytest.raises(EngineUnavailable) as failed:
        await jobs.group(fan_out(tasks), then=then, id=FAN_OUT)
    assert any("the same call with the same id goes on" in note for note in failed.value.__notes__)
    handle = jobs.group_handle(FAN_OUT)
    assert (await handle.progress()).total == 1_000
    engine = await jobs.engine()
    await engine.jobs.renew("w", [], first=True)
    claims = await engine.jobs.claim(Demand("w", (("default", 400),), 400))
    await engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    await engine.jobs.renew("w", [], lease=0)
    group = await jobs.group(fan_out(tasks), then=tasks.report.draft("another"), id=FAN_OUT)
    assert steps == [1_000, 1_000, 1_000, 500]
    assert group.id == FAN_OUT
    assert await group.progress() == Progress(total=2_500, done=400, dead=0, canceled=0, waiting=2_100)
    again = await jobs.group(fan_out(tasks), id=FAN_OUT)
    assert (again.id, len(steps), (await again.progress()).total) == (FAN_OUT, 4, 2_500)
    [found] = await engine.groups.get([ids.parse(FAN_OUT)])
    assert found is not None and found.sealed and found.then is not None
    assert found.then.job_id == then.job_id, "callbacks are those of the first call"


@pytest.mark.spec("GROUP-38")
async def test_calls_with_one_id_at_the_same_moment_store_each_draft_once(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    await asyncio.gather(*(jobs.group(fan_out(tasks, 1_200), id=FAN_OUT) for _ in range(3)))
    assert (await jobs.group_handle(FAN_OUT).progress()).total == 1_200
    empty = await jobs.group([], then=tasks.report.draft("none"), id=FAN_OUT.replace("38", "39"))
    assert (await empty.wait(timeout=10)).total == 0
    assert await jobs.group([], id=empty.id) == empty


@pytest.mark.spec("GROUP-39")
async def test_an_id_that_cannot_go_on_is_refused(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group(fan_out(tasks, 3), id=FAN_OUT)
    for n in (2, 4):
        with pytest.raises(InvalidInput, match=f"is a group of 3 drafts, and {n} are given"):
            await jobs.group(fan_out(tasks, n), id=group.id)
    other = await jobs.group(fan_out(tasks, 2))
    with pytest.raises(InvalidInput, match="made without an id"):
        await jobs.group(fan_out(tasks, 2), id=other.id)
    with pytest.raises(InvalidInput, match="goes with drafts"):
        async with jobs.group(id=FAN_OUT):
            pass
    with pytest.raises(InvalidInput, match="in a transaction one commit stores all"):
        await jobs.group(fan_out(tasks, 2), id=FAN_OUT, tx=object())
    with pytest.raises(InvalidArgument, match=r"group id: must be a UUID, such as current\(\).id, or .*uuid5"):
        jobs.group([], id="import 7")
    with pytest.raises(InvalidInput, match="needs its drafts"):
        await jobs.group(id=FAN_OUT)
    late = new_group(ids.parse(FAN_OUT.replace("38", "40")))
    engine = await jobs.engine()
    await engine.jobs.insert(into_group(late.id, fan_out(tasks, 1)), group=msgspec.structs.replace(late, placed=1))
    assert await engine.groups.seal(late.id, abandoned=True)
    with pytest.raises(InvalidInput, match="was abandoned, because no call went on with it for an hour"):
        await jobs.group(fan_out(tasks, 2), id=ids.text(late.id))

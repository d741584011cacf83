"""`PREVIOUS` and `RESULTS` as callers and handlers see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stoker import (
    PREVIOUS,
    RESULTS,
    Chunk,
    Fixed,
    GroupFailed,
    InvalidInput,
    JobFailed,
    Limit,
    Snooze,
    Stoker,
    chain,
    current,
)
from stoker.model import ids
from stoker.model.job import Demand, Draft, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.query import Requeue, Selection
from stoker.testing import TestKit, assert_enqueued
from tests.harness.apps import drain


class Tasks:
    """Tasks that pass numbers on."""

    def __init__(self, jobs: Stoker) -> None:
        @jobs.task
        async def add(a: int, b: int) -> int:
            return a + b

        @jobs.task
        def double(n: int) -> int:
            return 2 * n

        @jobs.task
        def total(*numbers: int, **others: int) -> int:
            return sum(numbers) + sum(others.values())

        @jobs.task
        def nothing() -> None: ...

        @jobs.task
        def say(text: str) -> str:
            return text

        self.add, self.double, self.total, self.nothing, self.say = add, double, total, nothing, say


@pytest.mark.spec("PASS-01")
async def test_a_chain_passes_results_on(jobs: Stoker) -> None:
    """By position, by keyword, in variable arguments, in a job by name."""
    tasks = Tasks(jobs)
    drafts = [
        *(tasks.double.draft(PREVIOUS), tasks.add.draft(b=PREVIOUS, a=1), tasks.total.draft(1, PREVIOUS, x=PREVIOUS)),
        *(jobs.draft("double", {"n": PREVIOUS}), jobs.draft("add", [PREVIOUS, PREVIOUS])),
    ]
    await jobs.enqueue(chain(tasks.add.draft(2, 3), *drafts))
    await drain(jobs)
    assert [await jobs.handle(draft.id).result() for draft in drafts] == [10, 11, 23, 46, 92]


@pytest.mark.spec("PASS-01")
async def test_links_side_by_side_get_the_same_result(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    one, two, plain = tasks.double.draft(PREVIOUS), tasks.add.draft(1, PREVIOUS), tasks.double.draft(7)
    await jobs.enqueue(tasks.add.draft(2, 3).then(one, two, plain))
    await drain(jobs)
    assert [await jobs.handle(draft.id).result() for draft in (one, two, plain)] == [10, 6, 14]


@pytest.mark.spec("PASS-01")
async def test_a_chunk_takes_and_passes_results(jobs: Stoker) -> None:
    """One item of the handler's list each."""
    tasks = Tasks(jobs)

    @jobs.task(chunk=Chunk(10))
    async def squares(numbers: list[int]) -> list[int | BaseException]:
        return [number * number for number in numbers]

    lasts = [tasks.double.draft(PREVIOUS) for _ in range(3)]
    for number, last in enumerate(lasts):
        await jobs.enqueue(chain(tasks.add.draft(number, 1), squares.draft(PREVIOUS), last))
    await drain(jobs)
    assert [await jobs.handle(last.id).result() for last in lasts] == [2, 8, 18]


@pytest.mark.spec("PASS-02")
async def test_the_run_that_succeeds_passes_its_result_on(jobs: Stoker) -> None:
    """After a snooze, a retry, a death and a requeue."""
    tasks = Tasks(jobs)
    dies = True

    @jobs.task(attempts=2, backoff=Fixed(0))
    async def stubborn() -> int:
        run = current()
        if "snoozed" not in run.metadata:
            run.metadata["snoozed"] = "yes"
            raise Snooze(0)
        if dies:
            raise ValueError
        return run.attempt

    last = tasks.double.draft(PREVIOUS)
    first = await jobs.enqueue(chain(stubborn.draft(), last))
    await drain(jobs)
    assert (await first.refresh()).status is Status.DEAD
    dies = False
    engine = await jobs.engine()
    await engine.operator.alter(Selection((ids.parse(first.id),)), Requeue())
    await drain(jobs)
    assert await jobs.handle(last.id).result() == 2 * await first.result()


@pytest.mark.spec("PASS-03")
async def test_a_result_that_cannot_be_stored_stops_the_chain(jobs: Stoker) -> None:
    tasks = Tasks(jobs)

    @jobs.task
    def broken() -> Any:
        return float("nan")

    last = tasks.double.draft(PREVIOUS)
    first = await jobs.enqueue(chain(broken.draft(), last))
    await drain(jobs)
    with pytest.raises(JobFailed, match=r"cannot be passed on to the job behind it \(double\): NaN and infinity"):
        await first.result()


@pytest.mark.spec("PASS-03")
@pytest.mark.parametrize("value", [5, float("nan")])
async def test_a_block_passes_its_result_on_or_is_rolled_back(jobs: Stoker, value: float) -> None:
    tasks = Tasks(jobs)

    @jobs.task(attempts=1)
    async def careful() -> Any:
        async with current().transaction() as block:
            await tasks.nothing.enqueue()
            block.result(value)

    last = jobs.draft("double", {"n": PREVIOUS})
    with TestKit(jobs) as kit:
        first = await jobs.enqueue(chain(careful.draft(), last))
        await kit.drain()
        if value == 5:
            assert await jobs.handle(last.id).result() == 10
            assert len(kit.enqueued(tasks.nothing)) == 1
        else:
            with pytest.raises(JobFailed, match="is not done: its result cannot be passed on"):
                await first.result()
            assert kit.enqueued(tasks.nothing) == []


@pytest.mark.spec("PASS-04", "PASS-05")
def test_a_chain_is_checked_where_it_is_written(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    first = tasks.add.draft(1, 2)
    refused: dict[str, Callable[[], Draft]] = {
        r"say\(text\): takes str, but PREVIOUS is the result of add, which is int": lambda: chain(
            first, tasks.say.draft(PREVIOUS)
        ),
        r"say\(text\): takes str": lambda: chain(first, tasks.say.draft(PREVIOUS).then(tasks.nothing.draft())),
        "result of nothing, which returns None": lambda: chain(tasks.nothing.draft(), tasks.double.draft(PREVIOUS)),
        "which has keep=0": lambda: chain(tasks.add.using(keep=0).draft(1, 2), tasks.double.draft(PREVIOUS)),
        r"total\(numbers\): PREVIOUS stands for a whole argument": lambda: tasks.total.draft([PREVIOUS]),  # type: ignore[arg-type]
        "payload: PREVIOUS stands for a whole argument": lambda: jobs.draft("total", {"n": {"m": PREVIOUS}}),
        "a link has none; use PREVIOUS": lambda: chain(first, tasks.double.draft(RESULTS)),
        r"add\(a\): Expected `int`, got `str`": lambda: tasks.add.draft("x", PREVIOUS),  # type: ignore[arg-type]
        r"add\(c\): got an unexpected argument": lambda: jobs.draft("add", {"a": 1, "b": PREVIOUS, "c": 2}),
        "no key or text can be made of it": lambda: tasks.double.using(unique=lambda n: f"k{n}").draft(PREVIOUS),
        "unique: is a key of all arguments, and the result of": lambda: tasks.double.using(unique=True).draft(PREVIOUS),
        r"double\(n\): is the key of its limit": lambda: tasks.double.using(limit=Limit(1, "n")).draft(PREVIOUS),
        r"double\(n\): is the key of": lambda: jobs.draft("double", {"n": PREVIOUS}, limit=Limit(1, "n")),
    }
    for why, make in refused.items():
        with pytest.raises(InvalidInput, match=why):
            make()


@pytest.mark.spec("PASS-14")
def test_tasks_are_not_piped(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    with pytest.raises(InvalidInput, match=r"write chain\(first.draft\(...\), second.draft\(PREVIOUS\)\)"):
        _ = tasks.add | tasks.double  # type: ignore[operator]


@pytest.mark.spec("PASS-04")
async def test_a_marker_needs_a_job_before_it(jobs: Stoker) -> None:
    """Whatever door it comes by; nothing is stored."""
    tasks = Tasks(jobs)
    draft = tasks.double.draft(PREVIOUS)
    kit = TestKit(jobs)

    @jobs.task
    async def follow() -> None:
        current().follow_up(draft)

    async with kit:
        for call in (
            lambda: tasks.double.enqueue(PREVIOUS),
            lambda: jobs.enqueue_many([tasks.nothing.draft(), draft]),
            lambda: jobs.group([draft]),
            lambda: jobs.schedule("nightly", draft, cron="0 3 * * *"),
            lambda: kit.run(tasks.double, PREVIOUS),
            lambda: kit.run(follow),
        ):
            with pytest.raises(InvalidInput, match=r"PREVIOUS: stands for .* this job has none; use chain"):
                await call()
        with pytest.raises(InvalidInput, match=r"then= has none; use RESULTS"):
            await jobs.group([], then=draft)
        assert sum((await (await jobs.engine()).operator.census()).by_status().values()) == 0


@pytest.mark.spec("PASS-01")
async def test_each_occurrence_of_a_schedule_passes_its_results(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    async with TestKit(jobs) as kit:
        handle = await jobs.schedule(
            "nightly", chain(tasks.add.draft(2, 3), tasks.double.draft(PREVIOUS)), cron="0 3 * * *"
        )
        await handle.run_now()
        await kit.drain()
        [job] = kit.enqueued(tasks.double)
        assert (job.arguments, job.status) == ({"n": 5}, Status.DONE)


# --- groups -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("PASS-08", "PASS-09")
async def test_a_group_gives_its_callback_the_results(jobs: Stoker) -> None:
    """Also where the callback's jobs run in chunks, and by name."""
    tasks = Tasks(jobs)
    sums: list[list[int | None]] = []

    @jobs.task(chunk=Chunk(10))
    async def in_chunks(lists: list[list[int | None]]) -> None:
        sums.extend(lists)

    @jobs.task
    def by_name(numbers: list[int | None]) -> None:
        sums.append(numbers)

    members = [tasks.double.draft(number) for number in (1, 2)]
    await jobs.group(members, then=in_chunks.draft(RESULTS), on_finish=jobs.draft("by_name", {"numbers": RESULTS}))
    await drain(jobs)
    assert sums == [[2, 4], [2, 4]]


@pytest.mark.spec("PASS-09")
async def test_a_callback_is_checked_when_the_group_is_made(jobs: Stoker) -> None:
    tasks = Tasks(jobs)

    @jobs.task
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    with pytest.raises(InvalidInput, match=r"double\(n\): takes int, but RESULTS is a list;"):
        jobs.group([], then=tasks.double.draft(RESULTS))
    with pytest.raises(InvalidInput, match=r"add_up\(numbers\): .*has None for a member that failed"):
        jobs.group([], on_finish=add_up.draft(RESULTS))
    why = r"add_up\(numbers\): takes list\[int\], but RESULTS is a list with the results of say, str each"
    for drafts in ([tasks.say.draft("x")], [chain(tasks.add.draft(1, 2), tasks.say.draft("x"))]):
        with pytest.raises(InvalidInput, match=why):
            await jobs.group(drafts, then=add_up.draft(RESULTS))
    async with jobs.group(then=add_up.draft(RESULTS)) as group:
        with pytest.raises(InvalidInput, match=why):
            await group.add(tasks.say.draft("x"))
        await group.add(tasks.add.draft(1, 2))
    await drain(jobs)
    assert (await group.progress()).done == 1


@pytest.mark.spec("PASS-08")
async def test_a_callback_that_does_not_fit_its_results_waits_like_others_that_do_not_fit(jobs: Stoker) -> None:
    """A worker of another version may take them."""

    @jobs.task
    def words(texts: list[str]) -> None: ...

    @jobs.task
    def anything() -> Any:
        return 7

    then = words.draft(RESULTS)
    await jobs.group([anything.draft()], then=then)
    await drain(jobs)
    job = await jobs.handle(then.id).refresh()
    assert (job.status, job.attempts) == (Status.PENDING, 0)


@pytest.mark.spec("PASS-07")
def test_groups_give_their_results_without_a_loop() -> None:
    jobs = Stoker("memory://")
    tasks = Tasks(jobs)
    seen: list[Any] = []

    @jobs.task
    def look() -> None:
        group = current().group
        assert group is not None
        seen.append(group.results_sync())
        seen.append(group.failed_sync())

    group = jobs.run(jobs.group([tasks.double.draft(number) for number in range(3)], then=look.draft()))
    jobs.run(drain(jobs))
    assert group.results_sync() == [0, 2, 4]
    assert group.failed_sync() == []
    assert sorted(handle.result_sync() for handle in group.as_completed_sync()) == [0, 2, 4]
    for handle in group.as_completed_sync(timeout=60):
        assert handle.result_sync() in (0, 2, 4)
        break
    assert seen == [[0, 2, 4], []]
    jobs.run(jobs.close())


@pytest.mark.spec("PASS-07")
async def test_waiting_for_members_has_an_end(jobs: Stoker) -> None:
    tasks = Tasks(jobs)
    group = await jobs.group([tasks.double.using(delay=60).draft(1)])
    with pytest.raises(TimeoutError, match="is not closed in time"):
        [handle async for handle in group.as_completed(0.01)]
    with pytest.raises(TimeoutError, match="is not closed in time"):
        await group.results(0)
    await group.cancel()
    [handle] = [handle async for handle in group.as_completed()]
    assert [job.id for job in await group.failed()] == [handle.id]
    with pytest.raises(GroupFailed):
        await group.results()


@pytest.mark.spec("PASS-07")
async def test_members_of_a_kind_without_code_are_shown_as_json(jobs: Stoker) -> None:
    jobs.declare("elsewhere")
    group = await jobs.group([jobs.draft("elsewhere")])
    engine = await jobs.engine()
    await engine.jobs.renew("w", (), first=True)
    [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    await engine.jobs.settle([conclude(claim, Done(b'{"a":1}'))])
    assert await group.results() == [{"a": 1}]


@pytest.mark.spec("PASS-01", "PASS-08")
def test_a_kit_passes_results_on_without_a_loop() -> None:
    """Drained, at the enqueue with `inline`, and in time."""
    jobs = Stoker("memory://")
    tasks = Tasks(jobs)

    @jobs.task
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    with TestKit(jobs) as kit:
        last, then = tasks.double.draft(PREVIOUS), add_up.using(delay=60).draft(RESULTS)
        jobs.enqueue_sync(chain(tasks.add.draft(2, 3), last))
        jobs.run(jobs.group([tasks.double.draft(n) for n in range(3)], then=then))
        kit.drain_sync()
        assert jobs.handle(last.id).result_sync() == 10
        assert_enqueued(tasks.double, n=5)
        assert kit.enqueued(add_up)[0].arguments == {"numbers": "RESULTS"}
        kit.advance_sync(60)
        assert jobs.handle(then.id).result_sync() == 6
        with kit.inline():
            again = tasks.double.draft(PREVIOUS)
            jobs.enqueue_sync(chain(tasks.add.draft(4, 5), again))
            assert jobs.handle(again.id).result_sync() == 18

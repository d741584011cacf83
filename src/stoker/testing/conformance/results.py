"""Results along chains and groups, with a real worker on the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker import handle as handles
from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Feature
from stoker.model import ids
from stoker.model.errors import GroupFailed, JobCanceled, JobFailed, NotFound, StokerError
from stoker.model.groups import MOST_KNOWN
from stoker.model.job import Draft, Status, chain
from stoker.model.markers import PREVIOUS as _PREVIOUS
from stoker.model.markers import RESULTS as _RESULTS
from stoker.model.outcome import Reject, Snooze
from stoker.model.query import Clone, Delete, Edit, Requeue, Selection
from stoker.model.retry import Fixed
from stoker.model.time import MINUTE
from stoker.testing.conformance.harness import Store, needs
from stoker.worker import Worker

PREVIOUS: Any = _PREVIOUS
RESULTS: Any = _RESULTS

PATIENCE = 30.0
"""Seconds after which a worker that should have drained counts as stuck."""


class Adding:
    """An app on the store that doubles numbers and adds them up; odd ones die while `picky`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.jobs = jobs = Stoker(store.engine)
        self.given: list[Any] = []
        self.picky = False
        self.snoozes = 0

        @jobs.task(attempts=1)
        async def double(n: int) -> int:
            if self.picky and n % 2:
                raise Reject(f"{n} is odd")
            return 2 * n

        @jobs.task(backoff=Fixed(0))
        async def total(numbers: list[int | None]) -> int:
            self.given.append(numbers)
            if self.snoozes:
                self.snoozes -= 1
                raise Snooze(0)
            return sum(number or 0 for number in numbers)

        @jobs.task
        async def look() -> list[Any]:
            group = current().group
            assert group is not None
            return [await group.results(), [job.last_error for job in await group.failed()]]

        self.double, self.total, self.look = double, total, look

    def doubles(self, n: int) -> list[Draft]:
        return [self.double.draft(number) for number in range(n)]

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker = Worker(self.jobs, {"default": 4}, poll=0.05)
        await worker.start()
        try:
            yield
        finally:
            await worker.stop(0)

    async def drain(self) -> None:
        worker = Worker(self.jobs, {"default": 4}, drain=True, poll=0.05)
        await worker.start()
        try:
            await asyncio.wait_for(worker.join(), PATIENCE)
        finally:
            await worker.stop(0)

    async def result(self, draft: Draft) -> Any:
        """What a job returned, which a callback's group may store only now."""
        async with self.working():
            return await self.jobs.handle(draft.id).result(PATIENCE)


@pytest.mark.core
@pytest.mark.spec("PASS-06", "PASS-08")
async def test_results_of_a_group_come_in_the_order_of_its_members(store: Store) -> None:
    """To a caller that waits for the group, and to its callback, in place of `RESULTS`."""
    app = Adding(store)
    then, seen = app.total.draft(RESULTS), app.look.draft()
    group = await app.jobs.group(app.doubles(5), then=then, on_finish=seen)
    async with app.working():
        assert await group.results(PATIENCE) == [0, 2, 4, 6, 8]
    assert await app.result(then) == 20
    assert await app.result(seen) == [[0, 2, 4, 6, 8], []]
    assert app.given == [[0, 2, 4, 6, 8]]


@pytest.mark.core
@pytest.mark.spec("PASS-12")
async def test_members_that_keep_nothing_give_their_results(store: Store) -> None:
    """Whatever door they came by: with the group, added by its id, or by a member."""
    app = Adding(store)
    app.double = app.double.using(keep=0)

    @app.jobs.task(keep=0)
    async def split() -> int:
        current().join(app.double.draft(4))
        return 1

    then, seen = app.total.draft(RESULTS), app.look.draft()
    async with app.jobs.group([split.draft()], then=then, on_finish=seen) as group:
        await group.add(app.double.draft(2))
        await app.jobs.group_handle(group.id).add(app.double.draft(3))
    await app.drain()
    assert await app.result(then) == 1 + 4 + 6 + 8
    assert sorted((await app.result(seen))[0]) == [1, 4, 6, 8]


@pytest.mark.core
@pytest.mark.spec("PASS-06", "PASS-07", "PASS-08")
async def test_a_member_that_failed_is_none_for_a_callback(store: Store) -> None:
    """Who waits for the group gets `GroupFailed`; the callback also reads who failed."""
    app = Adding(store)
    app.picky = True
    failure, finish = app.look.draft(), app.total.draft(numbers=RESULTS)
    group = await app.jobs.group(app.doubles(4), on_failure=failure, on_finish=finish)
    await app.drain()
    assert await app.result(finish) == 4
    assert app.given == [[0, None, 4, None]]
    assert await app.result(failure) == [[0, None, 4, None], ["1 is odd", "3 is odd"]]
    with pytest.raises(GroupFailed, match="1 is odd"):
        await group.results(PATIENCE)
    assert [job.status for job in await group.failed()] == [Status.DEAD] * 2


@pytest.mark.core
@pytest.mark.spec("PASS-06")
async def test_a_link_stands_behind_its_member_and_a_copy_in_place_of_it(store: Store) -> None:
    """A group of chains gives the results of every link; a dead member that was copied, that of the copy."""
    app = Adding(store)
    app.picky = True
    first, second = app.double.draft(1), app.double.draft(PREVIOUS)
    then = app.total.draft(RESULTS)
    members = [chain(first, second), chain(app.double.draft(4), app.double.draft(PREVIOUS))]
    async with app.jobs.group(then=then) as group:
        await group.add(members)
        await app.drain()
        app.picky = False
        engine, copy = await app.jobs.engine(), store.mint()
        tally = await engine.operator.alter(Selection((first.job_id,)), Clone((copy,)))
        assert tally.changed == 1
    await app.drain()
    assert await group.results(PATIENCE) == [2, 4, 8, 16]
    assert await app.result(then) == 30


@pytest.mark.spec("PASS-07")
@pytest.mark.core
async def test_members_come_as_they_end(store: Store) -> None:
    """Each once, those that have ended first; the handles have their results at once."""
    app = Adding(store)
    async with app.jobs.group() as group:
        await group.add(app.doubles(3))
        await app.drain()
        await group.add(app.double.draft(9))
    handles = group.as_completed(PATIENCE)
    early = [await anext(handles) for _ in range(3)]
    assert sorted([await handle.result(0) for handle in early]) == [0, 2, 4]
    async with app.working():
        assert [await handle.result(0) async for handle in handles] == [18]


@pytest.mark.spec("PASS-08")
async def test_results_are_read_anew_when_a_callback_runs_again(store: Store) -> None:
    """After a snooze, and requeued after its death."""
    app = Adding(store)
    app.snoozes = 2
    then = app.total.draft(RESULTS)
    await app.jobs.group(app.doubles(3), then=then)
    await app.drain()
    assert await app.result(then) == 6
    assert app.given == [[0, 2, 4]] * 3


@pytest.mark.spec("PASS-08")
async def test_results_that_are_gone_are_an_error(store: Store) -> None:
    """A callback whose results are gone dies; an operator may write them in place of the marker."""
    app = Adding(store)
    then, members = app.total.using(attempts=1, delay=60).draft(RESULTS), app.doubles(3)
    group = await app.jobs.group(members, then=then)
    await app.drain()
    engine = await app.jobs.engine()
    await engine.operator.alter(Selection((members[1].job_id,)), Delete())
    with pytest.raises(NotFound, match="3 done members, and the results of 1 are no longer kept"):
        await group.results(PATIENCE)
    store.pass_time(MINUTE)
    await app.drain()
    with pytest.raises(JobFailed, match="the results of 1 are no longer kept"):
        await app.result(then)
    assert (await engine.operator.alter(Selection((then.job_id,)), Edit(payload=b'{"numbers":[1,2]}'))).changed == 1
    assert (await engine.operator.alter(Selection((then.job_id,)), Requeue())).changed == 1
    await app.drain()
    assert await app.result(then) == 3


@pytest.mark.spec("PASS-06")
async def test_a_large_group_has_results_too(store: Store) -> None:
    """More members than those whose ids are kept."""
    needs(store, Feature.DURABLE)  # a store in memory keeps fewer finished jobs than that
    app = Adding(store)
    then = app.total.draft(RESULTS)
    async with app.jobs.group(then=then) as group:
        await group.add(app.doubles(MOST_KNOWN + 1))
    await app.drain()
    assert await group.results(PATIENCE) == [2 * n for n in range(MOST_KNOWN + 1)]
    assert await app.result(then) == MOST_KNOWN * (MOST_KNOWN + 1)


@pytest.mark.spec("PASS-07")
async def test_a_member_does_not_wait_for_its_own_group(store: Store) -> None:
    app = Adding(store)

    @app.jobs.task(attempts=1)
    async def impatient() -> str:
        group = current().group
        assert group is not None
        try:
            await group.results()
        except StokerError as error:
            return str(error)
        return ""

    group = await app.jobs.group([impatient.draft()])
    await app.drain()
    [why] = await group.results(PATIENCE)
    assert why == f"group {group.id} cannot close before this job ends, for it is a member; it does not wait"
    assert ids.parse(group.id)


# --- chains -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("PASS-10", "PASS-11")
async def test_waiting_for_the_last_link_waits_for_its_chain(store: Store) -> None:
    """While it is not stored, `NotFound` names the job before it."""
    app = Adding(store)
    first, last = app.double.draft(1), app.double.draft(PREVIOUS)
    await app.jobs.enqueue(chain(first, app.double.draft(PREVIOUS), last))
    with pytest.raises(NotFound, match=rf"{last.id} is waiting behind job {first.id} \(double, pending\)"):
        await app.jobs.handle(last.id).refresh()
    with pytest.raises(TimeoutError, match=f"is waiting behind job {first.id}"):
        await app.jobs.handle(last.id).result(0)
    with pytest.raises(NotFound, match=f"behind job {first.id} .* Nothing was canceled: cancel job {first.id}"):
        await app.jobs.handle(last.id).cancel()
    waiting = asyncio.create_task(app.jobs.handle(last.id).result(PATIENCE))
    async with app.working():
        assert await waiting == 8


@pytest.mark.core
@pytest.mark.spec("PASS-10")
async def test_waiting_for_the_last_link_fails_with_the_link_that_failed(store: Store) -> None:
    """Dead or canceled; requeued or copied, the chain goes on."""
    app = Adding(store)
    app.picky = True
    first, middle, last = app.double.draft(2), app.double.draft(3), app.double.draft(PREVIOUS)
    await app.jobs.enqueue(chain(first, middle, last))
    handle = app.jobs.handle(last.id)
    async with app.working():
        with pytest.raises(JobFailed, match=rf"{middle.id} \(double\) is dead: 3 is odd") as failed:
            await handle.result(PATIENCE)
        assert failed.value.job_id == middle.id
    for call in (handle.refresh, handle.cancel):
        with pytest.raises(NotFound, match=rf"is waiting behind job {middle.id} \(double, dead\)"):
            await call()
    app.picky = False
    engine, copy = await app.jobs.engine(), store.mint()
    assert (await engine.operator.alter(Selection((middle.job_id,)), Clone((copy,)))).changed == 1
    async with app.working():
        assert await handle.result(PATIENCE) == 12
    lost = app.double.draft(PREVIOUS)
    canceled = await app.jobs.enqueue(chain(app.double.using(delay=60).draft(1), lost))
    await canceled.cancel(reason="not today")
    with pytest.raises(JobCanceled, match=f"{canceled.id}.*not today"):
        await app.jobs.handle(lost.id).result(PATIENCE)


@pytest.mark.spec("PASS-10")
async def test_a_chain_that_ended_before_its_last_link_is_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is held ends it; a job that was never stored is not waited for."""
    monkeypatch.setattr(handles, "STORED_WITHIN", 0.0)
    app = Adding(store)
    holder = await app.double.using(unique="k", delay=60).enqueue(7)
    first, last = app.double.draft(1), app.double.draft(PREVIOUS)
    held = app.double.using(unique="k").draft(2)
    await app.jobs.enqueue(chain(first, held, last))
    waiting = asyncio.create_task(app.jobs.handle(last.id).result(PATIENCE))
    async with app.working():
        with pytest.raises(NotFound, match=r"was not stored: its chain ended at job|is not in the store"):
            await waiting
    assert (await holder.refresh()).status is Status.PENDING
    with pytest.raises(NotFound, match="is not in the store"):
        await app.jobs.handle(ids.text(store.mint())).result(PATIENCE)


# --- callbacks --------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("PASS-15")
async def test_waiting_for_a_callback_waits_for_its_group(store: Store) -> None:
    """And for what is behind it in a chain. While it is not stored, `NotFound` names the group, also of a cancel."""
    app = Adding(store)
    last, finish = app.double.draft(PREVIOUS), app.look.draft()
    then = app.total.draft(RESULTS)
    group = await app.jobs.group(app.doubles(3), then=chain(then, last), on_finish=finish)
    for draft in (then, last, finish):
        said = rf"{draft.id} is waiting behind group {group.id} \(of 3 members .* 3 not finished\): its closing"
        with pytest.raises(NotFound, match=said) as missing:
            await app.jobs.handle(draft.id).refresh()
        assert missing.value.job_id == draft.id
        with pytest.raises(NotFound, match=f"{said} .*Nothing was canceled: cancel it when it is stored, or"):
            await app.jobs.handle(draft.id).cancel()
        with pytest.raises(TimeoutError, match="is waiting behind group"):
            await app.jobs.handle(draft.id).result(0)
    waiting = [asyncio.create_task(app.jobs.handle(draft.id).result(PATIENCE)) for draft in (then, last, finish)]
    async with app.working():
        assert await asyncio.gather(*waiting) == [6, 12, [[0, 2, 4], []]]


@pytest.mark.core
@pytest.mark.spec("PASS-15")
async def test_waiting_for_a_callback_fails_with_its_group(store: Store) -> None:
    """As the group does for `then`; a callback that its end did not call for is not waited for."""
    app = Adding(store)
    app.picky = True
    then, failure, finish = app.total.draft(RESULTS), app.look.draft(), app.look.draft()
    group = await app.jobs.group(app.doubles(2), then=then, on_failure=failure, on_finish=finish)
    waiting = [asyncio.create_task(app.jobs.handle(draft.id).result(PATIENCE)) for draft in (failure, finish)]
    async with app.working():
        with pytest.raises(GroupFailed, match=rf"group {group.id} failed.*\(double\): 1 is odd"):
            await app.jobs.handle(then.id).result(PATIENCE)
        assert await asyncio.gather(*waiting) == [[[0, None], ["1 is odd"]]] * 2
    for call in (app.jobs.handle(then.id).refresh, app.jobs.handle(then.id).cancel):
        with pytest.raises(NotFound, match=f"was not stored: it is then of group {group.id}, .* group is failed"):
            await call()
    app.picky = False
    other = app.look.draft()
    succeeded = await app.jobs.group(app.doubles(1), on_failure=other)
    await app.drain()
    await succeeded.wait(PATIENCE)
    with pytest.raises(NotFound, match=f"it is on_failure of group {succeeded.id}, .* and the group is done"):
        await app.jobs.handle(other.id).result(PATIENCE)


@pytest.mark.spec("PASS-15")
async def test_a_callback_that_is_gone_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by a member of its group, which would wait for itself."""
    monkeypatch.setattr(handles, "STORED_WITHIN", 0.0)
    app = Adding(store)
    gone = app.double.using(keep=0).draft(1)

    @app.jobs.task
    async def impatient() -> str:
        try:
            await app.jobs.handle(gone.id).result()
        except StokerError as error:
            return str(error)
        return ""

    group = await app.jobs.group([impatient.draft()], then=gone)
    await app.drain()
    [why] = await group.results(PATIENCE)
    assert why == f"group {group.id} cannot close before this job ends, for it is a member; it does not wait"
    await app.drain()
    with pytest.raises(NotFound, match="is not in the store"):
        await app.jobs.handle(gone.id).result(PATIENCE)
    assert not await app.jobs.handle(gone.id).cancel()

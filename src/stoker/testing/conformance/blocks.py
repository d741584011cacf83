"""Blocks: a handler's writes and its job's success are one commit.

The cases run a real worker on the store. What stands for the user's writes is a job that the handler enqueues inside
the block: it exists if and only if the block's transaction was committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Feature
from stoker.engines.shared import job_end_waiters
from stoker.handle import JobHandle
from stoker.limits import Limit
from stoker.model import ids
from stoker.model.errors import EngineRefused, LostClaim
from stoker.model.job import Job, Status
from stoker.model.outcome import Snooze
from stoker.model.query import Cancel, Query, Selection
from stoker.model.retry import Fixed
from stoker.model.time import HOUR
from stoker.task import Task
from stoker.testing.conformance.harness import Store, heard_of_waiter, needs
from stoker.worker import Worker

Handler: TypeAlias = Callable[[], Any]

PATIENCE = 30.0
"""Seconds after which a worker that should have drained counts as stuck."""


class Shop:
    """An app on the store, with one task under test and one whose jobs are the effects."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.jobs = Stoker(store.engine)
        self.effect: Task[..., None] = self.jobs.task(name="effect", queue="effects")(_effect)

    async def enqueue(self, handler: Handler, **options: Any) -> JobHandle[Any]:
        """Register the handler and enqueue a job for it."""
        options = {"backoff": Fixed(60), "attempts": 3, **options}
        task: Task[..., Any] = self.jobs.task(name="charge", **options)(handler)
        return await task.enqueue()

    async def drain(self) -> Worker:
        """Run what is due in the queue of the task under test."""
        worker = Worker(self.jobs, {"default": 4}, drain=True, poll=0.05)
        await worker.start()
        try:
            await asyncio.wait_for(worker.join(), PATIENCE)
        finally:
            await worker.stop(0)
        return worker

    async def run(self, handler: Handler, **options: Any) -> Job:
        """Run one job once; return its record."""
        handle = await self.enqueue(handler, **options)
        await self.drain()
        return await self.record(handle)

    async def record(self, handle: JobHandle[Any]) -> Job:
        return await self.store.job(ids.parse(handle.id))

    async def effects(self) -> int:
        return len((await self.store.engine.operator.find(Query(kinds=frozenset({"effect"}), limit=100))).jobs)


def _effect() -> None:
    """Stand for a row that a handler wrote."""


async def _shop(store: Store) -> Shop:
    needs(store, Feature.OUTBOX)
    return Shop(store)


@pytest.mark.core
@pytest.mark.spec("BLOCK-01")
async def test_a_block_commits_its_writes_and_the_jobs_success_together(store: Store) -> None:
    """Inside the block neither is visible; afterwards both are, while the handler still runs."""
    shop = await _shop(store)
    seen: list[tuple[Status, int]] = []

    async def look() -> None:
        seen.append((await store.status(current().claim.id), await shop.effects()))

    async def handler() -> None:
        async with current().transaction():
            await shop.effect.enqueue()
            await look()
        await look()

    job = await shop.run(handler)
    assert seen == [(Status.RUNNING, 0), (Status.DONE, 1)]
    assert (job.status, job.attempts, await shop.effects()) == (Status.DONE, 1, 1)


@pytest.mark.core
@pytest.mark.spec("BLOCK-01")
async def test_a_handler_that_raises_inside_leaves_nothing(store: Store) -> None:
    """The run fails by the usual rules, and the next one starts from nothing."""
    shop = await _shop(store)
    runs: list[int] = []

    async def handler() -> None:
        runs.append(current().attempt)
        async with current().transaction():
            await shop.effect.enqueue()
            if len(runs) == 1:
                raise ValueError("the card was refused")

    handle = await shop.enqueue(handler)
    await shop.drain()
    job = await shop.record(handle)
    assert (job.status, await shop.effects()) == (Status.RETRYING, 0)
    assert "the card was refused" in (job.last_error or "")
    store.pass_time(HOUR)
    await shop.drain()
    assert ((await shop.record(handle)).status, await shop.effects(), runs) == (Status.DONE, 1, [1, 2])


@pytest.mark.spec("BLOCK-01")
async def test_a_signal_inside_leaves_nothing(store: Store) -> None:
    """A handler that snoozes inside its block runs again later, and nothing of it is stored."""
    shop = await _shop(store)

    async def handler() -> None:
        async with current().transaction():
            await shop.effect.enqueue()
            raise Snooze(60)

    job = await shop.run(handler)
    assert (job.status, job.attempts, await shop.effects()) == (Status.PENDING, 0, 0)


@pytest.mark.core
@pytest.mark.spec("BLOCK-02")
async def test_a_claim_that_was_lost_before_stores_nothing(store: Store) -> None:
    """Another worker took the job over while the handler worked: the block is refused before anything is written."""
    shop = await _shop(store)
    blocks: list[asyncio.Task[None]] = []
    entered: list[str] = []

    async def block() -> None:
        await store.enlist("thief")
        [taken] = await store.engine.jobs.reap("thief", 10, dead=[current().worker])
        assert taken.id == current().claim.id
        async with current().transaction():
            entered.append(current().worker)
            await shop.effect.enqueue()

    async def handler() -> None:
        blocks.append(asyncio.ensure_future(block()))
        await asyncio.shield(blocks[0])  # a worker that notices the loss first stops the handler, not the block

    handle = await shop.enqueue(handler)
    worker = await shop.drain()
    with pytest.raises(LostClaim):
        await blocks[0]
    assert entered == []
    job = await shop.record(handle)
    assert (job.status, job.worker, await shop.effects()) == (Status.RUNNING, "thief", 0)
    assert (worker.lost, sum(worker.counts.values())) == (1, 0)


@pytest.mark.core
@pytest.mark.spec("BLOCK-02")
@pytest.mark.parametrize("follows", [False, True], ids=["alone", "with a follow-up"])
async def test_a_claim_that_is_lost_inside_stores_nothing(store: Store, *, follows: bool) -> None:
    """Where others can take a job over while the block is open, its end is refused and its writes are gone."""
    shop = await _shop(store)
    needs(store, Feature.BESIDE_TRANSACTIONS)
    blocks: list[asyncio.Task[None]] = []

    async def block() -> None:
        async with current().transaction():
            await shop.effect.enqueue()
            if follows:
                current().follow_up(shop.effect.draft())
            await store.enlist("thief")
            assert await store.engine.jobs.reap("thief", 10, dead=[current().worker])

    async def handler() -> None:
        blocks.append(asyncio.ensure_future(block()))
        await asyncio.shield(blocks[0])  # a worker that notices the loss first stops the handler, not the block

    handle = await shop.enqueue(handler)
    worker = await shop.drain()
    with pytest.raises(LostClaim):
        await blocks[0]
    job = await shop.record(handle)
    assert (job.status, job.worker, await shop.effects()) == (Status.RUNNING, "thief", 0)
    assert sum(worker.counts.values()) == 0


@pytest.mark.core
@pytest.mark.spec("BLOCK-03")
async def test_success_beats_a_cancel_that_came_before_the_commit(store: Store) -> None:
    """A handler that was asked to stop, and whose block ends well all the same, has done its job."""
    shop = await _shop(store)

    async def handler() -> None:
        with suppress(asyncio.CancelledError):
            await store.engine.operator.alter(Selection(ids=(current().claim.id,)), Cancel(reason="not needed"))
            await asyncio.sleep(PATIENCE)
        async with current().transaction():
            await shop.effect.enqueue()

    job = await shop.run(handler)
    assert (job.status, await shop.effects()) == (Status.DONE, 1)


@pytest.mark.core
@pytest.mark.spec("BLOCK-03")
async def test_a_cancel_while_it_commits_does_not_stop_it(store: Store) -> None:
    """The Task is canceled when everything is written: the commit ends first, and the job is done."""
    shop = await _shop(store)
    committing = asyncio.Event()
    marks: list[str] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[Any]:
        async with store.engine.transaction() as tx:
            yield tx
            committing.set()
            await asyncio.sleep(0.05)
            marks.append("committed")

    async def handler() -> None:
        me = asyncio.current_task()
        assert me is not None
        asyncio.get_running_loop().create_task(_cancel_when(committing, me))
        async with current().transaction(slow):
            await shop.effect.enqueue()
        marks.append("never")

    job = await shop.run(handler)
    assert (job.status, await shop.effects(), marks) == (Status.DONE, 1, ["committed"])


async def _cancel_when(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    await event.wait()
    task.cancel()


@pytest.mark.core
@pytest.mark.spec("BLOCK-04")
@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("swallows", [True, False])
async def test_a_commit_in_doubt_is_never_a_success(store: Store, *, happened: bool, swallows: bool) -> None:
    """The answer to the commit is lost. Whatever the handler does next, the run fails: if the commit happened the
    store refuses that, else the job runs again. Its writes exist exactly when it is done.
    """
    shop = await _shop(store)

    @asynccontextmanager
    async def cut() -> AsyncIterator[Any]:
        async with store.engine.transaction() as tx:
            yield tx
            if not happened:
                raise ConnectionResetError("the answer was lost")
        raise ConnectionResetError("the answer was lost")

    async def handler() -> str:
        try:
            async with current().transaction(cut):
                await shop.effect.enqueue()
        except ConnectionResetError:
            if not swallows:
                raise
        return "fine"

    handle = await shop.enqueue(handler)
    worker = await shop.drain()
    job = await shop.record(handle)
    assert worker.counts[Status.DONE] == 0
    if happened:
        assert (job.status, await shop.effects(), worker.lost) == (Status.DONE, 1, 1)
    else:
        assert (job.status, await shop.effects(), worker.lost) == (Status.RETRYING, 0, 0)
        assert "the outcome of its commit is not known" in (job.last_error or "")


@pytest.mark.spec("BLOCK-04")
async def test_after_a_commit_in_doubt_another_block_is_refused(store: Store) -> None:
    """The first one may have been committed: its writes would be made twice."""
    shop = await _shop(store)

    @asynccontextmanager
    async def cut() -> AsyncIterator[Any]:
        async with store.engine.transaction() as tx:
            yield tx
        raise ConnectionResetError

    async def handler() -> None:
        try:
            async with current().transaction(cut):
                await shop.effect.enqueue()
        except ConnectionResetError:
            with pytest.raises(EngineRefused, match="not known"):
                current().transaction()

    await shop.run(handler)
    assert await shop.effects() == 1


@pytest.mark.core
@pytest.mark.spec("BLOCK-05")
async def test_a_second_block_after_a_commit_is_refused(store: Store) -> None:
    """So is one inside another; a block that was rolled back may be followed by another one."""
    shop = await _shop(store)
    refused: list[str] = []

    async def handler() -> None:
        try:
            async with current().transaction():
                current().follow_up(shop.effect.draft())
                await shop.effect.enqueue()
                raise ValueError
        except ValueError:
            pass
        async with current().transaction():
            current().follow_up(shop.effect.draft())
            await shop.effect.enqueue()
            try:
                current().transaction()
            except EngineRefused as error:
                refused.append(str(error))
        try:
            current().transaction()
        except EngineRefused as error:
            refused.append(str(error))

    job = await shop.run(handler)
    assert (job.status, await shop.effects()) == (Status.DONE, 2)
    assert "open transaction already" in refused[0]
    assert "is done" in refused[1]


@pytest.mark.core
@pytest.mark.spec("BLOCK-06")
async def test_a_block_stores_the_result_and_the_follow_ups(store: Store) -> None:
    """The result is what the block was given; what the handler returns afterwards is not stored."""
    shop = await _shop(store)

    async def handler() -> dict[str, int]:
        async with current().transaction() as tx:
            tx.result({"charged": 12})
            current().follow_up(shop.effect.draft())
            await shop.jobs.enqueue_many([shop.effect.draft(), shop.effect.draft()])
        return {"charged": 13}

    job = await shop.run(handler)
    assert (job.status, job.result, await shop.effects()) == (Status.DONE, b'{"charged":12}', 3)


@pytest.mark.spec("BLOCK-06")
async def test_follow_ups_of_a_block_that_was_rolled_back_are_not_stored(store: Store) -> None:
    """The handler may go on and open another block: only what belongs to that one is stored."""
    shop = await _shop(store)

    async def handler() -> None:
        with suppress(ValueError):
            async with current().transaction():
                current().follow_up(shop.effect.draft())
                raise ValueError("not so")
        async with current().transaction():
            current().follow_up(shop.effect.draft())

    job = await shop.run(handler)
    assert (job.status, await shop.effects()) == (Status.DONE, 1)


@pytest.mark.spec("BLOCK-06")
async def test_what_the_handler_raises_after_its_block_changes_nothing(store: Store) -> None:
    """The job stays done, and does not run again."""
    shop = await _shop(store)

    async def handler() -> None:
        async with current().transaction():
            await shop.effect.enqueue()
        raise ValueError("too late")

    handle = await shop.enqueue(handler)
    worker = await shop.drain()
    job = await shop.record(handle)
    assert (job.status, job.last_error, job.attempts) == (Status.DONE, None, 1)
    assert (worker.counts[Status.DONE], sum(worker.counts.values())) == (1, 1)


@pytest.mark.core
@pytest.mark.spec("BLOCK-07")
async def test_another_task_does_not_join(store: Store) -> None:
    """A Task that was started inside is refused by name while the block is open; it is free afterwards."""
    shop = await _shop(store)
    told: list[str] = []

    async def other() -> None:
        try:
            await shop.effect.enqueue()
        except EngineRefused as error:
            told.append(str(error))

    async def late(over: asyncio.Event) -> None:
        await over.wait()
        await shop.effect.enqueue()

    async def handler() -> None:
        over = asyncio.Event()
        async with current().transaction():
            await asyncio.create_task(other())
            after = asyncio.create_task(late(over))
        over.set()
        await after

    job = await shop.run(handler)
    assert (job.status, await shop.effects()) == (Status.DONE, 1)
    assert "another Task or thread" in told[0]


@pytest.mark.core
@pytest.mark.spec("BLOCK-08")
async def test_a_plain_handler_uses_with(store: Store) -> None:
    """In its thread, with the engine's own transaction: all or nothing there too."""
    shop = await _shop(store)
    runs: list[int] = []

    def handler() -> None:
        runs.append(1)
        with current().transaction() as tx:
            shop.effect.enqueue_sync()
            tx.result(len(runs))
            if len(runs) == 1:
                raise ValueError

    handle = await shop.enqueue(handler)
    await shop.drain()
    assert ((await shop.record(handle)).status, await shop.effects()) == (Status.RETRYING, 0)
    store.pass_time(HOUR)
    await shop.drain()
    job = await shop.record(handle)
    assert (job.status, job.result, await shop.effects()) == (Status.DONE, b"2", 1)


@pytest.mark.spec("BLOCK-09")
async def test_a_factory_that_does_not_commit_is_refused_by_name(store: Store) -> None:
    """The job fails with the factory's name; nothing was stored."""
    shop = await _shop(store)

    class _Undone(Exception):
        pass

    @asynccontextmanager
    async def forgetful() -> AsyncIterator[Any]:
        try:
            async with store.engine.transaction() as tx:
                yield tx
                raise _Undone
        except _Undone:
            return

    async def handler() -> None:
        async with current().transaction(forgetful):
            await shop.effect.enqueue()

    job = await shop.run(handler)
    assert (job.status, await shop.effects()) == (Status.RETRYING, 0)
    assert "forgetful" in (job.last_error or "")


@pytest.mark.spec("BLOCK-09")
async def test_the_app_may_have_a_factory_of_its_own(store: Store) -> None:
    """`Stoker(transaction=...)` is used where a block names none; what is no context manager is refused by name."""
    shop = await _shop(store)
    used: list[int] = []

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with store.engine.transaction() as tx:
            used.append(1)
            yield tx

    async def handler() -> None:
        with pytest.raises(EngineRefused, match=r"builtins\.int"):
            async with current().transaction(lambda: 3):  # type: ignore[arg-type,return-value]
                pass
        async with current().transaction():
            await shop.effect.enqueue()

    shop.jobs.transaction = begin
    job = await shop.run(handler)
    assert (job.status, await shop.effects(), used) == (Status.DONE, 1, [1])


@pytest.mark.spec("BLOCK-10")
async def test_a_member_of_a_group_counts_when_its_block_commits(store: Store) -> None:
    """The group closes, and what follows it is stored."""
    shop = await _shop(store)

    async def handler() -> None:
        async with current().transaction():
            await shop.effect.enqueue()

    task: Task[..., None] = shop.jobs.task(name="charge")(handler)
    group = await shop.jobs.group([task.draft(), task.draft()], then=shop.effect.draft())
    await shop.drain()
    await store.engine.groups.sweep()
    assert (await group.progress()).done == 2
    assert await shop.effects() == 3


@pytest.mark.spec("BLOCK-10")
async def test_a_block_obeys_keys_and_retention(store: Store) -> None:
    """A job with a unique key gives it free; one that is not kept is gone with the commit."""
    shop = await _shop(store)

    async def handler() -> None:
        async with current().transaction():
            await shop.effect.enqueue()

    handle = await shop.enqueue(handler, unique="order-1")
    await shop.drain()
    again = await shop.jobs.tasks["charge"].enqueue()
    assert again.id != handle.id
    await shop.drain()
    gone = await shop.jobs.tasks["charge"].using(keep=0).enqueue()
    await shop.drain()
    assert await store.gone(ids.parse(gone.id))
    assert [(await shop.record(one)).status for one in (handle, again)] == [Status.DONE, Status.DONE]
    assert await shop.effects() == 3


@pytest.mark.spec("BLOCK-10")
async def test_a_job_under_a_limit_gives_its_place_free_with_the_commit(store: Store) -> None:
    """The next job of its key runs; nothing is counted as running afterwards."""
    shop = await _shop(store)

    async def handler() -> None:
        async with current().transaction():
            await shop.effect.enqueue()

    await shop.enqueue(handler, limit=Limit(1))
    await shop.jobs.tasks["charge"].enqueue()
    await shop.drain()
    assert await shop.effects() == 2
    assert [one.running for one in await store.engine.control.subqueues("default")] in ([], [0])


@pytest.mark.spec("BLOCK-19")
@pytest.mark.parametrize("plain", [False, True])
async def test_what_was_noted_before_the_commit_is_kept(store: Store, *, plain: bool) -> None:
    """Before the block and in it; what a block that was rolled back noted is kept as well."""
    shop = await _shop(store)

    async def handler() -> None:
        current().progress(0.25)
        current().log("before")
        with suppress(ZeroDivisionError):
            async with current().transaction():
                current().log("in vain")
                raise ZeroDivisionError
        async with current().transaction():
            current().progress(0.75)
            current().log("inside")

    def in_thread() -> None:
        current().progress(0.25)
        current().log("before")
        with suppress(ZeroDivisionError), current().transaction():
            current().log("in vain")
            raise ZeroDivisionError
        with current().transaction():
            current().progress(0.75)
            current().log("inside")

    job = await shop.run(in_thread if plain else handler)
    assert (job.status, job.progress, job.log) == (Status.DONE, 0.75, ("before", "in vain", "inside"))


@pytest.mark.spec("BLOCK-20")
@pytest.mark.parametrize("plain", [False, True])
async def test_the_commit_wakes_who_waits_for_the_result(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, plain: bool
) -> None:
    """In this engine and in another one, while the handler goes on; no waiter finds it by a query."""
    monkeypatch.setattr(job_end_waiters, "FIRST_PAUSE", 2 * PATIENCE)
    known = heard_of_waiter(monkeypatch)
    shop = await _shop(store)
    heard, leave = asyncio.Event(), threading.Event()

    async def handler() -> None:
        await asyncio.wait_for(heard.wait(), PATIENCE)
        async with current().transaction() as tx:
            tx.result(7)
        await asyncio.to_thread(leave.wait, PATIENCE)

    def in_thread() -> None:
        asyncio.run_coroutine_threadsafe(heard.wait(), loop).result(PATIENCE)
        with current().transaction() as tx:
            tx.result(7)
        leave.wait(PATIENCE)

    loop = asyncio.get_running_loop()
    handle = await shop.enqueue(in_thread if plain else handler)
    job = ids.parse(handle.id)
    twin = store.engine.for_loop()
    await twin.open()
    try:
        async with Worker(shop.jobs, {"default": 1}, poll=0.05):
            waiters = [asyncio.create_task(twin.jobs.ended(job, PATIENCE))]
            await asyncio.wait_for(known.wait(), PATIENCE)
            waiters.append(asyncio.create_task(store.engine.jobs.ended(job, PATIENCE)))
            heard.set()
            assert await asyncio.wait_for(asyncio.gather(*waiters), PATIENCE) == [True] * 2
            assert (await shop.record(handle)).result == b"7"
            leave.set()
    finally:
        leave.set()
        await twin.close()


@pytest.mark.spec("BLOCK-11")
async def test_many_blocks_at_once(store: Store) -> None:
    """Each of many jobs has its effect once."""
    shop = await _shop(store)

    async def handler() -> None:
        async with current().transaction():
            await shop.effect.enqueue()
            await asyncio.sleep(0)

    task: Task[..., None] = shop.jobs.task(name="charge")(handler)
    await shop.jobs.enqueue_many([task.draft() for _ in range(40)])
    worker = await shop.drain()
    assert (worker.counts[Status.DONE], await shop.effects()) == (40, 40)


@pytest.mark.core
@pytest.mark.spec("BLOCK-12")
async def test_a_store_without_transactions_refuses_blocks_by_name(store: Store) -> None:
    """The job fails with the reason; nothing of its block ran."""
    if Feature.OUTBOX in store.engine.features:
        pytest.skip(f"{store.engine.name} has transactions")
    shop = Shop(store)
    inside: list[int] = []

    async def handler() -> None:
        async with current().transaction():
            inside.append(1)

    job = await shop.run(handler)
    assert (job.status, inside) == (Status.RETRYING, [])
    assert f"{store.engine.name} cannot join a transaction" in (job.last_error or "")

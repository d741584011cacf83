"""Jobs that run in chunks: one call of a handler for many jobs, each settled by itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from stoker import Chunk, JobCanceled, JobFailed, Reject, Retry, Snooze, Stoker, Throttle, current
from stoker.context import Context
from stoker.engines.base import CONTROL, Engine
from stoker.handle import JobHandle
from stoker.model.control import Tuning
from stoker.model.errors import StokerError
from stoker.model.events import Transition
from stoker.model.job import Claim, Status
from stoker.model.retry import Fixed
from stoker.testing.clock import VirtualClock
from stoker.worker import Worker, maintenance, running, state
from stoker.worker.chunks import ChunkLane, ChunkQueue
from tests.harness.apps import PATIENCE, becomes, drain, until, working

NEVER = 3600.0
"""A wait for more jobs that no test lives to see: a chunk of these tests starts when it is full."""


class Gathered:
    """A chunk task whose calls are written down. `answer` makes what it returns; it waits while `gate` is closed."""

    def __init__(self, jobs: Stoker, size: int, within: float = NEVER, **options: Any) -> None:
        self.calls: list[list[int]] = []
        self.contexts: list[Context] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Callable[[list[int]], Any] = lambda ns: None
        self.now = self.most = 0
        self.task = jobs.task(name="index", chunk=Chunk(size, within=within), **options)(self.index)

    async def index(self, ns: list[int]) -> Any:
        self.calls.append(ns)
        self.contexts.append(current())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
            return self.answer(ns)
        finally:
            self.now -= 1

    async def put(self, *ns: int, **options: Any) -> list[JobHandle[Any]]:
        task = self.task.using(**options)
        return [await task.enqueue(n) for n in ns]


SHARED = {
    *(
        "about",
        "began",
        "arguments",
        "cancel",
        "canceled",
        "claim",
        "durable",
        "elapsed",
        "executed",
        "followups",
        "host",
        "items",
        "main",
    ),
    *("kind", "limit", "log", "logger", "noted", "progress", "queue", "remaining", "result_warning", "runtime"),
    *("awaited", "drain", "drain_sync", "spend", "spend_sync", "started_at", "state", "stopping", "worker"),
    *("commit", "pass_on", "reserve", "ring", "trace", "trace_id"),
}
"""What a call for many jobs has as well: attributes of the call, and those that Stoker itself reads."""


async def statuses(handles: list[JobHandle[Any]]) -> list[Status]:
    return [(await handle.refresh()).status for handle in handles]


# --- gathering --------------------------------------------------------------------------------------------------


@pytest.mark.spec("CHUNK-01", "CHUNK-02", "CHUNK-03")
async def test_jobs_enqueued_one_by_one_are_run_by_one_call(jobs: Stoker) -> None:
    work = Gathered(jobs, 5)
    async with working(jobs) as worker:
        handles = await work.put(1, 2, 3, 4)
        await until(lambda: len(worker.claims.tokens) == 4)
        assert work.calls == [], "the chunk is not full, and its first job came just now"
        handles += await work.put(5)
        for handle in handles:
            assert await handle.result(PATIENCE) is None
    assert work.calls == [[1, 2, 3, 4, 5]]
    assert worker.counts[Status.DONE] == 5


@pytest.mark.spec("CHUNK-02")
async def test_a_chunk_that_does_not_fill_starts_after_a_while(jobs: Stoker) -> None:
    work = Gathered(jobs, 100, within=0.02)
    async with working(jobs):
        for ns in ([1, 2], [3]):
            for handle in await work.put(*ns):
                await handle.result(PATIENCE)
    assert [n for call in work.calls for n in call] == [1, 2, 3]
    assert len(work.calls) >= 2


@pytest.mark.spec("CHUNK-08")
async def test_a_worker_asks_for_slots_times_size_and_one_slot_runs_one_chunk(jobs: Stoker) -> None:
    work = Gathered(jobs, 4)
    work.gate.clear()
    handles = await work.put(*range(20))
    async with working(jobs, {"index": 2}) as worker:
        await until(lambda: work.now == 2)
        assert [len(call) for call in work.calls] == [4, 4]
        assert worker.runs == 8
        assert len(worker.claims.tokens) == 8, "nothing is claimed that no slot will run soon"
        work.gate.set()
        for handle in handles:
            await handle.result(PATIENCE)
    assert work.most == 2
    assert sorted(n for call in work.calls for n in call) == list(range(20))
    assert all(len(call) == 4 for call in work.calls)


@pytest.mark.spec("CHUNK-08")
async def test_a_limited_queue_runs_as_many_chunks_as_it_has_slots(jobs: Stoker) -> None:
    work = Gathered(jobs, 3)
    work.gate.clear()
    await (await jobs.engine()).control.tune("index", Tuning(workers=2))
    handles = await work.put(*range(12))
    async with working(jobs, {"index": 4}) as worker:
        await until(lambda: work.now == 2)
        assert len(worker.claims.tokens) == 6
        work.gate.set()
        for handle in handles:
            await handle.result(PATIENCE)
    assert work.most == 2


@pytest.mark.spec("CHUNK-23")
@pytest.mark.parametrize("order", ["strict", "weighted"])
async def test_a_queue_with_chunks_has_its_own_slots_in_any_order(jobs: Stoker, order: Any) -> None:
    work = Gathered(jobs, 2)

    @jobs.task
    async def plain() -> str:
        return "ran"

    async with working(jobs, {"default": 2, "mail": 1, "index": 2}, order=order) as worker:
        assert sorted((lane.queues, lane.slots) for lane in worker.lanes) == [(("default", "mail"), 3), (("index",), 2)]
        [first, _] = await work.put(1, 2)
        assert await first.result(PATIENCE) is None
        assert await (await plain.enqueue()).result(PATIENCE) == "ran"


@pytest.mark.spec("CHUNK-09")
async def test_a_job_of_another_kind_runs_alone_and_at_once(jobs: Stoker) -> None:
    work = Gathered(jobs, 3)

    @jobs.task
    async def plain(n: int) -> int:
        return n + current().attempt

    handles = await work.put(1, 2)
    other = await plain.using(queue="index").enqueue(41)
    async with working(jobs, ["index"]):
        assert await other.result(PATIENCE) == 42
        assert work.calls == []
        handles += await work.put(3)
        for handle in handles:
            await handle.result(PATIENCE)
    assert work.calls == [[1, 2, 3]]


@pytest.mark.spec("CHUNK-10")
async def test_a_queue_with_a_chunk_task_serves_only_that_task(jobs: Stoker) -> None:
    Gathered(jobs, 3, queue="search")
    jobs.task(name="ping", queue="search")(lambda: None)
    worker = Worker(jobs)
    with pytest.raises(StokerError, match=r"queue 'search' has the task 'index'.* and the task 'ping'") as caught:
        await worker.start()
    assert "give one of them another queue=" in str(caught.value)
    assert worker.state == "new"


class Lanes:
    """A lane outside a worker, and claims for it."""

    def __init__(self, size: int, within: float = 10.0, *, one_tenant: bool = False) -> None:
        self.lane = ChunkLane("index", 1, ChunkQueue("index", Chunk(size, within=within), one_tenant))
        self.number = 0

    def claim(self, kind: str = "index", tenant: str | None = None, crashes: int = 0) -> Claim:
        self.number += 1
        job = self.number.to_bytes(16, "big")
        return Claim(job, kind, "index", b"", 1, 0, 5, "worker", 1, 0, 0, 0, tenant=tenant, crashes=crashes)

    def receive(self, now: float, *got: Claim) -> None:
        self.lane.received(list(got), len(got), 1, now)


@pytest.mark.spec("CHUNK-02")
def test_the_wait_counts_from_the_first_job_that_is_left() -> None:
    lanes = Lanes(3)
    a, b, c, d, e = (lanes.claim() for _ in range(5))
    lane = lanes.lane
    assert lane.ready_in(0) is None
    lanes.receive(100, a)
    lanes.receive(104, b, c, d)
    assert lane.ready_in(104) == 0
    assert lane.take(104) == [a, b, c]
    assert lane.ready_in(105) == 9, "d came at 104"
    lanes.receive(108, e)
    assert lane.ready_in(109) == 5
    lane.remove(d)
    assert lane.ready_in(109) == 9, "e came at 108"
    assert lane.ready_in(120) == 0
    assert lane.take(120) == [e]
    lanes.receive(130, a, b, c)
    assert lane.empty() == [a, b, c]
    assert lane.ready_in(130) is None


@pytest.mark.spec("CHUNK-20", "CHUNK-22")
def test_a_chunk_has_one_tenant_where_it_must_and_suspects_run_alone() -> None:
    lanes = Lanes(2, one_tenant=True)
    a, b, x = lanes.claim(tenant="a"), lanes.claim(tenant="b"), lanes.claim()
    suspect, a2 = lanes.claim(tenant="a", crashes=2), lanes.claim(tenant="a")
    lanes.receive(0, a, b, x, suspect)
    assert lanes.lane.take(0) == [suspect], "it waits for no other"
    assert lanes.lane.ready_in(1) == 9
    lanes.receive(1, a2)
    assert lanes.lane.take(1) == [a, a2]
    assert [lanes.lane.take(10), lanes.lane.take(10)] == [[b], [x]]
    mixed = Lanes(2)
    a, b = mixed.claim(tenant="a"), mixed.claim(tenant="b")
    mixed.receive(0, a, b)
    assert mixed.lane.take(0) == [a, b]


@pytest.mark.spec("CHUNK-20")
async def test_a_call_inside_a_tenants_scope_has_jobs_of_that_tenant(engine: Engine) -> None:
    inside: list[str] = []
    seen: list[tuple[list[int], list[str]]] = []

    @asynccontextmanager
    async def scope(tenant: str) -> AsyncIterator[None]:
        inside.append(tenant)
        yield
        inside.remove(tenant)

    app = Stoker(engine, tenant_scope=scope)

    @app.task(chunk=Chunk(2, within=NEVER))
    async def index(ns: list[int]) -> None:
        assert {item.tenant for item in current().items} == set(inside)
        seen.append((ns, list(inside)))

    async with app, working(app, {"index": 2}):
        handles = [await index.using(tenant="ab"[n % 2]).enqueue(n) for n in range(4)]
        for handle in handles:
            await handle.result(PATIENCE)
    assert sorted(seen) == [([0, 2], ["a"]), ([1, 3], ["b"])]


# --- what a call means for its jobs -----------------------------------------------------------------------------


@pytest.mark.spec("CHUNK-04")
async def test_each_value_and_exception_is_its_jobs_own(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    work = Gathered(jobs, 8, backoff=Fixed(60))
    ends: list[Any] = [
        "a result",
        None,
        ValueError("broken"),
        Snooze(60),
        Retry("not yet", delay=30),
        Reject("never"),
        object(),
        SystemExit(3),
    ]
    work.answer = lambda ns: ends
    handles = await work.put(*range(8))
    await drain(jobs)
    records = [await handle.refresh() for handle in handles]
    assert [(record.status, record.attempts) for record in records] == [
        (Status.DONE, 1),
        (Status.DONE, 1),
        (Status.RETRYING, 1),
        (Status.PENDING, 0),
        (Status.RETRYING, 1),
        (Status.DEAD, 1),
        (Status.DONE, 1),
        (Status.DEAD, 1),
    ]
    assert (await handles[0].result(0), await handles[1].result(0)) == ("a result", None)
    assert [records[n].last_error for n in (4, 5)] == ["not yet", "never"]
    assert str(records[2].last_error).startswith("ValueError: broken")
    assert str(records[7].last_error).startswith("panic: SystemExit")
    assert records[6].result is None
    assert "ValueError: broken" in caplog.text
    assert len(work.calls) == 1


@pytest.mark.spec("CHUNK-04")
async def test_a_job_that_is_throttled_cools_its_queue(jobs: Stoker) -> None:
    work = Gathered(jobs, 2)
    work.answer = lambda ns: [Throttle(60), "sent"]
    handles = await work.put(1, 2)
    await drain(jobs)
    assert await statuses(handles) == [Status.PENDING, Status.DONE]
    [queue] = [one for one in await (await jobs.engine()).control.queues() if one.name == "index"]
    assert queue.cooldown.until is not None


@pytest.mark.spec("CHUNK-05")
async def test_an_exception_fails_every_job_by_its_own_budget(jobs: Stoker) -> None:
    judged: list[str] = []

    def again(error: BaseException) -> bool:
        judged.append(str(error))
        return True

    work = Gathered(jobs, 3, backoff=Fixed(60), retry_if=again)
    work.answer = lambda ns: 1 // 0
    handles = await work.put(1, attempts=1) + await work.put(2, 3)
    await drain(jobs)
    assert await statuses(handles) == [Status.DEAD, Status.RETRYING, Status.RETRYING]
    for handle in handles:
        assert "ZeroDivisionError" in str((await handle.refresh()).last_error)
    assert judged == ["integer division or modulo by zero"], "one error is judged once"


@pytest.mark.spec("CHUNK-06")
@pytest.mark.parametrize("returned, words", [(["a"], "a list of 1"), ({"a": 1}, "a value of type dict")])
async def test_an_answer_of_another_length_fails_every_job_and_names_both(
    jobs: Stoker, returned: Any, words: str
) -> None:
    work = Gathered(jobs, 2, attempts=1)
    work.answer = lambda ns: returned
    handles = await work.put(1, 2)
    await drain(jobs)
    for handle in handles:
        with pytest.raises(JobFailed, match=rf"index\(\) returned {words} for a chunk of 2 jobs"):
            await handle.result(0)


@pytest.mark.spec("CHUNK-19")
async def test_jobs_that_expired_or_do_not_fit_leave_the_chunk(timed_jobs: Stoker, clock: VirtualClock) -> None:
    work = Gathered(timed_jobs, 4)
    late = await work.put(1, expires=5)
    clock.advance(10)
    odd = await timed_jobs.enqueue(msgspec.structs.replace(timed_jobs.draft("index", [2]), payload=b'{"ns":"two"}'))
    handles = await work.put(3, 4)
    async with working(timed_jobs):
        for handle in handles:
            await handle.result(PATIENCE)
        assert (await becomes(late[0], Status.CANCELED)).last_error == "expired: not started within 5 s"
        record = await becomes(odd, Status.PENDING)
    assert (record.attempts, work.calls) == (0, [[3, 4]])


# --- inside the handler -----------------------------------------------------------------------------------------


@pytest.mark.spec("CHUNK-07")
async def test_items_are_the_jobs_in_the_order_of_the_list(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TEND_EVERY", 0.01)
    seen: dict[int, Context] = {}
    later: list[int] = []
    tell = jobs.task(name="tell")(later.append)

    @jobs.task(chunk=Chunk(3, within=NEVER))
    async def index(ns: list[int]) -> list[int | BaseException]:
        run = current()
        assert len(run.items) == len(ns)
        for n, item in zip(ns, run.items, strict=True):
            seen[n] = item
            item.metadata["n"] = str(n)
            item.log(f"item {n}")
            item.follow_up(tell.draft(n))
            assert not item.canceled
        run.log("all of them")
        run.progress(0.5)
        return [n if n != 2 else Reject("two") for n in ns]

    handles = [await index.using(tenant=f"t{n}", attempts=2).enqueue(n) for n in (1, 2, 3)]
    async with working(jobs, {"index": 1, "default": 1}):
        for handle in handles:
            await becomes(handle, Status.DONE, Status.DEAD)
        await until(lambda: len(later) == 2)
    for n, handle in enumerate(handles, 1):
        assert (seen[n].id, seen[n].attempt, seen[n].tenant) == (handle.id, 1, f"t{n}")
        record = await handle.refresh()
        assert record.metadata["exec_n"] == str(n)
        assert (list(record.log), record.progress) == ([f"item {n}", "all of them"], 0.5)
    assert sorted(later) == [1, 3], "a follow-up is stored with its own job's success"


@pytest.mark.spec("CHUNK-07")
async def test_what_belongs_to_one_job_is_refused_on_the_call(jobs: Stoker) -> None:
    known = {name for name in dir(Context) if not name.startswith("_")}
    refused: list[str] = []
    shared: list[tuple[Any, ...]] = []

    @jobs.task(chunk=Chunk(2, within=NEVER), timeout=60)
    async def index(ns: list[int]) -> None:
        run = current()
        for name in sorted(known - SHARED):
            with pytest.raises(StokerError, match=rf"current\(\)\.{name} is one job's, .* 2 jobs\. Use item\.{name}"):
                getattr(run, name)
            refused.append(name)
        for name in known & SHARED:
            getattr(run, name)
        shared.append((run.kind, run.queue, run.worker, run.remaining is not None, run.canceled, bool(run.stopping)))

    handles = [await index.enqueue(n) for n in (1, 2)]
    worker = await drain(jobs)
    assert await statuses(handles) == [Status.DONE] * 2
    assert "tenant" in refused
    assert [one[:2] + one[3:] for one in shared] == [("index", "index", True, False, False)]
    assert worker.counts[Status.DONE] == 2


@pytest.mark.spec("CHUNK-07")
async def test_a_plain_run_has_one_item(jobs: Stoker) -> None:
    @jobs.task
    async def plain() -> bool:
        return current().items == (current(),) and not current().canceled

    handle = await plain.enqueue()
    await drain(jobs)
    assert await handle.result(0) is True


@pytest.mark.spec("CHUNK-16")
async def test_middleware_surrounds_a_call_and_listeners_see_each_job(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    around: list[Any] = []
    heard: list[Transition] = []

    async def middleware(call: Callable[[Context], Awaitable[Any]], run: Context) -> Any:
        answer = await call(run)
        around.append((len(run.items), answer))
        return [*answer[:-1], ValueError("changed")]

    app = Stoker(engine, middleware=[middleware], listeners=[heard.append])

    @app.task(chunk=Chunk(3, within=NEVER), attempts=1)
    async def index(ns: list[int]) -> list[int | BaseException]:
        current().logger.warning("inside")
        return [*ns]

    handles = [await index.enqueue(n) for n in (1, 2, 3)]
    await drain(app)
    assert around == [(3, [1, 2, 3])]
    assert await statuses(handles) == [Status.DONE, Status.DONE, Status.DEAD]
    assert [(one.job, one.after) for one in heard if one.before == "running"] == [
        (handles[0].id, "done"),
        (handles[1].id, "done"),
        (handles[2].id, "dead"),
    ]
    assert {one.job for one in heard if one.after == "running"} == {handle.id for handle in handles}
    [record] = [one for one in caplog.records if one.getMessage() == "inside"]
    assert (record.kind, record.queue, record.jobs) == ("index", "index", 3)  # type: ignore[attr-defined]
    assert f"job {handles[2].id} (index, queue index) failed" in caplog.text
    await app.close()


@pytest.mark.spec("CHUNK-17")
async def test_a_plain_function_runs_its_chunk_in_a_thread(jobs: Stoker) -> None:
    threads: list[str] = []

    @jobs.task(chunk=Chunk(2, within=NEVER), backoff=Fixed(60))
    def index(ns: list[int]) -> list[str | BaseException]:
        threads.append(threading.current_thread().name)
        return [str(len(current().items)), KeyError("second")]

    handles = [await index.enqueue(n) for n in (1, 2)]
    await drain(jobs)
    assert await handles[0].result(0) == "2"
    assert (await handles[1].refresh()).status is Status.RETRYING
    assert threads[0].startswith("stoker-handler-")


# --- interruptions ----------------------------------------------------------------------------------------------


@pytest.mark.spec("CHUNK-11")
async def test_the_timeout_covers_the_call_and_the_shortest_counts(jobs: Stoker) -> None:
    work = Gathered(jobs, 2, timeout=60, backoff=Fixed(60))
    work.gate.clear()
    handles = await work.put(1) + await work.put(2, timeout=0.02, attempts=1)
    await drain(jobs)
    assert await statuses(handles) == [Status.RETRYING, Status.DEAD]
    for handle in handles:
        assert (await handle.refresh()).last_error == "timeout: ran longer than 0.02 s"


@pytest.mark.spec("CHUNK-12")
async def test_cancel_of_one_job_marks_its_item_and_leaves_the_others_alone(jobs: Stoker) -> None:
    work = Gathered(jobs, 4)
    work.gate.clear()
    work.answer = lambda ns: ["done anyway", asyncio.CancelledError(), ValueError("half done"), "fine"]
    handles = await work.put(1, 2, 3, 4)
    async with working(jobs):
        await until(lambda: work.now)
        for handle in handles[:3]:
            assert await handle.cancel(reason="changed my mind")
        items = work.contexts[0].items
        await until(lambda: all(item.canceled for item in items[:3]))
        assert not items[3].canceled
        assert not work.contexts[0].cancel, "the call goes on"
        assert items[0].cancel.reason == "changed my mind"
        work.gate.set()
        assert await handles[0].result(PATIENCE) == "done anyway"
        for handle in handles[1:3]:
            with pytest.raises(JobCanceled):
                await handle.result(PATIENCE)
        assert await handles[3].result(PATIENCE) == "fine"
        assert (await handles[1].refresh()).last_error == "changed my mind"
        assert "half done" in str((await handles[2].refresh()).last_error)


@pytest.mark.spec("CHUNK-12")
async def test_a_call_whose_jobs_are_all_canceled_is_interrupted(jobs: Stoker) -> None:
    work = Gathered(jobs, 2)
    work.gate.clear()
    handles = await work.put(1, 2)
    async with working(jobs):
        await until(lambda: work.now)
        for n, handle in enumerate(handles):
            await handle.cancel(reason=f"reason {n}")
        for n, handle in enumerate(handles):
            assert (await becomes(handle, Status.CANCELED)).last_error == f"reason {n}"
        assert work.now == 0
        work.gate.set()
        more = await work.put(3, 4)
        for handle in more:
            await handle.result(PATIENCE)


@pytest.mark.spec("CHUNK-12")
async def test_a_job_that_is_canceled_while_its_chunk_gathers_never_runs(jobs: Stoker) -> None:
    work = Gathered(jobs, 2)
    async with working(jobs) as worker:
        [first] = await work.put(1)
        await until(lambda: worker.claims.tokens)
        await first.cancel(reason="not needed")
        assert (await becomes(first, Status.CANCELED)).last_error == "not needed"
        for handle in await work.put(2, 3):
            await handle.result(PATIENCE)
    assert work.calls == [[2, 3]]


@pytest.mark.spec("CHUNK-13")
async def test_a_lost_claim_drops_out_and_the_others_are_settled(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    work = Gathered(jobs, 2)
    work.gate.clear()
    handles = await work.put(1, 2)
    engine = await jobs.engine()
    async with working(jobs) as worker:
        await until(lambda: work.now)
        await handles[0].cancel(force=True)
        await engine.jobs.wake([CONTROL])
        await until(lambda: work.contexts[0].items[0].canceled)
        work.gate.set()
        assert await handles[1].result(PATIENCE) is None
        assert (await handles[0].refresh()).status is Status.CANCELED
        await until(lambda: worker.lost == 1)
    assert f"lease lost: the store refused the outcome (done) of job {handles[0].id} (index)" in caplog.text


@pytest.mark.spec("CHUNK-14")
async def test_claims_that_gathered_past_their_lease_are_handed_back(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = 0.0
    monkeypatch.setattr(state, "lease_clock", lambda: time.monotonic() + asleep)
    work = Gathered(timed_jobs, 3)
    handles = await work.put(1, 2)
    async with working(timed_jobs, lease=3600) as worker:  # no renewal comes by itself
        await until(lambda: len(worker.claims.tokens) == 2)
        asleep = 4000.0
        handles += await work.put(3)
        for handle in handles:
            assert (await becomes(handle, Status.PENDING)).attempts == 0
        assert work.calls == []
        assert not worker.ready
        await (await timed_jobs.engine()).jobs.wake([CONTROL])
        asleep = 0.0
        for handle in handles:
            await handle.result(PATIENCE)
    assert [sorted(call) for call in work.calls] == [[1, 2, 3]]


@pytest.mark.spec("CHUNK-15")
async def test_a_stop_hands_back_what_gathers_and_what_does_not_end_in_time(jobs: Stoker) -> None:
    work = Gathered(jobs, 2)
    work.gate.clear()
    handles = await work.put(1, 2, 3)
    async with working(jobs, {"index": 2}) as worker:
        await until(lambda: work.now == 1 and len(worker.claims.tokens) == 3)
    for handle in handles:
        record = await handle.refresh()
        assert (record.status, record.attempts) == (Status.PENDING, 0)
    assert work.calls == [[1, 2]]


@pytest.mark.spec("CHUNK-24")
async def test_the_jobs_of_a_handler_that_is_abandoned_are_settled(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "AGAIN_AFTER", 0.01)
    monkeypatch.setattr(running, "MOST_TRIES", 3)
    go = asyncio.Event()
    calls: list[list[int]] = []

    @jobs.task(chunk=Chunk(2, within=NEVER), timeout=0.02, attempts=1)
    async def index(ns: list[int]) -> None:
        calls.append(ns)
        while not go.is_set() and ns[0] == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    handles = [await index.enqueue(n) for n in (1, 2, 3, 4)]
    try:
        async with working(jobs, {"index": 1}) as worker:
            for handle in handles[:2]:
                assert (await becomes(handle, Status.DEAD)).last_error == "timeout: ran longer than 0.02 s"
            for handle in handles[2:]:
                await becomes(handle, Status.DONE)
            await until(lambda: not worker.claims.tokens)
    finally:
        go.set()
    assert calls == [[1, 2], [3, 4]]
    assert f"the handler of job {handles[0].id} and 1 more of its chunk (index) ignores" in caplog.text

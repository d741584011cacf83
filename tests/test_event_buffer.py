from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.event_buffer import EventBuffer, wall
from stoker.model.errors import EngineUnavailable
from stoker.model.events import Event, EventType, Window
from stoker.model.job import Claim, Draft, Receipt, Settlement, Status, Stored, Verdict
from stoker.model.query import Delete, Selection
from stoker.model.time import DAY, HOUR, SECOND
from tests.harness.apps import PATIENCE, drain

numbers = itertools.count(1)


def draft(payload: bytes = b"{}", **options: Any) -> Draft:
    return Draft(next(numbers).to_bytes(16), "work", payload, **options)


def insert(buffer: EventBuffer, *drafts: Draft, stored: Stored = Stored.INSERTED) -> None:
    buffer.inserted(drafts, [Receipt(one.job_id, stored) for one in drafts])


def claim(payload: bytes = b"{}") -> Claim:
    return Claim(next(numbers).to_bytes(16), "work", "default", payload, 1, 0, 5, "w", 1, 7, 7, 7)


class RecordingStore:
    """Records the chunks it is given and their ids; the next `failing` writes raise."""

    def __init__(self, failing: int = 0) -> None:
        self.sent: list[bytes | None] = []
        self.chunks: list[list[Event]] = []
        self.failing = failing
        self.gate: asyncio.Event | None = None

    async def record(self, events: Sequence[Event], points: Any = (), *, now: int, chunk: bytes | None = None) -> int:
        self.sent.append(chunk)
        if self.gate is not None:
            await self.gate.wait()
        if self.failing:
            self.failing -= 1
            raise EngineUnavailable("no answer.")
        self.chunks.append(list(events))
        return len(events)

    @property
    def jobs(self) -> list[int]:
        return [int.from_bytes(event.job) for chunk in self.chunks for event in chunk]


async def flush(buffer: EventBuffer, store: RecordingStore) -> int:
    return await buffer.flush(store)  # type: ignore[arg-type]


@pytest.mark.spec("BUFFER-01")
async def test_a_flush_writes_in_chunks_and_returns_the_count() -> None:
    buffer, store = EventBuffer(chunk=100), RecordingStore()
    drafts = [draft() for _ in range(250)]
    insert(buffer, *drafts)
    assert len(buffer) == 250
    assert await flush(buffer, store) == 250
    assert [len(chunk) for chunk in store.chunks] == [100, 100, 50]
    assert store.jobs == [int.from_bytes(one.job_id) for one in drafts]
    assert await flush(buffer, store) == 0
    assert len(buffer) == 0


@pytest.mark.spec("BUFFER-02")
async def test_only_accepted_writes_become_events() -> None:
    buffer, store = EventBuffer(), RecordingStore()
    insert(buffer, draft(), stored=Stored.EXISTING)
    one, two = claim(), claim()
    buffer.claimed([one, two])
    buffer.claimed([])
    done = [Settlement(c.id, "w", 1, Status.DONE) for c in (one, two)]
    buffer.settled([one, two], done, [Verdict.APPLIED, Verdict.LOST])
    await flush(buffer, store)
    found = [(event.type, event.job) for chunk in store.chunks for event in chunk]
    assert found == [(EventType.STARTED, one.id), (EventType.STARTED, two.id), (EventType.COMPLETED, one.id)]


@pytest.mark.spec("BUFFER-02")
async def test_follow_ups_of_a_settlement_that_applied_are_enqueued() -> None:
    buffer, store = EventBuffer(), RecordingStore()
    one, two, more = claim(), claim(), draft()
    ends = [Settlement(c.id, "w", 1, Status.DONE, followups=(more,)) for c in (one, two)]
    buffer.settled([one, two], ends, [Verdict.APPLIED, Verdict.LOST])
    await flush(buffer, store)
    assert [(event.type, event.job) for event in store.chunks[0]] == [
        (EventType.COMPLETED, one.id),
        (EventType.ENQUEUED, more.job_id),
    ]


@pytest.mark.spec("BUFFER-03")
async def test_events_beyond_the_cap_are_dropped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    buffer, store = EventBuffer(capacity=10), RecordingStore()
    insert(buffer, *[draft() for _ in range(8)])
    insert(buffer, *[draft() for _ in range(5)])
    insert(buffer, *[draft() for _ in range(2)])
    assert (len(buffer), buffer.dropped) == (10, 5)
    assert await flush(buffer, store) == 10
    assert "5 events missing from the timeline" in caplog.text
    assert buffer.take_dropped() == 0
    await flush(buffer, store)
    assert caplog.text.count("missing from the timeline") == 1


@pytest.mark.spec("BUFFER-04")
async def test_unwritten_events_go_back_within_the_cap() -> None:
    buffer, store = EventBuffer(capacity=250, chunk=100), RecordingStore()
    drafts = [draft() for _ in range(250)]
    insert(buffer, *drafts)
    store.gate = asyncio.Event()
    flushing = asyncio.ensure_future(flush(buffer, store))
    await asyncio.sleep(0)
    insert(buffer, *[draft() for _ in range(30)])
    store.failing = 1
    store.gate.set()
    with pytest.raises(EngineUnavailable):
        await flushing
    assert (len(buffer), buffer.dropped) == (250, 30)
    store.gate = None
    assert await flush(buffer, store) == 250
    assert store.jobs[:220] == [int.from_bytes(one.job_id) for one in drafts[:220]], "the oldest come first"


@pytest.mark.spec("BUFFER-04")
async def test_a_canceled_flush_loses_nothing() -> None:
    buffer, store = EventBuffer(chunk=10), RecordingStore()
    insert(buffer, *[draft() for _ in range(25)])
    store.gate = asyncio.Event()
    flushing = asyncio.ensure_future(flush(buffer, store))
    await asyncio.sleep(0)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    assert len(buffer) == 25


@pytest.mark.spec("BUFFER-09")
async def test_a_chunk_that_no_store_can_write_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(RecordingStore):
        async def record(self, events: Sequence[Event], *rest: Any, **more: Any) -> int:
            if any(int.from_bytes(event.job) == poison for event in events):
                raise TypeError("Encoding objects of type SafeString is unsupported")
            return await super().record(events, *rest, **more)

    buffer, store = EventBuffer(chunk=2), Picky()
    drafts = [draft() for _ in range(6)]
    poison = int.from_bytes(drafts[2].job_id)
    insert(buffer, *drafts)
    assert await flush(buffer, store) == 4
    assert store.jobs == [int.from_bytes(drafts[place].job_id) for place in (0, 1, 4, 5)]
    assert len(buffer) == 0
    assert "2 events missing from the timeline" in caplog.text


@pytest.mark.spec("BUFFER-05")
async def test_buffered_events_of_a_deleted_job_are_dropped() -> None:
    """Also in a process that did not delete the job; a new job with the same id keeps its own events."""
    engine = MemoryEngine()
    await engine.open()
    buffer, elsewhere = EventBuffer(), EventBuffer()
    kept, gone = draft(), draft()
    insert(buffer, kept, gone)
    await engine.jobs.insert([kept, gone])
    elsewhere.add(Event(wall(), EventType.STARTED, gone.job_id, "default", "work", 1))
    assert (await engine.operator.alter(Selection((gone.job_id,)), Delete())).changed == 1
    assert [await buffer.flush(engine.timeline), await elsewhere.flush(engine.timeline)] == [2, 1]
    assert [event.job for event in await engine.timeline.events(Window(0, wall() + HOUR))] == [kept.job_id]
    elsewhere.add(Event(wall() + SECOND, EventType.ENQUEUED, gone.job_id, "default", "work"))
    await elsewhere.flush(engine.timeline)
    assert [event.job for event in await engine.timeline.events(Window(0, wall() + HOUR))] == [kept.job_id, gone.job_id]
    await engine.close()


@pytest.mark.spec("BUFFER-07")
@pytest.mark.parametrize("how", ["canceled", "answer lost"])
async def test_a_chunk_is_sent_again_under_its_id(how: str) -> None:
    """Only the store knows whether the first try was written; other chunks are not affected."""
    buffer, store = EventBuffer(chunk=10), RecordingStore()
    drafts = [draft() for _ in range(25)]
    insert(buffer, *drafts)
    store.gate = asyncio.Event()
    flushing = asyncio.ensure_future(flush(buffer, store))
    await asyncio.sleep(0)
    if how == "canceled":
        flushing.cancel()
    else:
        store.failing = 1
    store.gate.set()
    with pytest.raises((asyncio.CancelledError, EngineUnavailable)):
        await flushing
    insert(buffer, *[draft() for _ in range(3)])
    assert await flush(buffer, store) == 28
    first, again, *others = store.sent
    assert first == again is not None
    assert len({again, *others}) == 3
    assert [len(chunk) for chunk in store.chunks] == [10, 10, 8]
    assert store.jobs[:25] == [int.from_bytes(one.job_id) for one in drafts]


@pytest.mark.spec("BUFFER-07")
async def test_a_flush_that_is_canceled_writes_no_event_twice(tmp_path: Path) -> None:
    """On a real store, canceled at every step of the flush: as many events as jobs."""
    engine = SqliteEngine(tmp_path / "jobs.db", durability="process")
    await engine.open()
    buffer = EventBuffer(chunk=10)
    insert(buffer, *[draft() for _ in range(200)])
    turns = 0
    while len(buffer):
        flushing = asyncio.ensure_future(buffer.flush(engine.timeline))
        for _ in range(turns % 50):
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        turns += 1
    assert len(await engine.timeline.events(Window(0, wall() + HOUR))) == 200
    await engine.close()


@pytest.mark.spec("BUFFER-08")
async def test_a_batch_at_the_cap_keeps_what_fits() -> None:
    buffer, store = EventBuffer(capacity=10), RecordingStore()
    drafts = [draft() for _ in range(15)]
    insert(buffer, *drafts)
    assert (len(buffer), buffer.dropped) == (10, 5)
    insert(buffer, draft())
    assert (len(buffer), buffer.dropped) == (10, 6)
    assert await flush(buffer, store) == 10
    assert store.jobs == [int.from_bytes(one.job_id) for one in drafts[:10]]


@pytest.mark.spec("BUFFER-06")
async def test_payloads_and_results_are_not_kept_alive() -> None:
    buffer, store = EventBuffer(), RecordingStore()
    payloads = [b'"%d"' % n for n in range(3)]
    held = [sys.getrefcount(payload) for payload in payloads]
    insert(buffer, draft(payloads[0]))
    buffer.claimed([claim(payloads[1])])
    one = claim()
    buffer.settled([one], [Settlement(one.id, "w", 1, Status.DONE, result=payloads[2])], [Verdict.APPLIED])
    assert [sys.getrefcount(payload) for payload in payloads] == held
    assert await flush(buffer, store) == 3


# --- what an app tells ------------------------------------------------------------------------------------------


@pytest.mark.spec("EVENT-09")
async def test_jobs_of_a_users_transaction_are_on_the_timeline_once(tmp_path: Path) -> None:
    app = Stoker(SqliteEngine(tmp_path / "jobs.db"))

    @app.task
    async def work() -> None: ...

    async with app:
        engine = await app.engine()
        async with engine.transaction() as tx:
            job = await work.using(tx=tx).enqueue()
        with pytest.raises(ZeroDivisionError):
            async with engine.transaction() as tx:
                await work.using(tx=tx).enqueue()
                raise ZeroDivisionError
        await drain(app)
        events = await engine.timeline.events(Window(0, await engine.now() + DAY))
    assert [event.type for event in events] == [EventType.ENQUEUED, EventType.STARTED, EventType.COMPLETED]
    assert len({event.job for event in events}) == 1
    assert job.id == (await Admin(app).jobs.get(job.id)).job.id
    await app.close()


@pytest.mark.spec("EVENT-11")
async def test_an_operators_change_is_written_without_anything_else_happening() -> None:
    app = Stoker(MemoryEngine(), event_flush=0.01)
    app.declare("work")
    async with app:
        engine = await app.engine()
        job = await app.enqueue(app.draft("work", delay=60))

        async def told(count: int) -> list[Event]:
            async with asyncio.timeout(PATIENCE):
                while len(events := await engine.timeline.events(Window(0, await engine.now() + DAY))) < count:
                    await asyncio.sleep(0.005)
            return events

        await told(1)
        await Admin(app).jobs.cancel(job.id)
        assert [event.type for event in await told(2)] == [EventType.ENQUEUED, EventType.CANCELED]


@pytest.mark.spec("EVENT-10")
async def test_a_host_with_a_wrong_clock_tells_true_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock is an hour behind the store's: starts and ends are shifted alike, and runs take what they took."""
    buffer, store = EventBuffer(), MemoryEngine()
    await store.open()
    at = await store.now()
    monkeypatch.setattr("stoker.event_buffer.wall", lambda: at - HOUR)
    one = Claim(next(numbers).to_bytes(16), "work", "default", b"{}", 1, 0, 5, "w", 1, at, at - SECOND, at)
    buffer.claimed([one])
    monkeypatch.setattr("stoker.event_buffer.wall", lambda: at - HOUR + SECOND)
    buffer.settled([one], [Settlement(one.id, "w", 1, Status.DONE)], [Verdict.APPLIED])
    await buffer.flush(store.timeline)
    started, completed = await store.timeline.events(Window(0, at + DAY))
    assert (completed.at - started.at, completed.duration, completed.total) == (SECOND, SECOND, 2 * SECOND)
    assert abs(started.at + SECOND - await store.now()) < 30 * SECOND
    await store.close()

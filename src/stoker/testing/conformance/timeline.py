"""The timeline: events that are appended, points that are overwritten, and the timing of store calls."""

from __future__ import annotations

import msgspec
import pytest

from stoker.engines.base import Feature
from stoker.model.errors import Duplicate
from stoker.model.events import (
    MOST_SAMPLES,
    REMEMBERED,
    Event,
    EventCount,
    EventType,
    Latency,
    Point,
    Window,
    of_alter,
    of_claims,
    of_settlements,
    transitions_of_alter,
)
from stoker.model.ids import JobId
from stoker.model.job import Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, HandedBack, Snoozed, Throttled
from stoker.model.query import Cancel, Change, Clone, Delete, Discard, Requeue, Retention, Selection
from stoker.model.stats import merge
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, Instant
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store, needs
from stoker.worker.rollup import write_points


def _event(store: Store, at: Instant, kind: EventType = EventType.STARTED, queue: str = "q") -> Event:
    return Event(at, kind, store.mint(), queue, "work")


async def _times(store: Store, since: Instant, until: Instant) -> list[Instant]:
    return [event.at for event in await store.engine.timeline.events(Window(since, until))]


# --- events -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("TIMELINE-01")
async def test_timeline_of_a_fresh_store_is_empty(store: Store) -> None:
    """No events, no points, and jobs that come and go write none by themselves."""
    await store.add()
    await store.take()
    assert await store.engine.timeline.events(Window(0, store.now() + DAY)) == []
    assert await store.engine.timeline.points(0, store.now() + DAY, ["m"]) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-02")
async def test_timeline_keeps_events_as_recorded(store: Store) -> None:
    """Every type and every field comes back."""
    at = store.now()
    events = [
        Event(at + n, kind, store.mint(), f"q{n}", f"kind.{n}", attempt=n, duration=None if n % 2 else n * SECOND)
        for n, kind in enumerate(EventType)
    ]
    assert await store.engine.timeline.record(events, now=at) == len(events)
    assert await store.engine.timeline.events(Window(at, at + DAY)) == events


@pytest.mark.core
@pytest.mark.spec("TIMELINE-02")
async def test_timeline_of_nothing_is_a_no_op(store: Store) -> None:
    """Recording nothing returns 0 and stores nothing."""
    assert await store.engine.timeline.record([], now=store.now()) == 0
    assert await store.engine.timeline.record([], [], now=store.now()) == 0
    assert await store.engine.timeline.events(Window(0, store.now() + DAY)) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-03")
async def test_timeline_window_is_half_open(store: Store) -> None:
    """The beginning belongs to the window, the end does not."""
    at = store.now()
    await store.engine.timeline.record([_event(store, at + n * SECOND) for n in range(4)], now=at)
    assert await _times(store, at + SECOND, at + 3 * SECOND) == [at + SECOND, at + 2 * SECOND]
    assert await _times(store, at + SECOND, at + SECOND) == []
    assert await _times(store, at + SECOND, at + SECOND + 1) == [at + SECOND]
    assert await _times(store, at + 3 * SECOND, at) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-04")
async def test_timeline_is_told_oldest_first(store: Store) -> None:
    """Events come by their time, whatever order and call they were recorded in."""
    at = store.now()
    for batch in ((5, 1), (4,), (2, 3, 0)):
        await store.engine.timeline.record([_event(store, at + n) for n in batch], now=at)
    assert await _times(store, at, at + 9) == [at + n for n in range(6)]


@pytest.mark.spec("TIMELINE-04")
async def test_timeline_window_gives_no_more_than_its_limit(store: Store) -> None:
    """A limit cuts the newest off."""
    at = store.now()
    await store.engine.timeline.record([_event(store, at + n) for n in (3, 1, 2, 0)], now=at)
    found = await store.engine.timeline.events(Window(at, at + 9, limit=3))
    assert [event.at for event in found] == [at, at + 1, at + 2]


@pytest.mark.core
@pytest.mark.spec("TIMELINE-05")
async def test_timeline_narrows_to_a_queue_and_to_a_job(store: Store) -> None:
    """By queue, by job, by both."""
    at = store.now()
    a, b, c = _event(store, at, queue="x"), _event(store, at + 1, queue="y"), _event(store, at + 2, queue="x")
    again = Event(at + 3, EventType.COMPLETED, a.job, "y", "work", attempt=1)
    await store.engine.timeline.record([a, b, c, again], now=at)
    assert await store.engine.timeline.events(Window(at, at + 9, queue="x")) == [a, c]
    assert await store.engine.timeline.events(Window(at, at + 9, job=a.job)) == [a, again]
    assert await store.engine.timeline.events(Window(at, at + 9, queue="y", job=a.job)) == [again]
    assert await store.engine.timeline.events(Window(at, at + 9, queue="z")) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-06")
@pytest.mark.parametrize("off", [-HOUR, 0, HOUR], ids=["slow", "right", "fast"])
async def test_timeline_shifts_events_to_the_stores_clock(store: Store, off: int) -> None:
    """A recorder whose clock is wrong by an hour still records the right time."""
    theirs = store.now() + off
    await store.engine.timeline.record([_event(store, theirs - 5 * SECOND), _event(store, theirs)], now=theirs)
    assert await _times(store, 0, store.now() + DAY) == [store.now() - 5 * SECOND, store.now()]


@pytest.mark.core
@pytest.mark.spec("TIMELINE-07")
async def test_timeline_takes_events_of_jobs_that_are_gone(store: Store) -> None:
    """The timeline does not ask whether the job exists."""
    at = store.now()
    event = _event(store, at)
    assert await store.gone(event.job)
    assert await store.engine.timeline.record([event], now=at) == 1
    assert await store.engine.timeline.events(Window(at, at + 1)) == [event]


@pytest.mark.spec("TIMELINE-07")
async def test_timeline_takes_many_events_at_once(store: Store) -> None:
    """Thousands of events in one call are all written and all read."""
    at = store.now()
    events = [_event(store, at + n) for n in range(2_500)]
    assert await store.engine.timeline.record(events, now=at) == 2_500
    assert await store.engine.timeline.events(Window(at, at + DAY)) == events


@pytest.mark.spec("TIMELINE-07")
async def test_timeline_keeps_the_same_event_twice(store: Store) -> None:
    """Events are appended, never merged."""
    at = store.now()
    event = _event(store, at)
    await store.engine.timeline.record([event, event], now=at)
    await store.engine.timeline.record([event], now=at)
    assert await store.engine.timeline.events(Window(at, at + 1)) == [event] * 3


# --- points -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("TIMELINE-08")
async def test_timeline_points_are_overwritten(store: Store) -> None:
    """The newest value of a queue, metric and bucket counts, within one call and across calls."""
    at = store.now()
    measured = Point("q", "m", at, 7, 2.5, 3, 4, 5, 6)
    await store.engine.timeline.record([], [Point("q", "m", at, 1, 9, 9, 9, 9, 9), measured], now=at)
    assert await store.engine.timeline.points(at, at, ["m"]) == [measured]
    await store.engine.timeline.record([], [Point("q", "m", at, 2)], now=at)
    assert await store.engine.timeline.points(at, at, ["m"]) == [Point("q", "m", at, 2)]
    assert await store.engine.timeline.record([], [Point("q", "m", at, 0)], now=at) == 0
    assert await store.engine.timeline.points(at, at, ["m"]) == [Point("q", "m", at, 0)]


@pytest.mark.core
@pytest.mark.spec("TIMELINE-09")
async def test_timeline_points_window_is_closed(store: Store) -> None:
    """Both ends belong to the window."""
    at = store.now()
    await store.engine.timeline.record([], [Point("q", "m", at + n * MINUTE, n) for n in range(5)], now=at)
    found = await store.engine.timeline.points(at + MINUTE, at + 3 * MINUTE, ["m"])
    assert [point.count for point in found] == [1, 2, 3]
    assert await store.engine.timeline.points(at + MINUTE + 1, at + 2 * MINUTE - 1, ["m"]) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-10")
async def test_timeline_points_are_filtered_by_metric_and_queue(store: Store) -> None:
    """Only the metrics named, none when none is named, and some queues if asked."""
    at = store.now()
    points = [Point(queue, metric, at, 1, 1.5) for queue in ("x", "y") for metric in ("done", "dead", "lag")]
    await store.engine.timeline.record([], points, now=at)
    assert await store.engine.timeline.points(at, at, []) == []
    assert await store.engine.timeline.points(at, at, ["unknown"]) == []
    found = await store.engine.timeline.points(at, at, ["done", "lag"], frozenset({"y"}))
    assert found == [Point("y", "done", at, 1, 1.5), Point("y", "lag", at, 1, 1.5)]
    assert len(await store.engine.timeline.points(at, at, ["done"])) == 2
    assert await store.engine.timeline.points(at, at, ["done"], frozenset({"z"})) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-18")
async def test_timeline_points_of_a_few_queues_among_many(store: Store) -> None:
    """In a window of many buckets, also of the queue without a name and of names that begin alike."""
    at = store.now()
    names = ["", "a", "a b", "aa", "b", "ä"]
    points = [
        Point(queue, metric, at + n * MINUTE + n % 3, n + 1, 0.5 * (n % 2))
        for n in range(40)
        for queue in names[n % 2 :]
        for metric in ("done", "donee", "lag")
    ]
    await store.engine.timeline.record([], points, now=at)
    since, until = at + 3 * MINUTE, at + 35 * MINUTE
    for queues in (frozenset({""}), frozenset({"a", "ä", "nobody"}), frozenset({"", "aa"})):
        wanted = [
            one
            for one in points
            if one.queue in queues and one.metric in ("done", "lag") and since <= one.bucket <= until
        ]
        assert await store.engine.timeline.points(since, until, ["lag", "done"], queues) == wanted
        merged = await store.engine.timeline.points(since, until, ["lag", "done"], queues, width=7 * MINUTE)
        assert merged == merge(wanted, since, 7 * MINUTE)
    assert await store.engine.timeline.points(since, until, [], frozenset({"a"})) == []
    assert await store.engine.timeline.points(until, since, ["done"], frozenset({"a"})) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-10")
async def test_timeline_points_are_ordered(store: Store) -> None:
    """By bucket, then queue, then metric."""
    at = store.now()
    wanted = [
        Point(queue, metric, at + n * MINUTE, 1) for n in range(2) for queue in ("a", "b") for metric in ("m", "n")
    ]
    await store.engine.timeline.record([], wanted[::-1], now=at)
    assert await store.engine.timeline.points(at, at + DAY, ["n", "m"]) == wanted


@pytest.mark.spec("TIMELINE-10")
async def test_timeline_points_are_not_shifted(store: Store) -> None:
    """A bucket is a name, not a reading of a clock: only events are shifted."""
    at = store.now()
    await store.engine.timeline.record([_event(store, at - HOUR)], [Point("q", "m", at, 1)], now=at - HOUR)
    assert [point.bucket for point in await store.engine.timeline.points(0, at + DAY, ["m"])] == [at]
    assert await _times(store, 0, at + DAY) == [at]


# --- what points are made of --------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("TIMELINE-15")
async def test_events_are_counted_by_queue_and_type(store: Store) -> None:
    """In a half-open window, in order, without zeros; events of jobs that were deleted are counted."""
    at = store.now()
    job = await store.add()
    types = [EventType.STARTED, EventType.COMPLETED, EventType.COMPLETED, EventType.FAILED]
    events = [Event(at + n, type_, store.mint(), "q", "k") for n, type_ in enumerate(types)]
    events += [Event(at, EventType.STARTED, job, "b", "k"), Event(at, EventType.FAILED, store.mint(), "a", "k")]
    await store.engine.timeline.record(events, now=at)
    await store.engine.operator.alter(Selection((job,)), Delete())
    assert await store.engine.timeline.event_counts(at, at + 3) == [
        EventCount("a", EventType.FAILED, 1, "k"),
        EventCount("b", EventType.STARTED, 1, "k"),
        EventCount("q", EventType.COMPLETED, 2, "k"),
        EventCount("q", EventType.STARTED, 1, "k"),
    ]
    assert await store.engine.timeline.event_counts(at + 4, at + DAY) == []
    assert await store.engine.timeline.event_counts(at + 1, at) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-15")
async def test_failures_are_counted_by_kind_error_and_release(store: Store) -> None:
    """With the newest of their jobs; the events come back with their errors and releases."""
    at = store.now()
    older, newer, other = sorted(store.mint() for _ in range(3))
    line, framed = "KeyError: …", "KeyError: …\napp/mail.py in send"
    events = [
        Event(at, EventType.FAILED, newer, "q", "k", 1, 5, error=line),
        Event(at + 1, EventType.FAILED, older, "q", "k", 1, 5, error=line),
        Event(at + 2, EventType.RETRIED, other, "q", "k", 1, 5, error=line),
        Event(at + 3, EventType.FAILED, other, "q", "k", 2, 5, error=framed),
        Event(at + 4, EventType.FAILED, other, "q", "other", 2, 5, error=line),
        Event(at + 5, EventType.RETRIED, older, "q", "k", 1, 5, error=line, release="r42"),
    ]
    await store.engine.timeline.record(events[:2], now=at)
    await store.engine.timeline.record(events[2:], now=at)
    assert await store.engine.timeline.events(Window(at, at + 9)) == events
    assert await store.engine.timeline.event_counts(at, at + 9) == [
        EventCount("q", EventType.FAILED, 2, "k", line, newer),
        EventCount("q", EventType.FAILED, 1, "k", framed, other),
        EventCount("q", EventType.FAILED, 1, "other", line, other),
        EventCount("q", EventType.RETRIED, 1, "k", line, other),
        EventCount("q", EventType.RETRIED, 1, "k", line, older, "r42"),
    ]


@pytest.mark.core
@pytest.mark.spec("TIMELINE-16")
async def test_latencies_are_those_of_completed_jobs(store: Store) -> None:
    """Latest first, up to a limit; what is not known, and what was not completed, is left out."""
    at, job = store.now(), store.mint()
    events = [
        Event(at + 1, EventType.COMPLETED, job, "a", "k", 1, 10, 100),
        Event(at + 2, EventType.COMPLETED, store.mint(), "b", "k", 1, 0, 0),
        Event(at + 3, EventType.COMPLETED, store.mint(), "a", "k", 2, 30, 2**41, 700),
        Event(at + 4, EventType.COMPLETED, store.mint(), "a", "k", 1, 40),
        Event(at + 4, EventType.RETRIED, store.mint(), "a", "k", 1, 40),
        Event(at + 5, EventType.COMPLETED, store.mint(), "a", "k", 1, 50, 500),
    ]
    await store.engine.timeline.record(events, now=at)
    assert await store.engine.timeline.events(Window(at, at + 9)) == events
    first, second = Latency("a", at + 1, 10, 100, "k"), Latency("b", at + 2, 0, 0, "k")
    third = Latency("a", at + 3, 30, 2**41, "k", 700)
    assert await store.engine.timeline.latencies(Window(at + 1, at + 5)) == [third, second, first]
    assert await store.engine.timeline.latencies(Window(at, at + 5, queue="a")) == [third, first]
    assert await store.engine.timeline.latencies(Window(at, at + 5, job=job)) == [first]
    assert await store.engine.timeline.latencies(Window(at, at + 5, limit=1)) == [third]
    assert await store.engine.timeline.latencies(Window(at, at + 5, limit=0)) == []
    assert await store.engine.timeline.latencies(Window(at + 5, at)) == []


# --- timings ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("TIMELINE-11")
async def test_timings_are_drained(store: Store) -> None:
    """Reads and writes are timed apart, and each sample is handed out once."""
    store.engine.call_times.drain()
    job = await store.add()
    wrote = store.engine.call_times.drain()
    assert (len(wrote.writes) >= 1, wrote.reads, wrote.dropped) == (True, [], 0)
    await store.engine.operator.get([job])
    read = store.engine.call_times.drain()
    assert (len(read.reads) >= 1, read.writes) == (True, [])
    assert all(isinstance(sample, int) and sample >= 0 for sample in wrote.writes + read.reads)
    empty = store.engine.call_times.drain()
    assert (empty.reads, empty.writes, empty.dropped) == ([], [], 0)


@pytest.mark.core
@pytest.mark.spec("TIMELINE-11")
async def test_timings_include_calls_that_raise(store: Store) -> None:
    """A write that was refused by the store is timed too."""
    await store.add(unique=Unique("k"))
    store.engine.call_times.drain()
    with pytest.raises(Duplicate):
        await store.add(unique=Unique("k", mode="raise"))
    assert len(store.engine.call_times.drain().writes) >= 1


@pytest.mark.spec("TIMELINE-11")
async def test_timings_belong_to_one_engine(store: Store) -> None:
    """The calls of one engine are not in another engine's samples."""
    twin = store.engine.for_loop()
    await twin.open()
    try:
        job = await store.add()
        store.engine.call_times.drain()
        await twin.operator.get([job])
        assert store.engine.call_times.drain().reads == []
        assert len(twin.call_times.drain().reads) >= 1
    finally:
        await twin.close()


@pytest.mark.spec("TIMELINE-12")
async def test_timings_are_bounded(store: Store) -> None:
    """Beyond the cap samples are counted as dropped, not kept; the next drain starts afresh."""
    store.engine.call_times.drain()
    for _ in range(MOST_SAMPLES + 5):
        await store.engine.operator.get(
            []
        )  # a call like any other, and the cheapest: ten thousand are a lot for a server
    timings = store.engine.call_times.drain()
    assert len(timings.reads) == MOST_SAMPLES
    assert timings.dropped >= 5
    assert store.engine.call_times.drain().dropped == 0


# --- chunks and deletions -----------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("TIMELINE-13")
async def test_a_chunk_of_events_is_written_once(store: Store) -> None:
    """Writing it again changes nothing, through whichever engine and whatever it holds now; others are not held up."""
    at, chunk, other = store.now(), b"c" * 16, b"d" * 16
    events = [_event(store, at + n) for n in range(3)]
    assert await store.engine.timeline.record(events, [Point("q", "m", at, 1)], now=at, chunk=chunk) == 3
    store.pass_time(REMEMBERED)
    twin = store.engine.for_loop()
    await twin.open()
    assert await twin.timeline.record([*events, _event(store, at)], [Point("q", "m", at, 2)], now=at, chunk=chunk) == 0
    await twin.close()
    assert await store.engine.timeline.record(events[:1], now=at, chunk=other) == 1
    await store.engine.timeline.record(events[:1], now=at)
    await store.engine.timeline.record(events[:1], now=at)
    assert len(await store.engine.timeline.events(Window(0, at + DAY))) == 6
    assert [point.count for point in await store.engine.timeline.points(0, at + DAY, ["m"])] == [1]


@pytest.mark.spec("TIMELINE-13")
async def test_chunks_are_forgotten_in_time(store: Store) -> None:
    """After a sweep and another chunk; nothing else is forgotten: events of a deleted job do not come back."""
    at = store.now()
    [job] = await store.insert(store.draft())
    deleted, event = Event(at, EventType.ENQUEUED, job, "q", "work"), _event(store, at)
    await store.engine.operator.alter(Selection((job,)), Delete())
    await store.engine.timeline.record([deleted, event], now=at, chunk=b"c" * 16)
    store.pass_time(REMEMBERED + SECOND)
    await store.engine.operator.expire(Retention())
    for chunk in (b"e", b"c"):
        assert await store.engine.timeline.record([event], now=store.now(), chunk=chunk * 16) == 1
    assert await store.engine.timeline.events(Window(0, store.now() + DAY)) == [event] * 3


@pytest.mark.core
@pytest.mark.spec("TIMELINE-14")
async def test_late_events_of_a_deleted_job_are_not_listed(store: Store) -> None:
    """What other processes still have in their buffers when a job is deleted: it counts, and is never listed.

    A new job under its id has events.
    """
    draft = store.draft()
    [job, other] = await store.insert(draft, store.draft())
    at = store.now()

    def event(job: JobId, at: Instant) -> Event:
        return Event(at, EventType.ENQUEUED, job, "default", "work")

    await store.engine.timeline.record([event(job, at)], now=at)
    store.pass_time(SECOND)
    assert (await store.engine.operator.alter(Selection((job,)), Delete())).changed == 1
    now = store.now()
    await store.engine.timeline.record([event(job, at), event(other, at), event(job, now)], now=now)
    assert [one.job for one in await store.engine.timeline.events(Window(0, now + DAY))] == [other]
    assert await store.engine.timeline.event_counts(0, now + DAY) == [
        EventCount("default", EventType.ENQUEUED, 4, "work")
    ]
    store.pass_time(SECOND)
    await store.insert(draft)
    assert await store.engine.timeline.record([event(job, store.now())], now=store.now()) == 1
    assert [one.at for one in await store.engine.timeline.events(Window(0, now + DAY, job=job))] == [store.now()]


@pytest.mark.core
@pytest.mark.spec("SETTLE-23")
async def test_a_follow_up_with_a_key_that_was_stored_is_there_and_wakes(store: Store) -> None:
    """One that met the holder of its key is not stored under its id, so a reader can distinguish them."""
    await store.add()
    claim = await store.take()
    await store.quiet(QUEUE)
    first, second = (store.draft("later", unique=Unique("k")) for _ in range(2))
    assert await store.finish(claim, Done(followups=(first, second))) is Verdict.APPLIED
    assert await store.engine.jobs.wait([QUEUE], ARRIVES) == {QUEUE}
    [there, absent] = await store.engine.operator.get([first.job_id, second.job_id])
    assert there is not None
    assert absent is None


# --- what is rolled up of removed jobs ----------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("TIMELINE-22", "STATS-10")
@pytest.mark.parametrize(("keep", "listed"), [(0, 200), (1, 30), (HOUR, 0)], ids=["unkept", "expired", "deleted"])
async def test_a_minute_keeps_its_counts_when_its_jobs_are_removed(store: Store, keep: int, listed: int) -> None:
    """Jobs go after the first roll-up, before it, and before their events are written: all are counted."""
    start = store.now() // MINUTE * MINUTE + MINUTE
    store.pass_time(start - store.now())
    jobs = await store.insert(*(store.draft(options=Options(keep=keep)) for _ in range(100)))
    await store.engine.timeline.record(
        [Event(start, EventType.ENQUEUED, job, "default", "work") for job in jobs], now=start
    )
    claims = await store.claim(n=100)
    assert await store.settle(*(conclude(claim, Done()) for claim in claims)) == [Verdict.APPLIED] * 100
    ends = [Event(start, EventType.COMPLETED, job, "default", "work", 1, SECOND, 2 * SECOND) for job in jobs]
    store.pass_time(MINUTE)

    async def rolled_up() -> list[int]:
        await write_points(store.engine)
        found = await store.engine.timeline.points(
            start, start, ["completed", "enqueued", "total"], frozenset({"default"})
        )
        return [point.count for point in found]

    await store.engine.timeline.record(ends[:40], now=store.now())
    assert await rolled_up() == [40, 100, 40]
    await store.engine.timeline.record(ends[40:70], now=store.now())
    await store.engine.operator.expire(Retention())
    await store.engine.operator.alter(Selection(tuple(jobs)), Delete())
    assert await store.counts() == {}
    assert await rolled_up() == [70, 100, 70], "40 went after they were rolled up, 30 before"
    await store.engine.timeline.record(ends[70:], now=store.now())
    assert await rolled_up() == [100, 100, 100], "told after they went"
    assert len(await store.engine.timeline.events(Window(start, start + MINUTE))) == listed


@pytest.mark.core
@pytest.mark.spec("TIMELINE-23")
async def test_the_store_tells_into_which_minutes_something_was_written_late(store: Store) -> None:
    """With or after something recent; what was written in time is not late, however often it is asked."""
    start = store.now() // MINUTE * MINUTE + MINUTE
    store.pass_time(start - store.now())
    assert await store.engine.timeline.late_minutes(start) == []

    async def record(*minutes: int) -> None:
        await store.engine.timeline.record(
            [_event(store, start + minute * MINUTE + 7) for minute in minutes], now=store.now()
        )

    async def late(minute: int) -> list[int]:
        return [(at - start) // MINUTE for at in await store.engine.timeline.late_minutes(start + minute * MINUTE)]

    for minute in range(4):
        await record(minute)
        store.pass_time(MINUTE)
    assert [await late(minute) for minute in range(6)] == [[]] * 6
    await record(1, -70, 4)
    assert [await late(minute) for minute in range(6)] == [[-70], [-70], [-70, 1], [-70, 1], [-70, 1], []]
    for minute in (2, -3, 2):
        await record(minute)
    assert await late(4) == [-70, -3, 1, 2]
    store.pass_time(MINUTE)
    await record(5)
    assert await late(5) == []


@pytest.mark.core
@pytest.mark.spec("STATS-11")
async def test_a_job_that_is_told_late_is_rolled_up_in_its_minute(store: Store) -> None:
    """An hour after its minute was rolled up, by the claim that tells of its enqueue."""
    start = store.now() // MINUTE * MINUTE + MINUTE
    store.pass_time(start - store.now())
    await store.engine.timeline.record([_event(store, start, EventType.ENQUEUED)], now=store.now())
    store.pass_time(MINUTE)

    async def enqueued() -> list[tuple[str, int]]:
        await write_points(store.engine)
        found = await store.engine.timeline.points(start, start, ["enqueued", "all_enqueued"])
        return [(point.queue, point.count) for point in found]

    assert await enqueued() == [("", 1), ("q", 1)]
    store.pass_time(HOUR)
    told = [_event(store, start + 5, EventType.ENQUEUED), _event(store, store.now(), EventType.STARTED)]
    await store.engine.timeline.record(told, now=store.now())
    store.pass_time(MINUTE)
    assert await enqueued() == [("", 2), ("q", 2)]


# --- what calls tell ----------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("EVENT-09")
async def test_the_first_claim_of_a_job_of_a_transaction_tells_of_its_enqueue(store: Store) -> None:
    """Once, with the time of the enqueue, however often it runs; of a rollback nothing is told."""
    needs(store, Feature.OWN_TRANSACTION)
    draft, other = (store.draft(options=Options(untold=True), attempts=3) for _ in range(2))
    at = store.now()
    async with store.engine.transaction() as tx:
        await store.engine.jobs.insert([draft], tx=tx)
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            await store.engine.jobs.insert([other], tx=tx)
            raise ZeroDivisionError
    store.pass_time(SECOND)
    claim = await store.take()
    assert [(event.at, event.type, event.job) for event in of_claims([claim])] == [
        (at, EventType.ENQUEUED, draft.job_id),
        (at + SECOND, EventType.STARTED, draft.job_id),
    ]
    for outcome in (Snoozed(0), Throttled(retry_after=0, queue=False), HandedBack(), Failed("broken", after=0)):
        await store.finish(claim, outcome)
        claim = await store.take()
        assert [event.type for event in of_claims([claim])] == [EventType.STARTED], outcome


@pytest.mark.core
@pytest.mark.spec("EVENT-07")
async def test_operators_changes_are_told_with_the_status_inside_the_write(store: Store) -> None:
    """Whatever an operator had seen before: the tally says what each job was."""
    waiting, scheduled, doomed, other = [await store.add(delay=delay, attempts=1) for delay in (0, HOUR, 0, 0)]
    running = await store.take()
    assert running.id == waiting
    dead = [await store.take() for _ in range(2)]
    for one in dead:
        await store.finish(one, Failed("broken"))
    store.pass_time(SECOND)

    async def told(change: Change, *jobs: JobId) -> list[tuple[JobId, Status | None, Status | None]]:
        tally = await store.engine.operator.alter(Selection(jobs), change)
        return [
            (one.id, change.before, change.after)
            for one, change in zip(tally.former, transitions_of_alter(change, tally), strict=False)
        ]

    forced = await store.engine.operator.alter(Selection((waiting, scheduled)), Cancel(force=True))
    events = of_alter(Cancel(force=True), forced, store.now())
    assert [(event.job, event.duration) for event in events] == [(waiting, SECOND), (scheduled, None)]
    assert await told(Requeue(), scheduled) == [(scheduled, Status.CANCELED, Status.PENDING)]
    assert await told(Discard(), doomed) == [(doomed, Status.DEAD, Status.DISCARDED)]
    assert await told(Clone((store.mint(),)), other) == [(other, Status.DEAD, Status.RETRIED)]
    assert await told(Delete(), scheduled, doomed) == [
        (scheduled, Status.PENDING, None),
        (doomed, Status.DISCARDED, None),
    ]
    late = [conclude(running, Done())]
    assert of_settlements([running], late, (await store.engine.jobs.settle(late)).verdicts, store.now()) == []


@pytest.mark.core
@pytest.mark.spec("TIMELINE-17")
async def test_timeline_points_are_merged_into_wider_buckets(store: Store) -> None:
    """From the beginning of the window on: counts add up, medians are weighted, the worst of the others counts."""
    at = store.now() // MINUTE * MINUTE
    points = [
        Point(queue, metric, at + n * MINUTE, n, n * 2.5, 100 + n, 200 - n, 300 + n, 400 * (n % 2))
        for n in range(8)
        for queue in ("a", "b")
        for metric in ("total", "failed", "other")
    ]
    await store.engine.timeline.record([], points, now=at)
    wanted = ["failed", "total"]
    for since, until, width in ((at, at + DAY, 3 * MINUTE), (at + MINUTE, at + 6 * MINUTE, DAY), (at - 1, at, MINUTE)):
        plain = await store.engine.timeline.points(since, until, wanted)
        merged = await store.engine.timeline.points(since, until, wanted, width=width)
        expected = merge(plain, since, width)
        assert [(one.bucket, one.queue, one.metric, one.count) for one in merged] == [
            (one.bucket, one.queue, one.metric, one.count) for one in expected
        ]
        for got, right in zip(merged, expected, strict=True):
            assert msgspec.structs.astuple(got)[4:] == pytest.approx(msgspec.structs.astuple(right)[4:])
    assert {
        one.queue for one in await store.engine.timeline.points(at, at + DAY, wanted, frozenset({"b"}), width=DAY)
    } == {"b"}
    assert await store.engine.timeline.points(at, at + DAY, [], width=DAY) == []

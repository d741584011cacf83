from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import CorruptRecord
from stoker.model.event_blocks import (
    NEVER,
    TICK,
    Block,
    EventCounter,
    EventList,
    Removal,
    StoredBlock,
    jobs_of,
    pack,
    unpack,
)
from stoker.model.events import Event, EventCount, EventType, Latency, Window
from stoker.model.time import MINUTE, SECOND

START = 1_000 * MINUTE
ALL = Window(0, 1 << 60)


def event(at: int, type_: EventType = EventType.STARTED, job: int = 1, queue: str = "q", **rest: Any) -> Event:
    return Event(at, type_, job.to_bytes(16), queue, "work", **rest)


def stored(block: Block, number: int = 1) -> StoredBlock:
    return StoredBlock(number, block.first, block.last, block.body)


def one(*events: Event, number: int = 1) -> StoredBlock:
    [block] = pack(events)
    return stored(block, number)


events = st.lists(
    st.builds(
        Event,
        st.integers(START, START + 3 * MINUTE),
        st.sampled_from(EventType),
        st.binary(min_size=16, max_size=16),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["k", "größer"]),
        st.integers(0, 2**31 - 1),
        st.none() | st.integers(0, 2**62),
        st.none(),
        st.none(),
        st.sampled_from(["", "KeyError: …", "KeyError: …\napp/mail.py in send"]),
    )
    | st.builds(
        Event,
        st.integers(START, START + 3 * MINUTE),
        st.just(EventType.COMPLETED),
        st.binary(min_size=16, max_size=16),
        st.sampled_from(["a", "b"]),
        st.just("k"),
        st.just(1),
        st.none() | st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.none() | st.integers(0, 2**55).map(lambda ticks: ticks * TICK),
    ),
    max_size=30,
)


@pytest.mark.spec("TIMELINE-19")
@given(events, st.integers(-MINUTE, MINUTE))
def test_blocks_return_what_was_packed(given_: list[Event], shift: int) -> None:
    """Shifted; no block reaches beyond its minute, and its head tells what is in it."""
    found: list[Event] = []
    for block in pack(given_, shift):
        part = list(unpack(stored(block), ALL, {}))
        assert block.first // MINUTE == block.last // MINUTE
        assert (block.first, block.last) == (min(one.at for one in part), max(one.at for one in part))
        assert (block.low, block.high) == (min(one.job for one in part), max(one.job for one in part))
        assert block.count == len(part)
        assert all(one.job in block.body for one in part)
        assert jobs_of(stored(block)) == list(dict.fromkeys(one.job for one in part))
        found += part

    def order(one: Event) -> tuple[int, bytes]:
        return one.at, one.job

    shifted = [msgspec.structs.replace(one, at=one.at + shift) for one in given_]
    assert sorted(found, key=order) == sorted(shifted, key=order)


@pytest.mark.spec("TIMELINE-19")
def test_a_window_narrows_a_block() -> None:
    block = one(event(START, job=1), event(START + 1, job=2, queue="r"), event(START + 2, job=1))

    def times(window: Window) -> list[int]:
        return [one.at - START for one in unpack(block, window, {})]

    assert times(ALL) == [0, 1, 2]
    assert times(Window(START + 1, START + 2)) == [1]
    assert times(Window(START, START + 3)) == [0, 1, 2]
    assert times(Window(0, START + 1)) == [0]
    assert times(Window(0, 1 << 60, queue="r")) == [1]
    assert times(Window(0, 1 << 60, job=(1).to_bytes(16))) == [0, 2]


@pytest.mark.spec("TIMELINE-20", "TIMELINE-22")
def test_a_removal_hides_blocks_up_to_a_number_and_events_up_to_an_instant() -> None:
    job, block = (1).to_bytes(16), one(event(START), event(START + 5), event(START, job=2), number=7)

    def left(removal: Removal) -> list[tuple[int, int]]:
        found = unpack(block, ALL, {job: removal})
        return [(int.from_bytes(one.job), one.at - START) for one in found]

    assert left(Removal(7, NEVER)) == [(2, 0)]
    assert left(Removal(6, NEVER)) == [(1, 0), (1, 5), (2, 0)]
    assert left(Removal(0, START)) == [(1, 5), (2, 0)]
    counter = EventCounter(0, 1 << 60)
    counter.add(block, {job: Removal(7, NEVER)})
    assert counter.counts() == [EventCount("q", EventType.STARTED, 3, "work")]


@pytest.mark.spec("TIMELINE-15")
def test_blocks_are_counted_as_a_whole_and_in_part() -> None:
    done = EventType.COMPLETED
    block = one(event(START, queue="b"), event(START + 1, done), event(START + 2, done, queue="a"), event(START + 3))
    for since, until in (
        (0, 1 << 60),
        (START, START + 4),
        (START + 1, START + 9),
        (0, START + 3),
        (START + 9, 1 << 60),
    ):
        counter = EventCounter(since, until)
        assert not counter.suffices(block)
        counter.add(block, {})
        counter.add(block, {})
        inside = list(unpack(block, Window(since, until), {}))
        assert sum(one.n for one in counter.counts()) == 2 * len(inside)
    assert EventCounter(0, START).suffices(block)
    whole = EventCounter(0, 1 << 60)
    whole.add(block, {})
    assert [(one.queue, one.type, one.n) for one in whole.counts()] == [
        ("a", done, 1),
        ("b", EventType.STARTED, 1),
        ("q", done, 1),
        ("q", EventType.STARTED, 1),
    ]


@pytest.mark.spec("TIMELINE-15")
def test_failures_are_counted_by_error_with_their_newest_job() -> None:
    died, again = EventType.FAILED, EventType.RETRIED
    block = one(
        event(START, died, job=3, error="a"),
        event(START + 1, died, job=2, error="a"),
        event(START + 2, died, job=9, error="b"),
        event(START + 3, again, job=8, error="a"),
        event(START + 3, again, job=7, error="a", release="r1"),
        event(START + 4, EventType.COMPLETED, job=99),
    )
    later = one(event(START + 5, died, job=1, error="a"), number=2)
    for until in (START + 5, START + 6):
        counter = EventCounter(START, until)
        counter.add(block)
        if until > START + 5:
            counter.add(later)
        assert counter.counts() == [
            EventCount("q", EventType.COMPLETED, 1, "work"),
            EventCount("q", died, 2 + (until > START + 5), "work", "a", (3).to_bytes(16)),
            EventCount("q", died, 1, "work", "b", (9).to_bytes(16)),
            EventCount("q", again, 1, "work", "a", (8).to_bytes(16)),
            EventCount("q", again, 1, "work", "a", (7).to_bytes(16), "r1"),
        ]
    part = EventCounter(START + 1, START + 3)
    part.add(block)
    assert [(one.error, one.n, one.sample[-1]) for one in part.counts()] == [("a", 1, 2), ("b", 1, 9)]


@pytest.mark.spec("TIMELINE-19")
def test_a_list_ends_with_the_minute_in_which_its_limit_is_reached() -> None:
    """Blocks of that minute may hold older events; those of later minutes cannot."""
    found = EventList(Window(0, 1 << 60, limit=2))
    first = one(event(START + 2), event(START + 4), number=3)
    second = one(event(START), event(START + 2, job=2), number=5)
    later = one(event(START + MINUTE))
    assert found.hides
    assert not found.suffices(first)
    found.add(first, {})
    assert not found.suffices(second)
    assert found.suffices(later)
    found.add(second, {})
    assert [(one.at - START, one.job[-1]) for one in found.events()] == [(0, 1), (2, 1)]
    assert EventList(Window(0, 1, limit=-1)).events() == []
    short = EventList(Window(0, 1 << 60, limit=2))
    short.add(one(event(START)), {})
    assert not short.suffices(later), "one event of two"


@pytest.mark.spec("TIMELINE-16")
def test_latencies_are_listed_latest_first() -> None:
    done = EventType.COMPLETED
    found = EventList(Window(0, 1 << 60, limit=3), latest=True)
    later = event(START + MINUTE, done, duration=5, total=6)
    found.add(one(later, number=9), {later.job: Removal(9, NEVER)})
    found.add(
        one(
            event(START, done, duration=1, total=2),
            event(START + SECOND, done, duration=3),
            event(START + SECOND, done, total=3),
            event(START + SECOND, EventType.FAILED, duration=3, total=3),
            event(START, done, duration=0, total=0, wait=0),
            event(START - 1 + SECOND, done, duration=3, total=4, wait=987),
        ),
        {},
    )
    assert not found.hides
    assert found.suffices(one(event(START - MINUTE))), "three runs of three"
    assert found.latencies() == [
        Latency("q", START + MINUTE, 5, 6, "work"),
        Latency("q", START - 1 + SECOND, 3, 4, "work", 900),
        Latency("q", START, 0, 0, "work", 0),
    ]
    narrow = EventList(Window(0, 1 << 60, job=(2).to_bytes(16)), latest=True)
    narrow.add(one(event(START, done, duration=1, total=2), event(START, done, job=2, duration=8, total=9)))
    assert [run.processing for run in narrow.latencies()] == [8]


@pytest.mark.spec("TIMELINE-21")
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x97\x91\x93\xa7unknown\xa1q\xa1k\x90\xc4\x00\x90\x90\x90\x90"])
def test_a_block_that_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(CorruptRecord, match="a block of events cannot be read"):
        list(unpack(StoredBlock(1, 0, 0, body), ALL, {}))


@pytest.mark.spec("TIMELINE-19")
def test_blocks_of_before_count_their_times_from_the_first_event() -> None:
    completed = event(START + 9, EventType.COMPLETED, job=3, duration=4, total=5)
    given_ = [event(START), event(START + 7, job=2), completed]
    block = one(*given_)
    body = msgspec.msgpack.decode(block.body)
    assert body.pop() is True
    assert body[3] == [0, 7, 2]
    body[3] = [0, 7, 9]
    old = msgspec.structs.replace(block, body=msgspec.msgpack.encode(body))
    assert list(unpack(old, ALL, {})) == list(unpack(block, ALL, {})) == given_
    found = EventList(ALL, latest=True)
    found.add(old)
    assert found.latencies() == [Latency("q", START + 9, 4, 5, "work")]

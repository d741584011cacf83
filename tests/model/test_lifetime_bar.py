"""The life of a job as parts of a bar."""

from __future__ import annotations

import pytest

from stoker.model.events import Event, EventType
from stoker.model.job import Job, Status
from stoker.model.lifetime_bar import MOST_PARTS, life, sums
from stoker.model.steps import Wakes
from stoker.model.time import SECOND

ID = b"\x01" * 16
NOW = 100 * SECOND


def job(status: Status, **given: object) -> Job:
    fields = {"priority": 0, "attempts": 0, "base": 0, "budget": 5, "created_at": 0, "scheduled_at": 0} | given
    return Job(id=ID, kind="send", queue="default", payload=b"{}", status=status, **fields)  # type: ignore[arg-type]


def event(at: int, kind: EventType, attempt: int = 1, duration: int | None = None) -> Event:
    length = None if duration is None else duration * SECOND
    return Event(at * SECOND, kind, ID, "default", "send", attempt, length)


def drawn(one: Job, events: list[Event], now: int = NOW) -> list[tuple[str, int, int]]:
    return [(part.phase, part.length // SECOND, part.attempt) for part in life(one, events, now)]


@pytest.mark.spec("LIFE-01")
def test_a_life_of_two_attempts() -> None:
    events = [
        event(0, EventType.ENQUEUED, 0),
        event(5, EventType.STARTED),
        event(15, EventType.RETRIED, 1, 10),
        event(45, EventType.STARTED, 2),
        event(50, EventType.FAILED, 2, 5),
    ]
    dead = job(Status.DEAD, attempts=2, started_at=45 * SECOND, finished_at=50 * SECOND)
    expected = [("waiting", 5, 0), ("running", 10, 1), ("between", 30, 1), ("died", 5, 2)]
    assert drawn(dead, events) == expected
    assert sums(life(dead, events, NOW)) == {"waiting": 5 * SECOND, "running": 15 * SECOND, "between": 30 * SECOND}
    assert drawn(job(Status.RETRYING, attempts=1), events[:3]) == [*expected[:2], ("between", 85, 1)]
    running = job(Status.RUNNING, attempts=2, started_at=45 * SECOND)
    assert drawn(running, events[:4]) == [*expected[:3], ("running", 55, 2)]


@pytest.mark.spec("LIFE-04")
def test_a_suspended_job_is_between_no_attempts() -> None:
    events = [
        event(5, EventType.STARTED),
        event(6, EventType.WAITING, 1, 1),
        event(46, EventType.STARTED),
        event(48, EventType.RETRIED, 1, 2),
        event(60, EventType.STARTED, 2),
        event(61, EventType.WAITING, 2, 1),
    ]
    waits = job(Status.PENDING, attempts=1, settled=Wakes.ANY, scheduled_at=2 * NOW)
    parts = [("waiting", 5, 0), ("running", 1, 1), ("suspended", 40, 1), ("running", 2, 1), ("between", 12, 1)]
    assert drawn(waits, events) == [*parts, ("running", 1, 2), ("suspended", 39, 2)]
    assert drawn(waits, events[:2]) == [*parts[:2], ("suspended", 94, 1)]
    canceled = job(Status.CANCELED, attempts=1, started_at=5 * SECOND, finished_at=50 * SECOND)
    assert drawn(canceled, events[:2]) == [*parts[:2], ("suspended", 44, 1)]
    unknown = job(Status.PENDING, started_at=5 * SECOND, settled=Wakes.ANY, scheduled_at=2 * NOW)
    assert drawn(unknown, []) == [("waiting", 5, 0), ("suspended", 95, 0)], "its events are not kept"
    woken = job(Status.PENDING, attempts=1, settled=Wakes.ANY, scheduled_at=70 * SECOND)
    assert drawn(woken, events[:2]) == [*parts[:2], ("suspended", 64, 1), ("waiting", 30, 1)]


@pytest.mark.spec("LIFE-01")
def test_time_never_runs_backwards() -> None:
    events = [event(5, EventType.STARTED), event(3, EventType.COMPLETED, 1, 10)]
    assert drawn(job(Status.PENDING), [], -SECOND) == []
    assert all(length >= 0 for _, length, _ in drawn(job(Status.DONE, finished_at=3 * SECOND), events))


@pytest.mark.spec("LIFE-02")
def test_the_record_tells_what_events_do_not() -> None:
    assert drawn(job(Status.PENDING), []) == [("waiting", 100, 0)]
    assert drawn(job(Status.RETRYING, attempts=1), []) == [("between", 100, 0)]
    assert drawn(job(Status.RUNNING, attempts=3, started_at=40 * SECOND), []) == [
        ("waiting", 40, 0),
        ("running", 60, 3),
    ]
    assert drawn(job(Status.RUNNING), []) == [("running", 100, 0)]
    done = job(Status.DONE, attempts=1, started_at=10 * SECOND, finished_at=30 * SECOND)
    assert drawn(done, []) == [("waiting", 10, 0), ("running", 20, 1)]
    assert drawn(job(Status.DEAD, started_at=10 * SECOND, finished_at=30 * SECOND), []) == [
        ("waiting", 10, 0),
        ("died", 20, 0),
    ]
    assert drawn(job(Status.CANCELED, finished_at=30 * SECOND), []) == [("waiting", 30, 0)]
    assert drawn(job(Status.DONE), []) == []
    ended = [event(30, EventType.RETRIED, 1, 10)]  # its start is not kept
    assert drawn(job(Status.CANCELED, attempts=1, started_at=20 * SECOND, finished_at=60 * SECOND), ended) == [
        ("waiting", 20, 0), ("running", 10, 1), ("between", 30, 1),
    ]  # fmt: skip
    again = [*ended, event(50, EventType.RELEASED, 2, 10)]
    assert drawn(job(Status.RUNNING, attempts=3, started_at=60 * SECOND), again) == [
        ("waiting", 20, 0), ("running", 10, 1), ("between", 10, 1), ("running", 10, 2), ("between", 10, 2),
        ("running", 40, 3),
    ]  # fmt: skip
    unknown = [event(5, EventType.STARTED, 0), event(9, EventType.RETRIED, 0, 4), event(20, EventType.COMPLETED, 0)]
    late = job(Status.DONE, attempts=2, started_at=12 * SECOND, finished_at=20 * SECOND)
    assert drawn(late, unknown) == [("waiting", 5, 0), ("running", 4, 1), ("between", 3, 1), ("running", 8, 2)]


@pytest.mark.spec("LIFE-03")
def test_many_attempts_are_shortened_in_the_middle() -> None:
    events = []
    for n in range(1, 113):
        events += [event(2 * n, EventType.STARTED, n), event(2 * n + 1, EventType.RETRIED, n, 1)]
    parts = life(job(Status.RETRYING, attempts=112), events, 300 * SECOND)
    assert len(parts) == MOST_PARTS + 1
    [left_out] = [part for part in parts if part.phase == "left_out"]
    assert left_out.attempts == 82
    assert sum(part.length for part in parts) == 300 * SECOND
    whole = life(job(Status.RETRYING, attempts=MOST_PARTS // 2), events[:MOST_PARTS], (MOST_PARTS + 1) * SECOND)
    assert len(whole) == MOST_PARTS, "as many as there may be"
    assert all(part.phase != "left_out" for part in whole)

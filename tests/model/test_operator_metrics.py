"""What operators read that no store keeps."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.control import STOPPED, Presence, is_silent
from stoker.model.findings import Delivery
from stoker.model.job import Job, Options, Status
from stoker.model.operator_metrics import (
    Flow,
    became,
    deliveries,
    keys_taken,
    later_of,
    per_second,
    runs_long,
    slots,
)
from stoker.model.outbox.consumers import CursorState, StreamState
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.stream import Stream
from stoker.model.query import Census, Count
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import Unique

NOW = 1_000 * HOUR


def job(n: int = 0, **fields: Any) -> Job:
    given: dict[str, Any] = {"id": n.to_bytes(16), "kind": "send", "queue": "mail", "payload": b"", "priority": 0}
    given |= {"status": Status.DEAD, "attempts": 1, "base": 0, "budget": 3, "created_at": n, "scheduled_at": 0}
    return Job(**{**given, **fields})


def worker(ago: int = 0, state: str = "running") -> Presence:
    return Presence(worker="w", host="h", pid=1, queues={"mail": 4}, seen_at=NOW - ago, state=state)


@pytest.mark.spec("DERIVED-01")
def test_slots_are_those_of_live_workers() -> None:
    present = [worker(), worker(20 * SECOND), worker(21 * SECOND), worker(0, STOPPED)]
    assert slots("mail", present, NOW) == 8
    assert slots("other", present, NOW) == 0


@pytest.mark.spec("DERIVED-02")
def test_a_worker_is_silent_after_ten_seconds() -> None:
    assert not is_silent(worker(10 * SECOND), NOW)
    assert is_silent(worker(11 * SECOND), NOW)
    assert not is_silent(worker(HOUR, STOPPED), NOW)


@pytest.mark.spec("DERIVED-03")
def test_a_queue_is_clear_after_what_waits_at_the_rate_of_the_last_minutes() -> None:
    assert Flow(minutes=15, completed=150).clear_in(20) == 2 * MINUTE
    assert Flow(minutes=15).clear_in(20) is None
    assert Flow(minutes=15).clear_in(0) == 0
    assert Flow(minutes=0, completed=3).clear_in(20) is None, "no minute was counted yet"
    assert (Flow(minutes=0).per_minute(3), Flow(minutes=2).per_minute(3)) == (None, 1.5)
    assert Flow(minutes=15, enqueued=10, completed=7, failed=2).growing
    assert not Flow(minutes=15, enqueued=10, completed=8, failed=2).growing


@pytest.mark.spec("DERIVED-09")
def test_a_pace_is_what_both_readings_have_and_never_negative() -> None:
    assert per_second({"a": 10, "b": 10, "gone": 1}, {"a": 40, "b": 5, "new": 7}, 2) == {"a": 15, "b": 0}


@pytest.mark.spec("DERIVED-06")
def test_a_consumer_waits_as_long_as_its_oldest_message() -> None:
    def cursor(consumer: str, waits: int, waiting: int = 3, **fields: Any) -> CursorState:
        return CursorState(Cursor("orders", consumer, 0, **fields), waiting, NOW - waits)

    cursors = cursor("b", 5), cursor("a", 7, parked=1), cursor("a", 9), cursor("b", 99, paused=True, parked=2)
    idle = cursor("c", 99, waiting=0), CursorState(Cursor("orders", "c", 1), 3, None), cursor("d", -5)
    assert deliveries([StreamState(Stream("orders", 2), (9, 9), (*cursors, *idle))], NOW) == [
        Delivery("orders", "a", 9, 1, waiting=6),
        Delivery("orders", "b", 5, 2, waiting=6),
        Delivery("orders", "c", 0, waiting=3),
        Delivery("orders", "d", 0, waiting=3),
    ]


@pytest.mark.spec("DERIVED-05")
def test_a_long_run_is_one_without_a_timeout() -> None:
    started = NOW - 6 * MINUTE
    assert runs_long(job(status=Status.RUNNING, started_at=started), NOW)
    assert not runs_long(job(status=Status.RUNNING, started_at=started, options=Options(timeout=HOUR)), NOW)
    assert not runs_long(job(status=Status.RUNNING, started_at=NOW - MINUTE), NOW)
    assert not runs_long(job(status=Status.DEAD, started_at=started), NOW)
    assert not runs_long(job(status=Status.RUNNING), NOW)


@pytest.mark.spec("DERIVED-07")
def test_scheduled_jobs_of_a_kind_are_known_or_not() -> None:
    def census(*counts: tuple[str, str, int], **scheduled: int) -> Census:
        found = [Count(queue, kind, Status.PENDING, n) for queue, kind, n in counts]
        return Census(at=NOW, counts=(*found, Count("mail", "send", Status.DEAD, 9)), later=scheduled)

    assert later_of(census(("mail", "send", 3), ("mail", "sort", 2)), "send") == 0
    assert later_of(census(("mail", "send", 3), mail=2), "send") == 2  # no other kind waits there
    assert later_of(census(("mail", "send", 3), ("mail", "sort", 2), mail=5), "send") == 3  # all are scheduled
    mixed = census(("mail", "send", 3), ("mail", "sort", 2), ("bulk", "send", 4), mail=2, bulk=1)
    assert later_of(mixed, "send") is None
    assert later_of(mixed, "send", {"bulk"}) == 1
    assert later_of(mixed, "other") == 0


@pytest.mark.spec("DERIVED-08")
def test_keys_that_other_jobs_hold_are_counted() -> None:
    def keyed(n: int, key: str | None = "a", **fields: Any) -> Job:
        return job(n, unique=None if key is None else Unique(key, hold=fields.pop("hold", "active")), **fields)

    dead = [keyed(1), keyed(2), keyed(3, None), keyed(4, "b")]
    assert keys_taken(dead, []) == 1  # one of two gets the key
    assert keys_taken(dead, [keyed(9, status=Status.PENDING)]) == 2
    assert keys_taken(dead, [keyed(9, status=Status.PENDING, kind="other"), keyed(8, None)]) == 1
    assert keys_taken([keyed(1)], [keyed(9, status=Status.RETRYING)]) == 0
    assert keys_taken([keyed(1)], [keyed(9, status=Status.RETRYING, hold="retrying")]) == 1
    again = keyed(1, status=Status.RETRYING, hold="retrying")
    assert keys_taken([again], [again]) == 0


@pytest.mark.spec("PRESENCE-07")
def test_what_became_of_a_job_of_a_lost_worker() -> None:
    assert became(None, "w", NOW) == "gone"
    assert became(job(status=Status.DEAD), "w", NOW) == "dead"
    assert became(job(status=Status.RUNNING, worker="w"), "w", NOW) == "held"
    assert became(job(status=Status.RUNNING, worker="other"), "w", NOW) == "taken over"

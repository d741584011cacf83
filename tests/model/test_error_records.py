"""What is known of each error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model import error_records, ids
from stoker.model.error_records import (
    HOURS,
    KEPT,
    OTHER,
    RECENT,
    ErrorRecord,
    Hourly,
    add_failures,
    commonest,
    error_groups,
)
from stoker.model.events import EventCount, EventType
from stoker.model.job import Failure, Job, Status
from stoker.model.same_error import fingerprint, fingerprint_of
from stoker.model.time import DAY, HOUR, MINUTE, moment

NOW = 500_000 * HOUR + 30 * MINUTE
MIN = NOW - MINUTE
LINE = "Timeout: …"
FRAMED = f"{LINE}\nshop/tasks.py in charge"


def failed(n: int, error: str = LINE, kind: str = "send", queue: str = "mail", sample: int = 1) -> EventCount:
    return EventCount(queue, EventType.FAILED, n, kind, error, sample.to_bytes(16))


def retried(n: int, error: str = LINE, sample: int = 1) -> EventCount:
    return EventCount("mail", EventType.RETRIED, n, "send", error, sample.to_bytes(16))


class Records(dict[str, ErrorRecord]):
    """The records of a store, as the roll-up writes them."""

    def add(self, minute: int, *counts: EventCount, now: int = NOW) -> set[str]:
        changed = add_failures(self, minute, counts, now)
        for name, record in changed.items():
            if record is None:
                del self[name]
            else:
                self[name] = msgspec.json.decode(msgspec.json.encode(record), type=ErrorRecord)
        return set(changed)

    def only(self) -> ErrorRecord:
        [record] = self.values()
        return record


@pytest.mark.spec("ERRORS-01")
def test_the_failures_of_a_minute_make_a_record() -> None:
    found = Records()
    happened = EventCount("mail", EventType.COMPLETED, 5, "send")
    assert found.add(MIN, happened) == set()
    assert found.add(MIN, happened, failed(3, FRAMED, sample=7), failed(1, FRAMED, "sort", "bulk"), retried(2, FRAMED))
    record = found.only()
    assert (record.id, record.error, record.frame) == (fingerprint(FRAMED), LINE, "shop/tasks.py in charge")
    assert (record.first, record.last, record.sample) == (MIN, MIN, ids.text((7).to_bytes(16)))
    assert (record.kinds, record.queues) == (("send", "sort"), ("bulk", "mail"))
    assert (record.died.last(2, NOW), record.retried.last(2, NOW)) == ([0, 4], [0, 2])
    found.add(MIN - HOUR, failed(5, FRAMED, "sell"))
    assert (found.only().first, found.only().last, found.only().died.last(3, NOW)) == (MIN - HOUR, MIN, [0, 5, 4])
    assert found.only().kinds == ("send", "sort", "sell")


@pytest.mark.spec("ERRORS-01")
def test_only_failures_that_tell_their_error_make_a_record() -> None:
    found = Records()
    canceled = EventCount("mail", EventType.CANCELED, 5, "send", LINE, (1).to_bytes(16))
    assert found.add(MIN, failed(3, ""), retried(2, ""), canceled) == set()
    assert found == {}


@pytest.mark.spec("RELEASE-05")
def test_a_record_names_the_releases_in_which_the_error_was_seen() -> None:
    found = Records()

    def seen(ago: int, *names: str) -> tuple[str, ...]:
        found.add(NOW - ago * MINUTE, *(msgspec.structs.replace(failed(1), release=name) for name in names))
        return found.only().releases

    assert seen(60, "") == ()
    assert seen(50, "r2") == ("r2",)
    assert seen(49, "r2", "r1") == ("r2", "r1"), "the first one stays the first"
    for n in range(3, 30):
        seen(49 - n, f"r{n}")
    assert found.only().releases == ("r2", *(f"r{n}" for n in range(11, 30)))
    [group] = error_groups((), found.values(), NOW)
    assert group.releases == found.only().releases


@pytest.mark.spec("NEED-24")
def test_the_commonest_error_of_the_last_hour() -> None:
    found = Records()
    assert commonest(found.values(), NOW - HOUR) == (None, 0, 0)
    found.add(NOW - 90 * MINUTE, failed(50, "old"))
    found.add(NOW - 20 * MINUTE, failed(2, "old"), failed(3, "new"), failed(1, "other"))
    found.add(MIN, failed(4, "new"), retried(9, "old"))
    worst, n, of = commonest(found.values(), NOW - HOUR)
    assert worst is not None
    assert (worst.error, n, of) == ("new", 7, 10)
    rest = [msgspec.structs.replace(one, id=OTHER) for one in found.values()]
    assert commonest(rest, NOW - HOUR) == (None, 0, 10)


@pytest.mark.spec("ERRORS-02")
def test_counting_a_minute_again_adds_only_what_is_new() -> None:
    found = Records()
    found.add(MIN, failed(3), retried(1))
    assert found.add(MIN, failed(3), retried(1)) == set()
    assert found.add(MIN, failed(2)) == set(), "some of its events are gone since"
    assert found.add(MIN, failed(4), retried(1)) == {fingerprint(LINE)}
    assert (found.only().died.last(1, NOW), found.only().retried.last(1, NOW)) == ([4], [1])
    assert found.add(NOW - 3 * HOUR, failed(9)) == set(), "too late"
    assert found.add(NOW - RECENT - MINUTE, failed(9)) == set(), "too late by a minute"
    assert found.add(NOW - RECENT, failed(9)) == {fingerprint(LINE)}, "the last minute that counts"


@pytest.mark.spec("ERRORS-02")
@given(st.lists(st.tuples(st.integers(0, 119), st.integers(1, 9)), max_size=30))
def test_whatever_the_order_each_minute_counts_once(told: list[tuple[int, int]]) -> None:
    found, most = Records(), dict[int, int]()
    for ago, n in told:
        found.add(MIN - ago * MINUTE, failed(n))
        most[ago] = max(most.get(ago, 0), n)
    by_hour = [0] * 3
    for ago, n in most.items():
        by_hour[NOW // HOUR - (MIN - ago * MINUTE) // HOUR] += n
    assert not told or found.only().died.last(3, NOW) == by_hour[::-1]


@pytest.mark.spec("ERRORS-03")
def test_a_record_remembers_a_week_and_is_small() -> None:
    found = Records()
    now = NOW
    for _ in range(10 * 24):
        now += HOUR
        found.add(now - MINUTE, *(failed(1_000, kind=f"kind{n}", queue=f"queue{n}") for n in range(30)), now=now)
    record = found.only()
    assert len(record.died.counts) == HOURS
    assert len(record.died.minutes) <= 3
    assert len(record.kinds) == len(record.queues) == 20
    assert len(msgspec.json.encode(record)) < 2_500
    last = found.only().last
    found.add(last + KEPT - MINUTE, failed(1, "other"), now=last + KEPT)
    assert len(found) == 2, "a week has not passed"
    del found[fingerprint("other")]
    found.add(now + 8 * DAY, failed(1, "other"), now=now + 8 * DAY + MINUTE)
    assert set(found) == {fingerprint("other")}, "nothing was seen of it for a week"


@pytest.mark.spec("ERRORS-04")
def test_beyond_the_most_records_the_rest_is_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_records, "MOST", 2)
    found = Records()
    names = sorted("abcd", key=fingerprint)
    found.add(MIN, *(failed(n, name) for n, name in enumerate(names, 1)))
    assert set(found) == {fingerprint(names[0]), fingerprint(names[1]), OTHER}
    assert found[OTHER].died.last(1, NOW) == [7]
    assert found.add(MIN, *(failed(n, name) for n, name in enumerate(names, 1))) == set()
    found.add(MIN + MINUTE, failed(1, names[0]), now=NOW + MINUTE)
    later = NOW + DAY
    found.add(later - MINUTE, failed(5, names[2]), retried(1, names[2]), now=later)
    assert set(found) == {fingerprint(names[0]), fingerprint(names[2]), OTHER}, "the one seen longest ago made room"
    assert found[OTHER].died.last(25, later)[0] == 9
    assert (found[OTHER].first, found[OTHER].last) == (MIN, MIN)


@pytest.mark.spec("ERRORS-04")
def test_the_first_error_that_makes_room_begins_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_records, "MOST", 1)
    found = Records()
    found.add(MIN, retried(2, "a"))
    found.add(NOW + DAY, failed(1, "b"), now=NOW + DAY + MINUTE)
    assert set(found) == {OTHER, fingerprint("b")}
    assert (found[OTHER].retried.last(25, NOW + DAY)[0], found[OTHER].died.counts) == (2, ())


@pytest.mark.spec("ERRORS-02")
def test_hours_add_up_wherever_they_begin() -> None:
    early, late = Hourly(10, (1, 2)), Hourly(13, (4,))
    assert late.plus(early).counts == early.plus(late).counts == (1, 2, 0, 4)
    assert (Hourly().plus(late), late.plus(Hourly())) == (late, late)
    assert late.at(11 * HOUR, 7, 13 * HOUR + 1).counts == (7, 0, 4)


# --- groups -------------------------------------------------------------------------------------------------------


def job(n: int = 0, **fields: Any) -> Job:
    given: dict[str, Any] = {"id": n.to_bytes(16), "kind": "send", "queue": "mail", "payload": b"", "priority": 0}
    given |= {"status": Status.DEAD, "attempts": 1, "base": 0, "budget": 3, "created_at": n, "scheduled_at": 0}
    return Job(**{**given, **fields})


@pytest.mark.spec("DERIVED-04")
def test_jobs_are_grouped_by_error_whatever_their_kind() -> None:
    jobs = [
        job(1, last_error="Timeout: 1 s", history=(Failure(50, 1, "x"),)),
        job(2, last_error="Timeout: 2 s", finished_at=40, queue="bulk"),
        job(3, last_error="Timeout: 3 s", kind="resize", started_at=70),
        job(4, last_error="boom"),
        job(5),
    ]
    timeouts, boom = error_groups(jobs)
    assert (timeouts.id, timeouts.error, timeouts.count) == (fingerprint_of("Timeout: 9 s"), "Timeout: … s", 3)
    assert (timeouts.first, timeouts.last, timeouts.sample) == (moment(40), moment(70), ids.text(jobs[2].id))
    assert (timeouts.kinds, timeouts.queues) == (("resize", "send"), ("bulk", "mail"))
    assert (boom.error, boom.last, boom.died, boom.deaths) == ("boom", moment(4), 0, ())
    [same] = error_groups([job(n, last_error="KeyError: 'sku'\n  File …") for n in range(2)])
    assert same.error == "KeyError: 'sku'", "the line itself where all agree in it"


@pytest.mark.spec("DERIVED-04")
def test_a_group_knows_what_its_error_did_before_and_old_errors_come_behind() -> None:
    found = Records()
    found.add(MIN - HOUR, failed(3, LINE, "sort", "bulk"))
    found.add(MIN, failed(9, "gone", sample=9))
    found[fingerprint("old")] = ErrorRecord(id=fingerprint("old"), error="old", first=0, last=NOW - 8 * DAY)
    live, gone = error_groups([job(1, last_error="Timeout: 7", finished_at=NOW)], found.values(), NOW)
    assert (live.error, live.count, live.died, live.deaths[-2:], len(live.deaths)) == ("Timeout: 7", 1, 3, (3, 0), 24)
    assert (live.first, live.last) == (moment(MIN - HOUR), moment(NOW))
    assert (live.kinds, live.queues) == (("send", "sort"), ("bulk", "mail"))
    assert (gone.error, gone.count, gone.died, gone.sample) == ("gone", 0, 9, ids.text((9).to_bytes(16)))


@pytest.mark.spec("DERIVED-04")
def test_equal_errors_come_in_the_order_in_which_they_were_seen_last() -> None:
    one, two = (job(n, last_error=f"{name}: x", finished_at=n * HOUR) for n, name in ((1, "A"), (2, "B")))
    assert [group.error for group in error_groups([one, two])] == ["B: x", "A: x"]


@pytest.mark.spec("ERRORS-04")
def test_an_error_is_kept_up_to_its_last_day() -> None:
    last = NOW - error_records.KEPT
    records = [ErrorRecord(id="err_1", first=last, last=last)]
    assert len(error_groups([], records, NOW)) == 1
    assert error_groups([], records, NOW + 1) == []


@pytest.mark.spec("ERRORS-04")
def test_a_record_that_makes_room_takes_no_time_from_the_others() -> None:
    """The record of all others was seen last when the newest of them was."""
    old = ErrorRecord(id="err_1", first=5 * MINUTE, last=5 * MINUTE)
    other = ErrorRecord(id=error_records.OTHER, first=MINUTE, last=9 * MINUTE)
    here = {one.id: one for one in (old, other)}
    assert error_records._made_room(here, {}, NOW)
    assert here == {error_records.OTHER: msgspec.structs.replace(other, first=MINUTE, last=9 * MINUTE)}

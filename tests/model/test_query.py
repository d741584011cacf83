from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engines.memory import MemoryEngine
from stoker.model.actions import ACTIONS, allows
from stoker.model.errors import InvalidInput, InvalidName, InvalidOption
from stoker.model.ids import minted_at
from stoker.model.job import Draft, Failure, Job, Options, Status
from stoker.model.lifecycle import TRANSITIONS
from stoker.model.query import (
    CANCEL_REASON,
    KINDS_BEHIND,
    LARGEST_PAGE,
    LATEST,
    LONGEST_REASON,
    Cancel,
    Census,
    Change,
    Clone,
    Count,
    Delete,
    Discard,
    Due,
    Edit,
    Expired,
    Fork,
    Move,
    Prioritize,
    Query,
    Requeue,
    Reseal,
    Restore,
    Retention,
    RunNow,
    Selection,
    Sweep,
    Tally,
    Totals,
    as_of,
    as_seen,
    bounded,
    chosen_counts,
    counted,
    cursor_at,
    cursor_behind,
    cursor_time,
    has_texts,
    history_of,
    is_counted,
    kind_points_between,
    matched_at,
    matches,
    place_of,
    queues_of,
    read_cursor,
    scheduled_count,
    write_cursor,
)
from stoker.model.same_error import fingerprint_of
from stoker.model.steps import Wakes
from stoker.model.time import DAY, MINUTE
from stoker.model.unique import Unique

NOW = 1_000_000
GROUP = b"g" * 16
CHANGES: list[Change] = [
    Cancel(),
    Requeue(),
    Clone((b"x" * 16,)),
    Discard(),
    Delete(),
    RunNow(),
    Move("other"),
    Prioritize(3),
    Edit(priority=3),
    Restore(()),
    Fork((b"x" * 16,)),
]


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": b"0" * 16,
        "kind": "send",
        "queue": "mail",
        "payload": b'{"to":"Ann"}',
        "status": Status.PENDING,
        "priority": 0,
        "attempts": 0,
        "base": 0,
        "budget": 5,
        "created_at": NOW,
        "scheduled_at": NOW,
    }
    return Job(**(fields | changes))


# --- queries ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("MODEL-01")
@pytest.mark.parametrize("limit", [0, -1, LARGEST_PAGE + 1])
def test_a_page_has_bounds(limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        Query(limit=limit)


@pytest.mark.spec("MODEL-01")
@pytest.mark.parametrize("limit", [1, 25, LARGEST_PAGE])
def test_limits_within_the_bounds_are_taken(limit: int) -> None:
    assert Query(limit=limit).limit == limit


@pytest.mark.spec("MODEL-02")
@pytest.mark.parametrize(
    ("field", "value"), [("statuses", frozenset({"failed"})), ("order", "random"), ("due", "tomorrow")]
)
def test_unknown_words_in_a_query_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as error:
        Query(**{field: value})
    assert error.value.field == {"statuses": "status"}.get(field, field)
    assert ascii(error.value.value) in str(error.value)


@pytest.mark.spec("MODEL-02")
def test_the_plain_query_is_the_newest_page_of_everything() -> None:
    query = Query()
    assert (query.order, query.limit, query.cursor) == ("newest", 25, None)
    assert all(matches(job(status=status), query, NOW) for status in Status)


@pytest.mark.spec("FIND-05", "FIND-06", "FIND-07", "FIND-11")
@pytest.mark.parametrize(
    ("filters", "hit", "miss"),
    [
        ({"statuses": frozenset({Status.DEAD, Status.DONE})}, {"status": Status.DEAD}, {}),
        ({"queues": frozenset({"mail", "post"})}, {}, {"queue": "sms"}),
        ({"kinds": frozenset({"send"})}, {}, {"kind": "Send"}),
        ({"tenant": "acme"}, {"tenant": "acme"}, {"tenant": "acm"}),
        ({"tenant": "acme"}, {"tenant": "acme"}, {}),
        ({"key": "k"}, {"unique": Unique("k", scope="global")}, {"unique": Unique("K")}),
        ({"key": "k"}, {"unique": Unique("k")}, {}),
        ({"group": GROUP}, {"options": Options(group=GROUP)}, {"options": Options(group=b"h" * 16)}),
        ({"group": GROUP}, {"options": Options(group=GROUP)}, {}),
        ({"meta": ("a", "1")}, {"options": Options(metadata={"a": "1"})}, {"options": Options(metadata={"a": "12"})}),
        ({"meta": ("a", "1")}, {"metadata": {"a": "1"}}, {}),
        (
            {"meta": ("a", "2")},
            {"options": Options(metadata={"a": "1"}), "metadata": {"a": "2"}},
            {"options": Options(metadata={"a": "2"}), "metadata": {"a": "1"}},
        ),
        ({"since": NOW}, {}, {"created_at": NOW - 1}),
        ({"until": NOW}, {"created_at": NOW - 1}, {}),
        ({"text": "ANN"}, {}, {"payload": b"{}"}),
    ],
)
def test_each_filter_lets_its_own_through(filters: Any, hit: Any, miss: Any) -> None:
    assert matches(job(**hit), Query(**filters), NOW)
    assert not matches(job(**miss), Query(**filters), NOW)


@pytest.mark.spec("FIND-08")
@pytest.mark.parametrize(
    ("status", "scheduled", "now", "later"),
    [
        (Status.PENDING, NOW - 1, True, False),
        (Status.PENDING, NOW, True, False),
        (Status.PENDING, NOW + 1, False, True),
        (Status.RETRYING, NOW, False, False),
        (Status.RETRYING, NOW + 1, False, False),
        (Status.DONE, NOW, False, False),
    ],
)
def test_due_splits_pending_jobs_only(status: Status, scheduled: int, now: bool, later: bool) -> None:
    found = job(status=status, scheduled_at=scheduled)
    assert matches(found, Query(due="now"), NOW) is now
    assert matches(found, Query(due="later"), NOW) is later
    waits = job(status=status, scheduled_at=scheduled, settled=Wakes.ANY)
    assert matches(waits, Query(due="now"), NOW) is now
    assert matches(waits, Query(due="waiting"), NOW) is later
    assert not matches(waits, Query(due="later"), NOW)
    assert not matches(found, Query(due="waiting"), NOW)


@pytest.mark.spec("FIND-08")
def test_a_worker_is_found_by_the_beginning_of_its_id() -> None:
    ran = job(status=Status.RUNNING, worker="host.abc")
    assert matches(ran, Query(worker="host."), NOW)
    assert not matches(ran, Query(worker="abc"), NOW)
    assert not matches(job(), Query(worker="host."), NOW)


@pytest.mark.spec("FIND-10")
@pytest.mark.parametrize(
    ("payload", "error", "text", "found"),
    [
        (b'{"a":"Hello"}', None, "hELLO", True),
        (b"STRASSE", None, "straße", True),
        (b"\xff\xfe", None, "x", False),
        (b"\xffyes", None, "YES", True),
        (b"{}", "Mailbox FULL", "full", True),
        (b"{}", "Mailbox FULL", "empty", False),
        (b"{}", None, "full", False),
        (b"50%", None, "5_", False),
        (b"", None, "", True),
    ],
)
def test_text_is_found_in_payload_and_error(payload: bytes, error: str | None, text: str, found: bool) -> None:
    assert matches(job(payload=payload, last_error=error), Query(text=text), NOW) is found


@pytest.mark.spec("FIND-10")
@given(st.text(), st.text(), st.text())
def test_text_is_found_wherever_it_stands_and_in_any_case(before: str, text: str, after: str) -> None:
    found = job(last_error=before + text + after)
    assert matches(found, Query(text=text), NOW)
    assert matches(found, Query(text=text.casefold()), NOW)


@pytest.mark.spec("FIND-04")
async def test_a_page_holds_jobs_a_cursor_and_what_it_cost() -> None:
    engine = MemoryEngine()
    await engine.open()
    drafts = [Draft(number.to_bytes(16), "work", tenant="odd" if number % 2 else "even") for number in range(1, 11)]
    await engine.jobs.insert(drafts)
    first = await engine.operator.find(Query(tenant="even", limit=3))
    second = await engine.operator.find(Query(tenant="even", limit=3, cursor=first.cursor))
    assert [len(page.jobs) for page in (first, second)] == [3, 2]
    assert {job.id for page in (first, second) for job in page.jobs} == {draft.job_id for draft in drafts[1::2]}
    assert first.cursor is not None
    assert second.cursor is None
    assert first.scanned >= 3
    assert first.scanned + second.scanned >= 5
    await engine.close()


# --- changes ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("MODEL-03")
def test_a_selection_is_bounded() -> None:
    assert len(Selection((b"x" * 16,) * 1_000).ids) == 1_000
    with pytest.raises(InvalidInput, match="1001 ids"):
        Selection((b"x" * 16,) * 1_001)


@pytest.mark.spec("MODEL-03")
def test_changes_refuse_what_no_job_can_have() -> None:
    with pytest.raises(InvalidName):
        Move("two words")
    for priority in (-1_001, 1_001):
        with pytest.raises(InvalidInput, match="priority"):
            Prioritize(priority)
    assert [Prioritize(priority).priority for priority in (-1_000, 1_000)] == [-1_000, 1_000]


@pytest.mark.spec("ALTER-01")
@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        (Cancel(), {"pending", "retrying", "running"}),
        (Requeue(), {"retrying", "dead", "canceled", "discarded"}),
        (CHANGES[2], {"dead"}),
        (Discard(), {"dead"}),
        (Delete(), {status.value for status in Status}),
        (CHANGES[-1], {status.value for status in Status}),
        (RunNow(), {"pending"}),
        (Move("other"), {"pending", "retrying"}),
        (Prioritize(1), {"pending", "retrying"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, set) else "",
)
def test_the_table_says_who_may_be_changed(change: Change, allowed: set[str]) -> None:
    assert {status for status in Status if allows(change, status)} == allowed


@pytest.mark.spec("ALTER-01")
def test_every_change_is_in_the_table_and_agrees_with_the_rule_book() -> None:
    told = set(get_args(Change)) - {Reseal}  # which changes nothing that people or workers see
    assert {type(change) for change in CHANGES} == {one.change for one in ACTIONS.values()} == told
    target = {one.change: one.becomes for one in ACTIONS.values() if one.becomes is not None} | {RunNow: Status.PENDING}
    for change, after in target.items():
        for status in next(one.statuses for one in ACTIONS.values() if one.change is change):
            assert after in TRANSITIONS[status], (change, status)


@pytest.mark.spec("ALTER-02")
def test_a_job_is_as_seen_while_it_is_in_the_status_it_was_seen_in() -> None:
    one, other = b"1" * 16, b"2" * 16
    seen = Selection((one, other), (Status.DEAD, Status.CANCELED))
    for position, status in enumerate(seen.statuses):
        for now in Status:
            assert as_seen(job(status=now), seen, position, Requeue()) == (now is status)
            assert as_seen(job(status=now), Selection((one, other)), position, Requeue())
    with pytest.raises(InvalidInput, match="one for each of 2 selected jobs"):
        Selection((one, other), (Status.DEAD,))


@pytest.mark.spec("ALTER-28")
@pytest.mark.parametrize("change", [Requeue(), RunNow(), Cancel(), Delete(), Discard()], ids=lambda c: type(c).__name__)
def test_a_job_is_as_seen_while_nothing_of_it_is_later_than_the_bound(change: Change) -> None:
    bounded = Selection((b"1" * 16,), bound=NOW)

    def seen(status: Status, **times: Any) -> bool:
        return as_seen(job(status=status, **{"created_at": 5, **times}), bounded, 0, change)

    assert [seen(Status.PENDING, created_at=at) for at in (NOW, NOW + 1)] == [True, False]
    assert [seen(Status.DEAD, finished_at=at) for at in (NOW, NOW + 1)] == [True, False]
    starts = isinstance(change, Requeue | RunNow)
    for status in (Status.PENDING, Status.RETRYING):
        assert [seen(status, started_at=at) for at in (NOW, NOW + 1)] == [True, not starts]
    assert seen(Status.RUNNING, started_at=NOW + 1)


@pytest.mark.spec("ADMIN-08")
def test_what_joined_the_jobs_of_a_question_since_is_told_from_those_that_were_there() -> None:
    then, since = NOW, NOW + 1
    failed = (Failure(5, 1, "x"), Failure(since, 2, "x"))
    running = {"statuses": frozenset({Status.RUNNING})}
    cases: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({}, {"created_at": since}, False),
        ({}, {"status": Status.DEAD, "finished_at": then}, True),
        ({}, {"status": Status.DEAD, "finished_at": since}, False),
        ({}, {"status": Status.RETRYING, "history": failed[:1]}, True),
        ({}, {"status": Status.RETRYING, "history": failed}, False),
        ({}, {"status": Status.RUNNING, "started_at": since, "history": failed}, True),
        (running, {"status": Status.RUNNING, "started_at": then}, True),
        (running, {"status": Status.RUNNING, "started_at": since}, False),
        ({"due": "now"}, {"scheduled_at": then}, True),
        ({"due": "now"}, {"scheduled_at": since}, False),
        ({"due": "later"}, {"scheduled_at": since}, True),
    ]
    for asked, found, there in cases:
        assert matched_at(job(**{"created_at": 5, **found}), Query(**asked), then) is there, (asked, found)


@pytest.mark.spec("ADMIN-08")
def test_a_question_as_of_a_moment_leaves_out_what_came_or_ended_later() -> None:
    query = as_of(Query(), NOW)
    for times, found in (
        ({"created_at": NOW}, True),
        ({"created_at": NOW + 1}, False),
        ({"created_at": 5, "finished_at": NOW, "status": Status.DEAD}, True),
        ({"created_at": 5, "finished_at": NOW + 1, "status": Status.DEAD}, False),
    ):
        assert matches(job(**times), query, NOW) is found
    assert not is_counted(query)
    assert [as_of(Query(until=until), NOW).until for until in (NOW - 5, NOW + 5)] == [NOW - 5, NOW + 1]


def test_an_empty_tally_is_all_zeros() -> None:
    tally = Tally()
    assert (tally.changed, tally.cancel_requested, tally.missing, tally.blocked) == (0, 0, 0, 0)
    assert (tally.refused, tally.created, tally.changed_ids) == ({}, (), ())


# --- census -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("CENSUS-10")
@pytest.mark.parametrize(
    ("later", "due", "expected"), [(3, 0, 3), (10, 4, 96), (10, 10, None)], ids=["few", "many", "both many"]
)
def test_one_complete_count_tells_how_many_are_scheduled(later: int, due: int, expected: int | None) -> None:
    assert scheduled_count(100, later, due, 10) == expected


CENSUS = Census(
    at=NOW,
    counts=(
        Count("mail", "send", Status.PENDING, 5),
        Count("mail", "bounce", Status.PENDING, 2),
        Count("mail", "send", Status.DEAD, 1),
        Count("sms", "text", Status.PENDING, 4),
    ),
    later={"mail": 3},
    oldest_ready={"mail": NOW - 7},
    oldest_running={"sms": NOW - 9},
    totals={"send": Totals(enqueued=6, failed=1, last_error="no")},
)


@pytest.mark.spec("CENSUS-02")
def test_a_census_adds_up_by_status() -> None:
    assert CENSUS.by_status() == dict.fromkeys(Status, 0) | {Status.PENDING: 11, Status.DEAD: 1}
    assert CENSUS.by_status("mail") == dict.fromkeys(Status, 0) | {Status.PENDING: 7, Status.DEAD: 1}
    assert CENSUS.by_status("unknown") == dict.fromkeys(Status, 0)


@pytest.mark.spec("CENSUS-05", "CENSUS-06")
def test_a_census_tells_ready_lag_and_kinds() -> None:
    assert [CENSUS.ready(queue) for queue in ("mail", "sms", "unknown")] == [4, 4, 0]
    assert [CENSUS.lag(queue) for queue in ("mail", "sms", "unknown")] == [7, 0, 0]
    assert CENSUS.kinds() == ["bounce", "send", "text"]
    assert CENSUS.kinds("mail") == ["bounce", "send"]
    assert CENSUS.kinds("unknown") == []


@pytest.mark.spec("MODEL-04")
def test_retention_keeps_a_month_of_history_and_a_minute_of_presence() -> None:
    plain = Retention()
    assert (plain.limit, plain.events, plain.points, plain.presences) == (1_000, 30 * DAY, 30 * DAY, MINUTE)
    assert plain.finished is None
    assert Expired() == Expired(jobs=0, events=0, points=0, presences=0, locks=0)
    assert plain.sweeps == frozenset(Sweep)
    assert {name: getattr(Expired(), name) for name in Sweep} == dict.fromkeys(Sweep, 0), "counted under its name"
    one = Expired(jobs=1, events=2, points=3, presences=4, locks=5)
    assert one + Expired(events=1) + Expired() == Expired(jobs=1, events=3, points=3, presences=4, locks=5)


@pytest.mark.spec("CANCEL-10")
def test_a_request_to_stop_notes_its_reason_within_bounds() -> None:
    assert Cancel("wrong customer").note() == {CANCEL_REASON: "wrong customer"}
    assert Cancel("x" * 5_000).note() == {CANCEL_REASON: "x" * LONGEST_REASON}
    assert [Cancel("wrong customer").given, Cancel().given, Cancel("").given] == ["wrong customer", None, None]
    assert Cancel("").note() == {}


@pytest.mark.spec("EXPIRE-13")
@pytest.mark.parametrize(
    ("finished", "history", "expected"), [(None, None, None), (5, None, 5), (None, 3, 3), (5, 3, 3), (2, 3, 2)]
)
def test_of_two_bounds_the_lower_one_counts(finished: int | None, history: int | None, expected: int | None) -> None:
    retention = Retention(limit=7, finished=finished)
    assert bounded(retention, history) == Retention(limit=7, finished=expected)


@pytest.mark.spec("EXPIRE-13")
def test_a_history_is_a_whole_number_of_at_least_one() -> None:
    assert [history_of(option) for option in (None, 1, "1000")] == [None, 1, 1_000]
    for option in (0, -1, "0", "many", "1.5"):
        with pytest.raises(InvalidOption, match="at least 1"):
            history_of(option)


@pytest.mark.spec("FIND-25")
def test_a_cursor_is_good_for_its_own_kind_of_order() -> None:
    job = bytes(range(16))
    assert Query(cursor=job).cursor == job
    timed = cursor_at(7, job)
    assert Query(order="due", cursor=timed).start(0) == (7, job)
    for wrong in ({"order": "due", "cursor": job}, {"order": "oldest", "cursor": timed}, {"cursor": b"x"}):
        with pytest.raises(InvalidInput, match="begin without one"):
            Query(**wrong)
    assert Query(order="finished", cursor=cursor_at(LATEST, job)).start(0) == (LATEST, job)
    for order in ("finished", "due"):
        with pytest.raises(InvalidInput, match="begin without one"):
            Query(order=order, cursor=cursor_at(LATEST + 1, job))
    assert read_cursor(write_cursor(timed)) == timed
    assert read_cursor("00010203-0405-0607-0809-0a0b0c0d0e0f") == job
    with pytest.raises(InvalidInput, match="the page before"):
        read_cursor("no cursor")


@pytest.mark.spec("FIND-21")
def test_an_order_or_window_that_no_job_can_have_is_refused() -> None:
    for wrong in (
        {"order": "finished", "statuses": frozenset({Status.RUNNING})},
        {"order": "due", "statuses": frozenset({Status.DEAD})},
        {"order": "due", "finished_since": 5},
        {"finished_until": 5, "statuses": frozenset({Status.PENDING})},
    ):
        with pytest.raises(InvalidInput, match="no job that"):
            Query(**wrong)


@pytest.mark.spec("FIND-22")
def test_a_walk_by_time_begins_and_ends_where_the_query_says() -> None:
    assert Query(order="due").start(5) == (0, b"")
    assert Query(order="due", due="later").start(5) > (5, b"\xff" * 16)
    assert Query(order="finished").start(5) > (10**16, b"\xff" * 16)
    assert Query(order="finished", finished_until=9).start(5) == (9, b"")
    assert Query(order="due", due="now").is_over(6, 5)
    assert not Query(order="due", due="now").is_over(5, 5)
    assert not Query(order="due").is_over(6, 5)
    assert Query(order="finished", finished_since=4).is_over(3, 5)
    assert not Query(order="finished", finished_since=4).is_over(4, 5)
    assert not Query(order="finished").is_over(0, 5)


@pytest.mark.spec("ALTER-25")
def test_an_edit_asks_for_something_that_a_job_may_have() -> None:
    assert Edit(priority=5).attempts is None
    for wrong, why in (
        ({}, "at least one of payload, priority, at, attempts"),
        ({"priority": 2_000}, "between -1000 and 1000"),
        ({"attempts": 0}, "1 to 1,000,000"),
        ({"payload": "text"}, "JSON bytes"),
        ({"at": -1}, "between 1970"),
    ):
        with pytest.raises(InvalidInput, match=why):
            Edit(**wrong)
    assert allows(Edit(at=5), Status.PENDING)
    assert not allows(Edit(at=5), Status.DEAD)
    assert allows(Edit(attempts=5), Status.DEAD)


@pytest.mark.spec("FIND-29")
def test_a_cursor_stands_behind_a_job_and_has_its_time() -> None:
    one = job(finished_at=7_000)
    assert cursor_behind(one, Query()) == one.id
    assert cursor_time(cursor_behind(one, Query(order="finished"))) == 7_000
    assert cursor_time(cursor_behind(one, Query(order="due"))) == one.scheduled_at
    assert cursor_time(one.id) == minted_at(one.id)


@pytest.mark.spec("SEARCH-02")
def test_texts_are_looked_for_in_payload_and_error_or_in_errors_alone() -> None:
    one = job(payload=b'{"to": "Ada"}', status=Status.DEAD, last_error="Timeout: no route")
    for asked, both, errors in (
        (Query(text="ada"), True, False),
        (Query(text="ROUTE"), True, True),
        (Query(text="bob"), False, False),
        (Query(payload="ada"), True, False),
        (Query(error="route"), True, True),
        (Query(error="ada"), False, False),
        (Query(), True, True),
    ):
        assert (has_texts(one, asked), has_texts(one, asked, errors_only=True)) == (both, errors)


@pytest.mark.spec("FIND-23")
def test_a_query_knows_whether_it_asks_about_payload_or_error() -> None:
    assert not Query(kinds=frozenset({"k"})).looks_inside
    for asked in (Query(text="x"), Query(payload="x"), Query(error="x"), Query(same_error="x")):
        assert asked.looks_inside


@pytest.mark.spec("FIND-22")
def test_a_place_is_the_time_of_the_order_and_the_id() -> None:
    waiting, ended = job(scheduled_at=7), job(status=Status.DEAD, finished_at=9)
    assert place_of(waiting, Query(order="due")) == (7, waiting.id)
    assert place_of(ended, Query(order="finished")) == (9, ended.id)


@pytest.mark.spec("FIND-24")
def test_the_same_error_is_the_normalized_first_line() -> None:
    query = Query(same_error=fingerprint_of("no user 7\nat line 3"))
    assert matches(job(status=Status.DEAD, last_error="no user 81"), query, 0)
    assert not matches(job(status=Status.DEAD, last_error="no such host"), query, 0)
    assert not matches(job(), query, 0)


@pytest.mark.spec("ADMIN-34")
def test_counters_know_how_many_jobs_a_plain_question_means() -> None:
    census = Census(
        at=9,
        counts=(
            Count("mail", "send", Status.PENDING, 5),
            Count("mail", "text", Status.PENDING, 2),
            Count("bulk", "send", Status.DEAD, 3),
        ),
        later={"mail": 4},
    )
    mail, send, pending = frozenset({"mail"}), frozenset({"send"}), frozenset({Status.PENDING})
    asked: list[dict[str, Any]] = [
        {},
        {"queues": mail},
        {"kinds": send},
        {"statuses": pending, "kinds": send, "limit": 3, "cursor": b"c" * 16},
    ]
    assert [counted(Query(**one), census) for one in asked] == [10, 7, 8, 5]
    times: list[dict[str, Any]] = [
        {"due": "later"},
        {"due": "now", "queues": mail},
        {"due": "now", "queues": frozenset({"bulk"})},
    ]
    assert [counted(Query(**one), census) for one in times] == [4, 3, 0]
    assert counted(Query(order="finished"), census) == 3
    unknown: list[dict[str, Any]] = [
        {"due": "now", "kinds": send},
        {"tenant": "acme"},
        {"group": GROUP},
        {"meta": ("a", "1")},
        {"since": 5},
        {"text": "x"},
        {"attempts_from": 1},
    ]
    assert [is_counted(Query(**one)) for one in unknown] == [False] * 7
    assert all(is_counted(Query(**one)) for one in (*asked, *times, {"order": "finished"}))


def test_the_queues_of_a_counted_query_are_those_with_such_jobs() -> None:
    pending = frozenset({Status.PENDING})
    assert queues_of(Query(statuses=pending), CENSUS) == {"mail", "sms"}
    assert queues_of(Query(statuses=pending, queues=frozenset({"sms", "none"})), CENSUS) == {"sms"}
    assert queues_of(Query(statuses=pending, kinds=frozenset({"bounce"})), CENSUS) == {"mail"}
    assert queues_of(Query(statuses=frozenset({Status.DEAD})), CENSUS) == {"mail"}


@pytest.mark.spec("EXPIRE-15")
def test_points_of_kinds_are_looked_for_a_little_behind_their_retention() -> None:
    assert kind_points_between(Retention(), 9 * DAY) == (8 * DAY - KINDS_BEHIND, 8 * DAY)
    assert kind_points_between(Retention(kind_points=2 * DAY), 9 * DAY)[1] == 7 * DAY


@pytest.mark.spec("FILTER-06")
def test_bounds_of_attempts_and_ends_hold_what_they_name() -> None:
    """From and to include their number, `until` does not; a job that has not ended is in none of these windows."""
    tried = job(attempts=3)
    for low, high, there in ((3, 3, True), (4, None, False), (None, 2, False), (None, 3, True), (3, None, True)):
        assert matches(tried, Query(attempts_from=low, attempts_to=high), NOW) is there, (low, high)
    ended = job(status=Status.DONE, finished_at=NOW)
    for since, until, there in ((NOW, None, True), (NOW + 1, None, False), (None, NOW, False), (None, NOW + 1, True)):
        assert matches(ended, Query(finished_since=since, finished_until=until), NOW) is there, (since, until)
    assert matches(ended, Query(ended_by=NOW), NOW)
    assert not matches(ended, Query(ended_by=NOW - 1), NOW)


@pytest.mark.spec("CENSUS-02")
def test_due_and_waiting_jobs_are_counted_by_queue() -> None:
    census = msgspec.structs.replace(CENSUS, waiting={"mail": 1})
    counted = {due: {one.queue: one.n for one in chosen_counts(Query(due=due), census)} for due in get_args(Due)}
    assert counted == {
        "now": {"mail": 4, "sms": 4},
        "later": {"mail": 2, "sms": 0},
        "waiting": {"mail": 1, "sms": 0},
    }


@pytest.mark.spec("ADMIN-08")
def test_a_job_of_the_moment_of_a_preview_belongs_to_it() -> None:
    assert matched_at(job(created_at=NOW), Query(), NOW)
    assert not matched_at(job(created_at=NOW + 1), Query(), NOW)

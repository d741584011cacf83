"""What a handler's outcome does to its partition: OUTBOX-14 to -25, -37, -39 and -51 to -55."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.outbox import delivery
from stoker.model.outbox.batch_size import Ending, Pace
from stoker.model.outbox.cursor import Cursor, Lease, LeaseRequest, Terms, attempts_seen, leased, may_lease
from stoker.model.outbox.delivery import (
    EXPIRED,
    KEY_PARKED,
    NOTHING_DONE,
    Advance,
    BatchOutcome,
    Delivered,
    Mode,
    Park,
    Progress,
    Rejected,
    Rejection,
    RetryLater,
    Rules,
    advanced,
    after_crash,
    applies,
    check_request,
    conclude_batch,
    crashes,
    cut_short,
    handed_out,
    quarantine,
    readable,
)
from stoker.model.outbox.letters import LetterStatus
from stoker.model.outbox.stream import Message, numbers
from stoker.model.time import MINUTE, SECOND, Instant

replace = msgspec.structs.replace
NOW: Instant = 1_750_000_000 * SECOND
TERMS = Terms()
PACE = Pace(batch=8, threshold=2)
LEASED, TRANSACTIONAL = Rules(pace=PACE), Rules(mode="transactional", pace=PACE)
BOTH = (LEASED, TRANSACTIONAL)
FREE = Cursor("orders", "publish", 3)


def message(number: int, key: str = "k", payload: bytes | None = b"{}") -> Message:
    return Message(number.to_bytes(16), key, 3, number, payload, "OrderPlaced", NOW - SECOND)


def batch(size: int, after: int = 0, keys: str = "") -> tuple[Message, ...]:
    return tuple(message(n, keys[n - after - 1] if keys else "k") for n in numbers(after, size))


def taken(size: int = 5, attempts: int = 0, position: int = 0, *, keys: str = "", parked: str = "") -> Lease:
    """A partition as a worker holds it while the handler works."""
    cursor = leased(replace(FREE, position=position, attempts=attempts), "w1", NOW, TERMS)
    return Lease(cursor, batch(size, position, keys), frozenset(parked))


def stored(cursor: Cursor, advance: Advance) -> Cursor:
    after = advanced(cursor, advance, NOW)
    assert after is not None
    return after


def lettered(advance: Advance) -> list[tuple[int, str]]:
    return [(one.number, one.reason) for one in advance.letters]


# --- the fence ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-14")
@pytest.mark.parametrize("rules", BOTH)
def test_an_advance_applies_only_to_the_cursor_it_was_made_for(rules: Rules) -> None:
    lease = taken(3)
    advance = conclude_batch(lease, Rejected("bad"), NOW, rules)
    assert advance.letters
    assert applies(lease.cursor, advance)
    for changed in ({"holder": "w2"}, {"token": lease.cursor.token + 1}, {"position": 9}):
        assert advanced(replace(lease.cursor, **changed), advance, NOW) is None


@pytest.mark.spec("OUTBOX-14")
def test_a_lease_past_its_end_still_counts_until_another_worker_takes_over() -> None:
    lease = taken(3)
    advance = conclude_batch(lease, Delivered(), NOW + 99 * SECOND)
    assert stored(lease.cursor, advance).position == 3
    theirs = leased(lease.cursor, "w1", NOW + 99 * SECOND, TERMS)
    assert advanced(theirs, advance, NOW) is None, "the same worker under a new token is another one"


@pytest.mark.spec("OUTBOX-49")
def test_a_lease_behind_an_advance_is_of_the_same_consumer_and_outside_of_transactions() -> None:
    advance = conclude_batch(taken(3), Delivered(), NOW)
    request = LeaseRequest("orders", "publish", "w1", 10)
    check_request(advance, None, joined=True)
    check_request(advance, request, joined=False)
    with pytest.raises(InvalidInput, match="later commit"):
        check_request(advance, request, joined=True)
    with pytest.raises(InvalidInput, match="'publish' of stream 'orders'"):
        check_request(advance, replace(request, consumer="project"), joined=False)


@pytest.mark.spec("OUTBOX-37")
def test_a_retry_counts_once_and_crashes_each() -> None:
    lease = taken(2)
    retried = stored(lease.cursor, conclude_batch(lease, RetryLater("busy"), NOW))
    assert (retried.attempts, retried.last_error) == (1, "busy")
    cursor, now = FREE, NOW
    for _ in range(2):
        assert may_lease(cursor, now, alive=True)
        cursor, now = leased(cursor, "w1", now, TERMS), now + 31 * SECOND
    held = leased(cursor, "w2", now, TERMS)
    assert attempts_seen(held) == 2
    done = stored(held, conclude_batch(Lease(held, batch(2)), Delivered(), now))
    assert (done.attempts, done.last_error, done.position) == (0, None, 2)


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-15")
@pytest.mark.parametrize("rules", BOTH)
def test_success_passes_the_batch_and_clears_the_past(rules: Rules) -> None:
    lease = taken(5, attempts=4, position=10)
    lease = replace(lease, cursor=replace(lease.cursor, last_error="busy", failures=4))
    advance = conclude_batch(lease, Delivered(), NOW, rules)
    after = stored(lease.cursor, advance)
    assert (advance.ending, advance.report, advance.letters) == (Ending.DELIVERED, None, ())
    assert (after.position, after.attempts, after.last_error, after.failures) == (15, 0, None, 0)
    assert (after.holder, after.until, after.due) == (None, None, 0)
    partly = conclude_batch(lease, Delivered(processed=2), NOW, rules)
    assert (partly.position, partly.processed) == (12, 2)


@pytest.mark.spec("OUTBOX-16")
@pytest.mark.parametrize("rules", BOTH)
@pytest.mark.parametrize("processed", [0, 6, 99, -1])
def test_success_with_nothing_processed_is_a_paced_retry(rules: Rules, processed: int) -> None:
    advance = conclude_batch(taken(5, attempts=2), Delivered(processed, (Rejection(1, "odd"),)), NOW, rules)
    assert (advance.ending, advance.position, advance.letters) == (Ending.RETRY, 0, ())
    assert (advance.attempts, advance.last_error, advance.after) == (3, NOTHING_DONE, SECOND)


@pytest.mark.spec("OUTBOX-17")
@pytest.mark.parametrize("processed", [None, 0, 9])
def test_a_leased_retry_without_progress_keeps_the_one_attempt_of_its_lease(processed: int | None) -> None:
    advance = conclude_batch(taken(5), RetryLater("busy", processed), NOW)
    assert (advance.attempts, advance.last_error, advance.report) == (1, "busy", "busy")
    assert (advance.position, advance.processed) == (0, processed)


@pytest.mark.spec("OUTBOX-18")
def test_a_leased_retry_with_progress_keeps_the_prefix_and_reports_the_reason() -> None:
    outcome = RetryLater("busy", 2, (Rejection(2, "odd"), Rejection(4, "not reached")))
    advance = conclude_batch(taken(5, attempts=3), outcome, NOW)
    assert (advance.position, advance.attempts, advance.last_error) == (2, 0, None)
    assert (advance.ending, advance.report) == (Ending.RETRY, "busy")
    assert lettered(advance) == [(2, "odd")]


@pytest.mark.spec("OUTBOX-39")
@pytest.mark.parametrize("processed", [None, 0, 3])
def test_a_transactional_retry_keeps_the_whole_batch(processed: int | None) -> None:
    advance = conclude_batch(taken(5, attempts=1), RetryLater("busy", processed), NOW, TRANSACTIONAL)
    assert (advance.position, advance.attempts, advance.last_error) == (0, 2, "busy")
    assert (advance.processed, advance.letters) == (processed, ())


@pytest.mark.spec("OUTBOX-20")
def test_a_transactional_reject_makes_letters_of_the_whole_batch() -> None:
    advance = conclude_batch(taken(3), Rejected("bad", 2), NOW, TRANSACTIONAL)
    assert lettered(advance) == [(1, "bad"), (2, "bad"), (3, "bad")]
    assert {one.attempts for one in advance.letters} == {1}
    assert (advance.position, advance.ending, advance.report) == (3, Ending.REJECTED, "bad")


@pytest.mark.spec("OUTBOX-21")
@pytest.mark.parametrize(
    "processed, expected",
    [(None, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (-4, [1, 2, 3, 4]), (3, [4]), (4, []), (9, [])],
)
def test_a_leased_reject_makes_letters_of_what_follows_the_prefix(processed: int | None, expected: list[int]) -> None:
    advance = conclude_batch(taken(4), Rejected("bad", processed), NOW)
    assert [one.number for one in advance.letters] == expected
    assert (advance.position, advance.attempts) == (4, 0)


@pytest.mark.spec("OUTBOX-21", "OUTBOX-22")
def test_single_rejections_keep_their_own_reason() -> None:
    outcome = Rejected("bad", 2, (Rejection(1, "odd"), Rejection(3, "odder")))
    advance = conclude_batch(taken(4, attempts=2), outcome, NOW)
    assert lettered(advance) == [(1, "odd"), (3, "odder"), (4, "bad")]
    assert {one.attempts for one in advance.letters} == {3}


@pytest.mark.spec("OUTBOX-22")
def test_rejected_messages_count_as_processed_and_the_batch_goes_on() -> None:
    progress = Progress((1, 2, 3, 4)).done(1).reject(2, "odd").done(4)
    assert (progress.processed, progress.rejections) == (4, (Rejection(2, "odd"),))
    advance = conclude_batch(taken(4), Delivered(progress.processed, progress.rejections), NOW)
    assert (advance.position, lettered(advance)) == (4, [(2, "odd")])


@pytest.mark.spec("OUTBOX-23")
def test_progress_is_contiguous() -> None:
    progress = Progress((5, 6, 7)).done(5)
    assert [progress.through(count).processed for count in (0, 1, 3)] == [1, 1, 3]
    assert progress.done(7).processed == 3
    for wrong in (4, 5, 8):
        with pytest.raises(InvalidInput):
            progress.done(wrong)
    for wrong in (5, 7, 8):
        with pytest.raises(InvalidInput, match="all before it"):
            progress.reject(wrong, "odd")
    with pytest.raises(InvalidInput):
        progress.done(7).reject(8, "odd")


@pytest.mark.spec("OUTBOX-24")
def test_a_handler_stopped_at_its_deadline_keeps_its_prefix() -> None:
    progress = Progress((1, 2, 3)).done(1).reject(2, "odd")
    advance = conclude_batch(taken(3), cut_short(progress), NOW)
    assert (advance.position, advance.report, len(advance.letters)) == (2, EXPIRED, 1)
    nothing = conclude_batch(taken(3), cut_short(Progress((1, 2, 3))), NOW)
    assert (nothing.position, nothing.last_error) == (0, EXPIRED)


@pytest.mark.spec("OUTBOX-37")
@pytest.mark.parametrize("rules", BOTH)
def test_a_free_retry_gives_the_attempt_back_and_keeps_size_and_failures(rules: Rules) -> None:
    lease = taken(5, attempts=2)
    lease = replace(lease, cursor=replace(lease.cursor, size=4, failures=1))
    snoozed = conclude_batch(lease, RetryLater("later", 0, free=True, after=MINUTE), NOW, rules)
    assert (snoozed.attempts, snoozed.after, snoozed.size, snoozed.failures) == (2, MINUTE, 4, 1)
    assert (snoozed.position, snoozed.last_error) == (0, "later")
    assert conclude_batch(lease, RetryLater("stopped", free=True), NOW, rules).after == 0
    assert conclude_batch(replace(lease, cursor=FREE), RetryLater("x", free=True), NOW, rules).attempts == 0


# --- how it goes on -------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-51")
def test_the_next_size_and_the_rest_are_stored_with_the_cursor() -> None:
    cursor, waits, sizes = FREE, [], []
    for _ in range(3):
        lease = Lease(leased(cursor, "w1", NOW, TERMS), batch(8))
        cursor = stored(lease.cursor, conclude_batch(lease, RetryLater("busy"), NOW, LEASED))
        waits.append(cursor.due - NOW)
        sizes.append(cursor.size)
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND]
    assert sizes == [None, 1, 1]
    for size, failures in ((2, 0), (4, 0), (None, 0)):
        lease = Lease(leased(cursor, "w1", NOW, TERMS), batch(cursor.size or 8))
        cursor = stored(lease.cursor, conclude_batch(lease, Delivered(), NOW, LEASED))
        cursor = replace(cursor, position=0)
        assert (cursor.size, cursor.failures, cursor.due) == (size, failures, 0)


@pytest.mark.spec("OUTBOX-51")
def test_a_handlers_own_delay_beats_the_pace() -> None:
    advance = conclude_batch(taken(5), RetryLater("busy", after=7 * SECOND), NOW, LEASED)
    assert (advance.after, advance.failures, advance.attempts) == (7 * SECOND, 1, 1)
    given_up = conclude_batch(
        taken(1, attempts=9), RetryLater("busy", after=7 * SECOND), NOW, Rules(attempts=3, pace=PACE)
    )
    assert given_up.ending is Ending.REJECTED
    assert given_up.after != 7 * SECOND, "what is given up is not waited for"


# --- giving up ------------------------------------------------------------------------------------------------------

POISON = Rules(attempts=3, pace=PACE)


@pytest.mark.spec("OUTBOX-52")
@pytest.mark.parametrize("mode", ["leased", "transactional"])
def test_a_message_is_given_up_at_its_last_attempt(mode: Mode) -> None:
    rules = replace(POISON, mode=mode)
    for attempts in (0, 1):
        assert conclude_batch(taken(5, attempts), RetryLater("bad", 0), NOW, rules).position == 0
    advance = conclude_batch(taken(5, attempts=2), RetryLater("bad", 0), NOW, rules)
    assert (advance.position, advance.ending, advance.attempts, advance.report) == (1, Ending.REJECTED, 0, "bad")
    assert [(one.number, one.attempts, one.status) for one in advance.letters] == [(1, 3, LetterStatus.PENDING)]
    assert (advance.size, advance.failures, advance.after, advance.parks) == (1, 0, 0, ())


@pytest.mark.spec("OUTBOX-52")
def test_a_message_is_given_up_only_when_it_is_known_to_be_the_one() -> None:
    late = 9
    assert conclude_batch(taken(5, late), RetryLater("bad"), NOW, POISON).position == 0, "the handler does not count"
    assert conclude_batch(taken(5, late), RetryLater("bad", 0, unit=3), NOW, POISON).position == 0, "a chunk failed"
    assert conclude_batch(taken(5, late), RetryLater("later", 0, free=True), NOW, POISON).position == 0
    assert conclude_batch(taken(1, late), RetryLater("bad"), NOW, POISON).position == 1, "it was alone"
    assert conclude_batch(taken(1, late), Delivered(0), NOW, POISON).position == 1
    assert conclude_batch(taken(5, late), RetryLater("bad", 0), NOW, LEASED).position == 0, "never"
    walked = conclude_batch(taken(5, late), RetryLater("bad", 2), NOW, replace(POISON, mode="transactional"))
    assert (walked.position, walked.letters) == (0, ()), "the third message is the one, and it is not the first"


@pytest.mark.spec("OUTBOX-52")
@pytest.mark.parametrize("wrong", [{"mode": "fast"}, {"then": "stop"}, {"attempts": 0}, {"attempts": True}])
def test_rules_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Rules(**wrong)


# --- parking --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-53")
def test_giving_up_parks_the_key() -> None:
    rules = replace(POISON, then="park")
    advance = conclude_batch(taken(3, attempts=2, keys="aba"), RetryLater("bad", 0), NOW, rules)
    assert advance.parks == (Park("a", "bad"),)
    assert [(one.number, one.status) for one in advance.letters] == [(1, LetterStatus.PARKED)]
    assert advance.position == 1


@pytest.mark.spec("OUTBOX-53")
def test_messages_of_parked_keys_are_set_aside_in_their_place() -> None:
    lease = taken(6, keys="pabpap", parked="p")
    assert [one.number for one in handed_out(lease)] == [2, 3, 5]

    def passed(outcome: BatchOutcome) -> tuple[int, list[int]]:
        advance = conclude_batch(lease, outcome, NOW, LEASED)
        assert all(one.reason == KEY_PARKED and one.attempts == 0 for one in advance.letters if one.key == "p")
        return advance.position, [one.number for one in advance.letters if one.status is LetterStatus.PARKED]

    assert passed(Delivered()) == (6, [1, 4, 6])
    assert passed(Delivered(1)) == (2, [1])
    assert passed(Delivered(2)) == (4, [1, 4])
    assert passed(Delivered(3)) == (6, [1, 4, 6])
    assert passed(RetryLater("busy", 0)) == (0, [])
    assert passed(RetryLater("busy", 2)) == (4, [1, 4])
    assert passed(Rejected("bad", 1)) == (6, [1, 4, 6])
    advance = conclude_batch(replace(lease, cursor=replace(lease.cursor, attempts=3)), RetryLater("b", 0), NOW, POISON)
    assert (advance.position, lettered(advance)) == (2, [(1, KEY_PARKED), (2, "b")])


@pytest.mark.spec("OUTBOX-53")
def test_a_batch_of_parked_keys_alone_is_passed() -> None:
    advance = conclude_batch(taken(3, keys="ppp", parked="p"), Delivered(), NOW)
    assert (advance.position, len(advance.letters), advance.ending) == (3, 3, Ending.DELIVERED)


def released(size: int, attempts: int = 0) -> Lease:
    lease = taken(size, attempts, position=9)
    return replace(lease, messages=batch(size), released="k")


@pytest.mark.spec("OUTBOX-54")
def test_a_released_key_is_delivered_without_moving_the_cursor() -> None:
    lease = released(3, attempts=4)
    lease = replace(lease, cursor=replace(lease.cursor, size=2, failures=3, last_error="old"))
    advance = conclude_batch(lease, Delivered(), NOW)
    assert (advance.resolved, advance.returned, advance.parks) == ((1, 2, 3), (), ())
    assert (advance.position, advance.attempts, advance.last_error, advance.released) == (9, 4, "old", "k")
    assert (advance.size, advance.failures, advance.after, advance.letters) == (2, 3, 0, ())
    partly = conclude_batch(lease, Delivered(2), NOW)
    assert (partly.resolved, partly.returned, partly.released) == ((1, 2), (), "k")
    assert conclude_batch(released(0), Delivered(), NOW).released == "k"


@pytest.mark.spec("OUTBOX-55")
@pytest.mark.parametrize(
    "outcome, mode, resolved, reason",
    [
        (RetryLater("bad", 1), "leased", (1,), "bad"),
        (RetryLater("bad"), "leased", (), "bad"),
        (RetryLater("bad", 1), "transactional", (), "bad"),
        (Rejected("never", 2), "leased", (1, 2), "never"),
        (RetryLater("bad", 1, (Rejection(2, "odd"),)), "leased", (1,), "bad"),
        (Delivered(0), "leased", (), NOTHING_DONE),
        (Delivered(3, (Rejection(2, "odd"),)), "leased", (1,), "odd"),
    ],
)
def test_a_released_key_that_fails_is_parked_again(
    outcome: BatchOutcome, mode: Mode, resolved: tuple[int, ...], reason: str
) -> None:
    advance = conclude_batch(released(3), outcome, NOW, Rules(mode=mode))
    assert advance.resolved == resolved
    assert advance.returned == (Rejection(len(resolved) + 1, reason),)
    assert (advance.parks, advance.released, advance.report) == ((Park("k", reason),), None, reason)


@pytest.mark.spec("OUTBOX-55")
def test_a_released_key_that_snoozes_stays_released() -> None:
    advance = conclude_batch(released(3), RetryLater("later", 1, free=True, after=MINUTE), NOW)
    assert (advance.resolved, advance.returned, advance.released) == ((1,), (), "k")
    assert (advance.after, advance.report) == (MINUTE, "later")


@pytest.mark.spec("OUTBOX-56")
def test_a_replayed_letter_is_resolved_or_returned() -> None:
    lease = replace(taken(1, position=9), messages=batch(1), replayed=True)
    assert conclude_batch(lease, Delivered(), NOW).resolved == (1,)
    failed = conclude_batch(lease, RetryLater("bad"), NOW)
    assert (failed.resolved, failed.returned, failed.parks) == ((), (Rejection(1, "bad"),), ())
    assert (failed.position, failed.attempts, failed.after) == (9, 0, 0)
    later = conclude_batch(lease, RetryLater("later", free=True, after=SECOND), NOW)
    assert (later.resolved, later.returned, later.after) == ((), (), SECOND)


# --- everything at once ---------------------------------------------------------------------------------------------

counts = st.one_of(st.none(), st.integers(-3, 15))
rejections = st.lists(st.builds(Rejection, st.integers(0, 15), st.just("odd"))).map(tuple)
outcomes: st.SearchStrategy[BatchOutcome] = st.one_of(
    st.builds(Delivered, counts, rejections),
    st.builds(RetryLater, st.just("busy"), counts, rejections, free=st.booleans()),
    st.builds(Rejected, st.just("bad"), counts, rejections),
)


@pytest.mark.spec("OUTBOX-14", "OUTBOX-16", "OUTBOX-22", "OUTBOX-25", "OUTBOX-53")
@given(
    rules=st.builds(
        Rules,
        mode=st.sampled_from(["leased", "transactional"]),
        attempts=st.one_of(st.none(), st.integers(1, 4)),
        then=st.sampled_from(["letter", "park"]),
    ),
    start=st.integers(0, 5),
    keys=st.text("abp", min_size=1, max_size=10),
    attempts=st.integers(0, 9),
    outcome=outcomes,
)
def test_whatever_the_outcome_nothing_is_skipped_or_lettered_twice(
    rules: Rules, start: int, keys: str, attempts: int, outcome: BatchOutcome
) -> None:
    lease = taken(len(keys), attempts, start, keys=keys, parked="p")
    advance = conclude_batch(lease, outcome, NOW, rules)
    passed = [one for one in lease.messages if one.number <= advance.position]
    found = [one.number for one in advance.letters]
    assert start <= advance.position <= start + len(keys)
    assert found == sorted(set(found))
    assert all(start < number <= advance.position for number in found)
    assert {one.number for one in passed if one.key == "p"} <= set(found), "a parked key reached no handler"
    moved = advance.position > start
    assert not moved or (advance.attempts == 0 and advance.last_error is None)
    assert moved or (advance.last_error == advance.report and advance.report)
    assert {park.key for park in advance.parks} <= {"a", "b"}
    after = stored(lease.cursor, advance)
    assert after.holder is None
    assert advanced(after, advance, NOW) is None, "an advance is stored once"


# --- missing bodies -------------------------------------------------------------------------------------------------


def bodies(pattern: str) -> tuple[Message, ...]:
    return tuple(message(n, payload=b"{}" if one == "+" else None) for n, one in enumerate(pattern, 1))


def picked(messages: Sequence[Message]) -> list[int]:
    return [one.number for one in messages]


@pytest.mark.spec("OUTBOX-25")
@pytest.mark.parametrize(
    "pattern, missing, run",
    [
        ("", [], []),
        ("+++", [], [1, 2, 3]),
        ("++-+", [], [1, 2]),
        ("--++", [1, 2], []),
        ("--", [1, 2], []),
        ("-", [1], []),
    ],
)
def test_a_batch_is_cut_at_a_missing_body(pattern: str, missing: list[int], run: list[int]) -> None:
    lost, found = readable(bodies(pattern))
    assert (picked(lost), picked(found)) == (missing, run)


@pytest.mark.spec("OUTBOX-25")
@given(st.text("+-", max_size=12))
def test_a_partition_with_missing_bodies_drains_to_its_end(pattern: str) -> None:
    messages, cursor, delivered, set_aside = bodies(pattern), FREE, [], []
    while rest := messages[cursor.position :]:
        lease = Lease(leased(cursor, "w1", NOW, TERMS), rest)
        lost, found = readable(rest)
        if lost:
            advance = quarantine(lease, lost, NOW)
        else:
            advance = conclude_batch(replace(lease, messages=tuple(found)), Delivered(), NOW)
            delivered += picked(found)
        set_aside += [one.number for one in advance.letters]
        cursor = stored(lease.cursor, advance)
    assert delivered == [n for n, one in enumerate(pattern, 1) if one == "+"]
    assert set_aside == [n for n, one in enumerate(pattern, 1) if one == "-"]


@pytest.mark.spec("OUTBOX-25")
def test_a_quarantined_message_says_what_is_missing() -> None:
    lease = replace(taken(2), messages=bodies("--"))
    advance = quarantine(lease, bodies("--"), NOW)
    assert (advance.ending, advance.position, advance.last_error) == (Ending.REJECTED, 2, None)
    assert advance.report == "the body of message 1 is missing in orders partition 3"
    assert [one.payload for one in advance.letters] == [b"", b""]
    assert delivery.BODY_MISSING.format(number=2, stream="orders", partition=3) == advance.letters[1].reason


# --- crashes --------------------------------------------------------------------------------------------------------


def again(lease: Lease, **changes: Any) -> Lease:
    """The same messages under the next lease of a cursor with other fields."""
    cursor = leased(replace(lease.cursor, **changes), "w2", NOW, TERMS)
    return replace(lease, cursor=cursor)


@pytest.mark.spec("DELIVER-15")
@pytest.mark.parametrize(
    ("attempts", "failures", "error", "found"),
    [
        (0, 0, None, 0),
        (1, 0, None, 1),
        (1, 3, None, 1),  # failures with progress, then a crash
        (1, 1, "no", 0),
        (2, 1, "no", 1),
        (1, 2, "no", 0),
        (1, 0, "snoozed", 1),
    ],
)
def test_leases_that_ended_without_an_outcome_are_crashes(
    attempts: int, failures: int, error: str | None, found: int
) -> None:
    lease = again(taken(), attempts=attempts, failures=failures, last_error=error)
    assert crashes(lease.cursor) == found


@pytest.mark.spec("DELIVER-15")
def test_after_a_crash_messages_come_alone_and_batches_grow_again() -> None:
    assert after_crash(taken(), NOW, LEASED) == taken()
    alone = after_crash(again(taken(), attempts=1), NOW, LEASED)
    assert isinstance(alone, Lease)
    assert ([one.number for one in alone.messages], alone.more) == ([1], True)
    advance = conclude_batch(alone, Delivered(1), NOW, LEASED)
    assert (advance.position, advance.size) == (1, 2)
    assert after_crash(again(taken(), attempts=50), NOW, LEASED) != taken()


@pytest.mark.spec("DELIVER-15")
def test_a_message_that_kills_is_given_up_when_its_attempts_are_used_up() -> None:
    rules = replace(LEASED, attempts=3, then="park")
    assert isinstance(after_crash(again(taken(), attempts=2), NOW, rules), Lease)
    advance = after_crash(again(taken(), attempts=3), NOW, rules)
    assert isinstance(advance, Advance)
    assert (advance.position, [one.key for one in advance.parks]) == (1, ["k"])
    assert "3 times in a row" in advance.letters[0].reason


@pytest.mark.spec("DELIVER-15")
@pytest.mark.parametrize("what", [{"replayed": True}, {"released": "k"}])
def test_a_letter_that_kills_is_set_aside_and_costs_the_messages_nothing(what: dict[str, Any]) -> None:
    lease = replace(taken(1), **what)
    rules = replace(LEASED, attempts=1)
    assert isinstance(after_crash(again(lease, attempts=2), NOW, rules), Lease)
    advance = after_crash(again(lease, attempts=3), NOW, rules)
    assert isinstance(advance, Advance)
    assert ([one.number for one in advance.returned], advance.position, advance.attempts) == ([1], 0, 0)


@pytest.mark.spec("OUTBOX-54")
def test_letters_that_are_left_are_delivered_again() -> None:
    """One of three was delivered: the turn ends as a retry; all of them: as delivered."""
    lease = released(3)
    some = conclude_batch(lease, Delivered(1), NOW, LEASED)
    assert (some.ending, some.resolved) == (Ending.RETRY, (1,))
    whole = conclude_batch(lease, Delivered(), NOW, LEASED)
    assert (whole.ending, whole.resolved) == (Ending.DELIVERED, (1, 2, 3))

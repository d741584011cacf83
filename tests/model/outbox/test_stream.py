"""Streams, cursors, delivery and letters: OUTBOX-01 to OUTBOX-29."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import (
    InvalidInput,
    InvalidName,
    InvalidOption,
    InvalidTransition,
    NotFound,
    PayloadTooLarge,
)
from stoker.model.outbox import delivery, letters
from stoker.model.outbox.cursor import Cursor, Strategy, Terms, attempts_seen, deadline, leased, may_lease, remaining
from stoker.model.outbox.delivery import (
    EXPIRED,
    NOTHING_DONE,
    Advance,
    BatchOutcome,
    Delivered,
    Ending,
    Progress,
    Rejected,
    Rejection,
    RetryLater,
    advanced,
    applies,
    conclude_batch,
    cut_short,
    idle,
    quarantine,
    readable,
)
from stoker.model.outbox.letters import Letter, LetterFilter, LetterStatus
from stoker.model.outbox.stream import (
    LARGEST_MESSAGE,
    SEQUENCE_BATCH,
    SEQUENCE_STEPS,
    Entry,
    Message,
    Stream,
    Turn,
    after_step,
    entry,
    known,
    lowered,
    numbers,
    partition_of,
    register,
    sweepable,
)
from stoker.model.time import SECOND, Instant

replace = msgspec.structs.replace
NOW: Instant = 1_750_000_000 * SECOND
ORDERS = Stream("orders", 16)
TERMS = Terms()
BOTH: tuple[Strategy, Strategy] = ("transactional", "leased")
powers = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


def message(number: int, payload: bytes | None = b"{}") -> Message:
    return Message("orders", 3, number, payload, "OrderPlaced", NOW - SECOND)


def batch(size: int, after: int = 0) -> list[Message]:
    return [message(number) for number in numbers(after, size)]


def taken(strategy: Strategy, attempts: int = 0, position: int = 0) -> Cursor:
    """A cursor as a processor holds it while the handler works."""
    cursor = Cursor("orders", 3, position, attempts)
    return leased(cursor, "w1", NOW, TERMS) if strategy == "leased" else cursor


def stored(cursor: Cursor, advance: Advance) -> Cursor:
    after = advanced(cursor, advance)
    assert after is not None
    return after


# --- what may be appended -------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-01")
@pytest.mark.parametrize("partitions", [0, 3, 12, 65, 128, -2, True, "4", 2.0])
def test_partitions_are_a_power_of_two_up_to_64(partitions: int) -> None:
    with pytest.raises(InvalidOption):
        Stream("orders", partitions)
    assert [Stream("orders", 1 << n).partitions for n in range(7)] == [1, 2, 4, 8, 16, 32, 64]
    with pytest.raises(InvalidName):
        Stream("my orders")


@pytest.mark.spec("OUTBOX-02")
def test_registering_again_is_free_and_another_count_is_refused() -> None:
    assert register(None, ORDERS) == register(ORDERS, Stream("orders", 16)) == ORDERS
    with pytest.raises(InvalidOption, match="has 16 already"):
        register(ORDERS, Stream("orders", 8))


@pytest.mark.spec("OUTBOX-02")
def test_an_unregistered_stream_is_named() -> None:
    assert known(ORDERS, "orders") is ORDERS
    with pytest.raises(NotFound, match="'orders' is not registered"):
        known(None, "orders")


@pytest.mark.spec("OUTBOX-03")
def test_keys_keep_their_partition_for_ever() -> None:
    """These values are stored in users' databases: a change of the hash would break their order."""
    assert [partition_of(key, 64) for key in ("", "a", "order-7", "émile")] == [35, 10, 31, 37]


@pytest.mark.spec("OUTBOX-03")
@given(key=st.text(st.characters(exclude_categories=["Cs"])), partitions=powers)
def test_a_key_meets_one_partition_and_doubling_splits_it(key: str, partitions: int) -> None:
    place = partition_of(key, partitions)
    assert 0 <= place < partitions
    assert place == partition_of(key, partitions)
    assert partition_of(key, min(partitions * 2, 64)) % partitions == place


@pytest.mark.spec("OUTBOX-03")
def test_keys_spread_evenly() -> None:
    hits = [0] * 64
    for n in range(6_400):
        hits[partition_of(f"order-{n}", 64)] += 1
    assert min(hits) > 50
    assert max(hits) < 150


@pytest.mark.spec("OUTBOX-04")
def test_a_message_is_addressed_by_key_or_by_partition() -> None:
    by_key = entry(ORDERS, "order-7", b"{}", "OrderPlaced")
    assert by_key == Entry("orders", partition_of("order-7", 16), b"{}", "OrderPlaced")
    assert entry(ORDERS, "order-7", b"", "t", 15).partition == 15
    for wrong in (-1, 16, True, "1"):
        with pytest.raises(InvalidInput, match="0 to 15"):
            entry(ORDERS, "order-7", b"", "t", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        entry(ORDERS, "", b"", "t")


@pytest.mark.spec("OUTBOX-05")
def test_payloads_end_at_64_kib_exactly() -> None:
    assert len(entry(ORDERS, "k", bytes(LARGEST_MESSAGE), "t").payload) == 65_536
    with pytest.raises(PayloadTooLarge, match="65537"):
        entry(ORDERS, "k", bytes(LARGEST_MESSAGE + 1), "t")
    with pytest.raises(InvalidInput):
        entry(ORDERS, "k", "text", "t")  # type: ignore[arg-type]


@pytest.mark.spec("OUTBOX-05")
@pytest.mark.parametrize("wrong", ["", "x" * 1_025, "tab\t", "é", "\x7f", None, 3])
def test_payload_types_are_printable_ascii(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="payload type"):
        entry(ORDERS, "k", b"", wrong)
    for good in ("x" * 1_024, "application/json; v=1"):
        assert entry(ORDERS, "k", b"", good).payload_type == good


@pytest.mark.spec("OUTBOX-05")
def test_one_bad_message_stops_the_whole_list_before_anything_is_stored() -> None:
    good, bad = b"{}", bytes(LARGEST_MESSAGE + 1)
    with pytest.raises(PayloadTooLarge):
        [entry(ORDERS, "k", payload, "t") for payload in (good, bad, good)]


# --- sequencing and sweeping ----------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-06")
@given(st.lists(st.integers(0, SEQUENCE_BATCH)))
def test_numbers_start_at_one_without_gap_or_repetition(steps: list[int]) -> None:
    given_, last = [0], 0
    for count in steps:
        fresh = numbers(last, count)
        given_ += [fresh[0], fresh[-1]] if count else []
        assert len(fresh) == count
        assert not count or fresh[0] == last + 1
        last += count
    assert given_[-1] == sum(steps)
    assert list(numbers(0, 3)) == [1, 2, 3]


@pytest.mark.spec("OUTBOX-07")
@pytest.mark.parametrize(
    "count, step, turn",
    [
        (0, 1, Turn.DRAINED),
        (999, 1, Turn.DRAINED),
        (1_000, 1, Turn.AGAIN),
        (1_000, 7, Turn.AGAIN),
        (1_000, 8, Turn.REQUEUE),
        (999, 8, Turn.DRAINED),
    ],
)
def test_a_turn_has_eight_steps_and_a_full_partition_waits_in_line(count: int, step: int, turn: Turn) -> None:
    assert after_step(count, step) is turn
    assert (SEQUENCE_BATCH, SEQUENCE_STEPS) == (1_000, 8)


@pytest.mark.spec("OUTBOX-08", "OUTBOX-26")
@given(seen=st.integers(0, 100), added=st.integers(0, 100))
def test_what_is_added_during_a_sweep_survives_it(seen: int, added: int) -> None:
    after = lowered(seen + added, seen)
    assert after == added
    assert lowered(lowered(seen, seen), seen) == 0, "a stale second decrement stays at zero"


@pytest.mark.spec("OUTBOX-26")
def test_a_sweep_ends_at_the_cursor() -> None:
    assert sweepable(2, 40) == 40
    assert sweepable(2, 0) == 0
    assert sweepable(0, 40) == 0


# --- leases ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-09")
def test_a_lease_is_free_or_over_and_not_even_its_holder_gets_it_sooner() -> None:
    free = Cursor("orders", 3)
    assert may_lease(free, NOW)
    held = leased(free, "w1", NOW, TERMS)
    assert (held.holder, held.until, held.attempts) == ("w1", NOW + 30 * SECOND, 1)
    assert not may_lease(held, NOW + 30 * SECOND - 1)
    assert may_lease(held, NOW + 30 * SECOND)
    assert may_lease(replace(held, until=None), NOW)


@pytest.mark.spec("OUTBOX-10")
@given(st.lists(st.integers(-SECOND, SECOND), min_size=1))
def test_tokens_only_grow_whatever_the_clock_does(steps: list[int]) -> None:
    cursor, now = Cursor("orders", 3), NOW
    for step in steps:
        now += step
        after = leased(cursor, "w1", now, TERMS)
        assert after.token > cursor.token
        cursor = after


@pytest.mark.spec("OUTBOX-11")
def test_a_slow_acquisition_costs_the_handler_not_the_margin() -> None:
    end = deadline(NOW, TERMS)
    assert end == NOW + 28 * SECOND
    granted_late = leased(Cursor("orders", 3), "w1", NOW + 5 * SECOND, TERMS)
    assert granted_late.until is not None
    assert granted_late.until - end >= TERMS.headroom
    assert [remaining(end, NOW + n * SECOND) for n in (5, 28, 40)] == [23 * SECOND, 0, 0]


@pytest.mark.spec("OUTBOX-11")
@pytest.mark.parametrize("lease, headroom", [(0, 0), (-5, -9), (5, 5), (5, 6), (5, -1), (1 << 60, 0)])
def test_the_margin_is_smaller_than_the_lease(lease: int, headroom: int) -> None:
    with pytest.raises(InvalidOption):
        Terms(lease, headroom)


@pytest.mark.spec("OUTBOX-12")
def test_the_handler_sees_earlier_deliveries_only() -> None:
    assert attempts_seen(taken("leased"), "leased") == 0
    assert attempts_seen(taken("leased", attempts=2), "leased") == 2
    assert attempts_seen(Cursor("orders", 3), "leased") == 0
    assert attempts_seen(taken("transactional", attempts=2), "transactional") == 2


@pytest.mark.spec("OUTBOX-12", "OUTBOX-13")
def test_idle_polls_count_nothing_a_retry_counts_once_and_crashes_each() -> None:
    cursor, now = Cursor("orders", 3), NOW
    for _ in range(5):
        held = leased(cursor, "w1", now, TERMS)
        cursor, now = stored(held, idle(held)), now + SECOND
    assert (cursor.attempts, cursor.holder, cursor.vacuum, cursor.position) == (0, None, 0, 0)

    held = leased(cursor, "w1", now, TERMS)
    retried = stored(held, conclude_batch(held, batch(2), RetryLater("busy"), "leased", now))
    assert (retried.attempts, retried.last_error) == (1, "busy")

    for _ in range(2):
        now += 31 * SECOND
        assert may_lease(cursor, now)
        cursor = leased(cursor, "w1", now, TERMS)
    now += 31 * SECOND
    held = leased(cursor, "w2", now, TERMS)
    assert attempts_seen(held, "leased") == 2
    done = stored(held, conclude_batch(held, batch(2), Delivered(), "leased", now))
    assert (done.attempts, done.last_error, done.position) == (0, None, 2)


@pytest.mark.spec("OUTBOX-14")
@pytest.mark.parametrize("strategy", BOTH)
def test_an_advance_applies_only_to_the_cursor_it_was_made_for(strategy: Strategy) -> None:
    mine = taken(strategy)
    advance = conclude_batch(mine, batch(3), Rejected("bad"), strategy, NOW)
    assert advance.letters
    assert applies(mine, advance)
    for changed in ({"holder": "w2"}, {"token": mine.token + 1}, {"position": 9}):
        assert advanced(replace(mine, **changed), advance) is None


@pytest.mark.spec("OUTBOX-14")
def test_a_lease_past_its_end_still_counts_until_somebody_takes_over() -> None:
    mine = taken("leased")
    advance = conclude_batch(mine, batch(3), Delivered(), "leased", NOW + 99 * SECOND)
    assert stored(mine, advance).position == 3
    theirs = leased(mine, "w1", NOW + 99 * SECOND, TERMS)
    assert advanced(theirs, advance) is None, "the same worker under a new token is somebody else"


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-15")
@pytest.mark.parametrize("strategy", BOTH)
def test_success_passes_the_batch_and_clears_the_past(strategy: Strategy) -> None:
    held = replace(taken(strategy, attempts=4, position=10), last_error="busy", vacuum=7)
    advance = conclude_batch(held, batch(5, after=10), Delivered(), strategy, NOW)
    after = stored(held, advance)
    assert (advance.ending, advance.report, advance.letters) == (Ending.DELIVERED, None, ())
    assert (after.position, after.attempts, after.last_error, after.vacuum) == (15, 0, None, 8)
    assert (after.holder, after.until) == (None, None)
    partly = conclude_batch(held, batch(5, after=10), Delivered(processed=2), strategy, NOW)
    assert (partly.position, partly.processed) == (12, 2)


@pytest.mark.spec("OUTBOX-16")
@pytest.mark.parametrize("strategy, attempts", [("leased", 3), ("transactional", 3)])
@pytest.mark.parametrize("processed", [0, 6, 99, -1])
def test_success_with_nothing_processed_is_a_paced_retry(strategy: Strategy, attempts: int, processed: int) -> None:
    held = taken(strategy, attempts=2)
    refused = Delivered(processed, (Rejection(1, "odd"),))
    advance = conclude_batch(held, batch(5), refused, strategy, NOW)
    assert (advance.ending, advance.position, advance.letters) == (Ending.RETRY, 0, ())
    assert (advance.attempts, advance.last_error, advance.vacuum) == (attempts, NOTHING_DONE, 0)


@pytest.mark.spec("OUTBOX-17")
@pytest.mark.parametrize("processed", [None, 0, 9])
def test_a_leased_retry_without_progress_keeps_the_one_attempt_of_its_lease(processed: int | None) -> None:
    held = taken("leased")
    advance = conclude_batch(held, batch(5), RetryLater("busy", processed), "leased", NOW)
    assert (advance.attempts, advance.last_error, advance.report) == (1, "busy", "busy")
    assert (advance.position, advance.processed, advance.vacuum) == (0, processed, 0)


@pytest.mark.spec("OUTBOX-18")
def test_a_leased_retry_with_progress_keeps_the_prefix_and_reports_the_reason() -> None:
    held = taken("leased", attempts=3)
    outcome = RetryLater("busy", 2, (Rejection(2, "odd"), Rejection(4, "not reached")))
    advance = conclude_batch(held, batch(5), outcome, "leased", NOW)
    assert (advance.position, advance.attempts, advance.last_error) == (2, 0, None)
    assert (advance.ending, advance.report) == (Ending.RETRY, "busy")
    assert [(one.number, one.reason) for one in advance.letters] == [(2, "odd")]


@pytest.mark.spec("OUTBOX-19")
@pytest.mark.parametrize("processed", [None, 0, 3])
def test_a_transactional_retry_keeps_the_whole_batch_and_counts(processed: int | None) -> None:
    held = taken("transactional", attempts=1)
    advance = conclude_batch(held, batch(5), RetryLater("busy", processed), "transactional", NOW)
    assert (advance.position, advance.attempts, advance.last_error) == (0, 2, "busy")
    assert (advance.processed, advance.letters) == (processed, ())


@pytest.mark.spec("OUTBOX-20")
def test_a_transactional_reject_makes_letters_of_the_whole_batch() -> None:
    advance = conclude_batch(taken("transactional"), batch(3), Rejected("bad", 2), "transactional", NOW)
    assert [(one.number, one.reason, one.attempts) for one in advance.letters] == [
        (1, "bad", 1),
        (2, "bad", 1),
        (3, "bad", 1),
    ]
    assert (advance.position, advance.ending, advance.report) == (3, Ending.REJECTED, "bad")


@pytest.mark.spec("OUTBOX-21")
@pytest.mark.parametrize(
    "processed, lettered",
    [(None, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (-4, [1, 2, 3, 4]), (3, [4]), (4, []), (9, [])],
)
def test_a_leased_reject_makes_letters_of_what_follows_the_prefix(processed: int | None, lettered: list[int]) -> None:
    advance = conclude_batch(taken("leased"), batch(4), Rejected("bad", processed), "leased", NOW)
    assert [one.number for one in advance.letters] == lettered
    assert (advance.position, advance.attempts, advance.vacuum) == (4, 0, 1)


@pytest.mark.spec("OUTBOX-21", "OUTBOX-22")
def test_single_rejections_keep_their_own_reason() -> None:
    outcome = Rejected("bad", 2, (Rejection(1, "odd"), Rejection(3, "odder")))
    advance = conclude_batch(taken("leased", attempts=2), batch(4), outcome, "leased", NOW)
    assert [(one.number, one.reason) for one in advance.letters] == [(1, "odd"), (3, "odder"), (4, "bad")]
    assert {one.attempts for one in advance.letters} == {3}


@pytest.mark.spec("OUTBOX-22")
def test_rejected_messages_count_as_processed_and_the_batch_goes_on() -> None:
    progress = Progress((1, 2, 3, 4)).done(1).reject(2, "odd").done(4)
    assert (progress.processed, progress.rejections) == (4, (Rejection(2, "odd"),))
    outcome = Delivered(progress.processed, progress.rejections)
    advance = conclude_batch(taken("leased"), batch(4), outcome, "leased", NOW)
    assert (advance.position, [one.number for one in advance.letters]) == (4, [2])


@pytest.mark.spec("OUTBOX-23")
def test_progress_is_contiguous() -> None:
    progress = Progress((5, 6, 7)).done(5)
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
    advance = conclude_batch(taken("leased"), batch(3), cut_short(progress), "leased", NOW)
    assert (advance.position, advance.report, len(advance.letters)) == (2, EXPIRED, 1)
    nothing = conclude_batch(taken("leased"), batch(3), cut_short(Progress((1, 2, 3))), "leased", NOW)
    assert (nothing.position, nothing.last_error) == (0, EXPIRED)


counts = st.one_of(st.none(), st.integers(-3, 15))
rejections = st.lists(st.builds(Rejection, st.integers(0, 15), st.just("odd"))).map(tuple)
outcomes: st.SearchStrategy[BatchOutcome] = st.one_of(
    st.builds(Delivered, counts, rejections),
    st.builds(RetryLater, st.just("busy"), counts, rejections),
    st.builds(Rejected, st.just("bad"), counts, rejections),
)


@pytest.mark.spec("OUTBOX-14", "OUTBOX-16", "OUTBOX-22", "OUTBOX-25")
@given(
    strategy=st.sampled_from(BOTH),
    start=st.integers(0, 5),
    size=st.integers(1, 10),
    attempts=st.integers(0, 9),
    outcome=outcomes,
)
def test_whatever_the_outcome_nothing_is_skipped_or_lettered_twice(
    strategy: Strategy, start: int, size: int, attempts: int, outcome: BatchOutcome
) -> None:
    held = taken(strategy, attempts, start)
    messages = batch(size, after=start)
    advance = conclude_batch(held, messages, outcome, strategy, NOW)
    lettered = [one.number for one in advance.letters]
    assert start <= advance.position <= start + size
    assert lettered == sorted(set(lettered))
    assert all(start < number <= advance.position for number in lettered)
    moved = advance.position > start
    assert advance.vacuum == moved
    assert (advance.attempts == 0 and advance.last_error is None) if moved else advance.attempts >= 1
    assert moved or (advance.last_error == advance.report and advance.report)
    after = stored(held, advance)
    assert after.holder is None
    assert advanced(after, advance) is None or not moved, "an advance is stored once"


# --- missing bodies -------------------------------------------------------------------------------------------------


def bodies(pattern: str) -> list[Message]:
    return [message(n, b"{}" if one == "+" else None) for n, one in enumerate(pattern, 1)]


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
    messages, cursor, delivered, lettered = bodies(pattern), Cursor("orders", 3), [], []
    while rest := messages[cursor.position :]:
        held = leased(cursor, "w1", NOW, TERMS)
        lost, found = readable(rest)
        if lost:
            advance = quarantine(held, lost, "leased", NOW)
        else:
            advance = conclude_batch(held, found, Delivered(), "leased", NOW)
            delivered += picked(found)
        lettered += [one.number for one in advance.letters]
        cursor = stored(held, advance)
    assert delivered == [n for n, one in enumerate(pattern, 1) if one == "+"]
    assert lettered == [n for n, one in enumerate(pattern, 1) if one == "-"]


@pytest.mark.spec("OUTBOX-25")
def test_a_quarantined_message_says_what_is_missing() -> None:
    advance = quarantine(taken("transactional"), bodies("--"), "transactional", NOW)
    assert (advance.ending, advance.position, advance.last_error) == (Ending.REJECTED, 2, None)
    assert advance.report == "the body of message 1 is missing in orders partition 3"
    assert [one.payload for one in advance.letters] == [b"", b""]
    assert delivery.BODY_MISSING.format(number=2, stream="orders", partition=3) == advance.letters[1].reason


# --- letters --------------------------------------------------------------------------------------------------------


def letter(status: LetterStatus = LetterStatus.PENDING, **more: object) -> Letter:
    return replace(letters.write(message(7, b"[1]"), "bad", 2, NOW), status=status, **more)


@pytest.mark.spec("OUTBOX-27")
def test_a_letter_is_a_full_copy() -> None:
    one = letters.write(message(7, b"[1]"), "bad", 2, NOW)
    assert one == Letter("orders", 3, 7, b"[1]", "OrderPlaced", NOW - SECOND, "bad", 2, NOW, LetterStatus.PENDING)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Letter) == one


@pytest.mark.spec("OUTBOX-28")
def test_a_claim_ends_at_its_deadline_and_tokens_grow() -> None:
    first = letters.claim(letter(), "op1", NOW + SECOND, NOW)
    assert letters.held(first, "op1", first.token)
    assert not letters.claimable(first, NOW + SECOND - 1)
    with pytest.raises(InvalidTransition, match="orders/3/7"):
        letters.claim(first, "op2", NOW + 9 * SECOND, NOW)
    second = letters.claim(first, "op2", NOW + 9 * SECOND, NOW + SECOND)
    assert second.token > first.token
    assert not letters.held(second, "op1", first.token)
    assert letters.claimable(replace(first, until=None), NOW)
    with pytest.raises(InvalidInput):
        letters.claim(letter(), "op1", NOW, NOW)


@pytest.mark.spec("OUTBOX-28")
def test_giving_back_counts_and_resolving_ends() -> None:
    taken_ = letters.claim(letter(), "op1", NOW + SECOND, NOW)
    back = letters.give_back(taken_, "still bad", NOW + 1)
    assert (back.status, back.attempts, back.reason, back.failed) == (
        LetterStatus.PENDING,
        3,
        "still bad",
        NOW + 1,
    )
    assert (back.holder, back.until, back.token) == (None, None, taken_.token)
    assert not letters.held(back, "op1", taken_.token)
    assert letters.resolve(taken_).status is LetterStatus.RESOLVED
    assert letters.discard(letter()).status is LetterStatus.DISCARDED


MOVES: dict[LetterStatus, Callable[[Letter], Letter]] = {
    LetterStatus.REPROCESSING: lambda one: letters.claim(one, "op1", NOW + SECOND, NOW),
    LetterStatus.RESOLVED: letters.resolve,
    LetterStatus.PENDING: lambda one: letters.give_back(one, "again", NOW),
    LetterStatus.DISCARDED: letters.discard,
}


@pytest.mark.spec("OUTBOX-28")
@pytest.mark.parametrize("before", LetterStatus)
@pytest.mark.parametrize("after", LetterStatus)
def test_only_the_tables_transitions_exist(before: LetterStatus, after: LetterStatus) -> None:
    one = letter(before, until=NOW)
    if after in letters.TABLE[before]:
        assert MOVES[after](one).status is after
    else:
        with pytest.raises(InvalidTransition) as caught:
            MOVES[after](one)
        assert (caught.value.before, caught.value.after) == (before, after)
    ended = before in {LetterStatus.RESOLVED, LetterStatus.DISCARDED}
    assert letters.removable(one) is ended


@pytest.mark.spec("OUTBOX-29")
def test_listing_filters_and_shows_the_latest_failure_first() -> None:
    old, new = letter(failed=NOW), letter(failed=NOW + 1)
    assert sorted([old, new], key=letters.newest_first) == [new, old]
    assert LetterFilter() == LetterFilter(status=LetterStatus.PENDING, limit=100)
    assert LetterFilter("orders", 3, "OrderPlaced").matches(old)
    assert LetterFilter(status=None).matches(letter(LetterStatus.RESOLVED))
    for other in (
        LetterFilter("bills"),
        LetterFilter(partition=0),
        LetterFilter(payload_type="x"),
        LetterFilter(status=LetterStatus.DISCARDED),
    ):
        assert not other.matches(old)
    with pytest.raises(InvalidInput):
        LetterFilter(limit=0)

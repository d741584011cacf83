"""What becomes of messages that were set aside: OUTBOX-27 to -29, -56 and -57."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from stoker.model.errors import InvalidInput
from stoker.model.outbox import letters
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.letters import (
    ClaimLetters,
    Clean,
    Count,
    DiscardLetters,
    GiveBack,
    Letter,
    LetterAction,
    LetterFilter,
    LetterStatus,
    Replay,
    Resolve,
    ResolveLetters,
    RestoreLetters,
    act,
)
from stoker.model.outbox.stream import Message
from stoker.model.time import SECOND

replace = msgspec.structs.replace
NOW = 1_750_000_000 * SECOND
CURSOR = Cursor("orders", "publish", 3)
MESSAGE = Message(bytes(16), "k", 3, 7, b"[1]", "OrderPlaced", NOW - SECOND, {"trace": "x"}, raw=True)
CLAIM = ClaimLetters("op1", SECOND)
PENDING, PARKED, TAKEN, RESOLVED, DISCARDED = LetterStatus


def letter(status: LetterStatus = PENDING, **more: object) -> Letter:
    return replace(letters.write(MESSAGE, CURSOR, "bad", 2, NOW), status=status, **more)


def acted(one: Letter, action: LetterAction, now: int = NOW) -> Letter:
    after = act(one, action, now)
    assert after is not None
    return after


@pytest.mark.spec("OUTBOX-27")
def test_a_letter_is_a_full_copy() -> None:
    one = letters.write(MESSAGE, CURSOR, "bad", 2, NOW)
    for field in ("id", "key", "partition", "number", "payload", "type", "headers", "raw", "created"):
        assert getattr(one, field) == getattr(MESSAGE, field)
    assert (one.stream, one.consumer, one.reason, one.attempts) == ("orders", "publish", "bad", 2)
    assert (one.failed, one.status, one.ended) == (NOW, PENDING, None)
    assert letters.message_of(one) == replace(MESSAGE, attempts=2)
    assert letters.message_of(replace(one, status=PARKED)) == MESSAGE
    assert msgspec.json.decode(msgspec.json.encode(one), type=Letter) == one
    assert letters.write(replace(MESSAGE, payload=None), CURSOR, "gone", 1, NOW).payload == b""


@pytest.mark.spec("OUTBOX-28")
def test_a_claim_ends_at_its_deadline_and_tokens_grow() -> None:
    first = acted(letter(), CLAIM)
    assert (first.status, first.holder, first.until) == (TAKEN, "op1", NOW + SECOND)
    other = ClaimLetters("op2", 9 * SECOND)
    assert act(first, other, NOW + SECOND - 1) is None
    second = acted(first, other, NOW + SECOND)
    assert second.token > first.token
    assert act(second, Resolve("op1", first.token), NOW + SECOND) is None
    assert act(replace(first, until=None), other, NOW) is not None
    for wrong in (0, -1):
        with pytest.raises(InvalidInput, match="span"):
            ClaimLetters("op1", wrong)


@pytest.mark.spec("OUTBOX-28")
def test_giving_back_counts_and_resolving_ends() -> None:
    taken = acted(letter(), CLAIM)
    back = acted(taken, GiveBack("op1", taken.token, "still bad"), NOW + 1)
    assert (back.status, back.attempts, back.reason, back.failed) == (PENDING, 3, "still bad", NOW + 1)
    assert (back.holder, back.until, back.token) == (None, None, taken.token)
    assert act(back, Resolve("op1", taken.token), NOW) is None
    ended = acted(taken, Resolve("op1", taken.token), NOW + 2)
    assert (ended.status, ended.ended, ended.holder) == (RESOLVED, NOW + 2, None)


CHANGES: dict[LetterAction, dict[LetterStatus, LetterStatus]] = {
    Count(): {one: one for one in LetterStatus},
    Replay(): {PENDING: PENDING, TAKEN: PENDING},
    CLAIM: {PENDING: TAKEN, TAKEN: TAKEN},
    Resolve("op0", 5): {TAKEN: RESOLVED},
    GiveBack("op0", 5, "again"): {TAKEN: PENDING},
    DiscardLetters(): {PENDING: DISCARDED, PARKED: DISCARDED},
    ResolveLetters(): {PENDING: RESOLVED, PARKED: RESOLVED},
    RestoreLetters(NOW): {RESOLVED: PENDING, DISCARDED: PENDING},
    Clean(0): {RESOLVED: RESOLVED, DISCARDED: DISCARDED},
}
"""What each action makes of a letter, whose claim, if it has one, is over at this very moment."""


@pytest.mark.spec("OUTBOX-28")
@pytest.mark.parametrize("action, status", [*itertools.product(CHANGES, LetterStatus)])
def test_only_these_changes_exist(action: LetterAction, status: LetterStatus) -> None:
    ended = NOW if status in letters.ENDED else None
    after = act(letter(status, holder="op0", token=5, until=NOW, ended=ended), action, NOW)
    assert (None if after is None else after.status) == CHANGES[action].get(status)
    assert letters.applicable(action) == CHANGES[action].keys()


@pytest.mark.spec("OUTBOX-28")
def test_ended_letters_are_cleaned_when_they_are_old_enough() -> None:
    old = letter(RESOLVED, ended=NOW)
    assert act(old, Clean(SECOND), NOW + SECOND - 1) is None
    assert act(old, Clean(SECOND), NOW + SECOND) is old


@pytest.mark.spec("OUTBOX-56")
def test_a_letter_that_is_due_belongs_to_its_consumer() -> None:
    due = acted(letter(), Replay())
    assert due.due
    assert act(due, Replay(), NOW) is None
    assert act(due, CLAIM, NOW) is None
    assert not acted(due, DiscardLetters()).due
    delivered = letters.redelivered(due, NOW + 1)
    assert (delivered.status, delivered.due, delivered.ended) == (RESOLVED, False, NOW + 1)
    failed = letters.failed_again(due, "worse", NOW + 1)
    assert (failed.status, failed.due, failed.attempts, failed.reason) == (PENDING, False, 3, "worse")


@pytest.mark.spec("OUTBOX-56")
@pytest.mark.parametrize("status", [TAKEN, RESOLVED, DISCARDED])
def test_a_turn_leaves_letters_alone_that_a_user_changed_meanwhile(status: LetterStatus) -> None:
    one = letter(status)
    assert letters.redelivered(one, NOW) is one
    assert letters.failed_again(one, "worse", NOW) is one


@pytest.mark.spec("OUTBOX-57")
def test_a_second_letter_for_a_message_replaces_an_ended_one_and_adds_to_any_other() -> None:
    new = letter(reason="again", failed=NOW + 1, attempts=1)
    assert letters.merge(None, new) is new
    for status in (RESOLVED, DISCARDED):
        assert letters.merge(letter(status), new) is new
    for status in (PENDING, PARKED, TAKEN):
        merged = letters.merge(letter(status, due=status is PENDING), new)
        assert (merged.status, merged.reason, merged.failed, merged.attempts) == (status, "again", NOW + 1, 3)
        assert merged.due is (status is PENDING)
    parked = letters.merge(letter(due=True), replace(new, status=PARKED))
    assert (parked.status, parked.due) == (PARKED, False)


@pytest.mark.spec("OUTBOX-29")
def test_listing_filters_and_shows_the_latest_failure_first() -> None:
    old, new = letter(failed=NOW), letter(failed=NOW + 1)
    assert sorted([old, new], key=lambda one: one.place.order) == [new, old]
    assert LetterFilter() == LetterFilter(status=PENDING, limit=100)
    assert letters.applicable(None) == set(LetterStatus)
    assert LetterFilter("orders", "publish", PENDING, "k", 3, "OrderPlaced", (MESSAGE.id,)).matches(old)
    assert LetterFilter(status=None).matches(letter(RESOLVED))
    for other in (
        LetterFilter("bills"),
        LetterFilter(consumer="project"),
        LetterFilter(partition=0),
        LetterFilter(type="x"),
        LetterFilter(key="l"),
        LetterFilter(status=DISCARDED),
        LetterFilter(ids=()),
    ):
        assert not other.matches(old)
    for wrong in (0, 1_001):
        with pytest.raises(InvalidInput):
            LetterFilter(limit=wrong)


@pytest.mark.spec("OUTBOX-29")
def test_a_page_goes_on_behind_the_last_letter_of_the_one_before() -> None:
    spread = [letter(failed=NOW + failed, number=number) for failed, number in [(0, 1), (0, 2), (1, 3), (1, 4)]]
    listed = sorted(spread, key=lambda one: one.place.order)
    assert [one.number for one in listed] == [3, 4, 1, 2]
    for place, last in enumerate(listed):
        behind = LetterFilter(before=last.place)
        assert [one for one in listed if behind.matches(one)] == listed[place + 1 :]


@pytest.mark.spec("OUTBOX-67")
def test_a_user_resolves_letters_and_takes_back_what_was_done() -> None:
    for status, done in ((PENDING, RESOLVED), (PARKED, RESOLVED)):
        after = acted(letter(status, due=status is PENDING), ResolveLetters(), NOW + 1)
        assert (after.status, after.ended, after.due) == (done, NOW + 1, False)
        back = acted(after, RestoreLetters(NOW + 1), NOW + 2)
        assert (back.status, back.ended, back.due) == (PENDING, None, False)
        assert act(after, RestoreLetters(NOW), NOW + 2) is None, "another action ended it"
    assert acted(acted(letter(), DiscardLetters()), RestoreLetters(NOW)) == letter()
    assert acted(acted(letter(), Replay()), RestoreLetters()) == letter()
    for status in (PENDING, PARKED, TAKEN, RESOLVED, DISCARDED):
        assert act(letter(status), RestoreLetters(), NOW) is None, "no replay was asked for"
    for status in (TAKEN, RESOLVED, DISCARDED):
        assert act(letter(status), ResolveLetters(), NOW) is None
    assert letters.applicable(RestoreLetters()) == {PENDING}


@pytest.mark.spec("OUTBOX-52")
def test_a_token_of_a_letter_rises_also_while_the_clock_goes_back() -> None:
    taken = acted(letter(), CLAIM)
    assert taken.token == NOW
    again = acted(msgspec.structs.replace(taken, status=PENDING, holder=None, until=None), CLAIM, NOW - SECOND)
    assert again.token == NOW + 1

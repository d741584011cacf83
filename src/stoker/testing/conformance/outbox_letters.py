"""Letters, parked keys and replays: what becomes of messages that could not be delivered."""

from __future__ import annotations

import pytest

from stoker.model.outbox.batch_size import Pace
from stoker.model.outbox.consumers import Release, Seek
from stoker.model.outbox.cursor import Lease, NothingDue
from stoker.model.outbox.delivery import KEY_PARKED, Delivered, Rejected, Rejection, RetryLater, Rules, handed_out
from stoker.model.outbox.letters import (
    ClaimLetters,
    Clean,
    Count,
    DiscardLetters,
    GiveBack,
    Letter,
    LetterFilter,
    LetterStatus,
    Replay,
    Resolve,
    ResolveLetters,
    RestoreLetters,
)
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import Store
from stoker.testing.conformance.outbox import Orders, keys

PENDING, PARKED, TAKEN, RESOLVED, DISCARDED = LetterStatus
PARK = Rules(attempts=1, then="park", pace=Pace(batch=1))
"""Give up at once. With the smallest batch giving up does not shrink the next one."""

ANY = LetterFilter("orders", status=None)


async def _statuses(orders: Orders) -> list[tuple[int, LetterStatus]]:
    return [(one.number, one.status) for one in await orders.letters()]


async def _parked(store: Store, *later: str) -> Orders:
    """A stream whose first message, of key `p`, was given up, so that the key is parked."""
    orders = await Orders.begin(store)
    await orders.add("p", *later)
    await orders.turn(RetryLater("poison", 0), PARK)
    return orders


# --- letters --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-25", "OUTBOX-27")
async def test_a_letter_holds_all_of_its_message(store: Store) -> None:
    """Everything that was appended, and what is known about the failure."""
    orders = await Orders.begin(store)
    first, second = await orders.add("a", "b")
    store.pass_time(SECOND)
    await orders.turn(Delivered(2, (Rejection(2, "odd"),)))
    [letter] = await orders.letters()
    for field in second.__struct_fields__:
        assert getattr(letter, field) == getattr(second, field)
    assert letter.id != first.id
    assert (letter.stream, letter.consumer, letter.number) == ("orders", "publish", 2)
    assert (letter.reason, letter.attempts, letter.status) == ("odd", 1, PENDING)
    assert (letter.created, letter.failed) == (store.now() - SECOND, store.now())


@pytest.mark.core
@pytest.mark.spec("OUTBOX-28")
async def test_letters_are_claimed_resolved_and_given_back(store: Store) -> None:
    """Only under the claim's holder and token; a claim that lapsed can be taken over."""
    orders = await Orders.begin(store)
    await orders.add("a", "b")
    await orders.turn(Rejected("bad"))
    act = orders.engine.letters
    claimed = await act(ANY, ClaimLetters("op1", MINUTE))
    assert (claimed.n, {one.status for one in claimed.letters}) == (2, {TAKEN})
    assert {one.until for one in claimed.letters} == {store.now() + MINUTE}
    assert (await act(ANY, ClaimLetters("op2", MINUTE))).n == 0
    first, second = sorted(claimed.letters, key=lambda one: one.number)
    one, two = (LetterFilter("orders", status=None, ids=(letter.id,)) for letter in (first, second))
    for wrong in (Resolve("op2", first.token), Resolve("op1", first.token - 1), GiveBack("op2", first.token, "x")):
        assert (await act(one, wrong)).n == 0
    assert (await act(one, Resolve("op1", first.token))).n == 1
    assert (await act(one, Resolve("op1", first.token))).n == 0
    store.pass_time(MINUTE)
    [again] = (await act(ANY, ClaimLetters("op2", MINUTE))).letters
    assert (again.number, again.holder) == (2, "op2")
    assert again.token > second.token
    assert (await act(two, GiveBack("op1", second.token, "late"))).n == 0
    assert (await act(two, GiveBack("op2", again.token, "still bad"))).n == 1
    resolved, back = await orders.letters()
    assert (resolved.status, resolved.ended, resolved.holder) == (RESOLVED, store.now() - MINUTE, None)
    assert (back.status, back.attempts, back.reason, back.failed) == (PENDING, 2, "still bad", store.now())


@pytest.mark.spec("OUTBOX-28")
async def test_only_ended_letters_are_cleaned_up(store: Store) -> None:
    """Resolved and discarded ones, when they are old enough."""
    orders = await Orders.begin(store)
    await orders.add(*"abcd")
    await orders.turn(Rejected("bad"))
    act = orders.engine.letters
    letters = await orders.letters()
    chosen = [LetterFilter(ids=(letter.id,)) for letter in letters]
    [claimed] = (await act(chosen[0], ClaimLetters("op", MINUTE))).letters
    await act(LetterFilter(status=None, ids=(claimed.id,)), Resolve("op", claimed.token))
    await act(chosen[1], DiscardLetters())
    await act(chosen[2], ClaimLetters("op", MINUTE))
    assert await _statuses(orders) == [(1, RESOLVED), (2, DISCARDED), (3, TAKEN), (4, PENDING)]
    assert (await act(ANY, Clean(HOUR))).n == 0
    store.pass_time(HOUR)
    assert (await act(ANY, Clean(HOUR))).n == 2
    assert await _statuses(orders) == [(3, TAKEN), (4, PENDING)]
    assert (await act(ANY, DiscardLetters())).n == 1, "a claimed letter is not discarded"


@pytest.mark.core
@pytest.mark.spec("OUTBOX-67")
async def test_letters_are_resolved_by_a_user_and_taken_back(store: Store) -> None:
    """Only what one action ended at its instant; a replay that is taken back is not delivered."""
    orders = await Orders.begin(store)
    await orders.add(*"abc")
    await orders.turn(Rejected("bad"))
    act = orders.engine.letters
    assert (await act(LetterFilter(key="a"), ResolveLetters())).n == 1
    first = store.now()
    store.pass_time(SECOND)
    assert (await act(LetterFilter(key="b"), DiscardLetters())).n == 1
    assert await _statuses(orders) == [(1, RESOLVED), (2, DISCARDED), (3, PENDING)]
    assert (await act(ANY, RestoreLetters(first))).n == 1
    assert await _statuses(orders) == [(1, PENDING), (2, DISCARDED), (3, PENDING)]
    assert (await act(ANY, RestoreLetters(first))).n == 0
    assert (await act(LetterFilter(key="c"), Replay())).n == 1
    assert (await act(ANY, RestoreLetters())).n == 1
    assert [one.due for one in await orders.letters()] == [False] * 3
    assert (await act(LetterFilter(key="c"), Replay())).n == 1, "it can be replayed again"


@pytest.mark.spec("OUTBOX-29")
async def test_listing_and_counting_letters_use_one_filter(store: Store) -> None:
    """By consumer, key, partition, type, status and id; latest failure first; page by page."""
    orders = await Orders.begin(store, partitions=2)
    project = await orders.beside("project")
    for n in range(4):
        store.pass_time(SECOND)
        await orders.add(f"k{n}", f"k{n}", partition=n % 2)
        for consumer in (orders, project):
            lease = await consumer.lease()
            await consumer.finish(lease, Delivered(2, tuple(Rejection(one.number, "bad") for one in lease.messages)))
    act = orders.engine.letters
    every = list((await act(ANY)).letters)
    assert len(every) == 16
    assert every == sorted(every, key=lambda one: one.place.order)
    assert every[0].failed == store.now()
    for chosen in (
        LetterFilter(),
        LetterFilter("orders", "project"),
        LetterFilter(consumer="publish", key="k2"),
        LetterFilter(partition=1),
        LetterFilter(type="OrderPlaced"),
        LetterFilter(type="other"),
        LetterFilter("bills"),
        LetterFilter(status=RESOLVED),
        LetterFilter(ids=(every[3].id, every[9].id)),
        LetterFilter(ids=()),
        LetterFilter(before=every[4].place),
        LetterFilter("orders", "publish", before=every[7].place),
    ):
        expected = [one for one in every if chosen.matches(one)]
        assert list((await act(chosen)).letters) == expected
        assert (await act(chosen, Count())).n == len(expected)
    pages: list[Letter] = []
    last = None
    while page := (await act(LetterFilter(limit=3, before=last))).letters:
        pages += page
        last = page[-1].place
    assert pages == every
    assert (await act(LetterFilter(limit=3), Count())).n == 16
    assert (await act(LetterFilter(limit=3), DiscardLetters())).n == 3
    assert (await act(LetterFilter(), Count())).n == 13
    [marked] = (await act(LetterFilter(limit=1, before=every[9].place), Replay())).letters
    assert marked.place == every[10].place, "a change goes on behind a place, as a listing does"


@pytest.mark.core
@pytest.mark.spec("OUTBOX-56", "OUTBOX-61")
async def test_a_replayed_letter_is_delivered_by_its_consumer(store: Store) -> None:
    """Alone, before newer messages, without moving the cursor; it is resolved, or pending with one attempt more."""
    orders = await Orders.begin(store)
    await orders.add("a", "b", "c")
    await orders.turn(Delivered(2, (Rejection(1, "odd"), Rejection(2, "odd"))))
    await orders.woken()
    assert (await orders.engine.letters(LetterFilter(key="b"), Replay())).n == 1
    assert await orders.woken()
    assert (await orders.engine.letters(ANY, Replay())).n == 1, "the other is due already"
    first = await orders.lease()
    assert (keys(first), first.replayed, first.messages[0].attempts) == (["a"], True, 1)
    assert (await orders.engine.letters(ANY, ClaimLetters("op", HOUR))).n == 0
    found = await orders.finish(first, RetryLater("still odd"), request=orders.request())
    assert found.lease is not None
    assert (keys(found.lease), found.lease.replayed) == (["b"], True)
    await orders.finish(found.lease)
    cursor = await orders.cursor()
    assert (cursor.position, cursor.attempts, cursor.due) == (2, 0, 0)
    one, two = await orders.letters()
    assert (one.status, one.attempts, one.reason, one.due) == (PENDING, 2, "still odd", False)
    assert (two.status, two.attempts, two.ended) == (RESOLVED, 1, store.now())
    rest = await orders.lease()
    assert (keys(rest), rest.replayed) == (["c"], False)


@pytest.mark.spec("OUTBOX-56")
async def test_a_replayed_letter_that_is_discarded_meanwhile_stays_discarded(store: Store) -> None:
    """The turn under way ends as usual."""
    orders = await Orders.begin(store)
    await orders.add("a")
    await orders.turn(Rejected("bad"))
    await orders.engine.letters(ANY, Replay())
    lease = await orders.lease()
    assert (await orders.engine.letters(ANY, DiscardLetters())).n == 1
    assert (await orders.finish(lease)).applied
    assert await _statuses(orders) == [(1, DISCARDED)]
    assert await orders.ask() == NothingDue()


@pytest.mark.spec("OUTBOX-57")
async def test_a_second_letter_for_a_message_meets_the_first(store: Store) -> None:
    """After a seek back: one attempt more on a pending letter, a fresh one in place of an ended one."""
    orders = await Orders.begin(store)
    await orders.add("a", "b")
    await orders.turn(Rejected("bad"))
    await orders.engine.letters(LetterFilter(key="b"), DiscardLetters())
    await orders.engine.steer("orders", "publish", Seek("beginning"))
    store.pass_time(SECOND)
    await orders.turn(Rejected("worse"))
    one, two = await orders.letters()
    assert [(letter.status, letter.reason, letter.failed) for letter in (one, two)] == [
        (PENDING, "worse", store.now())
    ] * 2
    assert (one.attempts, two.attempts, two.ended) == (2, 1, None)


# --- parked keys ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-53")
async def test_messages_of_a_parked_key_are_set_aside_in_order(store: Store) -> None:
    """The lease names the key; other keys go on; the letters wait, parked."""
    orders = await _parked(store, "a", "p", "b", "p")
    assert (await orders.cursor()).parked == 1
    [poison] = await orders.letters()
    assert (poison.status, poison.reason, poison.attempts) == (PARKED, "poison", 1)
    lease = await orders.lease()
    assert (keys(lease), lease.parked) == (["a", "p", "b", "p"], frozenset({"p"}))
    await orders.finish(lease)
    assert await _statuses(orders) == [(1, PARKED), (3, PARKED), (5, PARKED)]
    assert [(one.reason, one.attempts) for one in (await orders.letters())[1:]] == [(KEY_PARKED, 0)] * 2
    assert (await orders.engine.letters(ANY, ClaimLetters("op", HOUR))).n == 0
    assert (await orders.engine.letters(ANY, Replay())).n == 0
    await orders.add("b")
    assert (await orders.lease()).parked == frozenset(), "only keys among the messages are named"


@pytest.mark.spec("OUTBOX-53")
async def test_a_key_is_parked_for_one_consumer(store: Store) -> None:
    """Another one gets its messages."""
    orders = await Orders.begin(store)
    project = await orders.beside("project")
    await orders.add("p", "p")
    await orders.turn(RetryLater("poison", 0), PARK)
    lease = await project.lease()
    assert (keys(lease), lease.parked, lease.cursor.parked) == (["p", "p"], frozenset(), 0)


@pytest.mark.spec("OUTBOX-49", "OUTBOX-56", "OUTBOX-54")
async def test_an_advance_that_leases_again_sees_letters_and_parked_keys(store: Store) -> None:
    """What a user wants delivered during a turn comes before the next messages, and parked keys are named."""
    orders = await _parked(store, "a", "p", "b", "c")
    lease = await orders.lease(limit=1)
    await orders.add("d")
    found = await orders.finish(lease, request=orders.request(limit=10))
    assert found.lease is not None
    assert (keys(found.lease), found.lease.parked) == (["p", "b", "c", "d"], frozenset({"p"}))
    assert (await orders.finish(found.lease)).applied
    await orders.add("e", "f", "g")
    lease = await orders.lease(limit=1)
    assert await orders.engine.steer("orders", "publish", Release("p"))
    found = await orders.finish(lease, request=orders.request(limit=10))
    assert found.lease is not None
    assert found.lease.released == "p"
    found = await orders.finish(found.lease, request=orders.request(limit=1))
    assert found.lease is not None
    found = await orders.finish(found.lease, Rejected("odd"), request=orders.request(limit=1))
    assert found.lease is not None
    assert (await orders.engine.letters(LetterFilter(key="f"), Replay())).n == 1
    found = await orders.finish(found.lease, request=orders.request())
    assert found.lease is not None
    assert (keys(found.lease), found.lease.replayed) == (["f"], True)


@pytest.mark.core
@pytest.mark.spec("OUTBOX-54", "OUTBOX-61")
async def test_a_released_key_is_delivered_in_order_before_newer_messages(store: Store) -> None:
    """Its letters first, then what came behind them; the mark goes with the last letter."""
    orders = await _parked(store, "p", "a", "p")
    await orders.turn()
    await orders.add("p", "b")
    await orders.woken()
    assert await orders.engine.steer("orders", "publish", Release("p"))
    assert await orders.woken()
    first = await orders.lease(limit=2)
    assert (first.released, keys(first)) == ("p", ["p", "p"])
    assert [(one.number, one.attempts) for one in first.messages] == [(1, 0), (2, 0)]
    found = await orders.finish(first, request=orders.request(limit=2))
    assert (await orders.cursor()).parked == 1
    assert found.lease is not None
    assert (found.lease.released, [one.number for one in found.lease.messages]) == ("p", [4])
    await orders.finish(found.lease)
    cursor = await orders.cursor()
    assert (cursor.parked, cursor.position, cursor.attempts) == (0, 4, 0)
    assert {one.status for one in await orders.letters()} == {RESOLVED}
    rest = await orders.lease()
    assert (rest.released, rest.parked, keys(rest)) == (None, frozenset(), ["p", "b"])


@pytest.mark.core
@pytest.mark.spec("OUTBOX-54")
async def test_a_release_during_a_turn_does_not_disturb_it(store: Store) -> None:
    """What the turn sets aside lies behind the older letters and is delivered after them."""
    orders = await _parked(store, "a", "p")
    lease = await orders.lease()
    assert await orders.engine.steer("orders", "publish", Release("p"))
    assert (await orders.finish(lease)).applied
    await orders.add("p")
    delivered = []
    while isinstance(found := await orders.ask(limit=1), Lease):
        delivered += [one.number for one in handed_out(found)]
        await orders.finish(found)
    assert delivered == [1, 3, 4]
    assert (await orders.cursor()).parked == 0


@pytest.mark.spec("OUTBOX-55")
async def test_a_released_key_that_fails_again_is_parked_again(store: Store) -> None:
    """What was delivered stays delivered, the rest waits for another release."""
    orders = await _parked(store, "p", "p", "a")
    await orders.turn()
    await orders.engine.steer("orders", "publish", Release("p"))
    store.pass_time(SECOND)
    await orders.turn(RetryLater("poison again", 1))
    assert await _statuses(orders) == [(1, RESOLVED), (2, PARKED), (3, PARKED)]
    failed = (await orders.letters())[1]
    assert (failed.reason, failed.attempts, failed.failed) == ("poison again", 1, store.now())
    assert (await orders.cursor()).parked == 1
    assert await orders.ask() == NothingDue()
    await orders.add("p")
    assert (await orders.turn()).parked == frozenset({"p"})
    await orders.engine.steer("orders", "publish", Release("p"))
    assert [one.number for one in (await orders.turn()).messages] == [2, 3, 5]
    assert (await orders.cursor()).parked == 0


@pytest.mark.spec("OUTBOX-54", "OUTBOX-55")
async def test_a_parked_letter_that_is_discarded_is_left_out(store: Store) -> None:
    """Of one key the poison; of another everything, so that its release only removes the mark."""
    orders = await _parked(store, "p", "q", "q")
    await orders.turn(RetryLater("poison", 0), PARK)
    await orders.turn()
    assert (await orders.cursor()).parked == 2
    [poison, *_] = await orders.letters()
    await orders.engine.letters(LetterFilter(status=None, ids=(poison.id,)), DiscardLetters())
    await orders.engine.letters(LetterFilter(status=PARKED, key="q"), DiscardLetters())
    for key in ("p", "q"):
        assert await orders.engine.steer("orders", "publish", Release(key))
    first = await orders.turn()
    assert (first.released, [one.number for one in first.messages]) == ("p", [2])
    second = await orders.turn()
    assert (second.released, second.messages) == ("q", ())
    assert (await orders.cursor()).parked == 0
    assert await orders.ask() == NothingDue()


@pytest.mark.spec("OUTBOX-54")
async def test_a_key_that_is_not_parked_cannot_be_released(store: Store) -> None:
    """Nothing changes, nothing is woken."""
    orders = await _parked(store)
    await orders.woken()
    assert not await orders.engine.steer("orders", "publish", Release("a"))
    assert not await orders.engine.steer("orders", "unknown", Release("p"))
    assert not await orders.woken()
    assert await orders.ask() == NothingDue()

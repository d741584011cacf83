"""Where jobs with a limit stand, what holds a slot, and what a claim makes of it."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.control import Queue
from stoker.model.errors import InvalidInput, InvalidName
from stoker.model.job import FIRST, Draft, Options, Settlement, Status, pack, salvaged, unpack
from stoker.model.limit import Slot, check_number
from stoker.model.record import Record
from stoker.model.subqueues import (
    AT_ONCE,
    FRONT,
    FULL_FOR,
    Look,
    State,
    before_in_round,
    freed,
    joins_at,
    keeps_slot,
    line_of,
    looked,
    made,
    pick,
    position,
    recounted,
    released,
    renumbered,
    renumbers,
    repinned,
    room,
    served,
    served_at,
    share,
    slot_of,
    suspicious,
    take_turns,
    tenant_line,
    touched,
    view,
    wakes_at,
)
from stoker.model.throttle import Rate, full, take
from stoker.model.time import MINUTE, SECOND
from stoker.model.unique import Unique

pytestmark = pytest.mark.spec("LIMIT-39")

NOW = 1_000_000_000
SLOT = Slot("api", "a", 2)
HELD = Slot("api", "a", 1, "retrying")
QUEUE = Queue(name="q")


def record(slot: Slot | None = SLOT, tenant: str | None = None) -> Record:
    return Record.drafted(Draft(b"i" * 16, "work", queue="q", tenant=tenant, options=Options(limit=slot)), NOW)


def ended(one: Record, status: Status) -> Record:
    after = one.settle(Settlement(one.id, "w", one.token, status), NOW, QUEUE)
    assert after is not None
    return after


# --- limits as jobs carry them ----------------------------------------------------------------------------------


@pytest.mark.spec("LIMIT-40")
@pytest.mark.parametrize(
    "slot",
    [
        {"name": "api", "n": 0},
        {"name": "api", "n": 10_001},
        {"name": "api", "n": True},
        {"name": "api", "n": None},
        {"name": "api", "n": 1, "key": ""},
        {"name": "api", "n": 1, "key": "x" * 513},
        {"name": "api", "n": 1, "hold": "always"},
        {"name": "api", "n": 1, "rate": 5},
        {"name": "api", "hold": "retrying", "rate": Rate(1)},
    ],
)
def test_a_limit_that_means_nothing_is_refused(slot: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Slot(**slot)  # type: ignore[arg-type]


@pytest.mark.spec("LIMIT-40")
def test_names_of_limits_are_names() -> None:
    for name in ("a/b", "", "@x", 5):
        with pytest.raises(InvalidName):
            Slot(name, n=1)  # type: ignore[arg-type]
    check_number(None, Rate(1))
    assert Slot("gpu", n=1).subqueue == "gpu"
    assert SLOT.subqueue == "api/a"


def test_a_limit_travels_with_the_options_of_its_job() -> None:
    slot = Slot("api", 'a "quoted" {key}', 3, "retrying", Rate(5, per=60))
    assert unpack(pack(Options(limit=slot))) == Options(limit=slot)


def test_a_limit_is_saved_from_options_that_cannot_be_read() -> None:
    """Also with odd letters in its key; what is no limit at all is not."""
    slot = Slot("api", 'a "quoted" {key} \\', 3, "retrying", Rate(5, per=60))
    packed = pack(Options(timeout=SECOND, limit=slot, group=b"g" * 16))
    assert packed is not None
    broken = packed.replace(b'"timeout":1000000', b'"timeout":"soon"')
    assert salvaged(broken) == Options(limit=slot, group=b"g" * 16)
    assert salvaged(broken.decode()).limit == slot
    assert salvaged(b'{"limit":{"name":"a/b","n":1}') == Options()
    assert salvaged(b'{"limit":7') == Options()


# --- where a job stands -----------------------------------------------------------------------------------------


def test_a_job_stands_in_the_line_of_its_limit_else_of_its_tenant() -> None:
    assert position(SLOT, "acme", fair=True) == position(SLOT, None, fair=False) == "api/a"
    assert position(None, "acme", fair=False) is None
    assert position(None, "acme", fair=True) == tenant_line("acme") == "@acme"
    assert position(None, None, fair=True) == tenant_line(None) == "@"
    assert line_of(record(None, "acme"), fair=True) == "@acme"


def test_a_slot_is_a_claim() -> None:
    """From the claim to the end, whatever owner it has; nothing else holds one."""
    waiting = record()
    running = waiting.claimed("w", NOW)
    assert slot_of(None) is slot_of(waiting) is slot_of(record(None).claimed("w", NOW)) is None
    assert slot_of(running) == slot_of(running.reaped("v", NOW)) == ("q", "api/a")
    assert freed(waiting, running) is freed(running, running.reaped("v", NOW)) is None
    for status in (Status.DONE, Status.DEAD, Status.CANCELED, Status.RETRYING, Status.PENDING):
        assert freed(running, ended(running, status)) == ("q", "api/a")
    assert freed(running, None) == ("q", "api/a")
    assert freed(waiting, None) is freed(None, waiting) is None


def test_a_holder_keeps_its_slot_until_it_ends_moves_or_is_replaced() -> None:
    running = record(HELD).claimed("w", NOW)
    waiting = ended(running, Status.RETRYING)
    assert keeps_slot(waiting)
    assert line_of(waiting, fair=True) is None
    assert freed(running, waiting) is freed(waiting, waiting.claimed("w", NOW)) is None
    assert freed(waiting, waiting.prioritize(3).run_now(NOW)) is None
    draft = Draft(b"i" * 16, "work", queue="q", unique=Unique("k", mode="replace"), options=Options(limit=HELD))
    for after in (
        None,
        waiting.cancel("no", NOW, QUEUE),
        waiting.supersede(NOW, QUEUE),
        waiting.move("other", NOW),
        waiting.replace(draft, NOW),
    ):
        assert freed(waiting, after) == ("q", "api/a")
        assert after is None or slot_of(after) is None
    dead = ended(running, Status.DEAD)
    assert not keeps_slot(dead.requeue(NOW))
    canceled = waiting.cancel("no", NOW, Queue(name="default"))
    assert not keeps_slot(canceled.requeue(NOW))
    assert not keeps_slot(canceled.restore(waiting.as_former(canceled), NOW))
    assert not keeps_slot(record(SLOT))
    assert ended(record(SLOT).claimed("w", NOW), Status.RETRYING).move("other", NOW).settled is Status.RETRYING


def test_only_a_job_that_is_stored_anew_sets_the_number() -> None:
    waiting = record()
    assert renumbers(None, waiting)
    assert not renumbers(waiting.claimed("w", NOW), waiting)
    assert renumbers(record(HELD), waiting)


# --- states -----------------------------------------------------------------------------------------------------


def test_a_state_is_made_touched_renumbered_and_pinned() -> None:
    state = made("api/a", SLOT, {"api": 7}, NOW)
    assert (state.limit, state.number, state.most) == ("api", 2, 7)
    assert made("@acme", None, {"api": 7}, NOW) == State("@acme")
    assert touched(state, 5).next == touched(touched(state, 5), 9).next == 5
    assert touched(touched(state, 9), AT_ONCE).next == AT_ONCE
    assert repinned(state, {"api": 7}) is state
    assert repinned(State("@acme"), {"api": 7}) == State("@acme")
    unpinned = repinned(state, {})
    assert (unpinned.most, unpinned.next) == (2, AT_ONCE)
    rated = renumbered(state, Slot("api", "a", None, rate=Rate(5)), NOW)
    assert rated.bucket == full(Rate(5), NOW)
    assert made("api/a", Slot("api", "a", None, rate=Rate(5)), {}, NOW).bucket == full(Rate(5), NOW)
    spent = msgspec.structs.replace(rated, bucket=take(full(Rate(5), NOW), 4, NOW))
    slower = renumbered(spent, Slot("api", "a", None, rate=Rate(1)), NOW)
    assert slower.bucket is not None
    assert slower.bucket.tokens == 1
    assert renumbered(spent, SLOT, NOW).bucket is None


def test_a_subqueue_is_open_while_it_has_a_head_and_a_slot() -> None:
    state = State("api/a", "api", 2, running=1, head=(0, 1, b""))
    assert state.open
    assert not msgspec.structs.replace(state, running=2).open
    assert not msgspec.structs.replace(state, head=None).open
    assert msgspec.structs.replace(state, number=None, running=9).open
    assert released(msgspec.structs.replace(state, running=2, since=5), 1).since is None
    assert released(msgspec.structs.replace(state, running=4, since=5), 1).since == 5
    assert released(state, 3).running == 0


def test_a_look_lets_a_subqueue_join_the_round_and_leave_it() -> None:
    state = touched(made("api/a", SLOT, {}, NOW), NOW - 5)
    head = (0, NOW - 9, b"x")
    joined = looked(state, Look(head, NOW + 7), NOW, 3)
    assert (joined.head, joined.next, joined.at, joined.turn) == (head, NOW + 7, NOW - 5, 3)
    again = looked(touched(joined, AT_ONCE), Look(head), NOW + 1, 9)
    assert (again.at, again.turn, again.next) == (NOW - 5, 3, None)
    left = looked(again, Look(None, NOW + 7), NOW + 1, 9)
    assert (left.head, left.next, left.at, left.turn) == (None, NOW + 7, None, 0)
    first = looked(joined, Look((FIRST, NOW, b"x")), NOW, 9)
    assert (first.at, first.turn) == (FRONT, 0), "what an operator put first is the next in the round"
    assert looked(touched(left, AT_ONCE), Look(head), NOW, 1).at == NOW
    assert looked(left, Look(), NOW, 1).gone(NOW)
    assert not left.gone(NOW)


def test_who_is_served_goes_to_the_end() -> None:
    state = looked(touched(made("api/a", SLOT, {}, NOW), NOW), Look((0, 1, b"x")), NOW, 1)
    after = served(state, 1, Look((0, 1, b"y")), NOW + 3, 4)
    assert (after.running, after.head, after.at, after.turn) == (1, (0, 1, b"y"), NOW + 3, 4)
    assert after.since is None
    both = served(after, 1, Look(), NOW + 4, 6)
    assert (both.running, both.head, both.since) == (2, None, NOW + 4)
    assert looked(both, Look(), NOW + 9, 6).since == NOW + 4
    assert not both.gone(NOW)
    assert released(both, 2).gone(NOW)
    tenant = served(State("@acme", head=(0, 1, b"x")), 3, Look(), NOW, 2)
    assert tenant.running == 0
    assert tenant.gone(NOW)


def test_room_is_what_slots_and_tokens_leave() -> None:
    state = State("api/a", "api", 3, running=1, bucket=full(Rate(5), NOW))
    assert room(state, 9, NOW) == 2
    assert room(state, 1, NOW) == 1
    assert room(msgspec.structs.replace(state, number=None), 9, NOW) == 5
    assert room(msgspec.structs.replace(state, running=5), 9, NOW) == 0
    assert room(msgspec.structs.replace(state, bucket=None), 9, NOW) == 2


def test_who_is_served_stands_behind_who_joined_before_the_claim() -> None:
    assert joins_at(4) < served_at(4) < joins_at(5)


def test_a_key_without_tokens_waits_for_the_next() -> None:
    """It is closed until then, and kept until its bucket is full again."""
    rate = Rate(1, per=10)
    state = made("api/a", Slot("api", "a", None, rate=rate), {}, NOW)
    head = (0, 1, b"x")
    state = served(looked(state, Look(head), NOW, 1), 1, Look(head), NOW, 2)
    assert (state.head, state.next) == (None, NOW + 10 * SECOND)
    assert looked(state, Look(head), NOW + 10 * SECOND, 3).head == head
    empty = looked(released(state), Look(), NOW + SECOND, 3)
    assert empty.next == NOW + 10 * SECOND
    assert not msgspec.structs.replace(empty, next=None).gone(NOW + SECOND)
    assert looked(empty, Look(), NOW + 10 * SECOND, 3).gone(NOW + 10 * SECOND)
    assert looked(empty, Look(None, NOW + MINUTE), NOW + SECOND, 3).next == NOW + MINUTE


# --- picking ----------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_queue() -> None:
    main = [(0, 1, b"a"), (1, 1, b"d")]
    lines = {"x": [(0, 1, b"b"), (2, 0, b"e")], "y": [(0, 2, b"c")]}
    assert [head[2] for _, head in pick(main, lines, 4)] == [b"a", b"b", b"c", b"d"]
    assert [line for line, _ in pick(main, lines, 9)] == [None, "x", "y", None, "x"]


def test_turns_are_one_job_each() -> None:
    lines = [("x", [(0, 1, b"1"), (0, 1, b"2"), (0, 1, b"3")]), ("y", [(9, 1, b"4")]), ("z", [(0, 1, b"5")])]
    assert [head[2] for _, head in take_turns(lines, 9)] == [b"1", b"4", b"5", b"2", b"3"]
    assert [line for line, _ in take_turns(lines, 2)] == ["x", "y"]
    assert (share(10, 3), share(9, 3), share(1, 4)) == (4, 3, 1)


# --- operators --------------------------------------------------------------------------------------------------


def test_time_alone_opens_what_is_not_full() -> None:
    state = State("api/a", "api", 1, head=(0, 7, b"x"), next=9)
    assert wakes_at(state) == 7
    assert wakes_at(msgspec.structs.replace(state, head=None)) == 9
    assert wakes_at(msgspec.structs.replace(state, running=1)) is None
    assert wakes_at(State("api/a", "api", 1)) is None


def test_a_wrong_number_is_repaired_once_it_was_full_for_long() -> None:
    state = State("api/a", "api", 1, running=1, since=NOW)
    assert not suspicious(state, NOW + FULL_FOR - 1)
    assert suspicious(state, NOW + FULL_FOR)
    assert not suspicious(State("api/a", "api", 1), NOW)
    assert recounted(state, 1) is None
    repaired = recounted(state, 0)
    assert repaired is not None
    assert (repaired.running, repaired.since, repaired.next) == (0, None, AT_ONCE)


def test_a_view_names_limit_key_and_holders() -> None:
    state = State("api/a/b", "api", 3, pinned=1, running=2, head=(0, 7, b"x"), next=9)
    seen = view("q", state, [bytes([n]) * 16 for n in range(20)])
    assert (seen.limit, seen.key, seen.running, seen.most, seen.pinned, seen.due) == ("api", "a/b", 2, 1, True, 7)
    assert len(seen.holders) == 10
    assert view("q", State("gpu", "gpu", 1)).key is None
    assert (view("q", State("@acme")).limit, view("q", State("@acme")).key) == (None, "acme")
    assert view("q", State("@")).key is None


def test_who_comes_before_in_the_round() -> None:
    """By place, then by name; one without a place joins at the end; a full or empty one has none."""
    open_ = [State(f"@{name}", head=(0, 1, b"x"), at=at, turn=1) for name, at in (("a", 5), ("b", 3), ("c", 5))]
    full = State("api/x", "api", 1, running=1, head=(0, 1, b"x"), at=1, turn=1)
    views = [view("q", state) for state in (*open_, full, State("@d"))]
    assert [one.turn for one in views] == [(5, 1), (3, 1), (5, 1), None, None]
    assert [before_in_round(f"@{name}", views) for name in "abcd"] == [1, 0, 2, 3]


@pytest.mark.spec("FIRST-04")
def test_a_subqueue_whose_head_was_put_first_is_next_in_the_round() -> None:
    state = looked(touched(made("api/a", SLOT, {}, NOW), NOW - 5), Look((0, NOW - 9, b"x")), NOW, 3)
    put = looked(state, Look((FIRST, NOW, b"y")), NOW, 9)
    assert (put.at, put.turn) == (FRONT, 0)
    after = looked(put, Look((0, NOW - 9, b"x")), NOW + 1, 9)
    assert (after.at, after.turn) == (NOW + 1, 9), "without that job it joins anew"

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.control import (
    LONGEST_REASON,
    MOST_WORKERS,
    SETTINGS,
    SHOWN_WITHIN,
    STOPPED,
    Clash,
    NamedLock,
    Pause,
    Presence,
    Queue,
    Tuning,
    clashes,
    guardian_of,
    may_release,
    may_take,
    opens,
    queues_in_words,
    remembered,
    share_of,
    shares,
    tuned,
)
from stoker.model.errors import InvalidInput, InvalidName
from stoker.model.lifecycle import KEEP_DEAD, KEEP_DONE
from stoker.model.retry import OFF, Curve, clamped_curve
from stoker.model.throttle import OPEN, Cooldown, Rate, full, take
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND

SPANS = st.integers(-LONGEST * 2, LONGEST * 2)
CURVES = st.builds(Curve, on=st.booleans(), base=SPANS, max=SPANS)
FIELDS: dict[str, Any] = {
    "workers": st.none() | st.integers(-100, 20_000),
    "rate": st.sampled_from([None, Rate(1), Rate(5, per=60), Rate(2, burst=9)]),
    "keep_done": st.none() | SPANS,
    "keep_dead": st.none() | SPANS,
    "curve": st.none() | CURVES,
}
SETTINGS_ONLY = st.builds(Tuning, **FIELDS)
TUNINGS = st.builds(Tuning, paused=st.none() | st.booleans(), **FIELDS)
NOW = 1_800_000_000_000_000


# --- queues -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("QUEUE-02")
def test_a_queue_that_was_never_tuned_has_the_defaults() -> None:
    queue = Queue(name="mail")
    assert (queue.pause, queue.workers, queue.rate, queue.curve, queue.cooldown) == (None, None, None, OFF, OPEN)
    assert (queue.keep_done, queue.keep_dead) == (KEEP_DONE, KEEP_DEAD)
    assert tuned(queue, Tuning(), NOW) == queue


@pytest.mark.spec("QUEUE-03")
def test_a_tuning_changes_only_what_it_names() -> None:
    before = Queue(name="mail", pause=Pause(), workers=3, keep_done=HOUR, cooldown=Cooldown(5, 2))
    assert tuned(before, Tuning(paused=False), NOW) == Queue(
        name="mail", workers=3, keep_done=HOUR, cooldown=Cooldown(5, 2)
    )
    after = tuned(before, Tuning(keep_dead=DAY, curve=Curve(on=True), rate=Rate(5)), NOW)
    assert (after.cooldown, after.pause, after.bucket) == (Cooldown(5, 2), Pause(), full(Rate(5), NOW))


@pytest.mark.spec("QUEUE-04")
def test_values_out_of_range_are_pulled_in() -> None:
    tuning = Tuning(workers=-1, keep_done=-5, keep_dead=LONGEST + 1, curve=Curve(base=0))
    queue = tuned(Queue(name="q"), tuning, NOW)
    assert (queue.workers, queue.keep_done, queue.keep_dead) == (0, 0, LONGEST)
    assert queue.curve.base == SECOND
    assert tuned(queue, Tuning(workers=MOST_WORKERS + 1), NOW).workers == MOST_WORKERS == 10_000


@pytest.mark.spec("QUEUE-03", "QUEUE-04", "QUEUE-14")
@given(TUNINGS, TUNINGS)
def test_tuning_is_bounded_idempotent_and_the_last_one_wins(first: Tuning, second: Tuning) -> None:
    once = tuned(Queue(name="q"), first, NOW)
    assert tuned(once, first, NOW) == once
    assert once.workers is None or 0 <= once.workers <= MOST_WORKERS
    assert 0 <= once.keep_done <= LONGEST
    assert 0 <= once.keep_dead <= LONGEST
    assert once.curve == clamped_curve(once.curve)
    twice = tuned(once, second, NOW)
    for field in SETTINGS:
        if (value := getattr(second, field)) is not None:
            assert getattr(twice, field) == value
        else:
            assert getattr(twice, field) == getattr(once, field)
    assert twice.is_paused(NOW) is (once.is_paused(NOW) if second.paused is None else second.paused)
    assert tuned(twice, Tuning(paused=False, clear=frozenset(SETTINGS)), NOW) == Queue(name="q")


@pytest.mark.spec("QUEUE-11")
def test_a_queue_with_an_impossible_name_cannot_be_tuned() -> None:
    with pytest.raises(InvalidName, match="two words"):
        tuned(Queue(name="two words"), Tuning(), NOW)


@pytest.mark.spec("QUEUE-12", "QUEUE-13")
def test_a_pause_ends_by_itself_or_by_a_resume() -> None:
    paused = tuned(Queue(name="q"), Tuning(paused=True, pause_for=HOUR, reason="deploy", by="ann"), NOW)
    assert paused.pause == Pause(NOW + HOUR, "deploy", "ann")
    assert [paused.is_paused(NOW + at) for at in (0, HOUR - 1, HOUR)] == [True, True, False]
    again = tuned(paused, Tuning(paused=True), NOW)
    assert again.pause == Pause()
    assert again.is_paused(NOW + LONGEST)
    assert tuned(again, Tuning(paused=False), NOW).pause is None


@pytest.mark.spec("QUEUE-07", "RATE-09")
def test_a_waiter_is_woken_when_a_queue_may_open_earlier() -> None:
    plain, forever, short = (Queue(name="q", pause=pause) for pause in (None, Pause(), Pause(NOW)))
    slow, fast = (Queue(name="q", bucket=full(Rate(n), NOW)) for n in (1, 2))
    woken = [(forever, plain), (forever, short), (slow, fast), (fast, slow), (fast, plain)]
    asleep = [(plain, forever), (plain, plain), (forever, forever), (plain, slow), (slow, slow)]
    assert [opens(*pair) for pair in woken] == [True] * 5
    assert [opens(*pair) for pair in asleep] == [False] * 5


@pytest.mark.spec("RATE-02", "RATE-06")
def test_a_claim_starts_no_more_than_gates_and_tokens_allow() -> None:
    bucket = full(Rate(2, burst=3), NOW)
    queue = Queue(name="q", bucket=bucket)
    assert [queue.starts(n, NOW) for n in (-1, 0, 2, 9)] == [(-1, False), (0, False), (2, False), (3, False)]
    less = Queue(name="q", bucket=take(bucket, 3, NOW))
    assert [less.starts(9, NOW + at) for at in (SECOND // 2, DAY)] == [(1, False), (3, False)]
    assert Queue(name="q").starts(9, NOW) == (9, False)
    for tokens in (bucket, less.bucket):
        assert Queue(name="q", pause=Pause(), bucket=tokens).starts(9, NOW) == (0, False)
        assert Queue(name="q", cooldown=Cooldown(NOW + 1, 1), bucket=tokens).starts(9, NOW) == (0, False)


@pytest.mark.spec("FIRST-02")
def test_without_a_token_one_job_that_was_put_first_may_start() -> None:
    empty = take(full(Rate(2, burst=3), NOW), 3, NOW)
    assert [Queue(name="q", bucket=empty).starts(9, NOW + at) for at in (0, SECOND // 2 - 1)] == [(1, True)] * 2
    assert [Queue(name="q", bucket=empty).starts(n, NOW) for n in (0, 1)] == [(0, False), (1, True)]
    owed = Queue(name="q", bucket=take(empty, 1, NOW))
    assert [owed.starts(9, NOW + at).n > 0 for at in (0, SECOND // 2 - 1, SECOND // 2)] == [False, False, True]
    assert owed.starts(9, NOW + SECOND // 2) == (1, True)


@pytest.mark.spec("QUEUE-16")
def test_a_reason_has_one_letter_at_least() -> None:
    assert Tuning(paused=True, reason="x").reason == "x"


@pytest.mark.spec("QUEUE-16", "INPUT-05")
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"clear": {"paused"}}, "clear"),
        ({"clear": {"fare"}}, "clear"),
        ({"clear": {"workers"}, "workers": 3}, "clear"),
        ({"paused": True, "reason": "x" * (LONGEST_REASON + 1)}, "reason"),
        ({"paused": True, "reason": ""}, "reason"),
        ({"paused": True, "reason": 5}, "reason"),
        ({"paused": True, "reason": "a\0b"}, "reason"),
        ({"paused": True, "by": "\ud800"}, "by"),
        ({"paused": True, "pause_for": 0}, "pause"),
        ({"paused": True, "pause_for": -HOUR}, "pause"),
        ({"paused": True, "pause_for": LONGEST + 1}, "pause"),
        ({"paused": False, "reason": "deploy"}, "reason"),
        ({"by": "ann"}, "by"),
        ({"pause_for": HOUR}, "pause_for"),
        ({"workers": 2.5}, "workers"),
        ({"workers": True}, "workers"),
        ({"keep_done": "a day"}, "keep_done"),
        ({"rate": 5}, "rate"),
    ],
)
def test_an_impossible_tuning_is_refused_by_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Tuning(**given)
    assert refused.value.field == field


# --- declarations -----------------------------------------------------------------------------------------------


@pytest.mark.spec("QUEUE-15")
def test_a_setting_follows_the_code_until_people_change_it() -> None:
    queue = _declared(Queue(name="q"), Tuning(workers=3, rate=Rate(5), keep_dead=DAY))
    assert (queue.workers, queue.rate, queue.keep_dead) == (3, Rate(5), DAY)
    assert _declared(queue, Tuning(workers=3, rate=Rate(5), keep_dead=DAY)) == queue
    people = tuned(queue, Tuning(rate=Rate(7), paused=True), NOW)
    later = _declared(people, Tuning(workers=4, rate=Rate(6)))
    assert (later.workers, later.rate, later.keep_dead) == (4, Rate(7), KEEP_DEAD)
    assert later.pause == Pause()
    agreed = _declared(tuned(later, Tuning(rate=Rate(6)), NOW), Tuning(workers=4))
    assert (agreed.workers, agreed.rate) == (4, None)


@pytest.mark.spec("QUEUE-15")
def test_a_first_declaration_leaves_what_people_tuned() -> None:
    queue = _declared(Queue(name="q", workers=9, keep_done=HOUR), Tuning(workers=3, curve=Curve(on=True)), HOUR)
    assert (queue.workers, queue.curve, queue.keep_done) == (9, Curve(on=True), HOUR)
    assert _declared(queue, Tuning(keep_done=DAY), HOUR).keep_done == DAY


@pytest.mark.spec("QUEUE-15")
@given(SETTINGS_ONLY, SETTINGS_ONLY, SETTINGS_ONLY)
def test_a_declaration_never_changes_what_people_changed(one: Tuning, other: Tuning, edit: Tuning) -> None:
    declared = _declared(Queue(name="q"), one)
    edited = tuned(declared, edit, NOW)
    after = _declared(edited, other)
    plain = Queue(name="q")
    for field in SETTINGS:
        if getattr(edited, field) != getattr(declared, field):
            assert getattr(after, field) == getattr(edited, field)
        else:
            wanted = getattr(other, field)
            assert getattr(after, field) == (getattr(plain, field) if wanted is None else wanted)


@pytest.mark.spec("QUEUE-15")
def test_a_declaration_neither_pauses_nor_clears() -> None:
    for tuning in (Tuning(paused=True), Tuning(clear=frozenset({"workers"}))):
        with pytest.raises(InvalidInput, match="declaration"):
            _declared(Queue(name="q"), tuning)


def _declared(queue: Queue, tuning: Tuning, keep_done: int = KEEP_DONE) -> Queue:
    return tuned(queue, tuning, NOW, keep_done=keep_done, declared=True)


def test_presences_are_plain_values() -> None:
    shown = Presence(worker="w", host="h", pid=1, queues={"q": 2})
    assert (shown.running, shown.version, shown.state, shown.seen_at) == (0, "", "running", 0)


# --- locks ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("LOCK-01", "LOCK-02", "LOCK-03")
@pytest.mark.parametrize(
    ("lock", "now", "mine", "theirs"),
    [
        (None, 0, True, True),
        (NamedLock("me", 10), 9, True, False),
        (NamedLock("me", 10), 10, True, True),
        (NamedLock("me", 10), 11, True, True),
    ],
)
def test_a_lock_is_free_lapsed_or_ones_own(lock: NamedLock | None, now: int, mine: bool, theirs: bool) -> None:
    assert may_take(lock, "me", now) is mine
    assert may_take(lock, "you", now) is theirs


@pytest.mark.spec("LOCK-04")
def test_only_the_owner_releases() -> None:
    assert may_release(NamedLock("me", 10), "me")
    assert not may_release(NamedLock("me", 10), "you")
    assert not may_release(None, "me")


# --- shares -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("SHARE-01")
def test_slots_are_split_in_host_order() -> None:
    assert shares(10, ["c", "a", "b"]) == {"a": 4, "b": 3, "c": 3}
    assert shares(2, ["a", "b", "c"]) == {"a": 1, "b": 1, "c": 0}
    assert shares(0, ["a", "b"]) == shares(-5, ["a", "b"]) == {"a": 0, "b": 0}
    assert shares(10, []) == {}


@pytest.mark.spec("SHARE-01")
@given(st.integers(-5, 5_000), st.lists(st.text(), unique=True))
def test_shares_add_up_and_differ_by_one_at_most(total: int, hosts: list[str]) -> None:
    split = shares(total, hosts)
    assert set(split) == set(hosts)
    if hosts:
        assert sum(split.values()) == max(total, 0)
        assert max(split.values()) - min(split.values()) <= 1
        assert [split[host] for host in sorted(hosts)] == sorted(split.values(), reverse=True)
        assert shares(total, hosts[::-1]) == split


@pytest.mark.spec("WORKER-27", "ORDER-09")
def test_a_limited_queue_is_shared_by_those_who_serve_it_and_show_themselves() -> None:
    def shown(worker: str, **more: object) -> Presence:
        fields: dict[str, object] = {"host": "h", "pid": 1, "queues": {"mail": 5}, "seen_at": 100 * SECOND, **more}
        return Presence(worker=worker, **fields)  # type: ignore[arg-type]

    limited = Queue(name="mail", workers=5)
    assert share_of("a", Queue(name="mail"), [shown("a")]) is None
    assert share_of("a", limited, [shown("a")]) == 5
    assert [share_of(worker, limited, [shown("a"), shown("b")]) for worker in "abc"] == [3, 2, 0]
    others = [
        shown("elsewhere", queues={"other": 5}),
        shown("left", state=STOPPED),
        shown("silent", seen_at=100 * SECOND - SHOWN_WITHIN - 1),
    ]
    assert share_of("a", limited, [shown("a"), *others]) == 5
    assert share_of("a", limited, [shown("a"), shown("late", seen_at=100 * SECOND - SHOWN_WITHIN)]) == 3
    quiet = shown("b", state="quiet")
    assert [share_of(worker, limited, [shown("a"), quiet]) for worker in "ab"] == [5, 0]
    assert share_of("a", limited, [shown("a"), msgspec.structs.replace(quiet, running=1)]) == 3
    assert share_of("a", limited, []) == 0
    assert share_of("a", Queue(name="mail", workers=0), [shown("a")]) == 0


@pytest.mark.spec("KILL-12")
def test_a_worker_is_named_after_who_looks_after_it() -> None:
    assert guardian_of("boss.w1") == "boss"
    assert guardian_of("a.b.c") == "a.b"
    assert guardian_of("alone") is guardian_of(".alone") is None


# --- one kind, two functions ------------------------------------------------------------------------------------


@pytest.mark.spec("PRESENCE-06")
def test_clashes_are_other_functions_of_live_workers_under_the_same_kind() -> None:
    def shown(worker: str, kinds: dict[str, str], seen_at: int = 100 * SECOND, state: str = "running") -> Presence:
        return Presence(worker=worker, host="h", pid=1, queues={}, kinds=kinds, seen_at=seen_at, state=state)

    mine = {"send": "shop.send", "report": "shop.report"}
    others = [
        shown("me", mine),
        shown("twin", mine),
        shown("other", {"send": "billing.send", "report": "shop.report", "charge": "billing.charge"}),
        shown("its twin", {"send": "billing.send"}),
        shown("third", {"send": "old.send"}),
        shown("silent", {"send": "silent.send"}, seen_at=0),
        shown("stopped", {"send": "stopped.send"}, state="stopped"),
    ]
    assert clashes(mine, others) == [
        Clash("send", "shop.send", "billing.send", "other", "h"),
        Clash("send", "shop.send", "old.send", "third", "h"),
    ]
    assert clashes(mine, []) == []


@pytest.mark.spec("COOL-12")
def test_reopening_ends_a_cool_down_and_is_no_declaration() -> None:
    cooling = Queue(name="mail", cooldown=Cooldown(99, 2))
    opened = tuned(cooling, Tuning(reopen=True), 5)
    assert opened == Queue(name="mail")
    assert opens(cooling, opened)
    assert tuned(opened, Tuning(reopen=True), 5) is not cooling
    assert tuned(opened, Tuning(reopen=True), 5) == opened
    with pytest.raises(InvalidInput, match="may hold only"):
        tuned(cooling, Tuning(reopen=True), 5, declared=True)


@pytest.mark.spec("LIMIT-20")
def test_a_number_of_people_is_kept_by_name_until_it_is_cleared() -> None:
    queue = tuned(Queue(name="q"), Tuning(limits=(("b", 2), ("a", 1))), 0)
    assert queue.limits == (("a", 1), ("b", 2))
    assert tuned(queue, Tuning(limits=(("a", None), ("b", 5))), 0).limits == (("b", 5),)
    wrong: list[dict[str, Any]] = [{"fair": 2}, {"limits": (("a", 0),)}, {"limits": (("no/name", 1),)}]
    for one in wrong:
        with pytest.raises((InvalidInput, InvalidName)):
            Tuning(**one)


@pytest.mark.spec("PRESENCE-07")
def test_workers_are_remembered_and_their_queues_folded() -> None:
    def one(state: str, ago: int) -> Presence:
        return Presence(worker=f"{state} {ago}", host="h", pid=1, queues={}, state=state, seen_at=HOUR - ago)

    shown = [one("running", 59 * MINUTE), one(STOPPED, MINUTE), one(STOPPED, MINUTE + 1)]
    assert remembered(shown, HOUR) == shown[:2]
    assert queues_in_words({"mail": 5, "bulk": 2}) == "bulk 2, mail 5"
    many = {f"q{n}": 10 for n in range(30)}
    assert queues_in_words(many) == "30 queues, 10 slots each"
    assert queues_in_words({**many, "q0": 1}) == "30 queues, 1 to 10 slots each"
    assert queues_in_words(dict.fromkeys(many, 1)) == "30 queues, 1 slot each"
    assert Presence(worker="w", host="h", pid=1, queues={"a": 2, "b": 3}).slots == 5

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.control import (
    MOST_WORKERS,
    SHOWN_WITHIN,
    STOPPED,
    Budget,
    Clash,
    NamedLock,
    Presence,
    Queue,
    Rate,
    Tuning,
    clashes,
    guardian_of,
    may_release,
    may_take,
    share_of,
    shares,
    tuned,
)
from stoker.model.errors import InvalidName
from stoker.model.lifecycle import KEEP_DEAD, KEEP_DONE
from stoker.model.retry import OFF, Curve, clamped_curve
from stoker.model.throttle import OPEN, Cooldown, full
from stoker.model.time import DAY, HOUR, LONGEST, SECOND

SPANS = st.integers(-LONGEST * 2, LONGEST * 2)
CURVES = st.builds(Curve, on=st.booleans(), base=SPANS, max=SPANS)
TUNINGS = st.builds(
    Tuning,
    paused=st.none() | st.booleans(),
    workers=st.none() | st.integers(-100, 1_000),
    keep_done=st.none() | SPANS,
    keep_dead=st.none() | SPANS,
    curve=st.none() | CURVES,
)


# --- queues -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("QUEUE-02")
def test_a_queue_nobody_tuned_has_the_defaults() -> None:
    queue = Queue(name="mail")
    assert (queue.paused, queue.workers, queue.curve, queue.cooldown) == (False, None, OFF, OPEN)
    assert (queue.keep_done, queue.keep_dead) == (KEEP_DONE, KEEP_DEAD)
    assert tuned(queue, Tuning()) == queue


@pytest.mark.spec("QUEUE-03")
def test_a_tuning_changes_only_what_it_names() -> None:
    before = Queue(name="mail", paused=True, workers=3, keep_done=HOUR, cooldown=Cooldown(5, 2))
    assert tuned(before, Tuning(paused=False)) == Queue(
        name="mail", paused=False, workers=3, keep_done=HOUR, cooldown=Cooldown(5, 2)
    )
    assert tuned(before, Tuning(keep_dead=DAY, curve=Curve(on=True))).cooldown == Cooldown(5, 2)


@pytest.mark.spec("QUEUE-04")
def test_values_out_of_range_are_pulled_in() -> None:
    queue = tuned(Queue(name="q"), Tuning(workers=-1, keep_done=-5, keep_dead=LONGEST + 1, curve=Curve(base=0)))
    assert (queue.workers, queue.keep_done, queue.keep_dead) == (0, 0, LONGEST)
    assert queue.curve.base == SECOND
    assert tuned(queue, Tuning(workers=MOST_WORKERS + 1)).workers == MOST_WORKERS


@pytest.mark.spec("QUEUE-03", "QUEUE-04")
@given(TUNINGS, TUNINGS)
def test_tuning_is_bounded_idempotent_and_the_last_word_wins(first: Tuning, second: Tuning) -> None:
    once = tuned(Queue(name="q"), first)
    assert tuned(once, first) == once
    assert once.workers is None or 0 <= once.workers <= MOST_WORKERS
    assert 0 <= once.keep_done <= LONGEST
    assert 0 <= once.keep_dead <= LONGEST
    assert once.curve == clamped_curve(once.curve)
    twice = tuned(once, second)
    if second.paused is not None:
        assert twice.paused is second.paused
    else:
        assert twice.paused is once.paused


@pytest.mark.spec("QUEUE-11")
def test_a_queue_with_an_impossible_name_cannot_be_tuned() -> None:
    with pytest.raises(InvalidName, match="two words"):
        tuned(Queue(name="two words"), Tuning())


def test_budgets_and_presences_are_plain_values() -> None:
    assert Budget("api", full(10, 1, 0)).bucket.tokens == 10
    assert Rate(10, 1) == Rate(capacity=10, rate=1)
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


@pytest.mark.spec("WORKER-27")
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

"""How many processes work needs, and how a supervisor follows that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.control import Pause, Queue
from stoker.model.errors import InvalidInput
from stoker.model.events import Point
from stoker.model.scale import (
    TARGET_WAIT,
    UNMEASURED,
    Bounds,
    Need,
    Work,
    expected_run,
    need,
    next_size,
    processes,
    read_bounds,
    run_times,
    share,
)
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Cooldown, Rate, drained, full
from stoker.model.time import HOUR, MINUTE, SECOND, Span

NOW = 1_800_000_000_000_000
OPEN = Queue(name="mail")
DRY = drained(full(Rate(10), NOW), NOW)


def key(waiting: int, running: int = 0, most: int | None = 1, **more: Any) -> SubqueueView:
    return SubqueueView("mail", f"api/{waiting}", "api", "k", running, most, waiting=waiting, **more)


def paused(**settings: Any) -> Queue:
    return msgspec.structs.replace(OPEN, **settings)


@pytest.mark.spec("SCALE-01")
@pytest.mark.parametrize(
    ("work", "claimable", "slots", "held_by"),
    [
        (Work(queue=OPEN), 0, 0, ()),
        (Work(queue=OPEN, due=1), 1, 1, ()),
        (Work(queue=OPEN, running=7), 0, 7, ()),
        # quick jobs share slots: 1,000 runs of 0.1 s are 100 s of work for ten seconds
        (Work(queue=OPEN, due=1_000, run_time=SECOND // 10), 1_000, 10, ()),
        # long ones need a slot each
        (Work(queue=OPEN, due=100, run_time=HOUR), 100, 100, ()),
        (Work(queue=OPEN, due=90, running=20, run_time=SECOND), 90, 20, ()),
        (Work(queue=OPEN, due=200, running=20, run_time=SECOND), 200, 20, ()),
        # without a measured run
        (Work(queue=OPEN, due=110), 110, 10, ()),
        (Work(queue=OPEN, due=100, running=1, oldest=90 * SECOND), 100, 91, ()),
        # what the queue holds
        (Work(queue=paused(pause=Pause()), due=100, running=2), 0, 2, ("pause",)),
        (Work(queue=paused(pause=Pause())), 0, 0, ()),
        (Work(queue=paused(pause=Pause(NOW)), due=1), 1, 1, ()),
        (Work(queue=paused(cooldown=Cooldown(NOW + 1, 1)), due=100), 0, 0, ("cooldown",)),
        (Work(queue=paused(cooldown=Cooldown(NOW + 1, 1))), 0, 0, ()),
        (Work(queue=paused(workers=3), due=100, run_time=HOUR), 3, 3, ("workers",)),
        (Work(queue=paused(workers=3), due=100, running=3, run_time=HOUR), 0, 3, ("workers",)),
        (Work(queue=paused(workers=0), due=100, running=2), 0, 2, ("workers",)),
        # ten a second for ten seconds, whatever waits
        (Work(queue=paused(bucket=DRY), due=100_000, run_time=SECOND), 100, 10, ("rate",)),
        (Work(queue=paused(bucket=drained(full(Rate(1, per=3600), NOW), NOW)), due=100), 0, 0, ("rate",)),
        # what limits hold
        (Work(queue=OPEN, due=100, running=1, subqueues=[key(100, 1)], run_time=SECOND), 0, 1, ("limit",)),
        (Work(queue=OPEN, due=100, running=1, subqueues=[key(100, 1)], run_time=HOUR), 0, 1, ("limit",)),
        (Work(queue=OPEN, due=100, subqueues=[key(100)], run_time=HOUR), 1, 1, ("limit",)),
        (Work(queue=OPEN, due=5_000, subqueues=[key(100)] * 50, run_time=SECOND // 10), 50, 50, ("limit",)),
        (Work(queue=OPEN, due=130, subqueues=[key(100, 2, 2)], running=2, run_time=HOUR), 30, 32, ("limit",)),
        (Work(queue=OPEN, due=30, subqueues=[key(10, most=None), key(20, most=50)], run_time=HOUR), 30, 30, ()),
        (Work(queue=OPEN, due=900, subqueues=[key(900, most=None, bucket=DRY)], run_time=HOUR), 100, 100, ("limit",)),
        (Work(queue=OPEN, due=3, subqueues=[key(5, most=None)], run_time=HOUR), 3, 3, ()),
        (Work(queue=OPEN, due=2, subqueues=[SubqueueView("mail", "a")], run_time=HOUR), 2, 2, ()),
        (Work(queue=OPEN, subqueues=[SubqueueView("mail", "a")], run_time=HOUR), 0, 0, ()),
        (
            Work(queue=paused(workers=9, bucket=DRY), due=999, subqueues=[key(900)], run_time=HOUR),
            9,
            9,
            ("limit", "workers"),
        ),
    ],
)
def test_a_queue_needs_slots_for_what_can_start(
    work: Work, claimable: int, slots: int, held_by: tuple[str, ...]
) -> None:
    found = need(work, NOW)
    assert (found.claimable, found.slots_needed, found.held_by) == (claimable, slots, held_by)
    assert found.held == work.due - claimable
    assert found.processes == -(-slots // 10)
    assert found.run_time == (work.run_time or max(UNMEASURED, work.oldest))


@pytest.mark.spec("SCALE-04")
@pytest.mark.parametrize(
    ("measured", "running", "run_time", "slots"),
    [
        (2, 10, 3_000_166_666, 100),  # two quick runs have ended, ten slow ones go on
        (50, 10, 71_568_627, 88),
        (9_999, 1, 1_359_900, 11),  # one slow run among thousands
        (0, 0, SECOND, 9),
    ],
)
def test_what_runs_now_counts_beside_what_was_measured(measured: int, running: int, run_time: int, slots: int) -> None:
    oldest = HOUR if running else 0
    found = need(Work(queue=OPEN, due=90, running=running, oldest=oldest, run_time=SECOND, measured=measured), NOW)
    assert (found.run_time, found.slots_needed) == (run_time, slots)


@pytest.mark.spec("SCALE-01")
def test_a_longer_wait_needs_fewer_slots() -> None:
    work = Work(queue=OPEN, due=1_000, run_time=SECOND)
    assert [need(work, NOW, wait).slots_needed for wait in (0, SECOND, MINUTE, HOUR)] == [1_000, 500, 17, 1]


queues = st.builds(
    Queue,
    name=st.just("mail"),
    workers=st.none() | st.integers(0, 50),
    bucket=st.none() | st.builds(full, st.builds(Rate, st.floats(1, 1_000), st.floats(0.1, 3_600)), st.just(NOW)),
    pause=st.none() | st.just(Pause()),
    cooldown=st.just(Cooldown()) | st.just(Cooldown(NOW + SECOND, 1)),
)
keys = st.builds(
    key, st.integers(0, 500), st.integers(0, 20), st.none() | st.integers(1, 20), bucket=st.none() | st.just(DRY)
)
works = st.builds(
    lambda main, lines, more: Work(
        due=main + sum(one.waiting or 0 for one in lines),
        running=sum(one.running for one in lines) + more.pop("beside"),
        subqueues=lines,
        **more,
    ),
    st.integers(0, 5_000),
    st.lists(keys, max_size=5),
    st.fixed_dictionaries(
        {
            "queue": queues,
            "beside": st.integers(0, 50),
            "run_time": st.none() | st.integers(0, HOUR),
            "oldest": st.integers(0, HOUR),
            "slots": st.integers(1, 20),
        }
    ),
)


@pytest.mark.spec("SCALE-02")
@given(works, st.integers(0, HOUR), st.integers(1, 1_000))
def test_needs_grow_with_the_backlog_and_hold_what_runs(work: Work, wait: Span, more: int) -> None:
    found = need(work, NOW, wait)
    longer = need(msgspec.structs.replace(work, due=work.due + more), NOW, wait)
    assert longer.slots_needed >= found.slots_needed
    assert longer.claimable >= found.claimable
    assert 0 <= found.claimable <= work.due
    assert found.held == work.due - found.claimable >= 0
    assert bool(found.held) == bool(found.held_by)
    assert found.slots_needed >= work.running
    assert found.slots_needed <= work.running + work.due
    assert (found.processes == 0) <= (found.claimable == work.running == 0)
    assert (found.processes - 1) * work.slots < max(found.slots_needed, 1) <= max(found.processes, 1) * work.slots
    if work.queue.workers is not None:
        assert found.slots_needed <= max(work.queue.workers, work.running)
    assert need(work, NOW, wait + MINUTE).slots_needed <= found.slots_needed or work.queue.bucket or work.subqueues


def needed(queue: str, slots_needed: int, slots: int = 10) -> Need:
    work = Work(queue=Queue(name=queue), running=slots_needed, slots=slots)
    return need(work, NOW)


@pytest.mark.spec("SCALE-03")
def test_processes_serve_several_queues() -> None:
    """Each queue has slots of its own in every process, or all share them."""
    mail, reports = needed("mail", 25, 5), needed("reports", 12, 2)
    assert processes([mail, reports]) == 6
    assert processes([mail, reports], shared=10) == 4
    assert processes([]) == 0
    assert processes([], awaited=True) == processes([], shared=5, awaited=True) == 1
    assert processes([mail], awaited=True) == 5


@pytest.mark.spec("SCALE-04")
def test_run_times_are_those_of_the_kinds_that_wait() -> None:
    points = [
        Point("mail", "kind_processing", 0, 3, 30 * SECOND),
        Point("mail", "kind_processing", 1, 1, 10 * SECOND),
        Point("report", "kind_processing", 0, 2, 2 * HOUR),
        Point("never", "kind_processing", 0, 0),
    ]
    known = run_times(points)
    assert known == {"mail": (10 * SECOND, 4), "report": (HOUR, 2)}
    assert expected_run({"mail": 9, "new": 90}, known) == known["mail"]
    assert expected_run({"mail": 1, "report": 1, "idle": 0}, known) == ((HOUR + 10 * SECOND) // 2, 6)
    assert expected_run({"new": 5, "mail": 0}, known) is None


@pytest.mark.spec("SCALE-05")
def test_a_supervisor_grows_at_once_and_shrinks_to_the_most_of_the_last_while() -> None:
    bounds = Bounds(2, 8)
    assert next_size(2, [1, 3, 6], bounds) == 6
    assert next_size(6, [6, 6, 40], bounds) == 8
    assert next_size(8, [6, 40, 0], bounds) == 8
    assert next_size(8, [6, 3, 0], bounds) == 6
    assert next_size(6, [0, 0], bounds) == 2
    assert next_size(1, [0], bounds) == 2
    assert [share(7, hosts) for hosts in (0, 1, 2, 3)] == [7, 7, 4, 3]


@pytest.mark.spec("SCALE-05")
@given(st.integers(1, 8), st.lists(st.integers(0, 20), min_size=1, max_size=10))
def test_a_size_stays_within_its_bounds_and_between_its_wishes(size: int, wishes: list[int]) -> None:
    bounds = Bounds(1, 8)
    found = next_size(size, wishes, bounds)
    assert bounds.least <= found <= bounds.most
    assert found >= bounds.pull(wishes[-1])
    assert found <= max(size, bounds.pull(wishes[-1]))


@pytest.mark.spec("SCALE-05")
def test_bounds_are_read() -> None:
    assert read_bounds("auto:1-8") == (1, 8)
    assert read_bounds("auto:3-3") == (3, 3)
    for text in ("auto", "auto:0-8", "auto:8-1", "auto:1-257", "auto:1-", "8-1", "", "auto:١-٨"):
        with pytest.raises(InvalidInput, match="auto:1-8"):
            read_bounds(text)


def test_the_target_is_ten_seconds() -> None:
    assert need(Work(queue=OPEN, due=50), NOW) == need(Work(queue=OPEN, due=50), NOW, TARGET_WAIT)

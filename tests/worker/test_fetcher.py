"""Demand and buffers, without a store."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from stoker.model.job import Claim
from stoker.worker.fetcher import DEEPEST_ALONE, HORIZON, LARGEST, SMALLEST, STALE_AFTER, Fetcher, Lane, QueueLimits
from stoker.worker.state import UnwrittenOutcomes

numbers = itertools.count(1)
tenths = itertools.count(time.monotonic() + 1_000_000, 0.1)
"""A clock that is always ahead of the real one, which `distribute` looks at."""


def claims(n: int, queue: str = "a") -> list[Claim]:
    return [
        Claim(next(numbers).to_bytes(16), "work", queue, b"{}", 1, 0, 5, "w", 1, 7, 7, 7, ref=None) for _ in range(n)
    ]


@pytest.mark.spec("WORKER-16")
def test_demand_is_what_slots_can_take_queue_by_queue() -> None:
    fetcher = Fetcher({"a": 2, "b": 3}, "own", 100)
    asked = fetcher.ask("w")
    assert asked is not None
    demand = asked.demand
    assert (demand.worker, demand.queues, demand.total) == ("w", (("a", 2), ("b", 3)), 5)
    fetcher.distribute(asked, [*claims(2), *claims(1, "b")])
    assert [len(lane.buffer) for lane in fetcher.lanes] == [2, 1]
    assert fetcher.ask("w") is None, "a is full, and b has no more"
    fetcher.wake(["b", "unknown"])
    asked = fetcher.ask("w")
    assert asked is not None
    assert asked.demand.queues == (("b", 2),)


@pytest.mark.spec("WORKER-40")
def test_a_limited_queue_that_had_less_than_its_share_is_left_alone() -> None:
    """Else it is asked again and again while another queue has more than its slots take."""
    fetcher = Fetcher({"a": 2, "b": 9}, "own", 100, QueueLimits(lambda _queue: 0))
    fetcher.limits.caps = {"b": 3}
    asked = fetcher.ask("w")
    assert asked is not None and asked.demand.queues == (("a", 2), ("b", 3))
    fetcher.distribute(asked, claims(2))
    assert fetcher.lanes[0].may_have_more, "a has more than its slots take"
    assert fetcher.ask("w") is None, "b had nothing"


@pytest.mark.spec("WORKER-40")
def test_a_limited_queue_that_had_its_share_is_asked_again_when_that_grows() -> None:
    fetcher = Fetcher({"b": 9}, "own", 100, QueueLimits(lambda _queue: 0))
    fetcher.limits.caps = {"b": 3}
    asked = fetcher.ask("w")
    assert asked is not None and asked.demand.queues == (("b", 3),)
    fetcher.distribute(asked, claims(3, "b"))
    fetcher.limits.caps = {"b": 5}
    asked = fetcher.ask("w")
    assert asked is not None and asked.demand.queues == (("b", 2),)
    fetcher.distribute(asked, claims(1, "b"))
    fetcher.limits.caps = {"b": 7}
    assert fetcher.ask("w") is None, "it had one of two"
    fetcher.wake(["b"])
    assert fetcher.ask("w") is not None


@pytest.mark.spec("WORKER-21")
def test_a_wake_up_during_a_claim_is_not_lost() -> None:
    fetcher = Fetcher({"a": 2}, "own", 100)
    asked = fetcher.ask("w")
    assert asked is not None
    fetcher.wake(["a"])
    fetcher.distribute(asked, [])
    asked = fetcher.ask("w")
    assert asked is not None, "the job may have come just after the store was asked"
    fetcher.distribute(asked, [])
    assert fetcher.ask("w") is None


@pytest.mark.spec("WORKER-26")
def test_claims_are_stale_only_where_no_slot_takes_any() -> None:
    fetcher = Fetcher({"a": 1}, "own", 100)
    [lane] = fetcher.lanes
    asked = fetcher.ask("w")
    assert asked is not None
    fetcher.distribute(asked, claims(3))
    lane.busy = 1
    assert fetcher.stale() == []
    lane.since = time.monotonic() - STALE_AFTER - 1
    lane.busy = 0
    assert fetcher.stale() == []
    lane.busy = 1
    assert len(fetcher.stale()) == 3
    assert not lane.buffer


@pytest.mark.spec("WORKER-20")
async def test_only_living_sleepers_are_woken_one_per_claim() -> None:
    fetcher = Fetcher({"a": 3}, "own", 100)
    [lane] = fetcher.lanes
    resting = [asyncio.ensure_future(lane.rest()) for _ in range(3)]
    await asyncio.sleep(0)
    resting[0].cancel()
    await asyncio.sleep(0)
    lane.received(claims(1), 1, 1, 0.0)
    await asyncio.sleep(0)
    assert [one.done() for one in resting] == [True, True, False]
    lane.wake_all()
    await resting[2]


def fill(lane: Lane, n: int, now: float, *, asked: int | None = None) -> None:
    """Hand a lane so many claims, of as many as it asked for or more."""
    lane.asked += asked or n
    lane.received(claims(n), asked or n, 1, now)


def run(lane: Lane, now: float) -> None:
    """Let the slots of a lane run everything it has, until then."""
    lane.finished += len(lane.buffer)
    lane.buffer.clear()
    lane.run_dry(now)
    lane.measure(now)


@pytest.mark.spec("WORKER-16")
def test_a_lane_learns_how_fast_it_is_however_short_its_turns_and_forgets_its_rest() -> None:
    lane = Lane(("a",), 5, 5)
    now = 1000.0
    for _ in range(20):
        fill(lane, 5, now)
        run(lane, now + 0.0001)
        now += 0.02  # the store takes its time, which says nothing about the lane
    assert lane.wanted() == 30, "as deep as it may be"
    now += 3600
    fill(lane, 1, now, asked=5)
    run(lane, now + 0.001)
    assert lane.wanted() == 30, "an hour without jobs does not make it slow"
    now += 0.001
    for _ in range(20):
        fill(lane, 5, now)
        now += 1
        run(lane, now)
    lane.busy = 5
    assert lane.wanted() == 0, "slow jobs are not hoarded"


@pytest.mark.spec("WORKER-16")
def test_a_lane_takes_ten_times_in_advance_of_what_it_ran() -> None:
    lane = Lane(("a",), 10)
    fill(lane, 10, 1000.0)
    run(lane, 1000.0001)
    assert lane.wanted() == 10 + 100
    fill(lane, 110, 1000.01)
    run(lane, 1000.011)
    assert lane.wanted() == 10 + DEEPEST_ALONE


@pytest.mark.spec("WORKER-16")
def test_a_lane_that_runs_quick_jobs_one_by_one_does_not_hoard() -> None:
    lane = Lane(("a",), 10)
    now = 1000.0
    for _ in range(200):
        now += 0.01
        fill(lane, 1, now, asked=10)
        run(lane, now + 0.0001)
    assert lane.wanted() == 10 + round(100 * HORIZON)


@pytest.mark.spec("WORKER-16")
def test_jobs_that_end_in_bursts_do_not_make_a_lane_fast() -> None:
    """Ten jobs in ten milliseconds, nine of which end at once after a measurement.

    The lane remembers what it ran in one horizon, 50 jobs, the burst that has just ended being the only one of which
    nothing is forgotten yet: with n jobs before it, (n + 1) * 5/6 + 9 after it, which goes up from 50 to 59.
    """
    lane = Lane(("a",), 10)
    now, ahead = 1000.0, []
    for _ in range(100):
        fill(lane, 10, now)
        now += 0.01
        lane.finished += 1
        lane.measure(now)
        lane.buffer.popleft()
        now += 0.00001
        run(lane, now)
        ahead.append(lane.wanted() - 10)
    assert ahead == sorted(ahead), "it settles, and does not swing"
    assert (ahead[0], ahead[-1]) == (49, 58), "rounded down: 49.95 and 58.93"


def run_at(fetcher: Fetcher, rate: int) -> None:
    """Let the first lane finish so many jobs a second, for a few seconds."""
    [lane] = fetcher.lanes
    fill(lane, 1, next(tenths))
    for now in itertools.islice(tenths, 40):
        lane.finished += rate // 10
        lane.measure(now)
    lane.run_dry(next(tenths))
    lane.buffer.clear()


@pytest.mark.spec("WORKER-37")
def test_a_fast_lane_takes_large_batches_by_itself_and_a_slow_one_does_not() -> None:
    fetcher = Fetcher({"a": 10}, "own")
    [lane] = fetcher.lanes
    asked = fetcher.ask("w")
    assert asked is not None
    assert asked.demand.total == 10, "a new lane takes what its slots can run"
    fetcher.distribute(asked, claims(10))
    lane.buffer.clear()
    run_at(fetcher, 30_000)
    assert lane.batch == LARGEST
    asked = fetcher.ask("w")
    assert asked is not None
    assert asked.demand.total == LARGEST
    assert lane.wanted() + LARGEST == 10 + DEEPEST_ALONE, "however fast it is"
    fetcher.withdraw(asked)
    run_at(fetcher, 1_000)
    assert lane.batch == SMALLEST
    assert lane.wanted() == 10 + round(1_000 * HORIZON)
    run_at(fetcher, 10)
    assert lane.wanted() == 10, "slow jobs are not hoarded"


@pytest.mark.spec("WORKER-37")
def test_a_size_that_was_set_stays() -> None:
    fetcher, settler = Fetcher({"a": 10}, "own", 7), UnwrittenOutcomes(7)
    run_at(fetcher, 100_000)
    asked = fetcher.ask("w")
    assert asked is not None
    assert asked.demand.total == fetcher.batch == 7
    settler.follow(LARGEST)
    assert settler.batch == 7


@pytest.mark.spec("WORKER-37")
def test_outcomes_are_written_in_batches_like_those_that_are_claimed() -> None:
    fetcher, settler = Fetcher({"a": 10}, "own"), UnwrittenOutcomes()
    assert settler.batch == SMALLEST
    run_at(fetcher, 30_000)
    settler.follow(fetcher.batch)
    assert settler.batch == LARGEST

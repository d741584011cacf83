"""Demand and buffers, without a store."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from stoker.model.job import Claim
from stoker.worker.fetcher import STALE_AFTER, Fetcher

numbers = itertools.count(1)


def claims(n: int, queue: str = "a") -> list[Claim]:
    return [
        Claim(next(numbers).to_bytes(16), "work", queue, b"{}", 1, 0, 5, "w", 1, 7, 7, 7, ref=None) for _ in range(n)
    ]


@pytest.mark.spec("WORKER-16")
def test_demand_is_what_slots_can_take_queue_by_queue() -> None:
    fetcher = Fetcher({"a": 2, "b": 3}, "own", 100)
    demand = fetcher.demand("w")
    assert demand is not None
    assert (demand.worker, demand.queues, demand.total) == ("w", (("a", 2), ("b", 3)), 5)
    fetcher.distribute([*claims(2), *claims(1, "b")])
    assert [len(lane.buffer) for lane in fetcher.lanes] == [2, 1]
    assert fetcher.demand("w") is None, "a is full, and b has no more"
    fetcher.wake(["b", "unknown"])
    demand = fetcher.demand("w")
    assert demand is not None
    assert demand.queues == (("b", 2),)


@pytest.mark.spec("WORKER-21")
def test_a_wake_up_during_a_claim_is_not_lost() -> None:
    fetcher = Fetcher({"a": 2}, "own", 100)
    assert fetcher.demand("w") is not None
    fetcher.wake(["a"])
    fetcher.distribute([])
    assert fetcher.demand("w") is not None, "the job may have come just after the store was asked"
    fetcher.distribute([])
    assert fetcher.demand("w") is None


@pytest.mark.spec("WORKER-26")
def test_claims_are_stale_only_where_no_slot_takes_any() -> None:
    fetcher = Fetcher({"a": 1}, "own", 100)
    [lane] = fetcher.lanes
    fetcher.demand("w")
    fetcher.distribute(claims(3))
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
    lane.received(claims(1), 1, 0.0)
    await asyncio.sleep(0)
    assert [one.done() for one in resting] == [True, True, False]
    lane.wake_all()
    await resting[2]

"""Concurrent inserts share batches; no call waits, fails or is stored because of another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.engines.shared.insert_batcher import InsertBatcher
from stoker.model.errors import EngineClosed, InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Draft, Receipt, Stored


def draft(number: int, payload: bytes = b"{}") -> Draft:
    return Draft(JobId(number.to_bytes(16)), "work", payload)


class Table:
    """Stores batches one at a time, each when the test lets it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[list[int]] = []
        self.gate = asyncio.Event()
        self.refused: set[int] = set()
        self.error: BaseException | None = None

    def batcher(self, **options: Any) -> InsertBatcher[Draft, Receipt]:
        given = {"parallel": 1, "most": 4, "small": 2, "alone": self.put_alone, "refusals": (InvalidInput,)}
        return InsertBatcher(self.put, **{**given, **options})

    async def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        numbers = [int.from_bytes(one.job_id) for one in drafts]
        self.batches.append(numbers)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.refused.intersection(numbers):
            raise InvalidInput("draft", "?", "is refused")
        return [Receipt(one.job_id, Stored.INSERTED) for one in drafts]

    async def put_alone(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self.alone.append([int.from_bytes(one.job_id) for one in drafts])
        if self.refused.intersection(self.alone[-1]):
            raise InvalidInput("draft", str(self.alone[-1]), "is refused")
        return [Receipt(one.job_id, Stored.EXISTING) for one in drafts]


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def calls(batcher: InsertBatcher[Draft, Receipt], *groups: Sequence[int]) -> list[asyncio.Task[list[Receipt]]]:
    return [asyncio.ensure_future(batcher.put([draft(number) for number in group])) for group in groups]


async def test_a_call_alone_is_stored_at_once_and_later_ones_share_the_next_batch() -> None:
    table = Table()
    batcher = table.batcher()
    tasks = calls(batcher, [1], [2], [3, 4])
    await turns()
    table.gate.set()
    receipts = await asyncio.gather(*tasks)
    assert [[int.from_bytes(one.id) for one in group] for group in receipts] == [[1], [2], [3, 4]]
    assert table.batches == [[1], [2, 3, 4]]


async def test_so_many_batches_are_under_way_and_no_more() -> None:
    table = Table()
    batcher = table.batcher(parallel=2, most=1)
    tasks = calls(batcher, [1], [2], [3], [4])
    await turns()
    assert table.batches == [[1], [2]], "the second one left while the first was under way"
    tasks += calls(batcher, [5])
    await turns()
    assert table.batches == [[1], [2], [3]]
    table.gate.set()
    await asyncio.gather(*tasks)
    assert sorted(number for batch in table.batches for number in batch) == [1, 2, 3, 4, 5]


async def test_a_batch_has_a_largest_size_and_a_larger_call_its_own() -> None:
    table = Table()
    batcher = table.batcher()
    tasks = calls(batcher, [1], [2, 3], [4, 5], [6], range(10, 16))
    await turns()
    table.gate.set()
    await asyncio.gather(*tasks)
    assert table.batches == [[1], [2, 3, 4, 5], [6], [10, 11, 12, 13, 14, 15]]


async def test_a_batch_has_a_largest_weight() -> None:
    table = Table()
    batcher = table.batcher(most=100, most_bytes=10, weigh=lambda one: len(one.payload))
    sizes = (1, 6, 4, 1, 30, 1)
    tasks = [asyncio.ensure_future(batcher.put([draft(number, b"x" * size)])) for number, size in enumerate(sizes)]
    await turns()
    table.gate.set()
    await asyncio.gather(*tasks)
    assert table.batches == [[0], [1, 2], [3], [4], [5]]


async def test_a_large_call_waits_one_turn_for_company() -> None:
    table = Table()
    batcher = table.batcher(most=10)
    tasks = calls(batcher, [1, 2, 3], [4, 5, 6])
    table.gate.set()
    await asyncio.gather(*tasks)
    assert table.batches == [[1, 2, 3, 4, 5, 6]]


async def test_a_refused_call_fails_alone() -> None:
    table = Table()
    batcher = table.batcher()
    table.refused = {3}
    tasks = calls(batcher, [1], [2], [3], [4])
    await turns()
    table.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, InvalidInput) for one in results] == [False, False, True, False]
    assert table.alone == [[2], [3], [4]]


async def test_a_call_refused_at_once_is_tried_alone() -> None:
    table = Table()
    batcher = table.batcher(alone=table.put_alone)
    table.refused = {1}
    table.gate.set()
    with pytest.raises(InvalidInput):
        await batcher.put([draft(1)])
    assert table.alone == [[1]]
    assert await batcher.put([draft(2)]), "and the next one is stored"


async def test_an_error_reaches_every_caller_of_the_batch() -> None:
    table = Table()
    batcher = table.batcher()
    table.error = EngineClosed("gone")
    tasks = calls(batcher, [1], [2], [3])
    await turns()
    table.gate.set()
    assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [EngineClosed] * 3


async def test_a_canceled_call_is_not_stored_unless_its_batch_began() -> None:
    table = Table()
    batcher = table.batcher()
    tasks = calls(batcher, [1], [2], [3])
    await turns()
    late = calls(batcher, [4], [5])
    await turns()
    tasks[1].cancel()
    late[0].cancel()
    table.gate.set()
    results = await asyncio.gather(*tasks, *late, return_exceptions=True)
    assert [type(one) for one in results] == [
        list, asyncio.CancelledError, list, asyncio.CancelledError, list,
    ]  # fmt: skip
    assert table.batches == [[1], [2, 3], [5]], "2 was under way already"


async def test_closing_stores_what_waits() -> None:
    table = Table()
    batcher = table.batcher(most=1)
    tasks = calls(batcher, [1], [2], [3])
    await turns()
    closing = asyncio.ensure_future(batcher.close())
    await turns()
    assert not closing.done()
    table.gate.set()
    await closing
    assert all(task.done() for task in tasks)
    assert table.batches == [[1], [2], [3]]


async def test_a_batch_whose_task_is_canceled_says_that_the_engine_was_closed() -> None:
    table = Table()
    batcher = table.batcher()
    tasks = calls(batcher, [1], [2])
    await turns()
    for task in batcher._tasks:
        task.cancel()
    with pytest.raises(EngineClosed, match="unknown whether"):
        await tasks[1]
    table.gate.set()
    assert await tasks[0]

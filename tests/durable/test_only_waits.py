"""Which shapes of a run count as waiting only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stoker.durable.only_waits import only_waits
from stoker.model.steps import Wakes

Wait = Callable[[], Awaitable[None]]


async def alone(wait: Wait) -> None:
    await wait()


async def gathered(wait: Wait) -> None:
    await asyncio.gather(wait(), wait())


async def nested(wait: Wait) -> None:
    await asyncio.gather(gathered(wait), alone(wait))


async def in_a_group(wait: Wait) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(alone(wait))
        group.create_task(gathered(wait))


async def in_a_task(wait: Wait) -> None:
    await asyncio.create_task(alone(wait))


async def shielded(wait: Wait) -> None:
    await asyncio.shield(asyncio.ensure_future(alone(wait)))


async def first_of_two(wait: Wait) -> None:
    await asyncio.wait({asyncio.create_task(alone(wait)) for _ in range(2)}, return_when=asyncio.FIRST_COMPLETED)


async def with_a_limit(wait: Wait) -> None:
    await asyncio.wait_for(wait(), 60)


async def a_limit_around_a_gather(wait: Wait) -> None:
    await asyncio.wait_for(gathered(wait), 60)


async def first_of_two_with_a_limit(wait: Wait) -> None:
    await asyncio.wait({asyncio.create_task(alone(wait)) for _ in range(2)}, timeout=60)


async def beside_other_work(wait: Wait) -> None:
    await asyncio.gather(wait(), asyncio.sleep(60))


async def in_the_background(wait: Wait) -> None:
    task = asyncio.create_task(alone(wait))
    await asyncio.sleep(60)
    await task


async def of_an_event(wait: Wait) -> None:
    task = asyncio.create_task(alone(wait))
    await asyncio.Event().wait()
    await task


async def a_group_that_works(wait: Wait) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(alone(wait))
        group.create_task(asyncio.sleep(60))


SHAPES: dict[Callable[[Wait], Awaitable[None]], Wakes | None] = {
    alone: Wakes.ALL,
    gathered: Wakes.ALL,
    nested: Wakes.ALL,
    in_a_group: Wakes.ALL,
    in_a_task: Wakes.ALL,
    first_of_two: Wakes.ANY,
    shielded: None,
    with_a_limit: None,
    a_limit_around_a_gather: None,
    first_of_two_with_a_limit: None,
    beside_other_work: None,
    in_the_background: None,
    of_an_event: None,
    a_group_that_works: None,
}


@pytest.mark.spec("DURABLE-01")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
async def test_a_run_only_waits_if_every_branch_of_it_does(shape: Callable[[Wait], Any]) -> None:
    waits: set[asyncio.Future[None]] = set()

    async def wait() -> None:
        future = asyncio.get_running_loop().create_future()
        waits.add(future)
        await future

    handler = shape(wait)
    main = asyncio.create_task(handler)
    for _ in range(10):
        await asyncio.sleep(0)
    try:
        assert only_waits(main, handler, waits) == SHAPES[shape]
    finally:
        main.cancel()
        await asyncio.gather(main, return_exceptions=True)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

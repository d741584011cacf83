"""Schedules in Postgres: what the server refuses, and who wins when two transactions meet."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.model.job import Draft, Status
from stoker.model.schedule import NO_ID, Action, Edit, Fired, Schedule, draft_of, tick
from stoker.model.time import HOUR
from stoker.testing.clock import VirtualClock
from tests.engines.postgres.sleepers import Make
from tests.harness.apps import PATIENCE

pytestmark = pytest.mark.engine("postgres")

START = 1_800_000_000_000_000


@pytest.mark.spec("SCHED-10")
async def test_a_payload_that_the_server_cannot_store_is_the_last_error(make: Make) -> None:
    """A template that was made elsewhere: an app itself encodes every payload as JSON."""
    clock = VirtualClock(START)
    engine = await make(clock=clock)
    given = Schedule(name="report", expression="@hourly", template=Draft(NO_ID, "work", b"\xff"))
    new = await engine.schedules.put(given)
    assert new is not None
    seeded = (await engine.schedules.fire(tick(new, START))).schedule
    assert seeded is not None
    assert seeded.next_fire is not None
    clock.set(seeded.next_fire)
    fired = await engine.schedules.fire(tick(seeded, clock()), [draft_of(seeded, clock())])
    assert fired.applied
    assert fired.schedule is not None
    assert (fired.schedule.last_status, fired.schedule.enabled) == (Action.FAIL, True)
    assert "UTF-8" in (fired.schedule.last_error or "")
    assert fired.schedule.next_fire == clock() + HOUR
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 0


@pytest.mark.spec("SCHED-02", "SCHED-08")
async def test_transactions_that_meet_at_an_absent_row_find_what_the_other_stored(make: Make) -> None:
    """Twenty processes declare the same new schedule at once, then edit and fire it: nothing is lost or doubled."""
    clock = VirtualClock(START)
    engines = [await make(clock=clock) for _ in range(4)]
    given = Schedule(name="report", expression="@hourly", template=Draft(NO_ID, "work"), source="code")
    stored = await asyncio.gather(*(engines[n % 4].schedules.put(given, keep_edited=True) for n in range(20)))
    assert len({one.changed_at for one in stored if one is not None}) == 1
    clock.set(START + 1)
    seed = tick(stored[0], clock())  # type: ignore[arg-type]
    results = await asyncio.gather(
        *(engines[n % 4].schedules.fire(seed) for n in range(8)),
        *(engines[n % 4].schedules.put(Edit(name="report", jitter=n)) for n in range(4)),
    )
    fired = [one for one in results if isinstance(one, Fired)]
    assert sum(one.applied for one in fired) <= 1
    [found] = await engines[0].schedules.read()
    assert (found.next_fire is not None) == any(one.applied for one in fired)


async def seeded(engine: PostgresEngine, clock: VirtualClock, n: int, **more: Any) -> list[Schedule]:
    """Hourly schedules, at whose first occurrence the clock stands now."""
    for number in range(n):
        await engine.schedules.put(
            Schedule(name=f"s{number:03}", expression="@hourly", template=Draft(NO_ID, "work"), **more)
        )
    await asyncio.gather(*(engine.schedules.fire(tick(one, clock())) for one in await engine.schedules.read()))
    found = await engine.schedules.read()
    clock.set(max(one.next_fire or 0 for one in found))
    return found


def due(engine: PostgresEngine, clock: VirtualClock, schedules: Sequence[Schedule]) -> list[asyncio.Task[Fired]]:
    return [
        asyncio.ensure_future(
            engine.schedules.fire(tick(one, clock()), [draft_of(one, at) for at in tick(one, clock()).fires])
        )
        for one in schedules
    ]


@pytest.mark.spec("SCHED-24")
async def test_many_that_are_due_at_once_take_few_transactions(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock(START)
    engine = await make(clock=clock)
    schedules = await seeded(engine, clock, 60)
    lanes, real = list[str](), engine._store.write

    async def counted(*args: Any, **options: Any) -> Any:
        lanes.append(options["lane"])
        return await real(*args, **options)

    monkeypatch.setattr(engine._store, "write", counted)
    fired = await asyncio.gather(*due(engine, clock, schedules))
    assert all(one.applied for one in fired)
    assert len(lanes) <= 5
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 60


@pytest.mark.spec("SCHED-24")
@pytest.mark.parametrize("held", ["row", "key"])
async def test_one_whose_row_or_key_is_held_keeps_no_other_one_waiting(
    make: Make, postgres_url: str, postgres_schema: str, held: str
) -> None:
    clock = VirtualClock(START)
    engine = await make(clock=clock)
    schedules = await seeded(engine, clock, 8, overlap="skip")
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        if held == "row":
            await other.execute(f"select 1 from {postgres_schema}.schedule where name = 's003' for update".encode())
        else:
            slot = draft_of(schedules[3], clock()).unique
            assert slot is not None
            await other.execute(
                f"insert into {postgres_schema}.dedupe (slot, id, firm) values (%s, %s, true)".encode(),
                (slot.slot("work"), uuid.uuid4()),
            )
        tasks = due(engine, clock, schedules)
        free = [task for n, task in enumerate(tasks) if n != 3]
        done, _ = await asyncio.wait(free, timeout=PATIENCE)
        assert [task.result().applied for task in done] == [True] * 7
        assert not tasks[3].done(), "the other transaction has not ended"
        await other.rollback()
    assert (await tasks[3]).applied
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 8

"""Schedules in Postgres: what the server refuses, and who wins when two transactions meet."""

from __future__ import annotations

import asyncio

import pytest

from stoker.model.job import Draft, Status
from stoker.model.schedule import NO_ID, Action, Edit, Fired, Schedule, draft_of, tick
from stoker.model.time import HOUR
from stoker.testing.clock import VirtualClock
from tests.engines.postgres.sleepers import Make

pytestmark = pytest.mark.engine("postgres")

START = 1_800_000_000_000_000


@pytest.mark.spec("SCHED-10")
async def test_a_payload_that_the_server_cannot_store_is_the_last_error(make: Make) -> None:
    """A template that was made elsewhere: an app itself encodes every payload as JSON."""
    clock = VirtualClock(START)
    engine = await make(clock=clock)
    given = Schedule(name="report", expression="@hourly", template=Draft(NO_ID, "work", b"\xff"))
    new = await engine.put(given)
    assert new is not None
    seeded = (await engine.fire(tick(new, START))).schedule
    assert seeded is not None
    assert seeded.next_fire is not None
    clock.set(seeded.next_fire)
    fired = await engine.fire(tick(seeded, clock()), [draft_of(seeded, clock())])
    assert fired.applied
    assert fired.schedule is not None
    assert (fired.schedule.last_status, fired.schedule.enabled) == (Action.FAIL, True)
    assert "UTF-8" in (fired.schedule.last_error or "")
    assert fired.schedule.next_fire == clock() + HOUR
    assert (await engine.census()).by_status()[Status.PENDING] == 0


@pytest.mark.spec("SCHED-02", "SCHED-08")
async def test_transactions_that_meet_at_an_absent_row_find_what_the_other_stored(make: Make) -> None:
    """Twenty processes declare the same new schedule at once, then edit and fire it: nothing is lost or doubled."""
    clock = VirtualClock(START)
    engines = [await make(clock=clock) for _ in range(4)]
    given = Schedule(name="report", expression="@hourly", template=Draft(NO_ID, "work"), source="code")
    stored = await asyncio.gather(*(engines[n % 4].put(given, keep_edited=True) for n in range(20)))
    assert len({one.changed_at for one in stored if one is not None}) == 1
    clock.set(START + 1)
    seed = tick(stored[0], clock())  # type: ignore[arg-type]
    results = await asyncio.gather(
        *(engines[n % 4].fire(seed) for n in range(8)),
        *(engines[n % 4].put(Edit(name="report", jitter=n)) for n in range(4)),
    )
    fired = [one for one in results if isinstance(one, Fired)]
    assert sum(one.applied for one in fired) <= 1
    [found] = await engines[0].schedules()
    assert (found.next_fire is not None) == any(one.applied for one in fired)

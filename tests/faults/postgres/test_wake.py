"""Wake-ups whose connection is lost: what is put is found all the same, and soon again at once."""

from __future__ import annotations

import time

import pytest

from stoker.engines.postgres.wakeup import listener
from tests.faults.postgres.trials import Make
from tests.faults.trial import BOUND, Trial
from tests.harness.proxy import Proxy
from tests.services import PostgresServer

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]

LISTENERS = "select pid from pg_stat_activity where query ~* '^(listen|select 1$)' and pid <> pg_backend_pid()"
RARELY = 60.0
"""Seconds between looks of an idle worker: whatever is found sooner was announced."""

AT_ONCE = 0.5


async def announced(trial: Trial) -> None:
    """Wait until a job that another process put is found by its announcement."""
    elsewhere = trial.recorder(trial.direct)
    give_up = time.monotonic() + BOUND
    while True:
        began = time.monotonic()
        draft = trial.draft()
        await elsewhere.insert([draft])
        trial.acknowledged.add(draft.job_id)
        await trial.until(lambda draft=draft: trial.ends[draft.job_id], "it is found")  # type: ignore[misc]
        if time.monotonic() - began < AT_ONCE:
            return
        assert time.monotonic() < give_up, "nothing is announced any more"


@pytest.mark.spec("PGFAULT-30")
async def test_a_listener_that_was_terminated_listens_again(server: PostgresServer, make: Make) -> None:
    async with Trial(make(), make(), flow=False, poll=RARELY) as running:
        gone: set[int] = set()
        for _ in range(3):
            await running.until(lambda: {row[0] for row in server.sql(LISTENERS)} - gone, "an engine listens")
            await announced(running)
            gone.update(row[0] for row in server.sql(LISTENERS))
            server.sql(f"select pg_terminate_backend(pid) from unnest(array{sorted(gone)}) as pid")
        await announced(running)


@pytest.mark.spec("PGFAULT-30")
async def test_a_listener_whose_connection_is_half_open_is_replaced_and_nothing_waits_for_it(
    server: PostgresServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PULSE", 0.5)
    with Proxy(server.url) as ears:
        async with Trial(make(direct=ears.url), make(), flow=False, poll=1.0) as running:
            await announced(running)
            before = ears.connections
            ears.blackhole()
            ears.heal(half_open=True)
            await running.consuming()
            await running.until(lambda: ears.connections > before, "it listens again", within=2 * BOUND)
            await announced(running)

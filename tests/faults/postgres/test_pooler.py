"""A worker behind a pooler that gives each transaction another session."""

from __future__ import annotations

import asyncio
import functools

import pytest

from tests import services
from tests.faults.postgres.trials import Make, trial
from tests.services import PostgresServer

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]


@pytest.mark.spec("PGFAULT-20")
@pytest.mark.parametrize("own", [False, True], ids=["pgbouncer", "ours"])
@pytest.mark.parametrize("told", ["auto", "transaction"])
async def test_no_call_needs_the_session_of_another(own: bool, told: str, server: PostgresServer, make: Make) -> None:
    with services.pooler(server.url, own=own) as url:
        running = trial(functools.partial(make, pooler=told), url, timeout=10.0, workers=2)
        async with running:
            for _ in range(10):
                await running.consuming()
            assert not running.errors


@pytest.mark.spec("PGFAULT-20")
async def test_sessions_that_die_behind_the_pooler_are_replaced(server: PostgresServer, make: Make) -> None:
    with services.pooler(server.url, own=True) as url:
        async with trial(make, url) as running:
            for _ in range(3):
                await running.consuming()
                await asyncio.to_thread(server.terminate_all)
            await running.consuming()
            with running.crash():
                await asyncio.to_thread(server.restart, "immediate")
            await running.consuming()

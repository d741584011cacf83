"""What an open dashboard costs: store calls, counted, and locks that a worker would wait for."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineSlow
from stoker.model.job import Status
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Limits, Open, dashboard
from stoker.web import hub as hub_module
from tests.harness.apps import until
from tests.web.conftest import Client, claim, end, enqueue
from tests.web.test_pages import PAGES, lively

DURABLE = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres", "redis")]
VIEWERS, UNDER_WAY = 20, 3
READING = [page for page in PAGES if page != "/health"]
"""Health reads settings as a writer has them, so on SQLite it takes its turn among the writers."""


@pytest.fixture
async def viewed(app: Stoker) -> AsyncIterator[Dashboard]:
    limits = Limits(seconds=30, streams=VIEWERS, streams_each=VIEWERS)
    board = dashboard(app, auth=Open(), limits=limits)
    yield board
    await board.close()


def counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count every call of an engine's contract from now on."""
    calls: Counter[str] = Counter()
    for name, call in inspect.getmembers(engine, inspect.iscoroutinefunction):
        if not name.startswith("_"):

            async def count(*given: Any, call: Any = call, name: str = name, **more: Any) -> Any:
                calls[name] += 1
                return await call(*given, **more)

            monkeypatch.setattr(engine, name, count)
    return calls


@pytest.mark.spec("WEB-15")
@pytest.mark.parametrize("engine_name", DURABLE)
async def test_twenty_viewers_cost_one_call_a_beat(
    app: Stoker, viewed: Dashboard, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await lively(app, clock)
    monkeypatch.setattr(hub_module, "EVERY", 0.05)
    clients = [Client(viewed) for _ in range(VIEWERS)]
    named = {f"job&id={found['dead']}": f"jobs/{found['dead']}", "queue&name=default": "queues/default", "overview": ""}
    pages = ("jobs", "queues", "kinds", "workers", "schedules", "limits", "outbox", "health", *named)
    for page in (named.get(page, page) for page in pages):  # a stream follows its page, which has just been read
        assert (await clients[0].get(f"/{page}")).status_code == 200
    calls = counted(await viewed.store.engine(), monkeypatch)
    streams = [asyncio.create_task(one.get(f"/live?page={pages[n % len(pages)]}")) for n, one in enumerate(clients)]
    await until(lambda: viewed.hub.viewers == VIEWERS)
    await until(lambda: viewed.hub.generation >= 24)
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    # What one beat reads beyond one call is saved by silent beats; the calls of the beat under way are counted already.
    assert calls.total() <= viewed.hub.generation + viewed.hub.owed + UNDER_WAY, calls
    asked = {"census", "queues", "workers", "find", "schedules", "get", "events", "subqueues", "budgets", "now"}
    asked |= {"streams", "letters"}
    assert set(calls) <= asked
    for one in clients:
        await one.close()


@pytest.mark.spec("WEB-17")
@pytest.mark.engine("sqlite")
@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_no_page_needs_the_lock_that_workers_write_under(
    app: Stoker, client: Client, clock: VirtualClock, tmp_path: Path
) -> None:
    """Every page but Health answers while another process writes."""
    found = await lively(app, clock)
    [path] = tmp_path.glob("*.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    more = [f"/jobs/{found['dead']}", "/jobs?q=payload:x", "/queues/default", "/jobs?q=is:dead&group=error"]
    for page in [*READING, *more]:
        assert (await client.get(page)).status_code == 200, page
    writer.execute("ROLLBACK")
    writer.close()


@pytest.mark.spec("WEB-17")
@pytest.mark.engine("sqlite")
@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_worker_writes_without_waiting_while_pages_are_read(
    app: Stoker, client: Client, clock: VirtualClock, tmp_path: Path
) -> None:
    await lively(app, clock)
    [path] = tmp_path.glob("*.db")
    impatient = Stoker(SqliteEngine(path, clock=clock, busy_timeout=0))
    impatient.declare("send")
    await client.get("/")  # opening a store needs its lock for a moment: both are open before the work begins
    await impatient.engine()

    async def work() -> None:
        for _ in range(20):
            await enqueue(impatient, queue="work")
            await end(impatient, await claim(impatient, "work"), Status.DONE, None)

    async def look() -> None:
        for page in [*READING, *READING]:
            client.board.hub.forget()
            assert (await client.get(page)).status_code == 200

    await asyncio.gather(work(), look(), look())
    await impatient.close()


@pytest.mark.spec("WEB-17")
async def test_a_question_that_the_store_stops_is_said_so(
    app: Stoker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(app)

    async def slow(*_: Any) -> None:
        raise EngineSlow("the driver's own words")

    monkeypatch.setattr(await client.board.store.engine(), "find", slow)
    answer = await client.get("/api/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (503, "too_slow")
    assert "driver" not in answer.text

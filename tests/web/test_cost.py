"""What an open dashboard costs: store calls, counted, and locks that a worker would wait for."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from stoker.admin import Admin
from stoker.admin.outbox import LOOKED_AT
from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineSlow
from stoker.model.events import Point
from stoker.model.job import Status
from stoker.model.redact import Redaction
from stoker.model.stats import closed_buckets
from stoker.model.time import HOUR, MINUTE
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Limits, Open, dashboard, view
from stoker.web import hub as hub_module
from stoker.web.per_minute import COMPLETED, Minutes
from tests.harness.apps import until
from tests.harness.calls import counted
from tests.harness.letters import letters
from tests.web.conftest import Client, claim, end, enqueue, text
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


class Lazy(Redaction, frozen=True):
    """Masks names, texts and how letters begin, and no whole payload: one of 1 MiB takes 0.2 s."""

    def json(self, raw: bytes) -> bytes:
        assert len(raw) <= LOOKED_AT, "a whole payload is masked"
        return raw


@pytest.mark.spec("SEARCH-08")
@pytest.mark.parametrize("engine_name", ["memory", "sqlite"])
async def test_no_list_takes_time_for_payloads(app: Stoker, clock: VirtualClock) -> None:
    """Else fifty large payloads would stop the dashboard, and the app around it, for ten seconds a page."""
    await lively(app, clock)
    await letters(await app.engine(), 2)
    await app.enqueue(app.draft("send", {"text": "x" * 2 * LOOKED_AT}))
    await Admin(app).schedules.run_now("nightly")
    board = dashboard(app, auth=Open(), limits=Limits(seconds=30), redact=Lazy())
    client = Client(board)
    lists = [*PAGES, "/schedules/nightly", "/queues/default", "/jobs?q=is:dead&group=error", "/outbox/letters"]
    lists += [
        f"/api/v1/{one}" for one in ("jobs?total=true", "schedules", "streams/orders/letters", "workers", "kinds")
    ]
    for path in lists:
        assert (await client.get(path)).status_code == 200, path
    await client.close()
    await board.close()


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
    asked = {"census", "queues", "workers", "find", "read", "get", "events", "subqueues", "budgets", "now"}
    asked |= {"streams", "letters", "points", "emitted"}
    assert set(calls) <= asked
    for one in clients:
        await one.close()


@pytest.mark.spec("WEB-17", "WEB-42")
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
    stoker = f"Stoker {view.stoker_version()}"
    assert f" sqlite, {stoker}" in text(await client.get("/nowhere"))  # nothing was read yet
    shown = f" sqlite {sqlite3.sqlite_version}, {stoker}"
    assert shown in text(await client.get("/"))  # its lock would be needed to describe the store
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

    monkeypatch.setattr((await client.board.store.engine()).operator, "find", slow)
    answer = await client.get("/api/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (503, "too_slow")
    assert "driver" not in answer.text


@pytest.mark.spec("WEB-28")
async def test_the_overview_takes_six_store_calls(
    app: Stoker, viewed: Dashboard, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the first page has read what changes rarely, and also where jobs run, wait for a retry and are dead."""
    monkeypatch.setattr(hub_module, "RARELY", 3_600.0)  # however busy the machine is
    await lively(app, clock)
    client = Client(viewed)
    assert (await client.get("/")).status_code == 200
    calls = counted(await viewed.store.engine(), monkeypatch)
    monkeypatch.setattr(hub_module, "YOUNG", -1.0)
    for _ in range(2):
        calls.clear()
        assert (await client.get("/")).status_code == 200
        assert calls == {"census": 1, "queues": 1, "workers": 1, "points": 1, "find": 2}
    await client.close()


@pytest.mark.spec("WEB-28")
async def test_charts_are_drawn_from_points_of_all_queues_together(
    app: Stoker, viewed: Dashboard, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the range; those of a queue from its own points. The table of queues measures every queue."""
    await enqueue(app, queue="mail")
    engine, last = await app.engine(), clock() // MINUTE * MINUTE - MINUTE
    points = [Point("", "all_completed", last, 70), Point("", "all_enqueued", last, 140)]
    points += [Point("", "all_total", last, 70, 9, 2_000_000, 3_000_000, 4_000_000, 5)]
    points += [Point("mail", "completed", last, 30), Point("mail", "total", last, 30, 9, 1_000_000, 1, 6_000_000, 1)]
    await engine.timeline.record([], [*points, Point("other", "completed", last, 40)], now=clock())
    monkeypatch.setattr(hub_module, "RARELY", 3_600.0)  # however busy the machine is
    client = Client(viewed)
    assert (await client.get("/")).status_code == 200  # reads what changes rarely
    asked: list[frozenset[str]] = []
    read = (await viewed.store.engine()).timeline.points

    async def points_of(
        since: int, until: int, metrics: Sequence[str], queues: frozenset[str] = frozenset(), **width: Any
    ) -> list[Point]:
        asked.append(queues)
        return await read(since, until, metrics, queues, **width)

    monkeypatch.setattr((await viewed.store.engine()).timeline, "points", points_of)
    page = (await client.get("/")).text
    assert asked == [{"", "mail"}]
    assert re.search(r'data-of="throughput" data-series="1">70<', page)
    assert "50 % of what comes in" in page
    [bars] = re.findall(r'<svg class="spark".*?</svg>', page)
    drawn, ticks = re.findall(r'<path class="b-(?:done|none)" d="(.*?)"', bars)
    assert (drawn, ticks.count("M")) == ("M96.7 26v-26.0h2.4v26.0z", 29)
    for query, columns in (("look=throughput", [70, 140]), ("look=latency", [2, 3, 4])):
        found = (await client.get(f"/points.json?{query}")).json()
        assert [column[-1] for column in found[1:]] == columns
        assert all(column[-2] in (0, None) for column in found[1:])
    day = (await client.get("/points.json?look=throughput&range=24h")).json()
    assert day[1][-1] * 16 == 70
    own = (await client.get("/points.json?look=throughput&queue=mail")).json()
    assert own[1][-1] == 30
    assert (await client.get("/api/v1/points?queue=mail")).json()["p99"][-1] == 6
    table = (await client.get("/queues")).text
    assert len(re.findall(r'<svg class="spark".*?</svg>', table)) == 1
    assert asked[-2:] == [frozenset(), frozenset()]
    await client.close()


@pytest.mark.spec("WEB-28")
async def test_minutes_that_do_not_change_any_more_are_read_once(app: Stoker, clock: VirtualClock) -> None:
    """What is kept is what the store would answer, while minutes pass and the newest ones are computed again."""
    engine, kept, now = await app.engine(), Minutes(COMPLETED), clock() // MINUTE * MINUTE + MINUTE
    asked: list[int] = []

    class Asked:
        """The store, which notes how many minutes it is asked for."""

        @property
        def timeline(self) -> Asked:
            return self

        async def points(self, since: int, until: int, metrics: Sequence[str]) -> list[Point]:
            asked.append((until + 1 - since) // MINUTE)
            return await engine.timeline.points(since, until, metrics)

    for passed in (*range(8), 30, 31, 200, 20):  # in the end the clock was set back
        at = now + passed * MINUTE
        for bucket in closed_buckets(at):
            points = [Point(name, "completed", bucket, passed + 1) for name in ("a", "b")]
            await engine.timeline.record([], points, now=at)
        await kept.read(cast("Engine", Asked()), at)
        since, until = at - HOUR, at
        assert kept.points(since, until) == await engine.timeline.points(since, until - 1, ["completed"])
    assert asked == [60, *[5] * 7, 27, 5, 60, 60]


MOST_CALLS, SHARED = 6, 5
"""Calls of a page, and of what all viewers share: three for the reading of the store, two for tables of kinds."""


@pytest.mark.spec("WEB-83")
@pytest.mark.parametrize("engine_name", DURABLE)
async def test_no_page_takes_more_than_six_store_calls(
    app: Stoker, viewed: Dashboard, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a young reading of the store, as one of many viewers has it; without one, with the calls of the reading."""
    monkeypatch.setattr(hub_module, "RARELY", 3_600.0)  # however busy the machine is
    found = await lively(app, clock)
    client = Client(viewed)
    pages = [*PAGES, "/?range=24h", "/jobs?q=is:dead", "/jobs?q=is:dead&group=error", "/jobs?q=payload:x", "/waits"]
    pages += ["/queues/default", "/kinds/send", "/kinds/send?range=7d", "/schedules/nightly"]
    pages += [f"/jobs/{id_}" for id_ in found.values()]
    pages += ["/operations/new?do=requeue&q=is:dead"]
    for page in pages:
        assert (await client.get(page)).status_code == 200, page
    calls = counted(await viewed.store.engine(), monkeypatch)
    for young, most in ((3_600.0, MOST_CALLS), (-1.0, MOST_CALLS + SHARED)):
        monkeypatch.setattr(hub_module, "YOUNG", young)
        for page in pages:
            calls.clear()
            assert (await client.get(page)).status_code == 200
            assert calls.total() <= most, (page, calls)
    await client.close()

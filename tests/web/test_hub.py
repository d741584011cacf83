"""The shared reading: what viewers cost the store, and what they see when it does not answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.model.errors import EngineUnavailable
from stoker.model.time import SECOND
from stoker.testing.clock import VirtualClock
from stoker.web import Limits, Open, dashboard
from stoker.web import hub as module
from stoker.web.hub import Hub, Want
from tests.web.conftest import Client, enqueue


@pytest.mark.spec("WEB-15")
async def test_many_viewers_cost_one_store_call_a_beat(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    await enqueue(app)
    hub = Hub(app)
    first = await hub.reading()
    assert await hub.reading() is first  # pages share a young reading
    before = hub.calls
    await asyncio.sleep(0.02)
    assert hub.calls == before  # without a viewer nothing is asked
    for _ in range(20):
        hub.enter()
    seen = hub.generation
    for _ in range(12):
        seen = await hub.news(seen, 5)
    assert hub.generation >= 12
    assert hub.calls - before <= hub.generation + hub.owed  # what is owed is saved by the next beats
    for _ in range(20):
        hub.leave()
    assert hub.viewers == 0
    quiet = hub.calls
    await asyncio.sleep(0.02)
    assert hub.calls == quiet
    await hub.close()


@pytest.mark.spec("WEB-15")
@pytest.mark.parametrize("error", [EngineUnavailable("the driver's own words"), msgspec.ValidationError("a document")])
async def test_a_store_that_cannot_be_read_is_asked_again(
    app: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    hub = Hub(app)
    good = await hub.reading()
    engine = await app.engine()

    async def broken() -> None:
        raise error

    monkeypatch.setattr(engine.operator, "census", broken)
    hub.enter()
    seen = 0
    for n in range(1, 7):
        seen = await hub.news(seen, 5)
        assert seen >= n
    assert hub.last is not None
    assert hub.last.census is good.census
    assert f"the dashboard cannot read the store: {type(error).__name__}" in caplog.text
    assert "the driver's own words" not in caplog.text
    hub.leave()
    await hub.close()


@pytest.mark.spec("WEB-16", "WEB-27")
async def test_a_live_page_without_a_stream_asks_for_its_parts(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    for page, part in (
        ("overview", "tiles"),
        ("jobs", "tabs"),
        (f"job&id={id_}", "life"),
        ("queues", "queues"),
        ("kinds", "kinds"),
        ("workers", "workers"),
        ("schedules", "schedules"),
        ("limits", "keys"),
        ("queue&name=default", "tiles"),
        ("outbox", "sub"),
        ("health", "findings"),
    ):
        parts = await client.get(f"/pieces?page={page}")
        assert parts.status_code == 200, page
        assert f'id="live_{part}"' in parts.text, page
    assert (await client.get("/pieces?page=none")).status_code == 422
    for gone in ("queue&name=gone", "operation&id=gone", "consumer&stream=gone&consumer=gone"):
        assert (await client.get(f"/pieces?page={gone}")).status_code == 404, gone
    other = id_[:-1] + ("1" if id_.endswith("0") else "0")
    assert (await client.get(f"/pieces?page=job&id={other}")).status_code == 404


@pytest.mark.spec("WEB-24")
async def test_viewers_of_one_thing_share_what_is_read_for_it(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    now, reads = 0.0, list[float]()
    hub = Hub(app, clock=lambda: now)

    async def read(_: Engine) -> tuple[int, int]:
        reads.append(now)
        return len(reads), 3

    want = Want("jobs", read)
    await hub.reading()
    assert await hub.wanted(want) == 1
    assert await hub.wanted(Want("jobs", read)) == 1  # another viewer, the same thing
    for _ in range(20):
        hub.enter([want])
    before, seen = hub.calls, hub.generation
    for _ in range(24):
        now += 2
        seen = await hub.news(seen, 5)
    assert len(reads) > 3
    assert hub.known(want) == len(reads)
    assert hub.calls - before <= 24 + 2  # three calls are followed by two silent beats
    for _ in range(20):
        hub.leave([want])
    reads.clear()
    now += 100
    assert await hub.wanted(want) == 1  # no stream kept it
    await hub.close()


@pytest.mark.spec("WEB-24")
async def test_what_is_most_overdue_is_read_first(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    now, asked = 0.0, list[str]()
    hub = Hub(app, clock=lambda: now)
    await hub.reading()
    engine = await app.engine()

    def counted(name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def ask() -> Any:
            asked.append(name)
            return call()

        return ask

    for facet, name in (
        (engine.operator, "census"),
        (engine.control, "queues"),
        (engine.control, "workers"),
        (engine.schedules, "read"),
    ):
        monkeypatch.setattr(facet, name, counted(name, getattr(facet, name)))
    hub.enter()
    seen = hub.generation
    for _ in range(16):
        now += 2
        seen = await hub.news(seen, 5)
    hub.leave()
    await hub.close()
    assert len(asked) == 16
    assert asked.index("read") == 15, "after 30 seconds"
    assert 7 <= asked.count("census") <= 9
    assert 3 <= asked.count("queues") <= 5
    assert 3 <= asked.count("workers") <= 5


@pytest.mark.spec("WEB-29")
async def test_pauses_and_workers_are_read_in_time_whatever_else_is_wanted(
    app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, now = asyncio.Queue[float](), 100.5
    read = {"queues": [now], "workers": [now]}
    hub = Hub(app, clock=lambda: now)
    await hub.reading()
    engine = await app.engine()

    def noted(name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def ask() -> Any:
            read[name].append(now)
            return call()

        return ask

    for name in read:
        monkeypatch.setattr(engine.control, name, noted(name, getattr(engine.control, name)))

    async def many(_: Engine) -> tuple[int, int]:
        return 1, 3

    async def sleep(_: float) -> None:
        nonlocal now
        now = await beats.get()

    wants = [Want(n, many) for n in range(12)]
    hub.enter(wants)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    seen, before = hub.generation, hub.calls
    for beat in range(60):
        beats.put_nowait(101.3 + 2 * beat)
        seen = await hub.news(seen, 60)
    hub.leave(wants)
    await hub.close()
    for name, times in read.items():
        assert len(times) > 12, name
        assert max(after - ago for ago, after in pairwise(times)) < 10, (name, times)
    assert hub.calls - before <= 60 + hub.owed


@pytest.mark.spec("WEB-16")
async def test_a_stream_begins_with_what_changed_since_the_page_was_made(app: Stoker) -> None:
    client = Client(dashboard(app, auth=Open(), limits=Limits(seconds=30, stream_seconds=0)))
    await client.get("/")
    await enqueue(app)
    client.board.hub.forget()  # as if the page were older than the shared reading
    stream = await client.get("/live?page=overview")
    assert stream.text.startswith("event: hello")
    assert 'id="live_tiles"' in stream.text
    await client.close()
    await client.board.close()


@pytest.mark.spec("WEB-18")
async def test_a_list_says_how_many_jobs_are_newer_than_it(app: Stoker, client: Client) -> None:
    first = await enqueue(app)
    page = (await client.get("/jobs?q=kind:send")).text
    [live] = re.findall(r'hx-sse:connect="([^"]+)"', page)
    assert f"top={first}" in live

    async def newer(url: str) -> str:
        client.board.hub.forget()
        parts = (await client.get(url.replace("&amp;", "&").replace("/live?", "/pieces?"))).text
        return re.sub(
            "<[^>]+>", "", parts[parts.index('id="live_newer"') : parts.index("</div>", parts.index("live_newer"))]
        )

    assert "newer" not in (await newer(live)).partition(">")[2]
    for _ in range(2):
        await enqueue(app)
    await enqueue(app, "resize")
    assert (await newer(live)).endswith("2 newer")
    for _ in range(50):
        await enqueue(app)
    assert (await newer(live)).endswith("50+ newer")
    older = (await client.get(f"/jobs?q=kind:send&after={first}")).text
    assert "top=" not in older  # only the newest page can say it


@pytest.mark.spec("WEB-25")
async def test_a_job_younger_than_the_counts_is_ready(app: Stoker, clock: VirtualClock) -> None:
    now = 0.0
    board = dashboard(app, auth=Open(), limits=Limits(seconds=30))
    board.hub = Hub(board.store, clock=lambda: now)
    client = Client(board)
    await client.get("/jobs")
    now += 1
    clock.advance(1)
    id_ = await enqueue(app)
    assert 'st-ready"' in (await client.get(f"/jobs/{id_}")).text
    assert "1 shown" in (page := (await client.get("/jobs")).text)
    assert 'class="st st-ready"' in page.partition("<tbody")[2]
    await client.close()
    await board.close()


@pytest.mark.spec("WEB-24")
async def test_what_could_not_be_read_is_asked_again_and_not_shown_as_nothing(app: Stoker) -> None:
    hub = Hub(app)

    async def away(_: Engine) -> tuple[int, int]:
        raise EngineUnavailable("away")

    for _ in range(2):  # a page that failed is no reading that the next one shares
        with pytest.raises(EngineUnavailable):
            await hub.wanted(Want("jobs", away))


@pytest.mark.spec("WEB-25")
async def test_an_action_does_not_change_what_time_the_counts_are_of(app: Stoker) -> None:
    now = 100.0
    hub = Hub(app, clock=lambda: now)
    reading = await hub.reading()
    now += 3
    hub.forget()
    assert hub.current(reading).census.at - reading.census.at == 3 * SECOND

"""What needs a person is one list: on the overview, on the page of health, in the sidebar and in REST."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import httpx
import pytest

from stoker.admin import Admin
from stoker.admin.as_json import plain
from stoker.app import Stoker
from stoker.model.events import Point
from stoker.model.health.check import Grade, summary
from stoker.model.job import Status
from stoker.model.stats import roll_up
from stoker.model.time import MINUTE
from stoker.testing.clock import VirtualClock
from stoker.web.charts import PerMinute
from tests.harness.letters import letters
from tests.web.conftest import Client, beat, claim, end, enqueue, text


def listed(page: httpx.Response) -> list[str]:
    """The sentences of a page's first panel, without buttons."""
    panel = unescape(page.text).partition('aria-label="What needs attention"')[2].partition("</section>")[0]
    entries = re.findall(r"<li\b.*?<div>(.*?)</div>", panel, re.DOTALL)
    return [re.sub(r"\s+", " ", re.sub(r"<(button|svg)\b.*?</\1>|<[^>]+>", " ", one)).strip() for one in entries]


def badges(page: httpx.Response) -> int:
    return sum(map(int, re.findall(r'<span class="n [a-z]+" title="[^"]* attention">(\d+)<', page.text)))


async def trouble(app: Stoker, clock: VirtualClock) -> None:
    """Jobs that died, a misspelt queue, a queue that is behind, letters, and a silent worker that holds a job."""
    await beat(app, queues={"default": 5, "mail": 1})
    for _ in range(13):
        await enqueue(app)
    await end(app, (await claim(app))[1:])
    await beat(app, running=1)
    await enqueue(app, queue="maill")
    await enqueue(app)
    await letters(await app.engine(), 2)
    clock.advance(timedelta(microseconds=5 * MINUTE))
    await beat(app, "v", queues={"default": 5, "mail": 1})


@pytest.mark.spec("NEED-09")
async def test_every_page_has_the_same_list(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await trouble(app, clock)
    said = (await Admin(app).overview()).findings
    assert [one.noun for one in said] == ["worker", "queue", "jobs", "queue", "consumer"]
    overview, health = await client.get("/"), await client.get("/health")
    assert listed(overview) == listed(health)
    assert len(listed(health)) == len(said)
    for shown, one in zip(listed(overview), said, strict=True):
        for part in (one.name, one.detail.removesuffix("."), one.remedy):
            assert part in shown.replace("\u00a0", " "), (part, shown)
    assert "Five things need you" in text(overview)
    assert "Five things need you" in text(health)
    assert badges(overview) == badges(health) == badges(await client.get("/jobs")) == 5
    api = (await client.get("/api/v1/overview")).json()
    assert api["findings"] == plain(said)
    assert api["verdict"] == "Five things need you"
    assert "12 in the last hour" in text(overview)


@pytest.mark.spec("NEED-10")
async def test_a_finding_is_gone_with_the_action_that_ends_it(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await trouble(app, clock)
    assert "12 jobs died in the last hour" in text(await client.get("/"))
    dead = [job.id for job in (await Admin(app).jobs.find("is:dead", limit=20)).jobs]
    await client.post("/operations", [("do", "discard"), *(("id", id_) for id_ in dead)])
    page = text(await client.get("/"))
    assert "died in the last hour" not in page
    assert "none in the last hour" in page
    assert "was last seen" in page
    await client.post("/workers/w/take-back", {"sure": "yes"})
    assert "was last seen" not in text(await client.get("/"))


@pytest.mark.spec("NEED-18")
async def test_what_is_not_counted_yet_is_not_shown_as_zero(app: Stoker, client: Client, clock: VirtualClock) -> None:
    clock.advance(timedelta(hours=1))
    await enqueue(app)
    await end(app, await claim(app), Status.DONE, None)
    assert "not counted yet" in text(await client.get("/"))
    engine, minute = await app.engine(), clock() // MINUTE * MINUTE - MINUTE
    await engine.timeline.record([], roll_up(minute - MINUTE, [], []), now=clock())
    client.board.hub.forget()
    assert "nothing comes in" in text(await client.get("/"))
    found = (await client.get("/points.json?look=throughput")).json()
    assert [column[-2:] for column in found[1:]] == [[0, None], [0, None]], "the newest minute is not counted yet"
    await engine.timeline.record([], [*roll_up(minute, [], []), Point("", "all_completed", minute, 3)], now=clock())
    assert (await client.get("/points.json?look=throughput")).json()[1][-2:] == [0, 3]


@pytest.mark.spec("NEED-23")
async def test_the_running_minute_is_hollow_and_a_window_is_named(
    app: Stoker, client: Client, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance(timedelta(hours=1))
    await enqueue(app, queue="mail")
    pages = ("/", "/queues/mail")
    for path in pages:
        assert "data-hollow" not in (await client.get(path)).text, "nothing is known of it yet"
    asked: list[str | None] = []

    def flow(queue: str | None = None) -> PerMinute:
        asked.append(queue)
        return PerMinute(5, 7, 2)

    monkeypatch.setattr(client.board.hub, "flow", flow)
    for path in pages:
        page = (await client.get(path)).text
        assert "data-hollow" in page and 'class="ring"' in page and 'class="b-hollow"' in page, path
    assert asked[-1] == "mail"
    at, completed, enqueued = (await client.get("/points.json?look=throughput")).json()
    assert at[-1] - at[-2] == 60 and (completed[-1], enqueued[-1]) == (7, 5)
    _, failed, running = (await client.get("/points.json?look=dead")).json()
    assert (failed[-1], running[-1], set(running[:-1])) == (None, 2, {None})
    assert (await client.get("/points.json?look=latency")).json()[1][-1] is None
    window = "since=2030-01-01T00:10:00Z&until=2030-01-01T00:40:00Z"
    for query in (window, "range=24h"):
        _, failed, running = (await client.get(f"/points.json?look=dead&{query}")).json()
        assert set(running) == {None}, "an hour of a day is not running, and a window is over"
    for path, back in (("/", "/"), ("/queues", "/queues"), ("/queues/mail", "/queues/mail")):
        page = (await client.get(f"{path}?{window}")).text
        assert f'<a href="{back}" aria-label="Show the last hour again">' in page
        assert "00:10:00</time> – <time" in page and "data-hollow" not in page
        assert "Show the last hour again" not in (await client.get(path)).text


@pytest.mark.spec("HEALTH-12")
async def test_health_sums_up_the_checks_of_the_doctor(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await beat(app)
    checks = await Admin(app).health.check()
    page = text(await client.get("/health"))
    assert f"{summary(checks)} at " in page
    passed = [one.name for one in checks if one.verdict is Grade.OK]
    assert f"{len(passed)} checks passed" in page
    assert {"workers", "queues"} <= set(passed)
    assert "Workers 1 worker" in page
    await trouble(app, clock)
    client.board.hub.forget()
    assert "Workers 1 worker" not in text(await client.get("/health")), "a finding says otherwise by now"

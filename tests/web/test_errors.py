"""Errors first: groups by error, with their past, and what leads to them."""

from __future__ import annotations

import re

import msgspec
import pytest

from stoker.app import Stoker
from stoker.engines.base import ORIGINS, RELEASES
from stoker.model.job import Status
from stoker.model.releases import Release
from stoker.model.run_origins import RunOrigin, number
from stoker.model.same_error import fingerprint_of
from stoker.model.time import HOUR, MINUTE
from stoker.testing.clock import VirtualClock
from stoker.web.pages import jobs
from tests.harness.rolled_up import died, rolled_up
from tests.web.conftest import Client, claim, end, enqueue, text

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres", "redis")]


@pytest.mark.spec("WEB-66")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_group_names_its_kinds_queues_and_past(app: Stoker, client: Client, clock: VirtualClock) -> None:
    error = 'KeyError: 7\nTraceback (most recent call last):\n  File "/srv/shop/tasks.py", line 7, in charge'
    await enqueue(app, "charge", queue="billing")
    made = await enqueue(app, "send", queue="mail")
    for queue in ("billing", "mail"):
        await end(app, await claim(app, queue), error=error)
    at = await (await app.engine()).now()
    await rolled_up(app, clock, died(at, error, "refund", "billing", 5))
    client.board.hub.forget()
    page = await client.get("/jobs?q=is:dead,retrying&group=error")
    assert "2 KeyError: 7 shop/tasks.py in charge charge, refund, send in billing, mail seen 1 min ago" in text(
        page
    ).replace(" ,", ",")
    assert "5 deaths in 7 days" in text(page)
    named = fingerprint_of(error)
    links = re.findall(r'href="([^"]+same_error[^"]+)"', page.text.replace("&amp;", "&"))
    for ending in (named, f"{named}+kind%3Arefund", f"{named}+queue%3Abilling"):
        assert any(link.endswith(ending) for link in links), (ending, links)
    for action, n in (("requeue", 2), ("discard", 2)):
        [link] = [one for one in links if f"do={action}" in one]
        assert f"{action.capitalize()} {n} jobs?" in text(await client.get(link))
    job = await client.get(f"/jobs/{made}")
    assert "4 others died of the same error in the last 7 days, of 2 kinds." in text(job).replace(" ,", ",").replace(
        " .", "."
    )
    assert f'href="/jobs?q=same_error%3A{named}"' in job.text


@pytest.mark.spec("WEB-66")
async def test_every_error_is_reached_page_by_page(
    app: Stoker, client: Client, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "GROUPS", 2)
    at = await (await app.engine()).now()
    errors = ["Alpha failed", "Beta failed", "Gamma failed", "Delta failed", "Epsilon failed"]
    await rolled_up(app, clock, [one for error in errors for one in died(at, error)])
    seen, path = [], "/jobs?group=error"
    while path:
        page = await client.get(path)
        seen += re.findall(r"(\w+) failed send", text(page))
        following = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = "" if following is None else following[1].replace("&amp;", "&")
    assert sorted(seen) == sorted(error.split()[0] for error in errors)
    assert "1 to 2 of 5" in text(await client.get("/jobs?group=error&from=x"))
    assert "No error" in text(await client.get("/jobs?group=error&q=is:done"))


@pytest.mark.spec("RELEASE-04")
async def test_charts_mark_when_a_release_was_shown_first(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await enqueue(app, "send")
    engine = await app.engine()
    for name, ago in (("r1", 2 * HOUR), ("r2", 30 * MINUTE)):
        first = Release(name, await engine.now() - ago)
        await engine.documents.swap(RELEASES, name, None, msgspec.json.encode(first))
    client.board.hub.forget()
    for path in ("/", "/queues/default", "/kinds/send"):
        page = await client.get(path)
        assert re.search(r"Deployed: r2 .*?\d\d:\d\d", text(page)), path
        assert "r1" not in text(page).partition("Deployed")[2][:80]
        assert len(re.findall(r'data-marks="\[[\d.]+\]"', page.text)) == 3
        drawn = re.findall(r'class="line flow" d="M([\d.]+) 0v', page.text)
        assert len(drawn) == 3, "throughput, deaths and times, without script, too"
        assert len(set(drawn)) == 1
        assert 450 < float(drawn[0]) < 550
    assert "Deployed: r1" in text(await client.get("/?range=6h"))


@pytest.mark.spec("RUN-ORIGIN-03")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_job_tells_where_each_attempt_was(app: Stoker, client: Client) -> None:
    engine = await app.engine()
    for worker, host in (("one", "fra-1"), ("two", "fra-2")):
        found = RunOrigin(number(worker), worker, host, 7, "r42")
        await engine.documents.swap(ORIGINS, str(found.number), None, msgspec.json.encode(found))
    job = await enqueue(app, "send")
    await end(app, await claim(app, worker="one"), Status.RETRYING)
    await end(app, await claim(app, worker="two"), Status.DONE, error=None)
    page = text(await client.get(f"/jobs/{job}"))
    assert "Ran on fra-1 / 7, release r42, worker one" in page
    assert "on fra-2 / 7, release r42" in page
    told = (await client.get(f"/api/v1/jobs/{job}")).json()
    assert told["origin"] == {"worker": "two", "host": "fra-2", "pid": 7, "release": "r42"}
    assert [one["origin"]["worker"] for one in told["history"]] == ["one"]
    why = (await client.get(f"/api/v1/jobs/{job}/explain")).json()
    assert "its last run was on fra-2 / 7, release r42" in why["beside"]

"""Every page on every engine: what it says, where its figures lead, and its empty state."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from datetime import timedelta

import httpx
import pytest
from starlette.requests import Request

from stoker import Delays, Fixed, Limit, Unique
from stoker.admin import Admin
from stoker.app import Stoker
from stoker.model import ids
from stoker.model.control import Tuning
from stoker.model.job import Settlement, Status
from stoker.model.lifetime_bar import Part
from stoker.model.query import Query
from stoker.model.throttle import Rate
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Identity, Limits, dashboard
from stoker.web.pages import job_runs, limits
from stoker.web.request import RequestContext
from tests.harness.apps import PATIENCE
from tests.harness.calls import counted
from tests.web.conftest import Client, beat, claim, end, enqueue, text

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres", "redis")]
PAGES = [
    "/",
    "/jobs",
    "/queues",
    "/kinds",
    "/workers",
    "/schedules",
    "/outbox",
    "/limits",
    "/health",
    "/audit",
    "/operations",
    "/groups",
]


async def lively(app: Stoker, clock: VirtualClock) -> dict[str, str]:
    """A store with a job in each state, two workers, a paused queue, a schedule and a budget."""
    engine = await app.engine()
    found = {"done": await enqueue(app, "send")}
    await end(app, await claim(app), Status.DONE, None)
    found["dead"] = await enqueue(app, "charge", queue="billing")
    await end(app, await claim(app, "billing"))
    found["running"] = await enqueue(app, "resize")
    await claim(app)
    found["ready"] = await enqueue(app, "send", tenant="acme")
    found["scheduled"] = await enqueue(app, "send", delay=3600)
    found["paused"] = await enqueue(app, "send", queue="imports")
    await engine.control.tune("imports", Tuning(paused=True, reason="bad file", by="maria"))
    await engine.control.tune("stripe", Rate(100, per=60))
    await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
    await beat(app, queues={"default": 5, "billing": 2}, kinds={"send": "a", "resize": "a", "charge": "a"}, running=1)
    clock.advance(2)
    return found


@pytest.mark.spec("WEB-01")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_every_page_answers_with_and_without_jobs(app: Stoker, client: Client, clock: VirtualClock) -> None:
    for path in PAGES:
        answer = await client.get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
    assert "Nothing has been enqueued yet" in (await client.get("/")).text
    found = await lively(app, clock)
    client.board.hub.forget()
    more = [f"/jobs/{id_}" for id_ in found.values()]
    more += [
        "/queues/billing",
        "/schedules/nightly",
        "/operations/new?do=requeue&q=is:dead",
        "/jobs?q=is:dead&group=error",
    ]
    for path in [*PAGES, *more]:
        answer = await client.get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
        assert "style=" not in answer.text
        assert len(re.findall(r"<h1", answer.text)) == 1
        assert len(gzip.compress(answer.content)) < 15_000


@pytest.mark.spec("WEB-02")
async def test_the_title_is_the_verdict_and_changes_with_the_store(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    await lively(app, clock)
    calm = await client.get("/")
    assert "<title>Everything keeps up · Stoker</title>" in calm.text
    clock.advance(15)  # the worker holds a job and does not report itself
    client.board.hub.forget()
    silent = await client.get("/")
    assert "<title>One thing needs you · Stoker</title>" in silent.text
    assert "fra-1 / 2201 was last seen 17.0 s ago" in text(silent)


@pytest.mark.spec("WEB-02")
async def test_no_queue_keeps_up_without_a_worker(app: Stoker, client: Client) -> None:
    for queue in ("default", "mail"):
        await enqueue(app, queue=queue)
    page = text(await client.get("/"))
    assert "No worker is at work" in page
    assert "keep up" not in page


@pytest.mark.spec("WEB-03")
async def test_every_figure_of_the_overview_is_a_link(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await lively(app, clock)
    page = (await client.get("/")).text
    for view in ("done", "ready", "running", "retrying", "dead"):
        assert f'href="/jobs?q=is%3A{view}"' in page
    assert 'href="/queues/billing"' in page


@pytest.mark.spec("WEB-04")
async def test_tabs_count_what_the_filter_means_or_nothing(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await lively(app, clock)

    async def tabs(query: str) -> dict[str, str]:
        page = (await client.get("/jobs", params={"q": query})).text
        nav = page[page.index('id="live_tabs"') : page.index("</nav>", page.index('id="live_tabs"'))]
        names = re.findall(r"(?:</span>|>)(\w+)(?: <span class=\"num\" title=\"([\d,]+)\">|</a>)", nav)
        return dict(names)

    assert (await tabs(""))["Ready"] == "2"
    assert (await tabs("queue:default"))["Ready"] == "1"
    by_kind = await tabs("kind:send")
    assert (by_kind["Ready"], by_kind["Scheduled"], by_kind["Done"]) == ("2", "1", "1")  # no other kind waits there
    await enqueue(app, "resize")
    client.board.hub.forget()
    unknown = await tabs("kind:send")
    assert (unknown["Ready"], unknown["Scheduled"], unknown["Done"]) == ("", "", "1")
    assert (await tabs("kind:send queue:imports"))["Ready"] == "1"
    assert set((await tabs("tenant:acme")).values()) == {""}


@pytest.mark.spec("WEB-05")
async def test_a_filter_is_text_in_the_address_and_a_mistake_is_explained(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    found = await lively(app, clock)
    page = await client.get("/jobs", params={"q": "is:dead queue:billing"})
    assert found["dead"] in page.text
    assert found["done"] not in page.text
    assert 'aria-label="Remove queue:billing"' in page.text
    added = await client.get("/jobs", params={"q": "is:dead", "add": "queue:billing"})
    assert (added.status_code, added.headers["location"]) == (303, "/jobs?q=is%3Adead+queue%3Abilling")
    wrong = await client.get("/jobs", params={"q": "is:daed"})
    assert wrong.status_code == 422
    assert "Did you mean dead?" in text(wrong)
    spared = await client.get("/jobs", params={"q": "-queue:billling"})
    assert spared.status_code == 422
    assert "Did you mean billing?" in text(spared)
    for group in ("", "error"):
        unknown = await client.get("/jobs", params={"q": "queue:billling", "group": group})
        assert unknown.status_code == 200
        assert "queue:billling matches no queue that is known. Did you mean billing?" in text(unknown)
        assert found["dead"] not in unknown.text
    assert (await client.get("/jobs", params={"q": found["dead"]})).headers["location"] == f"/jobs/{found['dead']}"


@pytest.mark.spec("ADMIN-45")
async def test_a_queue_that_only_a_schedule_names_has_a_page(app: Stoker, client: Client) -> None:
    await app.schedule("nightly", app.draft("send", queue="timed"), cron="0 3 * * *")
    page = await client.get("/queues/timed")
    assert page.status_code == 200
    assert "/live?page=queue" not in page.text
    gone = await client.get("/queues/timd")
    assert (gone.status_code, "Did you mean timed?" in text(gone)) == (404, True)


@pytest.mark.spec("WEB-06")
async def test_a_list_goes_on_behind_its_last_job_and_says_how_far_it_looked(app: Stoker, client: Client) -> None:
    made = [await enqueue(app) for _ in range(60)]
    first = await client.get("/jobs")
    assert "Newest first, 50 shown. Looked at 50 jobs" in text(first)
    older = re.search(r'href="([^"]+)" rel="next"', first.text)
    assert older is not None
    second = await client.get(older[1].replace("&amp;", "&"))
    assert [id_ for id_ in made[::-1] if f'value="{id_}"' in second.text] == made[:10][::-1]
    assert "Nothing matches" in (await client.get("/jobs?q=is:dead")).text


@pytest.mark.spec("WEB-43")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("order", ["finished", "due"])
async def test_a_list_in_the_order_of_a_time_goes_on_too(
    app: Stoker, client: Client, clock: VirtualClock, order: str
) -> None:
    """The time that it came to is that of its order."""
    then = timedelta(hours=1, minutes=2, seconds=3)
    delay = then if order == "due" else timedelta(0)
    made = [one.id for one in await app.enqueue_many([app.draft("send", delay=delay) for _ in range(60)])]
    if order == "finished":
        clock.advance(then)
        await end(app, await claim(app))
    first = await client.get(f"/jobs?q=order:{order}")
    assert first.status_code == 200
    assert re.search("50 shown. Looked at 50 jobs, (back|up) to 01:02:03", text(first))
    older = re.search(r'href="([^"]+)" rel="next"', first.text)
    assert older is not None
    second = await client.get(older[1].replace("&amp;", "&"))
    pages = [{one for one in made if f'value="{one}"' in page.text} for page in (first, second)]
    assert [len(page) for page in pages] == [50, 10]
    assert pages[0] | pages[1] == set(made)


@pytest.mark.spec("WEB-33")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_search_that_ends_at_its_limit_goes_on_from_there(
    app: Stoker, client: Client, engine_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"stoker.engines.{engine_name}.find.LONGEST_WALK", 300)
    wanted = await enqueue(app, payload={"sku": "needle"})
    await app.enqueue_many([app.draft("send") for _ in range(700)])
    page, looked = await client.get("/jobs?q=payload:needle"), 0
    while wanted not in page.text:
        said = re.search(r"Looked at (\d+) jobs, back to [^,]+, and found none with payload:needle", text(page))
        assert said is not None, text(page)
        looked += int(said[1])
        further = re.search(r'href="([^"]+)">Keep looking further back', page.text)
        assert further is not None
        page = await client.get(further[1].replace("&amp;", "&"))
    assert 600 <= looked <= 700


@pytest.mark.spec("WEB-34")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_an_action_on_a_group_of_errors_touches_that_group(app: Stoker, client: Client) -> None:
    made = [await enqueue(app, "charge") for _ in range(7)]
    claims = {ids.text(one.id): one for one in await claim(app)}
    for n, id_ in enumerate(made):
        error = f"KeyError: 'sku-{n}' of order {n}" if n < 4 else f"ValueError: {n} is odd"
        await end(app, [claims[id_]], error=error)
    page = await client.get("/jobs?q=is:dead&group=error")
    assert "2 errors counted: all 7 jobs that match" in text(page)
    assert "4 KeyError: … of order … charge in default" in text(page)
    assert "3 ValueError: … is odd charge in default" in text(page)
    assert "of all that are dead or retrying" in text(await client.get("/"))
    links = re.findall(r'href="(/operations/new[^"]+)"', page.text)
    preview = await client.get(links[0].replace("&amp;", "&"))
    assert "Requeue 4 jobs?" in text(preview)
    [query] = re.findall(r'name="q" value="([^"]+)"', preview.text.partition("<main")[2])
    begun = await client.post("/operations", {"do": "requeue", "q": query, "of": "4"})
    async with asyncio.timeout(PATIENCE):
        while "Requeued 4 jobs." not in text(await client.get(begun.headers["location"])):
            await asyncio.sleep(0.01)
    engine = await app.engine()
    found = await engine.operator.get([ids.parse(one) for one in made])
    assert [one.status for one in found if one is not None] == [Status.PENDING] * 4 + [Status.DEAD] * 3


EXACT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC"


@pytest.mark.spec("WEB-35")
async def test_times_are_relative_in_lists_and_exact_on_a_job(app: Stoker, client: Client, clock: VirtualClock) -> None:
    found = await lively(app, clock)
    clock.advance(120)
    client.board.hub.forget()
    assert re.search(r"dead charge .* 2 min ago", text(await client.get("/jobs?q=is:dead")))
    coming = text(await client.get("/jobs?q=is:scheduled"))
    assert re.search(r"due in \d+ min(?: \d+ s)? (\d\d:\d\d:\d\d|\d+ \w+ \d\d:\d\d)", coming), coming
    job = text(await client.get(f"/jobs/{found['scheduled']}"))
    assert re.search(f"Enqueued {EXACT}", job)
    assert re.search(f"Due {EXACT} ?, in \\d+ min", job)
    assert re.search(f"Finished {EXACT} .*Kept until {EXACT}", text(await client.get(f"/jobs/{found['dead']}")))
    await client.post("/queues/imports/resume")
    assert re.search(f"{EXACT} ann dashboard Resumed queue imports", text(await client.get("/audit")))


@pytest.mark.spec("TRACE-11")
async def test_a_job_shows_the_trace_of_its_caller_and_of_a_failed_run(app: Stoker, client: Client) -> None:
    caller, run = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
    job = await enqueue(app, "send", metadata={"traceparent": f"00-{caller}-b7ad6b7169203331-01"})
    noted = {"exec_traceparent": f"00-{run}-00f067aa0ba902b7-01"}
    [one] = await claim(app)
    engine = await app.engine()
    await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DEAD, error="x", metadata=noted)])
    page = text(await client.get(f"/jobs/{job}"))
    assert f"Trace {caller}" in page
    assert f"Trace of its first failed run {run}" in page


@pytest.mark.spec("WEB-07")
async def test_a_job_shows_how_it_waits_between_its_runs(app: Stoker, client: Client) -> None:
    for backoff, words in [
        (Fixed(30), "Backoff 30.0 s each time"),
        (Delays(10, 30, 60), "Backoff 10.0 s, 30.0 s, 1 min, then the last again"),
    ]:
        job = await enqueue(app, "send", backoff=backoff)
        page = text(await client.get(f"/jobs/{job}"))
        assert words in page


@pytest.mark.spec("WEB-07")
async def test_a_done_job_shows_until_when_it_keeps_its_key(app: Stoker, client: Client, clock: VirtualClock) -> None:
    job = await enqueue(app, "send", unique=Unique("k", for_=60))
    assert "Unique key k Enqueued" in text(await client.get(f"/jobs/{job}"))
    await end(app, await claim(app), Status.DONE, None)
    client.board.hub.forget()
    assert re.search(f"Unique key k, kept until {EXACT}", text(await client.get(f"/jobs/{job}")))
    clock.advance(60)
    client.board.hub.forget()
    assert "Unique key k Enqueued" in text(await client.get(f"/jobs/{job}"))


@pytest.mark.spec("WEB-36")
async def test_an_empty_store_says_what_fills_it(client: Client) -> None:
    for path, words in {
        "/": "Nothing has been enqueued yet",
        "/jobs": "No job is stored A job appears here when it is enqueued",
        "/queues": "No queue has been used yet A queue appears with its first job",
        "/kinds": "No kind has jobs yet A kind appears with its first job",
        "/workers": "No worker has shown itself",
        "/schedules": "Nothing is scheduled Declare a schedule",
        "/limits": "No rate is set",
        "/audit": "Nothing was changed",
        "/operations": "No operation yet",
        "/outbox/letters": "No letter matches A message becomes a letter",
    }.items():
        page = text(await client.get(path))
        assert words in page, path
        assert not re.search(r"\b0 (queues|kinds|slots)", page), path


@pytest.mark.spec("WEB-37")
async def test_runs_of_a_rare_kind_are_found_further_back(
    app: Stoker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.engines.memory.find.LONGEST_WALK", 20)
    rare = await enqueue(app, "resize")
    await end(app, await claim(app), Status.DONE, None)
    other = await enqueue(app, "resize")
    await end(app, await claim(app), Status.DONE, None)
    for _ in range(45):
        await enqueue(app, "send")
    await end(app, await claim(app), Status.DONE, None)
    calls = counted(await client.board.store.engine(), monkeypatch)
    assert "2 of 2 completed" in text(await client.get(f"/jobs/{rare}"))
    assert calls["find"] == 3
    third = await enqueue(app, "charge")
    await end(app, await claim(app), Status.DONE, None)
    client.board.hub.forget()
    assert "1 of 1 completed" in text(await client.get(f"/jobs/{third}"))
    assert calls["find"] == 4  # the counts say that there are no more
    for _ in range(20):
        await enqueue(app, "send")
    await end(app, await claim(app), Status.DONE, None)
    assert "None among the latest 60 jobs." in text(await client.get(f"/jobs/{other}"))


@pytest.mark.spec("WEB-07")
async def test_a_job_shows_its_life_its_error_and_why_it_waits(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    found = await lively(app, clock)
    dead = await client.get(f"/jobs/{found['dead']}")
    assert "How it ended" in dead.text
    assert "<b>KeyError: &#39;sku&#39;</b>" in dead.text
    waits = re.search(r"in line (\d+)\.\d s", text(await client.get(f"/jobs/{found['ready']}")))
    assert waits is not None
    assert int(waits[1]) >= 2  # and the time since the counts were read, which is real
    paused = text(await client.get(f"/jobs/{found['paused']}"))
    assert "Why is it not running?" in paused
    assert "is paused by maria until it is resumed: bad file" in paused
    assert "Resume" in paused
    assert "Run this one now" in text(await client.get(f"/jobs/{found['scheduled']}"))
    gone = await client.get("/jobs/0193b0f0-0000-7000-8000-000000000001")
    assert gone.status_code == 404
    assert "No job has this id. It may have been deleted, or its retention has passed." in text(gone)


@pytest.mark.spec("WEB-07")
async def test_a_job_behind_a_shut_gate_is_not_among_the_others(app: Stoker, client: Client) -> None:
    made = [await enqueue(app, "send") for _ in range(3)]
    assert "then among 2 other due jobs, by priority" in text(
        await client.get(f"/jobs/{made[0]}")
    )  # no worker serves it


@pytest.mark.spec("WEB-07")
def test_the_legend_of_a_life_has_the_colours_of_its_bar() -> None:
    died = Part("died", 5, 9, 1)
    assert job_runs.legend([Part("waiting", 0, 5), died]) == [("b-wait", "in line", 5), ("b-dead", "running", 4)]
    assert job_runs.legend([Part("running", 0, 5), died]) == [("b-run", "running", 9)]


async def revealed(client: Client, id_: str) -> httpx.Response:
    """The page of a job to which revealing its payload leads."""
    answer = await client.post(f"/jobs/{id_}/reveal", {"part": "payload"})
    assert answer.status_code == 303
    return await client.get(answer.headers["location"].partition("#")[0])


@pytest.mark.spec("WEB-08")
async def test_a_payload_is_absent_until_it_is_revealed_byte_for_byte(app: Stoker, client: Client) -> None:
    draft = app.draft("send", payload={"n": 1_000_000_000_000_000_001, "note": "two  spaces"})
    id_ = (await app.enqueue(draft)).id
    for path in (f"/jobs/{id_}", "/jobs", "/"):
        assert "1000000000000000001" not in (await client.get(path)).text
    shown = await revealed(client, id_)
    assert "1000000000000000001" in shown.text
    assert "two  spaces" in shown.text


@pytest.mark.spec("WEB-81")
async def test_what_was_revealed_stays_for_a_reload_in_this_browser_alone(app: Stoker, clock: VirtualClock) -> None:
    names = {"name": "ann"}
    board = dashboard(app, auth=lambda _: Identity(names["name"], "operate"), limits=Limits(seconds=30))
    ann, other = Client(board), Client(board)
    id_, another = [await enqueue(app, payload={"note": "hidden"}) for _ in range(2)]
    answer = await ann.post(f"/jobs/{id_}/reveal", {"part": "payload"})
    address, _, part = answer.headers["location"].partition("#")
    assert (answer.status_code, part) == (303, "payload")
    for _ in range(2):
        assert "hidden&#34;" in (await ann.get(address)).text
    assert text(await ann.get("/audit")).count("Looked into job") == 1, "a reload is no new look"
    assert "hidden&#34;" not in (await ann.get(address.replace("payload", "result"))).text
    assert "hidden&#34;" not in (await ann.get(address.replace(id_, another))).text, "a grant is for one job"
    for wrong in ("payload", "payload.x.y", f"payload.{'9' * 13}.x", "payload.²."):
        assert (await ann.get(f"/jobs/{id_}", params={"reveal": wrong})).status_code == 200
    await other.get("/")
    assert "hidden&#34;" not in (await other.get(address)).text, "a link that is passed on shows nothing"
    names["name"] = "bob"
    assert "hidden&#34;" not in (await ann.get(address)).text, "nor does it to who signs in after her"
    names["name"] = "ann"
    board.hub.forget()
    clock.advance(601)
    board.hub.forget()
    assert "hidden&#34;" not in (await ann.get(address)).text
    for client in (ann, other):
        await client.close()
    await board.close()


@pytest.mark.spec("WEB-82")
async def test_queues_are_sorted_searched_and_idle_ones_folded(app: Stoker, client: Client) -> None:
    for n in range(12):
        await beat(app, worker=f"w{n}", queues={f"q{n:02}": 1})
    for queue, jobs in (("q03", 2), ("q07", 5), ("q01", 1)):
        await app.enqueue_many([app.draft("send", queue=queue) for _ in range(jobs)])
    await app.queue("q10").pause(reason="a deploy")

    async def rows(query: str) -> list[str]:
        return re.findall(r'<tr class="mid" role="row" data-row="([^"]+)"', (await client.get(f"/queues{query}")).text)

    assert sorted(await rows("")) == ["q01", "q03", "q07", "q10"]
    page = await client.get("/queues?sort=ready")
    assert "8 idle queues" in text(page) and "12 queues" in text(page)
    assert 'href="/queues?sort=ready&amp;idle=1&amp;range=1h"' in page.text
    assert 'aria-sort="descending"><a href="/queues?sort=ready&amp;range=1h">Ready ↓</a>' in page.text
    assert await rows("?sort=ready") == ["q07", "q03", "q01", "q10"]
    assert await rows("?sort=queue&idle=1") == [f"q{n:02}" for n in range(12)]
    for sort in ("used", "waits", "clear", "scheduled", "retrying", "p95", "completed"):
        assert len(await rows(f"?sort={sort}&idle=1")) == 12, sort
    assert await rows("?find=Q0&sort=ready") == ["q07", "q03", "q01", *(f"q{n:02}" for n in (0, 2, 4, 5, 6, 8, 9))]
    assert "None of 12 queues has “mail” in its name." in text(await client.get("/queues?find=mail"))
    refused = await client.get("/queues?sort=size")
    assert refused.status_code == 422 and "must be one of queue, used, ready" in text(refused)
    live = re.search(r'hx-sse:connect="([^"]+)"', (await client.get("/queues?sort=ready&find=q0")).text)
    assert live is not None and "sort=ready&amp;find=q0" in live[1], "what changes by itself is what is shown"


@pytest.mark.spec("WEB-82")
async def test_kinds_are_searched(app: Stoker, client: Client) -> None:
    for kind in ("send", "resize", "charge"):
        await enqueue(app, kind)
    page = (await client.get("/kinds?find=E&sort=kind")).text
    assert re.findall(r'<tr role="row" data-row="([^"]+)"', page) == ["charge", "resize", "send"]
    assert "sort=p95&amp;find=e" in page, "the heads keep what is looked for"
    page = (await client.get("/kinds?find=siz")).text
    assert re.findall(r'<tr role="row" data-row="([^"]+)"', page) == ["resize"]
    assert "None of 3 kinds has “bill” in its name." in text(await client.get("/kinds?find=bill"))


@pytest.mark.spec("WEB-82")
async def test_workers_are_searched_and_the_busiest_host_comes_first(app: Stoker, client: Client) -> None:
    await beat(app, worker="w-idle", host="ams-1", pid=11, queues={"mail": 2})
    await beat(app, worker="w", host="fra-1", pid=22, queues={"default": 5})
    await enqueue(app)
    await claim(app)

    async def hosts(query: str) -> list[str]:
        return re.findall(r'data-row="host ([^"]+)"', (await client.get(f"/workers{query}")).text)

    assert await hosts("") == ["ams-1", "fra-1"]
    assert await hosts("?sort=busy") == ["fra-1", "ams-1"]
    for find in ("AMS", "11", "idle", "mail"):
        assert await hosts(f"?find={find}") == ["ams-1"], find
    assert "None of 2 workers has “zrh” in its host, process, id or queues." in text(
        await client.get("/workers?find=zrh")
    )
    assert (await client.get("/workers?sort=size")).status_code == 422


@pytest.mark.spec("WEB-09")
async def test_workers_show_a_square_per_slot(app: Stoker, client: Client, clock: VirtualClock) -> None:
    found = await lively(app, clock)
    page = await client.get("/workers")
    assert "1 worker process on 1 host, 1 of 7 slots busy" in text(page)
    assert page.text.count('class="slot"></li>') == 6
    assert f'class="slot busy" href="/jobs/{found["running"]}"' in page.text
    clock.advance(360)
    await beat(app, queues={"default": 5, "billing": 2})
    client.board.hub.forget()
    assert 'class="slot long"' in (await client.get("/workers")).text


@pytest.mark.spec("WEB-10")
async def test_links_stay_below_the_mount(app: Stoker, board: Dashboard, clock: VirtualClock) -> None:
    await lively(app, clock)
    client = Client(board, root="/admin/jobs")
    for path in PAGES:
        page = (await client.get(f"/admin/jobs{path}")).text
        local = re.findall(r'(?:href|action|src)="(/[^"]*)"', page)
        assert local
        assert [one for one in local if not one.startswith("/admin/jobs/")] == []
    await client.close()


@pytest.mark.spec("WEB-11")
async def test_ranges_are_bounded(app: Stoker, client: Client) -> None:
    await enqueue(app)
    for wanted in ("range=1h", "range=30d", "since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z"):
        assert (await client.get(f"/?{wanted}")).status_code == 200
    for refused in ("range=9h", "since=1999-01-01", "since=x", "since=2026-01-01T00:00:00Z&until=2030-01-01"):
        assert (await client.get(f"/?{refused}")).status_code == 422, refused


@pytest.mark.spec("WEB-12")
async def test_durations_are_never_negative(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await lively(app, clock)
    clock.rewind(3600)
    client.board.hub.forget()
    for path in PAGES:
        assert not re.search(r"[ >]-\d", text(await client.get(path))), path


@pytest.mark.spec("WEB-19")
async def test_keys_at_their_limit_are_shown_with_their_holders(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    made = [await enqueue(app, limit=Limit(1, "@tenant", name="customer"), tenant="c1") for _ in range(3)]
    await enqueue(app, limit=Limit(5, "@tenant", name="customer"), tenant="c2")
    await claim(app)
    clock.advance(4)
    page = await client.get("/limits")
    assert "1 key at its limit." in text(page)
    assert "customer = c1" in text(page)
    assert "1 of 1" in text(page)
    assert "customer = c2" not in text(page)
    assert f"/jobs/{made[0]}" in page.text
    assert "4.0 s" in text(page)
    whole = text(await client.get("/limits?queue=default"))
    assert "customer = c2" in whole
    why = await client.get(f"/jobs/{made[1]}")
    assert "Limit" in text(why)
    assert "lets 1 run at once for key" in text(why)


@pytest.mark.spec("WEB-19")
async def test_keys_of_every_queue_are_shown_ten_queues_to_a_page(app: Stoker, client: Client) -> None:
    queues = [f"q{n:02}" for n in range(12)]
    for queue in queues:
        for _ in range(2):
            await enqueue(app, queue=queue, limit=Limit(1, "@tenant", name="customer"), tenant=f"of-{queue}")
        await claim(app, queue)
    first = await client.get("/limits")
    assert [queue for queue in queues if f"of-{queue}" in first.text] == queues[:10]
    assert "More queues" in text(first)
    rest = await client.get("/limits?after=q09")
    assert [queue for queue in queues if f"of-{queue}" in rest.text] == queues[10:]
    [want] = limits.wants(RequestContext(client.board, Request({"type": "http", "query_string": b""}), "", "", ""))
    calls = [(await want.read(await client.board.store.engine()))[1] for _ in range(3)]
    assert calls == [14, 7, 7]  # all at first, then three at a time


@pytest.mark.spec("WEB-20")
async def test_a_job_shows_its_chain_and_its_group(app: Stoker, client: Client) -> None:
    last = app.draft("charge")
    first = app.draft("send").then(app.draft("resize").then(last))
    await app.enqueue(first)
    page = text(await client.get(f"/jobs/{ids.text(first.job_id)}"))
    assert "Chain send this job, ready resize follows its success, not stored yet charge" in page
    [run] = await claim(app)
    engine = await app.engine()
    await engine.jobs.settle([Settlement(run.id, run.worker, run.token, Status.DONE, followups=run.options.then)])
    [child] = [job for job in (await engine.operator.find(Query())).jobs if job.kind == "resize"]
    second = await client.get(f"/jobs/{ids.text(child.id)}")
    assert "send ran before it, done resize this job, ready charge follows its success" in text(second)
    assert f"/jobs/{ids.text(first.job_id)}" in second.text
    async with app.group(then=app.draft("charge")) as group:
        members = [one for _ in range(3) for one in await group.add(app.draft("send"))]
    shown = await client.get(f"/jobs/{members[0].id}")
    assert "0 of 3 done, waits for 3 members." in text(shown)
    assert "Its end enqueues charge when every member is done." in text(shown)
    assert all(f"/jobs/{one.id}" in shown.text for one in members)


@pytest.mark.spec("WEB-21")
async def test_a_large_payload_is_cut_and_can_be_downloaded(app: Stoker, client: Client) -> None:
    long = {"text": "x" * 100_000}
    id_ = await enqueue(app, payload=long)
    page = await revealed(client, id_)
    assert page.text.count("x" * 1_000) < 70
    assert "The first 64 kB are shown" in text(page)
    file = await client.post(f"/jobs/{id_}/reveal", {"part": "payload", "as": "file"})
    assert file.headers["content-disposition"] == f'attachment; filename="{id_}-payload.json"'
    assert json.loads(file.content) == long
    assert text(await client.get("/audit")).count("Looked into job") == 2


@pytest.mark.spec("WEB-22")
async def test_ready_and_scheduled_are_counted_per_kind(app: Stoker, client: Client) -> None:
    await enqueue(app, "send")
    await enqueue(app, "send", delay=60)
    await enqueue(app, "resize", delay=60)
    page = (await client.get("/kinds")).text
    rows = dict(re.findall(r'<tr role="row" data-row="(\w+)">(.*?)</tr>', page, re.DOTALL))
    figures = {kind: re.sub(r"<[^>]+>", " ", row.partition("Running")[0]).split()[1:4] for kind, row in rows.items()}
    assert figures == {"send": ["1", "1", "scheduled"], "resize": ["0", "1", "scheduled"]}


@pytest.mark.spec("WEB-23")
async def test_the_filter_suggests_its_next_term(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await lively(app, clock)
    page = (await client.get("/jobs")).text
    words = re.findall(r'<option value="([^"]+)">', page)
    for word in ("is:dead", "is:active", "queue:billing", "kind:charge", "since:1h", "order:oldest", "tenant:"):
        assert word in words
    assert 'list="words"' in page


@pytest.mark.spec("WEB-72")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_worker_has_a_page_and_a_lost_one_is_remembered(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    ended, held = await enqueue(app, "send"), await enqueue(app, "resize")
    claims = await claim(app)
    hour = ((3, 1), (2, 0))
    many = {f"q{n}": 10 for n in range(30)}
    await beat(
        app, "w", many, jobs=(ended, held), running=2, uptime=90_000_000, memory=50_000_000, hour=hour, release="r7"
    )
    page = text(await client.get("/workers/w"))
    for part in (
        "fra-1 / 2201",
        "resize",
        "Memory 47.7 MB",
        "Up for 1 min",
        "6 runs ended in 2 minutes, 1 of them failed",
    ):
        assert part in page, part
    assert page.count("Release r7") == 1
    assert "What became" not in page
    assert "30 queues, 10 slots each" in text(await client.get("/workers"))
    await end(app, claims[:1], Status.DONE, None)
    clock.advance(30)
    client.board.hub.forget()
    page = text(await client.get("/workers/w"))
    assert "Of the 2 jobs that it ran then: 1 done, 1 held" in page
    assert "The lease of its 1 job ran out" in page
    await Admin(app).workers.take_back("w")
    client.board.hub.forget()
    assert "1 done, 1 ready" in text(await client.get("/workers/w"))
    listed = text(await client.get("/workers"))
    assert "Lost in the last hour 1 worker; their jobs have passed on" in listed
    api = (await client.get("/api/v1/workers/w")).json()
    assert [one["became"] for one in api["former"]] == ["done", "ready"]
    assert api["memory"] == 50_000_000
    assert (await client.get("/workers/nobody")).status_code == 404


@pytest.mark.spec("LABEL-01")
async def test_a_label_is_shown_wherever_a_job_is(app: Stoker, client: Client) -> None:
    app.declare("ship", label="order {id} <for> {customer}")
    job = await app.enqueue(app.draft("ship", {"id": 7, "customer": "acme"}, queue="mail"))
    await claim(app, "mail")
    for path in ("/jobs", f"/jobs/{job.id}", "/"):
        page = await client.get(path)
        assert "order 7 &lt;for&gt; acme" in page.text, path
    answer = (await client.get(f"/api/v1/jobs/{job.id}")).json()
    assert answer["label"] == "order 7 <for> acme"

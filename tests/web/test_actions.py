"""Forms that change something: what they do, what they say, and how they are undone."""

from __future__ import annotations

import asyncio
import html
import json
import re
import uuid
from urllib.parse import unquote

import httpx
import msgspec
import pytest
from msgspec import Raw, structs

from stoker import Curve, Limit, Unique
from stoker.admin import Admin, Operators, documents
from stoker.app import Stoker
from stoker.model import ids
from stoker.model.access import Identity, Role
from stoker.model.actions import ACTIONS, MANY
from stoker.model.control import Tuning
from stoker.model.events import Point
from stoker.model.job import Settlement, Status
from stoker.model.operations import Operation
from stoker.model.orders import StackReport, Stand
from stoker.model.throttle import Rate
from stoker.model.time import MINUTE
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Limits, dashboard
from stoker.web.health_cache import CheckUps
from stoker.web.hub import Hub
from stoker.web.request import RequestContext
from tests.harness.calls import counted
from tests.web.conftest import Client, beat, claim, end, enqueue, text


def told(answer: httpx.Response) -> dict[str, object]:
    """The flash that an action leaves for the next page."""
    assert answer.status_code == 303, answer.text
    cookie = next(value for value in answer.headers.get_list("set-cookie") if value.startswith("stoker_flash="))
    found = json.loads(unquote(cookie.partition("=")[2].partition(";")[0]))
    assert isinstance(found, dict)
    return found


def hidden(page: httpx.Response) -> dict[str, str]:
    """The fields that a preview puts into its form."""
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.text)
    return {name: html.unescape(value) for name, value in fields if name != "csrf"}


async def status(app: Stoker, job: str) -> Status:
    return (await app.handle(job).refresh()).status


async def becomes(client: Client, path: str, words: str) -> httpx.Response:
    """The page, as soon as it says so."""
    page = await client.get(path)
    for _ in range(2_000):
        if words in text(page):
            break
        await asyncio.sleep(0.01)
        page = await client.get(path)
    return page


async def payload(app: Stoker, id_: str) -> bytes:
    [job] = await (await app.engine()).operator.get([ids.parse(id_)])
    assert job is not None
    return job.payload


async def undo(client: Client, flash: dict[str, object]) -> None:
    fields = flash["fields"]
    assert isinstance(fields, list)
    assert (await client.post(f"/{flash['undo']}", [(name, value) for name, value in fields])).status_code == 303


@pytest.mark.spec("WEBACT-01")
async def test_a_job_is_requeued_canceled_copied_discarded_and_deleted(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    await end(app, await claim(app))
    await beat(app)
    assert (
        told(await client.post(f"/jobs/{id_}/requeue"))["text"] == "Requeued send. It runs as soon as a worker is free."
    )
    again = told(await client.post(f"/jobs/{id_}/requeue"))
    assert again["text"] == "send waits or runs already. Nothing was changed."
    due = told(await client.post(f"/jobs/{id_}/run-now"))
    assert str(due["text"]).startswith("send is the first of default now.")
    assert await status(app, id_) is Status.PENDING
    flash = told(await client.post(f"/jobs/{id_}/cancel"))
    assert await status(app, id_) is Status.CANCELED
    await undo(client, flash)
    assert await status(app, id_) is Status.PENDING
    running = await claim(app)
    runs = told(await client.post(f"/jobs/{id_}/run-now"))
    assert runs["text"] == "send runs already. Nothing was changed."
    await end(app, running)
    copy = await client.post(f"/jobs/{id_}/retry")
    assert await status(app, id_) is Status.RETRIED
    assert await status(app, copy.headers["location"].rpartition("/")[2]) is Status.PENDING
    await end(app, await claim(app))
    [dead] = re.findall(r'name="id" value="([^"]+)"', (await client.get("/jobs?q=is:dead")).text)
    await undo(client, told(await client.post(f"/jobs/{dead}/discard")))
    assert await status(app, dead) is Status.DEAD
    await client.post(f"/jobs/{dead}/discard")
    assert await status(app, dead) is Status.DISCARDED
    asked = await client.post(f"/jobs/{dead}/delete")
    assert "Delete this job?" in text(asked)
    assert "Keep it" in text(asked)
    assert await status(app, dead) is Status.DISCARDED
    assert (await client.post(f"/jobs/{dead}/delete", {"sure": "yes"})).headers["location"] == "/jobs"
    assert (await client.get(f"/jobs/{dead}")).status_code == 404


@pytest.mark.spec("WEBACT-02")
async def test_an_action_that_the_status_refuses_says_so(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    answer = await client.post(f"/jobs/{id_}/discard")
    assert answer.status_code == 409
    assert "is pending, which 'discard' does not apply to" in text(answer).replace("&#39;", "'")
    assert (await client.post(f"/jobs/{id_}/explode")).status_code == 404


@pytest.mark.spec("WEBACT-03", "WEBACT-21")
async def test_a_running_job_is_asked_to_stop_after_a_question(
    app: Stoker, board: Dashboard, client: Client, clock: VirtualClock
) -> None:
    board.hub = Hub(board.store, clock=lambda: 0.0)  # what it has read does not age
    id_ = await enqueue(app)
    clock.advance(120)
    await claim(app)
    clock.advance(90)
    asked = await client.post(f"/jobs/{id_}/cancel")
    assert "Its worker is told to stop it." in text(asked)
    for part in (f"Job {id_}", "Enqueued 3 min ago", "Running for 1 min 30 s", "Worker w", "Why, if you like"):
        assert part in text(asked), part
    assert "is asked to stop" in str(told(await client.post(f"/jobs/{id_}/cancel", {"sure": "yes"}))["text"])
    assert (await app.handle(id_).refresh()).cancel_requested
    await client.post(f"/jobs/{id_}/force-cancel", {"sure": "yes"})
    assert await status(app, id_) is Status.CANCELED


@pytest.mark.spec("WEBACT-04")
async def test_move_and_priority_are_undone(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    moved = told(await client.post(f"/jobs/{id_}/move", {"queue": "mail", "create": "yes"}))
    assert (await app.handle(id_).refresh()).queue == "mail"
    await undo(client, moved)
    assert (await app.handle(id_).refresh()).queue == "default"
    first = told(await client.post(f"/jobs/{id_}/prioritize", {"priority": "-100"}))
    assert (await app.handle(id_).refresh()).priority == -100
    await undo(client, first)
    assert (await app.handle(id_).refresh()).priority == 0


@pytest.mark.spec("WEBACT-05")
async def test_a_queue_is_paused_with_a_reason_resumed_and_tuned(app: Stoker, client: Client) -> None:
    await enqueue(app)
    flash = told(await client.post("/queues/default/pause", {"reason": "bad file", "minutes": "30"}))
    page = text(await client.get("/queues"))
    assert "ann: “bad file”" in page
    assert "paused until" in page
    await undo(client, flash)
    assert "paused" not in text(await client.get("/queues/default"))
    tuned = told(
        await client.post("/queues/default/tune", {"workers": "7", "rate_n": "10", "rate_per": "2", "keep_done": "48"})
    )
    engine = await app.engine()
    [queue] = await engine.control.queues()
    assert (queue.workers, queue.rate, queue.keep_done // 3_600_000_000) == (7, Rate(10, per=2), 48)
    await undo(client, tuned)
    [queue] = await engine.control.queues()
    assert (queue.workers, queue.rate) == (None, None)
    assert (await client.post("/queues/default/tune", {"workers": "many"})).status_code == 422


@pytest.mark.spec("WEBACT-18")
async def test_each_setting_of_a_queue_is_shown_with_its_default_and_reset(app: Stoker, client: Client) -> None:
    await enqueue(app)
    engine = await app.engine()
    assert "Reset" not in text(await client.get("/queues/default"))
    await client.post("/queues/default/tune", {"workers": "7", "curve_base": "5", "curve_max": "600"})
    [queue] = await engine.control.queues()
    assert (queue.workers, queue.curve) == (7, Curve(5, 600).stored())
    page = await client.get("/queues/default")
    resets = re.findall(r'form="reset" name="reset" value="(\w+)"', page.text)
    assert resets == ["workers", "curve"]
    assert re.findall(r'name="curve_\w+"[^>]* value="(\d+)"', page.text) == ["5", "600"]
    assert "by default 7 days" in text(page)
    flash = told(await client.post("/queues/default/tune", {"reset": "curve"}))
    [queue] = await engine.control.queues()
    assert (queue.workers, queue.curve.on) == (7, False)
    await undo(client, flash)
    [queue] = await engine.control.queues()
    assert (queue.workers, queue.curve) == (7, Curve(5, 600).stored())
    await client.post("/queues/default/tune", {"reset": "all"})
    [queue] = await engine.control.queues()
    assert (queue.workers, queue.curve.on) == (None, False)
    for wrong in ({"reset": "shoes"}, {"curve_base": "soon"}, {"curve_base": "5", "curve_max": "1"}):
        assert (await client.post("/queues/default/tune", wrong)).status_code == 422


@pytest.mark.spec("WEBACT-06")
async def test_a_schedule_is_paused_run_and_edited(app: Stoker, client: Client) -> None:
    await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
    await undo(client, told(await client.post("/schedules/nightly/pause")))
    assert (await app.schedule_handle("nightly").info()).enabled
    await client.post("/schedules/nightly/run-now")
    assert "1 shown" in text(await client.get("/jobs"))
    edited = told(await client.post("/schedules/nightly/edit", {"cron": "30 4 * * mon-fri", "tz": "Europe/Paris"}))
    assert (await app.schedule_handle("nightly").info()).cron == "30 4 * * mon-fri"
    assert "At 4:30 on weekdays" in text(await client.get("/schedules"))
    await undo(client, edited)
    assert (await app.schedule_handle("nightly").info()).cron == "0 3 * * *"
    assert (await client.post("/schedules/nightly/edit", {"cron": "never", "tz": "UTC"})).status_code == 422
    assert (await client.post("/schedules/gone/pause")).status_code == 404


@pytest.mark.spec("WEBACT-07", "WEB-41")
async def test_a_budget_is_tuned_and_drained(app: Stoker, client: Client) -> None:
    engine = await app.engine()
    await engine.control.tune("own", Rate(1))
    await engine.control.tune("stripe", Rate(100, per=60), declared=True)
    await engine.control.tune("default", Tuning(rate=Rate(5)))
    await enqueue(app)
    page = text(await client.get("/limits"))
    assert "own budget, not declared in code" in page
    assert "stripe budget, as declared in code" in page
    assert page.count("what calls spend(") == 2
    assert "every start of send" in page
    await client.post("/limits/stripe/tune", {"n": "50", "per": "1"})
    assert (await engine.control.budgets())[1].buckets[""].rate == Rate(50, per=1)
    assert "Drain this budget?" in text(await client.post("/limits/stripe/drain"))
    await client.post("/limits/stripe/drain", {"sure": "yes"})
    page = text(await client.get("/limits"))
    assert "0 of 50" in page
    assert "stripe budget, changed by people; the code says 100 per minute" in page


@pytest.mark.spec("WEBACT-07", "WEB-41", "BUDGET-25")
async def test_measures_and_keys_are_tuned_and_drained(app: Stoker, client: Client) -> None:
    """A row for each measure; those of the emptiest keys of a budget where they are asked for."""
    app.budget("llm", requests=Rate(5, per=3600), tokens=Rate(100, per=3600), keyed=True)
    app.budget("ai", requests=Rate(5, per=3600), tokens=Rate(100, per=3600))
    await app.declarations.store(await app.engine())
    await app.spend("llm", tokens=40, key="acme & co")
    page = text(await client.get("/limits"))
    assert "llm tokens budget, for each key, as declared in code" in page
    assert "acme" not in page
    assert page.count("what calls spend(") == 4
    keys = text(await client.get("/limits?budget=llm"))
    assert "llm tokens key acme &amp; co" in keys
    assert "60 of 100" in keys
    await client.post("/limits/ai/tune", {"n": "50", "per": "1", "measure": "tokens"})
    assert (await app.budget("ai").spend(tokens=51)).granted is False
    assert (await client.post("/limits/ai/tune", {"n": "50", "per": "1"})).status_code == 422
    asked = text(await client.post("/limits/llm/drain", {"key": "acme & co"}))
    assert "Drain this budget?" in asked
    assert "llm, key acme &amp; co" in asked
    await client.post("/limits/llm/drain", {"sure": "yes", "key": "acme & co"})
    assert "0 of 100" in text(await client.get("/limits?budget=llm"))


@pytest.mark.spec("ADMIN-39")
async def test_the_jobs_of_a_worker_are_taken_back_from_its_page(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    await beat(app, "idle")
    await beat(app)
    await claim(app)
    page = (await client.get("/workers")).text
    assert 'action="/workers/w/take-back"' in page
    assert "/workers/idle/take-back" not in page, "it has no jobs"
    asked = text(await client.post("/workers/w/take-back"))
    for part in ("Take back the jobs of this worker?", "Worker w", "Seen just now", "Runs 1 job", "The oldest for 0"):
        assert part in asked, (part, asked)
    job = await app.handle(id_).refresh()
    assert job.status is Status.RUNNING
    done = told(await client.post("/workers/w/take-back", {"sure": "yes", "reason": "it hangs"}))
    assert done["text"] == "Took back 1 job of w."
    job = await app.handle(id_).refresh()
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert re.search("Took back the jobs of worker w.*it hangs", text(await client.get("/audit")))
    assert (await client.post("/workers/gone/take-back", {"sure": "yes"})).status_code == 404


@pytest.mark.spec("WEBACT-08")
async def test_many_jobs_are_previewed_and_the_number_is_typed(app: Stoker, client: Client) -> None:
    made = [await enqueue(app, "charge", queue="billing") for _ in range(3)]
    await end(app, await claim(app, "billing"))
    preview = await client.get("/operations/new", params={"do": "delete", "q": "is:dead queue:billing"})
    assert "Delete 3 jobs?" in text(preview)
    assert "Nothing has happened yet." in text(preview)
    fields = {"do": "delete", "q": "is:dead queue:billing", "of": "3"}
    refused = await client.post("/operations", {**fields, "count": "2"})
    assert refused.status_code == 422
    assert "You typed 2, and 3 jobs are meant." in text(refused)
    started = await client.post("/operations", {**fields, "count": "3"})
    page = await becomes(client, started.headers["location"], "Delete is done")
    assert "Deleted 3 jobs." in text(page)
    assert "3 of 3 jobs" in text(page)
    assert 'aria-label="100 of 100"' in page.text, "the bar is full"
    assert (await client.get(f"/jobs/{made[0]}")).status_code == 404


@pytest.mark.spec("OPERATION-05", "OPERATION-07")
async def test_a_page_previews_how_long_it_lasts_and_shows_how_far_it_is(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    for _ in range(3):
        await enqueue(app)
    await end(app, await claim(app))
    engine = await app.engine()
    minute = clock() // MINUTE * MINUTE - MINUTE
    points = [Point("default", "completed", minute, 2), Point("", "counted", minute, 1)]
    await engine.timeline.record([], points, now=clock())
    preview = text(await client.get("/operations/new", params={"do": "requeue", "q": "is:dead"}))
    assert "queue default needs about 1 min 30 s for them" in preview
    answer = (await client.get("/api/v1/preview", params={"q": "is:dead", "action": "requeue"})).json()
    assert (answer["count"], answer["skipped"], answer["lasts"]) == (3, {}, {"queue": "default", "time": 90.0})
    now = clock()
    under_way = Operation(
        id="a", who="ada", action="requeue", filter="is:dead", bound=now, started=now - 2_000_000, total=8, changed=2
    )
    await documents.put_operation(engine, under_way)
    page = await client.get("/operations/a")
    assert 'aria-label="25 of 100"' in page.text
    assert "2 of 8 jobs 1.0 jobs a second, about 6.0 s left" in text(page)
    assert "2 of 8" in text(await client.get("/operations"))


@pytest.mark.spec("WEBACT-08")
async def test_an_action_touches_what_its_preview_showed_while_jobs_die(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    made = [await enqueue(app) for _ in range(3)]
    await end(app, await claim(app))
    clock.advance(1)
    preview = await client.get("/operations/new", params={"do": "requeue", "q": "is:dead"})
    assert "Requeue 3 jobs?" in text(preview)
    fields = hidden(preview)
    assert fields["of"] == "3"
    clock.advance(1)
    late = await enqueue(app)
    await end(app, await claim(app))
    await Admin(app).jobs.requeue(made[0])  # another operator was faster with one of them
    started = await client.post("/operations", fields)
    assert told(started)["text"] == ("Of the 3 jobs that were counted, 1 has changed since: nothing is done to those.")
    page = await becomes(client, started.headers["location"], "Requeue is done")
    assert re.search(r"Requeued 2 jobs\. 1 left: created or ended after the count at \d\d:\d\d:\d\d ?\.", text(page))
    assert {await status(app, one) for one in made} == {Status.PENDING}
    assert await status(app, late) is Status.DEAD


@pytest.mark.spec("WEBACT-08")
async def test_a_refused_number_is_counted_anew_for_the_same_filter(app: Stoker, client: Client) -> None:
    made = [await enqueue(app) for _ in range(3)]
    await end(app, await claim(app))
    q = "is:dead queue:default"
    grown = await client.post("/operations", {"do": "requeue", "q": q, "of": "2"})
    assert grown.status_code == 409
    assert "3 jobs would be changed, and the preview showed 2. Nothing was changed." in text(grown)
    assert "Requeue 3 jobs?" in text(grown)
    anew = hidden(grown)
    assert (anew["q"], anew["of"], anew["do"]) == (q, "3", "requeue")
    deleted = await client.post("/operations", {"do": "delete", "q": q, "of": "3", "count": "2"})
    assert (deleted.status_code, hidden(deleted)["do"]) == (422, "delete")
    assert "You typed 2, and 3 jobs are meant." in text(deleted)
    assert {await status(app, one) for one in made} == {Status.DEAD}
    started = await client.post("/operations", anew)
    await becomes(client, started.headers["location"], "Requeue is done")
    assert {await status(app, one) for one in made} == {Status.PENDING}


@pytest.mark.spec("WEBACT-09")
async def test_ticked_jobs_are_previewed_and_counted_by_what_became_of_them(app: Stoker, client: Client) -> None:
    made = [await enqueue(app) for _ in range(3)]
    await end(app, await claim(app, n=2))
    preview = await client.post("/operations/new", [("do", "requeue"), *(("id", one) for one in made)])
    assert "Requeue 2 of 3 jobs?" in text(preview)
    flash = told(await client.post("/operations", [("do", "requeue"), *(("id", one) for one in made)]))
    assert (
        flash["text"] == "Requeued 2\u00a0jobs; 1 left: pending."
        or flash["text"] == "Requeued 2 jobs; 1 left: pending."
    )
    nothing = told(await client.post("/operations/new", [("do", "requeue")]))
    assert nothing["bad"]


@pytest.mark.spec("WEBACT-11")
async def test_what_is_undone_is_in_the_audit_log_too(app: Stoker, client: Client) -> None:
    waiting, dead = await enqueue(app, delay=60), await enqueue(app)
    await end(app, await claim(app))
    acts = {
        "/queues/default/pause": "queues.tune",
        f"/jobs/{waiting}/cancel": "jobs.cancel",
        f"/jobs/{dead}/discard": "jobs.discard",
        f"/jobs/{waiting}/move": "jobs.move",
        f"/jobs/{waiting}/prioritize": "jobs.prioritize",
        f"/jobs/{waiting}/edit": "jobs.edit",
    }
    for path, action in acts.items():
        before = [one.action for one in await Admin(app).audit.list(3_600)]
        needed = {
            "move": {"queue": "mail", "create": "yes"},
            "prioritize": {"priority": "5"},
            "edit": {"payload": "{}"},
        }
        fields = needed.get(path.rpartition("/")[2], {})
        await undo(client, told(await client.post(path, fields)))
        done = [one.action for one in await Admin(app).audit.list(3_600)]
        assert len(done) == len(before) + 2, path
        assert action in done[:2], (path, done)


@pytest.mark.spec("WEBACT-11")
async def test_changes_and_looks_are_in_the_audit_log(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    await client.post("/queues/default/pause", {"reason": "bad file"})
    await client.post(f"/jobs/{id_}/reveal", {"part": "payload"})
    await client.post(f"/jobs/{id_}/cancel")
    page = text(await client.get("/audit"))
    for words in ("ann dashboard", f"Canceled job {id_}", f"Looked into job {id_}", "Paused queue default “bad file”"):
        assert words in page, words
    assert "Canceled job" not in text(await client.get("/audit?who=bob"))
    assert (await client.get("/audit?since=1y")).status_code == 422


@pytest.mark.spec("WEBACT-10")
async def test_what_was_done_is_shown_once(app: Stoker, client: Client, clock: VirtualClock) -> None:
    id_ = await enqueue(app)
    await client.post(f"/jobs/{id_}/cancel")
    first = await client.get("/jobs")
    assert "Canceled send." in text(first)
    assert "Undo" in text(first)
    assert "Canceled send." not in text(await client.get("/jobs"))


@pytest.mark.spec("WEBACT-12")
async def test_a_waiting_job_is_edited_by_a_form_and_the_edit_undone(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app, payload={"to": "zoe@shop"}, delay=3600)
    form = await client.get(f"/jobs/{id_}/edit")
    assert "Edit send" in text(form)
    assert "zoe@shop" not in form.text  # the payload stays hidden
    before = await app.handle(id_).refresh()
    same = told(
        await client.post(f"/jobs/{id_}/edit", {"priority": "0", "at": f"{before.scheduled_at:%Y-%m-%dT%H:%M:%S}"})
    )
    assert same["text"] == "Nothing was different. The job is as it was."
    flash = told(await client.post(f"/jobs/{id_}/edit", {"priority": "-5", "at": "2031-01-01T00:00"}))
    assert flash["text"] == "Changed the priority and due time of send."
    after = await app.handle(id_).refresh()
    assert (after.priority, after.scheduled_at.year) == (-5, 2031)
    await undo(client, flash)
    restored = await app.handle(id_).refresh()
    assert (restored.priority, restored.scheduled_at) == (0, before.scheduled_at)
    stored = await payload(app, id_)
    edited = told(await client.post(f"/jobs/{id_}/edit", {"payload": '{"to": "bob"}', "priority": "4"}))
    assert b"bob" in await payload(app, id_)
    assert "zoe" not in str(edited)  # nor is it in the cookie
    await undo(client, edited)
    assert (await payload(app, id_), (await app.handle(id_).refresh()).priority) == (stored, 0)
    assert (await client.post(f"/{edited['undo']}")).status_code == 404
    edited = told(await client.post(f"/jobs/{id_}/edit", {"payload": '{"to": "bob"}'}))
    await Admin(app).jobs.edit(id_, payload=b'{"to": "cem"}')
    assert (await client.post(f"/{edited['undo']}")).status_code == 409
    assert b"cem" in await payload(app, id_)
    refused = await client.post(f"/jobs/{id_}/edit", {"payload": "{", "priority": "3"})
    assert refused.status_code == 422
    assert 'value="3"' in refused.text  # what was typed is kept
    assert "Nothing was" in text(refused)
    assert (await app.handle(id_).refresh()).priority == 0
    assert (await client.post(f"/jobs/{id_}/edit", {"at": "soon"})).status_code == 422


@pytest.mark.spec("WEB-19")
async def test_the_limits_page_says_that_no_key_is_full_while_jobs_wait_under_one(app: Stoker, client: Client) -> None:
    await enqueue(app, limit=Limit(1, "@tenant", name="account"), tenant="c1")
    assert "No key is at its limit." in text(await client.get("/limits"))


@pytest.mark.spec("WEB-64")
async def test_the_limits_page_lists_keys_that_retrying_jobs_hold(app: Stoker, client: Client) -> None:
    for limit in (Limit(1, "@tenant", name="held", hold="retrying"), Limit(1, "@tenant", name="free")):
        await enqueue(app, limit=limit, tenant="c1")
    engine = await app.engine()
    runs = await claim(app)
    assert len(runs) == 2
    fields = [(one.id, one.worker, one.token, Status.RETRYING) for one in runs]
    await engine.jobs.settle([Settlement(*one, error="KeyError: 1", after=60_000_000) for one in fields])
    page = text(await client.get("/limits"))
    assert "held = c1" in page
    assert "1 key at its limit." in page
    assert "free = c1" not in page  # it gave its place back


@pytest.mark.spec("REDACT-08")
async def test_an_admin_of_one_queue_edits_there_what_it_sees(app: Stoker) -> None:
    """It is an admin of what it may reveal, although its searches find only what is masked."""
    limited = Identity("ada", "admin", frozenset({"default"}))
    board = dashboard(app, auth=lambda _: limited, limits=Limits(seconds=30))
    client = Client(board)
    secret = b'{"to": "zoe", "api_key": "k-1"}'
    id_ = (await app.enqueue(app.draft("send", Raw(secret), delay=60))).id
    edited = told(await client.post(f"/jobs/{id_}/edit", {"payload": '{"to": "bob", "api_key": "k-2"}'}))
    assert json.loads(await payload(app, id_)) == {"to": "bob", "api_key": "k-2"}
    await undo(client, edited)
    assert json.loads(await payload(app, id_)) == json.loads(secret)
    await client.close()
    await board.close()


@pytest.mark.spec("WEBACT-20")
async def test_a_payload_is_revealed_and_edited_in_one_form(app: Stoker) -> None:
    board = dashboard(app, auth=lambda _: Identity("olga", "operate"), limits=Limits(seconds=30))
    client = Client(board)
    secret = b'{"to":"zoe","api_key":"k-1","big":1000000000000000001}'
    id_ = (await app.enqueue(app.draft("send", Raw(secret), delay=60))).id
    path, typed = f"/jobs/{id_}/edit", {"priority": "7", "at": "2031-01-01T00:00:00"}
    assert "Reveal and edit the payload" in text(await client.get(path))
    answer = await client.post(f"/jobs/{id_}/reveal", {**typed, "payload": "", "to": "edit"})
    address = answer.headers["location"]
    form = await client.get(address)
    assert 'value="7"' in form.text, "what was typed is kept"
    [box] = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", form.text, re.DOTALL)
    shown = html.unescape(box)
    assert json.loads(shown) == {"to": "zoe", "api_key": "[hidden]", "big": 10**18 + 1}
    [version] = re.findall(r'name="version" value="(\w+)"', form.text)
    same = told(await client.post(address, {"payload": shown.replace("\n", "\r\n"), "version": version}))
    assert same["text"] == "Nothing was different. The job is as it was."
    assert await payload(app, id_) == secret
    told(await client.post(address, {"payload": shown.replace("zoe", "bob"), "version": version}))
    assert json.loads(await payload(app, id_)) == {"to": "bob", "api_key": "k-1", "big": 10**18 + 1}
    assert b"\n" not in await payload(app, id_), "it was indented for reading only"
    late = await client.post(address, {"payload": shown.replace("zoe", "cem"), "version": version})
    assert (late.status_code, "was changed meanwhile" in text(late)) == (409, True)
    refused = await client.post(address, {"payload": shown.replace("[hidden]", "mine")})
    assert (refused.status_code, "mine" in refused.text) == (422, True)
    assert (await client.post(address, {"payload": "{"})).status_code == 422
    page = (await client.get(address.replace("/edit?", "?"))).text
    assert f"{id_}/edit?reveal=" in page, "the page of the job leads from what is revealed to the form"
    entries = await Admin(app).audit.list(60, target=f"job {id_}")
    assert [one.action for one in entries].count("jobs.reveal") == 1
    dead = await enqueue(app, payload={"to": "zoe"})
    await end(app, await claim(app))
    assert "Save and requeue" in text(await client.get(f"/jobs/{dead}/edit"))
    done = told(await client.post(f"/jobs/{dead}/edit", {"payload": '{"to": "bob"}', "then": "requeue"}))
    assert done["text"] == "Changed the payload of send. Requeued send."
    assert (await status(app, dead), await payload(app, dead)) == (Status.PENDING, b'{"to":"bob"}')
    await client.close()
    await board.close()


@pytest.mark.spec("REDACT-08")
async def test_editing_as_operate_keeps_what_is_masked(app: Stoker) -> None:
    """What Reveal shows is typed back with one field changed, by form and by REST; a changed secret is refused."""
    board = dashboard(app, auth=lambda _: Identity("olga", "operate"), limits=Limits(seconds=30))
    client = Client(board)
    secret = b'{"to": "zoe", "api_key": "k-1"}'
    id_ = (await app.enqueue(app.draft("send", Raw(secret), delay=60))).id
    masked = '{"to": "bob", "api_key": "[hidden]"}'
    edited = told(await client.post(f"/jobs/{id_}/edit", {"payload": masked}))
    assert json.loads(await payload(app, id_)) == {"to": "bob", "api_key": "k-1"}
    refused = await client.post(f"/jobs/{id_}/edit", {"payload": masked.replace("[hidden]", "mine")})
    assert refused.status_code == 422
    assert "payload.api_key: must come back as [hidden]" in text(refused)
    await undo(client, edited)
    assert json.loads(await payload(app, id_)) == json.loads(secret)
    body = {"payload": {"to": "cem", "api_key": "[hidden]"}}
    headers = {"x-csrf-token": await client.csrf()}
    sent = await client.http.patch(f"/api/v1/jobs/{id_}", json=body, headers=headers)
    assert sent.status_code == 200
    assert json.loads(await payload(app, id_)) == {"to": "cem", "api_key": "k-1"}
    await client.close()
    await board.close()


@pytest.mark.spec("WEBACT-12")
async def test_only_waiting_and_dead_jobs_have_the_forms(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    [running] = await claim(app)
    assert (await client.get(f"/jobs/{id_}/edit")).status_code == 409
    assert (await client.get(f"/jobs/{id_}/move")).status_code == 409
    await end(app, [running])
    form = await client.get(f"/jobs/{id_}/edit")
    assert 'name="at"' not in form.text  # a dead job has no time
    assert (await client.get(f"/jobs/{id_}/move")).status_code == 409


@pytest.mark.spec("WEBACT-13")
async def test_jobs_are_moved_to_another_queue_by_a_form(app: Stoker, client: Client) -> None:
    made = [await enqueue(app) for _ in range(2)]
    await enqueue(app, queue="bulk")
    form = await client.get(f"/jobs/{made[0]}/move")
    assert '<option value="bulk">' in form.text
    assert '<option value="default">' not in form.text
    page = await client.get("/jobs")
    assert 'value="move"' in page.text
    preview = await client.post("/operations/new", [("do", "move"), *(("id", one) for one in made)])
    assert "Move 2 jobs?" in text(preview)
    assert 'name="queue"' in preview.text
    chosen = [("do", "move"), *(("id", one) for one in made)]
    for refused in (
        await client.post("/operations", [*chosen, ("queue", "bullk")]),
        await client.post(f"/jobs/{made[0]}/move", {"queue": "bullk"}),
    ):
        assert (refused.status_code, "Did you mean bulk?" in text(refused)) == (404, True)
    told(await client.post("/operations", [*chosen, ("queue", "bulk")]))
    assert {(await app.handle(one).refresh()).queue for one in made} == {"bulk"}
    told(await client.post("/operations", [*chosen, ("queue", "bullk"), ("create", "yes")]))
    assert {(await app.handle(one).refresh()).queue for one in made} == {"bullk"}
    told(await client.post("/operations", [*chosen, ("queue", "bulk")]))
    by_filter = await client.get("/operations/new", params={"do": "move", "q": "queue:bulk"})
    assert "Move 3 jobs?" in text(by_filter)


@pytest.mark.spec("WEBACT-13")
async def test_a_visitor_of_some_queues_moves_nothing_into_another(app: Stoker) -> None:
    id_ = await enqueue(app)
    board = dashboard(app, auth=lambda _: Identity("ci", "operate", frozenset({"default"})), limits=Limits(seconds=30))
    client = Client(board)
    assert (await client.post(f"/jobs/{id_}/move", {"queue": "bulk"})).status_code == 403
    assert (await client.post("/operations", {"do": "move", "queue": "bulk", "id": id_})).status_code == 403
    assert (await app.handle(id_).refresh()).queue == "default"
    await client.close()
    await board.close()


@pytest.mark.spec("WEBACT-14")
async def test_a_schedule_is_made_and_edited_by_a_form_that_shows_its_fires(app: Stoker, client: Client) -> None:
    assert "Give an expression" in text(await client.get("/new-schedule"))
    fires = await client.get("/new-schedule/fires", params={"cron": "0 9 * * mon-fri", "tz": "Europe/Paris"})
    assert fires.text.count("09:00:00 Europe/Paris") == 5
    assert "At 9:00 on weekdays" in text(fires)
    assert "Bad minute" in text(await client.get("/new-schedule/fires", params={"cron": "61 * * * *"}))
    fields = {
        "name": "nightly",
        "kind": "send",
        "cron": "0 3 * * *",
        "tz": "UTC",
        "payload": '{"to": "ann"}',
        "overlap": "skip",
    }
    tried = await client.post("/new-schedule", {**fields, "preview": "1"})
    assert tried.status_code == 200
    assert tried.text.count("03:00:00 UTC") == 5
    assert await app.schedules() == []
    stored = await client.post("/new-schedule", fields)
    assert stored.headers["location"] == "/schedules/nightly"
    made = await app.schedule_handle("nightly").info()
    assert (made.cron, made.overlap, made.payload) == ("0 3 * * *", "skip", b'{"to": "ann"}')
    for wrong, words in (
        ({}, "is the name of another schedule"),
        ({"name": "other", "cron": "never"}, "never"),
        ({"name": "other", "kind": "unknown"}, "unknown"),
        ({"name": "other", "payload": "["}, "payload: is not JSON"),
        ({"name": "other", "grace": "much"}, "must be a number"),
    ):
        refused = await client.post("/new-schedule", fields | wrong)
        assert refused.status_code == 422, wrong
        assert words in text(refused), wrong
        assert "Nothing was stored." in text(refused)
    edited = told(
        await client.post(
            "/schedules/nightly/edit", {"cron": "@every 90s", "misfire": "skip", "grace": "5", "jitter": "2"}
        )
    )
    info = await app.schedule_handle("nightly").info()
    assert (info.cron, info.misfire, info.overlap) == ("@every 90s", "skip", "skip")
    await undo(client, edited)
    assert (await app.schedule_handle("nightly").info()).cron == "0 3 * * *"
    preview = await client.post("/schedules/nightly/edit", {"cron": "0 4 * * *", "tz": "UTC", "preview": "1"})
    assert preview.text.count("04:00:00 UTC") == 5
    assert (await app.schedule_handle("nightly").info()).cron == "0 3 * * *"


@pytest.mark.spec("WEBACT-15")
async def test_a_preview_counts_jobs_whose_key_is_taken(app: Stoker, client: Client) -> None:
    dead = [await enqueue(app, unique=Unique(key)) for key in ("a", "b")]
    await enqueue(app)
    await end(app, await claim(app))
    await enqueue(app, unique=Unique("a"))
    preview = text(await client.get("/operations/new", params={"do": "requeue", "q": "is:dead"}))
    assert "Requeue 2 of 3 jobs?" in preview
    assert "Key is taken left as they are: another job has their unique key 1" in preview
    chosen = text(await client.post("/operations/new", [("do", "requeue"), *(("id", one) for one in dead)]))
    assert "Requeue 1 of 2 jobs?" in chosen
    flash = told(await client.post("/operations", [("do", "requeue"), *(("id", one) for one in dead)]))
    assert str(flash["text"]).replace("\u00a0", " ") == "Requeued 1 job; 1 left: their key is taken."
    discard = text(await client.get("/operations/new", params={"do": "discard", "q": "is:dead"}))
    assert "Key is taken" not in discard


@pytest.mark.spec("WEBACT-16")
async def test_the_number_of_a_limit_is_set_and_given_back(app: Stoker, client: Client) -> None:
    for _ in range(3):
        await enqueue(app, limit=Limit(1, "@tenant", name="customer"), tenant="c1")
    await claim(app)
    flash = told(await client.post("/limits/default/set", {"limit": "customer", "n": "2"}))
    engine = await app.engine()
    [queue] = await engine.control.queues()
    assert queue.limits == (("customer", 2),)
    assert "set here" in text(await client.get("/limits?queue=default"))
    await undo(client, flash)
    [queue] = await engine.control.queues()
    assert queue.limits == ()
    assert (await client.post("/limits/default/set", {"limit": "customer", "n": "none"})).status_code == 422


@pytest.mark.spec("WEBACT-17")
async def test_the_store_is_checked_up_again_at_most_once_a_minute(
    app: Stoker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    client.board.check_ups = CheckUps(clock=lambda: now)
    calls = counted(await client.board.store.engine(), monkeypatch)
    await asyncio.gather(client.get("/health"), client.get("/health"), client.get("/api/v1/health"))
    assert calls["diagnose"] == 1
    now = 20.0
    said = "This check-up is 20 s old, and at most one is made in a minute. Ask again in 40 s."
    assert told(await client.post("/health/check"))["text"] == said
    assert said in text(await client.get("/health"))
    header = {"x-csrf-token": await client.csrf()}
    early = (await client.http.post("/api/v1/health/check", headers=header)).json()
    assert (calls["diagnose"], early["again_in"]) == (1, 40.0)
    now = 61.0
    assert told(await client.post("/health/check"))["text"] == "The store was checked again."
    assert calls["diagnose"] == 2
    assert (await client.post("/health/check", csrf=False)).status_code == 403
    now = 130.0
    late = (await client.http.post("/api/v1/health/check", headers=header)).json()
    assert (calls["diagnose"], late["again_in"]) == (3, 60.0)
    assert late["at"] >= early["at"]


@pytest.mark.spec("EXPLAIN-08")
async def test_what_is_said_after_an_action_knows_that_the_queue_is_paused(app: Stoker, client: Client) -> None:
    admin = Admin(app)
    await beat(app)
    dead = [await enqueue(app) for _ in range(3)]
    await end(app, await claim(app))
    await admin.queues.pause("default", create=True)
    await admin.queues.pause("other", create=True)
    still = "It still waits: queue 'default' is paused until it is resumed."
    assert told(await client.post(f"/jobs/{dead[0]}/requeue"))["text"] == f"Requeued send. {still}"
    assert still in str(told(await client.post(f"/jobs/{dead[1]}/retry"))["text"])
    preview = text(await client.get("/operations/new", params={"do": "requeue", "q": "is:dead"}))
    paused = "Queue default is paused: its jobs wait until it is resumed."
    assert paused in preview
    assert "Queue other" not in preview, "none of these jobs is in it"
    assert paused in text(await client.get("/operations/new", params={"do": "requeue", "q": "is:dead error:sku"}))
    chosen = told(await client.post("/operations", [("do", "requeue"), ("id", dead[2])]))
    assert chosen["text"] == f"Requeued 1 job. {paused}"
    await admin.queues.resume("default")
    await client.get("/jobs")  # shows what was said
    assert "is paused" not in text(await client.get("/operations/new", params={"do": "run-now", "q": "is:pending"}))


@pytest.mark.spec("ADMIN-51")
@pytest.mark.parametrize("skin", ["page", "call"])
async def test_an_action_on_one_job_reads_it_once_and_makes_one_noun(
    app: Stoker, client: Client, monkeypatch: pytest.MonkeyPatch, skin: str
) -> None:
    id_ = await enqueue(app)
    await end(app, await claim(app))
    made: list[Operators] = []
    admin_for = client.board.admin_for

    def noted(visit: RequestContext) -> Operators:
        made.append(admin_for(visit))
        return made[-1]

    monkeypatch.setattr(client.board, "admin_for", noted)
    token = {"x-csrf-token": await client.csrf()}
    calls = counted(await client.board.store.engine(), monkeypatch)
    made.clear()
    if skin == "page":
        assert (await client.post(f"/jobs/{id_}/discard")).status_code == 303
    else:
        answer = await client.http.post(f"/api/v1/jobs/{id_}/discard", json={}, headers=token)
        assert answer.json()["changed"] == 1
    assert calls["get"] == calls["alter"] == 1
    assert [vars(one).keys() & Operators.__annotations__.keys() for one in made] == [{"app", "jobs"}]
    assert await status(app, id_) is Status.DISCARDED


@pytest.mark.spec("ADMIN-51")
async def test_what_is_said_of_one_job_reads_it_once(
    app: Stoker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = await enqueue(app, payload={"n": 1})
    token = {"x-csrf-token": await client.csrf()}
    calls = counted(await client.board.store.engine(), monkeypatch)

    async def reads(method: str, path: str, given: dict[str, str] | None = None) -> int:
        calls.clear()
        if path.startswith("/api"):
            answer = await client.http.request(method, path, json=given, headers=token)
        else:
            answer = await (client.get(path) if method == "GET" else client.post(path, given or {}))
        assert answer.status_code in {200, 303, 422}, (path, answer.text)
        return calls["get"]

    for path in (f"/jobs/{id_}", f"/api/v1/jobs/{id_}/explain", f"/api/v1/jobs/{id_}/events", f"/api/v1/jobs/{id_}"):
        assert await reads("GET", path) == 1, path
    assert await reads("POST", f"/jobs/{id_}/reveal", {"part": "payload"}) == 1
    assert await reads("POST", f"/jobs/{id_}/edit", {"priority": "7"}) == 1
    assert await reads("POST", f"/jobs/{id_}/edit", {"priority": "many"}) == 1  # shows the form again
    assert await reads("PATCH", f"/api/v1/jobs/{id_}", {"payload": {"n": 2}}) == 1  # type: ignore[dict-item]
    client.board.hub.forget()
    told_where = await client.post(f"/jobs/{id_}/reveal", {"part": "payload"})
    page = await client.get(told_where.headers["location"].partition("#")[0])
    assert "&#34;n&#34;: 2" in page.text


@pytest.mark.spec("ADMIN-50")
async def test_the_role_of_an_action_holds_in_every_skin(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    only_admins = structs.replace(ACTIONS["delete"], role="admin")
    for table in (ACTIONS, MANY):
        monkeypatch.setitem(table, "delete", only_admins)
    id_ = await enqueue(app)
    cases: list[tuple[Role, int, int]] = [("operate", 0, 403), ("admin", 1, 200)]
    for role, offered, status_ in cases:
        identity = Identity("ann", role)
        board = dashboard(app, auth=lambda _, identity=identity: identity, limits=Limits(seconds=30))
        client = Client(board)
        headers = {"x-csrf-token": await client.csrf()}
        assert (await client.get(f"/jobs/{id_}")).text.count(f'action="/jobs/{id_}/delete"') == offered
        assert (await client.get("/jobs")).text.count('name="do" value="delete"') == offered
        body: dict[str, object] = {"action": "delete", "ids": [await enqueue(app)]}
        assert (await client.http.post("/api/v1/jobs/bulk", json=body, headers=headers)).status_code == status_
        counted_ = {"do": "delete", "q": "kind:none", "of": "0", "count": "0"}
        answer = await client.post("/operations", counted_ | {"id": await enqueue(app)})
        assert answer.status_code == (303 if offered else 403), answer.text
        begun = await client.post("/operations", counted_ | {"q": "kind:send is:dead"})
        assert begun.status_code == (303 if offered else 403), begun.text
        await client.close()
        await board.close()


@pytest.mark.spec("ADMIN-50")
async def test_a_question_whose_yes_cannot_be_undone_is_red(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    await claim(app)
    for verb, red in (("cancel", False), ("force-cancel", True), ("delete", True)):
        page = await client.post(f"/jobs/{id_}/{verb}")
        assert (page.status_code, "solid-danger" in page.text) == (200, red), verb
    assert await status(app, id_) is Status.RUNNING


@pytest.mark.spec("NEED-22")
async def test_a_finding_is_acknowledged_on_a_page_and_withdrawn(app: Stoker, client: Client) -> None:
    await enqueue(app, queue="bulk")
    await beat(app)
    page = await client.get("/health")
    assert "One thing needs you" in text(page)
    assert "Acknowledge…" in text(page)
    done = told(
        await client.post("/findings/acknowledge", {"finding": "no worker: bulk", "reason": "a move", "hours": "2"})
    )
    assert done["text"] == "Acknowledged: no worker: bulk."
    for path in ("/health", "/"):
        shown = text(await client.get(path))
        assert "Everything keeps up" in shown
        assert re.search(r"Acknowledged by .* until \d\d:\d\d UTC: a move\.", shown)
        assert "Withdraw" in shown
    await undo(client, done)
    assert "One thing needs you" in text(await client.get("/health"))
    for wrong in ({"reason": ""}, {"reason": "x", "hours": "25"}):
        refused = await client.post("/findings/acknowledge", {"finding": "no worker: bulk", **wrong})
        assert refused.status_code == 422


@pytest.mark.spec("ORDER-08", "ORDER-03")
async def test_a_worker_is_told_from_its_page(app: Stoker, client: Client) -> None:
    await beat(app)
    engine = await app.engine()
    page = (await client.get("/workers/w")).text
    assert all(f'action="/workers/w/{verb}"' in page for verb in ("quiet", "stop", "stack"))
    assert 'action="/workers/w/resume"' not in page
    asked = text(await client.post("/workers/w/stop"))
    assert "Stop this worker?" in asked
    assert "The audit log keeps it." in asked
    assert await documents.orders(engine) == []
    done = told(await client.post("/workers/w/quiet", {"sure": "yes", "reason": "bad disk"}))
    assert done["text"] == "Told w to claim no more jobs."
    [given] = await documents.orders(engine)
    assert given.work == "quiet"
    assert "Quieted worker w “bad disk”" in text(await client.get("/audit"))
    stand = Stand(job=str(uuid.uuid4()), kind="send", place="thread stoker-handler-1", stack="password='hunter2'")
    report = StackReport(worker="w", asked=2**62, at=await engine.now(), stands=(stand,))
    await engine.documents.swap("stacks", "w", None, msgspec.json.encode(report))
    done = told(await client.post("/workers/w/stack", {"sure": "yes"}))
    assert done["text"] == "w told where its handlers stand."
    shown = text(await client.get("/workers/w"))
    assert "Where its handlers stood" in shown
    assert "on thread stoker-handler-1" in shown
    assert "password=[hidden]" in shown
    await beat(app, state="quiet")
    page = (await client.get("/workers/w")).text
    assert 'action="/workers/w/resume"' in page
    assert "It takes no more jobs until it is resumed." in page
    await client.post("/workers/w/resume", {"sure": "yes"})  # the list is read anew
    assert "takes no more jobs until it is resumed" in text(await client.get("/workers"))
    assert (await client.post("/workers/gone/stop", {"sure": "yes"})).status_code == 404

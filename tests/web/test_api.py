"""The REST API: what the pages do, for programs; problem details for what goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.jobs import as_object
from stoker.engines.sqlite import SqliteEngine
from stoker.model import ids
from stoker.model.job import FIRST, Status
from stoker.model.throttle import Rate
from stoker.outbox import Outbox
from stoker.testing.clock import VirtualClock
from stoker.web import Limits, dashboard
from tests.harness.apps import PATIENCE
from tests.web.conftest import Client, claim, end, enqueue

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres", "redis")]
UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"


async def send(client: Client, method: str, path: str, body: Any = None, **headers: str) -> Any:
    token = {"x-csrf-token": await client.csrf(), **headers}
    return await client.http.request(method, f"/api/v1{path}", json=body, headers=token)


@pytest.mark.spec("REST-01")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_jobs_are_enqueued_found_read_and_changed(app: Stoker, client: Client) -> None:
    made = await send(
        client, "POST", "/jobs", {"kind": "send", "payload": {"to": "ada"}, "queue": "mail", "id": UNKNOWN}
    )
    assert (made.status_code, made.json()) == (201, {"id": UNKNOWN, "stored": "inserted"})
    again = await send(client, "POST", "/jobs", {"kind": "send", "queue": "mail", "id": UNKNOWN})
    assert again.json() == {"id": UNKNOWN, "stored": "existing"}
    foreseen = ids.text(ids.occurrence("nightly", 5))
    refused = await send(client, "POST", "/jobs", {"kind": "send", "queue": "mail", "id": foreseen})
    assert (refused.status_code, refused.json()["field"]) == (422, "id")
    assert "version 8" in refused.json()["detail"]
    found = (await client.get("/api/v1/jobs?q=queue:mail")).json()
    assert [job["id"] for job in found["jobs"]] == [UNKNOWN]
    one = (await client.get(f"/api/v1/jobs/{UNKNOWN}")).json()
    assert (one["status"], one["view"], one["queue"], one["payload_bytes"]) == ("pending", "ready", "mail", 12)
    assert "payload" not in one
    shown = (await send(client, "POST", f"/jobs/{UNKNOWN}/reveal", {})).json()
    assert shown == {"part": "payload", "text": '{"to":"ada"}'}
    why = (await client.get(f"/api/v1/jobs/{UNKNOWN}/explain")).json()
    assert why["gates"][0]["reason"] == "no_worker"
    refused = await send(client, "POST", f"/jobs/{UNKNOWN}/move", {"queue": "bulk"})
    assert (refused.status_code, "queue 'bulk' is not known" in refused.json()["detail"]) == (404, True)
    moved = await send(client, "POST", f"/jobs/{UNKNOWN}/move", {"queue": "bulk", "create": True})
    assert moved.json()["changed"] == 1
    await send(client, "POST", f"/jobs/{UNKNOWN}/prioritize", {"priority": -5})
    assert (await client.get(f"/api/v1/jobs/{UNKNOWN}")).json()["priority"] == -5
    assert (await send(client, "POST", f"/jobs/{UNKNOWN}/cancel", {"reason": "no need"})).json()["changed"] == 1
    wrong = await send(client, "POST", f"/jobs/{UNKNOWN}/discard")
    assert (wrong.status_code, wrong.json()["job_status"], wrong.json()["action"]) == (409, "canceled", "discard")
    await send(client, "POST", f"/jobs/{UNKNOWN}/requeue")
    await end(app, await claim(app, "bulk"))
    copy = (await send(client, "POST", f"/jobs/{UNKNOWN}/retry")).json()["created"][0]
    assert (await client.get(f"/api/v1/jobs/{copy}")).json()["view"] == "ready"
    assert (await send(client, "DELETE", f"/jobs/{copy}")).json()["changed"] == 1
    assert (await client.get(f"/api/v1/jobs/{copy}")).status_code == 404


@pytest.mark.spec("FAULT-44")
@pytest.mark.parametrize("engine_name", [pytest.param("sqlite", marks=pytest.mark.engine("sqlite"))])
async def test_a_job_that_cannot_be_read_is_shown_as_such(app: Stoker, client: Client) -> None:
    sound, bad = await enqueue(app), await enqueue(app)
    engine = await app.engine()
    assert isinstance(engine, SqliteEngine)
    with closing(sqlite3.connect(engine.path)) as connection, connection:
        connection.execute("DELETE FROM stoker_ready WHERE id = ?", (ids.parse(bad),))
    found = {job["id"]: job["unreadable"] for job in (await client.get("/api/v1/jobs")).json()["jobs"]}
    assert found == {sound: False, bad: True}
    one = (await client.get(f"/api/v1/jobs/{bad}")).json()
    assert (one["unreadable"], one["status"]) == (True, "dead")
    assert "neither" in one["metadata"]["stoker.corrupt"]
    [shown] = (await Admin(app).jobs.find(f"id:{bad}")).jobs
    assert json.loads(json.dumps(as_object(shown)))["unreadable"] is True


@pytest.mark.spec("FILTER-12")
async def test_an_entry_of_the_metadata_with_spaces_is_found(app: Stoker, client: Client) -> None:
    """By REST and on the page."""
    job = await enqueue(app)
    wanted = await app.enqueue(app.draft("send", metadata={"customer": "4 2", "a=b": "5"}))
    for q in ('meta:customer="4 2"', 'meta:"a=b"=5'):
        found = (await client.get("/api/v1/jobs", params={"q": q})).json()
        assert [one["id"] for one in found["jobs"]] == [wanted.id], q
        page = await client.http.get("/jobs", params={"q": q})
        assert (wanted.id in page.text, job in page.text) == (True, False), q


@pytest.mark.spec("REST-02")
async def test_a_place_that_no_page_ended_at_is_refused_by_the_name_it_was_given(app: Stoker, client: Client) -> None:
    orders: Outbox[dict[str, int]] = Outbox(app, stream="orders")
    await orders.append("ada", {"order": 7})
    for path in ("jobs", "groups", "streams/orders/letters"):
        refused = await client.get(f"/api/v1/{path}?after=zzz")
        assert (refused.status_code, refused.json()["field"]) == (422, "after"), path
        assert re.fullmatch(r"after: .* page before; got 'zzz'\.", refused.json()["detail"]), path
    for path in ("jobs", "groups"):
        assert "after: must be the one of the page before" in (await client.get(f"/{path}?after=zzz")).text
    limit = (await client.get("/api/v1/jobs?limit=0")).json()
    assert "stored" not in limit["detail"]


@pytest.mark.spec("REST-02")
async def test_lists_go_on_behind_their_cursor(app: Stoker, client: Client) -> None:
    made = [await enqueue(app) for _ in range(5)]
    first = (await client.get("/api/v1/jobs?limit=3")).json()
    rest = (await client.get(f"/api/v1/jobs?limit=3&after={first['after']}")).json()
    assert [job["id"] for job in first["jobs"] + rest["jobs"]] == made[::-1]
    assert rest["after"] is None
    assert (first["total"], rest["complete"]) == (None, True)
    counted = (await client.get("/api/v1/jobs?limit=3&total=true")).json()
    assert (counted["total"], counted["complete"]) == (5, True)


@pytest.mark.spec("REST-04")
async def test_tokens_need_no_form_token_and_cookies_do(app: Stoker) -> None:
    board = dashboard(app, limits=Limits(seconds=30))
    client = Client(board)
    app.declare("send", queue="mail")
    secret = await Admin(app).tokens.create("ci", "operate", queues=["mail"])
    none = await client.http.post("/api/v1/jobs", json={"kind": "send"})
    assert (none.status_code, none.headers["www-authenticate"]) == (401, "Bearer")
    bearer = {"authorization": f"Bearer {secret}"}
    good = await client.http.post("/api/v1/jobs", json={"kind": "send", "queue": "mail"}, headers=bearer)
    assert good.status_code == 201
    other = await client.http.post("/api/v1/jobs", json={"kind": "send", "queue": "bulk"}, headers=bearer)
    assert (other.status_code, other.json()["code"]) == (403, "queue")
    await client.get("/sign-in")
    await client.post("/sign-in", {"token": secret})
    cookie = await client.http.post("/api/v1/jobs", json={"kind": "send", "queue": "mail"})
    assert (cookie.status_code, cookie.json()["code"]) == (403, "csrf")
    gone = await client.http.delete(f"/api/v1/jobs/{good.json()['id']}")
    assert (gone.status_code, gone.json()["code"]) == (403, "csrf")
    await client.close()
    await board.close()


@pytest.mark.spec("REST-06")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_an_operation_acts_on_what_its_preview_counted(app: Stoker, client: Client, clock: VirtualClock) -> None:
    """Not on jobs that died since; more than were counted at that moment are refused with a new count."""
    made = [await enqueue(app) for _ in range(3)]
    await end(app, await claim(app))
    clock.advance(1)
    seen = (await client.get("/api/v1/preview?q=is:dead")).json()
    assert (seen["count"], seen["complete"]) == (3, True)
    body = {"action": "requeue", "q": "is:dead", "count": 3, "counted_at": seen["counted_at"]}
    assert (await send(client, "POST", "/operations", {**body, "count": 0})).status_code == 422
    for missing in ("count", "counted_at"):
        less = {name: value for name, value in body.items() if name != missing}
        assert (await send(client, "POST", "/operations", less)).status_code == 422, missing
    for wrong in ("2030-01-01T00:00:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "soon"):
        assert (await send(client, "POST", "/operations", {**body, "counted_at": wrong})).status_code == 422, wrong
    clock.advance(1)
    later = [await enqueue(app) for _ in range(2)]
    await end(app, await claim(app))
    few = await send(client, "POST", "/operations", {**body, "count": 2})
    assert (few.status_code, few.json()["code"], few.json()["count"]) == (409, "count", 5)
    assert few.json()["counted_at"] > seen["counted_at"]
    begun = await send(client, "POST", "/operations", body)
    assert (begun.status_code, begun.json()["left"], begun.json()["complete"]) == (202, 3, True)
    state = await done(client, begun.json())
    assert (state["state"], state["changed"], state["later"]) == ("done", 3, 2)
    assert state["counted_at"] == seen["counted_at"]
    assert [(await app.handle(id_).refresh()).status for id_ in made] == [Status.PENDING] * 3
    assert [(await app.handle(id_).refresh()).status for id_ in later] == [Status.DEAD] * 2
    assert [one["id"] for one in (await client.get("/api/v1/operations")).json()["operations"]] == [state["id"]]


@pytest.mark.spec("ADMIN-46")
async def test_one_job_is_run_first_by_a_call(app: Stoker, client: Client) -> None:
    job = await enqueue(app, delay=60)
    assert (await send(client, "POST", f"/jobs/{job}/run-now", {"first": "yes"})).status_code == 422
    assert (await send(client, "POST", f"/jobs/{job}/run-now", {"first": True})).json()["changed"] == 1
    assert (await client.get(f"/api/v1/jobs/{job}")).json()["priority"] == FIRST
    assert (
        await send(client, "POST", "/jobs/bulk", {"action": "run-now", "ids": [job], "first": True})
    ).status_code == 422


@pytest.mark.spec("REST-06")
async def test_fewer_than_were_counted_are_no_error_and_the_answer_says_how_many(app: Stoker, client: Client) -> None:
    made = [await enqueue(app) for _ in range(3)]
    await end(app, await claim(app))
    seen = (await client.get("/api/v1/preview?q=is:dead")).json()
    assert (await send(client, "POST", f"/jobs/{made[0]}/discard")).status_code == 200
    body = {"action": "requeue", "q": "is:dead", "count": 3, "counted_at": seen["counted_at"]}
    begun = await send(client, "POST", "/operations", body)
    assert (begun.status_code, begun.json()["left"]) == (202, 2)
    assert (await done(client, begun.json()))["changed"] == 2


async def done(client: Client, state: dict[str, Any]) -> dict[str, Any]:
    """The operation, when it has ended."""
    async with asyncio.timeout(PATIENCE):
        while state["state"] == "running":
            await asyncio.sleep(0.01)
            state = (await client.get(f"/api/v1/operations/{state['id']}")).json()
    return state


@pytest.mark.spec("REST-07")
async def test_queues_schedules_and_limits_are_read_and_steered(app: Stoker, client: Client) -> None:
    await enqueue(app)
    engine = await app.engine()
    await engine.control.tune("stripe", Rate(100, per=60))
    await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
    paused = (await send(client, "POST", "/queues/default/pause", {"reason": "bad file", "seconds": 60})).json()
    assert (paused["paused"], paused["paused_why"], paused["paused_by"]) == (True, "bad file", "ann")
    assert (await send(client, "POST", "/queues/default/resume")).json()["paused"] is False
    tuned = (await send(client, "PATCH", "/queues/default", {"workers": 7, "rate": {"n": 5, "per": 2}})).json()
    assert (tuned["limit"], tuned["rate"], tuned["curve"]) == (7, {"n": 5, "per": 2.0, "burst": 5}, None)
    curved = (await send(client, "PATCH", "/queues/default", {"curve": {"base": 5, "max": 600}})).json()
    assert (curved["limit"], curved["curve"]) == (7, {"base": 5.0, "max": 600.0})
    assert (await send(client, "PATCH", "/queues/default", {"curve": None})).json()["curve"] is None
    cleared = (await send(client, "PATCH", "/queues/default", {"workers": None})).json()
    assert (cleared["limit"], cleared["rate"]) == (None, {"n": 5, "per": 2.0, "burst": 5})
    assert [one["name"] for one in (await client.get("/api/v1/queues")).json()["queues"]] == ["default"]
    assert (await client.get("/api/v1/schedules")).json()["schedules"][0]["words"] == "At 3:00"
    assert (await send(client, "POST", "/schedules/nightly/pause")).json()["enabled"] is False
    assert (await send(client, "POST", "/schedules/nightly/resume")).json()["enabled"] is True
    job = (await send(client, "POST", "/schedules/nightly/run-now")).json()["id"]
    assert (await client.get(f"/api/v1/jobs/{job}")).json()["kind"] == "send"
    await send(client, "POST", "/limits/stripe/drain")
    assert (await client.get("/api/v1/limits")).json()["budgets"][0]["tokens"] == 0
    for path in ("/overview", "/points", "/kinds", "/workers", "/openapi.json"):
        assert (await client.get(f"/api/v1{path}")).status_code == 200


@pytest.mark.spec("REST-08")
async def test_no_call_reaches_beyond_the_store(client: Client) -> None:
    document = (await client.get("/api/v1/openapi.json")).json()
    words = " ".join(document["paths"]).lower()
    assert not any(word in words for word in ("shell", "eval", "shutdown", "restart", "exec", "kill"))
    assert document["openapi"] == "3.1.0"

"""What pages do, the API does too: editing, lists of jobs, operations, schedules, limits, streams, tokens."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stoker import Limit
from stoker.admin import documents
from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model import ids
from stoker.model.budgets import Rates
from stoker.model.job import Status
from stoker.model.orders import StackReport, Stand
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest
from stoker.model.outbox.delivery import Delivered, Rejection, conclude_batch
from stoker.model.outbox.stream import Entry, Stream
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, moment
from stoker.testing.clock import VirtualClock
from stoker.web import Limits, dashboard
from tests.web.conftest import Client, beat, claim, end, enqueue, watched
from tests.web.test_api import ENGINES, UNKNOWN, send

WITH_STREAMS = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres")]


async def audited(client: Client) -> list[tuple[str, str]]:
    """What the audit log says that this client did; the clock stands still, so the order says nothing."""
    entries = (await client.get("/api/v1/audit?who=ann")).json()["entries"]
    assert {one["way"] for one in entries} <= {"token"}
    return [(one["action"], one["target"]) for one in entries]


@pytest.mark.spec("REST-11")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_job_is_edited_restored_and_told(app: Stoker, client: Client, clock: VirtualClock) -> None:
    id_ = await enqueue(app, payload={"n": 1})
    later = moment(clock.now() + HOUR)
    body = {"payload": {"n": 12345678901234567890123}, "priority": 7, "at": later.isoformat(), "attempts": 9}
    assert (await send(client, "PATCH", f"/jobs/{id_}", body)).json()["changed"] == 1
    job = (await client.get(f"/api/v1/jobs/{id_}")).json()
    assert (job["priority"], job["view"], job["budget"]) == (7, "scheduled", 9)
    shown = (await send(client, "POST", f"/jobs/{id_}/reveal", {})).json()["text"]
    assert "12345678901234567890123" in shown
    assert (await send(client, "PATCH", f"/jobs/{id_}", {})).status_code == 422
    await send(client, "POST", f"/jobs/{id_}/cancel", {})
    assert (await send(client, "POST", f"/jobs/{id_}/restore")).json() == {"done": True}
    assert (await client.get(f"/api/v1/jobs/{id_}")).json()["view"] == "scheduled"
    assert (await send(client, "POST", f"/jobs/{UNKNOWN}/restore")).status_code == 404
    assert isinstance((await client.get(f"/api/v1/jobs/{id_}/events")).json()["events"], list)
    done = [action for action, _ in await audited(client)]
    assert sorted(done) == ["jobs.cancel", "jobs.edit", "jobs.restore", "jobs.reveal"]


@pytest.mark.spec("REST-11")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_list_of_jobs_is_changed_at_once(app: Stoker, client: Client) -> None:
    made = [await enqueue(app) for _ in range(3)]
    body = {"action": "move", "ids": [*made, UNKNOWN], "queue": "bulk", "create": True}
    assert (await send(client, "POST", "/jobs/bulk", body)).json() | {"created": []} == {
        "changed": 3,
        "cancel_requested": 0,
        "missing": 1,
        "blocked": 0,
        "refused": {},
        "created": [],
    }
    for priority in (3, 0):
        await send(client, "POST", "/jobs/bulk", {"action": "prioritize", "ids": made, "priority": priority})
        found = (await client.get("/api/v1/jobs?q=queue:bulk")).json()["jobs"]
        assert {job["priority"] for job in found} == {priority}
    refused = (await send(client, "POST", "/jobs/bulk", {"action": "discard", "ids": made})).json()["refused"]
    assert refused == {"pending": 3}
    canceled = await send(client, "POST", "/jobs/bulk", {"action": "cancel", "ids": made, "reason": "no need"})
    assert canceled.json()["changed"] == 3


@pytest.mark.spec("REST-11")
async def test_operations_move_stop_and_go_on(app: Stoker, client: Client) -> None:
    for _ in range(3):
        await enqueue(app)
    seen = (await client.get("/api/v1/preview?q=is:ready queue:default")).json()
    body = {"action": "move", "q": "is:ready queue:default", "count": 3, "counted_at": seen["counted_at"]}
    assert (await send(client, "POST", "/operations", body)).status_code == 422
    assert (await send(client, "POST", "/operations", {**body, "queue": "bulk"})).status_code == 404
    begun = (await send(client, "POST", "/operations", {**body, "queue": "bulk", "create": True})).json()
    while begun["state"] == "running":
        begun = (await client.get(f"/api/v1/operations/{begun['id']}")).json()
        await asyncio.sleep(0)
    assert (begun["state"], begun["changed"]) == ("done", 3)
    assert (await send(client, "POST", f"/operations/{begun['id']}/stop")).json()["state"] == "done"
    again = await send(client, "POST", f"/operations/{begun['id']}/resume")
    assert (again.status_code, again.json()["code"]) == (409, "wrong_state")


@pytest.mark.spec("REST-11")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_schedules_are_made_edited_and_dropped(app: Stoker, client: Client) -> None:
    body = {"name": "nightly", "kind": "send", "payload": {"to": "all"}, "queue": "mail", "cron": "0 3 * * *"}
    made = await send(client, "POST", "/schedules", body)
    assert (made.status_code, made.json()["words"], made.json()["queue"]) == (201, "At 3:00", "mail")
    assert (await send(client, "POST", "/schedules", body)).status_code == 422
    edited = (await send(client, "PATCH", "/schedules/nightly", {"cron": "0 4 * * *", "tz": "Europe/Berlin"})).json()
    assert (edited["cron"], edited["tz"]) == ("0 4 * * *", "Europe/Berlin")
    every = (await send(client, "PATCH", "/schedules/nightly", {"every": 90})).json()
    assert every["cron"] == "@every 90s"
    assert (await send(client, "PATCH", "/schedules/nightly", {"every": 90, "cron": "0 4 * * *"})).status_code == 422
    assert len((await client.get("/api/v1/schedules/nightly/next?n=3")).json()["at"]) == 3
    assert (await send(client, "POST", "/schedules/nightly/reset")).status_code == 409  # no code declares it
    assert (await send(client, "DELETE", "/schedules/nightly")).json() == {"done": True}
    assert (await client.get("/api/v1/schedules/nightly")).status_code == 404
    done = [action for action, _ in await audited(client)]
    assert sorted(done) == ["schedules.drop", *["schedules.put"] * 3]


@pytest.mark.spec("REST-11")
async def test_a_declared_schedule_follows_the_code_again(app: Stoker, client: Client) -> None:
    @app.cron("0 3 * * *")
    async def nightly() -> None: ...

    [name] = app.declared_schedules
    await (await app.engine()).schedules.put(app.declared_schedules[name].schedule())
    assert (await send(client, "PATCH", f"/schedules/{name}", {"cron": "0 4 * * *"})).json()["edited"] is True
    reset = (await send(client, "POST", f"/schedules/{name}/reset")).json()
    assert (reset["edited"], reset["cron"]) == (False, "0 3 * * *")


@pytest.mark.spec("ADMIN-39")
async def test_the_jobs_of_a_worker_are_taken_back_by_a_call(app: Stoker, client: Client) -> None:
    await enqueue(app)
    await claim(app)
    taken = await send(client, "POST", "/workers/w/take-back", {"reason": "frozen"})
    assert (taken.status_code, taken.json()) == (200, {"jobs": 1})
    assert ("workers.take_back", "worker w") in await audited(client)
    assert (await send(client, "POST", "/workers/gone/take-back")).status_code == 404


@pytest.mark.spec("ORDER-08", "ORDER-03")
async def test_a_worker_is_told_by_calls(app: Stoker, client: Client) -> None:
    await beat(app)
    engine = await app.engine()
    told = await send(client, "POST", "/workers/w/quiet", {"reason": "bad disk"})
    answer = {"worker": "w", "order": "quiet", "lapses_at": "2030-01-01T00:10:00Z", "note": ""}
    assert (told.status_code, told.json()) == (200, answer)
    assert (await send(client, "POST", "/workers/w/resume")).json()["order"] == "resume"
    assert (await client.get("/api/v1/workers/w/stack")).status_code == 404
    assert (await send(client, "POST", "/workers/w/stack")).status_code == 200
    [given] = await documents.orders(engine)
    stand = Stand(job="j", kind="send", place="the event loop", stack="login(password='hunter2')")
    report = StackReport(worker="w", asked=given.stack_at, at=await engine.now(), stands=(stand,))
    await engine.documents.swap("stacks", "w", None, msgspec.json.encode(report))
    [shown] = (await client.get("/api/v1/workers/w/stack")).json()["stands"]
    assert (shown["job"], shown["stack"]) == ("j", "login(password=[hidden])")
    assert (await send(client, "POST", "/workers/w/stop")).json()["order"] == "stop"
    refused = await send(client, "POST", "/workers/w/quiet")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert (await send(client, "POST", "/workers/gone/stop")).status_code == 404
    done = [action for action, target in await audited(client) if target == "worker w"]
    assert sorted(done) == ["workers.quiet", "workers.resume", "workers.stack", "workers.stop"]


@pytest.mark.spec("REST-11")
async def test_budgets_and_limits_by_key_are_set(app: Stoker, client: Client) -> None:
    unknown = await send(client, "PUT", "/limits/stripe", {"n": 100, "per": 60})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    made = (await send(client, "PUT", "/limits/stripe", {"n": 100, "per": 60, "create": True})).json()
    assert made["rate"] == {"n": 100.0, "per": 60.0, "burst": 100.0}
    assert (made["tokens"], made["next_token"], made["declared"]) == (100.0, 0.0, None)
    await send(client, "POST", "/limits/stripe/drain")
    drained = (await client.get("/api/v1/limits/stripe")).json()
    assert drained["tokens"] == 0
    assert drained["next_token"] > 0
    await (await app.engine()).control.tune("llm", Rates({"a": Rate(5), "b": Rate(9)}, keyed=True))
    assert (await client.get("/api/v1/limits/llm")).status_code == 422
    assert (await client.get("/api/v1/limits/llm?measure=b")).json()["capacity"] == 9
    tuned = await send(client, "PUT", "/limits/llm", {"n": 2_000_000, "per": 3600, "measure": "b"})
    assert (tuned.json()["capacity"], tuned.json()["measure"], tuned.json()["keyed"]) == (2_000_000, "b", True)
    assert (await send(client, "POST", "/limits/llm/drain", {"key": "acme"})).status_code == 200
    assert (await send(client, "POST", "/limits/llm/drain")).status_code == 422
    for asked in ("", "?key=acme"):
        shown = (await client.get(f"/api/v1/limits/llm/keys{asked}")).json()["budgets"]
        assert [(one["key"], one["measure"], round(one["tokens"])) for one in shown][1] == ("acme", "b", 0)
    assert (await client.get("/api/v1/limits/none/keys")).status_code == 404
    assert (await send(client, "PUT", "/queues/mail/limits/account", {"n": 2})).status_code == 404
    await enqueue(app, queue="mail")
    unknown = await send(client, "PUT", "/queues/mail/limits/account", {"n": 2})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    early = await send(client, "PUT", "/queues/mail/limits/account", {"n": 2, "create": True})
    assert early.json() == {"done": True}
    assert (await send(client, "PUT", "/queues/mail/limits/account", {"n": 3})).json() == {"done": True}
    assert (await send(client, "DELETE", "/queues/mail/limits/account")).json() == {"done": True}
    assert (await client.get("/api/v1/queues/mail/keys")).json() == {"keys": [], "after": None}
    for _ in range(2):
        await enqueue(app, queue="mail", limit=Limit(1, "@tenant", name="account"), tenant="acme")
    [plain, held] = await claim(app, "mail")
    [key] = (await client.get("/api/v1/at-limit?queue=mail")).json()["keys"]
    assert (key["limit"], key["key"], key["running"], key["most"]) == ("account", "acme", 1, 1)
    assert key["holders"] == [ids.text(held.id)]
    assert (await client.get("/api/v1/at-limit")).json()["keys"] == [key]
    unknown = await client.get("/api/v1/at-limit?queue=mial")
    assert (unknown.status_code, unknown.json()["keys"]) == (200, [])
    assert "mail" in unknown.json()["hint"]
    await end(app, [plain, held])
    assert (await send(client, "POST", "/queues/mail/reopen")).json()["cooling_until"] is None
    tuned = (await send(client, "PATCH", "/queues/mail", {"fair": True, "keep_done": 60})).json()
    assert tuned["keep_done"] == 60
    actions = [action for action, _ in await audited(client)]
    assert {"limits.tune", "limits.drain", "queues.tune"} <= set(actions), actions


@pytest.mark.spec("REST-11")
@pytest.mark.parametrize("engine_name", WITH_STREAMS)
async def test_consumers_are_steered_and_letters_decided(app: Stoker, client: Client, clock: VirtualClock) -> None:
    engine = outbox_of(await app.engine())
    orders = Stream("orders", 1)
    await engine.register(orders, [Consumer("warehouse")])
    await engine.append(orders, [Entry(bytes([n]) * 16, "customer", 0, b"{}", "Placed") for n in range(4)])
    await (await app.engine()).jobs.renew("w", [], first=True)
    lease = await engine.lease(LeaseRequest("orders", "warehouse", "w", 2))
    assert isinstance(lease, Lease)
    rejected = Delivered(2, (Rejection(1, "odd"), Rejection(2, "password=hunter2")))
    await engine.advance(conclude_batch(lease, rejected, clock.now()))
    [stream] = (await client.get("/api/v1/streams")).json()["streams"]
    assert (stream["name"], stream["messages"], stream["consumers"][0]["waiting"]) == ("orders", 4, 2)
    first = (await client.get("/api/v1/streams/orders/letters?status=pending&limit=1")).json()
    rest = (await client.get(f"/api/v1/streams/orders/letters?limit=1&after={first['after']}")).json()
    letters = first["letters"] + rest["letters"]
    assert {one["status"] for one in letters} == {"pending"}
    assert "hunter2" not in str(letters)
    assert "payload" not in letters[0]
    path = "/streams/orders"
    assert (await send(client, "POST", f"{path}/letters/replay", {"ids": [letters[0]["id"]]})).json() == {"changed": 1}
    assert (await send(client, "POST", f"{path}/letters/discard", {"ids": [letters[1]["id"]]})).json() == {"changed": 1}
    assert (await send(client, "POST", f"{path}/letters/discard", {"ids": []})).status_code == 422
    steered = f"{path}/consumers/warehouse"
    assert (await send(client, "POST", f"{steered}/pause")).json()["paused"] is True
    assert (await send(client, "POST", f"{steered}/resume")).json()["paused"] is False
    assert (await send(client, "POST", f"{steered}/release", {"key": "none"})).status_code == 404
    assert (await send(client, "POST", f"{steered}/seek", {"to": "beginning"})).json()["waiting"] == 4
    assert (await send(client, "POST", f"{steered}/seek", {})).status_code == 422
    assert (await send(client, "DELETE", steered)).json() == {"done": True}
    assert (await send(client, "DELETE", steered)).status_code == 404
    assert (await client.get("/api/v1/streams/none/letters")).status_code == 404
    actions = [action for action, _ in await audited(client)]
    assert len(actions) == 6, actions


@pytest.mark.spec("REST-11")
@pytest.mark.engine("redis")
@pytest.mark.parametrize("engine_name", ["redis"])
async def test_a_store_without_streams_says_so(client: Client) -> None:
    assert (await client.get("/api/v1/streams")).json() == {"streams": [], "offered": False}
    assert (await client.get("/api/v1/streams/orders")).status_code == 404


@pytest.mark.spec("REST-11")
async def test_an_admin_makes_and_revokes_tokens(app: Stoker, client: Client) -> None:
    wanted = {"name": "ci", "role": "operate", "queues": ["mail"], "expires": 60}
    mistyped = await send(client, "POST", "/tokens", wanted)
    assert (mistyped.status_code, mistyped.json()["code"]) == (404, "not_found")
    made = await send(client, "POST", "/tokens", wanted | {"create": True})
    secret = made.json()["secret"]
    assert made.status_code == 201
    [listed] = (await client.get("/api/v1/tokens")).json()["tokens"]
    assert (listed["name"], listed["role"], listed["queues"], listed["revoked"]) == ("ci", "operate", ["mail"], None)
    assert secret not in str(listed)
    board = dashboard(app, limits=Limits(seconds=30))
    watch = watched(board)
    program = Client(board, authorization=f"Bearer {secret}")
    assert (await program.get("/api/v1/jobs")).status_code == 200
    assert (await program.get("/api/v1/tokens")).status_code == 403
    assert (await send(client, "DELETE", "/tokens/ci")).json() == {"done": True}
    watch.seconds += 5
    assert (await program.get("/api/v1/jobs")).status_code == 401
    assert sorted(await audited(client)) == [("tokens.create", "token ci"), ("tokens.revoke", "token ci")]
    await program.close()
    await board.close()


@pytest.mark.spec("REST-11")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_errors_health_groups_and_the_snapshot_are_read(app: Stoker, client: Client) -> None:
    async with app.group() as group:
        await group.add(app.draft("send"), app.draft("send"))
    await end(app, await claim(app), Status.DEAD, "Timeout: after 30 s, password=hunter2")
    found = (await client.get("/api/v1/errors")).json()
    assert [(one["kinds"], one["count"]) for one in found["groups"]] == [(["send"], 2)]
    assert "hunter2" not in str(found)
    for path in ("errors?queue=defaullt", "errors?kind=sendd", "points?queue=defaullt"):
        empty = (await client.get(f"/api/v1/{path}")).json()
        assert "that is known. Did you mean" in empty["hint"], path
        assert not any(empty.get("groups", empty.get("enqueued", [])))
    for path in ("errors?queue=default", "errors", "points?queue=default", "points"):
        assert (await client.get(f"/api/v1/{path}")).json()["hint"] == ""
    read = (await client.get(f"/api/v1/groups/{group.id}")).json()
    assert (read["total"], read["dead"], len(read["members"])) == (2, 2, 2)
    pages = (await client.get("/api/v1/snapshot?per_page=1&failed=2")).json()
    assert (pages["failed"]["page"], pages["failed"]["pages"], len(pages["failed"]["records"])) == (2, 2, 1)
    checks = (await client.get("/api/v1/health")).json()
    assert {one["name"] for one in checks["checks"]} >= {"schema", "version"}
    assert checks["notes"] == ["Everybody on this machine may use this dashboard: auth=Open()."]


@pytest.mark.spec("GROUP-35", "GROUP-36")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_groups_are_listed_read_canceled_and_retried(app: Stoker, client: Client) -> None:
    made = [await app.group([app.draft("send"), app.draft("send")], then=app.draft("send")) for _ in range(3)]
    first = (await client.get("/api/v1/groups?limit=2")).json()
    rest = (await client.get(f"/api/v1/groups?limit=2&after={first['after']}")).json()
    found = [*first["groups"], *rest["groups"]]
    assert (len(first["groups"]), rest["after"]) == (2, None)
    assert {one["id"] for one in found} == {one.id for one in made}
    assert {(one["state"], one["total"], one["waiting"]) for one in found} == {("open", 2, 2)}
    assert (await client.get("/api/v1/groups?state=closed")).json() == {"groups": [], "after": None}
    assert (await client.get("/api/v1/groups?state=shut")).status_code == 422
    await end(app, await claim(app), Status.DEAD, "boom")
    started = await send(client, "POST", f"/groups/{made[0].id}/retry")
    assert (started.status_code, started.json()["filter"]) == (202, f"is:dead group:{made[0].id}")
    started = await send(client, "POST", f"/groups/{made[1].id}/cancel", {"reason": "enough", "force": True})
    assert (started.json()["action"], started.json()["given"]) == ("cancel", {"reason": "enough", "force": True})
    assert (await send(client, "POST", f"/groups/{made[1].id}/retry", {"force": True})).status_code == 422
    assert (await send(client, "POST", f"/groups/{UNKNOWN}/cancel")).status_code == 404
    read = (await client.get(f"/api/v1/groups/{made[2].id}")).json()
    assert read["callbacks"][0]["kind"] == "send"
    assert sum(read["statuses"].values()) == 2


@pytest.mark.spec("PEOPLE-02")
async def test_the_correlation_is_that_of_the_metadata_before_the_arguments(app: Stoker, client: Client) -> None:
    job = await app.enqueue(app.draft("send", {"request_id": "r"}, metadata={"correlation_id": "c-17"}))
    assert (await client.get(f"/api/v1/jobs/{job.id}")).json()["correlation"] == "c-17"
    assert "c-17" in (await client.get(f"/jobs/{job.id}")).text


@pytest.mark.spec("NEED-22")
async def test_a_finding_is_acknowledged_by_rest(app: Stoker, client: Client) -> None:
    await enqueue(app, queue="bulk")
    await beat(app)
    body = {"finding": "no worker: bulk", "reason": "a move", "seconds": 60}
    [before] = (await client.get("/api/v1/findings")).json()["findings"]
    assert (before["id"], before["tone"], before["figure"], before["acknowledged"]) == (body["finding"], "bad", 1, None)
    assert (await send(client, "POST", "/findings/acknowledge", body)).json()["tone"] == "plain"
    [found] = (await client.get("/api/v1/overview")).json()["findings"]
    assert (found["tone"], found["acknowledged"]["reason"]) == ("plain", "a move")
    assert (await send(client, "POST", "/findings/acknowledge", {**body, "seconds": 86_401})).status_code == 422
    assert (await send(client, "POST", "/findings/acknowledge", {**body, "finding": "late: x"})).status_code == 404
    assert (await send(client, "POST", "/findings/withdraw", {"finding": body["finding"]})).json() == {"done": True}
    assert (await send(client, "POST", "/findings/withdraw", {"finding": body["finding"]})).status_code == 404
    assert (await client.get("/api/v1/findings")).json()["findings"] == [before]

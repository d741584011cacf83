"""Problem details: one case for each way in which a call of the API can go wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.app import Stoker
from stoker.model import ids
from stoker.model.access import Identity
from stoker.model.errors import EngineBusy, EngineFull, EngineReadOnly, EngineRefused, EngineUnavailable
from stoker.model.job import Status
from stoker.web import Limits, Open, dashboard
from tests.web.conftest import Client, claim, end, enqueue

UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"
NOW = "2030-01-01T00:00:00Z"
DRIVER = "asyncpg.exceptions.CannotConnectNowError: password authentication failed for user shop"

Made = Callable[..., Client]


def refused() -> EngineRefused:
    """What an engine raises where a driver said no."""
    error = EngineRefused(DRIVER)
    error.__cause__ = RuntimeError(DRIVER)
    return error


@pytest.fixture
async def made(app: Stoker) -> AsyncIterator[Made]:
    """Makes dashboards with a client, and closes both."""
    clients: list[Client] = []

    def make(**given: Any) -> Client:
        clients.append(Client(dashboard(app, **{"auth": Open("ann"), "limits": Limits(seconds=30), **given})))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()
        await client.board.close()


async def send(client: Client, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"x-csrf-token": await client.csrf()}
    return await client.http.request(method, f"/api/v1{path}", json=body, headers=headers)


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem details of an answer, whose common part is checked."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["code"]) == (status, code)
    assert found["request"] == answer.headers["x-request-id"]
    assert found["title"]
    assert found["detail"]
    assert "Traceback" not in answer.text
    return found


@pytest.mark.spec("REST-10")
async def test_404_names_what_is_not_there(client: Client) -> None:
    for path in (f"/jobs/{UNKNOWN}", "/jobs/none", "/queues/none", "/limits/none", "/groups/none", "/streams/none"):
        problem(await send(client, "GET", path), 404, "not_found")


@pytest.mark.spec("REST-10")
async def test_409_names_the_status_and_the_action(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    found = problem(await send(client, "POST", f"/jobs/{id_}/discard"), 409, "wrong_status")
    assert (found["job"], found["job_status"], found["action"]) == (id_, "pending", "discard")
    assert "pending" in found["detail"]
    assert "discard" in found["detail"]


@pytest.mark.spec("REST-10")
async def test_409_names_the_key_that_is_taken(app: Stoker, client: Client) -> None:
    dead = await enqueue(app, unique="invoice-7")
    await end(app, await claim(app))
    await enqueue(app, unique="invoice-7")
    found = problem(await send(client, "POST", f"/jobs/{dead}/requeue"), 409, "key_taken")
    assert (found["job"], found["key"]) == (dead, "invoice-7")


@pytest.mark.spec("REST-10")
@pytest.mark.parametrize(
    "method, path, body, field",
    [
        ("GET", "/jobs?limit=201", None, "limit"),
        ("GET", "/jobs?limit=x", None, "limit"),
        ("GET", "/jobs?wrong=1", None, None),
        ("GET", "/queues?wrong=1", None, "wrong"),
        ("POST", "/jobs", {"kind": "send", "priority": 5_000}, "priority"),
        ("POST", "/jobs", {"payload": {}}, None),
        ("POST", "/jobs/bulk", {"action": "move", "ids": [UNKNOWN]}, "queue"),
        ("POST", "/jobs/bulk", {"action": "requeue", "ids": [UNKNOWN], "queue": "x"}, "queue"),
        ("POST", "/schedules", {"name": "n", "kind": "send", "cron": "0 25 * * *"}, None),
    ],
)
async def test_422_names_the_field(client: Client, method: str, path: str, body: Any, field: str | None) -> None:
    found = problem(await send(client, method, path, body), 422, "invalid")
    assert found.get("field") == field or field is None


@pytest.mark.spec("REST-10")
async def test_400_and_415_for_bodies_that_cannot_be_read(client: Client) -> None:
    token = {"x-csrf-token": await client.csrf()}
    for body, kind, status, code in (
        (b"{", "application/json", 400, "json"),
        (b"\xff", "application/json", 400, "json"),
        (b"{}", "text/plain", 415, "content_type"),
    ):
        answer = await client.http.post("/api/v1/jobs", content=body, headers={**token, "content-type": kind})
        problem(answer, status, code)


@pytest.mark.spec("REST-10")
@pytest.mark.parametrize(
    "error, code",
    [
        (EngineUnavailable(DRIVER), "store_unavailable"),
        (EngineBusy(DRIVER), "store_busy"),
        (EngineFull(DRIVER), "store_full"),
        (EngineReadOnly(DRIVER), "store_read_only"),
        (refused(), "store_refused"),
        (TimeoutError(DRIVER), "store_unavailable"),
    ],
)
async def test_503_while_the_store_is_away_without_the_drivers_words(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr((await client.board.store.engine()).operator, "get", away)
    answer = await send(client, "GET", f"/jobs/{UNKNOWN}/explain")
    problem(answer, 503, code)
    assert "asyncpg" not in answer.text


@pytest.mark.spec("REST-10")
@pytest.mark.engine("sqlite")
@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_500_for_a_change_of_a_record_that_cannot_be_read(app: Stoker, client: Client, tmp_path: Path) -> None:
    """Here one that is neither waiting nor running nor finished, because a row of its is missing. Reading shows it."""
    id_ = await enqueue(app)
    await claim(app)
    [path] = tmp_path.glob("*.db")
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        assert connection.execute("DELETE FROM stoker_running").rowcount == 1
        connection.commit()
    assert (await send(client, "GET", f"/jobs/{id_}")).json()["unreadable"]
    found = problem(await send(client, "POST", f"/jobs/{id_}/requeue"), 500, "unreadable")
    assert id_ in found["detail"]


@pytest.mark.spec("REST-10")
async def test_500_for_a_fault_says_only_where_the_log_has_it(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("hunter2")

    monkeypatch.setattr((await client.board.store.engine()).operator, "get", broken)
    found = problem(await send(client, "GET", f"/jobs/{UNKNOWN}"), 500, "fault")
    assert "hunter2" not in str(found)
    assert found["request"] in caplog.text


@pytest.mark.spec("REST-10")
async def test_401_without_a_token_and_with_a_wrong_one(made: Made) -> None:
    client = made(auth=None)
    for headers in ({}, {"authorization": f"Bearer stk_{'x' * 43}"}, {"authorization": "Basic eDp5"}):
        answer = await client.http.get("/api/v1/jobs", headers=headers)
        problem(answer, 401, "token")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.spec("REST-10")
async def test_403_for_a_role_a_queue_and_a_forged_change(app: Stoker, made: Made) -> None:
    id_ = await enqueue(app)
    reader = made(auth=lambda _: Identity("eve"))
    problem(await send(reader, "POST", f"/jobs/{id_}/cancel", {}), 403, "role")
    limited = made(auth=lambda _: Identity("ci", "admin", frozenset({"mail"})))
    problem(await send(limited, "POST", f"/jobs/{id_}/cancel", {}), 403, "queue")
    for method, path, body in (
        ("POST", "/jobs/bulk", {"action": "cancel", "ids": [id_]}),
        (
            "POST",
            "/operations",
            {"action": "cancel", "q": "is:ready", "count": 9, "counted_at": NOW},
        ),
        ("PUT", "/limits/stripe", {"n": 5}),
        ("POST", "/tokens", {"name": "more", "role": "admin"}),
        ("POST", "/schedules", {"name": "n", "kind": "send", "cron": "0 3 * * *"}),
    ):
        problem(await send(limited, method, path, body), 403, "queue")
    forged = await made().http.post(f"/api/v1/jobs/{id_}/cancel", json={})
    problem(forged, 403, "csrf")
    assert (await app.handle(id_).refresh()).status is Status.PENDING


@pytest.mark.spec("REST-10")
async def test_405_for_another_method_and_in_read_only_mode(app: Stoker, made: Made) -> None:
    id_ = await enqueue(app)
    answer = await send(made(), "PUT", "/jobs", {})
    problem(answer, 405, "method")
    assert answer.headers["allow"] == "GET, POST"
    reader = made(read_only=True)
    for way in reader.board.routes:
        if way.kind == "api" and way.changes and not way.harmless:
            path = way.path.removeprefix("/api/v1").replace("{id}", id_)
            path = path.format(name="default", stream="s", consumer="c", limit="l", worker="w")
            problem(await send(reader, way.method, path), 405, "read_only")
    assert (await app.handle(id_).refresh()).status is Status.PENDING


@pytest.mark.spec("REST-10")
async def test_413_for_a_body_that_is_too_large(made: Made) -> None:
    client = made(limits=Limits(seconds=30, body=1_000))
    body = {"kind": "send", "payload": {"text": "x" * 2_000}}
    problem(await send(client, "POST", "/jobs", body), 413, "too_large")


@pytest.mark.spec("REST-10")
async def test_421_for_another_host(client: Client) -> None:
    answer = await client.get("/api/v1/jobs", headers={"host": "evil.example"})
    problem(answer, 421, "host")


@pytest.mark.spec("REST-05")
@pytest.mark.spec("REST-10")
async def test_429_beyond_a_quota(app: Stoker, made: Made) -> None:
    names = iter(["ann", "ann", "ann", "ann", "bob"])
    client = made(auth=lambda _: Identity(next(names), "operate"), limits=Limits(seconds=30, enqueued_per_minute=2))
    await client.csrf()
    answers = [await send(client, "POST", "/jobs", {"kind": "send"}) for _ in range(4)]
    assert [one.status_code for one in answers] == [201, 201, 429, 201]
    problem(answers[2], 429, "quota")
    assert 0 < int(answers[2].headers["retry-after"]) <= 60
    full = made(limits=Limits(seconds=30, waiting_per_queue=3))
    problem(await send(full, "POST", "/jobs", {"kind": "send"}), 429, "queue_full")
    assert (await send(full, "POST", "/jobs", {"kind": "send", "queue": "other"})).status_code == 201
    assert ids.parse(answers[0].json()["id"])

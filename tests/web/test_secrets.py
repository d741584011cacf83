"""What must not be seen: payloads, values of secret names, and the password of the store's address."""

from __future__ import annotations

import logging
import re
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.postgres import PostgresEngine
from stoker.model.access import Identity
from stoker.model.job import Settlement, Status
from stoker.web import Limits, Open, dashboard
from stoker.web.live import PAGES as LIVE
from tests.web.conftest import ENDED, Client, claim, enqueue

SCHEDULE = "nightly"
PAYLOAD, RESULT, SECRET = "canary-in-a-payload", "canary-in-a-result", "canary-of-a-password"


async def everything(client: Client, id_: str) -> dict[str, str]:
    """Every page, every live part and every answer of the API to a question, by path."""
    places = {"id": id_, "stream": "none", "consumer": "none", "worker": "w"}
    paths = ["/jobs?q=is:dead&group=error", "/operations/new?q=is:dead"]
    for way in client.board.routes:
        if way.method == "GET" and way.kind != "open" and way.path not in {"/live", "/pieces"}:
            name = SCHEDULE if "/schedules/" in way.path else "send" if "/kinds/" in way.path else "default"
            paths.append(way.path.format(**places, name=name) + (ENDED if way.path.endswith("/stream") else ""))
    for page in LIVE:
        name = {"queue": "default", "kind": "send"}.get(page, SCHEDULE)
        paths.append(f"/pieces?{urlencode({'page': page, 'name': name, **places})}")
    return {path: (await client.get(path)).text for path in paths}


@pytest.mark.spec("WEBSEC-20")
@pytest.mark.parametrize("role", ["read", "operate", "admin"])
async def test_payloads_and_secrets_are_in_no_page_and_no_answer(
    app: Stoker, role: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    payload, metadata = {"note": PAYLOAD, "password": SECRET}, {"api_key": SECRET}
    draft = app.draft("send", payload, metadata=metadata)
    admin = Admin(app, by="eve")  # what it does is in the audit log
    await admin.schedules.create(SCHEDULE, draft, cron="0 3 * * *")
    id_ = await admin.schedules.run_now(SCHEDULE)
    await admin.jobs.edit(id_, payload=msgspec.json.encode(payload | {"n": 1}))
    [held] = await claim(app)
    engine = await app.engine()
    error = f"LoginError: password={SECRET}\n  in postgresql://shop:{SECRET}@db/shop"
    end = Settlement(held.id, held.worker, held.token, Status.DEAD, error=error, result=f'"{RESULT}"'.encode())
    await engine.jobs.settle([end])
    board = dashboard(app, auth=lambda _: Identity("ann", role), limits=Limits(seconds=30))
    client = Client(board)
    found = await everything(client, id_)
    for path, body in found.items():
        for canary in (PAYLOAD, RESULT, SECRET):
            assert canary not in body, path
    assert "LoginError" in found[f"/schedules/{SCHEDULE}"]
    assert SCHEDULE in found["/audit"]
    token = {"x-csrf-token": await client.csrf()}
    revealed = await client.http.post(f"/api/v1/jobs/{id_}/reveal", json={}, headers=token)
    if role == "read":
        assert revealed.status_code == 403
    else:
        assert PAYLOAD in revealed.text
        assert (SECRET in revealed.text) == (role == "admin")
    await board.close()
    await client.close()
    for canary in (PAYLOAD, RESULT, SECRET):
        assert canary not in caplog.text


@pytest.mark.spec("WEBSEC-20")
@pytest.mark.engine("postgres")
async def test_the_password_of_the_store_is_nowhere(
    postgres_url: str, postgres_schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    scheme, _, rest = postgres_url.partition("://")
    user = rest.partition("@")[0] if "@" in rest else "postgres"
    url = f"{scheme}://{user.partition(':')[0]}:{SECRET}@{rest.rpartition('@')[2]}"
    app = Stoker(PostgresEngine(url, schema=postgres_schema))
    app.declare("send")
    id_ = await enqueue(app)
    board = dashboard(app, auth=Open(), limits=Limits(seconds=30))
    client = Client(board)
    for path, body in (await everything(client, id_)).items():
        assert SECRET not in body, path
    assert SECRET not in repr(board) + repr(app) + caplog.text
    await client.close()
    await board.close()
    await app.close()


CARD = "4111111111111111"


@pytest.mark.spec("SEARCH-01")
@pytest.mark.parametrize("role", ["read", "operate"])
@pytest.mark.parametrize("words", ["payload:{}", "error:{}", "{}"])
async def test_a_search_does_not_tell_a_right_digit_from_a_wrong_one(app: Stoker, role: Any, words: str) -> None:
    """Page, page of errors, list and preview answer alike, but for the guess itself, the request's id and its token."""
    await enqueue(app, payload={"card_number": CARD})
    [held] = await claim(app)
    engine = await app.engine()
    error = f"Declined: card_number={CARD}"
    await engine.jobs.settle([Settlement(held.id, held.worker, held.token, Status.DEAD, error=error)])
    board = dashboard(app, auth=lambda _: Identity("ann", role), limits=Limits(seconds=30))
    client = Client(board)

    async def answers(guess: str) -> list[tuple[int, str]]:
        found = []
        for path in ("/jobs", "/jobs?group=error", "/api/v1/jobs?total=true", "/api/v1/preview", "/operations/new"):
            answer = await client.get(path, params={**dict(httpx.URL(path).params), "q": words.format(guess)})
            body = re.sub(r'name="csrf" value="[\w-]{86}"', "TOKEN", answer.text.replace(guess, "GUESS"))
            found.append((answer.status_code, re.sub(r"\b[0-9a-f]{8}\b", "REQUEST", body)))
        return found

    right, wrong = await answers(CARD[:6]), await answers("411112")
    assert right == wrong
    refused = 403 if role == "read" and "payload:" in words else 200
    assert [status for status, _ in right] == [refused, refused, refused, 403, 403]
    assert "payload:" not in (await client.get("/jobs")).text or role == "operate"
    await board.close()
    await client.close()


@pytest.mark.spec("SEARCH-01")
@pytest.mark.parametrize("role", ["read", "operate"])
@pytest.mark.parametrize("words", ["payload:{}", "error:{}", "{}"])
async def test_what_stands_for_a_secret_is_not_found_whatever_the_secret_is(app: Stoker, role: Any, words: str) -> None:
    """Else a text of the mask, which is on every page, would be found where the secret has it too, and only there."""
    board = dashboard(app, auth=lambda _: Identity("ann", role), limits=Limits(seconds=30))
    client, engine = Client(board), await app.engine()
    for secret in ("[hidden]", "0000"):
        await enqueue(app, payload={"pass": secret})
        [held] = await claim(app)
        error = Settlement(held.id, held.worker, held.token, Status.DEAD, error=f"Lost: pass={secret}")
        await engine.jobs.settle([error])
    for guess in ("[hidden]", "hidden", "dd", "[h", "N]"):
        answer = await client.get("/api/v1/jobs", params={"q": words.format(guess), "total": "true"})
        refused = role == "read" and "payload:" in words
        assert answer.status_code == (403 if refused else 200)
        assert refused or (answer.json()["jobs"], answer.json()["total"]) == ([], 0), guess
    await board.close()
    await client.close()


@pytest.mark.spec("SEARCH-06")
@pytest.mark.parametrize("role", ["operate", "admin"])
@pytest.mark.parametrize("words", ["payload:{}", "{}"])
async def test_a_search_looks_into_no_payload_of_a_queue_that_the_visitor_may_not_reveal(
    app: Stoker, role: Any, words: str
) -> None:
    """A right guess at an argument without a telling name answers as a wrong one does; its own queue is searched."""
    own = await enqueue(app, payload={"city": "Turin"}, queue="mail")
    await enqueue(app, payload=["Turin", CARD], queue="billing")
    limited = Identity("ann", role, frozenset({"mail"}))
    board = dashboard(app, auth=lambda _: limited, limits=Limits(seconds=30))
    client = Client(board)
    for guess in (CARD[:6], "411112"):
        answer = await client.get("/api/v1/jobs", params={"q": words.format(guess), "total": "true"})
        assert (answer.json()["jobs"], answer.json()["total"]) == ([], 0)
        refused = await client.get("/api/v1/preview", params={"q": words.format(guess)})
        assert refused.status_code == 403
    answer = await client.get("/api/v1/jobs", params={"q": words.format("turin")})
    assert [one["id"] for one in answer.json()["jobs"]] == [own]
    await board.close()
    await client.close()

"""A payload is judged alike at every door of the dashboard, and what is taken is stored byte for byte."""

from __future__ import annotations

import pytest

from stoker import Raw
from stoker.app import Stoker
from stoker.model import ids
from stoker.model.errors import InvalidInput
from tests.harness.json_texts import NO_JSON, REFUSED, TAKEN
from tests.web.conftest import Client, enqueue


async def send(client: Client, method: str, path: str, body: str) -> int:
    headers = {"x-csrf-token": await client.csrf(), "content-type": "application/json"}
    return (await client.http.request(method, f"/api/v1{path}", content=body, headers=headers)).status_code


async def payload(app: Stoker, job: str) -> bytes:
    [found] = await (await app.engine()).operator.get([ids.parse(job)])
    assert found is not None
    return found.payload


@pytest.mark.spec("REST-13")
@pytest.mark.parametrize("text", TAKEN)
async def test_what_a_draft_takes_every_door_takes_unchanged(app: Stoker, client: Client, text: str) -> None:
    stored = text.strip().encode()
    assert app.draft("send", Raw(stored)).payload == stored
    made = "0193b0f0-0000-7000-8000-000000000001"
    assert await send(client, "POST", "/jobs", f'{{"kind": "send", "id": "{made}", "payload": {text}}}') == 201
    assert await payload(app, made) == stored
    patched, edited = await enqueue(app), await enqueue(app)
    assert await send(client, "PATCH", f"/jobs/{patched}", f'{{"payload": {text}}}') == 200
    assert await payload(app, patched) == stored
    assert (await client.post(f"/jobs/{edited}/edit", {"payload": text})).status_code == 303
    assert await payload(app, edited) == stored
    fields = '"kind": "send", "cron": "0 3 * * *"'
    assert await send(client, "POST", "/schedules", f'{{"name": "rest", {fields}, "payload": {text}}}') == 201
    form = {"name": "form", "kind": "send", "cron": "0 3 * * *", "payload": text}
    assert (await client.post("/new-schedule", form)).status_code == 303
    assert [one.payload for one in await app.schedules()] == [stored, stored]


@pytest.mark.spec("REST-13")
@pytest.mark.parametrize("text", [*REFUSED, *NO_JSON])
async def test_what_a_draft_refuses_no_door_takes(app: Stoker, client: Client, text: str) -> None:
    with pytest.raises(InvalidInput):
        app.draft("send", Raw(text.encode()))
    job = await enqueue(app)
    before = await payload(app, job)
    for method, path, more in (
        ("POST", "/jobs", '"kind": "send", '),
        ("PATCH", f"/jobs/{job}", ""),
        ("POST", "/schedules", '"name": "n", "kind": "send", "cron": "0 3 * * *", '),
    ):
        answer = await send(client, method, path, f'{{{more}"payload": {text}}}')
        assert answer in ((400,) if text in NO_JSON or "\\ud" in text else (422,)), path  # halves of pairs are no JSON
    if text:  # an empty field of a form means that nothing is given
        assert (await client.post(f"/jobs/{job}/edit", {"payload": text})).status_code == 422
        form = {"name": "n", "kind": "send", "cron": "0 3 * * *", "payload": text}
        assert (await client.post("/new-schedule", form)).status_code == 422
    assert await payload(app, job) == before
    assert await app.schedules() == []


@pytest.mark.spec("REST-13")
@pytest.mark.parametrize(
    "body", ['{"kind": "send", "kind": "resize"}', '{"kind": "send", "tenant": "\\u0000"}', "[" * 100_000]
)
async def test_the_rest_of_a_body_follows_the_same_rules(client: Client, body: str) -> None:
    assert await send(client, "POST", "/jobs", body) == 422

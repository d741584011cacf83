"""Steps of a job on its page and through REST, and the page of jobs that wait for an answer."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.context import current
from stoker.errors import StepFailed
from stoker.model.errors import InvalidArgument
from stoker.web import Dashboard, Limits, Open, dashboard
from tests.harness.apps import drain
from tests.web.conftest import Client, text
from tests.web.test_api import ENGINES, UNKNOWN


class Approval(msgspec.Struct):
    yes: bool
    cents: int = 0


def fails() -> None:
    raise ConnectionError("token=hunter2 refused")


async def waiting(app: Stoker) -> str:
    """A job that has done one step, failed at another, and waits for a person; the one that it called sleeps."""

    @app.task
    async def label() -> None:
        await current().sleep(3_600)

    @app.task(label="for {customer}")
    async def order(customer: str = "acme") -> str:
        run = current()
        await run.step("quote", lambda: {"cents": 700, "password": "hunter2"})
        try:
            await run.step("deliver", fails)
        except StepFailed:
            pass
        [answer, _] = await asyncio.gather(
            run.wait("approval", Approval, timeout=86_400, ask="May we buy this?"), run.call(label.draft())
        )
        return "bought" if answer.yes else "refused"

    job = await order.enqueue()
    await drain(app)
    return job.id


@pytest.mark.spec("STEP-46")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_questions_are_found_among_sleepers(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that may ask are looked at; a filter leaves some of them out, and pages go on behind the last."""

    @app.task
    async def nap() -> None:
        await current().sleep(3_600)

    @app.task
    async def ask(n: int) -> None:
        await current().wait("approval", bool, ask=f"May we buy {n}?")

    for n in range(5):
        await ask.enqueue(n)
    for _ in range(40):
        await nap.enqueue()
    await drain(app)
    admin = Admin(app)
    monkeypatch.setattr("stoker.admin.jobs.ASKED_AT_ONCE", 3)
    found = await admin.jobs.waits()
    assert ([one.ask for one in found.waits], found.cursor) == ([f"May we buy {n}?" for n in range(4, -1, -1)], None)
    assert found.scanned == 5
    page = await admin.jobs.waits(limit=2)
    rest = await admin.jobs.waits(limit=9, cursor=page.cursor)
    assert [*page.waits, *rest.waits] == found.waits
    assert (await admin.jobs.waits("kind:nap")).waits == []
    assert [one.ask for one in (await admin.jobs.waits("payload:2")).waits] == ["May we buy 2?"]
    assert (await admin.jobs.waits("kind:nobody")).hint
    with pytest.raises(InvalidArgument, match="newest jobs come first"):
        await admin.jobs.waits("order:oldest")
    monkeypatch.setattr("stoker.admin.jobs.LONGEST_WALK", 3)
    part = await admin.jobs.waits("payload:0")
    assert (part.waits, part.scanned) == ([], 3)
    assert [one.ask for one in (await admin.jobs.waits("payload:0", cursor=part.cursor)).waits] == ["May we buy 0?"]


@pytest.mark.spec("DURABLE-23", "DURABLE-24")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_question_is_answered_on_the_page_of_questions(app: Stoker, client: Client, board: Dashboard) -> None:
    assert "No job waits for an answer" in text(await client.get("/waits"))
    job = await waiting(app)
    board.hub.forget()
    page = await client.get("/waits")
    assert "May we buy this?" in text(page)
    assert "order for acme in default waits for approval" in text(page)
    assert re.search(r'name="answer.cents" value="0"', page.text)
    shown = await client.get(f"/jobs/{job}")
    read = text(shown)
    assert "order for acme waiting" in read
    assert "It waits for the signal approval (May we buy this?) until" in read
    assert "quote" in read and "deliver failed ConnectionError" in read and "call:label waits for the job" in read
    assert "hunter2" not in shown.text
    assert "waiting" in text(await client.get("/jobs?q=is%3Awaiting"))
    wrong = await client.post(f"/jobs/{job}/signal", {"name": "approval", "answer.yes": "yes", "answer.cents": "many"})
    assert (wrong.status_code, "must be a whole number" in wrong.text) == (422, True)
    given = {"name": "approval", "answer.yes": "yes", "answer.cents": "700"}
    sent = await client.post(f"/jobs/{job}/signal", given, follow_redirects=True)
    assert "order has its answer to approval" in text(sent)
    again = await client.post(f"/jobs/{job}/signal", given, follow_redirects=True)
    assert "has its answer already" in text(again)
    address = (await client.post(f"/jobs/{job}/reveal", {"part": "steps"})).headers["location"]
    revealed = text(await client.get(address.partition("#")[0]))
    assert "700" in revealed and "hunter2" in revealed
    audit = (await client.get("/api/v1/audit")).json()["entries"]
    assert {(one["who"], one["action"]) for one in audit} == {("ann", "jobs.reveal"), ("ann", "jobs.signal")}


@pytest.mark.spec("DURABLE-23", "DURABLE-24")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_programs_read_steps_answer_waits_and_fork(app: Stoker, client: Client) -> None:
    job = await waiting(app)
    found = (await client.get(f"/api/v1/jobs/{job}/steps")).json()["steps"]
    by_name = {one["name"]: one for one in found}
    assert {*by_name} == {"quote", "deliver", "approval", "call:label"}
    assert by_name["quote"]["value"] == {"cents": 700, "password": "[hidden]"}
    assert by_name["deliver"]["error"].startswith("ConnectionError: token=[hidden]")
    assert (by_name["approval"]["waits_for"], by_name["approval"]["ask"]) == ("signal", "May we buy this?")
    assert by_name["call:label"]["waits_for"] == "job"
    [wait] = (await client.get("/api/v1/waits?q=kind:order")).json()["waits"]
    assert (wait["job"], wait["name"], wait["schema"]["$defs"]["Approval"]["type"]) == (job, "approval", "object")
    assert (await client.get("/api/v1/waits?q=kind:nobody")).json()["waits"] == []
    csrf = {"x-csrf-token": await client.csrf()}
    send = client.http.post
    answer = {"name": "approval", "value": {"yes": True}}
    assert (await send(f"/api/v1/jobs/{job}/signal", json=answer, headers=csrf)).json() == {"taken": True}
    assert (await send(f"/api/v1/jobs/{job}/signal", json=answer, headers=csrf)).json() == {"taken": False}
    other = answer | {"value": {"yes": False}, "replace": True}
    assert (await send(f"/api/v1/jobs/{job}/signal", json=other, headers=csrf)).json() == {"taken": True}
    child = by_name["call:label"]["job"]
    assert (await send(f"/api/v1/jobs/{child}/signal", json={"name": "sleep"}, headers=csrf)).json() == {"taken": True}
    await drain(app)
    assert await app.handle(job).result() == "refused"
    copied = (await send(f"/api/v1/jobs/{job}/fork", json={"after": "quote"}, headers=csrf)).json()
    assert len(copied["created"]) == 1
    refused = await send(f"/api/v1/jobs/{job}/fork", json={"after": "qoute"}, headers=csrf)
    assert (refused.status_code, "its finished steps are" in refused.text) == (422, True)
    unknown = await send(f"/api/v1/jobs/{UNKNOWN}/signal", json=answer, headers=csrf)
    assert unknown.status_code == 404


@pytest.mark.spec("DURABLE-24")
async def test_who_may_only_look_sees_no_values_and_cannot_answer(app: Stoker) -> None:
    job = await waiting(app)
    board = dashboard(app, auth=Open(role="read"), limits=Limits(seconds=30))
    client = Client(board)
    assert "Your role may not answer it" in text(await client.get("/waits"))
    assert "Send the answer" not in (await client.get(f"/jobs/{job}")).text
    found = (await client.get(f"/api/v1/jobs/{job}/steps")).json()["steps"]
    assert {one["value"] for one in found} == {None}
    assert (await client.post(f"/jobs/{job}/signal", {"name": "approval"})).status_code == 403
    await client.close()
    await board.close()

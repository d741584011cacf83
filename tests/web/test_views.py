"""What the REST API answers is what `Admin` returns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stoker.admin import Admin
from stoker.admin.as_json import in_schema, plain
from stoker.app import Stoker
from stoker.model.throttle import Rate
from stoker.testing.clock import VirtualClock
from tests.harness.letters import letters
from tests.web.conftest import Client, enqueue
from tests.web.test_pages import lively

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres")]
HIDDEN = {"payload", "result", "headers", "raw", "place"}
"""What an answer leaves out of what it lists."""


def shown(views: Any) -> Any:
    return [{name: value for name, value in one.items() if name not in HIDDEN} for one in plain(list(views))]


@pytest.mark.spec("REST-15")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_an_answer_is_what_admin_returns(app: Stoker, client: Client, clock: VirtualClock) -> None:
    await lively(app, clock)
    await letters(await app.engine(), 2)
    admin = Admin(app)
    await enqueue(app, queue="mail")
    await admin.queues.pause("mail", for_=60)
    await admin.limits.tune("stripe", Rate(100, per=60), create=True)
    await admin.tokens.create("ci", "operate", expires=60)

    async def answered(path: str) -> Any:
        answer = await client.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert (await answered("queues"))["queues"] == plain(await admin.queues.list())
    assert await answered("queues/mail") == plain(await admin.queues.get("mail"))
    kinds = sorted(await admin.kinds.list(), key=lambda one: one.kind)
    assert (await answered("kinds"))["kinds"] == plain(kinds)
    assert (await answered("workers"))["workers"] == plain(await admin.workers.list())
    assert (await answered("limits"))["budgets"] == plain(await admin.limits.list())
    assert (await answered("tokens"))["tokens"] == plain(await admin.tokens.list())
    assert await answered("errors") == plain(await admin.jobs.errors())
    assert (await answered("streams"))["streams"] == plain(await admin.outbox.list())
    assert (await answered("schedules"))["schedules"] == shown(await admin.schedules.list())
    written = (await answered("streams/orders/letters"))["letters"]
    assert written == shown((await admin.outbox.letters(stream="orders", status=None)).letters)
    assert written
    jobs = (await answered("jobs"))["jobs"]
    assert [{name: value for name, value in one.items() if name != "view"} for one in jobs] == [
        one | {"history": [], "log": []} for one in shown((await admin.jobs.find(limit=50)).jobs)
    ]
    assert {one["view"] for one in jobs if one["status"] == "pending"} == {"ready", "scheduled"}
    found = await answered(f"jobs/{jobs[0]['id']}")
    assert {name: found[name] for name in jobs[0]} == jobs[0]
    why = await admin.jobs.explain(jobs[0]["id"])
    assert [gate["detail"] for gate in (await answered(f"jobs/{jobs[0]['id']}/explain"))["gates"]] == [
        gate.detail for gate in why.all
    ]
    assert await answered("preview?q=is:dead") == plain(await admin.jobs.preview("is:dead"))
    await admin.operations.finish((await admin.operations.start("discard", "is:dead")).id)
    assert (await answered("operations"))["operations"] == plain(await admin.operations.list())
    named = Admin(app, by="ada")
    await named.jobs.cancel(next(one["id"] for one in jobs if one["view"] == "scheduled"))
    assert (entries := (await answered("audit"))["entries"]) == plain(await admin.audit.list())
    assert entries[0]["former"]
    client.board.hub.forget()  # it was changed from elsewhere
    overview, whole = await answered("overview"), plain(await admin.overview())
    assert overview == {name: whole[name] for name in overview}


class Lasting(msgspec.Struct):
    """A value with durations at several depths."""

    each: dict[str, list[timedelta]]
    none: timedelta | None = None


@pytest.mark.spec("REST-15")
def test_durations_are_seconds_in_an_answer_and_in_the_document() -> None:
    found = plain(Lasting({"a": [timedelta(milliseconds=1_500)]}, timedelta(days=1)))
    assert found == {"each": {"a": [1.5]}, "none": 86_400.0}
    schema = in_schema(msgspec.json.schema(Lasting))["$defs"]["Lasting"]["properties"]
    assert schema["each"]["additionalProperties"]["items"] == {"type": "number", "format": "seconds"}
    assert {one["type"] for one in schema["none"]["anyOf"]} == {"number", "null"}

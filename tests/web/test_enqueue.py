"""The form that enqueues a job, made from the signature of its task."""

from __future__ import annotations

import enum
import html
import re
from datetime import datetime
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest
from msgspec import Meta

from stoker.app import Stoker
from stoker.model.access import Identity
from stoker.model.job import Status
from stoker.web import Limits, dashboard
from tests.web.conftest import Client, text
from tests.web.test_actions import told
from tests.web.test_api import send


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Place(msgspec.Struct):
    street: str
    number: int = 1


def declare(app: Stoker) -> None:
    @app.task(name="send", queue="mail")
    async def send(
        to: str,
        copies: int,
        size: Size = Size.SMALL,
        level: Level = Level.HIGH,
        pay: Literal["card", "invoice"] = "card",
        urgent: bool = False,
        share: Annotated[float, Meta(ge=0, le=1, description="of all")] = 0.5,
        place: Place | None = None,
        when: datetime | None = None,
    ) -> None:
        """Send a letter.

        To one address.
        """

    @app.task(name="plain", queue="mail")
    async def plain() -> None: ...

    @app.task(name="variable")
    async def variable(*parts: int, **more: str) -> None: ...


def marked(page: httpx.Response) -> dict[str, str]:
    """What a page says beside each field that is wrong."""
    found = re.findall(r'<span class="bad small" id="wrong-([^"]*)">(.*?)</span>', page.text)
    return {name: html.unescape(why) for name, why in found}


@pytest.mark.spec("ENQUEUE-01")
async def test_a_form_has_a_field_for_each_argument(app: Stoker, client: Client) -> None:
    declare(app)
    page = (await client.get("/enqueue?kind=send")).text
    assert "Send a letter." in page
    names = re.findall(r'name="argument\.(\w+)"', page)
    assert names == ["to", "copies", "size", "level", "pay", "urgent", "share", "place", "when"]
    assert "<option selected>small</option>" in page
    assert "<option selected>2</option>" in page
    assert 'value="0.5"' in page
    assert "of all" in page
    assert "This task takes no arguments." in (await client.get("/enqueue?kind=plain")).text
    assert 'name="argument.value"' in (await client.get("/enqueue?kind=variable")).text
    listed = text(await client.get("/enqueue?queue=mail"))
    assert "Send a letter." in listed
    assert listed.index("plain") < listed.index("variable")
    assert (await client.get("/enqueue?kind=unknown")).status_code == 404
    assert 'href="/enqueue?queue=mail"' in (await client.get("/queues/mail")).text
    assert 'href="/enqueue"' in (await client.get("/kinds")).text
    await app.enqueue(app.draft("plain"))
    assert 'href="/enqueue?kind=plain"' in (await client.get("/kinds/plain")).text


FILLED = {"kind": "send", "argument.to": "ada", "argument.copies": "2"}


@pytest.mark.spec("ENQUEUE-02")
async def test_what_is_filled_in_is_enqueued_and_audited(app: Stoker, client: Client) -> None:
    declare(app)
    more = {"size": "large", "level": "1", "pay": "invoice", "urgent": "yes", "share": "1"}
    given = {**FILLED, **{f"argument.{name}": value for name, value in more.items()}}
    given |= {"argument.place": '{"street": "x"}', "argument.when": "2030-01-01T00:00:00Z"}
    answer = await client.post("/enqueue", given | {"queue": "", "priority": "3", "delay": "60", "unique": "k"})
    assert told(answer)["text"] == "Enqueued send."
    job = await app.handle(answer.headers["location"].rpartition("/")[2]).refresh()
    assert (job.kind, job.queue, job.priority, job.status) == ("send", "mail", 3, Status.PENDING)
    arguments, _ = app.tasks["send"].signature.decode(job.payload)
    assert arguments[:8] == ("ada", 2, Size.LARGE, Level.LOW, "invoice", True, 1.0, Place("x"))
    again = await client.post("/enqueue", FILLED | {"unique": "k"})
    assert told(again)["text"] == "No job was added: an active one has this key. This is it."
    assert again.headers["location"] == answer.headers["location"]
    assert f"Enqueued job {job.id}" in text(await client.get("/audit"))
    least = await client.post("/enqueue", FILLED)
    stored = await app.handle(least.headers["location"].rpartition("/")[2]).refresh()
    assert msgspec.json.decode(stored.payload) == {"to": "ada", "copies": 2, "urgent": False}, "the rest is its default"
    whole = await client.post("/enqueue", {"kind": "variable", "argument.value": '{"a": "b"}'})
    assert told(whole)["text"] == "Enqueued variable."


@pytest.mark.spec("ENQUEUE-03")
async def test_an_argument_that_the_task_no_longer_has_is_refused(app: Stoker, client: Client) -> None:
    """The form was loaded before a release that renamed it; the default must not take its place."""
    declare(app)
    page = await client.post("/enqueue", FILLED | {"argument.former": "7"})
    assert page.status_code == 422
    assert "The task takes no argument former: it has changed since this form was loaded." in page.text
    assert (await (await app.engine()).operator.census()).counts == ()


@pytest.mark.spec("ENQUEUE-03")
@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"argument.copies": "two"}, {"argument.copies": "must be a whole number"}),
        ({"argument.to": ""}, {"argument.to": 'is empty; write "" if you mean an empty text'}),
        (
            {"argument.copies": "1.5", "argument.share": "x"},
            {"argument.copies": "", "argument.share": "must be a number"},
        ),
        ({"argument.share": "7"}, {"argument.share": "Expected `float` <= 1.0"}),
        ({"argument.size": "huge"}, {"argument.size": "must be one of large, small"}),
        ({"argument.place": '{"number": 1}'}, {"argument.place": "Object missing required field `street`"}),
        ({"argument.place": "{"}, {"argument.place": "must be JSON"}),
        ({"argument.when": "soon"}, {"argument.when": "Invalid RFC3339 encoded datetime"}),
        ({"delay": "soon"}, {"delay": "must be a number"}),
        ({"at": "soon"}, {"at": "must be a moment"}),
        ({"priority": "7000"}, {"priority": ""}),
        ({"delay": "5", "at": "2030-01-01T00:00"}, {"at": "cannot be combined with a delay"}),
        ({"queue": "no way!"}, {"queue": ""}),
        ({"queue": "mial"}, {"queue": "queue 'mial' is not known"}),
    ],
)
async def test_what_is_wrong_stands_beside_its_field(
    app: Stoker, client: Client, given: dict[str, str], wrong: dict[str, str]
) -> None:
    declare(app)
    page = await client.post("/enqueue", FILLED | given)
    assert page.status_code == 422
    found = marked(page)
    assert found.keys() == wrong.keys()
    assert all(found[name].startswith(why) for name, why in wrong.items()), found
    assert f'value="{(FILLED | given)["argument.to"]}"' in page.text, "what was typed stays"
    assert "Nothing was stored." in page.text
    assert (await (await app.engine()).operator.census()).counts == ()


@pytest.mark.spec("ENQUEUE-03")
async def test_limits_roles_and_an_unknown_app_hold_for_the_form(app: Stoker, client: Client) -> None:
    assert (await client.get("/enqueue")).status_code == 404, "the dashboard knows no task yet"
    assert 'href="/enqueue' not in (await client.get("/kinds")).text
    declare(app)
    large = await client.post("/enqueue", FILLED | {"argument.to": "x" * (1 << 20)})
    assert large.status_code in (413, 422)

    def who(request: Any) -> Identity:
        return Identity("ben", request.headers["x-role"], frozenset(["bills"]))

    board = dashboard(app, auth=who, limits=Limits(seconds=30))
    for role, status in (("read", 403), ("operate", 403)):
        other = Client(board, **{"x-role": role})
        refused = await other.post("/enqueue", FILLED)
        assert refused.status_code == status, refused.text
        await other.close()
    await board.close()


@pytest.mark.spec("ENQUEUE-02")
async def test_the_call_takes_what_the_form_takes(app: Stoker, client: Client) -> None:
    declare(app)
    given = {"queue": "mail", "priority": 3, "unique": "k", "at": "2099-01-02T03:04:00Z"}
    body = {"kind": "send", "payload": {"to": "ada", "copies": 2}, **given}
    called = await send(client, "POST", "/jobs", body)
    assert called.status_code == 201
    by_call = await app.handle(called.json()["id"]).refresh()
    filled = {"queue": "mail", "priority": "3", "unique": "other", "at": "2099-01-02T03:04", "argument.urgent": "no"}
    answer = await client.post("/enqueue", FILLED | filled)
    by_form = await app.handle(answer.headers["location"].rpartition("/")[2]).refresh()
    for name in ("kind", "queue", "priority", "scheduled_at", "attempts"):
        assert getattr(by_form, name) == getattr(by_call, name)
    both = await send(client, "POST", "/jobs", body | {"delay": 5, "unique": "third"})
    assert both.status_code == 422

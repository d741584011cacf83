"""Every route, asked by every role, with and without a limit to some queues: what opens, and what stays shut.

The routes are those of the dashboard itself. A new one that changes something is refused here until its body is known.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple

import httpx
import pytest

from stoker.admin import Admin, documents
from stoker.app import Stoker
from stoker.model.access import ROLES, Identity, Role
from stoker.model.job import Status
from stoker.model.operations import Operation
from stoker.model.throttle import Rate
from stoker.web import Limits, dashboard
from stoker.web.actions.outbox import LETTER_VERBS
from stoker.web.board import Route
from stoker.web.routes import routes
from tests.web.conftest import ENDED, Client, beat, claim, end, enqueue

Limit = Literal["none", "own", "foreign"]
"""Whether the visitor is limited to queues, and whether what a request is about is in one of them."""

QUEUE, OTHER = "mail", "billing"

OF_NO_QUEUE = (
    *("/findings/", "/operations", "/outbox/", "/workers/"),
    *(
        "/api/v1/findings/",
        "/api/v1/groups/",
        "/api/v1/operations",
        "/api/v1/streams/",
        "/api/v1/tokens",
        "/api/v1/workers/",
    ),
)
BUDGETS = {"/limits/{name}/tune", "/limits/{name}/drain", "/api/v1/limits/{name}", "/api/v1/limits/{name}/drain"}
COUNTED = {"/operations/new"}
"""Sent like a change, and counts only."""

NOW = "2030-01-01T00:00:00Z"
BODIES: dict[str, Any] = {
    "/jobs": {"kind": "send"},
    "/jobs/bulk": {"action": "cancel", "ids": ["{job}"]},
    "/jobs/{id}": {"priority": 3},
    "/jobs/{id}/move": {"queue": "{queue}"},
    "/jobs/{id}/prioritize": {"priority": 3},
    "/jobs/{id}/signal": {"name": "go"},
    "/operations": {"action": "cancel", "q": "is:ready", "count": 1_000, "counted_at": NOW},
    "/operations/letters": {"action": "replay", "stream": "orders", "count": 5, "counted_at": NOW},
    "/findings/acknowledge": {"finding": "deaths", "reason": "known"},
    "/findings/withdraw": {"finding": "deaths"},
    "/schedules": {"name": "made", "kind": "send", "cron": "0 3 * * *"},
    "/limits/{name}": {"n": 5},
    "/queues/{name}/limits/{limit}": {"n": 5},
    "/tokens": {"name": "made"},
    "/streams/{stream}/consumers/{consumer}/release": {"key": "k"},
    "/streams/{stream}/consumers/{consumer}/seek": {"to": "end"},
    "/streams/{stream}/letters/replay": {"ids": ["{job}"]},
    "/streams/{stream}/letters/discard": {"ids": ["{job}"]},
    "/streams/{stream}/letters/resolve": {"ids": ["{job}"]},
    "/streams/{stream}/letters/restore": {"ids": ["{job}"]},
    "/streams/{stream}/letters/{id}/replace": {"payload": "{}"},
}
FORMS: dict[str, dict[str, str]] = {
    "/operations": {"do": "cancel", "q": "is:ready", "of": "1000", "count": "1000"},
    "/operations/new": {"do": "cancel", "id": "{job}"},
    "/operations/letters": {"do": "replay", "stream": "orders"},
    "/findings/acknowledge": {"finding": "deaths", "reason": "known"},
    "/findings/withdraw": {"finding": "deaths"},
    "/enqueue": {"kind": "task-{queue}"},
    "/new-schedule": {"name": "made-by-form", "kind": "send", "cron": "0 3 * * *"},
    "/jobs/{id}/move": {"queue": "{queue}"},
    "/jobs/{id}/prioritize": {"priority": "3"},
    "/jobs/{id}/signal": {"name": "go"},
    "/limits/{name}/tune": {"n": "5"},
    "/limits/{name}/set": {"limit": "l", "n": "5"},
    "/limits/{name}/clear": {"limit": "l"},
    **{f"/outbox/letters/{{stream}}/{verb}": {"id": "x"} for verb in LETTER_VERBS},
}


class Asked(NamedTuple):
    """A request: the route, what it is about, and who asks under which limit."""

    way: Route
    role: Role
    limit: Limit

    @property
    def queue(self) -> str:
        return OTHER if self.limit == "foreign" else QUEUE

    def refused(self) -> str:
        """The code of the refusal that is due; empty: it is let through."""
        way, path = self.way, self.way.path
        if ROLES.index(self.role) < ROLES.index(way.role):
            return "role"
        if self.limit == "none" or way.harmless or path in COUNTED:
            return ""
        if path in {"/api/v1/workers/{worker}/stack", "/api/v1/limits/{name}/keys"}:
            return "queue"
        if not way.changes:
            return "queue" if self.limit == "foreign" and path in {"/jobs/{id}/edit", "/jobs/{id}/move"} else ""
        belongs_nowhere = path.startswith(OF_NO_QUEUE) or path in BUDGETS
        return "queue" if belongs_nowhere or self.limit == "foreign" else ""


@pytest.fixture
async def client(app: Stoker) -> AsyncIterator[Client]:
    def who(request: Any) -> Identity:
        given = request.headers
        return Identity("ann", given["x-role"], frozenset([QUEUE] if given["x-limit"] != "none" else []))

    board = dashboard(app, auth=who, limits=Limits(seconds=30))
    client = Client(board, **{"x-role": "read", "x-limit": "none"})
    yield client
    await client.close()
    await board.close()


async def _nothing() -> None: ...


async def fill(app: Stoker) -> None:
    """Queues with a schedule each, a token, a budget and an operation."""
    engine = await app.engine()
    for queue in (QUEUE, OTHER):
        app.task(_nothing, name=f"task-{queue}", queue=queue)
        app.declare("send", queue=queue)
        await Admin(app).schedules.create(f"nightly-{queue}", app.draft("send"), cron="0 3 * * *")
        await enqueue(app, queue=queue)
    await Admin(app).tokens.create("known")
    await engine.control.tune("budget", Rate(5))
    await beat(app)
    await documents.put_operation(
        engine, Operation(id="0", who="eve", action="cancel", filter="is:ready", bound=0, started=0)
    )


async def ask(app: Stoker, client: Client, asked: Asked) -> httpx.Response:
    """Send a request that would be right for everybody who may send it."""
    way, queue = asked.way, asked.queue
    app.declare("send", queue=queue)  # the queue of the kind is the one that the request is about
    job = await enqueue(app, queue=queue)
    named = {"queues": queue, "schedules": f"nightly-{queue}", "tokens": "known"}
    root = way.path.removeprefix("/api/v1").split("/")[1]
    name = named.get(root, "budget" if way.path in BUDGETS or not way.changes else queue)
    group = (await app.group([app.draft("send")])).id if root == "groups" else ""
    ids = {"operations": "0", "groups": group}
    values = {"id": ids.get(root, job), "name": name, "limit": "l", "job": job, "queue": queue}
    values |= {"stream": "orders", "consumer": "c", "worker": "w"}
    path = way.path.format(**values)
    if path in {"/live", "/pieces"}:
        path += "?page=overview"
    path += ENDED if path.endswith("/stream") else ""
    headers = {"x-role": asked.role, "x-limit": asked.limit, "x-csrf-token": await client.csrf()}
    if way.kind == "api":
        given = BODIES.get(way.path.removeprefix("/api/v1"), {})
        body = None if way.method in {"GET", "DELETE"} else json.loads(_put(json.dumps(given), values))
        return await client.http.request(way.method, path, json=body, headers=headers)
    fields = {key: _put(value, values) for key, value in FORMS.get(way.path, {}).items()}
    data = fields if way.changes else None
    return await client.http.request(way.method, path, data=data, headers=headers)


def _put(text: str, values: dict[str, str]) -> str:
    for name in ("job", "queue"):
        text = text.replace(f"{{{name}}}", values[name])
    return text


UNUSUAL: dict[Role, list[str]] = {
    "read": ["POST /health/check", "POST /api/v1/health/check"],
    "operate": [
        "GET /jobs/{id}/edit",
        "GET /jobs/{id}/move",
        "GET /enqueue",
        "GET /operations/new",
        "GET /operations/letters/new",
        "GET /new-schedule",
    ],
    "admin": [
        *(f"POST /workers/{{worker}}/{verb}" for verb in ("quiet", "resume", "stop", "stack")),
        *(f"POST /api/v1/workers/{{worker}}/{verb}" for verb in ("quiet", "resume", "stop", "stack")),
        "GET /api/v1/workers/{worker}/stack",
        "DELETE /api/v1/streams/{stream}/consumers/{consumer}",
        "GET /api/v1/tokens",
        "POST /api/v1/tokens",
        "DELETE /api/v1/tokens/{name}",
    ],
}
"""Routes that do not follow the rule: reading needs the role read, and a change the role operate."""


@pytest.mark.spec("WEBSEC-07")
def test_reading_needs_read_and_changes_need_operate_but_for_these() -> None:
    """The matrix asks the routes which role they need; this asks whether that is the right one."""
    found: dict[Role, list[str]] = {role: [] for role in ROLES}
    for way in routes():
        usual = way.role == ("read" if way.method == "GET" else "operate")
        if way.kind != "open" and not usual:
            found[way.role].append(f"{way.method} {way.path}")
    assert {role: sorted(ways) for role, ways in found.items()} == {
        role: sorted(ways) for role, ways in UNUSUAL.items()
    }


@pytest.mark.spec("WEBSEC-07")
@pytest.mark.parametrize("limit", ["none", "own", "foreign"])
@pytest.mark.parametrize("role", ROLES)
async def test_every_route_opens_to_exactly_those_who_may(
    app: Stoker, client: Client, role: Role, limit: Limit
) -> None:
    await fill(app)
    wrong = []
    for way in client.board.routes:
        if way.kind == "open" or way.path == "/live":
            continue
        asked = Asked(way, role, limit)
        answer = await ask(app, client, asked)
        api = way.kind == "api"
        code = "" if answer.status_code != 403 else answer.json()["code"] if api else _said(answer.text)
        if code != asked.refused() or answer.status_code >= 500:
            wrong.append((way.method, way.path, answer.status_code, code, asked.refused(), answer.text[-300:]))
    assert wrong == []


def _said(page: str) -> str:
    """Which of the two refusals a page tells."""
    return "role" if "This needs the role" in page else "queue"


@pytest.mark.spec("WEBSEC-07")
async def test_what_is_sent_in_the_matrix_is_done_for_those_who_may(app: Stoker, client: Client) -> None:
    """Else a route could be refused for its body, and the matrix would prove nothing."""
    await fill(app)
    failed = []
    for way in client.board.routes:
        if way.kind == "open" or not way.changes or way.path.startswith(("/outbox", "/api/v1/streams")):
            continue
        answer = await ask(app, client, Asked(way, "admin", "none"))
        if answer.status_code >= 400:
            failed.append((way.path.removeprefix("/api/v1"), answer.status_code))
    assert [one for one in failed if one[1] not in {404, 409}] == []  # what the state of the job does not allow


@pytest.mark.spec("WEBSEC-22")
@pytest.mark.parametrize("send", ["rest", "schedule", "form"])
async def test_a_limited_visitor_enqueues_a_kind_only_into_its_own_queue(
    app: Stoker, client: Client, send: str
) -> None:
    """A worker of several queues runs every kind that it has code for, whatever the queue."""
    app.declare("send", queue=QUEUE)
    app.declare("charge", queue=OTHER)

    async def status(kind: str, queue: str | None, limit: Limit = "own") -> int:
        headers = {"x-role": "operate", "x-limit": limit, "x-csrf-token": await client.csrf()}
        given = {"kind": kind, **({} if queue is None else {"queue": queue})}
        timed = {"name": f"{kind}-{queue}-{limit}", "cron": "0 3 * * *"}
        if send == "form":
            answer = await client.http.post("/new-schedule", data=given | timed, headers=headers)
        else:
            path, more = ("/api/v1/jobs", {}) if send == "rest" else ("/api/v1/schedules", timed)
            answer = await client.http.post(path, json=given | more, headers=headers)
        return answer.status_code

    assert await status("send", None) < 400
    assert await status("send", QUEUE) < 400
    assert await status("charge", None) == 403
    assert await status("charge", QUEUE) == 403
    assert await status("send", OTHER) == 403
    assert await status("unknown", QUEUE) in {403, 422}
    assert await status("charge", QUEUE, "none") < 400


@pytest.mark.spec("WEBSEC-22")
async def test_a_bulk_call_checks_the_queue_of_every_job(app: Stoker, client: Client) -> None:
    """The one that is out of reach may be the first, the last or in between; none is changed."""
    mine = [await enqueue(app, queue=QUEUE) for _ in range(3)]
    other = await enqueue(app, queue=OTHER)
    headers = {"x-role": "operate", "x-limit": "own", "x-csrf-token": await client.csrf()}
    for at in range(4):
        chosen = [*mine[:at], other, *mine[at:]]
        sent = {"action": "cancel", "ids": chosen}
        assert (await client.http.post("/api/v1/jobs/bulk", json=sent, headers=headers)).status_code == 403, at
        form = {"do": "cancel", "id": chosen}
        assert (await client.http.post("/operations", data=form, headers=headers)).status_code == 403, at
    for id_ in (*mine, other):
        assert (await app.handle(id_).refresh()).status is Status.PENDING
    sent = {"action": "cancel", "ids": mine}
    assert (await client.http.post("/api/v1/jobs/bulk", json=sent, headers=headers)).json()["changed"] == 3


@pytest.mark.spec("WEBSEC-22")
@pytest.mark.parametrize("below", ["/operations", "/api/v1/operations"])
async def test_a_limited_visitor_neither_stops_nor_resumes_operations(app: Stoker, client: Client, below: str) -> None:
    await fill(app)
    engine = await app.engine()
    [before] = await documents.operations(engine)
    for limit, status in (("own", 403), ("none", 0)):
        headers = {"x-role": "admin", "x-limit": limit, "x-csrf-token": await client.csrf()}
        for verb in ("stop", "resume"):
            given: Any = {"json": {}} if "api" in below else {}
            answer = await client.http.post(f"{below}/0/{verb}", headers=headers, **given)
            assert (answer.status_code == 403) == (status == 403), (limit, verb, answer.text)
        if limit == "own":
            assert await documents.operations(engine) == [before]
            page = await client.get("/operations/0", headers=headers)
            assert "Stop it" not in page.text
    assert await documents.operations(engine) != [before]


@pytest.mark.spec("WEBSEC-22")
async def test_a_payload_of_another_queue_is_not_revealed(app: Stoker, client: Client) -> None:
    other, mine = await enqueue(app, queue=OTHER), await enqueue(app, queue=QUEUE)
    await end(app, await claim(app, QUEUE))
    headers = {"x-role": "operate", "x-limit": "own", "x-csrf-token": await client.csrf()}
    for id_, status in ((other, 403), (mine, 200)):
        assert (await client.http.post(f"/api/v1/jobs/{id_}/reveal", json={}, headers=headers)).status_code == status
        page = await client.http.post(f"/jobs/{id_}/reveal", headers=headers)
        assert page.status_code == (303 if status == 200 else status)
        assert (await client.get(f"/jobs/{id_}/edit", headers=headers)).status_code == status

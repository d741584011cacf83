"""Forms, pages and addresses get values that no browser sends: each is refused or taken, and none is a fault."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from stoker import Limit
from stoker.app import Stoker
from stoker.engines.base import Feature
from stoker.model import ids
from stoker.model.control import Tuning
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard
from tests.harness.letters import letters
from tests.web.conftest import Client, enqueue, text
from tests.web.test_pages import ENGINES, lively

NASTY: Final = (
    "",
    "²",
    "٣",
    "--5",
    "1" * 5_000,
    "9223372036854775808",
    "1e300",
    "-1e99",
    "1e-320",
    "nan",
    "1_000",
    "0.5",
    "a\0b",
    "\r\nset-cookie: a=b",
    "\u202e😀",
    "x" * 70_000,
    "//evil.example",
    "<script>{{7*7}}%00'",
    '{"a":' * 2_000 + "1" + "}" * 2_000,
    "[" * 60_000,
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "@every 1e300s",
    "order:finished",
    "created:>9999999d",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
)
"""Numbers that are none or that do not fit, texts that stores refuse, depth, times at both ends, and what is quoted."""

PLACES: Final = ("²", "a\0b", "\r\n", "\u202e😀", "x" * 8_000, "..", "a/b", "%", "ffffffff-ffff-ffff-ffff-ffffffffffff")
"""What an address may hold in the place of a name."""

JOB, QUEUE, SCHEDULE, LIMIT, LETTERS = "/jobs/{id}", "/queues/{name}", "/schedules/{name}", "/limits/{name}", "/outbox"
CONSUMER: Final = "/outbox/{stream}/{consumer}"

FORMS: Final[dict[str, dict[str, str]]] = {
    **{f"{JOB}/{verb}": {} for verb in ("requeue", "retry", "run-now", "discard", "restore")},
    f"{JOB}/fork": {"after": "charge"},
    f"{JOB}/cancel": {"reason": "why", "sure": "yes"},
    f"{JOB}/force-cancel": {"reason": "why", "sure": "yes"},
    f"{JOB}/delete": {"next": "/jobs"},
    f"{JOB}/move": {"queue": "default"},
    f"{JOB}/prioritize": {"priority": "5"},
    f"{JOB}/edit": {"priority": "5", "at": "2026-11-16T14:00", "payload": "{}"},
    f"{JOB}/edit-back": {},
    f"{JOB}/reveal": {"part": "payload", "raw": "1"},
    f"{JOB}/signal": {"name": "approval", "answer.value": "1"},
    "/enqueue": {
        "kind": "noted",
        "argument.n": "1",
        "argument.text": "x",
        "argument.parts": "[1]",
        "queue": "default",
        "delay": "1",
        "at": "",
        "priority": "1",
        "unique": "k",
    },
    "/operations/new": {"do": "requeue", "id": "{id}", "q": ""},
    "/operations": {"do": "prioritize", "q": "is:done", "priority": "5", "of": "99", "count": "99", "counted_at": ""},
    "/operations/letters": {
        "do": "replay",
        "of": "0",
        "count": "",
        "stream": "none",
        "consumer": "",
        "type": "",
        "key": "",
    },
    "/findings/acknowledge": {"finding": "deaths", "reason": "why", "hours": "4"},
    "/findings/withdraw": {"finding": "deaths"},
    "/operations/{id}/stop": {},
    "/operations/{id}/resume": {},
    f"{QUEUE}/pause": {"minutes": "5", "reason": "why"},
    f"{QUEUE}/resume": {},
    f"{QUEUE}/reopen": {},
    f"{QUEUE}/tune": {
        "workers": "5",
        "rate_n": "5",
        "rate_per": "1",
        "curve_base": "1",
        "curve_max": "5",
        "keep_done": "5",
        "keep_dead": "5",
        "reset": "",
    },
    "/new-schedule": {
        "name": "nightly",
        "kind": "send",
        "queue": "default",
        "payload": "{}",
        "cron": "0 3 * * *",
        "tz": "UTC",
        "misfire": "once",
        "grace": "60",
        "overlap": "allow",
        "jitter": "0",
        "preview": "",
    },
    f"{SCHEDULE}/pause": {},
    f"{SCHEDULE}/resume": {},
    f"{SCHEDULE}/run-now": {},
    f"{SCHEDULE}/reset": {},
    f"{SCHEDULE}/edit": {
        "cron": "0 3 * * *",
        "tz": "UTC",
        "misfire": "once",
        "grace": "60",
        "overlap": "allow",
        "jitter": "0",
        "preview": "",
    },
    "/workers/{worker}/take-back": {"sure": "", "next": ""},
    **{f"/workers/{{worker}}/{verb}": {"sure": "yes", "reason": "x"} for verb in ("quiet", "resume", "stop")},
    "/workers/{worker}/stack": {"sure": "", "reason": "x"},
    f"{LIMIT}/tune": {"n": "5", "per": "1"},
    f"{LIMIT}/drain": {"sure": "yes"},
    f"{LIMIT}/set": {"limit": "send", "n": "5", "before": "3"},
    f"{LIMIT}/clear": {"limit": "send"},
    "/outbox/letters/{stream}/replay": {"id": "{id}", "consumer": ""},
    "/outbox/letters/{stream}/resolve": {"id": "{id}", "consumer": ""},
    "/outbox/letters/{stream}/discard": {"id": "{id}", "consumer": ""},
    "/outbox/letters/{stream}/restore": {"id": "{id}", "consumer": "", "ended": ""},
    "/outbox/letters/{stream}/reveal": {"id": "{id}", "consumer": ""},
    "/outbox/letters/{stream}/replace": {"id": "{id}", "consumer": "", "payload": "{}"},
    f"{CONSUMER}/pause": {},
    f"{CONSUMER}/resume": {},
    f"{CONSUMER}/release": {"key": "k0"},
    "/health/check": {},
    "/theme": {"theme": "dark"},
}
"""The fields of every form, with values that are in order; `{id}` is a waiting job."""

SIGNING: Final = frozenset({"/sign-in", "/sign-out"})
"""Forms of a dashboard with tokens."""

PAGES: Final[dict[str, dict[str, str]]] = {
    "/": {"range": "", "since": "2030-01-01T00:00", "until": "2030-01-01T01:00", "times": ""},
    "/points.json": {"range": "1h", "look": "dead", "queue": "", "kind": "", "times": ""},
    "/jobs": {"q": "is:ready", "after": "", "group": "", "from": "", "add": "", "top": ""},
    "/jobs/{id}": {"attempt": "1"},
    "/jobs/{id}/edit": {},
    "/jobs/{id}/move": {},
    "/operations/new": {"do": "requeue", "q": "is:dead"},
    "/operations/letters/new": {"do": "replay", "stream": "", "consumer": "", "type": "", "key": ""},
    "/waits": {"q": "kind:send", "after": ""},
    "/enqueue": {"kind": "noted", "queue": "default"},
    "/groups": {"state": "open", "after": ""},
    "/groups/{id}": {},
    "/operations": {},
    "/operations/{id}": {},
    "/queues": {"range": "1h", "sort": "ready", "find": "", "idle": ""},
    "/queues/{name}": {"range": "1h", "times": ""},
    "/kinds": {"sort": "p95", "find": ""},
    "/kinds/{name}": {"range": "1h", "times": "wait"},
    "/workers": {"host": "", "find": "", "sort": ""},
    "/workers/{worker}": {},
    "/schedules": {},
    "/new-schedule": {},
    "/new-schedule/fires": {"cron": "0 3 * * *", "tz": "UTC"},
    "/schedules/{name}": {},
    "/limits": {"queue": "default", "after": ""},
    "/outbox": {},
    "/outbox/letters": {"stream": "", "consumer": "", "type": "", "key": "", "status": "all", "after": ""},
    "/outbox/letters/{stream}/{consumer}/{id}": {},
    "/outbox/{stream}/{consumer}": {},
    "/health": {},
    "/audit": {"since": "7d", "who": "", "target": ""},
    "/pieces": {"page": "jobs", "q": "", "id": "", "name": "", "stream": "", "consumer": "", "after": "", "top": ""},
}
"""The parameters of every page; the streams of `/live` have those of `/pieces`."""


async def filled(app: Stoker, clock: VirtualClock) -> dict[str, str]:
    """A store with something of everything, and what the addresses name."""
    found = await lively(app, clock)

    @app.task(name="noted")
    async def noted(n: int, text: str = "", parts: list[int] | None = None) -> None: ...

    engine = await app.engine()
    await app.enqueue(app.draft("send", {"k": "a"}, limit=Limit(2, key="k")))
    await engine.control.tune("default", Tuning(limits=(("send", 5),)))
    if Feature.OUTBOX in engine.features:
        await letters(engine, 1, parks=True)
    return {"id": found["scheduled"], "worker": "w", "stream": "orders", "consumer": "warehouse"}


def tried(fields: dict[str, str], request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Nothing odd, then each field with odd values: every third one, all of them in a campaign."""
    step = 1 if request.config.getoption("--campaign") else 3
    odd = [(field, value) for n, field in enumerate(fields) for value in NASTY[n % step :: step]]
    return [("", ""), *odd]


def place(path: str, places: dict[str, str]) -> str:
    noun = path.split("/")[1]
    name = {"schedules": "nightly", "limits": "stripe"}.get(noun, "default")
    if path in {f"{LIMIT}/set", f"{LIMIT}/clear"}:
        name = "default"
    return path.format(**places, name=name)


@pytest.mark.spec("WEBACT-19")
def test_the_tables_name_every_form_and_every_page(board: Dashboard) -> None:
    forms = {way.path for way in board.routes if way.method == "POST" and way.kind != "api"}
    pages = {way.path for way in board.routes if way.method == "GET" and way.kind == "page"}
    assert forms - SIGNING == FORMS.keys()
    assert pages - {"/live"} == PAGES.keys()


@pytest.mark.spec("WEBACT-19")
@pytest.mark.parametrize("path", FORMS)
async def test_no_field_of_a_form_is_a_fault(
    app: Stoker, client: Client, clock: VirtualClock, request: pytest.FixtureRequest, path: str
) -> None:
    places = await filled(app, clock)
    address = place(path, places)
    faults = []
    for field, value in tried(FORMS[path], request):
        fields = {name: given.format(**places) if given == "{id}" else given for name, given in FORMS[path].items()}
        answer = await client.post(address, {**fields, **({field: value} if field else {})})
        if answer.status_code >= 500:
            faults.append((field, value[:40], answer.status_code))
    assert faults == []


@pytest.mark.spec("WEBACT-19")
@pytest.mark.parametrize("path", PAGES)
async def test_no_parameter_of_a_page_is_a_fault(
    app: Stoker, client: Client, clock: VirtualClock, request: pytest.FixtureRequest, path: str
) -> None:
    places = await filled(app, clock)
    address = place(path, places)
    faults = []
    for field, value in tried(PAGES[path], request):
        answer = await client.get(address, params={**PAGES[path], **({field: value[:10_000]} if field else {})})
        if answer.status_code >= 500:
            faults.append((field, value[:40], answer.status_code))
    assert faults == []


@pytest.mark.spec("WEBACT-19")
@pytest.mark.parametrize("way", ["form", "page"])
async def test_no_part_of_an_address_is_a_fault(app: Stoker, client: Client, clock: VirtualClock, way: str) -> None:
    await filled(app, clock)
    faults = []
    for path in (one for one in (FORMS if way == "form" else PAGES) if "{" in one):
        for value in PLACES:
            odd = quote(value, safe="")
            address = path.format(**dict.fromkeys(("id", "name", "stream", "consumer", "worker"), odd))
            answer = await (client.post(address, FORMS[path]) if way == "form" else client.get(address))
            if answer.status_code >= 500:
                faults.append((path, value[:40], answer.status_code))
    assert faults == []


@pytest.mark.spec("WEBACT-19")
@pytest.mark.parametrize(
    "path, fields, words",
    [
        ("/operations", {"do": "requeue", "q": "is:dead", "of": "1" * 5_000}, "of: must be a whole number"),
        ("/operations", {"do": "prioritize", "q": "is:x", "priority": "1" * 5_000}, "must be"),
        ("/jobs/{id}/prioritize", {"priority": "1" * 5_000}, "priority: must be a whole number"),
        ("/jobs/{id}/edit", {"priority": "--5"}, "priority: must be a whole number"),
        ("/jobs/{id}/edit", {"priority": "²"}, "priority: must be a whole number"),
        ("/queues/default/tune", {"keep_done": "1e300"}, "keep_done: must be a number"),
        ("/new-schedule", {"name": "n", "kind": "send", "cron": "0 3 * * *", "payload": "[" * 60_000}, "64 levels"),
    ],
)
async def test_a_number_or_payload_that_does_not_fit_is_refused_by_name(
    app: Stoker, client: Client, clock: VirtualClock, path: str, fields: dict[str, str], words: str
) -> None:
    places = await filled(app, clock)
    answer = await client.post(place(path, places), fields)
    assert answer.status_code == 422
    assert words in text(answer)


@pytest.mark.spec("WEBACT-19")
async def test_jobs_with_ids_of_the_far_future_keep_nobody_from_the_list(app: Stoker, client: Client) -> None:
    """A caller may choose an id, and the time in it is the place to which a page goes back."""
    for n in range(60):
        draft = replace(app.draft("send"), job_id=ids.compose((1 << 48) - 1, n))
        await app.insert_drafts([draft])
    for path in ("/jobs", "/jobs?q=order:oldest", f"/jobs?after={'f' * 32}", "/api/v1/jobs"):
        assert (await client.get(path)).status_code == 200, path


@pytest.mark.spec("WEBACT-19")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("order", ["due", "finished"])
async def test_a_cursor_beyond_time_is_refused(app: Stoker, client: Client, order: str) -> None:
    await enqueue(app)
    for path in ("/jobs", "/api/v1/jobs"):
        answer = await client.get(path, params={"q": f"order:{order}", "after": "f" * 48})
        assert (answer.status_code, "after: " in answer.text) == (422, True), path


@pytest.mark.spec("WEBACT-19")
async def test_a_stream_is_refused_before_it_begins(
    app: Stoker, client: Client, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(app, clock)
    for query, status in (("page=jobs&top=x", 422), ("page=job&id=x", 404), ("page=operation&id=x", 404)):
        assert (await client.get(f"/live?{query}")).status_code == status, query
        assert (await client.get(f"/pieces?{query}")).status_code == status, query
    assert (client.board.hub.viewers, client.board.streams) == (0, {})
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.spec("WEBACT-19")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_no_store_is_asked_about_a_nul(client: Client) -> None:
    for path in ("/jobs?q=a%00b", "/jobs?q=%00", "/queues/a%00b", "/api/v1/queues/a%00b", "/api/v1/audit?who=%00"):
        assert (await client.get(path)).status_code == 422, path
    for path in ("/queues/a%00b/pause", "/queues/default/pause"):
        assert (await client.post(path, {"reason": "a\0b"})).status_code == 422, path


@pytest.mark.spec("WEBACT-19")
@pytest.mark.parametrize("engine_name", [pytest.param("redis", marks=pytest.mark.engine("redis"))])
async def test_forms_of_streams_say_that_a_store_has_none(client: Client) -> None:
    for path in ("/outbox/orders/warehouse/pause", "/outbox/letters/orders/replay"):
        answer = await client.post(path, {"id": "0193b0f0-0000-7000-8000-000000000001"})
        assert (answer.status_code, "redis has no streams" in text(answer)) == (409, True)

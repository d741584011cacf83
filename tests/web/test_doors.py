"""What a request must pass: host, sign-in, forgery, role, size, read-only mode; and what every answer carries."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.model.access import Identity
from stoker.model.errors import EngineUnavailable, InvalidInput, NotFound
from stoker.model.job import Status
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Limits, Open, Tokens, dashboard
from stoker.web.board import HEADERS
from stoker.web.csrf import masked, new_secret
from tests.web.conftest import ENDED, Client, claim, end, enqueue, text, watched


@pytest.fixture
async def made(app: Stoker) -> AsyncIterator[Any]:
    """Makes dashboards and closes them."""
    boards: list[Dashboard] = []

    def make(**given: Any) -> Client:
        boards.append(dashboard(app, **{"limits": Limits(seconds=30), **given}))
        return Client(boards[-1])

    yield make
    for board in boards:
        await board.close()


@pytest.mark.spec("WEBSEC-01")
async def test_every_answer_carries_the_policy(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    for way in client.board.routes:
        path = way.path.replace("{version}", "x").replace("{name:path}", "stoker.css").replace("{id}", id_)
        path = path.replace("{name}", "default").replace("{verb}", "pause")
        path += "?page=none" if path == "/live" else ENDED if path.endswith("/stream") else ""
        answer = await client.http.request(way.method, path)
        assert answer.status_code < 500, (way, answer.text)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (way.path, name)
        assert "access-control-allow-origin" not in answer.headers
        asked = {"origin": "https://evil.example", "access-control-request-method": way.method}
        preflight = await client.http.options(path, headers=asked)
        assert (preflight.status_code, "access-control-allow-origin" in preflight.headers) == (405, False), way.path
        if not path.startswith("/static"):
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.spec("WEBSEC-01")
def test_the_policy_allows_nothing_but_own_files() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["content-security-policy"].split("; "))
    own = ("script-src", "style-src", "font-src", "img-src", "connect-src", "form-action")
    shut = ("default-src", "base-uri", "frame-ancestors")
    assert policy == dict.fromkeys(own, "'self'") | dict.fromkeys(shut, "'none'")


@pytest.mark.spec("WEBSEC-02")
async def test_a_foreign_host_is_refused(client: Client) -> None:
    answer = await client.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert answer.json()["code"] == "host"
    assert (await client.get("/", headers={"host": "localhost:8642"})).status_code == 200


@pytest.mark.spec("WEBSEC-03")
async def test_an_open_dashboard_is_closed_to_other_machines(board: Dashboard) -> None:
    remote = Client(board, address="10.0.0.7")
    answer = await remote.get("/")
    assert (answer.status_code, answer.json()["code"]) == (403, "remote")
    await remote.close()


@pytest.mark.spec("WEBSEC-04")
async def test_a_dashboard_asks_for_a_token_by_default(app: Stoker, made: Any) -> None:
    client = made()
    watch = watched(client.board)
    assert isinstance(client.board.auth, Tokens)
    page = await client.get("/jobs?q=is:dead")
    assert (page.status_code, page.headers["location"]) == (303, "/sign-in?next=%2Fjobs%3Fq%3Dis%3Adead")
    assert (await client.post("/jobs/x/delete", csrf=False)).status_code == 401
    asked = await client.get("/sign-in")
    assert asked.status_code == 200
    wrong = await client.post("/sign-in", {"token": "stk_" + "x" * 43, "next": "/jobs"})
    assert wrong.status_code == 401
    assert "That token is not known or has expired." in text(wrong)
    secret = await Admin(app).tokens.create("ann", "operate")
    watch.seconds += 5
    right = await client.post("/sign-in", {"token": secret, "next": "/jobs"})
    assert (right.status_code, right.headers["location"]) == (303, "/jobs")
    cookie = next(value for value in right.headers.get_list("set-cookie") if value.startswith("stoker_session="))
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert (await client.get("/")).status_code == 200
    await client.post("/sign-out")
    assert (await client.get("/")).status_code == 303


@pytest.mark.spec("WEBSEC-04")
@pytest.mark.parametrize(
    "path",
    ["//evil.example", "https://evil.example", "/\\evil", "javascript:alert(1)", "/x\n/y", "", "//[", "//\u2100"],
)
async def test_signing_in_goes_to_no_other_site(app: Stoker, made: Any, path: str) -> None:
    client = made()
    secret = await Admin(app).tokens.create("ann")
    await client.get("/sign-in")
    answer = await client.post("/sign-in", {"token": secret, "next": path})
    assert answer.headers["location"] == "/"


@pytest.mark.spec("WEBSEC-04")
@pytest.mark.parametrize(
    "path", ["//[", "http://[::1", "/\u20ac", "/%zz", "/?q=\u2100", "/\ud800", "/\x7f", "/" + "x" * 9_000]
)
async def test_whatever_page_to_go_on_to_is_named_signing_in_answers(app: Stoker, made: Any, path: str) -> None:
    client = made()
    named = quote(path, errors="surrogatepass")
    assert (await client.get(f"/sign-in?next={named}")).status_code == 200
    secret = await Admin(app).tokens.create("ann")
    fields = f"token={secret}&next={named}&csrf={await client.csrf()}"
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = await client.http.post("/sign-in", content=fields, headers=headers)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/")
    assert not answer.headers["location"].startswith("//")


@pytest.mark.spec("WEBSEC-23")
async def test_cookies_of_https_are_bound_to_their_host(app: Stoker, made: Any) -> None:
    client = made(hosts=None)
    secret = await Admin(app).tokens.create("ann")
    mounted = Client(client.board, root="/jobs")
    for one, site, name, where in (
        (client, "https://127.0.0.1", "__Host-stoker_session", "Path=/;"),
        (mounted, "https://127.0.0.1/jobs", "__Secure-stoker_session", "Path=/jobs;"),
        (client, "http://127.0.0.1", "stoker_session", "Path=/;"),
    ):
        asked = await one.get(f"{site}/sign-in")
        [token] = re.findall(r'name="csrf" value="([^"]+)"', asked.text)
        answer = await one.http.post(f"{site}/sign-in", data={"token": secret, "csrf": token})
        [cookie] = [given for given in answer.headers.get_list("set-cookie") if given.startswith(f"{name}=")]
        assert answer.status_code == 303
        assert where in f"{cookie};"
        assert ("Secure" in cookie.partition("=")[2]) == site.startswith("https")
        assert (await one.get(f"{site}/queues")).status_code == 200
    await mounted.close()


@pytest.mark.spec("WEBSEC-05")
async def test_tokens_are_hashed_expire_and_are_revoked(app: Stoker, made: Any, clock: VirtualClock) -> None:
    admin = Admin(app).tokens
    secret = await admin.create("ci", "read", queues=["mail"], expires=60, create=True)
    assert len(secret) >= 4 + 22  # 128 bits at least
    [stored] = await admin.list()
    assert secret not in json.dumps(str(stored))
    with pytest.raises(InvalidInput, match="name of another token"):
        await admin.create("ci")
    client = made()
    watch = watched(client.board)

    async def status(given: str) -> int:
        watch.seconds += 5
        answer = await client.get("/jobs", headers={"authorization": f"Bearer {given}"})
        return int(answer.status_code)

    assert await status(secret) == 200
    clock.advance(61)
    assert await status(secret) == 303
    lasting = await admin.create("bot", "read")
    assert await status(lasting) == 200
    for wrong in (lasting[:-1], lasting + "x", lasting.upper(), "stk_", "", lasting.removeprefix("stk_")):
        assert await status(wrong) == 303, wrong
    await admin.revoke("bot")
    await admin.revoke("bot")
    assert await status(lasting) == 303
    with pytest.raises(NotFound):
        await admin.revoke("nobody")


@pytest.mark.spec("WEBSEC-06")
async def test_the_host_app_signs_people_in(app: Stoker, made: Any) -> None:
    def who(request: Any) -> Identity | None:
        name = request.headers.get("x-user")
        return Identity(name, "operate") if name == "ann@example.com" else None

    client = made(auth=who)
    assert (await client.get("/")).status_code == 401
    assert (await client.get("/", headers={"x-user": "ann@example.com.evil"})).status_code == 401
    assert (await client.get("/", headers={"x-user": "ann@example.com"})).status_code == 200

    async def wrong(request: Any) -> Any:
        return "ann"

    assert (await made(auth=wrong).get("/")).status_code == 500


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.spec("WEBSEC-27")
async def test_a_browser_that_the_host_app_does_not_know_is_sent_to_its_sign_in(made: Any) -> None:
    def nobody(request: Any) -> None: ...

    client = made(auth=nobody, login_url="/login?from=jobs")
    sent = await client.get("/jobs?q=is:dead", headers=BROWSER)
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?from=jobs&next=%2Fjobs%3Fq%3Dis%3Adead")
    for path, headers in (("/api/v1/jobs", BROWSER), ("/live?page=overview", BROWSER), ("/jobs", {})):
        program = await client.get(path, headers=headers)
        assert (program.status_code, "location" in program.headers) == (401, False), path
    with pytest.raises(InvalidInput, match="goes with a function as auth="):
        made(auth=Tokens(), login_url="/login")


@pytest.mark.spec("WEBSEC-27")
async def test_without_a_sign_in_a_browser_gets_a_page_and_a_program_problem_details(made: Any) -> None:
    def nobody(request: Any) -> None: ...

    client = made(auth=nobody)
    page = await client.get("/jobs", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "The app around this dashboard does not know you." in page.text
    assert "<nav" not in page.text, "nothing of the store is shown"
    program = await client.get("/jobs")
    assert (program.status_code, program.json()["code"]) == (401, "stranger")


@pytest.mark.spec("WEBSEC-07")
async def test_roles_open_exactly_their_routes(app: Stoker, made: Any) -> None:
    id_ = await enqueue(app)
    for role, refused in (("read", {"operate", "admin"}), ("operate", {"admin"}), ("admin", set[str]())):
        client = made(auth=lambda _, role=role: Identity("ann", role))
        for way in client.board.routes:
            if way.kind == "open" or way.path == "/live":
                continue
            path = way.path.replace("{id}", id_).replace("{name}", "default").replace("{verb}", "none")
            path += ENDED if path.endswith("/stream") else ""
            token = {"x-csrf-token": await client.csrf()}
            answer = await client.http.request(way.method, path, headers=token)
            assert (answer.status_code == 403) == (way.role in refused), (
                role,
                way.method,
                way.path,
                answer.status_code,
            )


@pytest.mark.spec("WEBSEC-07")
async def test_an_identity_of_some_queues_changes_nothing_elsewhere(app: Stoker, made: Any) -> None:
    mine, other = await enqueue(app, queue="mail"), await enqueue(app, queue="billing")
    client = made(auth=lambda _: Identity("ci", "operate", frozenset({"mail"})))
    assert (await client.post(f"/jobs/{other}/cancel")).status_code == 403
    assert (await client.post("/queues/billing/pause")).status_code == 403
    assert (await client.post("/operations", {"do": "cancel", "q": "is:ready", "of": "2"})).status_code == 403
    assert (await client.post("/operations", [("do", "cancel"), ("id", mine), ("id", other)])).status_code == 403
    assert (await app.handle(mine).refresh()).status is Status.PENDING
    assert (await client.post(f"/jobs/{mine}/cancel")).status_code == 303
    assert (await client.post("/queues/mail/pause")).status_code == 303


@pytest.mark.spec("WEBSEC-08")
async def test_another_sites_form_changes_nothing(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    path, token = f"/jobs/{id_}/cancel", await client.csrf()
    attempts: list[dict[str, Any]] = [
        {"csrf": False},
        {"csrf": False, "fields": {"csrf": "x" * 43}},
        {"csrf": False, "fields": {"csrf": masked(new_secret())}},  # a token of another browser
        {"csrf": False, "headers": {"x-csrf-token": masked(new_secret())}},
        {"headers": {"origin": "https://evil.example"}},
        {"headers": {"origin": "null"}},
        {"headers": {"sec-fetch-site": "cross-site"}},
        {"headers": {"sec-fetch-site": "same-site"}},
        {"csrf": False, "headers": {"x-csrf-token": "wrong"}},
    ]
    for attempt in attempts:
        answer = await client.post(path, attempt.pop("fields", None), **attempt)
        assert answer.status_code == 403, attempt
    assert (await app.handle(id_).refresh()).status is Status.PENDING
    assert (await client.get(path)).status_code == 405
    good = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin", "x-csrf-token": token}
    assert (await client.post(path, csrf=False, headers=good)).status_code == 303


@pytest.mark.spec("WEBSEC-09")
async def test_reading_changes_nothing(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    for way in client.board.routes:
        if way.changes:
            path = way.path.replace("{id}", id_).replace("{name}", "default").replace("{verb}", "cancel")
            assert (await client.get(path)).status_code in {200, 303, 404, 405, 422}, way
    assert (await app.handle(id_).refresh()).status is Status.PENDING


@pytest.mark.spec("WEBSEC-10")
async def test_read_only_is_kept_by_the_server(app: Stoker, made: Any) -> None:
    id_ = await enqueue(app)
    client = made(auth=Open(), read_only=True)
    for way in client.board.routes:
        if way.changes and way.kind != "open" and not way.harmless:
            path = way.path.replace("{id}", id_).replace("{name}", "default").replace("{verb}", "cancel")
            assert (await client.http.request(way.method, path)).status_code == 405, way
    page = await client.get(f"/jobs/{id_}")
    assert "Cancel" not in text(page)
    assert "You can look, not change." in text(await client.get("/jobs"))
    assert [way.path for way in client.board.routes if way.harmless] == ["/health/check", "/api/v1/health/check"]
    assert (await client.post("/health/check")).status_code == 303


@pytest.mark.spec("WEBSEC-11")
async def test_sizes_and_numbers_are_bounded(app: Stoker, made: Any) -> None:
    client = made(auth=Open(), limits=Limits(seconds=30, body=1_000))
    assert (await client.post("/theme", {"x": "y" * 2_000})).status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 500

    token = {"x-csrf-token": await client.csrf()}
    answer = await client.http.post("/theme", content=endless(), headers=token)
    assert answer.status_code == 413
    full = made(auth=Open(), limits=Limits(requests=0))
    assert (await full.get("/")).status_code == 503
    assert (await client.get("/jobs", params={"q": "x" * 3_000})).status_code == 422


@pytest.mark.spec("WEBSEC-18")
async def test_health_says_when_it_came_without_tls(app: Stoker, made: Any) -> None:
    near = made(auth=lambda _: Identity("ann"))
    assert "without TLS" not in text(await near.get("/health"))
    far = Client(near.board, address="10.0.0.7")
    assert "This page came without TLS" in text(await far.get("/health"))
    assert "without TLS" not in text(await far.get("https://127.0.0.1/health"))
    await far.close()


@pytest.mark.spec("WEBSEC-12")
async def test_a_fault_names_the_request_and_nothing_else(
    app: Stoker, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await enqueue(app)

    async def broken() -> None:
        raise RuntimeError("secret detail: postgresql://user:hunter2@db/shop")

    monkeypatch.setattr(client.board.hub, "reading", broken)
    answer = await client.get("/")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["x-request-id"] in answer.text
    assert answer.headers["x-request-id"] in caplog.text


@pytest.mark.spec("WEB-13")
async def test_a_store_that_is_away_shows_the_last_reading(
    app: Stoker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(app)
    assert (await client.get("/")).status_code == 200

    async def away() -> None:
        raise EngineUnavailable("asyncpg.exceptions.CannotConnectNowError: the database system is starting up")

    monkeypatch.setattr(client.board.hub, "reading", away)
    for path in ("/", "/queues", "/kinds"):
        answer = await client.get(path)
        assert answer.status_code == 503
        assert "The store does not answer" in text(answer)
        assert "asyncpg" not in answer.text
        assert "default" in text(answer)


@pytest.mark.spec("WEBSEC-13")
async def test_canaries_in_stored_text_stay_text(app: Stoker, client: Client) -> None:
    canary = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{7*7}}"
    draft = app.draft("send", tenant=canary[:60], metadata={"note": canary}, unique=canary[:60], payload={"x": canary})
    await app.enqueue(draft)
    await end(app, await claim(app), Status.DEAD, f'ValueError: {canary}\n  File "{canary}"')
    for path in ("/", "/jobs", f"/jobs/{_id(draft)}", "/kinds", "/jobs?q=is:dead&group=error", "/health"):
        body = (await client.get(path)).text
        assert "<img src=x" not in body, path
        assert "<script>alert" not in body, path
        assert "49" not in re.findall(r"ValueError: [^<]*", body)
    echoed = await client.get("/jobs", params={"q": canary, "after": canary, "range": canary})
    assert "<img src=x" not in echoed.text
    missing = await client.get(f"/{canary}")
    assert "<img" not in missing.text


def _id(draft: Any) -> str:
    return str(draft.id)


@pytest.mark.spec("WEBSEC-14")
async def test_static_files_are_the_listed_ones_and_kept_for_a_year(client: Client) -> None:
    page = (await client.get("/")).text
    urls = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page))
    assert urls
    for url in urls:
        answer = await client.get(url)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    for outside in (
        "/static/x/../board.py",
        "/static/x/..%2fboard.py",
        "/static/x/%2e%2e/board.py",
        "/static/x/none.js",
    ):
        assert (await client.get(outside)).status_code in {303, 404}, outside
    assert isinstance(client.http, httpx.AsyncClient)

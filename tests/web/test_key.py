"""The key of a dashboard: what it opens, what stays shut without it, and dashboards that ask for none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from stoker.app import Stoker
from stoker.model.errors import InvalidInput
from stoker.web import Dashboard, Key, Limits, Open, dashboard
from tests.web.conftest import Client, enqueue, text
from tests.web.serving import Served

SECRET = "a-key-of-24-letters-1234"


@pytest.fixture
async def locked(app: Stoker) -> AsyncIterator[Dashboard]:
    board = dashboard(app, auth=Key(SECRET), limits=Limits(seconds=30))
    yield board
    await board.close()


@pytest.fixture
async def visitor(locked: Dashboard) -> AsyncIterator[Client]:
    client = Client(locked)
    yield client
    await client.close()


@asynccontextmanager
async def bare_proxy(port: int) -> AsyncIterator[str]:
    """A proxy on this machine that passes every byte on and adds none; yields its address."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, forth), pump(back, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.spec("WEBSEC-21")
async def test_behind_a_bare_proxy_nothing_opens_without_the_key() -> None:
    """To the dashboard every client of such a proxy comes from this machine, with no header that says otherwise."""
    served = Served(dashboard(Stoker("memory://"), auth=Key(SECRET), limits=Limits(seconds=30)))
    try:
        async with bare_proxy(int(served.url.rpartition(":")[2])) as site, httpx.AsyncClient(base_url=site) as client:
            for path in ("/", "/jobs", "/health", "/live?page=overview", "/api/v1/jobs", "/nowhere", "/?key=guess"):
                assert (await client.get(path)).status_code == 401, path
            for path in ("/api/v1/jobs", "/queues/mail/pause", "/operations"):
                assert (await client.post(path)).status_code == 401, path
            opened = await client.get("/jobs", headers={"authorization": f"Bearer {SECRET}"})
            assert opened.status_code == 200
    finally:
        served.close()


@pytest.mark.spec("WEBSEC-21")
async def test_the_address_with_the_key_opens_a_session_and_is_cleaned(app: Stoker, visitor: Client) -> None:
    id_ = await enqueue(app)
    asked = await visitor.get("/jobs")
    assert (asked.status_code, "printed with the key" in text(asked)) == (401, True)
    answer = await visitor.get("/jobs", params={"q": "is:ready kind:send", "key": SECRET})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?q=is%3Aready+kind%3Asend")
    cookie = next(value for value in answer.headers.get_list("set-cookie") if value.startswith("stoker_session="))
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Max-Age" not in cookie  # it goes when the browser does
    assert SECRET not in cookie
    assert (await visitor.get(answer.headers["location"])).status_code == 200
    assert (await visitor.post(f"/jobs/{id_}/cancel")).status_code == 303
    [entry] = (await visitor.get("/api/v1/audit")).json()["entries"]
    assert entry["who"] == "local"
    stale = await visitor.get("/queues?key=of-an-earlier-process")
    assert (stale.status_code, stale.headers["location"]) == (303, "/queues")


@pytest.mark.spec("WEBSEC-21")
async def test_the_key_is_typed_on_the_page_that_asks_for_it(visitor: Client) -> None:
    await visitor.get("/queues")
    wrong = await visitor.post("/sign-in", {"token": SECRET[:-1], "next": "/queues"})
    assert (wrong.status_code, "That is not the key" in text(wrong)) == (401, True)
    right = await visitor.post("/sign-in", {"token": f" {SECRET} ", "next": "/queues"})
    assert (right.status_code, right.headers["location"]) == (303, "/queues")
    assert (await visitor.get("/queues")).status_code == 200


@pytest.mark.spec("WEBSEC-21")
async def test_programs_send_the_key_in_a_header(visitor: Client) -> None:
    async def status(header: str, method: str = "GET") -> int:
        path = "/api/v1/jobs" if method == "GET" else "/api/v1/queues/default/pause"
        headers = {b"authorization": header.encode("latin-1"), b"content-type": b"application/json"}
        return (await visitor.http.request(method, path, headers=headers)).status_code

    assert await status(f"Bearer {SECRET}") == 200
    assert await status(f"bearer {SECRET}", "POST") == 200
    for wrong in (f"Basic {SECRET}", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", "Bearer", "Bearer \u00e9", SECRET):
        assert await status(wrong) == 401, wrong
    assert (await visitor.get("/api/v1/jobs", params={"key": SECRET})).status_code == 401
    token = {"authorization": f"Bearer stk_{'x' * 43}"}
    detail = (await visitor.http.get("/api/v1/jobs", headers=token)).json()["detail"]
    assert "asks for the key" in detail
    assert "tokens only with --auth tokens" in detail


@pytest.mark.spec("WEBSEC-21")
async def test_signing_out_ends_a_session_and_no_other(locked: Dashboard) -> None:
    ann, bob = Client(locked), Client(locked)
    for client in (ann, bob):
        assert (await client.get("/", params={"key": SECRET})).status_code == 303
    kept = dict(ann.http.cookies)
    assert (await ann.post("/sign-out")).status_code == 303
    ann.http.cookies.update(kept)
    assert (await ann.get("/")).status_code == 401
    assert (await bob.get("/")).status_code == 200
    for forged in ("x.y", ".", "x", kept["stoker_session"] + "0", kept["stoker_session"].replace(".", "x.", 1)):
        ann.http.cookies.set("stoker_session", forged)
        assert (await ann.get("/")).status_code == 401, forged
    for client in (ann, bob):
        await client.close()


@pytest.mark.spec("WEBSEC-21")
async def test_a_session_ends_with_its_key(app: Stoker, visitor: Client) -> None:
    await visitor.get("/", params={"key": SECRET})
    other = dashboard(app, auth=Key(), limits=Limits(seconds=30))
    later = Client(other)
    later.http.cookies.update(visitor.http.cookies)
    assert (await later.get("/")).status_code == 401
    await later.close()
    await other.close()


@pytest.mark.spec("WEBSEC-21")
async def test_dashboards_on_two_ports_keep_their_cookies_apart(visitor: Client) -> None:
    """Browsers send the cookies of one port of a machine to all others."""
    first = await visitor.get("http://127.0.0.1:8642/", params={"key": SECRET})
    second = await visitor.get("http://127.0.0.1:8643/", params={"key": SECRET})
    names = [[one.partition("=")[0] for one in each.headers.get_list("set-cookie")] for each in (first, second)]
    assert names == [["stoker_session_8642", "stoker_csrf_8642"], ["stoker_session_8643", "stoker_csrf_8643"]]
    assert (await visitor.get("http://127.0.0.1:8642/")).status_code == 200
    assert (await visitor.get("http://127.0.0.1:8644/")).status_code == 401


@pytest.mark.spec("WEBSEC-21")
def test_a_key_is_random_or_long_and_is_not_shown() -> None:
    first, second = Key(), Key()
    assert first.secret != second.secret
    assert len(first.secret) >= 43  # 256 bits
    assert first.secret not in repr(first)
    for weak in ("", "short", "x" * 201, "with a space in it, long", "a-key-with-\u00e9-in-it-long"):
        with pytest.raises(InvalidInput, match="cannot be guessed") as caught:
            Key(weak)
        assert not weak or weak not in str(caught.value)


@pytest.mark.spec("WEBSEC-03")
@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Prefix", "X-Real-IP", "Via"])
async def test_an_open_dashboard_is_closed_to_proxies(client: Client, name: str) -> None:
    for path in ("/", "/api/v1/jobs", "/sign-in"):
        answer = await client.get(path, headers={name: "127.0.0.1"})
        assert (answer.status_code, answer.json()["code"]) == (403, "proxy"), path


@pytest.mark.spec("WEBSEC-03")
async def test_an_open_dashboard_is_closed_to_proxies_whatever_a_server_makes_of_them() -> None:
    """The server takes the client's address from a header that a proxy on its machine sends, and that can be forged."""
    served = Served(dashboard(Stoker("memory://"), auth=Open(), limits=Limits(seconds=30)))
    try:
        async with httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/")).status_code == 200
            for address in ("203.0.113.7", "127.0.0.1"):
                assert (await client.get("/", headers={"x-forwarded-for": address})).status_code == 403
    finally:
        served.close()


@pytest.mark.spec("WEBSEC-03")
async def test_an_open_dashboard_has_no_name_for_other_machines(app: Stoker) -> None:
    with pytest.raises(InvalidInput, match=r"Tokens\(\)"):
        dashboard(app, auth=Open(), hosts=["stoker.example.com"])
    near: Any = dashboard(app, auth=Open(), hosts=["localhost"])
    await near.close()

"""Answers in fewer bytes: what is compressed, for whom, and that the length of a page tells nothing of its token."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator

import pytest

from stoker.app import Stoker
from stoker.web import Dashboard, Limits, Open, assets, dashboard
from stoker.web.compress import LEAST, compress, takes_gzip
from stoker.web.csrf import fits, masked, new_secret
from tests.web.conftest import Client

GZIP = {"accept-encoding": "gzip"}


@pytest.fixture
async def board(app: Stoker) -> AsyncIterator[Dashboard]:
    board = dashboard(app, auth=Open(), limits=Limits(seconds=30), compress=True)
    yield board
    await board.close()


async def raw(client: Client, path: str, **headers: str) -> tuple[dict[str, str], bytes]:
    """The headers of an answer, and its bytes as they were sent."""
    async with client.http.stream("GET", path, headers=headers) as answer:
        return dict(answer.headers), b"".join([part async for part in answer.aiter_raw()])


@pytest.mark.spec("WEB-80")
async def test_pages_json_and_files_are_sent_in_fewer_bytes(client: Client) -> None:
    style = f"/static/{assets.version()}/stoker.css"
    for path, least in ((style, 3), ("/", 2), ("/api/v1/openapi.json", 4)):
        headers, body = await raw(client, path, **GZIP)
        assert headers["content-encoding"] == "gzip", path
        assert int(headers["content-length"]) == len(body)
        assert len(gzip.decompress(body)) > least * len(body), path
        plain, whole = await raw(client, path, **{"accept-encoding": "identity"})
        assert "content-encoding" not in plain
        assert plain["vary"] == headers["vary"] == "Accept-Encoding"
        if path != "/":
            assert gzip.decompress(body) == whole
    assert (await raw(client, style, **GZIP))[1] is not None
    font = next(name for name in assets.files() if name.endswith(".woff2"))
    headers, body = await raw(client, f"/static/{assets.version()}/{font}", **GZIP)
    assert "content-encoding" not in headers
    assert body == assets.files()[font]
    headers, body = await raw(client, "/api/v1/operations", **GZIP)
    assert ("content-encoding" in headers, len(body) < LEAST) == (False, True)


@pytest.mark.spec("WEB-80")
async def test_a_stream_is_never_compressed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.board.limits = Limits(seconds=30, stream_seconds=0)
    headers, body = await raw(client, "/live?page=overview", **GZIP)
    assert headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in headers
    assert body.startswith(b"event: hello")


@pytest.mark.spec("WEB-80")
async def test_a_mounted_dashboard_does_not_compress_by_itself(app: Stoker) -> None:
    board = dashboard(app, auth=Open(), limits=Limits(seconds=30))
    client = Client(board)
    headers, body = await raw(client, "/", **GZIP)
    assert "content-encoding" not in headers
    assert body.startswith(b"<!")
    await client.close()
    await board.close()


@pytest.mark.spec("WEB-80")
@pytest.mark.parametrize(
    "header, takes",
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0, *", False),
        ("identity", False),
        ("", False),
        ("gzip;q=much", False),
    ],
)
def test_the_reader_decides(header: str, takes: bool) -> None:
    assert takes_gzip(header) is takes


@pytest.mark.spec("WEBSEC-28")
async def test_two_answers_share_nothing_of_the_token(client: Client) -> None:
    found: list[str] = []
    secret = await client.csrf() and client.http.cookies["stoker_csrf"]
    for _ in range(2):
        page = await client.get("/queues")
        assert secret not in page.text
        tokens = set(re.findall(r'name="csrf" value="([^"]+)"', page.text))
        assert len(tokens) == 1, "one mask for an answer"
        found += tokens
    one, other = found
    assert all(one[at : at + 6] not in other for at in range(len(one) - 5))
    assert all(secret[at : at + 6] not in token for token in found for at in range(len(secret) - 5))
    assert all(fits(secret, token) for token in found)
    for given in found:
        assert (await client.post("/theme", {"theme": "dark", "csrf": given}, csrf=False)).status_code == 303


@pytest.mark.spec("WEBSEC-28")
async def test_the_secret_itself_and_what_is_no_token_are_refused(client: Client) -> None:
    secret = new_secret()
    token = masked(secret)
    assert fits(secret, token)
    assert not fits(new_secret(), token)
    flipped = ("A" if token[60] != "A" else "B").join((token[:60], token[61:]))
    for wrong in (secret, secret * 2, flipped, token[:-1], f"{token}A", "", "é" * 86, token.replace(token[0], "+")):
        assert not fits(secret, wrong), wrong
    assert not fits("", token)
    await client.get("/")
    stored = client.http.cookies["stoker_csrf"]
    assert (await client.post("/theme", {"theme": "dark", "csrf": stored}, csrf=False)).status_code == 403


@pytest.mark.spec("WEB-80")
def test_a_file_is_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.requests import Request
    from starlette.responses import Response

    calls: list[int] = []
    real = gzip.compress

    def counted(body: bytes, level: int, *, mtime: float) -> bytes:
        calls.append(level)
        return real(body, level, mtime=mtime)

    monkeypatch.setattr(gzip, "compress", counted)
    request = Request({"type": "http", "headers": [(b"accept-encoding", b"gzip")]})
    body = b"a { color: red }\n" * 1_000
    for _ in range(3):
        response = Response(body, headers={"cache-control": "public, immutable", "content-type": "text/css"})
        compress(request, response)
        assert gzip.decompress(bytes(response.body)) == body
    assert len(calls) == 1

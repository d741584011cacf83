"""A dashboard on a store of its own, and a client that behaves like a browser without script."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisEngine
from stoker.model.control import Presence
from stoker.model.job import Claim, Demand, Settlement, Status
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Limits, Open, dashboard
from stoker.web.csrf import masked
from stoker.web.tokens import KnownTokens
from tests.harness.apps import make_engine


@pytest.fixture
def engine_name() -> str:
    return "memory"


@pytest.fixture
def store(request: pytest.FixtureRequest, engine_name: str, tmp_path: Path, clock: VirtualClock) -> Engine:
    if engine_name == "postgres":
        url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        return PostgresEngine(url, schema=schema, clock=clock)
    if engine_name == "redis":
        url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
        return RedisEngine(url, prefix=prefix, clock=clock)
    return make_engine(engine_name, tmp_path, clock)


@pytest.fixture
async def app(store: Engine) -> AsyncIterator[Stoker]:
    app = Stoker(store)
    for kind in ("send", "resize", "charge"):
        app.declare(kind)
    yield app
    await app.close()


class Client:
    """Asks for pages and sends the forms that it finds on them."""

    def __init__(self, board: Dashboard, address: str = "127.0.0.1", root: str = "", **headers: str) -> None:
        self.board = board
        transport = httpx.ASGITransport(board, client=(address, 5000), root_path=root, raise_app_exceptions=True)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)

    async def get(self, path: str, **given: Any) -> httpx.Response:
        return await self.http.get(path, **given)

    async def csrf(self) -> str:
        if "stoker_csrf" not in self.http.cookies:
            await self.get("/")
        return masked(self.http.cookies.get("stoker_csrf") or "")

    async def post(self, path: str, fields: Any = None, *, csrf: bool = True, **given: Any) -> httpx.Response:
        sent = [*(fields.items() if isinstance(fields, dict) else fields or [])]
        if csrf:
            sent.append(("csrf", await self.csrf()))
        body = "&".join(f"{httpx.QueryParams({name: value})}" for name, value in sent)
        headers = {"content-type": "application/x-www-form-urlencoded", **given.pop("headers", {})}
        return await self.http.post(path, content=body, headers=headers, **given)

    async def close(self) -> None:
        await self.http.aclose()


@pytest.fixture
async def board(app: Stoker) -> AsyncIterator[Dashboard]:
    board = dashboard(app, auth=Open("ann"), limits=Limits(seconds=30))  # the machine may be busy
    yield board
    await board.close()


@pytest.fixture
async def client(board: Dashboard) -> AsyncIterator[Client]:
    client = Client(board)
    yield client
    await client.close()


class Watch:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def watched(board: Dashboard) -> Watch:
    """Let a watch say how old the tokens are that the dashboard has read."""
    watch = Watch()
    board.door = KnownTokens(watch)
    return watch


ENDED = "?after=0-end"
"""For a stream of a job: its reader has seen the end, so that it does not stay open."""


async def enqueue(app: Stoker, kind: str = "send", **options: Any) -> str:
    return (await app.enqueue(app.draft(kind, **options))).id


async def claim(app: Stoker, queue: str = "default", n: int = 100, worker: str = "w") -> list[Claim]:
    engine = await app.engine()
    await engine.jobs.renew(worker, [], first=True)
    return await engine.jobs.claim(Demand(worker, ((queue, n),), n))


async def end(
    app: Stoker, claims: list[Claim], status: Status = Status.DEAD, error: str | None = "KeyError: 'sku'"
) -> None:
    engine = await app.engine()
    await engine.jobs.settle([Settlement(one.id, one.worker, one.token, status, error=error) for one in claims])


async def beat(app: Stoker, worker: str = "w", queues: dict[str, int] | None = None, **given: Any) -> None:
    engine = await app.engine()
    fields: dict[str, Any] = {"host": "fra-1", "pid": 2201, "queues": queues or {"default": 5}, "version": "0.4.0"}
    await engine.control.beat(Presence(worker=worker, **fields | given))


def text(response: httpx.Response) -> str:
    """What a reader sees, without markup."""
    body = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", response.text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)).replace("\u00a0", " ")

"""The dashboard inside other apps: Starlette, FastAPI, Flask through a bridge, Django's ASGI entry."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from a2wsgi import ASGIMiddleware
from django.core.handlers.asgi import ASGIHandler
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from stoker.app import Stoker
from stoker.model.access import Identity
from stoker.web import Dashboard, Limits, dashboard
from tests.web.conftest import enqueue


def who(request: Any) -> Identity | None:
    return Identity("ann", "operate") if request.headers.get("x-user") == "ann" else None


@pytest.fixture
async def mounted(app: Stoker) -> AsyncIterator[Dashboard]:
    board = dashboard(app, auth=who, limits=Limits(seconds=30))
    yield board
    await board.close()


async def walk(host: Any, id_: str) -> None:
    """Look at pages, follow a link, and cancel a job through its form."""
    transport = httpx.ASGITransport(host)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers={"x-user": "ann"}) as client:
        assert (await client.get("/jobs/", headers={"x-user": "eve"})).status_code == 401
        page = await client.get("/jobs/jobs")
        assert page.status_code == 200
        assert f'href="/jobs/jobs/{id_}"' in page.text
        css = re.search(r'href="(/jobs/static/[^"]+\.css)"', page.text)
        assert css is not None
        assert (await client.get(css[1])).headers["content-type"].startswith("text/css")
        token = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert token is not None
        done = await client.post(f"/jobs/jobs/{id_}/cancel", data={"csrf": token[1]})
        assert (done.status_code, done.headers["location"]) == (303, f"/jobs/jobs/{id_}")
        assert "canceled" in (await client.get(f"/jobs/api/v1/jobs/{id_}")).text


@pytest.mark.spec("HOST-01")
@pytest.mark.parametrize("kind", ["starlette", "fastapi"])
async def test_it_is_mounted_in_starlette_and_fastapi(app: Stoker, mounted: Dashboard, kind: str) -> None:
    host: Any = Starlette(routes=[Mount("/jobs", mounted)])
    if kind == "fastapi":
        host = FastAPI()
        host.mount("/jobs", mounted)
    await walk(host, await enqueue(app))


@pytest.mark.spec("HOST-02")
async def test_it_stands_beside_django(app: Stoker, mounted: Dashboard) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/jobs/"):
            await mounted({**scope, "root_path": "/jobs"}, receive, send)
        else:
            await ASGIHandler()(scope, receive, send)

    await walk(application, await enqueue(app))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, for the bridge: the loop that the bridge would make is never closed."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.mark.spec("HOST-03")
def test_it_is_mounted_in_flask_through_a_bridge(loop: asyncio.AbstractEventLoop) -> None:
    app = Stoker("memory://")
    app.declare("send")
    board: Any = dashboard(app, auth=who, limits=Limits(seconds=30))
    site = Flask(__name__)
    bridge: Any = ASGIMiddleware(board, loop=loop)
    site.wsgi_app = DispatcherMiddleware(site.wsgi_app, {"/jobs": bridge})  # type: ignore[method-assign]
    client = site.test_client()
    assert client.get("/jobs/").status_code == 401
    page = client.get("/jobs/", headers={"x-user": "ann"})
    assert page.status_code == 200
    assert 'href="/jobs/queues"' in page.text
    assert client.get("/jobs/api/v1/overview", headers={"x-user": "ann"}).status_code == 200
    asyncio.run_coroutine_threadsafe(board.close(), loop).result(60)

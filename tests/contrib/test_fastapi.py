"""FastAPI and Starlette: the app is opened with the server, a worker inside it, a dependency, the dashboard."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import Depends, FastAPI, Request
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

from stoker import Stoker, Task, Worker
from stoker.contrib.fastapi import get_jobs, lifespan
from stoker.model.errors import InvalidInput, StokerError
from stoker.testing import TestKit
from stoker.web import Dashboard, Identity
from tests.harness.apps import PATIENCE
from tests.worker.shell import ROOT, until

Jobs = Annotated[Stoker, Depends(get_jobs)]


async def joined(request: Request) -> AsyncIterator[Session]:
    with Session(request.app.state.database) as session, get_jobs(request).joining(session):
        yield session


Joined = Annotated[Session, Depends(joined)]


def shop(tmp_path: Path) -> tuple[Stoker, Task[[int], int]]:
    jobs = Stoker(f"sqlite:///{tmp_path}/shop.db", durability="process")

    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    return jobs, double


@pytest.mark.spec("FASTAPI-01")
def test_routes_enqueue_through_the_dependency_on_the_servers_loop_and_in_threads(tmp_path: Path) -> None:
    jobs, double = shop(tmp_path)
    app = FastAPI(lifespan=lifespan(jobs))

    @app.post("/async")
    async def on_loop(found: Jobs) -> str:
        return (await found.enqueue(double.draft(1))).id

    @app.post("/sync")
    def in_thread(found: Jobs) -> str:
        return found.enqueue_sync(double.draft(2)).id

    @app.get("/jobs/{job}")
    async def show(job: str, found: Jobs) -> str:
        return (await found.handle(job).refresh()).status

    with TestClient(app) as client:
        for path in ("/async", "/sync"):
            job = client.post(path).json()
            assert client.get(f"/jobs/{job}").json() == "pending"
    bare = FastAPI()
    bare.get("/")(lambda found: None)
    bare.post("/async")(on_loop)
    with pytest.raises(StokerError, match=r"has no Stoker: make it with FastAPI\(lifespan=lifespan\(jobs\)\)"):
        TestClient(bare).post("/async")


@pytest.mark.spec("FASTAPI-02")
@pytest.mark.parametrize("kind", ["true", "own"])
def test_a_worker_inside_the_web_process_runs_the_jobs(tmp_path: Path, kind: str) -> None:
    """Also with a lifespan of the user's around it, and again when the app is started again."""
    jobs, double = shop(tmp_path)
    worker = True if kind == "true" else Worker(jobs, {"default": 2})
    seen: list[str] = []

    @asynccontextmanager
    async def mine(app: FastAPI) -> AsyncIterator[None]:
        async with lifespan(jobs, worker=worker)(app):
            seen.append("begun")
            yield
        seen.append("ended")

    app = FastAPI(lifespan=mine)

    @app.get("/{n}")
    async def ask(n: int) -> int:
        return int(await (await double.enqueue(n)).result(PATIENCE))

    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/21").json() == 42
        assert seen.pop() == "ended"


@pytest.mark.spec("FASTAPI-02")
def test_it_works_in_starlette(tmp_path: Path) -> None:
    jobs, double = shop(tmp_path)

    async def ask(request: StarletteRequest) -> JSONResponse:
        job = await get_jobs(request).enqueue(double.draft(4))
        return JSONResponse(await job.result(PATIENCE))

    app = Starlette(routes=[Route("/", ask)], lifespan=lifespan(jobs, worker=True))
    with TestClient(app) as client:
        assert client.get("/").json() == 8


@pytest.mark.spec("FASTAPI-03")
def test_inside_a_test_kit_no_worker_starts(tmp_path: Path) -> None:
    jobs, double = shop(tmp_path)
    app = FastAPI(lifespan=lifespan(jobs, worker=True))

    @app.post("/{n}")
    async def create(n: int) -> str:
        return (await double.enqueue(n)).id

    with TestKit(jobs) as kit, TestClient(app) as client:
        job = client.post("/3").json()
        assert [one.status for one in kit.enqueued(double)] == ["pending"]
        assert kit.drain_sync() == {"done": 1}
        assert jobs.handle(job).result_sync() == 6
    assert not (tmp_path / "shop.db").exists()
    assert not jobs.tested


@pytest.mark.spec("FASTAPI-04")
def test_a_session_is_joined_in_routes_and_by_a_dependency(tmp_path: Path) -> None:
    """In async routes and in plain ones, which Starlette runs in threads with a copy of the context."""
    jobs, double = shop(tmp_path)
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=NullPool)
    app = FastAPI(lifespan=lifespan(jobs))
    app.state.database = engine

    @app.post("/async/{how}")
    async def on_loop(how: str, session: Joined) -> str:
        job = await double.enqueue(1)
        getattr(session, how)()
        return job.id

    @app.post("/sync/{how}")
    def in_thread(how: str, session: Joined) -> str:
        job = double.enqueue_sync(1)
        getattr(session, how)()
        return job.id

    @app.post("/block/{how}")
    def block(how: str) -> str:
        with Session(engine) as session, jobs.joining(session):
            job = double.enqueue_sync(1)
            getattr(session, how)()
            return job.id

    @app.get("/count")
    async def count(found: Jobs) -> int:
        return sum((await (await found.engine()).operator.census()).by_status().values())

    with TestClient(app) as client:
        for stored, path in enumerate(("async", "sync", "block"), 1):
            assert client.post(f"/{path}/rollback").status_code == 200
            assert client.post(f"/{path}/commit").status_code == 200
            assert client.get("/count").json() == stored
    engine.dispose()


@pytest.mark.spec("FASTAPI-05")
def test_the_dashboard_asks_the_apps_own_session_and_is_closed_with_it(tmp_path: Path) -> None:
    jobs, _ = shop(tmp_path)
    closed: list[Dashboard] = []

    def who(request: StarletteRequest) -> Identity | None:
        name = request.session.get("user")
        return Identity(name, role="operate") if name else None

    class Board(Dashboard):
        async def close(self) -> None:
            closed.append(self)
            await super().close()

    board = Board(jobs, auth=who, login_url="/login")
    app = FastAPI(lifespan=lifespan(jobs, board=board))
    app.add_middleware(SessionMiddleware, secret_key="s" * 32)
    app.mount("/jobs", board)

    @app.post("/login")
    async def login(request: Request) -> None:
        request.session["user"] = "ann"

    with TestClient(app, follow_redirects=False, headers={"accept": "text/html"}) as client:
        away = client.get("/jobs/queues")
        assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Fjobs%2Fqueues")
        client.post("/login")
        page = client.get("/jobs/queues")
        assert page.status_code == 200
        assert re.search(r"\bann\b", page.text)
        assert closed == []
    assert closed == [board]


@pytest.mark.spec("FASTAPI-06")
def test_the_server_stops_gracefully_on_sigterm(tmp_path: Path) -> None:
    """A job that runs when uvicorn is told to stop ends in time, and is stored as done."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "tests.contrib.apps.fast_shop:app", f"--port={port}"]
    environ = {**os.environ, "SHOP": str(tmp_path), "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, env=environ, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        job = until(lambda: _posted(f"http://127.0.0.1:{port}/orders/7", server), what="a server that answers")
        until((tmp_path / "packing").exists, what="a job that runs")
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=PATIENCE)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    assert server.returncode == -signal.SIGTERM, log  # uvicorn ends itself by the signal, after the clean shutdown
    assert "Application shutdown complete" in log

    jobs = Stoker(f"sqlite:///{tmp_path}/shop.db")
    assert jobs.handle(job).result_sync() == "order 7 packed"
    jobs.run(jobs.close())


def _posted(url: str, server: subprocess.Popen[str]) -> Any:
    assert server.poll() is None, server.communicate()
    try:
        return httpx.post(url, timeout=PATIENCE).json()
    except httpx.ConnectError:
        return None


@pytest.mark.spec("FASTAPI-07")
def test_what_lifespan_cannot_use_is_refused_at_once(tmp_path: Path) -> None:
    jobs, _ = shop(tmp_path)
    with pytest.raises(InvalidInput, match=r"jobs: must be your app, jobs = Stoker\(\.\.\.\)"):
        lifespan("sqlite:///shop.db")  # type: ignore[arg-type]
    for wrong in (4, Worker(Stoker("memory://"))):
        with pytest.raises(InvalidInput, match="worker: must be True, False or a Worker of this very app"):
            lifespan(jobs, worker=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="board: must be a dashboard that you mount"):
        lifespan(jobs, board=jobs)  # type: ignore[arg-type]

"""`job_stream` in FastAPI, Flask and Django: a job as server-sent events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import flask
import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from fastapi import FastAPI, Response
from fastapi.testclient import TestClient

from stoker import Stoker, current
from stoker.contrib import django as django_contrib
from stoker.contrib import fastapi as fastapi_contrib
from stoker.contrib import flask as flask_contrib
from tests.harness.apps import drain
from tests.harness.django_settings import django, on_file
from tests.web.test_stream import events

UNKNOWN = "01900000-0000-7000-8000-000000000000"
SEEN = [("emitted", 0), ("emitted", 1), ("emitted", 2), ("ended", None)]


def made(path: Path) -> tuple[Stoker, str]:
    """An app whose job has emitted three values."""
    jobs = Stoker(f"sqlite:///{path / 'jobs.db'}", durability="process")

    @jobs.task
    async def talk() -> None:
        for n in range(3):
            current().emit(n)

    async def fill() -> str:
        job = await talk.enqueue()
        await drain(jobs)
        await jobs.close()
        return job.id

    return jobs, asyncio.run(fill())


def names(body: str) -> list[tuple[str, Any]]:
    return [(name, data.get("value")) for name, _, data in events(body)]


@pytest.mark.spec("WATCH-13")
def test_fastapi(tmp_path: Path) -> None:
    jobs, job = made(tmp_path)
    app = FastAPI(lifespan=fastapi_contrib.lifespan(jobs))

    @app.get("/{id}/stream")
    async def stream(id: str) -> Response:  # noqa: A002
        return fastapi_contrib.job_stream(jobs.handle(id))

    with TestClient(app) as client:
        answer = client.get(f"/{job}/stream")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert names(answer.text) == SEEN
        last = events(answer.text)[-1][1]
        assert names(client.get(f"/{job}/stream", headers={"last-event-id": "2"}).text) == SEEN[2:]
        assert client.get(f"/{job}/stream", headers={"last-event-id": last}).status_code == 204
        assert client.get(f"/{UNKNOWN}/stream").status_code == 404
        assert client.get(f"/{job}/stream", headers={"last-event-id": "77"}).status_code == 400


@pytest.mark.spec("WATCH-13")
def test_flask(tmp_path: Path) -> None:
    jobs, job = made(tmp_path)
    app = flask.Flask("shop")

    @app.get("/<id>/stream")
    def stream(id: str) -> flask.Response:  # noqa: A002
        return flask_contrib.job_stream(jobs.handle(id))

    client = app.test_client()
    answer = client.get(f"/{job}/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert names(answer.text) == SEEN
    assert names(client.get(f"/{job}/stream", headers={"last-event-id": "2"}).text) == SEEN[2:]
    assert client.get(f"/{job}/stream", headers={"last-event-id": "3-end"}).status_code == 204
    assert client.get(f"/{UNKNOWN}/stream").status_code == 404
    assert client.get(f"/{job}/stream", headers={"last-event-id": "nonsense"}).status_code == 400
    jobs.run(jobs.close())


@pytest.mark.spec("WATCH-13")
def test_django(tmp_path: Path) -> None:
    """Under WSGI and under ASGI, from a plain view and from an async one."""
    jobs, job = made(tmp_path)
    with django(on_file(tmp_path / "django.db")):
        plain, handle = RequestFactory(), jobs.handle(job)
        answer = django_contrib.job_stream(plain.get("/"), handle)
        assert isinstance(answer, StreamingHttpResponse)
        assert answer.headers["content-type"] == "text/event-stream"
        assert names(answer.getvalue().decode()) == SEEN
        resumed = plain.get("/", headers={"last-event-id": "2"})
        assert names(django_contrib.job_stream(resumed, handle).getvalue().decode()) == SEEN[2:]
        for header, status in (("3-end", 204), ("99", 400)):
            asked = plain.get("/", headers={"last-event-id": header})
            assert django_contrib.job_stream(asked, handle).status_code == status
        assert django_contrib.job_stream(plain.get("/"), jobs.handle(UNKNOWN)).status_code == 404
        request = AsyncRequestFactory().get("/")
        assert isinstance(request, ASGIRequest)

        async def read(answer: Any) -> str:
            return b"".join([part async for part in answer]).decode()

        async def follow() -> None:
            answer = await sync_to_async(django_contrib.job_stream)(request, handle)  # as Django calls a plain view
            assert names(await read(answer)) == SEEN
            assert names(await read(await django_contrib.ajob_stream(request, handle))) == SEEN
            assert (await django_contrib.ajob_stream(request, jobs.handle(UNKNOWN))).status_code == 404
            await jobs.close()

        asyncio.run(follow())
    jobs.run(jobs.close())

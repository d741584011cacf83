"""A read-only dashboard under a database role that may read and nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from stoker.admin import Admin, documents
from stoker.app import Stoker
from stoker.engines.postgres import PostgresEngine
from stoker.model import ids
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Limits, dashboard
from tests.harness.letters import letters
from tests.web.conftest import Client, text
from tests.web.test_pages import PAGES, lively

pytestmark = pytest.mark.engine("postgres")

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "dashboard.md"


@pytest.fixture
def engine_name() -> str:
    return "postgres"


@pytest.fixture
async def reader(app: Stoker, clock: VirtualClock, postgres_url: str, postgres_schema: str) -> AsyncIterator[Dashboard]:
    """A dashboard on the same store, under a fresh role with the documented grants."""
    await app.engine()
    role = f"d_{postgres_schema}"
    [grants] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    placed = re.sub(r"\bboard\b", role, re.sub(r"\bjobs\b", postgres_schema, grants))
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create role {role} login".encode())
        admin.execute(placed.encode())
        scheme, _, rest = postgres_url.partition("://")
        url = f"{scheme}://{role}@{rest.rpartition('@')[2]}"
        lowly = Stoker(PostgresEngine(url, schema=postgres_schema, clock=clock))
        board = dashboard(lowly, read_only=True, limits=Limits(seconds=30))
        yield board
        await board.close()
        await lowly.close()
        admin.execute(f"drop owned by {role}; drop role {role}".encode())


@pytest.mark.spec("WEBSEC-17")
async def test_every_page_and_every_read_of_the_api_needs_only_select(
    app: Stoker, reader: Dashboard, clock: VirtualClock
) -> None:
    found = await lively(app, clock)
    await letters(await app.engine(), 2, parks=True)
    await letters(await app.engine(), 1, stream="bills", at=7)
    secret = await Admin(app).tokens.create("ann", "admin")
    client = Client(reader, authorization=f"Bearer {secret}")
    more = [f"/jobs/{id_}" for id_ in found.values()]
    more += ["/queues/billing", "/schedules/nightly", "/jobs?q=is:dead&group=error", "/jobs?q=payload:x"]
    more += ["/outbox/orders/warehouse", "/outbox/letters", "/outbox/letters?stream=orders&status=all"]
    letter = ids.text(bytes([7, 0]) + b"0" * 14)
    more += ["/workers/w", f"/outbox/letters/bills/warehouse/{letter}"]
    more += ["/pieces?page=outbox", "/pieces?page=consumer&stream=orders&consumer=warehouse"]
    for path in [*PAGES, *more]:
        answer = await client.get(path)
        assert answer.status_code == 200, (path, answer.text[-800:])
    document = (await client.get("/api/v1/openapi.json")).json()
    for path, item in document["paths"].items():
        if "get" in item:
            name = {"schedules": "nightly", "limits": "stripe", "kinds": "send"}.get(path.split("/")[3], "default")
            absent = (path.split("/")[3] in {"groups", "operations"} and "{" in path) or path.endswith("/stack")
            asked = "?action=replay" if path.endswith("/preview/letters") else ""
            id_, stream = (letter, "bills") if "/letters/" in path else (found["dead"], "orders")
            answer = await client.get(path.format(id=id_, name=name, stream=stream, worker="w") + asked)
            assert answer.status_code == (404 if absent else 200), (path, answer.text)
    assert (await client.http.post(f"/api/v1/jobs/{found['dead']}/requeue")).status_code == 405
    await client.close()


@pytest.mark.spec("WEBSEC-26")
async def test_people_sign_in_where_the_store_refuses_to_keep_their_session(
    app: Stoker, reader: Dashboard, caplog: pytest.LogCaptureFixture
) -> None:
    """A dashboard that may write, under a role that may not: the cookie holds the token, and Health says so."""
    secret = await Admin(app).tokens.create("ann")
    reader.read_only = False
    client = Client(reader)
    await client.get("/sign-in")
    assert (await client.post("/sign-in", {"token": secret})).status_code == 303
    assert client.http.cookies["stoker_session"] == secret
    assert (await client.get("/queues")).status_code == 200
    assert "Cookies hold the token itself" in text(await client.get("/health"))
    assert "cookies hold tokens instead" in caplog.text
    assert await documents.sessions(await app.engine()) == []
    await client.close()

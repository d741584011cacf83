"""Tokens at the door of a process that has read them: how long it goes by what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from stoker.admin import Admin, documents
from stoker.app import Stoker
from stoker.engines.base import SESSIONS
from stoker.testing.clock import VirtualClock
from stoker.web import Dashboard, Limits, dashboard, hub, tokens
from tests.harness.apps import PATIENCE, until
from tests.web.conftest import Client, enqueue, text, watched


@pytest.fixture
async def board(app: Stoker) -> AsyncIterator[Dashboard]:
    board = dashboard(app, limits=Limits(seconds=30))
    yield board
    await board.close()


async def change(app: Stoker, name: str, **fields: Any) -> None:
    """Store a token with other rights, as another process would."""
    engine = await app.engine()
    [before] = [one for one in await documents.tokens(engine) if one.name == name]
    assert await documents.put_token(engine, msgspec.structs.replace(before, **fields), before=before)


@pytest.mark.spec("WEBSEC-05")
async def test_a_revoked_token_is_noticed_by_a_process_that_knows_it(app: Stoker, board: Dashboard) -> None:
    watch = watched(board)
    admin = Admin(app).tokens
    client = Client(board, authorization=f"Bearer {await admin.create('ann', 'operate')}")
    assert (await client.get("/api/v1/jobs")).status_code == 200
    await admin.revoke("ann")
    watch.seconds += 1
    assert (await client.get("/api/v1/jobs")).status_code == 200  # a flood of requests does not reach the store
    watch.seconds += 4
    assert (await client.get("/api/v1/jobs")).status_code == 401
    await client.close()


@pytest.mark.spec("WEBSEC-05")
async def test_a_changed_token_is_noticed_by_a_process_that_knows_it(app: Stoker, board: Dashboard) -> None:
    watch = watched(board)
    client = Client(board, authorization=f"Bearer {await Admin(app).tokens.create('ann', 'operate')}")
    mail, billing = await enqueue(app, queue="mail"), await enqueue(app, queue="billing")

    async def status(job: str) -> int:
        return (await client.http.post(f"/api/v1/jobs/{job}/run-now", json={})).status_code

    assert (await status(mail), await status(billing)) == (200, 200)
    await change(app, "ann", queues=("mail",))
    watch.seconds += 5
    assert (await status(mail), await status(billing)) == (200, 403)
    await change(app, "ann", role="read")
    watch.seconds += 5
    assert (await status(mail), await status(billing)) == (403, 403)
    await client.close()


@pytest.mark.spec("WEBSEC-05")
async def test_a_revoked_token_is_noticed_as_time_passes(
    app: Stoker, board: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "FRESH", 0.05)
    admin = Admin(app).tokens
    client = Client(board, authorization=f"Bearer {await admin.create('ann')}")
    assert (await client.get("/api/v1/jobs")).status_code == 200
    await admin.revoke("ann")
    async with asyncio.timeout(PATIENCE):
        while (await client.get("/api/v1/jobs")).status_code != 401:
            await asyncio.sleep(0.005)
    await client.close()


@pytest.mark.spec("WEBSEC-05")
def test_five_seconds_are_more_than_a_token_is_believed() -> None:
    assert tokens.FRESH < 5


async def sign_in(client: Client, secret: str) -> str:
    """Sign in as a browser does; returns what the cookie holds."""
    await client.get("/sign-in")
    assert (await client.post("/sign-in", {"token": secret})).status_code == 303
    return str(client.http.cookies["stoker_session"])


@pytest.mark.spec("WEBSEC-26")
async def test_a_session_is_a_record_of_its_own_and_ends_with_signing_out(app: Stoker, board: Dashboard) -> None:
    """In every process: a copy of its cookie opens nothing any more, and other sessions of the token go on."""
    watch = watched(board)
    secret = await Admin(app).tokens.create("ann", "operate")
    ann, other = Client(board), Client(board)
    held = await sign_in(ann, secret)
    await sign_in(other, secret)
    assert secret not in held
    stored = await documents.sessions(await app.engine())
    assert {one.token for one in stored} == {"ann"}
    assert held not in str(stored)
    elsewhere = dashboard(app, limits=Limits(seconds=30))
    clock, copied = watched(elsewhere), Client(elsewhere)
    copied.http.cookies.set("stoker_session", held)
    assert (await copied.get("/queues")).status_code == 200
    assert (await ann.get("/queues")).status_code == 200
    assert (await ann.post("/sign-out")).status_code == 303
    ann.http.cookies.set("stoker_session", held)
    watch.seconds += 1
    assert (await ann.get("/queues")).status_code == 303
    clock.seconds += 5
    assert (await copied.get("/queues")).status_code == 303
    assert (await other.get("/queues")).status_code == 200
    assert len(await documents.sessions(await app.engine())) == 1
    for client in (ann, other, copied):
        await client.close()
    await elsewhere.close()


@pytest.mark.spec("WEBSEC-26")
async def test_a_session_that_another_process_began_is_known_at_once(app: Stoker, board: Dashboard) -> None:
    elsewhere = dashboard(app, limits=Limits(seconds=30))
    for one in (board, elsewhere):
        watched(one).seconds += 10
    ann, there = Client(board), Client(elsewhere)
    secret = await Admin(app).tokens.create("ann")
    assert (await there.get("/queues", headers={"authorization": f"Bearer {secret}"})).status_code == 200
    there.http.cookies.set("stoker_session", await sign_in(ann, secret))
    assert (await there.get("/queues")).status_code == 200
    for client in (ann, there):
        await client.close()
    await elsewhere.close()


@pytest.mark.spec("WEBSEC-26")
async def test_guesses_of_sessions_do_not_flood_the_store(
    app: Stoker, board: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(board).seconds += 10
    engine = await board.store.engine()
    read, calls = engine.documents.read, 0

    async def counted(kind: str) -> Any:
        nonlocal calls
        calls += kind == SESSIONS
        return await read(kind)

    monkeypatch.setattr(engine.documents, "read", counted)
    client = Client(board)
    for n in range(50):
        client.http.cookies.set("stoker_session", f"sts_{n:043}")
        assert (await client.get("/queues")).status_code == 303
    assert calls == 2
    await client.close()


@pytest.mark.spec("WEBSEC-26")
async def test_a_session_has_the_rights_of_its_token_and_ends_with_it(
    app: Stoker, board: Dashboard, clock: VirtualClock
) -> None:
    watch = watched(board)
    admin = Admin(app).tokens
    client = Client(board)
    held = await sign_in(client, await admin.create("ann", "operate", expires=3600))
    job = await enqueue(app)
    assert (await client.post(f"/jobs/{job}/run-now")).status_code == 303
    await change(app, "ann", role="read")
    watch.seconds += 5
    assert (await client.post(f"/jobs/{job}/run-now")).status_code == 403
    clock.advance(3601)
    watch.seconds += 5
    assert (await client.get("/queues")).status_code == 303
    secret = await admin.create("bob")
    watch.seconds += 5
    await sign_in(client, secret)
    await admin.revoke("bob")
    watch.seconds += 5
    assert (await client.get("/queues")).status_code == 303
    await sign_in(client, await admin.create("eve"))
    assert [one.token for one in await documents.sessions(await app.engine())] == ["eve"]  # the others were tidied away
    assert held.startswith("sts_")
    await client.close()


@pytest.mark.spec("WEBSEC-26")
async def test_a_token_has_so_many_sessions_and_no_more(
    app: Stoker, board: Dashboard, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    monkeypatch.setattr(tokens, "MOST_SESSIONS", 2)
    secret = await Admin(app).tokens.create("ann")
    clients = [Client(board) for _ in range(3)]
    for client in clients:
        await sign_in(client, secret)
        clock.advance(1)
    assert [(await client.get("/queues")).status_code for client in clients] == [303, 200, 200]
    for client in clients:
        await client.close()


@pytest.mark.spec("WEBSEC-26")
async def test_where_nothing_is_written_the_cookie_holds_the_token_and_health_says_so(app: Stoker) -> None:
    board = dashboard(app, read_only=True, limits=Limits(seconds=30))
    secret = await Admin(app).tokens.create("ann")
    client = Client(board)
    assert await sign_in(client, secret) == secret
    assert await documents.sessions(await app.engine()) == []
    assert "Cookies hold the token itself" in text(await client.get("/health"))
    assert (await client.post("/sign-out")).status_code == 303
    assert (await client.get("/queues")).status_code == 303
    await client.close()
    await board.close()


@pytest.mark.spec("WEBSEC-19")
@pytest.mark.parametrize("by", ["header", "cookie"])
async def test_a_revoked_token_ends_its_streams(
    app: Stoker, board: Dashboard, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """With the next beat after its tokens were read again: two seconds and a half, and two."""
    assert tokens.FRESH + hub.EVERY < 5
    monkeypatch.setattr(hub, "EVERY", 0.01)
    watch, admin = watched(board), Admin(app).tokens
    secrets = {name: await admin.create(name) for name in ("ann", "bob")}
    clients = [Client(board), Client(board)]
    for client, secret in zip(clients, secrets.values(), strict=True):
        if by == "header":
            client.http.headers["authorization"] = f"Bearer {secret}"
        else:
            await sign_in(client, secret)
    ann, bob = (asyncio.create_task(client.get("/live?page=overview")) for client in clients)
    await until(lambda: board.hub.viewers == 2)
    await admin.revoke("ann")
    watch.seconds += 5
    async with asyncio.timeout(PATIENCE):
        assert (await ann).status_code == 200
    assert board.hub.viewers == 1
    bob.cancel()
    await asyncio.gather(bob, return_exceptions=True)
    for client in clients:
        await client.close()


@pytest.mark.spec("WEBSEC-19")
async def test_signing_out_ends_the_streams_of_a_session(
    app: Stoker, board: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "EVERY", 0.01)
    client = Client(board)
    await sign_in(client, await Admin(app).tokens.create("ann"))
    stream = asyncio.create_task(client.get("/live?page=overview"))
    await until(lambda: board.hub.viewers == 1)
    assert (await client.post("/sign-out")).status_code == 303
    async with asyncio.timeout(PATIENCE):
        await stream
    assert board.hub.viewers == 0
    await client.close()

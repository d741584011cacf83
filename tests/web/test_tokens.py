"""Tokens at the door of a process that has read them: how long it goes by what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from stoker.admin.tokens import TokensAdmin
from stoker.app import Stoker
from stoker.web import Dashboard, Limits, dashboard, tokens
from tests.harness.apps import PATIENCE
from tests.web.conftest import Client, enqueue, watched


@pytest.fixture
async def board(app: Stoker) -> AsyncIterator[Dashboard]:
    board = dashboard(app, limits=Limits(seconds=30))
    yield board
    await board.close()


async def change(app: Stoker, name: str, **fields: Any) -> None:
    """Store a token with other rights, as another process would."""
    engine = await app.engine()
    [before] = [one for one in await engine.tokens() if one.name == name]
    assert await engine.put_token(msgspec.structs.replace(before, **fields), before=before)


@pytest.mark.spec("WEBSEC-05")
async def test_a_revoked_token_is_noticed_by_a_process_that_knows_it(app: Stoker, board: Dashboard) -> None:
    watch = watched(board)
    admin = TokensAdmin(app)
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
    client = Client(board, authorization=f"Bearer {await TokensAdmin(app).create('ann', 'operate')}")
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
    admin = TokensAdmin(app)
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

"""The supervisor's own sign of life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineUnavailable
from stoker.supervisor.lease import Guardian
from stoker.worker import Worker


@pytest.mark.spec("KILL-12")
async def test_a_guardian_shows_life_until_it_leaves(tmp_path: Path) -> None:
    async with Stoker(SqliteEngine(tmp_path / "jobs.db")) as app:
        guardian = Guardian(app)
        sign = tmp_path / "jobs.db-stoker" / "live" / f"{guardian.id}.alive"
        await guardian.show()
        assert sign.exists()
        engine = await app.engine()
        await engine.renew("other", [], first=True)
        assert await engine.reap("other", 10) == []
        await guardian.show()
        assert (await engine.renew(str(guardian.id), [])).known
        await guardian.leave()
        assert not sign.exists()


@pytest.mark.spec("KILL-12")
async def test_a_store_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stoker(SqliteEngine(tmp_path / "jobs.db")) as app:
        engine, guardian = await app.engine(), Guardian(app)
        renew = engine.renew

        async def away(*_: Any, **__: Any) -> Any:
            raise EngineUnavailable("gone for a moment.")

        monkeypatch.setattr(engine, "renew", away)
        await guardian.show()
        await guardian.leave()
        monkeypatch.setattr(engine, "renew", renew)
        await guardian.show()
        assert (await engine.renew(str(guardian.id), [])).known
        monkeypatch.setattr(engine, "renew", away)
        await guardian.leave()


@pytest.mark.spec("KILL-12")
async def test_a_supervised_worker_carries_the_name_through_every_life() -> None:
    app = Stoker("memory://")
    assert Guardian(app).id is None, "where nobody can see a sign of life there is no use for it"
    worker = Worker(app)
    assert "." not in worker.id
    worker.obey("boss")
    assert worker.id.startswith("boss.")
    assert worker.next_id().startswith("boss.")
    assert worker.next_id() != worker.id

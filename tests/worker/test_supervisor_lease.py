"""The supervisor's own lease."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineUnavailable
from stoker.supervisor.lease import SupervisorLease
from stoker.worker import Worker


@pytest.mark.spec("KILL-12")
async def test_a_supervisor_holds_a_lease_until_it_releases_it(tmp_path: Path) -> None:
    async with Stoker(SqliteEngine(tmp_path / "jobs.db")) as app:
        lease = SupervisorLease(app)
        sign = tmp_path / "jobs.db-stoker" / "live" / f"{lease.id}.alive"
        await lease.renew()
        assert sign.exists()
        engine = await app.engine()
        await engine.jobs.renew("other", [], first=True)
        assert await engine.jobs.reap("other", 10) == []
        await lease.renew()
        assert (await engine.jobs.renew(str(lease.id), [])).known
        await lease.release()
        assert not sign.exists()


@pytest.mark.spec("KILL-12")
async def test_a_lease_is_renewed_when_the_store_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stoker(SqliteEngine(tmp_path / "jobs.db")) as app:
        engine, lease = await app.engine(), SupervisorLease(app)
        renew = engine.jobs.renew

        async def away(*_: Any, **__: Any) -> Any:
            raise EngineUnavailable("gone for a moment.")

        monkeypatch.setattr(engine.jobs, "renew", away)
        await lease.renew()
        await lease.release()
        monkeypatch.setattr(engine.jobs, "renew", renew)
        await lease.renew()
        assert (await engine.jobs.renew(str(lease.id), [])).known
        monkeypatch.setattr(engine.jobs, "renew", away)
        await lease.release()


@pytest.mark.spec("KILL-12")
async def test_every_id_of_a_supervised_worker_names_its_supervisor() -> None:
    app = Stoker("memory://")
    assert SupervisorLease(app).id is None, "only engines that detect dead processes need it"
    worker = Worker(app)
    assert "." not in worker.id
    worker.supervised_by("boss", print)
    assert worker.id.startswith("boss.")
    assert worker._state.next_id().startswith("boss.")
    assert worker._state.next_id() != worker.id

"""A worker shows the release of its app."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stoker.admin import Admin
from stoker.admin.documents import releases
from stoker.app import Stoker
from stoker.engines.base import RELEASES
from stoker.engines.memory import MemoryEngine
from stoker.model.releases import MOST, Release
from stoker.release import release
from tests.harness.apps import PATIENCE, working


@pytest.mark.spec("RELEASE-02")
async def test_workers_show_their_release_and_the_store_notes_when_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    release.cache_clear()
    monkeypatch.setenv("STOKER_RELEASE", "r42")
    app = Stoker(MemoryEngine())
    engine = await app.engine()
    for n in range(MOST):
        old = Release(f"old{n}", n)
        assert await engine.documents.swap(RELEASES, old.name, None, msgspec.json.encode(old))

    @app.task
    async def send() -> None:
        """Send nothing."""

    for _ in range(2):
        async with working(app), asyncio.timeout(PATIENCE):
            while "r42" not in {one.release for one in await Admin(app).workers.list()}:
                await asyncio.sleep(0.01)
    known = await releases(engine)
    assert [one.name for one in known][:2] == ["r42", f"old{MOST - 1}"]
    assert len(known) == MOST
    assert "old0" not in {one.name for one in known}
    await app.close()
    release.cache_clear()

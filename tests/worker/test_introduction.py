"""What a worker writes about itself: the origin to which the failures and ends of its runs refer."""

from __future__ import annotations

import itertools
import os
import socket
from typing import Any

import msgspec
import pytest

from stoker import origins
from stoker.admin import Admin, documents
from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import ORIGINS, RELEASES, Engine
from stoker.engines.memory import MemoryEngine
from stoker.model import ids, run_origins
from stoker.model.control import Presence
from stoker.model.errors import CorruptRecord
from stoker.model.retry import Fixed
from stoker.model.run_origins import RunOrigin, number
from stoker.release import release
from stoker.testing.clock import VirtualClock
from stoker.worker import introduction
from stoker.worker.introduction import Introduction
from tests.harness.apps import drain


def presence(worker: str, **more: Any) -> Presence:
    return Presence(worker=worker, host="web-3", pid=7, queues={"mail": 1}, **more)


async def stored(engine: Engine) -> list[RunOrigin]:
    found = [msgspec.json.decode(one, type=RunOrigin) for one in await engine.documents.read(ORIGINS)]
    return sorted(found, key=lambda one: one.worker)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock) -> MemoryEngine:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    return engine


@pytest.mark.spec("RUN-ORIGIN-02")
async def test_a_worker_writes_its_origin_once_and_again_under_another_id(engine: MemoryEngine) -> None:
    shown = Introduction()
    for _ in range(2):
        await shown.show(engine, presence("a", release="r42"))
    await Introduction().show(engine, presence("a", release="r42"))  # its reply was lost: it writes the same again
    now = await engine.now()
    mine = RunOrigin(number("a"), "a", "web-3", 7, "r42", now)
    assert await stored(engine) == [mine]
    await shown.show(engine, presence("b", release="r42"))
    assert [one.worker for one in await stored(engine)] == ["a", "b"]


@pytest.mark.spec("RUN-ORIGIN-02")
async def test_a_worker_starts_beside_what_another_release_has_written(engine: MemoryEngine) -> None:
    for kind in (ORIGINS, RELEASES):
        assert await engine.documents.swap(kind, "odd", None, b'{"number": "one", "name": 1}')
    app = Stoker(engine)

    @app.task(attempts=1)
    async def fail() -> None:
        raise ValueError("as it should")

    async with app:
        job = await fail.enqueue()
        await drain(app)
        found = await Admin(app).jobs.get(job.id)
        assert found.job.history[0].origin is not None
        with pytest.raises(CorruptRecord, match="releases that this release cannot read"):
            await documents.releases(engine)


@pytest.mark.spec("RUN-ORIGIN-02")
async def test_a_worker_that_lives_long_is_not_forgotten(
    engine: MemoryEngine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_origins, "MOST", 2)
    monkeypatch.setattr(introduction, "SEEN_EVERY", -1)
    shown = Introduction()
    for one, worker in ((shown, "long"), (Introduction(), "b"), (shown, "long"), (Introduction(), "c")):
        await one.show(engine, presence(worker))
        clock.advance(1)
    assert [one.worker for one in await stored(engine)] == ["c", "long"]


@pytest.mark.spec("RUN-ORIGIN-02")
async def test_a_number_of_two_workers_names_neither(engine: MemoryEngine) -> None:
    seen = dict[int, str]()
    names = map("w{}".format, itertools.count())
    worker = next(name for name in names if seen.setdefault(number(name), name) != name)
    other = seen[number(worker)]
    await Introduction().show(engine, presence(other))
    await Introduction().show(engine, presence(worker))
    await Introduction().show(engine, presence("third"))
    assert [(one.number, one.worker) for one in await stored(engine)] == [
        (number(worker), ""),
        (number("third"), "third"),
    ]


@pytest.mark.spec("RUN-ORIGIN-01", "RUN-ORIGIN-03")
async def test_each_attempt_tells_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Stoker(MemoryEngine())

    @app.task(attempts=3, backoff=Fixed(0))
    async def send() -> str:
        if current().attempt == 1:
            raise ValueError("boom")
        return current().worker

    release.cache_clear()
    monkeypatch.setenv("STOKER_RELEASE", "r42")
    job = await send.enqueue()
    await drain(app)
    found = (await Admin(app).jobs.get(job.id)).job
    [failed] = found.history
    assert failed.origin == found.origin
    assert found.origin is not None
    assert (found.origin.host, found.origin.pid, found.origin.release) == (socket.gethostname(), os.getpid(), "r42")
    assert (await job.refresh()).origin is None, "it is for operators: a caller reads one record"
    assert await job.result() == found.origin.worker
    explained = await Admin(app).jobs.explain(job.id)
    assert f"its last run was on {socket.gethostname()} / {os.getpid()}, release r42" in explained.beside
    release.cache_clear()
    await app.close()


@pytest.mark.spec("RUN-ORIGIN-03")
async def test_origins_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Stoker(MemoryEngine())
    engine, reads = await app.engine(), list[str]()
    read = engine.documents.read

    async def counted(kind: str) -> Any:
        reads.append(kind)
        return await read(kind)

    monkeypatch.setattr(engine.documents, "read", counted)
    await engine.documents.swap(ORIGINS, "7", None, msgspec.json.encode(RunOrigin(7, "w")))

    @app.task
    async def send() -> None:
        """Send nothing."""

    [record] = await engine.operator.get([ids.parse((await send.enqueue()).id)])
    assert record is not None
    known, unknown = (msgspec.structs.replace(record, origin=origin) for origin in (7, 8))
    assert await origins.origins_of(app, record) == {}
    assert reads == [], "no run of it failed or ended"
    for one in (known, unknown, known, unknown):
        assert (await origins.origins_of(app, one))[7].worker == "w"
    assert reads == [ORIGINS] * 2, "a number that is not there is looked for again after a while"
    monkeypatch.setattr(origins, "READ_AGAIN", -1)
    await origins.origins_of(app, unknown)
    assert reads == [ORIGINS] * 3
    await app.close()

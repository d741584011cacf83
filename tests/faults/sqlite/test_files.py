"""Files of an open engine that are deleted, replaced, moved away and put back; and writes of another program."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineError, EngineReadOnly, EngineUnavailable
from stoker.model.ids import JobId
from stoker.model.job import Demand, Draft, Settlement, Status
from tests.faults.sqlite.audit import audit, stored_ids

pytestmark = [pytest.mark.engine("sqlite")]

as_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: rights cannot be shown to hold")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    made = SqliteEngine(tmp_path / "jobs.db")
    await made.open()
    yield made
    await made.close()


def path_of(engine: SqliteEngine) -> Path:
    return Path(engine.path)


def draft() -> Draft:
    return Draft(os.urandom(16), "send")


async def insert(engine: SqliteEngine, n: int = 3) -> set[JobId]:
    async with asyncio.timeout(60):
        return {receipt.id for receipt in await engine.jobs.insert([draft() for _ in range(n)])}


def unlinked_grew(before: dict[int, int]) -> list[str]:
    """Open files without a name that have grown since."""
    return [name for fd, (name, size) in unlinked().items() if size > before.get(fd, 0)]


def unlinked() -> dict[int, tuple[str, int]]:
    """The open files of this process that have no name any more."""
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            name = str(fd.readlink())
            if name.endswith(" (deleted)") and "jobs.db" in name:
                found[int(fd.name)] = (name, fd.stat().st_size)
        except OSError:
            continue
    return found


@pytest.mark.spec("FAULT-30", "FAULT-31")
@pytest.mark.parametrize("how", ["deleted", "moved away", "replaced"])
async def test_a_file_that_is_gone_is_noticed_and_put_back_is_used_again(
    engine: SqliteEngine, tmp_path: Path, how: str
) -> None:
    path = path_of(engine)
    before = await insert(engine)
    kept = tmp_path / "kept.db"
    if how == "deleted":
        os.link(path, kept)
        path.unlink()
    else:
        path.rename(kept)
    if how == "replaced":
        shutil.copy(kept, path)
    sizes = {file.name: file.stat().st_size for file in (kept, Path(f"{path}-wal"))}
    for question in (
        lambda: insert(engine),
        lambda: engine.jobs.claim(Demand("w", (("default", 1),))),
        lambda: engine.jobs.renew("w", [], first=True),
        lambda: engine.jobs.settle([Settlement(os.urandom(16), "w", 1, Status.DONE)]),
    ):
        with pytest.raises(EngineUnavailable, match="deleted or replaced"):
            await question()
    assert sizes == {file.name: file.stat().st_size for file in (kept, Path(f"{path}-wal"))}
    kept.replace(path)
    after = await insert(engine)
    await engine.close()
    assert audit(path) == []
    assert before | after <= stored_ids(path)


@pytest.mark.spec("FAULT-32")
async def test_a_log_that_is_gone_is_noticed_before_anything_is_written_to_it(engine: SqliteEngine) -> None:
    path = path_of(engine)
    before = await insert(engine)
    Path(f"{path}-wal").unlink()
    sizes = {fd: size for fd, (_, size) in unlinked().items()}
    with pytest.raises(EngineUnavailable, match="log"):
        await insert(engine)
    with pytest.raises(EngineUnavailable, match="log"):
        await engine.jobs.renew("w", [], first=True)
    assert unlinked_grew(sizes) == []
    await engine.close()
    again = SqliteEngine(path)
    await again.open()
    after = await insert(again)
    await again.close()
    assert audit(path) == []
    assert before | after <= stored_ids(path)


@pytest.mark.spec("FAULT-33")
@pytest.mark.parametrize("name", ["write.lock", "write.lock-turn", "users"])
async def test_lock_files_that_are_gone_come_back(engine: SqliteEngine, name: str) -> None:
    before = await insert(engine)
    Path(f"{engine.path}-stoker", name).unlink()
    after = await insert(engine)
    twin = engine.for_loop()
    await twin.open()
    assert len(await insert(twin)) == 3
    await twin.close()
    assert before | after <= stored_ids(engine.path)


@pytest.mark.spec("FAULT-33")
@pytest.mark.parametrize("part", ["", "live", "wake"])
async def test_a_folder_beside_the_database_that_is_gone_costs_no_job(engine: SqliteEngine, part: str) -> None:
    await engine.jobs.renew("w", [], first=True)
    waiting = asyncio.create_task(engine.jobs.wait(["default"], 0.05))
    await asyncio.sleep(0)
    shutil.rmtree(Path(f"{engine.path}-stoker", part))
    jobs = await insert(engine)
    await waiting
    assert (await engine.jobs.renew("w", [])).known
    claims = await engine.jobs.claim(Demand("w", (("default", 9),)))
    assert {claim.id for claim in claims} == jobs
    assert await engine.jobs.reap("w", 10) == []


@pytest.mark.spec("FAULT-34")
async def test_the_rights_of_an_open_file_do_not_matter_and_opening_it_raises(
    engine: SqliteEngine, tmp_path: Path
) -> None:
    path = path_of(engine)
    path.chmod(0)
    try:
        before = await insert(engine)
        if os.geteuid():
            with pytest.raises(EngineReadOnly):
                await engine.for_loop().open()
    finally:
        path.chmod(0o600)
    assert before <= stored_ids(path)


@as_user
@pytest.mark.spec("FAULT-34")
async def test_a_folder_that_may_not_be_written_to_is_refused_when_opening(engine: SqliteEngine) -> None:
    folder = path_of(engine).parent
    folder.chmod(0o500)
    try:
        jobs = await insert(engine)
        with pytest.raises(EngineReadOnly):
            await engine.for_loop().open()
    finally:
        folder.chmod(0o700)
    assert jobs <= stored_ids(engine.path)


# --- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("FAULT-35")
@pytest.mark.parametrize("spoil", ["a page", "the header", "cut off"])
async def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "jobs.db"
    engine = SqliteEngine(path)
    await engine.open()
    await insert(engine, 200)
    await engine.close()
    damage(path, spoil)
    with pytest.raises(EngineError, match=r"damaged|not an SQLite database"):
        async with asyncio.timeout(60):
            again = SqliteEngine(path)
            await again.open()
            try:
                await again.jobs.renew("w", [], first=True)
                claims = await again.jobs.claim(Demand("w", (("default", 500),)))
                await again.jobs.settle(
                    [Settlement(one.id, "w", one.token, Status.DONE, ref=one.ref) for one in claims]
                )
            finally:
                await again.close()


def damage(path: Path, spoil: str) -> None:
    content = bytearray(path.read_bytes())
    if spoil == "the header":
        content[:100] = bytes(100)
    elif spoil == "cut off":
        del content[len(content) // 2 // 4096 * 4096 :]
    else:
        with closing(sqlite3.connect(path)) as connection:
            query = "SELECT rootpage FROM sqlite_master WHERE name = 'stoker_body'"
            [(page,)] = connection.execute(query)
        content[(page - 1) * 4096 : page * 4096] = os.urandom(4096)
    path.write_bytes(content)


@pytest.mark.spec("FAULT-36")
@pytest.mark.parametrize("cut", [1, 700, 4096, 9000])
async def test_a_torn_end_of_the_log_costs_only_what_it_held(tmp_path: Path, cut: int) -> None:
    """The process died (no checkpoint at the end), and the end of the log is not what it was."""
    path = tmp_path / "jobs.db"
    engine = SqliteEngine(path)
    await engine.open()
    batches = [await insert(engine) for _ in range(8)]
    copy = tmp_path / "copy.db"
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{copy}{end}")
    await engine.close()
    log = Path(f"{copy}-wal")
    log.write_bytes(log.read_bytes()[:-cut])
    again = SqliteEngine(copy)
    await again.open()
    await insert(again)
    await again.close()
    assert audit(copy) == []
    found = stored_ids(copy)
    there = [batch <= found for batch in batches]
    assert there == sorted(there, reverse=True), "what is lost is the end, never the middle"
    assert sum(there) >= 5

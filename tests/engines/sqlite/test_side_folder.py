from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import stat
from pathlib import Path

import pytest

from stoker.engines.sqlite import SqliteEngine, side_folder
from stoker.engines.sqlite.side_folder import SideFolder
from stoker.model.errors import EngineBusy, EngineReadOnly, EngineRefused, EngineUnavailable
from stoker.model.job import Demand, Draft
from tests.engines.sqlite.children import child

pytestmark = pytest.mark.engine("sqlite")

USER = """
import asyncio, os, sys
from stoker.engines.sqlite import SqliteEngine
from stoker.model.job import Demand, Draft
async def main():
    engine = SqliteEngine(sys.argv[1])
    await engine.open()
    await engine.jobs.insert([Draft(os.urandom(16), "send")])
    await engine.jobs.renew("killed", [], first=True)
    await engine.jobs.claim(Demand("killed", (("default", 1),)))
    waiting = asyncio.create_task(engine.jobs.wait(["default"], 60))
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    if len(sys.argv) > 2:
        await engine.jobs.renew("killed", [], lease=0)
        await engine.close()
        print("closed", flush=True)
asyncio.run(main())
print("over", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def names(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


def tree(path: Path) -> set[str]:
    folder = Path(f"{path}-stoker")
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


async def use(engine: SqliteEngine, worker: str) -> None:
    await engine.jobs.insert([Draft(os.urandom(16), "send")])
    await engine.jobs.renew(worker, [], first=True)
    assert await engine.jobs.wait(["default"], 0.001) is not None


@pytest.mark.spec("SQLITE-82")
async def test_one_folder_beside_the_file_that_goes_with_its_last_user(path: Path) -> None:
    first, second = SqliteEngine(path), SqliteEngine(path)
    await first.open()
    await second.open()
    await use(first, "a")
    await use(second, "b")
    assert names(path) - {"jobs.db", "jobs.db-wal", "jobs.db-shm"} == {"jobs.db-stoker"}
    assert {"users", "write.lock", "write.lock-turn", "live/a.alive", "live/b.alive"} <= tree(path)
    await first.jobs.renew("a", [], lease=0)
    await first.close()
    await first.close()
    assert {"users", "live/b.alive"} <= tree(path)
    await second.jobs.insert([Draft(os.urandom(16), "send")])
    await second.jobs.renew("b", [], lease=0)
    await second.close()
    assert names(path) == {"jobs.db"}


@pytest.mark.spec("SQLITE-82")
@pytest.mark.parametrize("how", ["closed", "over"])
def test_a_process_that_exits_leaves_no_folder(path: Path, how: str) -> None:
    """Also a process that never closes its engine. Its worker's liveness file is dropped in both cases."""
    script = USER.replace('await engine.jobs.renew("killed", [], first=True)', "") if how == "over" else USER
    with child(script, path, *(["close"] if how == "closed" else [])) as user:
        assert user.line() == "open"
        assert "jobs.db-stoker" in names(path)
        user.say("go")
        assert user.line() == how
        assert user.process.wait(60) == 0
    assert "jobs.db-stoker" not in names(path)


@pytest.mark.spec("SQLITE-82")
async def test_what_a_killed_user_left_goes_with_the_next_one_that_no_longer_needs_it(path: Path) -> None:
    with child(USER, path) as user:
        assert user.line() == "open"
        user.kill(signal.SIGKILL)
        user.process.wait()
    assert {"users", "write.lock", "write.lock-turn", "live/killed.alive"} <= tree(path)
    producer = SqliteEngine(path)
    await producer.open()
    await producer.close()
    assert tree(path) == {"users", "live", "live/killed.alive"}, "it proves a death, and there are jobs to take over"
    worker = SqliteEngine(path)
    await worker.open()
    await worker.jobs.renew("next", [], first=True)
    assert [claim.attempt for claim in await worker.jobs.reap("next", 10)] == [1]
    await worker.jobs.renew("next", [], lease=0)
    await worker.close()
    assert names(path) == {"jobs.db"}


@pytest.mark.spec("SQLITE-82")
async def test_nothing_is_removed_under_a_user_that_comes_meanwhile(path: Path, campaign: bool) -> None:
    """Engines open, write and close in every order; every write succeeds, and the last engine removes the folder."""

    async def visit() -> None:
        for _ in range(30 if campaign else 5):
            engine = SqliteEngine(path)
            await engine.open()
            await engine.jobs.insert([Draft(os.urandom(16), "send")])
            await engine.close()

    await asyncio.gather(*(visit() for _ in range(6)))
    assert names(path) == {"jobs.db"}


@pytest.mark.spec("SQLITE-82")
def test_a_user_waits_for_one_that_removes_and_makes_a_new_folder(path: Path) -> None:
    old = SideFolder(str(path))
    old.open(5)
    users = os.open(old.path / "users", os.O_RDWR)
    old.close()
    assert not old.path.exists()
    os.close(users)
    old.path.mkdir()
    users = os.open(old.path / "users", os.O_RDWR | os.O_CREAT)
    fcntl.flock(users, fcntl.LOCK_EX)
    new = SideFolder(str(path))
    with pytest.raises(EngineBusy, match=r"jobs\.db-stoker"):
        new.open(0.01)
    os.close(users)
    new.open(5)
    new.close()
    assert names(path) == set()


@pytest.mark.spec("SQLITE-82")
async def test_a_forked_child_does_not_use_its_parents_folder(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        await engine.close()
        assert names(path) == {"jobs.db"}
    finally:
        os.close(write)
        os.waitpid(pid, 0)


async def test_the_folder_is_for_its_owner_alone(path: Path) -> None:
    old = os.umask(0)
    try:
        engine = SqliteEngine(path)
        await engine.open()
        folder = Path(f"{path}-stoker")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "users").stat().st_mode) == 0o600
        await engine.close()
    finally:
        os.umask(old)


@pytest.mark.spec("SQLITE-83")
@pytest.mark.parametrize("what", ["a link", "a file", "open to all"])
async def test_something_else_at_its_place_is_refused_by_name(path: Path, what: str) -> None:
    folder = Path(f"{path}-stoker")
    if what == "a link":
        (path.parent / "elsewhere").mkdir()
        folder.symlink_to(path.parent / "elsewhere")
    elif what == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    engine = SqliteEngine(path)
    with pytest.raises(EngineRefused, match=r"jobs\.db-stoker"):
        await engine.open()
    assert os.path.lexists(folder)


@pytest.mark.spec("SQLITE-83")
@pytest.mark.parametrize(
    "number, error",
    [(errno.EROFS, EngineReadOnly), (errno.EACCES, EngineReadOnly), (errno.ENOSPC, EngineUnavailable)],
)
async def test_a_file_system_that_refuses_the_folder_raises_an_error_that_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def refuse(directory: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(side_folder, "own_folder", refuse)
    with pytest.raises(error, match=rf"jobs\.db-stoker.*{os.strerror(number)}"):
        await SqliteEngine(path).open()


@pytest.mark.spec("SQLITE-83")
async def test_a_file_system_without_locks_raises_an_error_that_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EngineUnavailable, match=r"jobs\.db-stoker"):
        await SqliteEngine(path).open()


async def test_claims_go_on_while_others_come_and_go(path: Path) -> None:
    worker = SqliteEngine(path)
    await worker.open()
    await worker.jobs.renew("w", [], first=True)
    for _ in range(3):
        producer = SqliteEngine(path)
        await producer.open()
        await producer.jobs.insert([Draft(os.urandom(16), "send")])
        await producer.close()
        assert len(await worker.jobs.claim(Demand("w", (("default", 5),)))) == 1
    await worker.close()

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.engines.base import CONTROL
from stoker.engines.sqlite import wake, watch
from stoker.engines.sqlite.wake import EVERYTHING, Bell
from stoker.model.errors import EngineRefused
from tests.engines.sqlite.children import child, eventually
from tests.rig import until

pytestmark = pytest.mark.engine("sqlite")

LISTENER = """
import asyncio, sys
from stoker.engines.sqlite.wake import Bell
async def main():
    loop = asyncio.get_running_loop()
    bell = Bell(sys.argv[1], loop)
    bell.listen(lambda topics: print(" ".join(sorted(topics)), flush=True))
    print("listening", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

RINGER = """
import asyncio, sys
from stoker.engines.sqlite.wake import Bell
bell = Bell(sys.argv[1], asyncio.new_event_loop())
print("ready", flush=True)
while line := sys.stdin.readline():
    bell.ring(line.split())
"""

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
print("ready", flush=True)
while line := sys.stdin.readline():
    connection.execute("INSERT INTO t VALUES (1)")
    if line.strip() == "close":
        connection.close()
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    print("done", flush=True)
"""


class Heard:
    """What a bell said, and a way to wait for it."""

    def __init__(self) -> None:
        self.calls: list[frozenset[str]] = []
        self._event = asyncio.Event()

    def __call__(self, topics: frozenset[str] = frozenset()) -> None:
        self.calls.append(topics)
        self._event.set()

    async def next(self, within: float = 5.0) -> frozenset[str]:
        if not self.calls:
            await asyncio.wait_for(self._event.wait(), within)
        self._event.clear()
        return self.calls.pop(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bells"


@pytest.fixture
async def make(folder: Path) -> AsyncIterator[Callable[[], Bell]]:
    bells: list[Bell] = []

    def made() -> Bell:
        bells.append(Bell(folder, asyncio.get_running_loop()))
        return bells[-1]

    yield made
    for bell in bells:
        bell.close()
        bell.close()


@pytest.mark.spec("SQLITE-48")
async def test_a_ring_is_heard_in_another_process(folder: Path, make: Callable[[], Bell]) -> None:
    heard = Heard()
    make().listen(heard)
    with child(RINGER, folder) as ringer:
        assert ringer.line() == "ready"
        ringer.say("mail @control")
        assert await heard.next() == {"mail", "@control"}


@pytest.mark.spec("SQLITE-48")
async def test_everybody_hears_but_the_one_who_rang(make: Callable[[], Bell]) -> None:
    bells = [make() for _ in range(3)]
    ears = [Heard() for _ in bells]
    for bell, ear in zip(bells, ears, strict=True):
        bell.listen(ear)
    bells[0].ring(["mail"])
    bells[0].ring([])
    assert [await ear.next() for ear in ears[1:]] == [{"mail"}, {"mail"}]
    bells[1].ring(["back"])
    assert await ears[0].next() == {"back"}


@pytest.mark.spec("SQLITE-48")
async def test_one_that_came_a_moment_ago_is_rung_for(make: Callable[[], Bell]) -> None:
    ringer = make()
    for number in range(30):
        ringer.ring(["early"])
        listener, heard = make(), Heard()
        listener.listen(heard)
        ringer.ring([f"q{number}"])
        assert await heard.next() == {f"q{number}"}
        listener.close()


@pytest.mark.spec("SQLITE-48")
async def test_may_be_rung_from_any_thread(make: Callable[[], Bell]) -> None:
    listener, ringer, heard = make(), make(), Heard()
    listener.listen(heard)
    await asyncio.gather(*(asyncio.to_thread(ringer.ring, [f"q{n}"]) for n in range(5)))
    seen: set[str] = set()
    while len(seen) < 5:
        seen |= await heard.next()
    assert seen == {f"q{n}" for n in range(5)}


@pytest.mark.spec("SQLITE-48")
async def test_silence_costs_nothing(folder: Path, make: Callable[[], Bell], tmp_path: Path) -> None:
    asked = 0

    def probe() -> int:
        nonlocal asked
        asked += 1
        return 0

    bell = make()
    bell.listen(Heard())
    bell.watch(tmp_path / "jobs.db", Heard(), probe)
    cpu = time.process_time()
    await asyncio.sleep(0.3)
    assert asked == 1
    assert time.process_time() - cpu < 0.03


@pytest.mark.spec("SQLITE-49")
async def test_the_name_of_a_killed_listener_goes_with_the_next_ring(folder: Path, make: Callable[[], Bell]) -> None:
    ringer, heard = make(), Heard()
    with child(LISTENER, folder) as listener:
        assert listener.line() == "listening"
        ringer.ring(["mail"])
        assert listener.line() == "mail"
        listener.kill(signal.SIGKILL)
        listener.process.wait()
    assert len(list(folder.iterdir())) == 1
    other = make()
    other.listen(heard)
    ringer.ring(["more"])
    assert await heard.next() == {"more"}
    assert len(list(folder.iterdir())) == 1


@pytest.mark.spec("SQLITE-49")
async def test_a_frozen_listener_hinders_nobody_and_misses_nothing(folder: Path, make: Callable[[], Bell]) -> None:
    ringer, living, heard = make(), make(), Heard()
    living.listen(heard)
    with child(LISTENER, folder) as frozen:
        assert frozen.line() == "listening"
        frozen.kill(signal.SIGSTOP)
        eventually(lambda: os.waitpid(frozen.process.pid, os.WUNTRACED | os.WNOHANG)[0])
        for number in range(600):
            ringer.ring([f"q{number}"])
            seen = await heard.next()
            assert f"q{number}" in seen or EVERYTHING in seen
        frozen.kill(signal.SIGCONT)
        assert EVERYTHING in frozen.line()


@pytest.mark.spec("SQLITE-49")
async def test_more_topics_than_fit_become_everything(make: Callable[[], Bell]) -> None:
    listener, ringer, heard = make(), make(), Heard()
    listener.listen(heard)
    ringer.ring([f"queue-number-{n}" for n in range(1000)])
    assert await heard.next() == {EVERYTHING}
    many = [f"q{n}" for n in range(700)]
    ringer.ring(many)
    assert await heard.next() == set(many)


@pytest.mark.spec("SQLITE-50")
@pytest.mark.parametrize("linux", [True, False])
async def test_a_path_of_any_length_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linux: bool) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20) / "bells"
    folder.parent.mkdir(parents=True)
    short = tmp_path.parent / f"s{os.getpid()}"
    if not linux:
        short.mkdir()
        monkeypatch.setattr(wake, "OPEN_FILES", tmp_path / "none")
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(short))
    heard = Heard()
    loop = asyncio.get_running_loop()
    listener, ringer = Bell(folder, loop), Bell(folder, loop)
    listener.listen(heard)
    ringer.ring(["mail"])
    assert await heard.next() == {"mail"}
    assert len(list((folder if linux else next(short.iterdir())).iterdir())) == 1
    listener.close()
    ringer.close()
    if not linux:
        short.rmdir()  # nothing is left in it


async def test_a_folder_that_was_taken_away_is_no_error(folder: Path, make: Callable[[], Bell]) -> None:
    listener, ringer, heard = make(), make(), Heard()
    listener.listen(heard)
    ringer.ring(["mail"])
    assert await heard.next() == {"mail"}
    shutil.rmtree(folder)
    ringer.ring(["mail"])
    ringer.ring(["mail"])
    again = make()
    again.listen(heard)
    ringer.ring(["back"])
    assert await heard.next() == {"back"}


async def test_a_folder_that_others_can_write_to_is_refused(folder: Path, make: Callable[[], Bell]) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(EngineRefused, match="bells"):
        make().listen(Heard())
    make().ring(["mail"])


async def test_sockets_are_for_their_owner_alone(folder: Path, make: Callable[[], Bell]) -> None:
    old = os.umask(0)
    try:
        make().listen(Heard())
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    [name] = folder.iterdir()
    assert stat.S_IMODE(name.stat().st_mode) == 0o600


@pytest.mark.spec("SQLITE-79")
async def test_who_hears_control_only_is_spared_the_rest_until_it_wants_all(make: Callable[[], Bell]) -> None:
    listener, ringer = make(), make()
    heard = Heard()
    listener.listen(heard, control_only=True)
    ringer.ring(["mail"])
    ringer.ring([CONTROL])
    assert await heard.next() == {CONTROL}
    listener.hear_all()
    listener.hear_all()
    ringer.ring(["mail"])
    assert await heard.next() == {"mail"}


async def test_listens_and_watches_once(make: Callable[[], Bell], tmp_path: Path) -> None:
    bell = make()
    bell.listen(Heard())
    bell.watch(tmp_path / "jobs.db", Heard(), lambda: 1)
    with pytest.raises(EngineRefused):
        bell.listen(Heard())
    with pytest.raises(EngineRefused):
        bell.watch(tmp_path / "jobs.db", Heard(), lambda: 1)


@pytest.mark.spec("SQLITE-49")
async def test_a_forked_child_does_not_keep_the_name_of_a_dead_listener(folder: Path, make: Callable[[], Bell]) -> None:
    script = LISTENER.replace(
        '    print("listening", flush=True)\n',
        """
    import os, time
    bell.watch("/nonexistent/jobs.db", print, lambda: 1)
    if (forked := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    print(forked, flush=True)
""",
    )
    ringer = make()
    with child(script, folder) as parent:
        forked = int(parent.line())
        parent.kill(signal.SIGKILL)
        parent.process.wait()
        try:
            deadline = time.monotonic() + 10
            while list(folder.iterdir()) and time.monotonic() < deadline:  # the child may not have come to itself yet
                ringer.ring(["mail"])
                await asyncio.sleep(0.01)
            assert list(folder.iterdir()) == []
        finally:
            os.kill(forked, signal.SIGKILL)


# --- commits that nobody rings for --------------------------------------------------------------------------------


class Database:
    """A database with a table and the probe of a connection of its own."""

    def __init__(self, path: Path, journal: str) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute(f"PRAGMA journal_mode={journal}")
        self.connection.execute("CREATE TABLE t (a)")

    def probe(self) -> int:
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])


@pytest.fixture(params=["wal", "delete"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "jobs.db", request.param)
    yield made
    made.connection.close()


@pytest.mark.spec("SQLITE-51")
@pytest.mark.parametrize("polling", [False, True])
async def test_a_commit_of_another_process_is_noticed(
    database: Database, make: Callable[[], Bell], monkeypatch: pytest.MonkeyPatch, polling: bool
) -> None:
    if polling:
        monkeypatch.setattr(watch.Inotify, "on", lambda path: None)
    heard = Heard()
    make().watch(database.path, heard, database.probe)
    took = []
    with child(WRITER, database.path) as writer:
        assert writer.line() == "ready"
        for _ in range(5):
            writer.say("write")
            assert writer.line() == "done"
            began = time.monotonic()
            await heard.next()
            took.append(time.monotonic() - began)
            heard.calls.clear()
    assert sorted(took)[2] < 0.25


@pytest.mark.spec("SQLITE-51")
async def test_a_log_that_comes_and_goes_is_followed(tmp_path: Path, make: Callable[[], Bell]) -> None:
    path = tmp_path / "jobs.db"
    Database(path, "wal").connection.close()
    assert not Path(f"{path}-wal").exists()
    heard = Heard()

    def probe() -> int:
        # Opened and closed each time, as the last one to leave takes the log away.
        connection = sqlite3.connect(path)
        try:
            return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])
        finally:
            connection.close()

    make().watch(path, heard, probe)
    with child(WRITER, path) as writer:
        assert writer.line() == "ready"
        for _ in range(3):
            writer.say("close")
            assert writer.line() == "done"
            await heard.next()
            heard.calls.clear()


@pytest.mark.spec("SQLITE-51")
async def test_a_commit_that_shows_long_after_it_was_written_is_noticed(
    tmp_path: Path, make: Callable[[], Bell]
) -> None:
    """The disk may take its time between the write, which the kernel reports, and the commit, which it does not."""
    path = tmp_path / "jobs.db"
    log = Path(f"{path}-wal")
    log.touch()
    visible: list[int | None] = [1]
    heard = Heard()
    make().watch(path, heard, lambda: visible[0])
    log.write_bytes(b"frame")
    await asyncio.sleep(0.02)
    visible[0] = None
    await asyncio.sleep(0.08)
    assert heard.calls == []
    visible[0] = 2
    await heard.next()


@pytest.mark.spec("SQLITE-51")
async def test_a_probe_that_fails_once_is_asked_again(
    tmp_path: Path, make: Callable[[], Bell], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    answers: list[int | Exception] = [1, OSError("busy"), 2]

    def probe() -> int:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    heard = Heard()
    (tmp_path / "jobs.db").touch()
    make().watch(tmp_path / "jobs.db", heard, probe)
    (tmp_path / "jobs.db").write_bytes(b"x")
    await heard.next()
    assert len(errors) == 1


async def test_a_busy_database_does_not_keep_the_loop_busy(tmp_path: Path, make: Callable[[], Bell]) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    asked = 0

    def probe() -> int:
        nonlocal asked
        asked += 1
        return asked

    make().watch(path, Heard(), probe)
    with path.open("wb", buffering=0) as file:
        end = time.monotonic() + 0.2
        writes = 0
        while time.monotonic() < end:
            file.write(b"x")
            writes += 1
            await asyncio.sleep(0)
    assert writes > 1000
    assert asked < 200


async def test_other_files_in_the_folder_do_not_matter(tmp_path: Path, make: Callable[[], Bell]) -> None:
    asked = 0

    def probe() -> int:
        nonlocal asked
        asked += 1
        return asked

    make().watch(tmp_path / "jobs.db", Heard(), probe)
    for number in range(20):
        (tmp_path / f"other{number}").write_bytes(b"x")
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert asked == 1


@pytest.mark.spec("SQLITE-51")
async def test_a_write_brings_the_next_look_near_however_far_off_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks after one write grow seldom; a second write must not wait for the last of them, nor put off the first."""
    kernel, other = os.pipe()
    told = SimpleNamespace(fd=kernel, touched=lambda: True)
    monkeypatch.setattr(watch.Inotify, "on", lambda _path: told)
    loop, looks = asyncio.get_running_loop(), 0

    def probe() -> None:
        nonlocal looks
        looks += 1

    watching = watch.Watch(tmp_path / "jobs.db", loop, lambda: None, probe)
    try:
        far = watching._timer = loop.call_later(watch.LAST_PAUSE, watching._look)
        watching._stirred()
        assert watching._rest is not None
        assert watching._rest.when() <= loop.time() + watch.CALM
        watching._look_closer()
        assert far.cancelled()
        assert looks == 2, "one when it began to watch, one now"
        assert watching._timer.when() <= loop.time() + watch.CALM
        os.write(other, b"x")  # nobody reads it: from here on there is always something written
        await until(lambda: looks > 4)
    finally:
        watching.close()
        os.close(other)

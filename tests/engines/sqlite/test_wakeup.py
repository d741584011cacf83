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
from stoker.engines.sqlite import wakeup
from stoker.engines.sqlite.wakeup import EVERYTHING, WakeSocket
from stoker.model.errors import EngineRefused
from tests.engines.sqlite.children import child, eventually
from tests.harness.apps import PATIENCE, until

pytestmark = pytest.mark.engine("sqlite")

LISTENER = """
import asyncio, sys
from stoker.engines.sqlite.wakeup import WakeSocket
async def main():
    loop = asyncio.get_running_loop()
    wake_socket = WakeSocket(sys.argv[1], loop)
    wake_socket.listen(lambda topics: print(" ".join(sorted(topics)), flush=True))
    print("listening", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

SENDER = """
import asyncio, sys
from stoker.engines.sqlite.wakeup import WakeSocket
wake_socket = WakeSocket(sys.argv[1], asyncio.new_event_loop())
print("ready", flush=True)
while line := sys.stdin.readline():
    wake_socket.notify(line.split())
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


class Received:
    """The topics a listener received, and a way to wait for them."""

    def __init__(self) -> None:
        self.calls: list[frozenset[str]] = []
        self._event = asyncio.Event()

    def __call__(self, topics: frozenset[str] = frozenset()) -> None:
        self.calls.append(topics)
        self._event.set()

    async def next(self, within: float = PATIENCE) -> frozenset[str]:
        if not self.calls:
            await asyncio.wait_for(self._event.wait(), within)
        self._event.clear()
        return self.calls.pop(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sockets"


@pytest.fixture
async def make(folder: Path) -> AsyncIterator[Callable[[], WakeSocket]]:
    sockets: list[WakeSocket] = []

    def made() -> WakeSocket:
        sockets.append(WakeSocket(folder, asyncio.get_running_loop()))
        return sockets[-1]

    yield made
    for wake_socket in sockets:
        wake_socket.close()
        wake_socket.close()


@pytest.mark.spec("SQLITE-48")
async def test_a_notification_reaches_another_process(folder: Path, make: Callable[[], WakeSocket]) -> None:
    received = Received()
    make().listen(received)
    with child(SENDER, folder) as sender:
        assert sender.line() == "ready"
        sender.say("mail @control")
        assert await received.next() == {"mail", "@control"}


@pytest.mark.spec("SQLITE-48")
async def test_every_listener_but_the_sender_receives_it(make: Callable[[], WakeSocket]) -> None:
    sockets = [make() for _ in range(3)]
    received = [Received() for _ in sockets]
    for wake_socket, one in zip(sockets, received, strict=True):
        wake_socket.listen(one)
    sockets[0].notify(["mail"])
    sockets[0].notify([])
    assert [await one.next() for one in received[1:]] == [{"mail"}, {"mail"}]
    sockets[1].notify(["back"])
    assert await received[0].next() == {"back"}


@pytest.mark.spec("SQLITE-48")
async def test_a_listener_that_just_started_is_notified(make: Callable[[], WakeSocket]) -> None:
    sender = make()
    for number in range(30):
        sender.notify(["early"])
        listener, received = make(), Received()
        listener.listen(received)
        sender.notify([f"q{number}"])
        assert await received.next() == {f"q{number}"}
        listener.close()


@pytest.mark.spec("SQLITE-48")
async def test_any_thread_may_notify(make: Callable[[], WakeSocket]) -> None:
    listener, sender, received = make(), make(), Received()
    listener.listen(received)
    await asyncio.gather(*(asyncio.to_thread(sender.notify, [f"q{n}"]) for n in range(5)))
    seen: set[str] = set()
    while len(seen) < 5:
        seen |= await received.next()
    assert seen == {f"q{n}" for n in range(5)}


@pytest.mark.spec("SQLITE-48")
async def test_an_idle_listener_uses_no_cpu(folder: Path, make: Callable[[], WakeSocket], tmp_path: Path) -> None:
    asked = 0

    def probe() -> int:
        nonlocal asked
        asked += 1
        return 0

    wake_socket = make()
    wake_socket.listen(Received())
    wake_socket.watch(tmp_path / "jobs.db", Received(), probe)
    cpu = time.process_time()
    await asyncio.sleep(0.3)
    assert asked == 1
    assert time.process_time() - cpu < 0.1


@pytest.mark.spec("SQLITE-49")
async def test_the_name_of_a_killed_listener_is_removed_by_the_next_notification(
    folder: Path, make: Callable[[], WakeSocket]
) -> None:
    sender, received = make(), Received()
    with child(LISTENER, folder) as listener:
        assert listener.line() == "listening"
        sender.notify(["mail"])
        assert listener.line() == "mail"
        listener.kill(signal.SIGKILL)
        listener.process.wait()
    assert len(list(folder.iterdir())) == 1
    other = make()
    other.listen(received)
    sender.notify(["more"])
    assert await received.next() == {"more"}
    assert len(list(folder.iterdir())) == 1


@pytest.mark.spec("SQLITE-49")
async def test_a_frozen_listener_delays_no_sender_and_misses_nothing(
    folder: Path, make: Callable[[], WakeSocket]
) -> None:
    sender, living, received = make(), make(), Received()
    living.listen(received)
    with child(LISTENER, folder) as frozen:
        assert frozen.line() == "listening"
        frozen.kill(signal.SIGSTOP)
        eventually(lambda: os.waitpid(frozen.process.pid, os.WUNTRACED | os.WNOHANG)[0])
        for number in range(600):
            sender.notify([f"q{number}"])
            seen = await received.next()
            assert f"q{number}" in seen or EVERYTHING in seen
        frozen.kill(signal.SIGCONT)
        assert EVERYTHING in frozen.line()


@pytest.mark.spec("SQLITE-49")
async def test_more_topics_than_fit_become_everything(make: Callable[[], WakeSocket]) -> None:
    listener, sender, received = make(), make(), Received()
    listener.listen(received)
    sender.notify([f"queue-number-{n}" for n in range(1000)])
    assert await received.next() == {EVERYTHING}
    many = [f"q{n}" for n in range(700)]
    sender.notify(many)
    assert await received.next() == set(many)


@pytest.mark.spec("SQLITE-50")
@pytest.mark.parametrize("linux", [True, False])
async def test_a_path_of_any_length_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linux: bool) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20) / "sockets"
    folder.parent.mkdir(parents=True)
    short = tmp_path.parent / f"s{os.getpid()}"
    if not linux:
        short.mkdir()
        monkeypatch.setattr(wakeup, "OPEN_FILES", tmp_path / "none")
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(short))
    received = Received()
    loop = asyncio.get_running_loop()
    listener, sender = WakeSocket(folder, loop), WakeSocket(folder, loop)
    listener.listen(received)
    sender.notify(["mail"])
    assert await received.next() == {"mail"}
    assert len(list((folder if linux else next(short.iterdir())).iterdir())) == 1
    listener.close()
    sender.close()
    if not linux:
        short.rmdir()  # nothing is left in it


async def test_a_folder_that_was_removed_is_no_error(folder: Path, make: Callable[[], WakeSocket]) -> None:
    listener, sender, received = make(), make(), Received()
    listener.listen(received)
    sender.notify(["mail"])
    assert await received.next() == {"mail"}
    shutil.rmtree(folder)
    sender.notify(["mail"])
    sender.notify(["mail"])
    again = make()
    again.listen(received)
    sender.notify(["back"])
    assert await received.next() == {"back"}


async def test_a_folder_that_others_can_write_to_is_refused(folder: Path, make: Callable[[], WakeSocket]) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(EngineRefused, match="sockets"):
        make().listen(Received())
    make().notify(["mail"])


async def test_sockets_are_for_their_owner_alone(folder: Path, make: Callable[[], WakeSocket]) -> None:
    old = os.umask(0)
    try:
        make().listen(Received())
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    [name] = folder.iterdir()
    assert stat.S_IMODE(name.stat().st_mode) == 0o600


@pytest.mark.spec("SQLITE-79")
async def test_a_control_only_listener_is_not_woken_for_queues_until_it_asks(make: Callable[[], WakeSocket]) -> None:
    listener, sender = make(), make()
    received = Received()
    listener.listen(received, control_only=True)
    sender.notify(["mail"])
    sender.notify([CONTROL])
    assert await received.next() == {CONTROL}
    listener.listen_to_all()
    listener.listen_to_all()
    sender.notify(["mail"])
    assert await received.next() == {"mail"}


async def test_listens_and_watches_once(make: Callable[[], WakeSocket], tmp_path: Path) -> None:
    wake_socket = make()
    wake_socket.listen(Received())
    wake_socket.watch(tmp_path / "jobs.db", Received(), lambda: 1)
    with pytest.raises(EngineRefused):
        wake_socket.listen(Received())
    with pytest.raises(EngineRefused):
        wake_socket.watch(tmp_path / "jobs.db", Received(), lambda: 1)


@pytest.mark.spec("SQLITE-49")
async def test_a_forked_child_does_not_keep_the_name_of_a_dead_listener(
    folder: Path, make: Callable[[], WakeSocket]
) -> None:
    script = LISTENER.replace(
        '    print("listening", flush=True)\n',
        """
    import os, time
    wake_socket.watch("/nonexistent/jobs.db", print, lambda: 1)
    if (forked := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    print(forked, flush=True)
""",
    )
    sender = make()
    with child(script, folder) as parent:
        forked = int(parent.line())
        parent.kill(signal.SIGKILL)
        parent.process.wait()
        try:
            deadline = time.monotonic() + PATIENCE
            while (
                list(folder.iterdir()) and time.monotonic() < deadline
            ):  # the child may not have run its fork handler yet
                sender.notify(["mail"])
                await asyncio.sleep(0.01)
            assert list(folder.iterdir()) == []
        finally:
            os.kill(forked, signal.SIGKILL)


# --- commits without a notification -----------------------------------------------------------------------------


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
    database: Database, make: Callable[[], WakeSocket], monkeypatch: pytest.MonkeyPatch, polling: bool
) -> None:
    if polling:
        monkeypatch.setattr(wakeup.Inotify, "on", lambda path: None)
    received = Received()
    make().watch(database.path, received, database.probe)
    with child(WRITER, database.path) as writer:
        assert writer.line() == "ready"
        for _ in range(5):
            writer.say("write")
            assert writer.line() == "done"
            await received.next()
            received.calls.clear()


@pytest.mark.spec("SQLITE-51")
async def test_a_log_that_comes_and_goes_is_followed(tmp_path: Path, make: Callable[[], WakeSocket]) -> None:
    path = tmp_path / "jobs.db"
    Database(path, "wal").connection.close()
    assert not Path(f"{path}-wal").exists()
    received = Received()

    def probe() -> int:
        # Opened and closed each time, as the last connection to close removes the log.
        connection = sqlite3.connect(path)
        try:
            return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])
        finally:
            connection.close()

    make().watch(path, received, probe)
    with child(WRITER, path) as writer:
        assert writer.line() == "ready"
        for _ in range(3):
            writer.say("close")
            assert writer.line() == "done"
            await received.next()
            received.calls.clear()


@pytest.mark.spec("SQLITE-51")
async def test_a_commit_that_shows_long_after_it_was_written_is_noticed(
    tmp_path: Path, make: Callable[[], WakeSocket]
) -> None:
    """The disk may take its time between the write, which the kernel reports, and the commit, which it does not."""
    path = tmp_path / "jobs.db"
    log = Path(f"{path}-wal")
    log.touch()
    visible: list[int | None] = [1]
    received = Received()
    make().watch(path, received, lambda: visible[0])
    log.write_bytes(b"frame")
    await asyncio.sleep(0.02)
    visible[0] = None
    await asyncio.sleep(0.08)
    assert received.calls == []
    visible[0] = 2
    await received.next()


@pytest.mark.spec("SQLITE-51")
async def test_a_probe_that_fails_once_is_called_again(
    tmp_path: Path, make: Callable[[], WakeSocket], monkeypatch: pytest.MonkeyPatch
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

    received = Received()
    (tmp_path / "jobs.db").touch()
    make().watch(tmp_path / "jobs.db", received, probe)
    (tmp_path / "jobs.db").write_bytes(b"x")
    await received.next()
    assert len(errors) == 1


async def test_a_busy_database_does_not_keep_the_loop_busy(tmp_path: Path, make: Callable[[], WakeSocket]) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    asked = 0

    def probe() -> int:
        nonlocal asked
        asked += 1
        return asked

    make().watch(path, Received(), probe)
    with path.open("wb", buffering=0) as file:
        began = time.monotonic()
        for _ in range(2_000):
            file.write(b"x")
            await asyncio.sleep(0)
        took = time.monotonic() - began
    assert asked < 200 + took / wakeup.FIRST_DELAY, "a check every few milliseconds at most"


async def test_other_files_in_the_folder_do_not_matter(tmp_path: Path, make: Callable[[], WakeSocket]) -> None:
    asked = 0

    def probe() -> int:
        nonlocal asked
        asked += 1
        return asked

    make().watch(tmp_path / "jobs.db", Received(), probe)
    for number in range(20):
        (tmp_path / f"other{number}").write_bytes(b"x")
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert asked == 1


@pytest.mark.spec("SQLITE-51")
async def test_a_write_brings_the_next_check_near_however_far_off_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks after one write grow rare; a second write must not wait for the last of them, nor delay the first."""
    kernel, other = os.pipe()
    inotify = SimpleNamespace(fd=kernel, touched=lambda: True)
    monkeypatch.setattr(wakeup.Inotify, "on", lambda _path: inotify)
    loop, checks = asyncio.get_running_loop(), 0

    def probe() -> None:
        nonlocal checks
        checks += 1

    watching = wakeup.FileWatch(tmp_path / "jobs.db", loop, lambda: None, probe)
    try:
        far = watching._timer = loop.call_later(wakeup.LONGEST_PAUSE, watching._check)
        watching._written()
        assert watching._delay is not None
        assert watching._delay.when() <= loop.time() + wakeup.FIRST_DELAY
        watching._check_soon()
        assert far.cancelled()
        assert checks == 2, "one when it began to watch, one now"
        assert watching._timer.when() <= loop.time() + wakeup.FIRST_DELAY
        os.write(other, b"x")  # never read: from here on the pipe is always readable
        await until(lambda: checks > 4)
    finally:
        watching.close()
        os.close(other)

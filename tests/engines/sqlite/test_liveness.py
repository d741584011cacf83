from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.engines.sqlite.liveness import LivenessFiles, locked
from stoker.model.errors import EngineRefused
from tests.engines.sqlite.children import child, eventually

pytestmark = pytest.mark.engine("sqlite")

WORKER = """
import sys
from stoker.engines.sqlite.liveness import LivenessFiles
liveness = LivenessFiles(sys.argv[1])
liveness.hold(sys.argv[2])
print("alive", flush=True)
sys.stdin.readline()
liveness.drop(sys.argv[2])
print("gone", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "liveness"


@pytest.fixture
def liveness(folder: Path) -> Iterator[LivenessFiles]:
    made = LivenessFiles(folder)
    yield made
    made.close()


@pytest.mark.spec("SQLITE-45")
@pytest.mark.timeout(300)
def test_a_killed_worker_is_known_dead_at_once(folder: Path, liveness: LivenessFiles, campaign: bool) -> None:
    for number in range(50 if campaign else 3):
        name = f"w{number}"
        with child(WORKER, folder, name) as worker:
            assert worker.line() == "alive"
            assert liveness.dead([name]) == []
            worker.kill(signal.SIGKILL)
            eventually(lambda name=name: liveness.dead([name]) == [name])  # type: ignore[misc]
        liveness.forget(name)
        assert liveness.dead([name]) == []
    assert list(folder.iterdir()) == []


@pytest.mark.spec("SQLITE-45")
def test_a_frozen_worker_is_not_dead(folder: Path, liveness: LivenessFiles) -> None:
    with child(WORKER, folder, "w1") as worker:
        assert worker.line() == "alive"
        worker.kill(signal.SIGSTOP)
        eventually(lambda: os.waitpid(worker.process.pid, os.WUNTRACED | os.WNOHANG)[0])
        assert liveness.dead(["w1"]) == []
        liveness.forget("w1")
        worker.kill(signal.SIGCONT)
        assert liveness.dead(["w1"]) == []
        assert [file.name for file in folder.iterdir()] == ["w1.alive"]


@pytest.mark.spec("SQLITE-46")
def test_only_a_file_that_is_there_and_unlocked_proves_a_death(folder: Path, liveness: LivenessFiles) -> None:
    other = LivenessFiles(folder)
    assert liveness.dead(["unseen"]) == []
    liveness.hold("mine")
    liveness.hold("mine")
    other.hold("theirs")
    (folder / "old.alive").touch()
    assert liveness.dead(["mine", "theirs", "old", "unseen"]) == ["old"]
    assert other.dead(iter(["mine", "theirs", "old", "unseen"])) == ["old"]
    liveness.drop("mine")
    liveness.drop("mine")
    other.close()
    other.close()
    assert liveness.dead(["mine", "theirs"]) == []
    liveness.forget("old")
    liveness.forget("old")
    assert list(folder.iterdir()) == []


@pytest.mark.spec("SQLITE-46")
def test_a_dropped_worker_leaves_nothing(folder: Path, liveness: LivenessFiles) -> None:
    with child(WORKER, folder, "w1") as worker:
        assert worker.line() == "alive"
        worker.say("go")
        assert worker.line() == "gone"
        assert liveness.dead(["w1"]) == []
        assert list(folder.iterdir()) == []


@pytest.mark.spec("SQLITE-46")
def test_a_worker_that_starts_never_looks_dead(folder: Path, liveness: LivenessFiles) -> None:
    script = """
import sys
from stoker.engines.sqlite.liveness import LivenessFiles
liveness = LivenessFiles(sys.argv[1])
print("ready", flush=True)
for number in range(400):
    liveness.hold("w1")
    liveness.drop("w1")
print("done", flush=True)
sys.stdin.readline()
"""
    liveness.hold("mine")
    with child(script, folder) as worker:
        assert worker.line() == "ready"
        os.set_blocking(worker.process.stdout.fileno(), False)  # type: ignore[union-attr]
        looks = 0
        while worker.line() != "done":
            assert liveness.dead(["w1"]) == []
            liveness.forget("w1")
            LivenessFiles(folder)._prepare()
            looks += 1
    assert looks > 10


@pytest.mark.spec("SQLITE-46")
def test_an_id_in_use_is_refused_and_one_of_a_dead_worker_is_not(folder: Path, liveness: LivenessFiles) -> None:
    other = LivenessFiles(folder)
    liveness.hold("w1")
    with pytest.raises(EngineRefused, match="w1"):
        other.hold("w1")
    liveness.forget("w1")
    other.forget("w1")
    assert other.dead(["w1"]) == []
    (folder / "w2.alive").touch()
    liveness.hold("w2")
    assert other.dead(["w2"]) == []


@pytest.mark.parametrize("worker", ["../../escape", "a/b", ".", "", "x" * 300, "naïve wörker", "~" + "0" * 64])
def test_any_name_stays_inside_the_folder(folder: Path, liveness: LivenessFiles, worker: str) -> None:
    liveness.hold(worker)
    assert [file.parent for file in folder.iterdir()] == [folder]
    assert LivenessFiles(folder).dead([worker]) == []
    liveness.drop(worker)
    assert list(folder.iterdir()) == []


def test_files_and_folder_are_for_their_owner_alone(folder: Path, liveness: LivenessFiles) -> None:
    old = os.umask(0)
    try:
        liveness.hold("w1")
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "w1.alive").stat().st_mode) == 0o600


def test_a_linked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "liveness").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EngineRefused, match="symbolic link"):
        LivenessFiles(tmp_path / "liveness").hold("w1")


def test_leftovers_of_a_process_killed_in_the_middle_are_swept(folder: Path, liveness: LivenessFiles) -> None:
    folder.mkdir()
    (folder / ".new-1234").touch()
    liveness.hold("w1")
    assert [file.name for file in folder.iterdir()] == ["w1.alive"]


@pytest.mark.spec("SQLITE-47")
def test_a_forked_or_started_child_does_not_keep_its_parent_alive(folder: Path, liveness: LivenessFiles) -> None:
    script = """
import os, subprocess, sys, time
from stoker.engines.sqlite.liveness import LivenessFiles
liveness = LivenessFiles(sys.argv[1])
liveness.hold("w1")
started = subprocess.Popen(["sleep", "60"])
if (forked := os.fork()) == 0:
    liveness.drop("w1")
    os.write(1, f"{liveness.dead(['w1'])}\\n".encode())
    time.sleep(60)
os.write(1, f"{started.pid} {forked}\\n".encode())
time.sleep(60)
"""
    with child(script, folder) as parent:
        lines = sorted((parent.line(), parent.line()))
        assert lines[1] == "[]"
        try:
            assert liveness.dead(["w1"]) == []
            parent.kill(signal.SIGKILL)
            eventually(lambda: liveness.dead(["w1"]) == ["w1"])
        finally:
            for pid in lines[0].split():
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.spec("KILL-12")
def test_a_dead_worker_is_left_to_its_guardian_for_as_long_as_that_lives(folder: Path, liveness: LivenessFiles) -> None:
    with child(WORKER, folder, "boss") as boss, child(WORKER, folder, "boss.w1") as worker:
        assert boss.line() == worker.line() == "alive"
        worker.kill(signal.SIGKILL)
        eventually(lambda: locked(folder / "boss.w1.alive") is False)
        assert liveness.dead(["boss.w1", "boss"]) == []
        boss.kill(signal.SIGKILL)
        eventually(lambda: liveness.dead(["boss.w1", "boss"]) == ["boss.w1", "boss"])
    liveness.hold("boss")
    assert liveness.dead(["boss.w1"]) == [], "one of our own guards as well"
    liveness.drop("boss")
    assert liveness.dead(["boss.w1"]) == ["boss.w1"], "a guardian that was never there, or has left, guards no worker"

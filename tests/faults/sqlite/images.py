"""Disk images after a power loss, rebuilt from the system calls of a run.

A program is run under `strace`. Every write, truncation, creation and removal of a file in one folder is a step, and a
step is safe only after a sync of that file (or, for names, of the folder). `images` then takes the run at many instants
and builds what could be left: everything safe, plus any part of the rest, in halves of sectors, for it is unknown what
the disk wrote before it stopped. Whatever the program acknowledged before that instant must still be there.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests import services
from tests.faults.fork_server import ROOT

CALLS = "openat,pwrite64,write,ftruncate,fdatasync,fsync,unlink,unlinkat,rename"
SECTOR = 512
ACKNOWLEDGED = "acknowledged"
"""The name of the file that the program under test's test writes its acknowledgements to."""

LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
HANDLE = re.compile(r"^(?:\d+|AT_FDCWD)<([^>]*)>")
QUOTED = re.compile(r'"([^"]*)"')


class Step(NamedTuple):
    """One operation on a file."""

    call: str
    name: str
    data: bytes = b""
    at: int = 0
    other: str = ""


@dataclass
class File:
    """An inode: what is safe on the disk, and what was done since."""

    safe: bytearray = field(default_factory=bytearray)
    since: list[Step] = field(default_factory=list)


def have_strace() -> str | None:
    """Return why strace cannot be used here, or None. As root on Debian it is installed if need be."""
    if sys.platform != "linux":
        return "no strace on this system"
    if not shutil.which("strace"):
        try:
            services.apt("strace")
        except services.Unavailable as error:
            return str(error)
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace does not work here: {tried.stderr.strip()[:200]}"


def traced(script: str, *arguments: object, trace: Path, within: float = 240.0, failing: str | None = None) -> None:
    """Run a module under strace. `failing`: which of its syncs fail, in strace's syntax."""
    options = ["-f", "-y", "-xx", "-s", "70000", "--seccomp-bpf", "-e", f"trace={CALLS}", "-o", str(trace)]
    if failing:
        options += ["-e", f"inject=fdatasync,fsync:error=EIO:when={failing}"]
    command = ["strace", *options, sys.executable, "-m", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=within, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


# --- reading a trace --------------------------------------------------------------------------------------------


def steps(trace: Iterable[str], folder: Path) -> Iterator[Step]:
    """What was done to the files of a folder, in order. A write counts from its beginning, a sync at its end."""
    pending: dict[str, str] = {}
    for line in trace:
        if line.endswith("<unfinished ...>\n"):
            head = line[: -len("<unfinished ...>\n")]
            pending[head.split(" ", 1)[0]] = head
            continue
        if resumed := RESUMED.match(line):
            line = pending.pop(resumed[1], "") + resumed[2] + "\n"
        if (found := LINE.match(line)) and (step := read(found[2], found[3], folder)):
            if int(found[4]) >= 0:
                yield step
            elif step.call in ("fsync", "fdatasync"):
                yield step._replace(call="forget")


def read(call: str, text: str, folder: Path) -> Step | None:
    handle = HANDLE.match(text)
    strings = QUOTED.findall(text)
    if call in ("openat", "unlink", "unlinkat", "rename"):
        names = [inside(unhex(one).decode(), folder) for one in strings]
        if not names or names[0] is None or (call == "openat" and "O_CREAT" not in text):
            return None
        return Step("unlink" if call == "unlinkat" else call, names[0], other=names[1] or "" if len(names) > 1 else "")
    if handle is None:
        return None
    path = unhex(handle[1]).decode().removesuffix(" (deleted)")
    name = "." if path == str(folder) else inside(path, folder)
    if name is None:
        return None
    data = unhex(strings[0]) if strings else b""
    numbers = [int(part) for part in text.rsplit('"', 1)[-1].replace(",", " ").split() if part.lstrip("-").isdigit()]
    if call == "ftruncate":
        return Step(call, name, at=int(text.rsplit(",", 1)[1]))
    return Step(call, name, data, numbers[1] if call == "pwrite64" else -1)


def inside(path: str, folder: Path) -> str | None:
    """Return a file's name if it is in the folder itself."""
    name = path.removeprefix(f"{folder}/")
    return name if name != path and "/" not in name else None


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


# --- the disk ---------------------------------------------------------------------------------------------------


class Disk:
    """A folder as the kernel sees it, and as it would be found after a power loss."""

    def __init__(self) -> None:
        self.names: dict[str, File] = {}
        self.safe_names: dict[str, File] = {}
        self.renamings: list[dict[str, File]] = []
        self.acknowledged = b""

    def take(self, step: Step) -> None:
        if step.name == ACKNOWLEDGED:
            self.acknowledged += step.data
            return
        match step.call:
            case "openat":
                if step.name not in self.names:
                    self.names[step.name] = File()
                    self.renamings.append(dict(self.names))
            case "unlink":
                self.names.pop(step.name, None)
                self.renamings.append(dict(self.names))
            case "rename":
                if step.name in self.names:
                    self.names[step.other] = self.names.pop(step.name)
                    self.renamings.append(dict(self.names))
            case "fsync" | "fdatasync" if step.name == ".":
                self.safe_names, self.renamings = dict(self.names), []
            case "forget":  # a sync that failed: the kernel takes for written what never was
                if file := self.names.get(step.name):
                    file.since = []
            case "fsync" | "fdatasync":
                if file := self.names.get(step.name):
                    for one in file.since:
                        apply(file.safe, one, None)
                    file.since = []
            case _:
                if file := self.names.get(step.name):
                    file.since.append(step)

    def left(self, chance: random.Random | None) -> dict[str, bytes]:
        """Return what may be found; without `chance` only what is fsynced."""
        ways = [self.safe_names, *self.renamings]
        names = ways[0] if chance is None else chance.choice(ways)
        found: dict[str, bytes] = {}
        for name, file in names.items():
            content = bytearray(file.safe)
            for step in file.since if chance else ():
                if chance and chance.random() < 0.5:
                    apply(content, step, chance)
            found[name] = bytes(content)
        return found


def apply(content: bytearray, step: Step, torn: random.Random | None) -> None:
    """Apply a step to a file's bytes; a torn write leaves out some of its sectors."""
    if step.call == "ftruncate":
        if step.at < len(content):
            del content[step.at :]
        else:
            content.extend(bytes(step.at - len(content)))
        return
    at = len(content) if step.at < 0 else step.at
    tear = torn if torn and torn.random() < 0.3 else None
    for start in range(0, len(step.data), SECTOR) if tear else (0,):
        if tear and tear.random() < 0.5:
            continue
        piece = step.data[start : start + SECTOR] if tear else step.data
        if len(content) < at + start:
            content.extend(bytes(at + start - len(content)))
        content[at + start : at + start + len(piece)] = piece


def images(run: list[Step], n: int, chance: random.Random) -> Iterator[tuple[dict[str, bytes], bytes]]:
    """Yield `n` folders that a power loss could leave, each with what had been acknowledged by then.

    Instants right before and after an acknowledgement are where something can be lost; half of the images are of these.
    """
    moments = [place for place, step in enumerate(run, 1) if step.name == ACKNOWLEDGED]
    instants = sorted(
        chance.choice(moments) if chance.random() < 0.5 else chance.randint(1, len(run)) for _ in range(n)
    )
    disk, place = Disk(), 0
    for number, instant in enumerate(instants):
        while place < instant:
            disk.take(run[place])
            place += 1
        yield disk.left(chance if number % 3 else None), disk.acknowledged


# --- what is in an image ----------------------------------------------------------------------------------------


def lost(path: Path, acknowledged: bytes) -> tuple[int, int]:
    """Return how many acknowledged inserts and settlements are not in an image."""
    lines = [line.split(" ") for line in acknowledged.decode().splitlines()]
    with closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stoker_done'").fetchone():
            return sum(word == "insert" for word, _ in lines), sum(word == "done" for word, _ in lines)
        stored = {job.hex() for (job,) in connection.execute("SELECT id FROM stoker_body")}
        done = {job.hex() for (job,) in connection.execute("SELECT id FROM stoker_done WHERE status = 3")}
    return (
        sum(word == "insert" and job not in stored for word, job in lines),
        sum(word == "done" and job not in done for word, job in lines),
    )


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    """Put an image into a folder; returns where its store is."""
    for old in folder.glob("jobs.db*"):
        old.unlink()
    for name, content in files.items():
        if name.startswith("jobs.db") and not name.endswith("-shm"):
            (folder / name).write_bytes(content)
    return folder / "jobs.db"


def has_tables(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stoker_body'").fetchone())

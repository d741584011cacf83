"""The process that keeps one server: it starts it, obeys the test about it, and leaves nothing behind.

It waits for the end of its standard input. The pipe closes when the test run ends, however it ends: finished,
interrupted or killed. Then the keeper stops the server and removes its directory. Until then each line is an order,
answered by a line: `end` the server with a signal, or `start` it again on the same port and directory. Nothing here
imports more than the standard library, so a keeper starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.services.binaries import Unavailable, other_user
from tests.services.recipes import Recipe, before_exec, free_port, recipe

PATIENCE = 60.0
"""Seconds a server gets to come up; ample, because a first start may copy or install."""


def main() -> None:
    kind, settings = sys.argv[1:]
    try:
        keep(kind, json.loads(settings))
    except Unavailable as refusal:
        sys.exit(f"stoker: {refusal}")


def keep(kind: str, settings: dict[str, str]) -> None:
    """Run a server until standard input ends, then leave nothing behind."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    # Only /tmp is sure to be open to `nobody`, and its short name keeps sockets legal.
    home = Path(tempfile.mkdtemp(prefix="stoker-", dir="/tmp" if os.geteuid() == 0 else None))
    kept = Kept(home)
    try:
        home.chmod(0o755)
        data = home / "data"
        data.mkdir(mode=0o700)
        if who := other_user():
            os.chown(data, who[0], who[1])
        kept.recipe = recipe(kind, home, data, settings)
        kept.recipe.prepare()
        kept.first_start()
        say(url=kept.recipe.url(kept.port), port=kept.port, data=str(data), pid=kept.pid)
        for order in orders():
            try:
                kept.obey(order)
            except Unavailable as refusal:
                say(error=str(refusal))
            else:
                say(pid=kept.pid)
    finally:
        kept.end()
        shutil.rmtree(home, ignore_errors=True)


def leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def orders() -> Iterator[dict[str, Any]]:
    """Lines of standard input, until it ends or its owner does."""
    parent = os.getppid()
    fresh = b""
    # The parent is watched as well: a forked child of the tests may hold the pipe open without knowing it.
    while os.getppid() == parent:
        if not select.select([0], [], [], 1.0)[0]:
            continue
        got = os.read(0, 65_536)
        if not got:
            return
        *lines, fresh = (fresh + got).split(b"\n")
        yield from map(json.loads, lines)


class Kept:
    """One server, running or not."""

    recipe: Recipe
    port: int

    def __init__(self, home: Path) -> None:
        self.log = home / "log"
        self.server: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self.server.pid if self.server and self.server.poll() is None else None

    def first_start(self) -> None:
        """On a free port, again on another one if another process was faster."""
        for _ in range(5):
            self.port = free_port()
            if self.attempt(PATIENCE):
                return
        self.complain()

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "end":
            self.end(signal.Signals(order["signal"]))
        elif order["do"] == "start":
            self.recipe.given.update(order["settings"])
            self.start_again()

    def start_again(self) -> None:
        """Where it was; what a killed server left (memory of its children, a port in use) may need a moment to go."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            if self.attempt(give_up - time.monotonic()):
                return
            time.sleep(0.05)
        self.complain()

    def attempt(self, patience: float) -> bool:
        with self.log.open("ab") as output:
            self.server = subprocess.Popen(
                self.recipe.command(self.port),
                env={**os.environ, **self.recipe.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                preexec_fn=before_exec(self.recipe.stop, as_root=self.recipe.as_root),
            )
        give_up = time.monotonic() + patience
        while self.server.poll() is None and time.monotonic() < give_up:
            if self.recipe.ready(self.port, self.server.pid) and self.server.poll() is None:
                return True
            time.sleep(0.02)
        self.end()
        return False

    def end(self, first: signal.Signals | None = None) -> None:
        if self.pid is None:
            return
        assert self.server
        self.server.send_signal(signal.SIGCONT)  # a frozen one would not hear anything else
        # Asked more than once: a Redis that is writing its first log refuses to go, and forgets that it was asked.
        for number in (*[first or self.recipe.stop] * 40, signal.SIGKILL):
            self.server.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(0.5)
                return

    def complain(self) -> None:
        raise Unavailable(f"the server does not start; its last words: {self.log.read_text(errors='replace')[-2000:]}")

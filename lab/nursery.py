"""A process that only forks: members of a storm that start in milliseconds, because everything is imported.

Each line that it reads is the name of a life and a seed; it answers with the pid. Members die with it. It is a fresh
interpreter without threads, so forking it is safe.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import sys
from typing import Any, Final

from lab import members
from tests.faults.fork_server import Lines, forked

ENGINES: Final = ("stoker.engines.sqlite", "stoker.engines.postgres", "stoker.engines.redis")


class Nursery(Lines):
    """The storm's end."""

    def __init__(self, environ: dict[str, str], log: Any) -> None:
        super().__init__("lab.nursery", environ=environ, log=log)

    def born(self, life: str, seed: int) -> int:
        """The pid of a new member."""
        return int(self.ask([life, seed]))


def serve() -> None:
    fresh = b""
    while True:
        reap()
        if not select.select([0], [], [], 0.02)[0]:
            continue
        got = os.read(0, 65_536)
        if not got:
            return
        *lines, fresh = (fresh + got).split(b"\n")
        for line in lines:
            life, seed = json.loads(line)
            os.write(1, f"{forked(lambda: members.live(getattr(members, life), seed))}\n".encode())  # noqa: B023 - forked at once


def reap() -> None:
    """Let members go that have ended, and say how those did that were not killed."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if (code := os.waitstatus_to_exitcode(status)) not in (-9, members.AWAY):
            print(f"member {pid} ended by itself: {code}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    for name in ("lab.app", *ENGINES):
        importlib.import_module(name)
    gc.freeze()
    serve()

"""A process that only forks: children that start in milliseconds and may be killed at any instant.

The fork server is a fresh interpreter without threads that has imported what its children need, so forking it is safe.
Each line that it reads names what to run: a function by its dotted name, with arguments that JSON can carry. A child's
answer comes back as JSON, with how it ended. Children die with their parent, so nothing is left behind however a test
ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1


class Ended(NamedTuple):
    """How a child ended: its exit code, or a signal's number below zero, and what its function answered."""

    code: int
    answer: Any


class Lines:
    """Another Python process that answers one line with one line, until its input ends."""

    def __init__(self, module: str, *arguments: str, environ: Mapping[str, str] | None = None, log: Any = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=None if environ is None else {**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def ask(self, question: Any) -> Any:
        """Send a question as JSON; returns the answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the fork server is gone"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class ForkServer(Lines):
    """The test's end."""

    def __init__(self, *modules: str) -> None:
        super().__init__("tests.faults.fork_server", *modules)

    def call(self, function: Callable[..., Any], /, *, within: float = 240.0, **arguments: Any) -> Ended:
        """Run a function of a module in a child of its own and wait for its end, at most `within` seconds."""
        name = f"{function.__module__}:{function.__qualname__}"
        code, answer, trouble = self.ask([name, arguments, within])
        assert not trouble, trouble
        return Ended(code, answer)


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forked(work: Callable[[], None]) -> int:
    """The pid of a child that does this and nothing else."""
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def serve() -> None:
    for line in sys.stdin:
        name, arguments, within = json.loads(line)
        module, _, attribute = name.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        print(json.dumps(answered(function, arguments, within)), flush=True)


def answered(function: Callable[..., Any], arguments: dict[str, Any], within: float) -> tuple[int, Any, str]:
    """Run a function in a child; its end, its answer, and what went wrong with it."""
    out, into = os.pipe()

    def work() -> None:
        os.close(out)
        # The lines between the test and the fork server are none of the child's business.
        os.dup2(2, 1)
        with os.fdopen(into, "wb") as pipe:
            try:
                answer = ["", function(**arguments)]
            except BaseException:
                answer = [traceback.format_exc(), None]
            pipe.write(json.dumps(answer).encode())

    pid = forked(work)
    os.close(into)
    said = b""
    late = False
    with os.fdopen(out, "rb") as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], within)
            if not ready:
                late = True
                os.kill(pid, signal.SIGKILL)
                break
            some = os.read(pipe.fileno(), 1 << 20)
            if not some:
                break
            said += some
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if late:
        return code, None, f"{function.__qualname__}({arguments}) did not end within {within} s"
    trouble, answer = json.loads(said) if said else ("", None)
    return code, answer, trouble


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    for wanted in sys.argv[1:]:
        importlib.import_module(wanted)
    # What is here now stays shared with the children: a collection would copy every page of it.
    gc.freeze()
    serve()

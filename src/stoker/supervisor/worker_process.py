"""The parent's side of a worker process: its state, its reports, its exit."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from stoker.model import humanize
from stoker.model.measures import Measures
from stoker.subprocesses import ChildProcess
from stoker.supervisor import messages

SILENT_AFTER = 10.0
"""Seconds without a report after which a process is not ready: its loop is blocked, or it is frozen."""

EARLY = 5.0
"""A process that exits younger than this exited early."""

AT_ONCE = 2
"""After so many early exits in a row the next process starts at once; then the pause grows between these bounds."""

PAUSE = (0.1, 30.0)


class RestartDelay:
    """How long to wait before a restart: the more early exits in a row, the longer."""

    def __init__(self) -> None:
        self._early: Counter[int] = Counter()

    def pause(self, position: int, age: float = 0.0) -> float:
        """Count the exit of a process of this age, and return the pause."""
        self._early[position] = 0 if age > EARLY else self._early[position] + 1
        tries = self._early[position]
        return 0.0 if tries <= AT_ONCE else min(PAUSE[0] * 2 ** (tries - AT_ONCE), PAUSE[1])


class WorkerProcess:
    """One worker process of the pool. `identities` are the worker ids it has claimed as."""

    def __init__(self, position: int, process: ChildProcess) -> None:
        self.position = position
        self.process = process
        self.born = time.monotonic()
        self.identities: list[str] = []
        self.stats = messages.Stats(ready=False, counts={})
        self.measures = Measures()
        self.received_at = 0.0
        self.was_ready = asyncio.Event()
        self._first_report = asyncio.Event()
        self.leaving = False
        self._told_quiet = False
        self.killed = False
        self.finished: messages.Finished | None = None
        self.unable: str | None = None
        self._output: asyncio.Task[None] | None = None

    @classmethod
    async def launch(
        cls, position: int, entry: str, assignment: messages.Assignment, output: Callable[[str], object] | None
    ) -> WorkerProcess:
        """Start a worker process; `output` is called with each line that it prints."""
        process = await ChildProcess.spawn(entry, output=None if output is None else subprocess.PIPE)
        found = cls(position, process)
        if output is not None:
            found._output = asyncio.ensure_future(found._forward_output(output))
        process.send(messages.encode(assignment))
        return found

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def ready(self) -> bool:
        """Does it claim jobs?"""
        return self.stats.ready and not self.leaving and time.monotonic() - self.received_at < SILENT_AFTER

    @property
    def quiet(self) -> bool:
        """Does it claim nothing for now, or was it told so and has not answered yet?"""
        return self.stats.quiet or self._told_quiet

    @property
    def counts(self) -> dict[str, int]:
        """Settlements so far, by status."""
        return self.finished.counts if self.finished is not None else self.stats.counts

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.born

    def replace_reason(self, max_jobs: int | None, max_rss: int | None) -> str | None:
        """Why it should be replaced; None while it should stay."""
        stats, settled = self.stats, sum(self.stats.counts.values())
        if max_jobs is not None and settled >= max_jobs:
            return f"it has run {humanize.count(settled, 'job')}"
        if max_rss is not None and stats.rss >= max_rss:
            return f"it holds {stats.rss >> 20} MiB"
        if stats.abandoned and stats.abandoned * 2 >= stats.slots:
            return f"handlers that do not end hold {stats.abandoned} of its {humanize.count(stats.slots, 'slot')}"
        return None

    def send(self, order: messages.ToWorker) -> None:
        """Send an order."""
        if isinstance(order, messages.Drain | messages.Hurry):
            self.leaving = True
        if isinstance(order, messages.Quiet | messages.Resume):
            self._told_quiet = isinstance(order, messages.Quiet)
        self.process.send(messages.encode(order))

    def kill(self) -> None:
        """Kill it: it did not stop when asked."""
        self.killed = True
        self.process.kill()

    async def wait_until_ready(self) -> bool:
        """Wait until it is ready or has exited; returns whether it was ready."""
        self.process.exited.add_done_callback(lambda _: self._first_report.set())
        await self._first_report.wait()
        return self.was_ready.is_set()

    async def follow(self, reported: Callable[[WorkerProcess], object]) -> int:
        """Receive its reports, calling `reported` after each, until it exits; returns its return code."""
        while line := await self.process.receive():
            try:
                report = messages.read_report(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                break
            self._apply(report)
            reported(self)
        await asyncio.wait({self.process.exited}, timeout=None if self.finished is not None else 1.0)
        await self.process.end()
        if self._output is not None:
            await asyncio.wait({self._output}, timeout=1.0)
            self._output.cancel()
        return self.process.exited.result()

    def _apply(self, report: messages.FromWorker) -> None:
        self.received_at = time.monotonic()
        match report:
            case messages.Identity(worker=worker):
                self.identities.append(worker)
            case messages.Stats():
                self.stats = report
                self._told_quiet = self._told_quiet and not report.quiet
                if report.ready:
                    self.was_ready.set()
                    self._first_report.set()
            case messages.Measured(measures=measures):
                self.measures = measures
            case messages.StartFailed(why=why):
                self.unable = why
            case messages.Finished():
                self.finished = report

    async def _forward_output(self, output: Callable[[str], object]) -> None:
        assert self.process.process.stdout is not None
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self.process.process.stdout
        )
        try:
            while True:
                try:
                    line = await reader.readline()
                except ValueError:  # longer than the limit; its rest follows
                    continue
                if not line:
                    return
                output(line.decode(errors="backslashreplace").rstrip("\r\n"))
        finally:
            transport.close()

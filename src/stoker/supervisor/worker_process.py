"""A worker process as its supervisor sees it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from stoker.subprocesses import ChildProcess
from stoker.supervisor import messages

SILENT_AFTER = 10.0
"""Seconds without a report after which a process no longer counts as ready: its loop is held up, or it is frozen."""


EARLY = 5.0
"""A process that dies younger than this died early."""

AT_ONCE = 2
"""So many early deaths in a row are made good at once; then the pause grows between these bounds."""

PAUSE = (0.1, 30.0)


class Patience:
    """How long to wait before the next process takes a seat: the more early deaths in a row, the longer."""

    def __init__(self) -> None:
        self._early: Counter[int] = Counter()

    def pause(self, seat: int, age: float = 0.0) -> float:
        """A process of this age died."""
        self._early[seat] = 0 if age > EARLY else self._early[seat] + 1
        tries = self._early[seat]
        return 0.0 if tries <= AT_ONCE else min(PAUSE[0] * 2 ** (tries - AT_ONCE), PAUSE[1])


class WorkerProcess:
    """One child: who it claims as, how it goes, how it ends."""

    def __init__(self, seat: int, process: ChildProcess) -> None:
        self.seat = seat
        self.process = process
        self.born = time.monotonic()
        self.identities: list[str] = []
        self.stats = messages.Stats(ready=False, counts={})
        self.heard_at = 0.0
        self.came_up = asyncio.Event()
        self._first_news = asyncio.Event()
        self.leaving = False
        self.given_up = False
        self.farewell: messages.Farewell | None = None
        self.unable: str | None = None
        self._output: asyncio.Task[None] | None = None

    @classmethod
    async def launch(
        cls, seat: int, entry: str, assignment: messages.Assignment, output: Callable[[str], object] | None
    ) -> WorkerProcess:
        """Start a worker process; with `output` what it prints is caught and handed over line by line."""
        process = await ChildProcess.spawn(entry, output=None if output is None else subprocess.PIPE)
        found = cls(seat, process)
        if output is not None:
            found._output = asyncio.ensure_future(found._pass_on(output))
        process.send(messages.encode(assignment))
        return found

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def ready(self) -> bool:
        """Does it take work?"""
        return self.stats.ready and not self.leaving and time.monotonic() - self.heard_at < SILENT_AFTER

    @property
    def counts(self) -> dict[str, int]:
        """What it has settled so far, by status."""
        return self.farewell.counts if self.farewell is not None else self.stats.counts

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.born

    def worn(self, max_jobs: int | None, max_rss: int | None) -> str | None:
        """Why a fresh process should take its place; None while it is good."""
        stats, settled = self.stats, sum(self.stats.counts.values())
        if max_jobs is not None and settled >= max_jobs:
            return f"it has run {settled} jobs"
        if max_rss is not None and stats.rss >= max_rss:
            return f"it holds {stats.rss >> 20} MiB"
        if stats.abandoned and stats.abandoned * 2 >= stats.slots:
            return f"{stats.abandoned} of its {stats.slots} slots are lost to handlers that do not end"
        return None

    def tell(self, order: messages.ToWorker) -> None:
        """Give an order."""
        if isinstance(order, messages.Drain | messages.Hurry):
            self.leaving = True
        self.process.send(messages.encode(order))

    def give_up(self) -> None:
        """It does not do as it is told: end it."""
        self.given_up = True
        self.process.kill()

    async def rises(self) -> bool:
        """Wait until it is at work, or gone."""
        self.process.exited.add_done_callback(lambda _: self._first_news.set())
        await self._first_news.wait()
        return self.came_up.is_set()

    async def listen(self, heard: Callable[[WorkerProcess], object]) -> int:
        """Take in its reports, calling `heard` after each, until it is gone; answers its return code."""
        while line := await self.process.receive():
            try:
                report = messages.read_report(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                break
            self._take(report)
            heard(self)
        await asyncio.wait({self.process.exited}, timeout=None if self.farewell is not None else 1.0)
        await self.process.end()
        if self._output is not None:
            await asyncio.wait({self._output}, timeout=1.0)
            self._output.cancel()
        return self.process.exited.result()

    def _take(self, report: messages.FromWorker) -> None:
        self.heard_at = time.monotonic()
        match report:
            case messages.Identity(worker=worker):
                self.identities.append(worker)
            case messages.Stats():
                self.stats = report
                if report.ready:
                    self.came_up.set()
                    self._first_news.set()
            case messages.Unable(why=why):
                self.unable = why
            case messages.Farewell():
                self.farewell = report

    async def _pass_on(self, output: Callable[[str], object]) -> None:
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

"""One visit: a system on a fresh store, and the rows that are measured there.

Every job appends its number and the time to a file, so executions are counted by the jobs themselves, in every process
and every language; a job that is missing or ran twice spoils the visit, which is then reported as failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.children import ROOT
from benchmarks.peers import trees
from benchmarks.peers.peer import RUN, STEPS, Peer, Setting
from benchmarks.peers.places import Place
from benchmarks.stats import percentile

Rows: TypeAlias = dict[str, float]

SINGLE = 200
"""Calls that enqueue one job."""

BULK = 4_000
"""Jobs of the bulk row."""

PATIENCE = 45.0
"""Seconds for a worker to start, and for a drain."""

ALONE, TRICKLE, LATER = 20, 200, 20
"""Jobs that come alone, at 200 a second, and for later."""

FIRST = 1_000_000
"""Numbers of the jobs whose start is timed begin here."""


class Spoilt(Exception):
    """A measurement that says nothing: jobs are missing, doubled, or too slow to wait for.

    `log` is what the processes of the system said last.
    """

    def __init__(self, why: str, log: str = "") -> None:
        super().__init__(why)
        self.log = log


class Visit:
    """A system on its store: processes that are started here end here."""

    def __init__(self, peer: Peer, program: Path, place: Place, folder: Path) -> None:
        self.peer = peer
        self.place = place
        self._command = command(peer, program)
        self._runs = folder / "runs"
        self._log = folder / "log"
        self._environ = {
            **os.environ,
            "BENCH_URL": place.url,
            "BENCH_RUNS": str(self._runs),
            "PYTHONPATH": str(ROOT),
            "NODE_ENV": "production",
            "NODE_PATH": str(program.parent.parent),
        }

    # --- processes ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the schema."""
        try:
            done = subprocess.run(
                [*self._command, "prepare"],
                cwd=ROOT,
                env=self._environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        except subprocess.TimeoutExpired:
            raise Spoilt("no schema within 60 s") from None
        if done.returncode:
            raise Spoilt("no schema", done.stderr.strip()[-500:])

    @contextmanager
    def producer(self) -> Iterator[Callable[..., Any]]:
        """A connected producer; the function that gives it commands."""
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [*self._command, "produce"],
                cwd=ROOT,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        self.producer_pid = process.pid

        def ask(do: str, **arguments: Any) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
                process.stdin.flush()
                return json.loads(process.stdout.readline())
            except (BrokenPipeError, ValueError):
                raise Spoilt(f"the producer failed at {do}", self._complaint()) from None

        try:
            ask("open")
            yield ask
        finally:
            watchdog.cancel()
            trees.kill(process.pid)
            process.communicate()

    @contextmanager
    def workers(self, setting: Setting, processes: int) -> Iterator[list[int]]:
        """So many worker processes, each by the system's own command; their process ids."""
        self._runs.unlink(missing_ok=True)
        with ExitStack() as ended, self._log.open("a") as log:
            found = []
            for _ in range(processes):
                process = subprocess.Popen(
                    [*self._command, "work", setting],
                    cwd=ROOT,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                ended.callback(process.wait)
                ended.callback(trees.kill, process.pid)
                found.append(process.pid)
            yield found
        time.sleep(0.2)  # a server that has not noticed yet would hand the next job to a dead worker

    def _complaint(self) -> str:
        return self._log.read_text(errors="replace")[-600:].strip() or "no message"

    # --- executions -----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Executions so far."""
        try:
            return self._runs.stat().st_size // RUN.size
        except FileNotFoundError:
            return 0

    def runs(self) -> list[tuple[int, int]]:
        """Number and time of each execution."""
        return list(RUN.iter_unpack(self._runs.read_bytes()))

    def until(self, count: int, what: str, patience: float = PATIENCE) -> None:
        """Wait for so many executions."""
        deadline = time.monotonic() + patience
        while self.count() < count:
            if time.monotonic() > deadline:
                raise Spoilt(f"{what}: {self.count()} of {count} jobs ran in {patience:.0f} s", self._complaint())
            time.sleep(0.003)

    # --- rows -----------------------------------------------------------------------------------------------------

    def enqueue(self) -> Rows:
        """Enqueue one by one, and many at once."""
        with self.producer() as ask:
            return {"one": percentile(ask("one", count=SINGLE), 50), "many": BULK / ask("many", count=BULK)}

    def drain(self) -> Rows:
        """Drain with one and two processes, by default and tuned, and what a job costs."""
        rows: Rows = {}
        with self.producer() as ask:
            for setting in ("default", "tuned"):
                for processes in (1, 2):
                    jobs = self.peer.jobs[setting == "tuned"] * processes
                    rows |= self.drain_once(ask, setting, processes, jobs)
        return rows

    def steps(self) -> Rows:
        """Run jobs of ten steps in one process, and resume jobs that wait for an answer."""
        jobs = self.peer.stepped
        with self.producer() as ask:
            ask("stepped", count=jobs)
            self.place.settle_down()
            with self.workers(self.peer.latency, 1):
                self.until(jobs, "steps")
                end = self._finished()
                pace = jobs * STEPS / (end - min(at for _, at in self.runs())) * 1e9
                ask("waiting", first=FIRST, count=ALONE)
                time.sleep(2.0)  # no system tells its producer that a job waits now
                asked = ask("answer", first=FIRST, count=ALONE, pause=0.1)
                self.until(jobs + ALONE, "resume")
        ran = dict(self.runs())
        late = [(ran[int(number)] - at) / 1e6 for number, at in asked.items()]
        return {"steps": pace, "resume": percentile(late, 50), "resume.p95": percentile(late, 95)}

    def drain_once(self, ask: Callable[..., Any], setting: Setting, processes: int, jobs: int) -> Rows:
        """Enqueue so many jobs, and drain them."""
        bytes_before = self._written([self.producer_pid])
        ask("many", count=jobs)
        bytes_enqueued = self._written([self.producer_pid]) - bytes_before
        self.place.settle_down()
        with self.workers(setting, processes) as pids:
            bytes_before = self._written([])
            self.until(1, "start")
            cpu_before, ran_before = self._cpu(pids), self.count()
            self.until(jobs, "drain")
            end = self._finished()
            cpu, memory = self._cpu(pids) - cpu_before, trees.memory(pids[0])
            bytes_drained = self._written(pids) - bytes_before
        runs = self.runs()
        if len(runs) != jobs or len({number for number, _ in runs}) != jobs:
            raise Spoilt(f"drain: {len(runs)} executions of {jobs} jobs")
        began = min(at for _, at in runs)
        rows = {f"drain.{setting}.{processes}": jobs / (end - began) * 1e9}
        if processes == 1:
            rows[f"cpu.{setting}"] = cpu / max(1, jobs - ran_before) * 1e6
            rows[f"bytes.{setting}"] = (bytes_enqueued + bytes_drained) / jobs
            rows[f"memory.{setting}"] = memory
        return rows

    def _finished(self) -> int:
        """When the store says that no job waits or runs any more, on the monotonic clock in nanoseconds."""
        deadline = time.monotonic() + 10
        while True:
            asked = time.monotonic_ns()
            left = self.peer.left(self.place)
            if not left:
                return asked
            if time.monotonic() > deadline:
                raise Spoilt(f"drain: all jobs ran, but {left} are not finished after 10 s")
            time.sleep(0.003)

    def _cpu(self, pids: list[int]) -> float:
        return sum(map(trees.cpu, pids)) + self.place.server_cpu()

    def _written(self, pids: list[int]) -> int:
        found = self.place.written()
        return sum(map(trees.written, pids)) if found is None else found

    def latency(self) -> Rows:
        """How soon an idle worker starts jobs that come alone, in a trickle, and at a given time."""
        rows: Rows = {}
        with self.producer() as ask, self.workers(self.peer.latency, 1):
            ask("pace", first=0, count=1, pauses=[0, 0], delays=None)
            self.until(1, "start")
            time.sleep(0.5)
            plans: list[tuple[str, int, list[float], list[float] | None]] = [
                ("pickup", ALONE, [0.05, 0.1], None),
                ("trickle", TRICKLE, [0.005, 0.005], None),
            ]
            if self.peer.delays:
                plans.append(("due", LATER, [0.02, 0.06], [0.3, 1.5]))
            for part, (row, count, pauses, delays) in enumerate(plans, 1):
                before = self.count()
                due = ask("pace", first=FIRST * part, count=count, pauses=pauses, delays=delays)
                self.until(before + count, row, 20)
                ran = dict(self.runs())
                late = [(ran[int(number)] - at) / 1e6 for number, at in due.items()]
                rows[row], rows[f"{row}.p95"] = percentile(late, 50), percentile(late, 95)
        return rows


def command(peer: Peer, program: Path) -> list[str]:
    """How the code of a system is run in its own environment."""
    if peer.language == "python":
        return [str(program), "-m", "benchmarks.peers.producer", peer.key]
    return [str(program), str(Path(__file__).with_name("producer.cjs")), peer.environment]

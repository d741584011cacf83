"""Several `stoker work` on one store, what their handlers left, and ways to hurt them."""

from __future__ import annotations

import math
import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.app import Stoker
from stoker.model import ids
from stoker.model.job import Job, Status
from stoker.testing.faults import survey
from stoker.testing.history import Entry, check, read, report
from tests.faults.sqlite.audit import audit
from tests.worker.recording_engine import RecordingEngine
from tests.worker.shell import Command, Deployment, alive, until

APP = "tests.worker.apps.recorded:jobs"
OPEN = (Status.PENDING, Status.RUNNING, Status.RETRYING)


@dataclass
class Run:
    """One start of a handler."""

    job: str
    kind: str
    attempt: int
    token: int
    pid: int
    worker: str
    began: float
    ended: float | None = None
    stopped: float | None = None

    @property
    def over(self) -> bool:
        return self.ended is not None or self.stopped is not None


@dataclass
class Fault:
    """A kill: who died when, which handlers were running there, and who had to see it."""

    pids: tuple[int, ...]
    at: float
    whole: bool
    victims: list[Run] = field(default_factory=list)
    boss: int = 0


class Fleet:
    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.store = deployment.folder / "jobs.db"
        deployment.environ["STORE"] = str(self.store)
        self.acknowledged: list[str] = []
        self.faults: list[Fault] = []
        self.runs: dict[tuple[str, int], Run] = {}
        self.by_job: dict[str, list[Run]] = defaultdict(list)
        self.by_pid: dict[int, dict[int, Run]] = defaultdict(dict)
        self.ended: set[str] = set()
        self.flag = deployment.folder / "stay"
        self._read = 0
        self._open: dict[str, set[str]] = defaultdict(set)
        self._deaths: dict[str, int] = {}
        self._stack = ExitStack()
        self._commands: list[Command] = []
        self.producer = Stoker(RecordingEngine(self.store), attempts=1_000)
        for kind in ("nap", "wait", "watch"):
            self.producer.declare(kind)

    def __enter__(self) -> Self:
        self._stack.callback(lambda: self.producer.run(self.producer.close()))
        return self

    def __exit__(self, *error: Any) -> bool | None:  # noqa: PYI036 - passed on as it is
        return self._stack.__exit__(*error)

    # --- what goes on -------------------------------------------------------------------------------------------

    def work(self, *options: str, processes: int = 2, slots: int = 4, lease: str = "1") -> Command:
        """One more `stoker work`; it is not waited for."""
        given = ("-p", str(processes), "-q", f"default:{slots}", "--lease", lease, *options)
        command: Command = self._stack.enter_context(self.deployment.work(*given, app=APP, ready=False))
        self._commands.append(command)
        return command

    def put(self, kind: str, payloads: Iterable[dict[str, Any]]) -> list[str]:
        """Enqueue, and remember what was acknowledged."""
        drafts = [self.producer.draft(kind, payload) for payload in payloads]
        receipts = self.producer.run(self.producer.enqueue_many(drafts))
        found = [receipt.id for receipt in receipts]
        self.acknowledged += found
        self._open[kind].update(found)
        return found

    def feed(self, kind: str, most: int, payload: Callable[[], dict[str, Any]]) -> None:
        """Keep about so many jobs of a kind under way."""
        self._open[kind] -= self.look().ended
        missing = most - len(self._open[kind])
        if missing > most // 4:
            self.put(kind, (payload() for _ in range(missing)))

    def occupy(self, pids: Sequence[int], *kinds: str) -> bool:
        """Put jobs that stay in these processes, one per kind, and end at once in others; does each have one?"""
        for pid in pids:
            Path(f"{self.flag}-{pid}").touch()
        if all(any(run.kind in kinds for run in self.look().running(pid)) for pid in pids):
            return True
        for kind in kinds:
            if all(job in self.by_job for job in self._open[kind]):
                self.put(kind, [{"flag": str(self.flag)}] * 2)
        return False

    def relieve(self, pids: Sequence[int]) -> None:
        """Let what stays in these processes end."""
        for pid in pids:
            Path(f"{self.flag}-{pid}").unlink(missing_ok=True)

    def look(self) -> Self:
        """Read what handlers have written since."""
        path = self.deployment.folder / "marks"
        if not path.exists():
            return self
        with path.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        fresh = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(fresh)
        for line in fresh.decode().splitlines():
            what, kind, job, attempt, token, pid, worker, at = line.split()
            if what == "start":
                run = Run(job, kind, int(attempt), int(token), int(pid), worker, float(at))
                self.runs[job, run.token] = run
                self.by_job[job].append(run)
                self.by_pid[run.pid][id(run)] = run
                continue
            run = self.runs[job, int(token)]
            if what == "end":
                run.ended = float(at)
                self.ended.add(job)
            else:
                run.stopped = float(at)
            self.by_pid[run.pid].pop(id(run), None)
        return self

    def running(self, pid: int) -> list[Run]:
        """What the handlers of a process are at, as far as they were looked at."""
        return list(self.by_pid[pid].values())

    def left(self) -> int:
        """Jobs that are not over, by the store's own count."""

        async def count() -> int:
            found = (await (await self.producer.engine()).operator.census()).by_status()
            return sum(found[status] for status in OPEN)

        return self.producer.run(count())

    # --- faults --------------------------------------------------------------------------------------------------

    def kill(self, *pids: int, whole: bool = False, boss: int = 0) -> Fault:
        """All of them at once, by kill -9. `boss` is the supervisor that lives on."""
        for pid in pids:
            for log in self.deployment.folder.glob(f"history-{pid}-*"):
                self._deaths.setdefault(log.name.removeprefix("history-"), time.monotonic_ns())
        fault = Fault(pids, time.monotonic(), whole, boss=boss)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(alive, pids)), what="their death")
        self.look()
        fault.victims = [run for pid in pids for run in self.by_pid.pop(pid, {}).values()]
        self.faults.append(fault)
        return fault

    def kill_whole(self, command: Command) -> Fault:
        """The supervisor with all of its worker processes; it is stopped first, and starts none meanwhile."""
        os.kill(command.process.pid, signal.SIGSTOP)
        fault = self.kill(command.process.pid, *command.children, whole=True)
        command.wait()
        return fault

    def witnessed(self, within: float) -> list[Fault]:
        """Kills that a supervisor had so many seconds to see and to act upon, before it was killed itself."""
        ends = {pid: fault.at for fault in self.faults if fault.whole for pid in fault.pids}
        return [fault for fault in self.faults if fault.boss and ends.get(fault.boss, math.inf) - fault.at > within]

    def recoveries(self) -> dict[str, list[float]]:
        """Seconds from each kill until its victims ran again, by what was killed; a victim that did not is an error.

        A job that met two deaths runs in a process of its own, which has to start first: these are counted apart.
        """
        self.look()
        members = {pid for command in self._commands for pid in command.known}
        found: dict[str, list[float]] = {"process": [], "worker": [], "apart": []}
        for fault in self.faults:
            for run in fault.victims:
                later = [other for other in self.by_job[run.job] if other.token > run.token]
                assert later, f"{run} did not run again"
                again = min(later, key=lambda other: other.token)
                what = "apart" if again.pid not in members else "worker" if fault.whole else "process"
                found[what].append(again.began - fault.at)
        return found

    # --- the end ------------------------------------------------------------------------------------------------

    def records(self) -> dict[str, Job]:
        async def ask() -> list[Job | None]:
            return await (await self.producer.engine()).operator.get([ids.parse(job) for job in self.acknowledged])

        return {ids.text(job.id): job for job in self.producer.run(ask()) if job is not None}

    def entries(self) -> list[Entry]:
        """The whole history: of the living, of the dead, and what is stored now."""

        async def ask() -> list[Entry]:
            return await survey(await self.producer.engine())

        found = self.producer.run(ask())
        for log in self.deployment.folder.glob("history-*"):
            found += read(log.read_bytes())
        found += (Entry(who=who, call=0, op="death", mono=mono) for who, mono in self._deaths.items())
        return found

    def dismiss(self, *commands: Command) -> None:
        """TERM to all of them; each must release its lease, and none may be left."""
        for command in commands:
            command.send(signal.SIGTERM)
        for command in commands:
            assert command.wait() == 0, command.log
        until(lambda: not self.left_behind(), what="all processes have ended")

    def left_behind(self) -> list[int]:
        """Processes that carry this test's surroundings."""
        needle = f"STORE={self.store}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if needle in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def judge(self, recovery: float) -> list[Entry]:
        """Everything is done, once; the history broke no law; the file is sound and its counters are right."""
        records = self.records()
        assert len(self.acknowledged) == len(set(self.acknowledged)) == len(records), "nothing is lost"
        assert {job.status for job in records.values()} == {Status.DONE}
        entries = self.entries()
        violations = check(entries, recovery=recovery)
        assert not violations, report(violations)
        assert audit(self.store) == []
        return entries


def figures(what: str, seconds: Iterable[float]) -> str:
    """Median, p95 and worst, for people."""
    found = sorted(seconds)
    if not found:
        return f"{what}: none"
    p95 = found[min(len(found) - 1, round(0.95 * len(found)))]
    return (
        f"{what}: {len(found)}, median {statistics.median(found) * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms, "
        f"max {found[-1] * 1e3:.0f} ms"
    )

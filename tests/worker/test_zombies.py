"""Workers that are frozen until others take them for dead, and wake up again, through the command line."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.freezing import freeze
from tests.worker.fleet import Fleet, Run, figures
from tests.worker.shell import PATIENCE, Command, Deployment, until

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(900)]

EACH = 5
"""Worker processes of each of the two workers."""

SLOTS = 4
STAYING = ("wait", "watch")
"""Kinds of jobs that stay until they are stopped."""


class Sleep:
    """The long sleep of all processes of a worker, with or without their supervisor."""

    def __init__(self, fleet: Fleet, command: Command) -> None:
        self.fleet = fleet
        self.command = command
        self.pids = command.children
        self.said = len(command.log)
        self.frozen: list[int] = []
        self.runs: list[Run] = []
        self.taken: list[float] = []
        self.gave_in: list[float] = []

    def freeze(self, *, whole: bool) -> float:
        """Stop them, the supervisor first, so that it sees nothing.

        Who is frozen in the middle of a write holds up every other writer of the file: that is another story, so they
        are thawed at once and frozen at another moment. So they are when a handler was just passing through: it comes
        to its end in the moment it is thawed, and nothing could stop it.
        """
        self.frozen = [*([self.command.process.pid] if whole else []), *self.pids]
        while True:
            freeze(*self.frozen)
            at = time.monotonic()
            probe = threading.Thread(target=self.fleet.put, args=("nap", [{"seconds": 0.0}]))
            probe.start()
            probe.join(0.3)
            self.runs = [run for pid in self.pids for run in self.fleet.look().running(pid)]
            if not probe.is_alive() and not self.passing():
                return at
            self.thaw()
            probe.join()
            until(lambda: self.fleet.occupy(self.pids, *STAYING), what="each of them has something to do")

    def passing(self) -> bool:
        """Is a handler among them that does not stay? One of each kind does in a process, in its first try."""
        kept = {(run.pid, run.kind): run for run in reversed(self.runs) if run.attempt == 1}
        return any(kept.get((run.pid, run.kind)) is not run or run.kind not in STAYING for run in self.runs)

    def thaw(self) -> float:
        for pid in self.frozen:
            os.kill(pid, signal.SIGCONT)
        return time.monotonic()

    def taken_over(self) -> bool:
        """Have other workers started everything that these ran?"""
        return all(self.later(run) for run in self.runs)

    def later(self, run: Run) -> list[Run]:
        return [other for other in self.fleet.look().by_job[run.job] if other.token > run.token]

    def stopped(self) -> bool:
        """Have the handlers that were running when they fell asleep come to an end?"""
        self.fleet.look()
        return all(run.over for run in self.runs)

    def at_work_again(self) -> bool:
        """Has each of them started a job under a new name?"""
        self.fleet.feed("nap", SLOTS * EACH, lambda: {"seconds": 0.05})
        former = {run.worker for run in self.runs}
        runs = self.fleet.look().runs.values()
        return {run.pid for run in runs if run.worker not in former} >= set(self.pids)

    def heard(self) -> str:
        """What they have logged since they fell asleep."""
        return self.command.log[self.said :]

    def pass_by(self, *, whole: bool) -> None:
        """Fall asleep at work, be taken for dead, wake up, give in, and go on."""
        until(lambda: self.fleet.occupy(self.pids, *STAYING), what="each of them has something to do")
        frozen = self.freeze(whole=whole)
        try:
            until(self.taken_over, what="others took over")
        finally:
            thawed = self.thaw()
        until(self.stopped, what="their handlers stop")
        assert not any(run.ended for run in self.runs), "no worker settles a claim that it has lost"
        self.taken = [min(other.began for other in self.later(run)) - frozen for run in self.runs]
        self.gave_in = [run.stopped - thawed for run in self.runs if run.stopped]
        self.fleet.relieve(self.pids)
        until(self.at_work_again, what="back at work")
        until(lambda: self.heard().count("lease lost: the store refused the outcome") >= len(self.runs), what="refused")
        said = self.heard()
        assert all(f"lease lost: worker {run.worker} did not renew it" in said for run in self.runs)
        assert self.command.children == self.pids, "the same processes as before"


@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("KILL-08", "KILL-09")
def test_who_wakes_up_after_its_lease_can_change_nothing(deployment: Deployment, campaign: bool) -> None:
    zombies = 100 if campaign else 10
    taken: list[float] = []
    gave_in: list[float] = []
    with Fleet(deployment) as fleet:
        crews = [fleet.work(processes=EACH, slots=SLOTS) for _ in range(2)]
        until(lambda: all(len(crew.children) == EACH for crew in crews))
        for number in range(zombies // EACH):
            sleep = Sleep(fleet, crews[number % 2])
            sleep.pass_by(whole=number % 4 in (1, 2))
            taken += sleep.taken
            gave_in += sleep.gave_in
        until(lambda: not fleet.left(), what="everything is over")
        fleet.dismiss(*crews)
        bound = 5.0 if campaign else PATIENCE  # what holds on a quiet machine, and on any
        entries = fleet.judge(recovery=bound)
        refused = sum(entry.op == "settle" and entry.phase == "refused" for entry in entries)
        print(f"{zombies} zombies; {len(fleet.acknowledged)} jobs, {refused} settlements refused")
        print(figures("frozen until run elsewhere (lease 1 s)", taken))
        print(figures("thawed until handlers stopped", gave_in))
        assert refused >= zombies
        assert max(taken) < 1 + bound
        assert max(gave_in) < bound


def freeze_outside_a_write(pid: int, store: Path) -> None:
    """Stop a process at a moment at which it does not hold the file for a write."""
    while True:
        freeze(pid)
        with closing(sqlite3.connect(store, timeout=0.5, isolation_level=None)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
            else:
                return


@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("KEEPER-07")
def test_who_wakes_up_after_its_lease_starts_nothing_that_it_had_claimed(deployment: Deployment) -> None:
    flag = deployment.folder / "go"
    deployment.enqueue("hold", {"flag": str(flag)})
    jobs = deployment.enqueue("quick", *({"n": n} for n in range(9)))
    options = ("-p", "1", "-q", "default:10", "--lease", "1")
    with deployment.work(*options, ready=False) as frozen:
        [held] = until(lambda: deployment.marks("start"), what="the first of ten claims runs and blocks the loop")
        freeze_outside_a_write(held.pid, deployment.folder / "jobs.db")
        try:
            with deployment.work(*options, ready=False):
                until(lambda: {mark.job for mark in deployment.marks("start")} >= set(jobs), what="others took over")
        finally:
            flag.touch()
            os.kill(held.pid, signal.SIGCONT)
        until(lambda: "its jobs were reassigned" in frozen.log, what="it hears what happened")
        assert [mark.kind for mark in deployment.marks("start") if mark.pid == held.pid] == ["hold"]
        assert sorted(mark.job for mark in deployment.marks("start") if mark.kind == "quick") == sorted(jobs)
        again = deployment.enqueue("quick", {"n": 10})
        until(
            lambda: again[0] in {mark.job for mark in deployment.marks("start") if mark.pid == held.pid}, what="at work"
        )

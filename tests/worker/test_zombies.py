"""Workers that are frozen until others take them for dead, and wake up again, through the command line.

spec: KILL-08, KILL-09
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.worker.crowd import Crowd, Run, figures
from tests.worker.shell import Command, Scene, until

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(900)]

BOUND = 5.0
EACH = 5
"""Worker processes of each of the two workers."""

SLOTS = 4


class Sleep:
    """The long sleep of all processes of a worker, with or without their supervisor."""

    def __init__(self, crowd: Crowd, command: Command) -> None:
        self.crowd = crowd
        self.command = command
        self.pids = command.children
        self.said = len(command.log)
        self.frozen: list[int] = []

    def load(self) -> None:
        """Give each of them something to do that does not end by itself; elsewhere it ends at once."""
        until(lambda: self.crowd.occupy(self.pids, "wait", "watch"), what="each of them has something to do")

    def freeze(self, *, whole: bool) -> float:
        """Stop them; the supervisor first, so that it sees nothing."""
        self.frozen = [*([self.command.process.pid] if whole else []), *self.pids]
        for pid in self.frozen:
            os.kill(pid, signal.SIGSTOP)
        return time.monotonic()

    def thaw(self) -> float:
        for pid in self.frozen:
            os.kill(pid, signal.SIGCONT)
        return time.monotonic()


@pytest.mark.spec("KILL-08", "KILL-09")
def test_who_wakes_up_after_its_lease_can_change_nothing(scene: Scene, campaign: bool) -> None:
    zombies = 100 if campaign else 10
    taken: list[float] = []
    stopped: list[float] = []
    refused = 0
    with Crowd(scene) as crowd:
        crews = [crowd.work(processes=EACH, slots=SLOTS), crowd.work(processes=EACH, slots=SLOTS)]
        until(lambda: all(len(crew.children) == EACH for crew in crews))
        for number in range(zombies // EACH):
            round_ = Sleep(crowd, crews[number % 2])
            round_.load()
            at = round_.freeze(whole=number % 4 in (1, 2))
            held = {pid: crowd.look().running(pid) for pid in round_.pids}
            runs = [run for pid in round_.pids for run in held[pid]]
            try:
                until(lambda runs=runs: all(again(crowd, run) for run in runs), what="others took over")
            finally:
                thawed = round_.thaw()
            taken += [min(one.began for one in again(crowd, run)) - at for run in runs]
            until(lambda runs=runs: all(run.over for run in runs) or crowd.look() is None, what="its handlers stop")
            assert not any(run.ended for run in runs), "nobody ends what is no longer his"
            stopped += [run.stopped - thawed for run in runs if run.stopped]
            former = {run.worker for run in runs}
            crowd.relieve(round_.pids)
            until(lambda round_=round_, former=former: at_work_again(crowd, round_.pids, former), what="back at work")
            said = round_.command.log[round_.said :]
            assert said.count("lease lost: worker ") >= EACH
            assert all(f"lease lost: worker {worker} was taken for dead" in said for worker in former)
            refused += said.count("lease lost: the store refused the outcome")
            assert round_.command.children == round_.pids, "the same processes as before"
        until(lambda: not crowd.left(), what="everything is over")
        crowd.dismiss(*crews)
        entries = crowd.judge(recovery=BOUND)
        late = sum(entry.op == "settle" and entry.phase == "refused" for entry in entries)
        print(f"{zombies} zombies; {len(crowd.acknowledged)} jobs, {late} settlements refused")
        print(figures("frozen until run elsewhere (lease 1 s)", taken))
        print(figures("thawed until handlers stopped", stopped))
        assert late >= zombies
        assert refused >= zombies
        assert max(taken) < 1 + BOUND
        assert max(stopped) < BOUND


def again(crowd: Crowd, run: Run) -> list[Run]:
    """Later starts of the same job."""
    return [other for other in crowd.look().by_job[run.job] if other.token > run.token]


def at_work_again(crowd: Crowd, pids: list[int], former: set[str]) -> bool:
    """Has each of them started a job under a new name?"""
    crowd.look()
    fresh = {run.pid for run in crowd.runs.values() if run.worker not in former and run.pid in pids}
    crowd.feed("nap", SLOTS * EACH, lambda: {"seconds": 0.05})
    return fresh >= set(pids)

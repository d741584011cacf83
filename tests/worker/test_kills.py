"""Workers that are killed, or told to stop, while they work, through the command line."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from stoker.model.job import Status
from stoker.model.run_origins import number
from stoker.supervisor import pool
from stoker.supervisor.release import release_patiently
from stoker.supervisor.supervisor import Supervisor
from tests.worker.fleet import Fleet, figures
from tests.worker.shell import APP as MARKED
from tests.worker.shell import PATIENCE, Command, Deployment, alive, until

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(900)]

PROMISED = 1.0
"""Seconds: holds on a quiet machine."""

GRACE = "5"
"""Seconds: enough to end what takes parts of one, also on a busy machine."""

LONG = "300"
"""A lease that plays no part: deaths are seen, by a supervisor or by a sign of life."""

BUSY = 12
"""Jobs under way at any time: fewer than there are slots, so that what was interrupted finds a free one."""


def bound(campaign: bool) -> float:
    """Seconds in which the jobs of the dead run again: long before their lease ends, also beside other tests."""
    return 5 * PROMISED if campaign else PATIENCE


# --- kill -9 ----------------------------------------------------------------------------------------------------


def storm(fleet: Fleet, crews: list[Command], kills: int, chance: random.Random, *, each: float) -> None:
    """Kill and kill, a process here and a whole worker there, always under load and never the last one at work."""
    started = time.monotonic()
    suffered = Counter[Command]()
    pause = 0.0
    while len(fleet.faults) < kills:
        assert time.monotonic() - started < 60 + kills * each, f"a kill takes no longer than {each:g} s"
        fleet.feed("nap", BUSY, lambda: {"seconds": chance.uniform(0.05, 0.5)})
        at_work = [[pid for pid in crew.children if fleet.running(pid)] for crew in crews]
        whole = len(fleet.faults) % 8 == 7
        place = max(range(len(crews)), key=lambda n: suffered[crews[n]]) if whole else chance.randrange(len(crews))
        spare = any(pids for number, pids in enumerate(at_work) if number != place)
        if not spare or not at_work[place] or time.monotonic() < pause:
            time.sleep(0.02)
            continue
        if whole:
            fleet.kill_whole(crews[place])
            crews[place] = fleet.work(processes=3, lease=LONG)
        else:
            victim = chance.choice(crews[place].children if chance.random() < 0.1 else at_work[place])
            fleet.kill(victim, boss=crews[place].process.pid)
            suffered[crews[place]] += 1
        pause = time.monotonic() + chance.uniform(0, 0.1)


@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("KILL-01", "KILL-02", "KILL-03", "KILL-12", "RUN-ORIGIN-03")
def test_killed_at_any_instant_every_job_ends_once(deployment: Deployment, campaign: bool) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    kills = 1_000 if campaign else 40
    with Fleet(deployment) as fleet:
        crews = [fleet.work(processes=3, lease=LONG) for _ in range(2)]
        began = time.monotonic()
        storm(fleet, crews, kills, random.Random(seed), each=1 if campaign else 15)
        took = time.monotonic() - began
        until(lambda: not fleet.left(), what="everything is over")
        until(lambda: all(crew.children for crew in crews), what="each of them listens to signals")
        fleet.dismiss(*crews)
        entries = fleet.judge(recovery=bound(campaign))
        records = fleet.records()
        for fault in fleet.faults:
            for run in fault.victims:
                job = records[run.job]
                assert job.attempts > run.attempt, "a start that ended in a death counts"
                assert job.history, "and its end is on record"
        seen = [run for fault in fleet.witnessed(PROMISED if campaign else PATIENCE) for run in fault.victims]
        for run in seen:
            told = [one.error for one in records[run.job].history if run.worker in one.error]
            assert any("SIGKILL (9)" in error for error in told), f"a death that was seen is a crash-end: {run}, {told}"
            assert records[run.job].crashes >= 1
            named = [one.origin for one in records[run.job].history if run.worker in one.error]
            assert set(named) == {number(run.worker)}, "another worker wrote it; the run was that of the dead one"
        recovered = fleet.recoveries()
        print(f"{len(fleet.faults)} kills ({sum(b.whole for b in fleet.faults)} of whole workers) in {took:.1f} s")
        print(f"{len(fleet.acknowledged)} jobs, {len(fleet.runs)} runs, {len(entries)} entries of history")
        print(f"{len(seen)} deaths under a job were seen by a supervisor, and each is a crash-end with its signal")
        for what, seconds in recovered.items():
            print(figures(f"run again after a kill ({what})", seconds))
        assert seen
        assert max(recovered["process"]) < bound(campaign)
        assert max(recovered["worker"]) < bound(campaign)
        assert not any(alive(pid) for fault in fleet.faults for pid in fault.pids)


# --- TERM -------------------------------------------------------------------------------------------------------


@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("KILL-04")
def test_told_to_stop_under_load_what_ends_in_grace_runs_once(deployment: Deployment, campaign: bool) -> None:
    chance = random.Random(secrets.randbits(32))
    took: list[float] = []
    with Fleet(deployment) as fleet:
        stays = fleet.work("--grace", GRACE, lease=LONG)
        for _ in range(8 if campaign else 1):
            crews = [fleet.work("--grace", GRACE, lease=LONG) for _ in range(3)]
            told: dict[Command, float] = {}

            def tell(crews: list[Command] = crews, told: dict[Command, float] = told) -> bool:
                fleet.feed("nap", 2 * BUSY, lambda: {"seconds": chance.uniform(0.05, 0.3)})
                waiting = [crew for crew in crews if crew not in told]
                fleet.occupy([pid for crew in waiting for pid in crew.children], "wait")
                for crew in waiting:
                    kinds = {run.kind for pid in crew.children for run in fleet.running(pid)}
                    if kinds == {"nap", "wait"} and chance.random() < 0.1:
                        crew.send(signal.SIGTERM)
                        told[crew] = time.monotonic()
                return len(told) == len(crews)

            until(tell, what="all of them were told under load")
            for crew, at in told.items():
                assert crew.wait() == 0
                took.append(time.monotonic() - at)
            until(lambda: not fleet.left(), what="everything is over")
        fleet.dismiss(stays)
        fleet.judge(recovery=bound(campaign))
        records = fleet.records()
        for job, runs in fleet.look().by_job.items():
            assert {run.attempt for run in runs} == {1}, "what was handed back gets its attempt back"
            assert (records[job].attempts, records[job].crashes, records[job].history) == (1, 0, ())
            if runs[0].kind == "nap":
                assert len(runs) == 1, "what could end in grace ran once"
        again = [runs for runs in fleet.by_job.values() if len(runs) > 1]
        assert again
        assert all(run.stopped for runs in again for run in runs[:-1])
        pairs = [pair for runs in again for pair in pairwise(runs)]
        waits = [later.began - former.stopped for former, later in pairs if former.stopped]
        print(f"{len(took)} told to stop under load; {len(fleet.by_job)} jobs, {len(again)} of them handed back")
        print(figures("told to stop until gone", took))
        print(figures("handed back until run again", waits))


@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("KILL-10")
def test_told_to_stop_while_processes_are_being_started_all_of_them_stop(deployment: Deployment) -> None:
    with Fleet(deployment) as fleet:
        crew = fleet.work(processes=6)
        until(lambda: crew.children, what="the first one has been started")
        crew.send(signal.SIGTERM)
        assert crew.wait(60) == 0
        assert not fleet.left_behind()


@pytest.mark.spec("KILL-11")
async def test_told_to_stop_right_after_a_death_the_jobs_of_the_dead_are_released(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    releasing = asyncio.Event()

    async def slowly(*args: Any) -> None:
        releasing.set()
        await asyncio.sleep(0.2)
        await release_patiently(*args)

    monkeypatch.setattr(pool, "release_patiently", slowly)
    deployment.move_in(monkeypatch)
    await asyncio.to_thread(deployment.enqueue, "nap", {"seconds": 600})
    boss = Supervisor(MARKED, shutdown_grace=0.1)
    serving = asyncio.ensure_future(boss.serve())
    [mark] = await asyncio.to_thread(until, deployment.marks)
    os.kill(mark.pid, signal.SIGKILL)
    await asyncio.wait_for(releasing.wait(), 60)
    boss.stop()
    assert await asyncio.wait_for(serving, 60) == 0
    [job] = await asyncio.to_thread(deployment.records)
    assert (job.status, job.attempts, job.crashes) == (Status.RETRYING, 1, 1)


@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("KILL-05")
def test_claims_whose_reply_is_under_way_when_told_to_stop_are_handed_back(deployment: Deployment) -> None:
    held, hold = deployment.folder / "held", deployment.folder / "hold"
    hold.touch()
    with Fleet(deployment) as fleet:
        given = fleet.put("nap", ({"seconds": 0.01} for _ in range(8)))
        crew = fleet.work()
        until(lambda: held.exists() and held.read_text().count("\n") == len(given), what="claimed")
        crew.send(signal.SIGTERM)
        until(lambda: crew.log.count("stopping: no new jobs are claimed") == 2, what="both were told")
        hold.unlink()
        assert crew.wait() == 0
        assert {(job.status, job.attempts, job.crashes) for job in fleet.records().values()} == {(Status.PENDING, 0, 0)}
        assert fleet.work("--drain").wait() == 0
        assert [(run.attempt, len(fleet.by_job[run.job])) for run in fleet.look().runs.values()] == [(1, 1)] * 8
        fleet.judge(recovery=PATIENCE)
        assert not fleet.left_behind()


@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("KILL-06", "KILL-07")
def test_without_their_supervisor_processes_drain_and_a_second_signal_hurries(deployment: Deployment) -> None:
    with Fleet(deployment) as fleet:
        orphans = fleet.work("--grace", GRACE, lease=LONG)
        others = fleet.work("--grace", "600", lease=LONG)
        until(lambda: len(orphans.children) == len(others.children) == 2)
        children = orphans.children

        def loaded() -> bool:
            fleet.feed("nap", 13, lambda: {"seconds": 0.6})
            fleet.occupy(children, "wait")
            return all({run.kind for run in fleet.running(pid)} == {"nap", "wait"} for pid in children)

        until(loaded, what="both at work")
        napping = {run.job for pid in children for run in fleet.running(pid) if run.kind == "nap"}
        waiting = {run.job for pid in children for run in fleet.running(pid) if run.kind == "wait"}
        fault = fleet.kill(orphans.process.pid)
        until(lambda: not any(map(alive, children)), what="left alone they stop")
        gone = time.monotonic() - fault.at
        until(lambda: all(len(fleet.look().by_job[job]) == 2 for job in waiting), what="run elsewhere")
        assert napping <= fleet.ended
        assert {len(fleet.by_job[job]) for job in napping} == {1}, "what could end in grace ran once"
        assert {run.pid for job in waiting for run in fleet.by_job[job][1:]} <= set(others.children)

        until(lambda: fleet.occupy(others.children, "wait"), what="both at work")
        stuck = {run.job for pid in others.children for run in fleet.running(pid) if run.kind == "wait"}
        others.send(signal.SIGTERM)
        until(lambda: others.log.count("stopping: no new jobs are claimed") == 2)
        hurried = time.monotonic()
        others.send(signal.SIGTERM)
        assert others.wait() == 0
        hurried = time.monotonic() - hurried
        assert not fleet.left_behind()
        records = fleet.records()
        assert {run.attempt for run in fleet.look().runs.values()} == {1}
        assert {(records[job].status, records[job].attempts) for job in stuck} == {(Status.PENDING, 0)}
        assert hurried < PATIENCE, "long before the end of its grace"
        took = f"{gone:.2f} s, of which {GRACE} are grace"
        print(f"without their supervisor gone after {took}; hurried {hurried * 1e3:.0f} ms")

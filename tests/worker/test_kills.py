"""kill -9 of worker processes and of whole workers while they work, through the command line."""

from __future__ import annotations

import random
import secrets
import time

import pytest

from tests.worker.crowd import Crowd, figures
from tests.worker.shell import Command, Scene, alive

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(900)]

PROMISED = 1.0
BOUND = 5 * PROMISED
"""Seconds: what is promised holds on a quiet machine; this on any."""

BUSY = 12
"""Jobs under way at any time: fewer than there are slots, so that what was interrupted finds a free one."""


def storm(crowd: Crowd, crews: list[Command], kills: int, chance: random.Random) -> None:
    """Kill and kill, a process here and a whole worker there, always under load and never the last one at work."""
    started = time.monotonic()
    while len(crowd.blows) < kills:
        assert time.monotonic() - started < 60 + kills, "a kill takes no longer than a second"
        crowd.look()
        missing = BUSY - (len(crowd.acknowledged) - len(crowd.ended))
        if missing > BUSY // 4:
            crowd.put("nap", ({"seconds": chance.uniform(0.05, 0.5)} for _ in range(missing)))
        at_work = [[pid for pid in crew.children if crowd.running(pid)] for crew in crews]
        place = chance.randrange(len(crews))
        spare = any(pids for number, pids in enumerate(at_work) if number != place)
        if not spare or not at_work[place]:
            time.sleep(0.005)
        elif len(crowd.blows) % 7 == 6:
            crowd.kill_whole(crews[place])
            crews[place] = crowd.work()
        elif chance.random() < 0.1:
            crowd.kill(chance.choice(crews[place].children))
        else:
            crowd.kill(chance.choice(at_work[place]))


@pytest.mark.spec("KILL-01", "KILL-02", "KILL-03")
def test_killed_at_any_instant_every_job_ends_once(scene: Scene, campaign: bool) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    kills = 1_000 if campaign else 40
    with Crowd(scene) as crowd:
        crews = [crowd.work(), crowd.work()]
        began = time.monotonic()
        storm(crowd, crews, kills, random.Random(seed))
        took = time.monotonic() - began
        while crowd.left():
            time.sleep(0.02)
        crowd.dismiss(*crews)
        parts, wholes = crowd.recoveries(whole=False), crowd.recoveries(whole=True)
        entries = crowd.judge(recovery=BOUND)
        records = crowd.records()
        witnessed = told = 0
        for blow in crowd.blows:
            for run in blow.victims:
                errors = [mishap.error for mishap in records[run.job].history if run.worker in mishap.error]
                assert errors, f"{run} left no trace in its record"
                told += not blow.whole
                witnessed += "killed by SIGKILL (9)" in errors[0]
        print(f"{len(crowd.blows)} kills ({sum(b.whole for b in crowd.blows)} of whole workers) in {took:.1f} s")
        print(f"{len(crowd.acknowledged)} jobs, {len(crowd.runs)} runs, {len(entries)} entries")
        print(f"crashes with their signal on record: {witnessed} of {told}")
        print(figures("run again after the kill of a process", parts))
        print(figures("run again after the kill of a worker", wholes))
        assert max(parts) < BOUND
        assert max(wholes) < BOUND
        assert not any(alive(pid) for blow in crowd.blows for pid in blow.pids)

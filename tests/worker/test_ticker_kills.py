"""Schedules after kill -9 of the worker that fires them. Its lock is taken for an hour: it must be released."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.worker.shell import Scene, until

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.parallel_scene]

APP = "tests.worker.apps.ticking"


def goes_on(scene: Scene, killed: int) -> None:
    """Wait until another process has run three jobs, and print how long the schedule stood still."""
    os.kill(killed, signal.SIGKILL)
    at = time.time()
    others = until(lambda: m if len(m := [m for m in scene.marks() if m.pid != killed and m.at > at]) > 2 else None)
    print(f"the first job after the kill: {others[0].at - at:.3f} s")


@pytest.mark.spec("SCHED-23")
def test_under_a_supervisor_the_next_process_fires_at_once(scene: Scene) -> None:
    with scene.work("--lease", "300", app=f"{APP}:jobs") as command:
        goes_on(scene, until(scene.marks)[0].pid)
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.spec("SCHED-23")
def test_beside_another_worker_that_one_fires_at_once(scene: Scene) -> None:
    """There is no supervisor: the other worker learns from the liveness file that the process is dead."""
    with scene.command("-m", APP, STOKER_LEASE="300", STOKER_QUEUES="elsewhere") as ticking:
        until(scene.records, what="the first one fires")
        with scene.command("-m", APP, STOKER_LEASE="300"):
            until(lambda: len(scene.marks()) > 2, what="the second one runs what the first one fires")
            goes_on(scene, ticking.process.pid)

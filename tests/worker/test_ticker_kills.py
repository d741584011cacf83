"""Schedules after kill -9 of the worker that fires them. Its lock is taken for an hour: it must be released."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.worker.shell import Deployment, until

APP = "tests.worker.apps.ticking"


@pytest.fixture(params=[pytest.param(one, marks=pytest.mark.engine(one)) for one in ("sqlite", "postgres", "redis")])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    """A deployment on a store of each engine."""
    name = request.param
    if name == "sqlite":
        return Deployment(tmp_path)
    base, part = f"{name}_url", {"postgres": "schema", "redis": "prefix"}[name]
    url = request.getfixturevalue(base)
    found = Deployment(tmp_path)
    found.url = f"{url}{'&' if '?' in url else '?'}{part}={request.getfixturevalue(f'{name}_{part}')}"
    found.environ["STOKER_URL"] = found.url
    return found


def goes_on(deployment: Deployment, killed: int) -> None:
    """Wait until another process has run three jobs, and print how long the schedule stood still."""
    os.kill(killed, signal.SIGKILL)
    at = time.time()
    others = until(
        lambda: m if len(m := [m for m in deployment.marks() if m.pid != killed and m.at > at]) > 2 else None
    )
    print(f"the first job after the kill: {others[0].at - at:.3f} s")


@pytest.mark.spec("SCHED-23")
def test_under_a_supervisor_the_next_process_fires_at_once(deployment: Deployment) -> None:
    with deployment.work("--lease", "300", app=f"{APP}:jobs") as command:
        goes_on(deployment, until(deployment.marks)[0].pid)
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.spec("SCHED-23")
def test_beside_another_worker_that_one_fires(deployment: Deployment) -> None:
    """There is no supervisor. A liveness file says at once that the process is dead; without one the lease lapses."""
    lease = "300" if deployment.url.startswith("sqlite") else "3"
    with deployment.command("-m", APP, STOKER_LEASE=lease, STOKER_QUEUES="elsewhere") as ticking:
        until(deployment.records, what="the first one fires")
        with deployment.command("-m", APP, STOKER_LEASE=lease):
            until(lambda: len(deployment.marks()) > 2, what="the second one runs what the first one fires")
            goes_on(deployment, ticking.process.pid)

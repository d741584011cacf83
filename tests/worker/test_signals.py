"""Stopping: what ends in grace runs once, the rest goes back at no cost."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter

import pytest

from stoker.app import Stoker
from stoker.errors import StokerError
from stoker.model.job import Status
from stoker.worker import Worker
from tests.worker.shell import Deployment, until

SCRIPT = ("-m", "tests.worker.apps.script")
GRACE = "5"
"""Seconds: enough to end what takes parts of one, also on a busy machine."""


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-13")
def test_a_drain_under_load_finishes_some_and_hands_back_the_rest(deployment: Deployment) -> None:
    deployment.enqueue("nap", *({"seconds": 0.3} for _ in range(4)), *({"seconds": 600} for _ in range(4)))
    with deployment.work("-q", "default:8", "--grace", GRACE) as command:
        until(lambda: len(deployment.marks("start")) == 8)
        deployment.enqueue("quick", *({"n": n} for n in range(3)))
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    runs = Counter(mark.job for mark in deployment.marks("start"))
    assert max(runs.values()) == 1
    states = Counter((job.kind, job.status, job.attempts) for job in deployment.records())
    assert states["nap", Status.DONE, 1] == 4
    assert states["nap", Status.PENDING, 0] == 4, "handed back, and the attempt refunded"
    assert sum(count for (kind, *_), count in states.items() if kind == "quick") == 3
    assert all(job.crashes == 0 for job in deployment.records())


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-13")
def test_a_second_signal_hurries(deployment: Deployment) -> None:
    deployment.enqueue("nap", {"seconds": 600})
    with deployment.work("--grace", "600") as command:
        until(lambda: deployment.marks("start"))
        command.send(signal.SIGINT)
        until(lambda: "stopping" in command.log)
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    [job] = deployment.records()
    assert (job.status, job.attempts) == (Status.PENDING, 0)


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-14")
def test_quiet_claims_nothing_more_but_finishes(deployment: Deployment) -> None:
    flag = deployment.folder / "go"
    deployment.enqueue("rest", {"flag": str(flag)})
    with deployment.work() as command:
        until(lambda: deployment.marks("start"))
        command.send(signal.SIGTSTP)
        until(lambda: not deployment.ready_file.exists())
        until(lambda: "quiet: no new jobs are claimed, with 1 running job" in command.log)
        deployment.enqueue("quick", {"n": 1})
        flag.touch()
        until(lambda: deployment.marks("end"))
        assert [mark.kind for mark in deployment.marks("start")] == ["rest"]
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    assert [job.status for job in deployment.records()] == [Status.DONE, Status.PENDING]


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-18")
def test_hup_after_quiet_claims_again(deployment: Deployment) -> None:
    """The fresh process is not quiet, and neither is one that follows a death later."""
    with deployment.work() as command:
        [first] = command.children
        command.send(signal.SIGTSTP)
        until(lambda: not deployment.ready_file.exists())
        deployment.enqueue("quick", {"n": 1})
        command.send(signal.SIGHUP)
        [mark] = until(lambda: deployment.marks("start"))
        assert mark.pid != first
        until(deployment.ready_file.exists)
        os.kill(mark.pid, signal.SIGKILL)
        deployment.enqueue("quick", {"n": 2})
        until(lambda: len({mark.job for mark in deployment.marks("start")}) == 2)
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_worker_in_a_script_drains_and_returns(deployment: Deployment, number: signal.Signals) -> None:
    deployment.enqueue("nap", {"seconds": 0.4}, {"seconds": 600})
    with deployment.command(*SCRIPT, GRACE=GRACE) as command:
        until(lambda: len(deployment.marks("start")) == 2)
        command.send(number)
        assert command.wait() == 0
        assert (deployment.folder / "back").exists(), "run() returned"
        assert "Traceback" not in command.log
    assert [(job.status, job.attempts) for job in deployment.records()] == [(Status.DONE, 1), (Status.PENDING, 0)]


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-16")
def test_a_system_exit_that_leaves_the_loop_ends_its_job_and_not_the_worker(deployment: Deployment) -> None:
    [guilty] = deployment.enqueue("leak_exit", {})
    deployment.enqueue("nap", {"seconds": 0.5})
    with deployment.command(*SCRIPT) as command:
        until(lambda: [mark for mark in deployment.marks("end") if mark.kind == "nap"])
        deployment.enqueue("quick", {"n": 1})
        until(lambda: [mark for mark in deployment.marks("start") if mark.kind == "quick"])
        command.send(signal.SIGTERM)
        assert command.wait() == 0
        assert command.log.count(guilty) == 1, "said once"
        assert re.search(rf"job {guilty} \(leak_exit, .*panic: SystemExit: 5. It is dead", command.log)
    states = {job.kind: (job.status, job.attempts) for job in deployment.records()}
    assert states == {"leak_exit": (Status.DEAD, 1), "nap": (Status.DONE, 1), "quick": (Status.DONE, 1)}
    assert "panic: SystemExit: 5" in (deployment.records()[0].last_error or "")


@pytest.mark.spec("SUPERVISOR-15")
def test_the_handlers_that_were_there_come_back() -> None:
    app = Stoker("memory://")

    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)}
        Worker(app, drain=True).run()
        assert {number: signal.getsignal(number) for number in kept} == kept
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.spec("SYNC-02")
async def test_a_worker_does_not_block_a_loop() -> None:
    app = Stoker("memory://")
    with pytest.raises(StokerError, match=r"await worker.serve\(\)"):
        Worker(app, drain=True).run()
    await Worker(app, drain=True).serve()

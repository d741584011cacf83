"""Worker processes and the one that looks after them, as `stoker work` runs them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from errno import EAGAIN
from pathlib import Path
from typing import Any

import pytest

from stoker.engines.sqlite.connection import VERSION_INFO
from stoker.engines.sqlite.file_checks import version_warning
from stoker.model.job import Status
from stoker.subprocesses import ChildProcess
from stoker.supervisor import messages
from stoker.supervisor import supervisor as supervising
from stoker.supervisor.child import EXIT_BROKEN
from stoker.supervisor.supervisor import Supervisor
from stoker.supervisor.worker_process import RestartDelay, WorkerProcess
from tests.worker.shell import APP, Deployment, alive, until

LONG = ("--lease", "300")
"""A lease that plays no part: a supervisor sees deaths. It does within a second, on a quiet machine."""


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-01", "SUPERVISOR-02")
def test_the_jobs_of_a_killed_process_run_again_within_a_second(deployment: Deployment) -> None:
    deployment.enqueue("nap_once", {"seconds": 600})
    with deployment.work("-p", "2", *LONG) as command:
        [first] = until(lambda: deployment.marks("start"))
        assert sorted(command.children) == sorted(until(lambda: c if len(c := command.children) == 2 else None))
        killed_at = time.time()
        os.kill(first.pid, signal.SIGKILL)
        _, second = until(lambda: m if len(m := deployment.marks("start")) == 2 else None)
        print(f"run again after {second.at - killed_at:.3f} s")
        until(lambda: len(command.children) == 2 and first.pid not in command.children, what="two again")
        until(lambda: deployment.marks("end"))
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    [job] = deployment.records()
    assert (job.status, job.attempts, job.crashes) == (Status.DONE, 2, 1)
    assert "killed by SIGKILL (9)" in job.history[0].error


@pytest.mark.parallel_deployment
@pytest.mark.spec("SQLITE-55", "SQLITE-82")
def test_a_start_warns_once_and_leaves_no_folder(deployment: Deployment) -> None:
    deployment.enqueue("quick", {"n": 1})
    with deployment.work("-p", "2", "--drain", ready=False) as command:
        assert command.wait() == 0
        assert command.log.count("WAL-reset") == (version_warning(VERSION_INFO) is not None)
    assert [file.name for file in deployment.folder.iterdir() if file.name.startswith("jobs.db")] == ["jobs.db"]


@pytest.mark.parallel_deployment
@pytest.mark.spec("PROCESS-14")
def test_a_handlers_own_process_dies_with_its_worker(deployment: Deployment) -> None:
    deployment.enqueue("nap_alone", {"seconds": 600})
    with deployment.work(*LONG) as command:
        [first] = until(lambda: deployment.marks("start"))
        [member] = command.children
        assert first.pid != member
        os.kill(member, signal.SIGKILL)
        until(lambda: not alive(first.pid))
        until(lambda: deployment.marks("end"))
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    [job] = deployment.records()
    assert (job.status, job.attempts, job.crashes) == (Status.DONE, 2, 1)


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-17")
def test_exit_code_0_without_a_report_is_a_death(deployment: Deployment) -> None:
    """The job is released with a crash-end, and another process takes the place, also while draining."""
    deployment.enqueue("vanish", {}, attempts=1)
    with deployment.work("--drain", *LONG, ready=False) as command:
        assert command.wait() == 0
        assert "died: exit code 0" in command.log
    [job] = deployment.records()
    assert (job.status, job.crashes) == (Status.DEAD, 1)
    assert "exit code 0" in (job.last_error or "")


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-03")
def test_three_crash_ends_are_the_end(deployment: Deployment) -> None:
    deployment.enqueue("segfault", {})
    deployment.enqueue("quick", *({"n": n} for n in range(20)), attempts=1)
    with deployment.work(STOKER_POLL="0.05") as command:
        until(lambda: deployment.records()[0].status is Status.DEAD)
        until(lambda: all(job.status is Status.DONE for job in deployment.records()[1:]), what="the innocent are done")
        command.send(signal.SIGTERM)
        assert command.wait() == 0
        assert command.log.count("died: killed by SIGSEGV (11)") == 2, "the third time it died alone"
    guilty, *innocent = deployment.records()
    assert guilty.crashes == 3
    assert "SIGSEGV (11)" in (guilty.last_error or "")
    assert max(job.crashes for job in innocent) <= 2


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-04")
def test_a_process_is_replaced_after_enough_jobs_without_a_gap(deployment: Deployment) -> None:
    with deployment.work("--max-jobs", "20", "--health-port", "0") as command:
        [first] = command.children
        deployment.enqueue("quick", *({"n": n} for n in range(30)))
        until(lambda: command.children and first not in command.children, what="replaced")
        assert deployment.ready_file.exists()
        deployment.enqueue("quick", *({"n": n} for n in range(10)))
        until(lambda: len(deployment.marks()) == 40)
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    assert max(Counter(mark.job for mark in deployment.marks()).values()) == 1
    assert len({mark.pid for mark in deployment.marks()}) >= 2
    assert all(job.status is Status.DONE for job in deployment.records())


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-04")
def test_a_process_that_has_grown_too_large_is_replaced(deployment: Deployment) -> None:
    with deployment.work("--max-rss", "250") as command:
        [first] = command.children
        deployment.enqueue("bloat", {"mib": 220})
        until(lambda: command.children and first not in command.children, what="replaced")
        assert f"worker process {first} is replaced by" in command.log
        assert re.search(r"it holds \d{3} MiB", command.log)
        deployment.enqueue("quick", {"n": 1})
        until(lambda: len(deployment.marks()) == 2)
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    assert [(job.status, job.attempts) for job in deployment.records()] == [(Status.DONE, 1)] * 2


@pytest.mark.parallel_deployment
@pytest.mark.spec("PROCESS-12")
def test_a_handlers_own_process_is_replaced_after_enough_jobs(deployment: Deployment) -> None:
    deployment.enqueue("alone", *({} for _ in range(5)))
    with deployment.work("-q", "default:1", "--drain", ready=False, STOKER_CHILD_JOBS="2") as command:
        assert command.wait() == 0
    runs = Counter(mark.pid for mark in deployment.marks())
    assert sorted(runs.values()) == [1, 2, 2]
    assert {job.status for job in deployment.records()} == {Status.DONE}


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-05")
def test_hup_replaces_the_processes_one_by_one(deployment: Deployment) -> None:
    deployment.enqueue("nap", {"seconds": 1.0})
    with deployment.work("-p", "2") as command:
        until(lambda: len(command.children) == 2)
        until(lambda: deployment.marks("start"))
        before = set(command.children)
        command.send(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while set(command.children) & before or len(command.children) != 2:
            assert deployment.ready_file.exists(), "a worker runs all the time"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    [job] = deployment.records()
    assert (job.status, job.attempts) == (Status.DONE, 1), "what the old process ran, it finished"


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-06")
def test_without_its_supervisor_a_process_stops(deployment: Deployment) -> None:
    deployment.enqueue("nap", {"seconds": 600})
    with deployment.work("--grace", "0.1") as command:
        until(lambda: deployment.marks("start"))
        [child] = command.children
        command.process.kill()
        until(lambda: not alive(child))
    [job] = deployment.records()
    assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)


@pytest.mark.spec("SUPERVISOR-07")
async def test_a_process_that_does_not_stop_is_killed_and_its_jobs_are_handed_back(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "MARGIN", 0.2)
    monkeypatch.setattr(supervising, "LAST_WAIT", 0.2)
    deployment.move_in(monkeypatch)
    await asyncio.to_thread(deployment.enqueue, "block", {"seconds": 600})
    boss = Supervisor(APP, shutdown_grace=0.1)
    serving = asyncio.ensure_future(boss.serve())
    await asyncio.to_thread(until, deployment.marks)
    boss.stop()
    assert await serving == EXIT_BROKEN
    [job] = await asyncio.to_thread(deployment.records)
    assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-08")
def test_a_process_with_half_of_its_slots_abandoned_is_replaced(deployment: Deployment) -> None:
    with deployment.work("-q", "default:2") as command:
        [first] = command.children
        deployment.enqueue("stuck", {"seconds": 600}, attempts=1)  # a retry would take the other slot too
        until(lambda: command.children and first not in command.children, what="replaced")
        assert "handlers that do not end hold 1 of its 2 slots" in command.log
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-09")
def test_readiness_is_red_while_the_store_is_away(deployment: Deployment) -> None:
    away = deployment.folder / "away"
    deployment.environ.update({"AWAY": str(away), "STORE": str(deployment.folder / "away.db")})
    host = ("--health-port", "0", "--health-host", "127.0.0.2")
    with deployment.work("--lease", "1", *host, app="tests.worker.apps.away:jobs") as command:
        port = until(lambda: command.log.partition("http://127.0.0.2:")[2].partition("/")[0])
        until(lambda: probe(port) == (200, True))
        away.touch()
        until(lambda: not deployment.ready_file.exists() and probe(port) == (503, False))
        away.unlink()
        until(lambda: deployment.ready_file.exists() and probe(port) == (200, True))
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    assert not deployment.ready_file.exists()


def probe(port: str) -> tuple[int, bool]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/", timeout=60) as answer:
            return answer.status, json.load(answer)["ready"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["ready"]


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-10")
def test_reload_follows_the_code_and_survives_a_mistake_in_it(deployment: Deployment) -> None:
    code = "from stoker.app import Stoker\njobs = Stoker()\n@jobs.task\nasync def version() -> int:\n    return {}\n"
    source = deployment.folder / "code" / "changing.py"
    source.parent.mkdir()
    source.write_text(code.format(1))
    with deployment.work("--reload", app="changing:jobs", cwd=source.parent) as command:
        [first] = command.children
        source.write_text("this is no Python")
        until(lambda: "could not start" in command.log)
        assert command.children == [first], "the old process stays at work"
        source.write_text(code.format(22))  # of another length: what was compiled a moment ago is out of date
        until(lambda: command.children and first not in command.children, what="replaced")
        deployment.enqueue("version", {})
        until(lambda: deployment.records()[0].result == b"22")
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.spec("SUPERVISOR-11")
def test_processes_that_die_at_once_are_started_again_with_a_growing_pause() -> None:
    delay = RestartDelay()
    pauses = [delay.pause(0) for _ in range(12)]
    assert pauses[:2] == [0.0, 0.0], "a death or two is made good at once"
    assert pauses[2:] == sorted(pauses[2:])
    assert pauses[-1] == 30.0
    assert delay.pause(1) == 0.0, "each seat has its own"
    assert delay.pause(0, age=60) == 0.0, "one that lived is forgiven"


@pytest.mark.spec("SUPERVISOR-01")
async def test_a_process_that_could_not_be_started_is_tried_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host may have no room for another process for a while."""
    deployment.move_in(monkeypatch)
    launch, started, refused = WorkerProcess.launch, list[WorkerProcess](), [False, True, True]

    async def launched(*given: Any) -> WorkerProcess:
        if refused and refused.pop(0):
            raise BlockingIOError(EAGAIN, "Resource temporarily unavailable")
        started.append(await launch(*given))
        return started[-1]

    monkeypatch.setattr(WorkerProcess, "launch", launched)
    boss = Supervisor(APP)
    serving = asyncio.ensure_future(boss.serve())
    await asyncio.to_thread(until, lambda: boss.ready)
    started[0].kill()
    await asyncio.to_thread(until, lambda: len(started) == 2 and boss.ready)
    boss.stop()
    assert await serving == 0
    assert caplog.text.count("no worker process could be started: [Errno 11] Resource temporarily unavailable") == 2


@pytest.mark.spec("SUPERVISOR-09")
async def test_a_health_file_that_cannot_be_written_hinders_nothing_else(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the disk is full: a process that dies is replaced all the same."""
    deployment.move_in(monkeypatch)
    launch, started = WorkerProcess.launch, list[WorkerProcess]()

    async def launched(*given: Any) -> WorkerProcess:
        started.append(await launch(*given))
        return started[-1]

    monkeypatch.setattr(WorkerProcess, "launch", launched)
    ready = deployment.folder / "health" / "ready"
    ready.parent.mkdir()
    boss = Supervisor(APP, health_file=str(ready))
    serving = asyncio.ensure_future(boss.serve())
    await asyncio.to_thread(until, ready.exists)
    ready.unlink()
    ready.parent.rmdir()
    started[0].kill()
    await asyncio.to_thread(until, lambda: len(started) == 2 and boss.ready)
    ready.parent.mkdir()
    await asyncio.to_thread(until, ready.exists)
    assert caplog.text.count(f"the health file {ready} cannot be written: ") == 1
    boss.stop()
    assert await serving == 0


@pytest.mark.spec("SUPERVISOR-02")
async def test_a_process_is_known_by_every_id_it_has_had() -> None:
    """After a lost lease it claims under another one; the claims of both are released when it dies."""
    child = await ChildProcess.spawn("stoker.supervisor.child")
    try:
        process = WorkerProcess(0, child)
        for worker in ("s.one", "s.two"):
            process._apply(messages.Identity(worker))
        assert process.identities == ["s.one", "s.two"]
    finally:
        await child.end()


@pytest.mark.parallel_deployment
@pytest.mark.spec("SUPERVISOR-12")
def test_what_cannot_start_exits_with_1(deployment: Deployment) -> None:
    with deployment.work(ready=False, STOKER_URL=f"sqlite:///{deployment.folder}/no/such/folder/jobs.db") as command:
        assert command.wait() == 1
        assert "cannot start" in command.log
    Path(deployment.folder / "opens.py").write_text(
        "from stoker.app import Stoker\njobs = Stoker()\n@jobs.lifespan\nasync def broken():\n"
        "    raise RuntimeError('no pool for you')\n    yield\n"
    )
    with deployment.work(ready=False, app="opens:jobs", cwd=deployment.folder) as command:
        assert command.wait() == 1
        assert "no pool for you" in command.log

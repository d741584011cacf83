"""Processes that die under a chunk, through the command line."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from stoker.model import ids
from stoker.model.job import Status
from tests.worker.shell import Deployment, until

pytestmark = pytest.mark.engine("sqlite")

APP = "tests.worker.apps.chunked:jobs"


def ended(deployment: Deployment, jobs: list[str]) -> bool:
    done = {ids.text(record.id) for record in deployment.records() if record.status in (Status.DONE, Status.DEAD)}
    return done.issuperset(jobs)


@pytest.mark.parallel_deployment
@pytest.mark.spec("CHUNK-21")
def test_after_a_kill_in_the_middle_of_a_chunk_each_of_its_jobs_runs_again(deployment: Deployment) -> None:
    flag = deployment.folder / "go-on"
    jobs = deployment.enqueue("index", {"names": str(flag)}, *({"names": f"n{n}"} for n in range(19)), queue="index")
    with deployment.work("-q", "index:1", app=APP) as worker:
        until(lambda: len(deployment.marks("start")) == 20, what="the chunk runs")
        [child] = worker.children
        os.kill(child, signal.SIGKILL)
        more = deployment.enqueue("index", *({"names": f"m{n}"} for n in range(5)), queue="index")
        until(lambda: len(deployment.marks("start")) >= 40, what="its jobs run again")
        flag.touch()
        until(lambda: ended(deployment, jobs + more), what="everything is over")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    starts = Counter(mark.job for mark in deployment.marks("start"))
    ends = Counter(mark.job for mark in deployment.marks("end"))
    assert starts == Counter({**dict.fromkeys(jobs, 2), **dict.fromkeys(more, 1)})
    assert ends == Counter(jobs + more), "each ran to its end once"
    records = {ids.text(record.id): record for record in deployment.records()}
    assert all(record.status is Status.DONE for record in records.values())
    for job in jobs:
        assert (records[job].attempts, records[job].crashes) == (1, 1), "no job of many can be blamed"
        assert "SIGKILL (9)" in records[job].history[0].error


@pytest.mark.parallel_deployment
@pytest.mark.spec("CHUNK-22")
def test_a_job_that_kills_its_process_takes_no_other_job_of_its_chunk_with_it(deployment: Deployment) -> None:
    names = ["a", "poison", "b", "c"]
    jobs = deployment.enqueue("fragile", *({"names": name} for name in names), queue="fragile", attempts=1)
    with deployment.work("-q", "fragile:2", app=APP):
        until(lambda: ended(deployment, jobs), what="everything is over")
    records = {ids.text(record.id): record for record in deployment.records()}
    assert [records[job].status for job in jobs] == [Status.DONE, Status.DEAD, Status.DONE, Status.DONE]
    assert [records[job].crashes for job in jobs] == [2, 3, 2, 2]
    assert "process died under the job for the third time" in str(records[jobs[1]].last_error)
    assert [records[job].result for job in jobs] == [b'"A"', None, b'"B"', b'"C"']
    last = {mark.job: mark.pid for mark in deployment.marks("start")}
    assert last[jobs[1]] not in {last[job] for job in jobs if job != jobs[1]}, "it died in a process of its own"


@pytest.mark.parallel_deployment
@pytest.mark.spec("CHUNK-15")
def test_told_to_stop_a_worker_lets_its_chunk_finish(deployment: Deployment) -> None:
    flag = deployment.folder / "go-on"
    jobs = deployment.enqueue("index", {"names": str(flag)}, {"names": "a"}, queue="index")
    with deployment.work("-q", "index:1", app=APP) as worker:
        until(lambda: len(deployment.marks("start")) == 2, what="the chunk runs")
        worker.send(signal.SIGTERM)
        until(lambda: "stopping" in worker.log, what="it has the signal")
        flag.touch()
        assert worker.wait() == 0
    assert [record.status for record in deployment.records()] == [Status.DONE] * 2
    assert Counter(mark.job for mark in deployment.marks("end")) == Counter(jobs)

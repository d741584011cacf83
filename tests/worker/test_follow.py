"""`stoker work --processes auto:1-2`: as many processes as the work needs."""

from __future__ import annotations

import signal

import pytest

from stoker.model.job import Status
from tests.worker.shell import Deployment, until

FOLLOW = {"STOKER_SHRINK_AFTER": "0.5", "STOKER_TARGET_WAIT": "1"}


@pytest.mark.parallel_deployment
@pytest.mark.spec("SCALE-06", "SCALE-07")
def test_processes_follow_the_work_and_no_running_job_is_interrupted(deployment: Deployment) -> None:
    """A surplus process finishes its jobs; if work comes meanwhile, it claims again."""
    names = ("a", "b", "c", "d", "e")
    flags = {name: deployment.folder / name for name in names}

    def rest(*names: str) -> None:
        deployment.enqueue("rest", *({"flag": str(flags[name])} for name in names))

    deployment.environ.update(FOLLOW)
    rest("a", "b", "c")
    with deployment.work("-p", "auto:1-2", "-q", "default:2", "--lease", "300") as command:
        *first, third = until(lambda: m if len(m := deployment.marks("start")) == 3 else None)
        assert len({mark.pid for mark in first}) == 1
        assert third.pid != first[0].pid
        flags["a"].touch()
        until(lambda: "surplus" in command.log, what="one is surplus")
        assert sorted(command.children) == sorted({first[0].pid, third.pid})
        rest("d", "e")
        starts = until(lambda: m if len(m := deployment.marks("start")) == 5 else None)
        assert {mark.pid for mark in starts[3:]} == {first[0].pid, third.pid}
        for flag in flags.values():
            flag.touch()
        until(lambda: len(deployment.marks("end")) == 5, what="all have ended")
        [left] = until(lambda: c if len(c := command.children) == 1 else None)
        assert left in {first[0].pid, third.pid}
        assert command.known == {first[0].pid, third.pid}
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    assert [(job.status, job.attempts) for job in deployment.records()] == [(Status.DONE, 1)] * 5


@pytest.mark.parallel_deployment
@pytest.mark.spec("SCALE-08")
def test_while_the_store_is_away_the_number_of_processes_stays(deployment: Deployment) -> None:
    away = deployment.folder / "away"
    deployment.environ.update({"AWAY": str(away), "STORE": str(deployment.folder / "away.db"), **FOLLOW})
    with deployment.work("-p", "auto:2-3", app="tests.worker.apps.away:jobs") as command:
        until(lambda: command.log.count(" started on ") == 2, what="both have started")
        processes = sorted(command.children)
        away.touch()
        until(lambda: "2 worker processes stay" in command.log, what="the number stays")
        away.unlink()
        until(deployment.ready_file.exists)
        assert sorted(command.children) == processes
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.spec("SCALE-06")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("-p", "auto:0-3"), "must be 1 to 256, or bounds as in auto:1-8"),
        (("-p", "0"), "must be 1 to 256, or bounds as in auto:1-8"),
        (("-p", "auto:1-2", "--drain"), "--processes auto follows the work, and --drain ends with it"),
    ],
)
def test_wrong_numbers_of_processes_are_refused(deployment: Deployment, options: tuple[str, ...], text: str) -> None:
    with deployment.work(*options, ready=False) as command:
        assert command.wait() == 2
        assert text in " ".join(command.log.split())

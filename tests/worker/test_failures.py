"""What the log says about jobs that fail, and whose log lines are whose."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.cli.logs import Plain
from stoker.model import ids
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Demand, Settled, Settlement, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Failed, Lost, Reject
from stoker.model.retry import Fixed
from stoker.observe.logs import JsonFormatter
from stoker.testing.clock import VirtualClock
from stoker.worker import Worker, maintenance
from stoker.worker.failures import MOST, WINDOW, FailureLog
from tests.harness.apps import PATIENCE, drain, until
from tests.harness.doubles import Double
from tests.model.test_lifecycle import claimed
from tests.worker.shell import APP, Deployment


def lines(caplog: pytest.LogCaptureFixture, job: str | None = None) -> list[logging.LogRecord]:
    """Warnings and errors of the worker, about one job or about any."""
    found = [one for one in caplog.records if one.name == "stoker.worker" and one.levelno >= logging.WARNING]
    return [one for one in found if job is None or getattr(one, "job", None) == job]


# --- one line for each ------------------------------------------------------------------------------------------


@pytest.mark.spec("FAILLOG-01")
async def test_every_failed_run_is_one_warning_and_a_dead_job_one_error(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(queue="mail", attempts=3, backoff=Fixed(0.01))
    async def send(to: str) -> None:
        raise ConnectionError(f"{to} hung up")

    job = await send.enqueue("ada")
    async with Worker(jobs):
        await until(lambda: len(lines(caplog, job.id)) == 3)
    first, second, last = lines(caplog, job.id)
    about = f"job {job.id} (send, queue mail) failed, attempt"
    assert first.getMessage() == f"{about} 1 of 3: ConnectionError: ada hung up. It runs again in 0.01 s."
    assert second.getMessage() == f"{about} 2 of 3: ConnectionError: ada hung up. It runs again in 0.01 s."
    assert last.getMessage() == f"{about} 3 of 3: ConnectionError: ada hung up. It is dead: no attempt is left."
    assert [one.levelname for one in (first, second, last)] == ["WARNING", "WARNING", "ERROR"]
    for attempt, one in enumerate((first, second, last), 1):
        assert "Traceback" in str(one.exc_text) and 'raise ConnectionError(f"{to} hung up")' in str(one.exc_text)
        assert one.__dict__.items() >= {"job": job.id, "kind": "send", "queue": "mail", "attempt": attempt}.items()


@pytest.mark.spec("FAILLOG-01")
async def test_every_way_to_fail_is_logged_once(
    timed_jobs: Stoker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = timed_jobs

    @jobs.task
    async def rejected() -> None:
        raise Reject("no such customer")

    @jobs.task(attempts=1, timeout=0.01)
    async def slow() -> None:
        await asyncio.sleep(30)

    @jobs.task
    def panics() -> None:
        raise SystemExit(3)

    @jobs.task(expires=60)
    async def late() -> None: ...

    @jobs.task
    async def typed(n: int) -> None: ...

    jobs.declare("elsewhere")
    producer = Stoker("memory://")  # knows only the name of the task, as another program might
    producer.declare("typed")
    unfit = producer.draft("typed", {"n": "seven"})
    await (await jobs.engine()).jobs.insert([unfit])
    expired = await late.enqueue()
    clock.advance(61)
    told = {
        (await rejected.enqueue()).id: "no such customer. It is dead: it is not tried again.",
        (await slow.enqueue()).id: "timeout: ran longer than 0.01 s. It is dead: no attempt is left.",
        (await panics.enqueue()).id: "panic: SystemExit: 3. It is dead: it is not tried again.",
        expired.id: "was not started: expired: not started within 60 s. It is canceled.",
        (await jobs.enqueue(jobs.draft("elsewhere"))).id: "no task named 'elsewhere' is registered in this worker. "
        "It is put back and tried again in 1 s.",
        ids.text(unfit.job_id): "What is stored is unchanged. It is put back and tried again in 1 s.",
    }
    await drain(jobs)
    found = Counter(getattr(one, "job", None) for one in lines(caplog))
    assert found == dict.fromkeys(told, 1), caplog.text
    for job, text in told.items():
        [one] = lines(caplog, job)
        assert text in one.getMessage()
        assert one.levelno == (logging.ERROR if "dead" in text else logging.WARNING)


@pytest.mark.spec("FAILLOG-01")
async def test_success_snoozing_and_cancels_are_no_failures(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task
    async def fine() -> None: ...

    await fine.enqueue()
    canceled = await fine.using(delay=60).enqueue()
    await canceled.cancel()
    await drain(jobs)
    assert lines(caplog) == []


class Forgetful(Double):
    """The first answer to a settlement is lost on the way."""

    lost = False

    async def settle(self, settlements: Any, *, tx: Any = None, demand: Demand | None = None) -> Settled:
        settled = await self.real.jobs.settle(settlements, tx=tx)
        if not self.lost:
            self.lost = True
            raise EngineUnavailable("the answer was lost.")
        return Settled(settled.verdicts, [] if demand is None else await self.jobs.claim(demand))


@pytest.mark.spec("FAILLOG-01")
async def test_an_outcome_that_is_sent_twice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Stoker(Forgetful())

    @jobs.task
    async def work() -> None:
        raise Reject("no")

    async with jobs:
        job = await work.enqueue()
        await drain(jobs)
    assert len(lines(caplog, job.id)) == 1


@pytest.mark.spec("FAILLOG-01")
def test_what_was_taken_over_from_a_dead_worker_is_logged_when_it_applied(caplog: pytest.LogCaptureFixture) -> None:
    claims = [claimed(id=bytes([n]) * 16, former="w1", former_at=0) for n in (1, 2)]
    settlements: list[Settlement] = [conclude(claim, Lost()) for claim in claims]
    FailureLog().applied(claims, settlements, [Verdict.APPLIED, Verdict.LOST])
    [one] = lines(caplog)
    assert "worker w1 stopped renewing its lease" in one.getMessage()


@pytest.mark.spec("FAILLOG-06")
async def test_a_superseded_job_is_one_error(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task(unique="the one", backoff=Fixed(60))
    async def work() -> None:
        raise ValueError("boom")

    old = await work.enqueue()
    await drain(jobs)
    caplog.clear()
    new = await work.enqueue()
    [one] = caplog.records
    assert (one.levelno, one.job) == (logging.ERROR, old.id)  # type: ignore[attr-defined]
    assert f"job {old.id} is dead" in one.getMessage() and new.id in one.getMessage()


# --- floods -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("FAILLOG-02")
def test_beyond_ten_a_second_failures_of_a_kind_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    log = FailureLog(clock=lambda: now)
    mail, other = claimed(kind="send"), claimed(kind="resize")
    for _ in range(MOST + 25):
        log.settled(mail, conclude(mail, Failed("boom", False)))
    log.settled(other, conclude(other, Failed("boom", True)))
    assert len(lines(caplog)) == MOST + 1, "another kind has a count of its own"
    log.flush()
    assert len(lines(caplog)) == MOST + 1, "the second is not over yet"
    now += WINDOW
    log.flush()
    log.flush(everything=True)
    [*_, last] = lines(caplog)
    assert len(lines(caplog)) == MOST + 2
    assert last.getMessage() == (
        "25 more failures of send within 1.0 s not logged one by one; of these jobs 25 are dead"
    )
    for _ in range(MOST + 1):
        log.settled(mail, conclude(mail, Failed("boom", True)))
    now += 5
    log.settled(mail, conclude(mail, Failed("boom", True)))
    assert "1 more failure of send within 5.0 s not logged one by one" in lines(caplog)[-2].getMessage()


@pytest.mark.spec("FAILLOG-02")
async def test_a_worker_says_what_it_left_out_before_it_ends(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task(attempts=1)
    async def fails(n: int) -> None:
        raise ValueError(n)

    for n in range(3 * MOST):
        await fails.enqueue(n)
    worker = Worker(jobs, drain=True)
    worker.failures = FailureLog(clock=lambda: 0.0)
    await worker.start()
    await asyncio.wait_for(worker.join(), PATIENCE)
    assert worker.counts[Status.DEAD] == 3 * MOST
    assert len(lines(caplog)) == MOST + 1
    assert f"{2 * MOST} more failures of fails" in caplog.text


# --- whose line it is -------------------------------------------------------------------------------------------

FORGED = "2030-01-01T00:00:00.000Z ERROR stoker.worker: everything is lost"


@pytest.mark.spec("FAILLOG-03")
async def test_what_a_job_raises_cannot_forge_a_line(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task(attempts=1)
    async def forges() -> None:
        raise ValueError(f"a\x1b[31mb\r{FORGED}\n{FORGED}\u2028{FORGED}")

    job = await forges.enqueue()
    await drain(jobs)
    [one] = lines(caplog, job.id)
    for formatter in (logging.Formatter("%(message)s"), Plain()):
        text = formatter.format(one)
        assert "\x1b" not in text and "\r" not in text
        assert not any(line.startswith(FORGED) for line in text.splitlines())
        assert FORGED in text
    told = json.loads(JsonFormatter().format(one))
    assert (told["job"], told["attempt"], told["level"]) == (job.id, 1, "ERROR")
    assert "Traceback" in told["error"]


@pytest.mark.spec("FAILLOG-04")
async def test_ordinary_loggers_say_which_job_speaks(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("shop")

    @jobs.task
    async def on_loop() -> None:
        await asyncio.sleep(0)
        logger.warning("hello")

    @jobs.task
    def in_thread() -> None:
        logger.warning("hello", extra={"queue": "of people"})

    told = {
        (await on_loop.enqueue()).id: ("on_loop", "default"),
        (await in_thread.enqueue()).id: ("in_thread", "of people"),
    }
    await drain(jobs)
    logger.warning("outside")
    *inside, outside = [one for one in caplog.records if one.name == "shop"]
    assert {one.job: (one.kind, one.queue) for one in inside} == told  # type: ignore[attr-defined]
    assert {one.attempt for one in inside} == {1}  # type: ignore[attr-defined]
    assert not hasattr(outside, "job")
    assert re.search(r"shop: hello \[job=\S+ kind=\w+ queue=[\w ]+ attempt=1\]$", Plain().format(inside[0]))


@pytest.mark.parallel_deployment
@pytest.mark.spec("FAILLOG-05")
def test_the_log_level_is_stokers_own(deployment: Deployment) -> None:
    [job] = deployment.enqueue("mutter", {})
    with deployment.command("-m", "stoker", "work", APP, "--drain", "--log-level", "error") as command:
        assert command.wait() == 0
        quiet = command.log
    deployment.enqueue("mutter", {})
    with deployment.command("-m", "stoker", "work", APP, "--drain", "--log-level", "debug") as command:
        assert command.wait() == 0
        loud = command.log
    assert "INFO shop: an ordinary line" in quiet and f"job={job}" in quiet
    assert "INFO stoker" not in quiet
    assert "DEBUG stoker.supervisor" in loud
    assert re.search(r"DEBUG stoker.worker: job \S+ \(mutter, queue \w+\) started, attempt 1 of \d+", loud)
    assert re.search(r"DEBUG stoker.worker: job \S+ \(mutter, queue \w+\) completed after .+, attempt 1", loud)
    assert "DEBUG shop" not in loud and "DEBUG asyncio" not in loud


@pytest.mark.parallel_deployment
@pytest.mark.spec("FAILLOG-08")
def test_a_level_of_another_logger_is_its_own(deployment: Deployment) -> None:
    deployment.enqueue("mutter", {})
    with deployment.command("-m", "stoker", "work", APP, "--drain", "--log-level", "shop=warning") as command:
        assert command.wait() == 0
        assert "INFO stoker.worker" in command.log
        assert "INFO shop" not in command.log
    deployment.enqueue("mutter", {})
    both = ("--log-level", "shop=debug", "--log-level", "error")
    with deployment.command("-m", "stoker", "work", APP, "--drain", *both) as command:
        assert command.wait() == 0
        assert "INFO stoker" not in command.log
        assert "DEBUG shop: a line for the shop's own developers" in command.log


@pytest.mark.spec("FAILLOG-08")
@pytest.mark.parametrize("wrong", ["loud", "httpx=", "=info", "httpx=loud", "a,b=info"])
def test_a_level_that_is_none_is_refused(wrong: str) -> None:
    done = CliRunner().invoke(stoker, ["work", "app:jobs", "--log-level", wrong], prog_name="stoker")
    assert done.exit_code == 2
    assert "as in httpx=warning" in " ".join(done.output.replace("│", " ").split())


@pytest.mark.spec("FAILLOG-09")
async def test_starts_and_ends_are_debug_lines_and_counts_come_once_a_minute(
    jobs: Stoker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @jobs.task(attempts=1)
    async def add(n: int) -> int:
        if n == 2:
            raise ValueError(n)
        return n

    def said(level: int) -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "stoker.worker" and one.levelno == level]

    monkeypatch.setattr(maintenance, "TELL_COUNTS", 1)
    caplog.set_level(logging.DEBUG, "stoker.worker")
    made = [await add.enqueue(n) for n in range(3)]
    async with Worker(jobs):
        await until(lambda: any(line.startswith("runs that ended") for line in said(logging.INFO)))
        await until(lambda: len([line for line in said(logging.DEBUG) if " after " in line]) == 3)
    for n, job in enumerate(made):
        about = f"job {job.id} (add, queue default)"
        first, last = [line for line in said(logging.DEBUG) if line.startswith(about)]
        assert first == f"{about} started, attempt 1 of 1"
        assert re.fullmatch(rf"{re.escape(about)} {'failed' if n == 2 else 'completed'} after .+, attempt 1", last)
    counted = [line for line in said(logging.INFO) if line.startswith("runs that ended")]
    text = "; ".join(counted)
    assert sum(int(n) for n in re.findall(r"(\d+) done", text)) == 2
    assert sum(int(n) for n in re.findall(r"(\d+) dead", text)) == 1
    assert all(re.search(r"; \d+ jobs? running now$", line) for line in counted)
    assert not [line for line in said(logging.INFO) if str(made[0].id) in line]

"""What log records say about jobs."""

from __future__ import annotations

import json
import logging
import socket
from io import StringIO

import pytest

from stoker.app import Stoker
from stoker.cli.logs import Plain
from stoker.context import current
from stoker.model.chunk import Chunk
from stoker.model.job import Status
from stoker.model.redact import Redaction
from stoker.observe import logs
from stoker.observe.logs import JobLogFilter, JsonFormatter, RedactingFilter
from stoker.worker import Worker
from tests.harness.apps import becomes, drain
from tests.worker.apps import risky


@pytest.fixture(autouse=True)
def _named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(JobLogFilter())


@pytest.mark.spec("LOG-01", "LOG-02")
async def test_json_lines_have_stable_keys(
    jobs: Stoker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "release", lambda: "r42")

    @jobs.task(queue="mail")
    def send(to: str, request_id: str) -> None:
        logging.getLogger("shop").info("sending to %s", to)

    job = await send.using(tenant="acme").enqueue("ada", request_id="r-1")
    await drain(jobs)
    [record] = [one for one in caplog.records if one.name == "shop"]
    line = json.loads(JsonFormatter().format(record))
    keys = ("time", "level", "logger", "pid", "host", "message", "job", "kind", "queue", "attempt", "tenant")
    assert tuple(line) == (*keys, "correlation", "worker", "release")
    assert line["release"] == "r42"
    monkeypatch.setattr(logs, "release", lambda: "")
    assert "release" not in json.loads(JsonFormatter().format(record))
    assert (line["host"], line["worker"]) == (socket.gethostname(), (await job.refresh()).worker or line["worker"])
    assert (line["job"], line["tenant"], line["correlation"]) == (job.id, "acme", "r-1")
    assert line["message"] == "sending to ada"


@pytest.mark.spec("LOG-02")
async def test_correlation_is_the_callers_metadata_before_arguments(jobs: Stoker) -> None:
    seen: list[object] = []

    @jobs.task
    async def send(request_id: int) -> None:
        seen.append(current().about.get("correlation"))

    await send.enqueue(request_id=7)
    await send.using(metadata={"correlation_id": "c"}).enqueue(request_id=7)
    await drain(jobs)
    assert sorted(map(str, seen)) == ["7", "c"]


@pytest.mark.spec("LOG-01")
def test_an_error_is_one_key() -> None:
    try:
        raise ValueError("no luck")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("shop", logging.ERROR, __file__, 1, "failed", (), info)
    line = json.loads(JsonFormatter().format(record))
    assert line["error"].startswith("ValueError: no luck\nTraceback (most recent call last):\n")
    assert line["error_type"] == "ValueError"
    assert "\n" not in JsonFormatter().format(record)


@pytest.mark.spec("LOG-04")
async def test_the_line_of_a_failed_run_has_the_error_first_its_type_and_no_secret(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(attempts=1)
    async def charge() -> None:
        raise ConnectionError("cannot reach postgres://ada:s3cret@db with api_key=s3cret")

    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = await charge.using(tenant="acme", metadata={"traceparent": parent}).enqueue()
    await drain(jobs)
    [record] = [one for one in caplog.records if getattr(one, "job", None) == job.id and one.levelno >= logging.ERROR]
    line = json.loads(JsonFormatter().format(record))
    assert (line["error_type"], line["tenant"], bool(line["worker"])) == ("ConnectionError", "acme", True)
    assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c", "its caller's, as nothing traces here"
    first, second, *_ = line["error"].splitlines()
    assert first == "ConnectionError: cannot reach postgres://ada:[hidden]@db with api_key=[hidden]"
    assert second == "Traceback (most recent call last):"
    plain = Plain().format(record)
    assert "s3cret" not in plain + json.dumps(line)
    assert "trace_id=0af7651916cd43dd8448eb211c80319c" in plain
    assert "s3cret" in record.getMessage(), "the record itself is left to other handlers"


@pytest.mark.spec("LOG-04", "REDACT-07")
def test_what_the_filter_masked_begins_with_the_line_of_the_exception_too() -> None:
    try:
        raise ValueError("token=s3cret")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("shop", logging.ERROR, __file__, 1, "failed", (), info)
    RedactingFilter().filter(record)
    line = json.loads(JsonFormatter().format(record))
    assert line["error"].startswith("ValueError: token=[hidden]\nTraceback")
    assert line["error_type"] == "ValueError"


@pytest.mark.spec("LOG-03")
async def test_a_jobs_own_lines_are_on_its_record_and_in_the_log(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    def send() -> None:
        current().log("began", "two\nlines")

    job = await send.enqueue()
    await drain(jobs)
    assert (await job.refresh()).log == ("began", "two\nlines")
    said = [one for one in caplog.records if one.name == "stoker.job"]
    assert [one.getMessage() for one in said] == ["began", "two\n    lines"]
    assert {getattr(one, "job", None) for one in said} == {job.id}


@pytest.mark.spec("LOG-03")
async def test_a_chunk_logs_its_lines_once(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task(chunk=Chunk(10, within=0.05))
    async def index(items: list[int]) -> None:
        current().log("together")

    found = [await index.enqueue(n) for n in range(2)]
    await drain(jobs)
    assert [(await job.refresh()).log for job in found] == [("together",)] * 2
    [said] = [one for one in caplog.records if one.name == "stoker.job"]
    assert getattr(said, "jobs", None) == 2


@pytest.mark.spec("LOG-03")
async def test_lines_of_a_handlers_own_process_are_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    async with risky.jobs, Worker(risky.jobs, {"default": 1}, poll=0.02):
        job = await risky.chatty.enqueue()
        record = await becomes(job, Status.DONE)
    said = [one for one in caplog.records if one.name == "stoker.job" and one.levelno == logging.INFO]
    assert [one.getMessage() for one in said] == list(record.log)
    assert record.log
    assert {getattr(one, "job", None) for one in said} == {job.id}


@pytest.mark.spec("LOG-04")
async def test_an_exception_that_a_handlers_own_process_logs_has_its_line_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with risky.jobs, Worker(risky.jobs, {"default": 1}, poll=0.02):
        await becomes(await risky.complains.enqueue(), Status.DONE)
    [record] = [one for one in caplog.records if one.name == "stoker.job" and one.levelno == logging.ERROR]
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["error_type"]) == ("it goes on without it", "LookupError")
    assert line["error"].startswith("LookupError: api_key=[hidden] is gone\nTraceback")
    assert "LookupError: api_key=[hidden] is gone" in Plain().format(record)


@pytest.mark.spec("REDACT-07")
@pytest.mark.parametrize("formatter", [logging.Formatter("%(message)s"), JsonFormatter()])
def test_secrets_are_masked_in_log_lines_and_tracebacks(formatter: logging.Formatter) -> None:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(RedactingFilter(Redaction(also=frozenset({"salary"}))))
    logger = logging.getLogger("stoker.tests.masked")
    logger.addHandler(handler)
    logger.warning("login with password=%s and %r", "s3cret", {"api_key": "s3cret"})
    logger.warning("salary=s3cret of %s at redis://ada:s3cret@host", "ada", stack_info=True)
    try:
        raise ValueError("cannot reach postgres://ada:s3cret@db: token=s3cret")
    except ValueError:
        logger.exception("no luck")
    logger.info("%d done", 5)
    logger.removeHandler(handler)
    written = stream.getvalue()
    assert "s3cret" not in written
    assert "redis://ada:[hidden]@host" in written and "ValueError: cannot reach postgres://ada:[hidden]@db" in written
    assert "no luck" in written and "5 done" in written

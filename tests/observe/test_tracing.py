"""Spans of enqueues and runs, as an exporter gets them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from stoker.app import Stoker
from stoker.context import JobLogFilter, current
from stoker.errors import StepFailed
from stoker.model.chunk import Chunk
from stoker.model.job import LARGEST_METADATA, Status, chain
from stoker.model.outcome import Snooze
from stoker.model.retry import Fixed
from stoker.observe.tracing import trace
from tests.harness.apps import PATIENCE, becomes, drain, until, working

ROOT = Path(__file__).resolve().parents[2]


class Spans:
    """What the exporter got."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def the(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


@pytest.fixture
def traced(jobs: Stoker, spans: Spans) -> Stoker:
    trace(jobs, tracer_provider=spans.provider)
    trace(jobs, tracer_provider=spans.provider)
    return jobs


def id_of(span: ReadableSpan | None) -> tuple[int, int]:
    assert span is not None
    found = span.context
    assert found is not None
    return found.trace_id, found.span_id


def linked(span: ReadableSpan) -> dict[object, tuple[int, int]]:
    """What a span links to, by the role of the link."""
    return {
        (link.attributes or {})["stoker.link"]: (link.context.trace_id, link.context.span_id) for link in span.links
    }


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


@pytest.mark.spec("DURABLE-17")
@pytest.mark.parametrize("plain", [True, False])
async def test_a_suspension_is_no_error(traced: Stoker, spans: Spans, plain: bool) -> None:
    if plain:

        @traced.task
        def flow() -> None:
            current().wait_sync("go")

    else:

        @traced.task
        async def flow() -> None:
            await current().wait("go")

    job = await flow.enqueue()
    await drain(traced)
    assert await job.signal("go")
    await drain(traced)
    first, last = spans.named("process flow")
    assert [span.status.status_code for span in (first, last)] == [StatusCode.UNSET, StatusCode.UNSET]
    assert (first.attributes or {})["stoker.outcome"] == "suspended"


@pytest.mark.spec("TRACE-12")
@pytest.mark.parametrize("plain", [True, False])
async def test_a_step_that_runs_is_a_span_inside_its_run(traced: Stoker, spans: Spans, plain: bool) -> None:
    def declined() -> None:
        raise ValueError("declined")

    def later() -> None:
        raise Snooze(0)

    def asks() -> list[tuple[str, Any, str | None]]:
        return [("quote", int, None), ("quote", int, "a"), ("charge", declined, None)]

    if plain:

        @traced.task(name="flow")
        def in_thread() -> None:
            run = current()
            for name, fn, key in asks():
                with suppress(StepFailed):
                    run.step_sync(name, fn, key=key)
            if run.claim.fresh:
                run.step_sync("later", later)

    else:

        @traced.task(name="flow")
        async def asynchronous() -> None:
            run = current()
            for name, fn, key in asks():
                with suppress(StepFailed):
                    await run.step(name, fn, key=key)
            if run.claim.fresh:
                await run.step("later", later)

    await traced.tasks["flow"].enqueue()
    await drain(traced)
    first, _ = spans.named("process flow")
    for name, rows, outcomes in (
        ("quote", ["quote", "quote:a"], ["done", "done"]),
        ("charge", ["charge"], ["failed"]),
        ("later", ["later"], ["snoozed"]),
    ):
        found = spans.named(f"step {name}")
        assert [(one.attributes or {})["stoker.step"] for one in found] == rows, "a stored step has none"
        assert [(one.attributes or {})["stoker.outcome"] for one in found] == outcomes
        assert {parent_of(one) for one in found} == {id_of(first)}
    assert spans.the("step charge").status.status_code is StatusCode.ERROR
    assert spans.the("step later").status.status_code is StatusCode.UNSET


@pytest.mark.spec("TRACE-01", "TRACE-02")
async def test_a_run_links_to_the_enqueue(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="mail")
    async def send(to: str) -> None:
        with spans.tracer.start_as_current_span("smtp"):
            await asyncio.sleep(0)

    with spans.tracer.start_as_current_span("request"):
        handle = await send.enqueue("ada")
    await drain(traced)
    sent, run = spans.the("send mail"), spans.the("process send")
    assert parent_of(sent) == id_of(spans.the("request"))
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert run.parent is None
    assert linked(run) == {"producer": id_of(sent)}
    assert parent_of(spans.the("smtp")) == id_of(run)
    common = {"messaging.system": "stoker", "messaging.destination.name": "mail", "messaging.message.id": handle.id}
    kind = {"stoker.job.kind": "send"}
    operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert dict(sent.attributes or {}) == {**common, **kind, **operation, "stoker.outcome": "inserted"}
    operation = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
    outcome = {"stoker.job.attempt": 1, "stoker.outcome": "done"}
    assert dict(run.attributes or {}) == {**common, **kind, **operation, **outcome}
    assert run.status.status_code is StatusCode.UNSET


@pytest.mark.spec("TRACE-03", "TRACE-04")
async def test_a_retry_links_to_the_first_run_and_errors_are_recorded(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="mail", attempts=3, backoff=Fixed(0))
    def send() -> None:
        if current().attempt < 3:
            raise ValueError("no luck")

    handle = await send.enqueue()
    async with working(traced):
        await becomes(handle, Status.DONE)
    first, second, third = spans.named("process send")
    assert "first run" not in linked(first)
    assert linked(second)["first run"] == linked(third)["first run"] == id_of(first)
    assert linked(third)["producer"] == id_of(spans.the("send mail"))
    assert [run.status.status_code for run in (first, second, third)] == [
        *(StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET),
    ]
    [event] = first.events
    assert event.name == "exception"
    assert (event.attributes or {})["exception.type"] == "ValueError"
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert "no luck" in (first.status.description or "")


@pytest.mark.spec("TRACE-04")
async def test_a_snooze_is_no_error(traced: Stoker, spans: Spans) -> None:
    @traced.task
    async def wait() -> None:
        raise Snooze(60)

    await wait.enqueue()
    await drain(traced)
    run = spans.the("process wait")
    assert run.status.status_code is StatusCode.UNSET
    assert not run.events
    assert (run.attributes or {})["stoker.outcome"] == "snoozed"


@pytest.mark.spec("TRACE-05")
async def test_follow_ups_and_chains_go_on_from_the_run(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="first")
    async def begin() -> None:
        current().follow_up(aside.draft())

    @traced.task(queue="second")
    async def go_on() -> None: ...

    @traced.task(queue="aside")
    async def aside() -> None: ...

    await traced.enqueue(chain(begin.draft(), go_on.draft()))
    await drain(traced)
    run = spans.the("process begin")
    for queue, kind in (("second", "go_on"), ("aside", "aside")):
        sent = spans.the(f"send {queue}")
        assert parent_of(sent) == id_of(run)
        assert linked(spans.the(f"process {kind}")) == {"producer": id_of(sent)}


@pytest.mark.spec("TRACE-05")
async def test_the_callback_of_a_group_links_to_its_maker(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="members")
    async def part() -> None: ...

    @traced.task(queue="ends")
    async def whole() -> None: ...

    await traced.group([part.draft(), part.draft()], then=whole.draft())
    await drain(traced)
    sent = spans.the("send members")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 2
    assert {id_of(sent)} == {linked(run)["producer"] for run in spans.named("process part")}
    assert linked(spans.the("process whole"))["producer"] == id_of(sent)


@pytest.mark.spec("TRACE-06")
async def test_a_chunk_is_one_span_that_links_to_every_producer(traced: Stoker, spans: Spans) -> None:
    @traced.task(chunk=Chunk(10, within=0.05))
    async def index(items: list[int]) -> None: ...

    await index.enqueue(1)
    await index.enqueue(2)
    await drain(traced)
    run = spans.the("process index")
    assert (run.attributes or {})["messaging.batch.message_count"] == 2
    assert {(link.context.trace_id, link.context.span_id) for link in run.links} == {
        id_of(sent) for sent in spans.named("send index")
    }


@pytest.mark.spec("TRACE-01")
async def test_an_enqueue_in_a_transaction_is_traced(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="mail")
    async def send() -> None: ...

    engine = await traced.engine()
    async with engine.transaction() as tx:
        await send.using(tx=tx).enqueue()
    await drain(traced)
    assert linked(spans.the("process send")) == {"producer": id_of(spans.the("send mail"))}


@pytest.mark.spec("TRACE-01")
async def test_a_caller_without_a_loop_is_the_parent(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="mail")
    async def send() -> None: ...

    def view() -> None:
        with spans.tracer.start_as_current_span("view"):
            send.enqueue_sync()

    await asyncio.to_thread(view)
    assert parent_of(spans.the("send mail")) == id_of(spans.the("view"))


@pytest.mark.spec("TRACE-01")
async def test_a_taken_key_names_the_job_that_holds_it(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="mail")
    async def send() -> None: ...

    keyed = send.using(unique="one")
    first = await keyed.enqueue()
    await keyed.enqueue()
    _, again = spans.named("send mail")
    assert (again.attributes or {})["messaging.message.id"] == first.id
    assert (again.attributes or {})["stoker.outcome"] == "existing"


@pytest.mark.spec("TRACE-01", "TRACE-04")
async def test_a_refused_enqueue_is_an_error(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="mail")
    async def send() -> None: ...

    engine = await traced.engine()
    await engine.close()
    with pytest.raises(Exception, match="open"):
        await send.enqueue()
    assert spans.the("send mail").status.status_code is StatusCode.ERROR
    assert (spans.the("send mail").attributes or {})["stoker.outcome"] == "failed"
    await engine.open()


@pytest.mark.spec("TRACE-09")
async def test_a_run_goes_on_with_the_callers_trace_on_request(jobs: Stoker, spans: Spans) -> None:
    trace(jobs, continued=True, tracer_provider=spans.provider)

    @jobs.task(queue="mail", attempts=2, backoff=Fixed(0))
    async def send() -> None:
        if current().attempt == 1:
            raise ValueError("no luck")

    with spans.tracer.start_as_current_span("request"):
        handle = await send.enqueue()
    async with working(jobs):
        await becomes(handle, Status.DONE)
    sent, (first, second) = spans.the("send mail"), spans.named("process send")
    assert parent_of(first) == parent_of(second) == id_of(sent)
    assert linked(second)["first run"] == id_of(first)
    assert {id_of(span)[0] for span in (sent, first, second)} == {id_of(spans.the("request"))[0]}


@pytest.mark.spec("TRACE-10")
async def test_every_span_says_what_became_of_it(traced: Stoker, spans: Spans) -> None:
    started: dict[str, asyncio.Event] = {"slow": asyncio.Event(), "unwanted": asyncio.Event()}

    async def hang(name: str) -> None:
        started[name].set()
        await asyncio.sleep(PATIENCE)

    @traced.task(attempts=1, timeout=0.05)
    async def slow() -> None:
        await hang("slow")

    @traced.task
    async def unwanted() -> None:
        await hang("unwanted")

    @traced.task(attempts=1)
    async def broken() -> None:
        raise LookupError

    @traced.task
    async def fine() -> None:
        current().follow_up(last.draft())

    @traced.task(queue="last")
    async def last() -> None: ...

    doomed = await unwanted.enqueue()
    handles = [await task.enqueue() for task in (slow, broken, fine)]
    async with working(traced):
        await started["unwanted"].wait()
        await doomed.cancel()
        await becomes(doomed, Status.CANCELED)
        for handle, status in zip(handles, (Status.DEAD, Status.DEAD, Status.DONE), strict=True):
            await becomes(handle, status)
        await until(lambda: bool(spans.named("process last")))
    said = {span.name: (span.attributes or {}).get("stoker.outcome") for span in spans.all()}
    assert said == {
        "send default": "inserted",
        "send last": "with_run",
        "process slow": "timedout",
        "process unwanted": "canceled",
        "process broken": "failed",
        "process fine": "done",
        "process last": "done",
    }
    assert spans.the("process unwanted").status.status_code is StatusCode.UNSET, "a cancel is no error"


@pytest.mark.spec("TRACE-11", "LOG-04")
async def test_log_lines_carry_the_trace_of_their_run(
    traced: Stoker, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(JobLogFilter())

    @traced.task(attempts=2, backoff=Fixed(0))
    def send() -> None:
        logging.getLogger("shop").info("at work")
        raise ValueError("no luck")

    handle = await send.enqueue()
    async with working(traced):
        await becomes(handle, Status.DEAD)
    runs = [format(id_of(run)[0], "032x") for run in spans.named("process send")]
    for name in ("shop", "stoker.worker"):
        lines = [one for one in caplog.records if one.name == name and getattr(one, "job", None) == handle.id]
        assert [getattr(one, "trace_id", None) for one in lines] == runs, name


@pytest.mark.spec("TRACE-07")
async def test_baggage_travels_only_when_asked_for(jobs: Stoker, spans: Spans) -> None:
    seen: list[object] = []
    other = Stoker((await jobs.engine()).for_loop())
    trace(jobs, baggage=True, tracer_provider=spans.provider)
    trace(other, tracer_provider=spans.provider)

    @jobs.task
    async def look() -> None:
        seen.append(baggage.get_baggage("customer"))

    other.declare("look")
    token = context.attach(baggage.set_baggage("customer", "acme"))
    try:
        await look.enqueue()
        await other.enqueue(other.draft("look"))
    finally:
        context.detach(token)
    await drain(jobs)
    await other.close()
    assert seen == ["acme", None]


@pytest.mark.spec("TRACE-07")
async def test_metadata_without_room_is_left_alone(traced: Stoker, spans: Spans) -> None:
    @traced.task(queue="mail")
    async def send() -> None: ...

    full = {"note": "x" * (LARGEST_METADATA - 4)}
    own = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    for metadata in (full, own):
        job = await (await send.using(metadata=metadata).enqueue()).refresh()
        assert job.metadata == metadata
    await drain(traced)
    assert len(spans.named("process send")) == 2


@pytest.mark.spec("TRACE-08")
async def test_without_a_recorder_nothing_is_stored(jobs: Stoker) -> None:
    @jobs.task
    async def send() -> None: ...

    trace(jobs)
    job = await (await send.enqueue()).refresh()
    assert job.metadata == {}
    await drain(jobs)


@pytest.mark.spec("TRACE-08")
def test_tracing_is_imported_only_when_it_is_used() -> None:
    code = "import sys, stoker, stoker.worker; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


SCRIPT = """
import asyncio
from stoker.worker import Worker
from tests.observe.apps.traced import apart, jobs

async def main():
    async with jobs:
        await apart.enqueue(True)
        await apart.enqueue(False)
        worker = Worker(jobs, drain=True)
        await worker.start()
        await worker.join()

asyncio.run(main())
"""


@pytest.mark.spec("TRACE-02", "TRACE-04", "TRACE-05")
def test_the_process_of_a_handler_goes_on_with_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    environ = {**os.environ, "TRACED_TO": str(file), "TRACED_STORE": f"sqlite:///{tmp_path / 'jobs.db'}"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environ, cwd=ROOT, check=True, timeout=240)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    runs = {span["context"]["span_id"]: span for span in found if span["name"] == "process apart"}
    [inside] = [span for span in found if span["name"] == "inside"]
    assert inside["pid"] not in {run["pid"] for run in runs.values()}
    good = runs[inside["parent_id"]]
    [bad] = [run for run in runs.values() if run is not good]
    sends = [span for span in found if span["name"] == "send default" and span["parent_id"]]
    assert {span["parent_id"] for span in sends} == {inside["context"]["span_id"], good["context"]["span_id"]}
    producers = {
        link["context"]["span_id"] for span in found if span["name"] == "process behind" for link in span["links"]
    }
    assert producers == {span["context"]["span_id"] for span in sends}
    [event] = bad["events"]
    assert event["attributes"]["exception.type"] == "ValueError"
    assert event["attributes"]["exception.message"] == "no luck"
    assert "in apart" in event["attributes"]["exception.stacktrace"]
    assert bad["status"]["status_code"] == "ERROR"

"""An app whose handlers run in processes of their own; every process writes its spans to the file `TRACED_TO`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from stoker.app import Stoker
from stoker.context import current
from stoker.observe.tracing import trace


class ToFile(SpanExporter):
    """Appends a line per span."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["TRACED_TO"]).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"pid": os.getpid(), **json.loads(span.to_json())}) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
jobs = Stoker(os.environ.get("TRACED_STORE", "memory://"))
trace(jobs, tracer_provider=provider)


@jobs.task(isolation="process", attempts=1)
def apart(ok: bool) -> None:
    if not ok:
        raise ValueError("no luck")
    with provider.get_tracer("user").start_as_current_span("inside"):
        behind.enqueue_sync()
    current().follow_up(behind.draft())


@jobs.task
async def behind() -> None:
    """Does nothing."""

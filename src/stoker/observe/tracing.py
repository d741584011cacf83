"""Traces with OpenTelemetry: a span for each enqueue and each run, joined across the store.

`trace(jobs)` switches it on. A producer span `send {queue}` surrounds the write; its `traceparent` travels in the job's
metadata, and the consumer span `process {kind}` of each run links to it. A later attempt links to the first run too.
The function of a step has a span `step {name}` inside that of its run.
Only the api is used (the extra `otel`): without an SDK in the process nothing is recorded and nothing is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace
from opentelemetry import context as otel
from opentelemetry import trace as api
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context as Surroundings
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from stoker.app import Stoker
from stoker.codec.error_text import describe_error
from stoker.context import Context
from stoker.executors.outcomes import Cause, DecidedInChild, outcome_of_error
from stoker.hooks import Next, Sending
from stoker.model import ids
from stoker.model import outcome as ends
from stoker.model.errors import InvalidInput
from stoker.model.groups import Group
from stoker.model.job import Draft, Stored
from stoker.model.origin import TRACE
from stoker.model.outcome import gravest
from stoker.run_metadata import NOTED

FIRST_RUN = f"{NOTED}{TRACE}"
"""Metadata key: the span of the job's first run, which the spans of later attempts link to."""

OUTCOME = "stoker.outcome"
"""Attribute of every span: what became of the write, or of the run."""

_BASE = re.compile("[#:]")
"""Where the number or key of a step's row begins."""

_W3C = TraceContextTextMapPropagator()
_BAGGAGE = W3CBaggagePropagator()
_NO_FAULT = (ends.Snoozed, ends.Throttled, ends.HandedBack, ends.Canceled)
"""Outcomes that are no failure of the run."""


def trace(
    app: Stoker, *, continued: bool = False, baggage: bool = False, tracer_provider: TracerProvider | None = None
) -> None:
    """Make spans for what this app enqueues and runs, from now on. Twice is harmless.

    Call it where the app is made, so that worker and handler processes do it too. `continued`: runs go on with the
    caller's trace, as children of the span that stored the job, instead of beginning one that links to it. `baggage`
    lets the caller's baggage travel with each job; it is stored in clear text.
    """
    if app.tracing is None:
        tracing = Tracing(continued=continued, baggage=baggage, tracer_provider=tracer_provider)
        app.tracing = tracing
        app.middleware.insert(0, tracing.process)


class Tracing:
    """The spans of one app."""

    def __init__(
        self, *, continued: bool = False, baggage: bool = False, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._tracer = api.get_tracer("stoker", tracer_provider=tracer_provider)
        self._continued = continued
        self._baggage = baggage

    # --- producers ----------------------------------------------------------------------------------------------

    @contextmanager
    def sending(self, drafts: Sequence[Draft], group: Group | None) -> Iterator[Sending]:
        """Surround a write of drafts with a span for each queue; the drafts carry it."""
        spans = self._sends(drafts)
        try:
            sending = Sending(self._stamped(drafts, spans), self._stamped_group(group, spans))
            yield sending
            stored: dict[str, set[str]] = {}
            for draft, receipt in zip(drafts, sending.receipts, strict=False):
                stored.setdefault(draft.queue, set()).add(receipt.stored.value)
                if len(drafts) == 1 and receipt.stored is not Stored.INSERTED:
                    spans[draft.queue].set_attribute("messaging.message.id", ids.text(receipt.id))
            for queue, found in stored.items():
                spans[queue].set_attribute(OUTCOME, found.pop() if len(found) == 1 else "mixed")
        except BaseException as error:
            for span in spans.values():
                span.set_attribute(OUTCOME, "failed")
                _failed(span, error)
            raise
        finally:
            for span in spans.values():
                span.end()

    def following(self, context: Context, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
        """Stamp the follow-ups of a run: each `send` is a child of the run's span. They are stored with its end."""
        spans = self._sends(drafts, context.trace)
        for span in spans.values():
            span.set_attribute(OUTCOME, "with_run")
            span.end()
        return tuple(self._stamped(drafts, spans))

    def _sends(self, drafts: Sequence[Draft], parent: Surroundings | None = None) -> dict[str, Span]:
        by_queue: dict[str, list[Draft]] = {}
        for draft in drafts:
            by_queue.setdefault(draft.queue, []).append(draft)
        return {queue: self._send(queue, sent, parent) for queue, sent in by_queue.items()}

    def _send(self, queue: str, drafts: Sequence[Draft], parent: Surroundings | None) -> Span:
        about = _about("send", queue)
        kinds = {draft.kind for draft in drafts}
        if len(kinds) == 1:
            about["stoker.job.kind"] = drafts[0].kind
        if len(drafts) == 1:
            about["messaging.message.id"] = ids.text(drafts[0].job_id)
        else:
            about["messaging.batch.message_count"] = len(drafts)
        return self._tracer.start_span(f"send {queue}", context=parent, kind=SpanKind.PRODUCER, attributes=about)

    def _stamped(self, drafts: Sequence[Draft], spans: Mapping[str, Span]) -> list[Draft]:
        marks = {queue: self._mark(span) for queue, span in spans.items()}
        return [_with(draft, marks[draft.queue]) for draft in drafts]

    def _stamped_group(self, group: Group | None, spans: Mapping[str, Span]) -> Group | None:
        """The callbacks of a group carry the span that stored its members, else the caller's own."""
        if group is None:
            return None
        mark = self._mark(next(iter(spans.values()), api.get_current_span()))

        def stamped(draft: Draft | None) -> Draft | None:
            return None if draft is None else _with(draft, mark)

        callbacks = {name: stamped(getattr(group, name)) for name in ("then", "on_failure", "on_finish")}
        return replace(group, **callbacks)

    def _mark(self, span: Span) -> dict[str, str]:
        """What travels with a job. A span that nothing records leaves none."""
        mark: dict[str, str] = {}
        surroundings = api.set_span_in_context(span)
        _W3C.inject(mark, surroundings)
        if self._baggage:
            _BAGGAGE.inject(mark, surroundings)
        return mark

    # --- consumers ----------------------------------------------------------------------------------------------

    async def process(self, call: Next[Context, object], context: Context) -> object:
        """Surround a run with its span. Middleware: the outermost."""
        items = context.items
        first = items[0].claim
        about = _about("process", first.queue)
        about["stoker.job.kind"] = first.kind
        if len(items) == 1:
            about["messaging.message.id"] = ids.text(first.id)
            about["stoker.job.attempt"] = first.attempt
            if first.tenant is not None:
                about["stoker.job.tenant"] = first.tenant
        else:
            about["messaging.batch.message_count"] = len(items)
        links = [link for item in items for link in _links(item)]
        parent = self._received(first.options.metadata) if len(items) == 1 else Surroundings()
        name = f"process {first.kind}"
        span = self._tracer.start_span(name, context=parent, kind=SpanKind.CONSUMER, attributes=about, links=links)
        context.trace = api.set_span_in_context(span, parent)
        otel.attach(context.trace)  # never detached: the run has contextvars of its own
        try:
            value = await call(context)
        except BaseException as error:
            _judge(span, error, context)
            self._remember(span, items)
            raise
        else:
            span.set_attribute(OUTCOME, "done")
            return value
        finally:
            span.end()

    @contextmanager
    def step(self, context: Context, row: str) -> Iterator[None]:
        """Surround the function of a step with a span inside that of its run; a stored step has none.

        The span has the name that the handler gave, without a number or key.
        """
        with self._tracer.start_as_current_span(
            f"step {_BASE.split(row, 1)[0]}",
            attributes={"stoker.step": row},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _judge(span, error, context)
                raise
            span.set_attribute(OUTCOME, "done")

    def _received(self, metadata: Mapping[str, str] | None) -> Surroundings:
        """The caller's trace if it is to go on, else a new one; with the baggage that came along."""
        carrier = metadata or {}
        surroundings = _W3C.extract(carrier, Surroundings()) if self._continued else Surroundings()
        return _BAGGAGE.extract(carrier, surroundings) if self._baggage else surroundings

    def _remember(self, span: Span, items: Sequence[Context]) -> None:
        """Note the first run's span on the job, for the link of the next attempt."""
        mark: dict[str, str] = {}
        _W3C.inject(mark, api.set_span_in_context(span))
        for item in items:
            if mark and FIRST_RUN not in (item.claim.metadata or {}):
                item.metadata["traceparent"] = mark["traceparent"]

    # --- processes of handlers ----------------------------------------------------------------------------------

    def carrier(self) -> dict[str, str]:
        """What the process of a handler needs, so that its spans are children of the run's span."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        if self._baggage:
            _BAGGAGE.inject(carrier)
        return carrier

    def enter(self, carrier: Mapping[str, str]) -> Surroundings:
        """Go on with the run's trace, in the process of its handler."""
        surroundings = _W3C.extract(carrier, Surroundings())
        surroundings = _BAGGAGE.extract(carrier, surroundings) if self._baggage else surroundings
        otel.attach(surroundings)
        return surroundings

    def trace_id(self, surroundings: Surroundings) -> str | None:
        """The id of the trace that a run is in; None without an SDK."""
        found = api.get_current_span(surroundings).get_span_context()
        return api.format_trace_id(found.trace_id) if found.is_valid else None


def _about(operation: str, queue: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "stoker",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _with(draft: Draft, mark: Mapping[str, str]) -> Draft:
    """The draft with a mark in its metadata. One that has a mark already, or no room for it, stays as it is."""
    metadata = draft.options.metadata or {}
    if not mark or "traceparent" in metadata:
        return draft
    try:
        return replace(draft, options=replace(draft.options, metadata={**metadata, **mark}))
    except InvalidInput:
        return draft


def _links(item: Context) -> Iterator[Link]:
    """The producer, and the first run where this is a later one."""
    claim = item.claim
    for role, parent in (
        ("producer", (claim.options.metadata or {}).get("traceparent")),
        ("first run", (claim.metadata or {}).get(FIRST_RUN)),
    ):
        if parent is not None:
            found = api.get_current_span(_W3C.extract({"traceparent": parent}, Surroundings())).get_span_context()
            if found.is_valid:
                yield Link(found, {"stoker.link": role})


def _judge(span: Span, error: BaseException, context: Context) -> None:
    """Record what ended a run. What a handler asks for (Snooze, Throttle) is no error."""
    if context.durable is not None and context.durable.suspended is not None:
        span.set_attribute(OUTCOME, "suspended")
        return
    cause = context.cancel.cause
    outcome = outcome_of_error(error, None, cause if isinstance(cause, Cause) else None, context.limit)
    span.set_attribute(OUTCOME, type(outcome).__name__.lower())
    if isinstance(outcome, _NO_FAULT):
        return
    error = gravest(error)
    if isinstance(error, DecidedInChild):
        _failed_elsewhere(span, str(error))
        return
    _failed(span, error, context.cancel.reason)


def _failed(span: Span, error: BaseException, why: str | None = None) -> None:
    span.record_exception(error)
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.set_status(StatusCode.ERROR, why or describe_error(error).partition("\n")[0])


def _failed_elsewhere(span: Span, text: str) -> None:
    """Record an exception that only its process could see, from its text."""
    headline, _, rest = text.partition("\n")
    name, _, message = headline.partition(": ")
    event = {"exception.type": name, "exception.message": message, "exception.stacktrace": rest}
    span.add_event("exception", event)
    span.set_attribute("error.type", name)
    span.set_status(StatusCode.ERROR, headline)

"""Background jobs and a transactional outbox in one library, on SQLite, Postgres, Redis or memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stoker.app import Stoker
from stoker.codec.signature import Raw
from stoker.context import Context, JobLogFilter, current
from stoker.engines.sealed.seal import Seal
from stoker.handle import JobHandle
from stoker.hooks import FailedRun
from stoker.limits import Limit
from stoker.model.chunk import Chunk
from stoker.model.errors import (
    Duplicate,
    EngineError,
    GroupClosed,
    GroupFailed,
    InvalidInput,
    JobCanceled,
    JobFailed,
    NotFound,
    ResultUnavailable,
    StepFailed,
    StokerError,
    UnknownTask,
)
from stoker.model.events import Transition
from stoker.model.job import Draft, Status, chain
from stoker.model.markers import PREVIOUS as _PREVIOUS
from stoker.model.markers import RESULTS as _RESULTS
from stoker.model.outcome import Reject, Retry, Snooze, Throttle
from stoker.model.retry import Delays, Exponential, Fixed, Linear, Never
from stoker.model.throttle import Rate
from stoker.model.unique import Unique
from stoker.task import Task
from stoker.views import Curve, Job, Receipt, Schedule, Step

if TYPE_CHECKING:
    from stoker.observe.logs import JsonFormatter, RedactingFilter
    from stoker.observe.otel_metrics import meter as meter
    from stoker.observe.prometheus import StoreCollector as StoreCollector
    from stoker.observe.tracing import trace as trace
    from stoker.outbox import Inbox, Outbox
    from stoker.worker import Worker

__all__ = [
    "Stoker",
    "Worker",
    "Outbox",
    "Inbox",
    "Task",
    "Chunk",
    "JobHandle",
    "Job",
    "Step",
    "Draft",
    "chain",
    "PREVIOUS",
    "RESULTS",
    "Receipt",
    "Schedule",
    "current",
    "Context",
    "Transition",
    "FailedRun",
    "Unique",
    "Seal",
    "Limit",
    "Rate",
    "Curve",
    "Exponential",
    "Linear",
    "Fixed",
    "Delays",
    "Never",
    "Snooze",
    "Throttle",
    "Retry",
    "Reject",
    "StokerError",
    "JobFailed",
    "JobCanceled",
    "StepFailed",
    "GroupFailed",
    "GroupClosed",
    "ResultUnavailable",
    "NotFound",
    "Duplicate",
    "UnknownTask",
    "InvalidInput",
    "EngineError",
    "Raw",
    "Status",
    "JobLogFilter",
    "JsonFormatter",
    "RedactingFilter",
]

PREVIOUS: Any = _PREVIOUS
"""Stands in a draft for the result of the job before it: `chain(add.draft(2, 3), double.draft(PREVIOUS))`."""

RESULTS: Any = _RESULTS
"""Stands in a group's callback for the list of its members' results: `jobs.group([...], then=total.draft(RESULTS))`."""

ON_USE = {
    "Worker": "stoker.worker",
    "Outbox": "stoker.outbox",
    "Inbox": "stoker.outbox",
    "JsonFormatter": "stoker.observe.logs",
    "RedactingFilter": "stoker.observe.logs",
    "StoreCollector": "stoker.observe.prometheus",
    "meter": "stoker.observe.otel_metrics",
    "trace": "stoker.observe.tracing",
}
"""What not every producer needs, and the module that has it. Two need an extra, so `import *` leaves them out."""

EXTRAS = {"StoreCollector": "prometheus", "meter": "otel", "trace": "otel"}


if not TYPE_CHECKING:  # a checker would take it for a promise that every name exists

    def __getattr__(name: str) -> Any:
        """Import on first use."""
        if name not in ON_USE:
            raise AttributeError(f"module 'stoker' has no attribute {name!r}")
        try:
            return getattr(import_module(ON_USE[name]), name)
        except ModuleNotFoundError as error:
            if name not in EXTRAS:
                raise
            text = f"stoker.{name} needs {error.name}, which is not installed: install stoker[{EXTRAS[name]}]"
            raise ImportError(text, name=error.name) from None
